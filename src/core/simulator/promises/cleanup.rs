//! Promises about a termination: its defer containers and its termination hooks.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::lifecycle::{HookKind, Time};
use crate::plan::{GracePolicy, RestartPolicy, Signal};
use crate::process::ExitStatus;
use crate::simulator::case::Part;
use crate::simulator::trace::{ContainerTrace, Ending, MIN_GRACE, Run};
use crate::simulator::{Seen, ms, name_of, secs};

use super::retries::{plain_ending, wait_after};
use super::starts::{is_unseen_restart, looks_ended};
use super::{MOMENT, Verdict, broken};

pub fn every_defer_runs_once(run: &Run<'_>) -> Verdict {
    for sandbox in run.sandboxes() {
        let Some(ending) = run.ending(sandbox) else {
            continue;
        };
        for defer in run.of(sandbox).filter(|trace| trace.part().is_defer()) {
            it_does_not_run_twice(run, &ending, defer)?;
            match ending.forced {
                _ if ending.is_vague => {}
                true => it_is_left_out(run, &ending, defer)?,
                false if is_due(run, &ending, defer) => it_has_its_turn(run, &ending, defer)?,
                false => {}
            }
        }
    }
    Ok(())
}

fn it_does_not_run_twice(run: &Run<'_>, ending: &Ending, defer: &ContainerTrace<'_>) -> Verdict {
    let name = defer.member.name;
    let namesakes = run
        .of(ending.sandbox)
        .filter(|trace| trace.member.name == name);
    let runs: usize = namesakes.map(|trace| runs_in(ending, trace)).sum();
    let again = defer.member.restart.unwrap_or(RestartPolicy::Never) != RestartPolicy::Never;
    // A defer container may have run in a termination that the shim had inferred by mistake. It may
    // then run a second time, at the real end of the pod.
    let mut taken = run.taken.iter();
    let is_disproved =
        taken.any(|taken| taken.sandbox == ending.sandbox && taken.disproved >= Some(ending.from));
    broken(runs <= 1 || again || is_disproved, || {
        format!("{name} runs {runs} times")
    })
}

fn runs_in(ending: &Ending, trace: &ContainerTrace<'_>) -> usize {
    let executed = trace.executed.iter();
    executed.filter(|at| **at >= ending.from).count()
}

fn it_is_left_out(run: &Run<'_>, ending: &Ending, defer: &ContainerTrace<'_>) -> Verdict {
    // If a fault hindered the node, a request may arrive so late that its grace period seems to be
    // over.
    let is_late = run.is_any_hindered(ending.sandbox, ending.from, ending.from);
    // Kubelet may first stop containers that usher leaves alone: native sidecars, and containers
    // outside the pod's plan. Then the shim does not know yet how much time the other containers
    // have.
    let mut taken = run.taken.iter();
    let taken = taken.rfind(|taken| taken.sandbox == ending.sandbox);
    let mut asks = run.log.asks.iter();
    let is_unknown = asks.all(|ask| {
        let is_later = taken.is_none_or(|taken| ask.after > taken.after);
        is_later || !run.case.member(name_of(ask.id)).part.is_ours()
    });
    broken(runs_in(ending, defer) == 0 || is_late || is_unknown, || {
        format!("{} runs in a forced end", defer.id)
    })
}

/// True if a defer container has to run: it is present, another container has run in the pod, and
/// the defer container was not stopped alone.
fn is_due(run: &Run<'_>, ending: &Ending, defer: &ContainerTrace<'_>) -> bool {
    let since = run.began(ending.sandbox, ending.from);
    let something_ran = run.of(ending.sandbox).any(|trace| {
        let first = trace.executed.first();
        let ran = first.is_some_and(|at| *at < ending.from && trace.created >= since);
        trace.part().is_ours() && !trace.part().is_defer() && ran
    });
    let was_started = |(at, is_ok): (Time, bool)| is_ok && at < ending.from;
    let is_there = defer.answered.is_some_and(was_started)
        && defer.is_alive(ending.from)
        && !defer.is_killed_by(ending.from)
        && defer.executed.iter().all(|at| *at >= ending.from);
    // If kubelet restarts the whole pod and the shim does not notice, the shim still counts the
    // defer containers as part of the previous run.
    let is_of_next = is_unseen_restart(run, defer);
    something_ran && is_there && !is_of_next && !has_its_own_request(run, ending, defer)
}

