//! Promises about restarts in a termination: the waits before restarts, and the time when restarts
//! have to end.

use std::time::Duration;

use crate::lifecycle::Time;
use crate::simulator::case::Part;
use crate::simulator::secs;
use crate::simulator::trace::{ContainerTrace, Ending, MIN_GRACE, Run};

use super::restarts::is_wanted;
use super::{MOMENT, Verdict, broken};

/// Time after a termination's deadline. If a fault of the node falls into this time, the checks
/// leave out the termination.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// Checks that sidecars and defer containers that exit in a termination are restarted after 0, 1,
/// 2, then 4 s.
pub fn restarts_back_off(run: &Run<'_>) -> Verdict {
    let mut traces = run.traces.iter();
    traces.try_for_each(|trace| {
        let is_retried = trace.part() == Part::Sidecar || trace.part().is_defer();
        match plain_ending(run, trace, AFTERWARDS).filter(|_| is_retried) {
            Some(ending) => keeps_its_waits(run, &ending, trace),
            None => Ok(()),
        }
    })
}

fn keeps_its_waits(run: &Run<'_>, ending: &Ending, trace: &ContainerTrace<'_>) -> Verdict {
    // A person may start the pod again in the same sandbox.
    let mut taken = run.taken.iter().filter(|it| it.sandbox == trace.sandbox);
    let again = taken.find_map(|it| it.followed.filter(|at| *at >= ending.known));
    let deaths = trace
        .died
        .iter()
        .filter(|(at, _)| *at > ending.known && again.is_none_or(|again| *at < again));
    // An exit at the very moment when the termination began may count as the first exit of the
    // termination.
    let is_first_unknown = trace.died.iter().any(|(at, _)| *at == ending.known);
    for (n, (died, status)) in deaths.enumerate() {
        // This exit has shown the shim that the pod terminates.
        if run.taken.iter().any(|taken| taken.at == *died) {
            continue;
        }
        let due = died.after(wait_after(n));
        let mut executed = trace.executed.iter().copied();
        // If the restart is due at once, the execution may have the same time as the exit.
        let again = executed.find(|at| at > died || at == died && due == *died);
        let is_early = again.is_some_and(|again| again < due);
        broken(!is_early, || {
            format!("{} dies at {died} and runs again at {again:?}", trace.id)
        })?;
        let longest = died.after(wait_after(n + usize::from(is_first_unknown)));
        let by = due.max(longest).after(MOMENT);
        let is_owed = trace.part() == Part::Sidecar && is_needed(run, ending, trace, (*died, by));
        let is_there = again.is_some_and(|again| again <= by);
        broken(!is_owed || is_there || !is_wanted(trace, *status), || {
            format!("{} dies at {died} and is not back at {by}", trace.id)
        })?;
    }
    Ok(())
}

/// The wait before a restart in a termination, after `n` earlier exits in this termination.
pub fn wait_after(n: usize) -> Duration {
    secs([0, 1, 2].get(n).copied().unwrap_or(4))
}

/// True if a sidecar is still needed when its restart is due: an app runs, and the sidecar was not
/// asked to stop.
fn is_needed(
    run: &Run<'_>,
    ending: &Ending,
    sidecar: &ContainerTrace<'_>,
    (died, by): (Time, Time),
) -> bool {
    let mut traces = run.of(ending.sandbox);
    let has_app =
        traces.any(|trace| trace.part() == Part::App && trace.runs(died) && trace.runs(by));
    let is_told = sidecar.signals.iter().any(|(at, _)| *at <= by);
    let is_alone = run.was_asked_alone(sidecar);
    let is_in_time = by.after(MIN_GRACE) < ending.soonest;
    has_app && is_in_time && !is_told && !is_alone && !sidecar.member.essential
}

