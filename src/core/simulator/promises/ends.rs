//! Promises about terminations: when a pod terminates, which containers it stops, and when it is
//! over.

use crate::lifecycle::{Cause, Time};
use crate::plan::{GracePolicy, RestartPolicy, Signal};
use crate::simulator::case::{Deletion, Fault, Part};
use crate::simulator::kubelet::intern;
use crate::simulator::trace::{ContainerTrace, Ending, MIN_GRACE, Run, WINDOW};
use crate::simulator::{ms, name_of, secs};

use super::{MOMENT, Verdict, broken};

pub fn no_termination_of_a_running_pod(run: &Run<'_>) -> Verdict {
    for taken in &run.taken {
        let (at, sandbox, because) = (taken.at, taken.sandbox, &taken.because);
        let read_running = |trace: &ContainerTrace<'_>| trace.read_running(at, taken.after);
        // The shim learns of an exit a moment before it reports the exit.
        let has_just_died = |trace: &ContainerTrace<'_>| {
            let died = trace.died.iter().map(|(died, _)| *died);
            died.max()
                .is_some_and(|died| died <= at && at.since(died) < ms(10) + run.account.untold)
        };
        // A stop request for a guest (a container that no list names) proves no termination by
        // itself.
        let ours = || run.of(sandbox).filter(|trace| trace.part() != Part::Guest);
        let is_meant = match because {
            Cause::SandboxDied => run.deaths[sandbox].is_some_and(|died| died <= at),
            Cause::Completed => {
                let mut apps = run.of(sandbox).filter(|trace| trace.part() == Part::App);
                run.case.policy != RestartPolicy::Always && !apps.any(|trace| trace.runs(at))
            }
            Cause::EssentialFailed { name, .. } => run.case.member(name).essential,
            Cause::InitFailed { .. } | Cause::SidecarFailed { .. } => {
                run.case.policy == RestartPolicy::Never
            }
            Cause::Stopped => false,
            Cause::Inferred => {
                let all = run.stopped_all(sandbox).is_some_and(|(from, _)| from <= at);
                let is_asked = |trace: &&ContainerTrace<'_>| {
                    let mut asks = run.log.asks.iter().filter(|ask| ask.id == trace.id);
                    read_running(trace) && asks.any(|ask| ask.at <= at && run.closes(ask) > at)
                };
                let open: Vec<&str> = ours()
                    .filter(is_asked)
                    .map(|trace| trace.id.as_str())
                    .collect();
                let mut all_lives = run.of(sandbox);
                let is_guest_asked =
                    all_lives.any(|trace| trace.part() == Part::Guest && is_asked(&trace));
                let is_defer = open
                    .first()
                    .is_some_and(|id| run.case.member(name_of(id)).part.is_defer());
                let running = ours().filter(|trace| read_running(trace) && !has_just_died(trace));
                let running: Vec<_> = running.collect();
                let app_runs = running.iter().any(|trace| trace.part() == Part::App);
                let is_first =
                    |trace: &&ContainerTrace<'_>| open.first() == Some(&trace.id.as_str());
                // Kubelet stops native init containers and sidecars after all others have exited.
                let mut others = running.iter().filter(|trace| !trace.part().is_native());
                let only = others.all(is_first);
                // Kubelet may restart while it stops a container outside the pod's plan, and then
                // stop another container. If the first request is still open, the shim takes the
                // two requests for a termination.
                let excused = open.len() > 1
                    || open.len() == 1 && (is_guest_asked || is_defer && !app_runs || only);
                // If containerd dies when all containers are about to start, containerd deletes
                // them when it runs again.
                let cleared_away = running.is_empty() && run.is_any_hindered(sandbox, at, at);
                all || excused || cleared_away
            }
        };
        broken(is_meant, || format!("taken for the end at {at}: {because}"))?;
    }
    Ok(())
}