/// True if the defer container got its own stop request. Such a defer container ends without having
/// run.
fn has_its_own_request(run: &Run<'_>, ending: &Ending, defer: &ContainerTrace<'_>) -> bool {
    let mut own = run.log.asks.iter().filter(|ask| ask.id == defer.id);
    let was_asked = own.clone().any(|ask| match ask.end {
        true => ask.at < ending.from,
        false => ask.at <= ending.from,
    });
    // The shim delays a stop request for a defer container, to see if a request for another
    // container follows. Two requests are a termination, and then the defer container runs. If no
    // second request comes in time, the defer container ends without having run. But if the caller
    // sees no app as RUNNING, one request is already a termination.
    let has_apps = |at: Time| {
        let mut traces = run.of(ending.sandbox);
        traces.any(|trace| trace.part() == Part::App && trace.reads_running(at))
    };
    let told = defer.signals.first().map(|(at, _)| *at);
    let was_alone = told.is_some_and(|told| has_apps(told) && run.is_told_alone(defer, told));
    // If the caller kills the defer container during this delay, the defer container also ends
    // without having run.
    let is_cut = own.any(|ask| {
        let until = run.kept_until(ask, defer);
        let mut kills = run.log.kills.iter();
        kills.any(|(at, id)| *id == defer.id && *at < until)
    });
    was_asked || was_alone || is_cut
}

fn it_has_its_turn(run: &Run<'_>, ending: &Ending, defer: &ContainerTrace<'_>) -> Verdict {
    let Some(turn) = turn_of(run, ending, defer) else {
        return Ok(());
    };
    // Takes only requests that came before the defer container's turn. A later request may give
    // more time, but comes too late for the defer container.
    let asks = run.log.asks.iter().filter(|ask| {
        let is_of_end = ask.end && run.ask_sandbox(ask) == ending.sandbox;
        is_of_end && ask.at <= turn && !ask.is_handler
    });
    let mut graces = asks.map(|ask| ask.grace).peekable();
    let had_little = graces.peek().is_some() && graces.all(|grace| grace <= MIN_GRACE);
    let margin = match run.case.grace_policy {
        // Two seconds before a termination step ends, the shim stops all defer containers of the
        // step. A defer container whose turn comes after that need not run. The policy `Reserve`
        // also keeps 6 s for the later steps.
        GracePolicy::Reserve => secs(8),
        GracePolicy::Overrun | GracePolicy::SkipHooks => secs(2),
        GracePolicy::Shared | GracePolicy::Strict => Duration::ZERO,
    };
    let has_time = turn.after(margin).after(ms(300)) < ending.soonest;
    let has_time = has_time && !(run.is_hurried() && had_little);
    // A fault may have delayed a container that comes before the defer container.
    let is_hindered = run.is_hindered(&defer.id, defer.created, turn)
        || run.is_any_hindered(ending.sandbox, ending.from, ending.deadline);
    broken(
        runs_in(ending, defer) > 0 || !has_time || is_hindered,
        || {
            format!(
                "{} never runs: its turn was at {turn}, the end began at {}, its deadline is {}",
                defer.id, ending.from, ending.deadline
            )
        },
    )
}

