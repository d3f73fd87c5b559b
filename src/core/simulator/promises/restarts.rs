//! Promises about restarts: sidecars restarted in place, and the containers of the next sandbox.

use crate::lifecycle::{Cause, Time};
use crate::plan::RestartPolicy;
use crate::process::ExitStatus;
use crate::simulator::case::Part;
use crate::simulator::trace::{ContainerTrace, MIN_GRACE, Run, WINDOW};
use crate::simulator::{ms, secs};

use super::starts::{
    is_another_created_during_post_start, is_kubelet_ever_away, post_start_fails, started,
};
use super::{MOMENT, Verdict, broken};

pub fn sidecars_are_restarted(run: &Run<'_>) -> Verdict {
    for sidecar in run
        .traces
        .iter()
        .filter(|trace| trace.part() == Part::Sidecar)
    {
        let Some(ending) = run.ending(sidecar.sandbox) else {
            continue;
        };
        // If an exit and the beginning of the termination come at the same time, the shim may have
        // handled the exit first.
        let is_first_unknown = sidecar.died.iter().any(|(at, _)| *at == ending.known);
        let excused = run.was_asked_alone(sidecar)
            || is_first_unknown
            || ending.forced
            || sidecar.member.essential
            || run.deaths[sidecar.sandbox].is_some();
        // If a sidecar is in its back-off when the termination begins, the shim restarts it at
        // once.
        let mut died = sidecar.died.iter();
        let before = died.rfind(|(died, _)| *died < ending.known);
        let in_back_off = before.filter(|(died, _)| {
            let mut executed = sidecar.executed.iter();
            let is_down = executed.all(|at| at < died || *at > ending.known);
            is_down && sidecar.reads_running(ending.known)
        });
        // In a termination the first restart comes at once, later ones after a back-off.
        let mut died = sidecar.died.iter();
        let first = died.find(|(died, _)| *died > ending.known);
        let first = match in_back_off {
            Some((_, status)) => Some((ending.known, *status)),
            None => first.copied(),
        };
        let Some((died, status)) = first.as_ref().filter(|_| !excused) else {
            continue;
        };
        let is_in = *died >= ending.known && died.after(secs(2)) < ending.deadline;
        let by_itself = sidecar.signals.iter().all(|(at, _)| at > died);
        let mut executed = sidecar.executed.iter().copied();
        let there = executed.find(|at| at >= died);
        let last_app = run
            .of(sidecar.sandbox)
            .filter(|trace| trace.part() == Part::App && trace.runs(*died))
            .filter_map(|app| app.died.iter().map(|(at, _)| *at).find(|at| at > died))
            .max();
        let in_time = last_app.is_none_or(|last| {
            let by = died.after(MOMENT);
            last <= by || there.is_some_and(|there| there <= by)
        });
        let in_time = in_time || run.is_hindered(&sidecar.id, *died, died.after(MOMENT));
        broken(
            !is_in || !by_itself || !is_wanted(sidecar, *status) || in_time,
            || {
                format!(
                    "{} dies at {died}, {last_app:?} is the end of the apps",
                    sidecar.id
                )
            },
        )?;
    }
    Ok(())
}

/// Checks that a sidecar is restarted in this case: kubelet ends the pod, and asks the sidecar to
/// stop. The sidecar exits by itself, and then kubelet asks an app to stop. The second request
/// comes within the termination window ([`WINDOW`]) after the first one. An app still runs
/// afterward.
pub fn sidecars_asked_first_are_restarted(run: &Run<'_>) -> Verdict {
    let signals = || {
        let asks = run.log.asks.iter();
        asks.filter(|ask| ask.end && !ask.is_handler && !ask.is_kill && ask.grace > MIN_GRACE)
    };
    for ask in signals().filter(|_| !run.case.by_hand) {
        let Some(sidecar) = run.whose(ask).filter(|it| it.part() == Part::Sidecar) else {
            continue;
        };
        let until = ask.at.after(WINDOW);
        let mut died = sidecar.died.iter();
        let died = died.find(|(died, _)| *died > ask.at && *died < until);
        let Some((died, status)) = died.filter(|_| sidecar.ended_by_itself()) else {
            continue;
        };
        let second = signals().filter(|other| other.at > *died && other.at < until);
        let mut second = second.filter(|other| {
            let its = run.whose(other);
            its.is_some_and(|it| it.part() == Part::App && it.sandbox == sidecar.sandbox)
        });
        let Some(second) = second.next() else {
            continue;
        };
        let by = second.at.after(MOMENT);
        let mut apps = run.of(sidecar.sandbox);
        let is_needed = apps.any(|app| app.part() == Part::App && app.runs(by));
        // Before the app's request, the shim already knew of a stop of the sidecar or of the whole
        // pod, or the sandbox had died.
        let is_known = run.was_asked_alone(sidecar)
            || run.first_asked(sidecar).is_some_and(|first| first < ask.at)
            || run
                .first_taken(sidecar.sandbox)
                .is_some_and(|at| at < second.at)
            || run.deaths[sidecar.sandbox].is_some_and(|death| death <= by);
        let excused = is_known
            || sidecar.member.essential
            || !is_wanted(sidecar, *status)
            || run.is_hindered(&sidecar.id, *died, by);
        let is_run_again = sidecar.executed.iter().any(|at| at > died && *at <= by);
        broken(is_run_again || !is_needed || excused, || {
            format!("{} dies at {died} and is missing at {by}", sidecar.id)
        })?;
    }
    Ok(())
}

/// True if the pod's author wants the shim to restart a sidecar that exited with `status`.
pub fn is_wanted(sidecar: &ContainerTrace<'_>, status: ExitStatus) -> bool {
    match sidecar.member.restart {
        None | Some(RestartPolicy::Always) => true,
        Some(RestartPolicy::OnFailure) => status != ExitStatus::Code(0),
        Some(RestartPolicy::Never) => false,
    }
}