pub fn grace_periods_are_kept(run: &Run<'_>) -> Verdict {
    for trace in &run.traces {
        let kill = trace
            .signals
            .iter()
            .find(|(at, signal)| *signal == Signal::KILL && trace.runs(*at));
        let Some((killed, _)) = kill else { continue };
        let ending = run.ending(trace.sandbox).filter(|e| e.from <= *killed);
        // The caller may kill a container before the end of the grace period that its stop request
        // announced.
        let asked = run.log.asks.iter().find(|ask| ask.id == trace.id);
        let is_sooner = asked.is_some_and(|ask| *killed < ask.at.after(ask.grace));
        // The shim cannot see a repeated stop request.
        let is_sooner = is_sooner || run.log.asked_again.contains(&intern(trace.id.clone()));
        let is_cut = is_sooner && run.log.kills.contains(&(*killed, intern(trace.id.clone())))
            || run.is_hurried()
            || run.was_given_up(trace)
            || run.case.deleted.1 == Deletion::Kill;
        // A paused container cannot be signaled.
        let is_hindered = run.is_hindered(&trace.id, *killed, *killed);
        if is_cut || is_hindered || trace.member.cap.is_some() {
            continue;
        }
        // The container may have been restarted at the very moment of the kill.
        let since = trace.executed.iter().filter(|at| *at < killed).max();
        let told = trace
            .signals
            .iter()
            .find(|(at, signal)| *signal != Signal::KILL && since.is_some_and(|since| since <= at));
        let mut taken = run.taken.iter();
        let was_taken = taken.any(|taken| taken.sandbox == trace.sandbox && taken.at <= *killed);
        let need = match (&ending, run.case.grace_policy) {
            (Some(ending), _) if ending.forced => continue,
            (Some(_), GracePolicy::Strict) => continue,
            // A wrongly inferred termination cut the time short.
            (None, policy) if policy != GracePolicy::Shared && was_taken => continue,
            // If the grace period is under 6 s, the policy `Strict` applies instead of `Reserve`.
            (Some(ending), GracePolicy::Reserve)
                if ending.grace.min(ending.soonest.since(ending.from)) < secs(6) =>
            {
                continue;
            }
            // `Reserve` divides the grace period among the termination steps. If the shim decides
            // the termination after a stop request, the grace period has begun with that request,
            // and too little of it may be left.
            (Some(ending), GracePolicy::Reserve)
                if run.is_decided_late(ending, secs(6)) || run.is_given_less(ending, secs(6)) =>
            {
                continue;
            }
            // If only one container is asked to stop, the shim may first wait for another request,
            // as long as the termination window lasts. This wait is part of the grace period.
            (None, GracePolicy::Strict | GracePolicy::Reserve) => MIN_GRACE - WINDOW,
            (Some(_), GracePolicy::Shared) | (None, _) => MIN_GRACE,
            // The containers that a termination step stops last share the rest of its time.
            (Some(_), _) => MIN_GRACE / 2,
        };
        let had = told.map(|(at, _)| killed.since(*at));
        broken(
            had.is_some_and(|had| had.saturating_add(MOMENT / 2) >= need),
            || match had {
                Some(had) => format!(
                    "{} is killed at {killed}, {had:?} after it was told",
                    trace.id
                ),
                None => format!("{} is killed at {killed} and was never told", trace.id),
            },
        )?;
    }
    Ok(())
}

pub fn terminations_are_bounded(run: &Run<'_>) -> Verdict {
    for sandbox in run.sandboxes() {
        let Some(ending) = run.ending(sandbox) else {
            continue;
        };
        let is_away = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Restart(_));
        // Kubelet runs preStop handlers again when it is back, each with a grace period of its own.
        let mut members = run.of(sandbox).map(|trace| trace.member);
        let is_longer = ending.forced || members.any(|member| member.pre_stop.is_some());
        let is_interrupted = is_longer && run.case.late.iter().any(is_away);
        // If the shim neither decided nor inferred a termination, no single deadline applies to
        // all containers: each stop request has its own.
        let mut taken = run.taken.iter().filter(|taken| taken.sandbox == sandbox);
        let is_none = taken.all(|taken| taken.followed.is_some_and(|at| at <= ending.from));
        if is_none || ending.is_entangled || ending.is_vague || is_interrupted || run.is_hurried() {
            continue;
        }
        // If the termination becomes known only after its deadline, the containers still get their
        // last two seconds.
        let bound = ending
            .deadline
            .max(ending.known)
            .after(run.beyond(&ending))
            // The first container that was asked to stop may have exited before the second
            // container was asked to stop.
            .after(run.spread())
            // Kubelet counts whole seconds.
            .after(secs(1));
        for trace in run.of(sandbox) {
            if !trace.part().is_ours() || trace.created >= ending.from {
                continue;
            }
            let last = trace.died.last().map(|(at, _)| *at);
            let unseen = unseen_bound(run, &ending, trace);
            let bound = unseen.map_or(bound, |unseen| unseen.max(bound));
            let over = match last {
                Some(last) => last <= bound,
                None => trace.answered.is_none(),
            };
            let is_hindered = run.is_hindered(&trace.id, ending.from, bound);
            broken(over || is_hindered, || {
                format!(
                    "{} ends at {last:?}, the end began at {}, its deadline is {}, its bound {bound}",
                    trace.id, ending.from, ending.deadline
                )
            })?;
        }
    }
    Ok(())
}