/// The time when all steps and containers before a defer container are over, or `None` if this
/// never happens.
fn turn_of(run: &Run<'_>, ending: &Ending, defer: &ContainerTrace<'_>) -> Option<Time> {
    let hooks = run.case.members.iter().filter_map(|member| member.hook);
    let mut turn = ending.known.after(ms(hooks.max().unwrap_or_default()));
    let before = run.of(ending.sandbox).filter(|trace| {
        let is_earlier = |part| {
            let place = |name| run.case.of(part).position(|member| member.name == name);
            place(trace.member.name) < place(defer.member.name)
        };
        match (trace.part(), defer.part()) {
            (Part::App | Part::Init | Part::PreExit, Part::PostExit) => true,
            (Part::PreExit, Part::PreExit) => is_earlier(Part::PreExit),
            (Part::PostExit, Part::PostExit) => is_earlier(Part::PostExit),
            _ => false,
        }
    });
    for trace in before {
        let is_there = trace.reads_running(ending.from) || trace.is_alive(ending.from);
        // `defer` runs after every earlier defer container, even after one that kubelet creates
        // only during the termination.
        let comes_later =
            trace.part().is_defer() && trace.executed.iter().any(|at| *at > ending.from);
        if trace.id == defer.id || !is_there && !comes_later {
            continue;
        }
        turn = turn.max(trace.ended()?);
    }
    Some(turn)
}

/// Checks that a defer container with its own `grace-period` gets its stop signal exactly when this
/// time has passed since its release, and SIGKILL 2 s later. The check is left out if the pod's
/// grace period ends before.
pub fn caps_of_defers_are_kept(run: &Run<'_>) -> Verdict {
    for trace in run.traces.iter().filter(|trace| trace.part().is_defer()) {
        let (Some(cap), Some(released)) = (trace.member.cap, trace.released) else {
            continue;
        };
        let Some(ending) = run.ending(trace.sandbox).filter(|it| it.from <= released) else {
            continue;
        };
        let end = released.after(secs(cap));
        let is_cut = end.after(least(run.case.grace_policy)).after(MOMENT) >= ending.soonest
            || looks_ended(run, trace.sandbox);
        // A restarted defer container is stopped before the end of its own grace period if other
        // defer containers still have to run.
        let is_run_again = trace.executed.len() > 1;
        let is_hindered = run.is_any_hindered(trace.sandbox, released, end.after(MIN_GRACE));
        let mut taken = run.taken.iter();
        let is_none = taken.any(|it| it.sandbox == trace.sandbox && it.disproved >= Some(released));
        if is_cut || is_run_again || is_hindered || is_none || ending.is_vague || run.is_hurried() {
            continue;
        }
        let signals = || trace.signals.iter().filter(|(at, _)| trace.runs(*at));
        let told = signals().next().map(|(at, _)| *at);
        let early = told.filter(|told| *told < end);
        broken(early.is_none(), || {
            format!("{} is told at {early:?}, its cap ends at {end}", trace.id)
        })?;
        let runs_on = trace.runs(end.after(MOMENT));
        let in_time = told.is_some_and(|told| told <= end.after(MOMENT));
        broken(!runs_on || in_time, || {
            format!("{} is told at {told:?}, its cap ends at {end}", trace.id)
        })?;
        let mut kills = signals().filter(|(_, it)| *it == Signal::KILL);
        let early = kills.find(|(at, _)| *at < end.after(MIN_GRACE));
        broken(early.is_none(), || {
            format!("{} is killed at {early:?}, its cap ends at {end}", trace.id)
        })?;
        let lives_on = trace.runs(end.after(MIN_GRACE).after(MOMENT));
        broken(!lives_on, || format!("{} outlives its cap", trace.id))?;
    }
    Ok(())
}