pub fn post_starts_are_repeated(run: &Run<'_>) -> Verdict {
    for trace in run
        .traces
        .iter()
        .filter(|trace| trace.part() == Part::Sidecar)
    {
        // The shim can repeat a postStart handler only if the caller has begun it before.
        let known = trace.answered.filter(|(at, is_ok)| {
            let ends = run
                .log
                .over
                .into_iter()
                .chain(trace.died.first().map(|(at, _)| *at));
            *is_ok && ends.min().is_none_or(|end| end > *at)
        });
        // Kubelet stops a container whose postStart handler has failed. A preStop handler that the
        // shim cannot see may delay the stop request. The shim has then forgotten the failed
        // postStart handler.
        let is_forgotten = is_kubelet_ever_away(run)
            && is_another_created_during_post_start(run, trace)
            || post_start_fails(trace)
                && (is_kubelet_ever_away(run) || trace.member.pre_stop.is_some());
        if trace.member.post_start.is_none() || known.is_none() || is_forgotten {
            continue;
        }
        for at in trace.executed.iter().skip(1) {
            let ends = trace
                .died
                .iter()
                .map(|(died, _)| *died)
                .find(|died| died > at);
            let is_short = ends.is_some_and(|end| end <= at.after(MOMENT))
                || run.is_hindered(&trace.id, trace.created, at.after(MOMENT));
            let mut handled = trace.post_starts.iter();
            let is_handled = handled.any(|t| t >= at && *t <= at.after(MOMENT));
            broken(is_handled || is_short, || {
                format!("{} is restarted at {at}", trace.id)
            })?;
        }
    }
    Ok(())
}

pub fn failed_probes_restart_sidecars(run: &Run<'_>) -> Verdict {
    for trace in run
        .traces
        .iter()
        .filter(|trace| trace.part() == Part::Sidecar)
    {
        let Some((wait, since)) = trace.member.unwell.zip(trace.executed.first()) else {
            continue;
        };
        let unwell = since.after(ms(wait));
        if started(run, trace)
            .next()
            .is_none_or(|started| started > unwell)
        {
            continue;
        }
        // `due` leaves time for two attempts of the probe, and for the stop of the sidecar. The
        // first restart comes at once.
        let due = unwell
            .after(secs(4))
            .after(secs(run.case.grace))
            .after(MIN_GRACE);
        let ends = [
            run.ending(trace.sandbox).map(|ending| ending.from),
            run.deaths[trace.sandbox],
            run.first_asked(trace),
            run.first_taken(trace.sandbox),
        ];
        let died = trace.died.first().map(|(at, _)| *at);
        let was_well = died.is_some_and(|died| {
            died <= unwell.after(secs(3)) && trace.signals.iter().all(|(at, _)| *at > died)
        });
        let goes_on = ends.into_iter().flatten().min().is_none_or(|end| end > due);
        let again = trace.executed.get(1).is_some_and(|at| *at <= due);
        let excused = was_well
            || run.is_hindered(&trace.id, trace.created, due)
            || !goes_on
            || trace.member.essential
            || trace.member.restart == Some(RestartPolicy::Never);
        broken(again || excused, || {
            format!("{} is unwell from {unwell} on", trace.id)
        })?;
    }
    Ok(())
}

/// True if the caller knew at `at` that the last container named `name` had exited with 0.
///
/// If containerd dies during a Start that succeeds, the simulated kubelet creates a second
/// container with this name. The real kubelet would first read the exit code of the first
/// container. So, in this case, a container that never ran does not count as the last one.
fn has_succeeded(run: &Run<'_>, name: &str, at: Time) -> bool {
    let is_its = |trace: &&ContainerTrace<'_>| trace.member.name == name && trace.created < at;
    let all = || run.traces.iter().filter(is_its);
    let is_needless = all().any(|trace| run.was_given_up(trace) && !trace.executed.is_empty());
    let last = all().rfind(|trace| !is_needless || !trace.executed.is_empty());
    let reported = last.and_then(|trace| trace.reported);
    reported.is_some_and(|(reported, code)| reported <= at && code == 0)
}

pub fn the_next_sandbox_is_complete(run: &Run<'_>) -> Verdict {
    for (at, name, code) in &run.log.left_out {
        let member = run.case.member(name);
        let last = run
            .traces
            .iter()
            .rfind(|trace| trace.member.name == *name && trace.created < *at);
        let Some(last) = last else { continue };
        let apps_over = run
            .case
            .of(Part::App)
            .all(|app| has_succeeded(run, app.name, *at));
        let by_itself = last.died.last().is_some_and(|(died, status)| {
            let was_told = last.signals.iter().any(|(at, _)| at <= died);
            *status == ExitStatus::Code(0) && !was_told
        });
        let is_its_own = match member.part {
            Part::Sidecar => by_itself && member.restart.is_some(),
            Part::Init | Part::PreExit | Part::PostExit => false,
            _ => true,
        };
        // A container that exits after the run is complete may be left out of the next sandbox,
        // even if an app has not succeeded. Kubelet may be about to create that app again with
        // another image.
        let mut taken = run.taken.iter();
        let was_complete = taken.any(|taken| {
            let until = taken.followed.unwrap_or(*at);
            let is_in_it = last
                .ended()
                .is_some_and(|end| end >= taken.at && end <= until);
            taken.because == Cause::Completed && is_in_it
        });
        broken(apps_over || is_its_own || was_complete, || {
            format!("{name} ended with {code} and is left out at {at}")
        })?;
    }
    Ok(())
}