/// If kubelet has asked any container of the pod to stop a second time, the time by which `trace`
/// has to exit. Otherwise `None`. The shim cannot see the second request.
///
/// The time is one second after the latest of these times:
///
/// - the end of the caller's wait after the last stop request for `trace` that the shim saw,
/// - the deadline of a termination that the shim has decided, plus the time that the grace policy
///   adds,
/// - the caller's SIGKILL.
fn unseen_bound(run: &Run<'_>, ending: &Ending, trace: &ContainerTrace<'_>) -> Option<Time> {
    let mut traces = run.of(trace.sandbox);
    let is_unseen =
        |trace: &ContainerTrace<'_>| run.log.asked_again.contains(&intern(trace.id.clone()));
    if !traces.any(is_unseen) {
        return None;
    }
    let mut asks = run.log.asks.iter();
    let own = asks.rfind(|ask| ask.id == trace.id && !ask.is_kill);
    let mut taken = run.taken.iter();
    let decided = taken.rfind(|taken| taken.sandbox == trace.sandbox && taken.because.is_decided());
    let whole = secs(run.case.grace).saturating_add(run.beyond(ending));
    let kills = run.log.kills.iter().filter(|(_, id)| *id == trace.id);
    let bounds = [
        own.map(|ask| run.closes(ask)),
        decided.map(|taken| taken.at.after(whole)),
        kills.map(|(at, _)| *at).max(),
    ];
    let last = bounds.into_iter().flatten().max();
    last.map(|last| last.after(secs(1)))
}

pub fn no_start_during_a_termination(run: &Run<'_>) -> Verdict {
    for taken in &run.taken {
        let goes_on = [taken.disproved, taken.followed]
            .into_iter()
            .flatten()
            .min();
        let is_in = |at: &Time| *at > taken.at && goes_on.is_none_or(|goes_on| *at < goes_on);
        let there = run.of(taken.sandbox);
        for trace in there.filter(|trace| trace.created < taken.at) {
            let is_restarted = trace.part() == Part::Sidecar || trace.part().is_defer();
            let released = trace.released.filter(is_in);
            broken(
                released.is_none() || trace.part().is_defer() || !trace.part().is_ours(),
                || format!("{} is released at {released:?}", trace.id),
            )?;
            let restarted = trace.restarting.iter().find(|at| is_in(at));
            broken(restarted.is_none() || is_restarted, || {
                format!("{} is restarted at {restarted:?}", trace.id)
            })?;
        }
    }
    Ok(())
}

pub fn sidecars_outlive_apps(run: &Run<'_>) -> Verdict {
    for sidecar in run
        .traces
        .iter()
        .filter(|trace| trace.part() == Part::Sidecar)
    {
        let Some(ending) = run.ending(sidecar.sandbox) else {
            continue;
        };
        let is_unwell = sidecar.member.unwell.is_some();
        // Before the termination, the shim may have delivered a stop request for the sidecar alone.
        // Then the sidecar already has its stop signal, and the caller kills the sidecar at the end
        // of that request's grace period.
        let mut signals = sidecar.signals.iter();
        let was_told_alone =
            signals.any(|(at, _)| *at < ending.from && run.is_told_alone(sidecar, *at));
        let is_given_up = run.was_given_up(sidecar);
        // A container may have been signaled in a termination that the shim had inferred by
        // mistake. It is then killed at the end of that termination's grace period.
        let was_told_before = sidecar.signals.iter().any(|(at, _)| {
            let mut taken = run.taken.iter();
            taken.any(|taken| taken.at <= *at && taken.disproved.is_some_and(|end| *at <= end))
        });
        // The failure of an essential sidecar ends the pod's run. The sidecar that replaces the
        // failed one belongs to the next run.
        let mut namesakes = run.of(sidecar.sandbox);
        let is_of_next_run = namesakes.any(|it| {
            let is_before = it.member.name == sidecar.member.name && it.created < sidecar.created;
            is_before && sidecar.member.essential
        });
        let is_alone =
            run.was_asked_alone(sidecar) || was_told_alone || was_told_before || is_of_next_run;
        if ending.forced || is_alone || is_unwell || is_given_up {
            continue;
        }
        let told = sidecar.signals.iter().map(|(at, _)| *at).find(|at| {
            // The deadlines of kubelet's requests differ by the time between the requests.
            let is_in_time = at.after(run.spread()) < ending.soonest;
            *at >= ending.from && is_in_time && sidecar.runs(*at)
        });
        let Some(told) = told else { continue };
        // If a fault hindered the node, the stop requests for the other containers may have been
        // late. Then the shim may have seen only the request for this sidecar.
        let is_hindered = run.is_any_hindered(sidecar.sandbox, ending.from, told);
        if is_hindered || run.is_told_alone(sidecar, told) {
            continue;
        }
        let app = run
            .of(sidecar.sandbox)
            .find(|app| app.part() == Part::App && app.runs(told) && app.created < ending.from);
        broken(app.is_none(), || {
            format!(
                "{} is told at {told} before {} has ended",
                sidecar.id,
                app.unwrap().id
            )
        })?;
    }
    Ok(())
}

pub fn deleted_pods_end(run: &Run<'_>) -> Verdict {
    broken(run.log.over.is_some(), || {
        "the pod is never over".to_owned()
    })?;
    broken(run.account.left.is_empty(), || {
        format!("{:?} are left", run.account.left)
    })
}