/// Checks that a failed defer container is restarted after 0, 1, 2, then 4 s. It is restarted until
/// it succeeds, or until later defer containers and steps need the remaining time. Then the next
/// defer container still runs.
pub fn restarted_defers_leave_time(run: &Run<'_>) -> Verdict {
    for trace in run.traces.iter().filter(|trace| trace.part().is_defer()) {
        let restarts = trace.member.restart.unwrap_or(RestartPolicy::Never);
        let ending = plain_ending(run, trace, Duration::ZERO);
        let (true, Some(ending)) = (restarts != RestartPolicy::Never, ending) else {
            continue;
        };
        // An upper bound for the number of defer containers and steps after this defer container.
        let behind = run
            .case
            .members
            .iter()
            .filter(|it| it.part.is_defer())
            .count() as u64
            + 2;
        let last = ending.soonest.before(secs(2 * behind + 2));
        let cap = trace.member.cap.zip(trace.released);
        let last = cap.map_or(last, |(cap, at)| last.min(at.after(secs(cap))));
        for (n, (died, status)) in trace.died.iter().enumerate() {
            let again = died.after(wait_after(n)).after(MOMENT);
            let mut signals = trace.signals.iter();
            let by_itself = signals.all(|(at, _)| at > died) && *status != ExitStatus::Code(0);
            let is_due = by_itself && *died >= ending.from && again < last;
            let is_there = trace.executed.iter().any(|at| at >= died && *at <= again);
            broken(!is_due || is_there, || {
                format!("{} fails at {died} and is not there again", trace.id)
            })?;
        }
        let mut others = run.of(trace.sandbox).filter(|other| {
            let place = |name| run.case.members.iter().position(|it| it.name == name);
            let is_behind =
                other.part() == trace.part() && place(trace.member.name) < place(other.member.name);
            is_behind && is_due(run, &ending, other)
        });
        let first = trace.died.first().map(|(at, _)| *at);
        let had_time = first.is_some_and(|at| at < last) && trace.executed.len() > 1;
        // A defer container that hangs uses up all time, whether it hangs in its first run or after
        // a restart.
        let starved = others.find(|other| runs_in(&ending, other) == 0);
        let last_end = trace.ended();
        let took_all = last_end.is_none_or(|at| at >= ending.soonest);
        broken(!(had_time && took_all && starved.is_some()), || {
            format!(
                "{} is run again until {last_end:?}, and those behind it never",
                trace.id
            )
        })?;
    }
    Ok(())
}

/// The last part of a termination's time, which is reserved for later steps.
fn least(policy: GracePolicy) -> Duration {
    match policy {
        GracePolicy::Reserve => secs(8),
        GracePolicy::Shared
        | GracePolicy::Overrun
        | GracePolicy::SkipHooks
        | GracePolicy::Strict => MIN_GRACE,
    }
}

/// Checks that the termination hooks of all containers run, unless the termination is forced or
/// there is no time.
pub fn hooks_run(run: &Run<'_>) -> Verdict {
    for trace in run
        .traces
        .iter()
        .filter(|trace| trace.member.hook.is_some())
    {
        let Some(ending) = run.ending(trace.sandbox) else {
            continue;
        };
        let least = least(run.case.grace_policy);
        let has_time = ending.known.after(least) < ending.soonest;
        let is_meant = !ending.forced && !ending.is_vague && has_time;
        let excused = was_told_alone(run, &ending, trace)
            || is_unknown_to(run, &ending, trace)
            || run.is_hindered(&trace.id, ending.from, ending.deadline);
        let runs = !lives_in(&ending, trace) || hook_ran(run, &ending, trace);
        broken(!is_meant || excused || runs, || {
            format!(
                "that of {} never runs: the end began at {}",
                trace.id, ending.from
            )
        })?;
    }
    Ok(())
}

/// True if the container runs when the termination begins, and neither exits by itself nor is
/// restarted at that moment.
fn lives_in(ending: &Ending, trace: &ContainerTrace<'_>) -> bool {
    let mut executed = trace.executed.iter();
    let mut died = trace.died.iter();
    trace.runs(ending.from)
        && trace.runs(ending.known)
        && executed.all(|at| at.after(MOMENT) < ending.from)
        && died.all(|(at, _)| *at < ending.from || *at > ending.known.after(MOMENT))
}