/// Checks that a defer container is run again only while enough time is left: 2 s for each later
/// defer container and step, and 2 s for the container itself.
pub fn no_restart_in_the_time_of_others(run: &Run<'_>) -> Verdict {
    for trace in run.traces.iter().filter(|trace| trace.part().is_defer()) {
        let Some(ending) = plain_ending(run, trace, AFTERWARDS) else {
            continue;
        };
        // kubelet may be stopping one container when it begins to stop the pod. To the shim the
        // earlier stop looks like the first request of the termination.
        let mut traces = run.of(trace.sandbox);
        let is_stopped_before = |it: &ContainerTrace<'_>| {
            run.log.asked_again.contains(&it.id.as_str()) || run.was_asked_alone(it)
        };
        if traces.any(is_stopped_before) {
            continue;
        }
        let end = ending.from.after(ending.grace);
        for again in trace.executed.iter().skip(1) {
            // The shim decides on the restart a moment before the program runs again.
            let mut decided = trace.restarting.iter().rev();
            let decided = decided.find(|at| *at <= again).unwrap_or(again);
            // If kubelet begins to stop the pod after the decision to restart, the shim could not
            // know how much time is left. The check is left out then.
            let deleted = run.stopped_all(trace.sandbox).map(|(at, _)| at);
            if *decided < ending.from || deleted.is_some_and(|at| at > *decided) {
                continue;
            }
            let behind = behind(run, (trace, &ending), *decided);
            let needed = MIN_GRACE.saturating_mul(behind.saturating_add(1));
            let is_late = behind > 0 && decided.after(needed) > end.after(MOMENT);
            broken(!is_late, || {
                format!(
                    "{} runs again at {again}, {behind} are behind it, the end is at {end}",
                    trace.id
                )
            })?;
        }
    }
    Ok(())
}

/// The number of defer containers and steps that still follow a defer container that runs at `at`.
/// Containers of the next run and containers that are still being created do not count.
fn behind(run: &Run<'_>, (defer, ending): (&ContainerTrace<'_>, &Ending), at: Time) -> u32 {
    let place = |trace: &ContainerTrace<'_>| {
        let mut members = run.case.of(trace.part());
        members.position(|member| member.name == trace.member.name)
    };
    let traces = || {
        let others = run.of(defer.sandbox).filter(|trace| trace.id != defer.id);
        others.filter(|trace| {
            let is_of_run = trace.part().is_defer() || trace.created < ending.from;
            let is_created = trace.created.after(MOMENT) <= at;
            is_of_run && is_created && trace.is_alive(at) && !trace.is_killed_by(at)
        })
    };
    let is_later = |trace: &&ContainerTrace<'_>| match (defer.part(), trace.part()) {
        (Part::PreExit, Part::PreExit) | (Part::PostExit, Part::PostExit) => {
            place(defer) < place(trace)
        }
        (Part::PreExit, Part::PostExit) => true,
        _ => false,
    };
    let defers = traces().filter(is_later).count();
    let steps = [(Part::App, Part::PreExit), (Part::Sidecar, Part::PostExit)];
    let comes = |(part, last): &(Part, Part)| {
        let is_to_come = defer.part() == Part::PreExit || *last == Part::PostExit;
        is_to_come && traces().any(|trace| trace.part() == *part)
    };
    let steps = steps.iter().filter(|step| comes(step)).count();
    u32::try_from(defers + steps).unwrap_or(u32::MAX)
}

/// The termination of a container's sandbox. `None` if there was none, and in these cases:
///
/// - The shim had inferred a termination of this sandbox by mistake.
/// - The termination was forced.
/// - The grace period was unclear, or was shortened later.
/// - The sandbox died before the deadline.
/// - A fault hindered the shim during the termination, or within `beyond` after the deadline.
pub fn plain_ending(run: &Run<'_>, trace: &ContainerTrace<'_>, beyond: Duration) -> Option<Ending> {
    let ending = run.ending(trace.sandbox)?;
    let mut taken = run.taken.iter();
    let is_none = taken.any(|it| it.sandbox == trace.sandbox && it.disproved.is_some());
    let until = ending.deadline.after(beyond);
    let is_hindered = run.is_any_hindered(trace.sandbox, ending.from, until);
    let is_dead = run.deaths[trace.sandbox].is_some_and(|died| died <= ending.deadline);
    let is_plain = !is_none && !is_hindered && !is_dead && !ending.forced && !ending.is_vague;
    (is_plain && !run.is_hurried()).then_some(ending)
}