/// True if the container got a stop request of its own, which is not part of the termination. The
/// request came before the termination, or at the same time.
fn was_told_alone(run: &Run<'_>, ending: &Ending, trace: &ContainerTrace<'_>) -> bool {
    let mut asks = run.log.asks.iter();
    let was_asked = asks.any(|ask| ask.id == trace.id && (!ask.end || ask.at < ending.from));
    let has_probes = trace.member.probed || trace.member.unwell.is_some();
    // A stop request means a termination if the caller sees no other container as RUNNING. Native
    // containers and containers outside the pod's plan do not count as others.
    let has_others = |at: Time| {
        let others = run.of(trace.sandbox).filter(|other| other.id != trace.id);
        // Kubelet stops native init containers and sidecars after all others have exited.
        let mut others =
            others.filter(|other| other.part() != Part::Guest && !other.part().is_native());
        // Looks at the state 1 ms before the signal, because another container may exit at the
        // moment of the signal.
        others.any(|other| other.reads_running(at.before(ms(1))))
    };
    let mut told = trace.signals.iter().map(|(at, _)| *at);
    // A signal is not part of the termination in three cases. The signal came before the
    // termination. Or a failed probe may have caused the signal before the termination was known.
    // Or the container's stop request was delayed for the longest time, and no second request came.
    let was_told = told.any(|at| {
        at < ending.from
            || at < ending.known && has_probes
            || has_others(at) && run.is_told_alone(trace, at)
    });
    was_asked || was_told
}

/// True if the shim could not know of the termination before this container exited, because the
/// only stop request before this exit was for another container.
fn is_unknown_to(run: &Run<'_>, ending: &Ending, trace: &ContainerTrace<'_>) -> bool {
    let mut ends = trace.died.iter().map(|(at, _)| *at);
    let end = ends.find(|at| *at >= ending.from);
    let lives_on = |at: Time| end.is_none_or(|end| at < end);
    let was_taken = run.taken.iter().any(|taken| {
        let is_of_it = taken.sandbox == trace.sandbox && taken.disproved.is_none();
        is_of_it && lives_on(taken.at)
    });
    let asks = run.log.asks.iter().filter(|ask| {
        let is_of_it = ask.end && run.tells(ask) && run.ask_sandbox(ask) == trace.sandbox;
        is_of_it && ask.at >= ending.from && lives_on(ask.at)
    });
    let asked: BTreeSet<_> = asks.map(|ask| ask.id).collect();
    !was_taken && asked.len() == 1 && !asked.contains(trace.id.as_str())
}

fn hook_ran(run: &Run<'_>, ending: &Ending, trace: &ContainerTrace<'_>) -> bool {
    // The shim may have begun the termination before `ending.from`. A hook that has run since the
    // shim began the termination counts, too.
    let taken = run.taken.iter();
    let taken = taken.filter(|taken| taken.sandbox == trace.sandbox && taken.disproved.is_none());
    let since = taken.map(|taken| taken.at).fold(ending.from, Time::min);
    let seen = || run.account.seen.iter();
    let times = |is_its: fn(&Seen) -> Option<&String>| {
        let its = seen().filter(move |(_, seen)| is_its(seen) == Some(&trace.id));
        its.map(|(at, _)| *at)
    };
    let began = || {
        times(|seen| match seen {
            Seen::HookBegan(id, HookKind::Termination) => Some(id),
            _ => None,
        })
    };
    let ended = times(|seen| match seen {
        Seen::HookEnded(id, HookKind::Termination) => Some(id),
        _ => None,
    });
    // The shim may have inferred an earlier termination by mistake, and run the hook. If the hook
    // is still running, the shim does not run it a second time.
    let begun = began().filter(|at| *at <= ending.from).count();
    let is_under_way = begun > ended.filter(|at| *at <= ending.from).count();
    !trace.runs(since) || is_under_way || began().any(|at| at >= since)
}
