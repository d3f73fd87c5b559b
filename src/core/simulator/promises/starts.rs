//! Promises about starts: which containers wait, why, and for how long.

use std::time::Duration;

use crate::lifecycle::{Cause, RESTARTS_ALL_WITHIN, Refusal, Time};
use crate::plan::RestartPolicy;
use crate::process::ExitStatus;
use crate::simulator::case::{Fault, Member, Part};
use crate::simulator::trace::{ContainerTrace, Run};
use crate::simulator::{Seen, ms, name_of, secs};

use super::{MOMENT, Verdict, broken};

pub fn no_refusal_after_a_termination(run: &Run<'_>) -> Verdict {
    for (at, seen) in run.account.seen {
        let Seen::StartAnswered(id, Err(Refusal::Terminating { because, .. })) = seen else {
            continue;
        };
        let Some(trace) = run.traces.iter().find(|trace| trace.id == *id) else {
            continue;
        };
        let sandbox = trace.sandbox;
        let ends = run
            .stopped_all(sandbox)
            .is_some_and(|(from, _)| from <= *at)
            || run.deaths[sandbox].is_some_and(|died| died <= *at);
        let mut others = run.of(sandbox);
        let goes_on =
            others.any(|other| other.id != *id && other.part().is_ours() && other.runs(*at));
        // A container waits in vain if it waits for a container that has failed for good.
        let has_failed = matches!(
            because,
            Cause::InitFailed { .. } | Cause::SidecarFailed { .. }
        );
        let waits_in_vain =
            has_failed || run.case.policy == RestartPolicy::Never && due(run, trace).is_none();
        // The container was created before the termination, and the caller requested the
        // termination.
        let is_in_it = run.taken.iter().any(|taken| {
            let was_there = trace.created_after < taken.after && taken.at <= *at;
            let is_of_it = taken.sandbox == sandbox && taken.disproved.is_none() && was_there;
            is_of_it && taken.because.is_left_to_caller()
        });
        // The termination has nothing to stop, so it begins and ends at the same time.
        let mut taken = run.taken.iter();
        let begins = taken.any(|taken| taken.sandbox == sandbox && taken.at == *at);
        broken(
            ends || goes_on || is_in_it || begins || waits_in_vain,
            || format!("{id} is refused at {at}: {because}"),
        )?;
    }
    Ok(())
}

pub fn no_start_waits_forever(run: &Run<'_>) -> Verdict {
    for trace in &run.traces {
        let sandbox = trace.sandbox;
        if !matches!(trace.part(), Part::Init | Part::Sidecar | Part::App) {
            continue;
        }
        let Some(ready) = due(run, trace) else {
            continue;
        };
        let due = ready.after(ms(1_300));
        // The wait has to end by `due`, with the container's execution or another of these events.
        let taken = run.taken.iter().find(|taken| {
            taken.sandbox == sandbox && taken.disproved.is_none_or(|undone| undone > ready)
        });
        let ends = [
            taken.map(|taken| taken.at),
            run.stopped_all(sandbox).map(|(at, _)| at),
            run.deaths[sandbox],
            trace.executed.first().copied(),
            trace.reported.map(|(at, _)| at),
            trace.died.first().map(|(at, _)| *at),
            run.first_asked(trace),
            trace.answered.filter(|(_, is_ok)| !is_ok).map(|(at, _)| at),
        ];
        let ends = ends.into_iter().flatten().min();
        // A fault may also have hindered the containers that this container waits for.
        let mut names: Vec<_> = predecessors(run, trace).map(|member| member.name).collect();
        names.push(trace.member.name);
        let is_left = awaits_defers(run, trace, ready)
            || awaits_defers(run, trace, due)
            || looks_restarted(run, trace)
            || looks_ended(run, sandbox)
            || is_unseen_restart(run, trace);
        if is_left {
            continue;
        }
        let mut waited_for = run
            .of(sandbox)
            .filter(|other| names.contains(&other.member.name));
        if waited_for.any(|other| run.is_hindered(&other.id, trace.created, due)) {
            continue;
        }
        broken(ends.is_some_and(|at| at <= due), || {
            format!(
                "{} could run from {ready} on and waits until {ends:?}",
                trace.id
            )
        })?;
        // The shim must not report a container as failed if the container could run but was never
        // executed.
        let failed = trace.reported.is_some_and(|(_, code)| code == 1) && trace.executed.is_empty();
        let is_ended = failed
            && ends == trace.reported.map(|(at, _)| at)
            && trace.died.first().is_none_or(|(at, _)| *at > ready);
        broken(!is_ended, || {
            format!("{} waited in vain and is ended", trace.id)
        })?;
    }
    Ok(())
}

/// True if the shim may wrongly infer that kubelet restarts the whole pod. In such a restart,
/// kubelet gives each container at most 2 s to exit. Kubelet also gives only 2 s if a preStop
/// handler, which the shim may not see, has used up the grace period.
fn looks_restarted(run: &Run<'_>, trace: &ContainerTrace<'_>) -> bool {
    let has_handler = |id: &str| run.case.member(name_of(id)).pre_stop.is_some();
    let mut asks = run.log.asks.iter();
    asks.any(|ask| ask.at <= trace.created && ask.grace <= secs(2) && has_handler(ask.id))
}

/// True if the shim may wrongly infer that the pod ends, because kubelet has stopped a defer
/// container whose postStart handler had failed.
pub fn looks_ended(run: &Run<'_>, sandbox: usize) -> bool {
    let mut defers = run.of(sandbox).filter(|it| it.part().is_defer());
    defers.any(|it| it.member.post_start.is_some() && post_start_fails(it))
}

/// True if the shim may wait for defer containers that annotations list but that the caller has not
/// created yet. The shim waits before it terminates a pod that has failed or is complete. Meanwhile
/// it executes no app and no init container.
fn awaits_defers(run: &Run<'_>, trace: &ContainerTrace<'_>, at: Time) -> bool {
    // The failure may have come before a restart of the whole pod that the shim has not noticed.
    let before = trace.sandbox.checked_sub(1);
    let before = before.filter(|_| run.log.restarted.contains(&trace.sandbox));
    let sandboxes = before.into_iter().chain([trace.sandbox]);
    let failed = sandboxes.flat_map(|sandbox| run.of(sandbox)).any(|other| {
        let is_now = |failed: Time| failed <= at && at <= failed.after(secs(61));
        let is_failure =
            |(died, status): &(Time, ExitStatus)| *status != ExitStatus::Code(0) && is_now(*died);
        let is_staged = matches!(other.part(), Part::Init | Part::Sidecar);
        let is_fatal = is_staged && run.case.policy == RestartPolicy::Never;
        let has_failed = other.died.iter().any(is_failure) || other.refused.is_some_and(is_now);
        (other.member.essential || is_fatal) && has_failed
    });
    let is_missing = |member: &&Member| {
        let mut traces = run.of(trace.sandbox);
        member.part.is_defer()
            && !member.optional
            && !traces.any(|of| {
                let is_started = |(answered, is_ok): (Time, bool)| is_ok && answered < at;
                of.member.name == member.name && of.answered.is_some_and(is_started)
            })
    };
    let mut apps = run
        .of(trace.sandbox)
        .filter(|it| it.part() == Part::App && it.created <= at);
    // A container that cannot be created counts as failed, unless kubelet creates it again.
    let is_complete = apps.all(|app| app.ended().or(app.refused).is_some_and(|end| end <= at));
    (failed || is_complete) && run.case.members.iter().any(|member| is_missing(&member))
}

/// Checks that the first container with a name is released only when the sidecars before it in the
/// start order are started, as far as the shim can know.
pub fn starts_follow_the_startup_order(run: &Run<'_>) -> Verdict {
    for trace in &run.traces {
        let staged = matches!(trace.part(), Part::Init | Part::Sidecar | Part::App);
        let Some(first) = trace
            .released
            .filter(|_| staged && !trace.executed.is_empty())
        else {
            continue;
        };
        let is_of_it =
            |other: &&ContainerTrace<'_>| other.sandbox == trace.sandbox || run.case.by_hand;
        let before = || run.traces.iter().filter(is_of_it);
        let mut namesakes = before().filter(|it| it.member.name == trace.member.name);
        let has_run = namesakes.any(|it| it.created < trace.created && !it.executed.is_empty());
        if has_run || was_complete(run, trace, first) || is_unseen_restart(run, trace) {
            continue;
        }
        let began = run.began(trace.sandbox, first);
        for member in predecessors(run, trace).filter(|member| member.part == Part::Sidecar) {
            // No container waits for an optional sidecar that has not been created in this run.
            let namesakes = || before().filter(|it| it.member.name == member.name);
            let is_of_run = |it: &ContainerTrace<'_>| it.created >= began && it.created <= first;
            if member.optional && !namesakes().any(is_of_run) {
                continue;
            }
            let mut traces = namesakes();
            let could_be = traces.any(|it| could_be_started(run, it, first));
            // `trace` does not wait for an optional container that was created only after the
            // release of `trace`.
            let mut there = run.of(trace.sandbox);
            let has_come = there.any(|it| {
                let is_given_up = it.executed.is_empty() && run.was_given_up(it);
                // While containerd is away, no Create reaches the shim.
                let is_late = run.is_hindered(&it.id, it.created, first);
                it.member.name == member.name && it.had_come(first) && !is_given_up && !is_late
            });
            let is_optional = member.optional && !has_come;
            broken(is_optional || could_be, || {
                format!(
                    "{} runs at {first}, before {} is started",
                    trace.id, member.name
                )
            })?;
        }
    }
    Ok(())
}

/// True if the pod's run was complete before `at`. An app that is created again after that does not
/// wait for containers that the caller will not create again.
pub fn was_complete(run: &Run<'_>, app: &ContainerTrace<'_>, at: Time) -> bool {
    run.taken.iter().any(|taken| {
        let is_complete = taken.because == Cause::Completed && taken.at <= at;
        (taken.sandbox == app.sandbox || run.case.by_hand) && is_complete
    })
}

/// True if kubelet restarts the whole pod and the shim cannot notice the restart.
///
/// The shim recognizes a restart by the exits that come first: a container exits by itself, and
/// kubelet then stops the others, each with a grace period of at most two seconds. If the shim has
/// already decided a termination, the first new container must also be an init container or a
/// sidecar.
pub fn is_unseen_restart(run: &Run<'_>, trace: &ContainerTrace<'_>) -> bool {
    let Some(before) = trace.sandbox.checked_sub(1) else {
        return false;
    };
    if !run.log.restarted.contains(&trace.sandbox) {
        return false;
    }
    let is_asked = |id: &str| run.log.asks.iter().any(|ask| ask.id == id);
    let counted = || run.of(before).filter(|trace| trace.part() != Part::Guest);
    let own = counted().filter(|it| !is_asked(&it.id) && it.signals.is_empty());
    let own = own.filter(|it| it.reported.is_some());
    let last = own.max_by_key(|it| it.reported_after);
    // `last` is the last container that exited without a stop request. In a restart, kubelet stops
    // the other containers after `last`, with a grace period of at most two seconds each. Their
    // exits follow soon after one another.
    let since = |it: &&ContainerTrace<'_>| {
        it.reported.is_some() && last.is_none_or(|last| it.reported_after > last.reported_after)
    };
    let mut stopped: Vec<_> = counted().filter(since).collect();
    stopped.sort_by_key(|it| it.reported_after);
    let exits: Vec<Time> = last
        .iter()
        .chain(&stopped)
        .filter_map(|it| it.reported)
        .map(|(at, _)| at)
        .collect();
    let is_soon = exits
        .windows(2)
        .all(|pair| pair[1].since(pair[0]) <= RESTARTS_ALL_WITHIN);
    let is_short = |it: &&ContainerTrace<'_>| {
        let mut asks = run.log.asks.iter().filter(|ask| ask.id == it.id);
        asks.all(|ask| ask.grace <= secs(2))
    };
    let is_stopped = !stopped.is_empty() && is_soon && stopped.iter().all(is_short);
    let was_over = run.taken.iter().any(|taken| {
        let is_shims = taken.because.is_decided() && !taken.because.is_left_to_caller();
        taken.sandbox == before && is_shims
    });
    // When kubelet restarts the pod, the caller sees no container of the pod's plan as RUNNING.
    // The first Create has the name of an exited container. If that Create is refused, it may not
    // reach the shim, which then takes a later Create for the first one. So all Creates up to the
    // first accepted one must have names of exited containers.
    let is_one_of_those = |begins: &ContainerTrace<'_>| {
        let last = run
            .of(before)
            .filter(|it| it.member.name == begins.member.name);
        last.last().is_some_and(|it| it.reported.is_some())
    };
    let has_come = |it: &&ContainerTrace<'_>| it.refused.is_none();
    let first = run.of(trace.sandbox).position(|it| has_come(&it));
    let mut came = run.of(trace.sandbox).filter(has_come);
    let is_staged = |it: &ContainerTrace<'_>| matches!(it.part(), Part::Init | Part::Sidecar);
    let begins_unstaged = came
        .find(|it| it.part() != Part::Guest)
        .is_some_and(|it| !is_staged(it));
    let begins = run
        .of(trace.sandbox)
        .take(first.map_or(0, |first| first + 1));
    let is_named = first.is_some() && begins.into_iter().all(is_one_of_those);
    // The shim believed that the pod ended, and stopped containers itself.
    let was_misled = looks_ended(run, before);
    !is_stopped || was_over && begins_unstaged || !is_named || was_misled
}

/// True if the shim is right to count a sidecar as started at `by`: its startup probe has
/// succeeded, and its postStart handler has exited with 0. If kubelet is away, a failed handler
/// counts as well, because the shim learns of the failure only when kubelet stops the sidecar.
fn could_be_started(run: &Run<'_>, sidecar: &ContainerTrace<'_>, by: Time) -> bool {
    let script = sidecar.member.script(creation_of(sidecar));
    let ready = match sidecar.member.probed {
        true => script.ready_after.unwrap_or_default(),
        false => Duration::ZERO,
    };
    let answered = sidecar.answered.filter(|(_, is_ok)| *is_ok);
    let mut executed = sidecar.executed.iter();
    let is_ready = executed.any(|at| at.after(ready) <= by);
    let is_handled = match (sidecar.member.post_start, answered) {
        (None, _) => true,
        // Kubelet runs no postStart handler if the container could not be started, or has exited
        // when its Start is answered.
        (Some(_), _) if runs_no_post_start(run, sidecar) => true,
        (Some(_), None) => false,
        (Some(_), Some((at, _))) => {
            let over = post_start_over(sidecar, at);
            let fails = post_start_fails(sidecar) && !is_kubelet_ever_away(run);
            let mut asks = run.log.asks.iter();
            let is_stopped = asks.any(|ask| ask.id == sidecar.id && ask.at <= over.after(secs(10)));
            let has_gone_on = run
                .traces
                .iter()
                .any(|it| it.created > at && it.created < over);
            over <= by && (!fails || !is_stopped) || has_gone_on
        }
    };
    is_ready && is_handled
}

/// True if kubelet cannot have run the postStart handler of a sidecar.
fn runs_no_post_start(run: &Run<'_>, sidecar: &ContainerTrace<'_>) -> bool {
    let died = sidecar.died.first().map(|(at, _)| *at);
    match sidecar.answered {
        Some((at, true)) => died.is_some_and(|died| died <= at),
        Some((_, false)) => true,
        None => run.was_given_up(sidecar),
    }
}

/// The end of the postStart handler of a sidecar whose Start was answered at `answered`.
fn post_start_over(sidecar: &ContainerTrace<'_>, answered: Time) -> Time {
    let takes = ms(sidecar.member.post_start.unwrap_or_default());
    let known = sidecar.handled.map(|(over, _)| over);
    known.unwrap_or_else(|| answered.after(takes))
}

/// True if the postStart handler of a sidecar fails. A handler that ends because its container
/// exits has failed, too.
pub fn post_start_fails(sidecar: &ContainerTrace<'_>) -> bool {
    if let Some((_, has_succeeded)) = sidecar.handled {
        return !has_succeeded;
    }
    let takes = sidecar.member.post_start.unwrap_or_default();
    let mut died = sidecar.died.iter().map(|(died, _)| *died);
    let is_cut = sidecar
        .answered
        .is_some_and(|(at, _)| died.any(|died| died >= at && died < at.after(ms(takes))));
    creation_of(sidecar) < sidecar.member.post_starts_fail || is_cut && takes > 0
}

/// True if the caller creates another container while a sidecar's postStart handler runs. Kubelet
/// may do so after it was away. The shim then wrongly takes the handler's Exec for an ordinary
/// Exec.
pub fn is_another_created_during_post_start(run: &Run<'_>, sidecar: &ContainerTrace<'_>) -> bool {
    sidecar.answered.is_some_and(|(begun, _)| {
        let over = post_start_over(sidecar, begun);
        let mut traces = run.traces.iter();
        traces.any(|it| it.created > begun && it.created < over)
    })
}

/// True if kubelet restarts at any time in this case, and forgets what it was doing.
pub fn is_kubelet_ever_away(run: &Run<'_>) -> bool {
    let mut faults = run.case.faults.iter().chain(&run.case.late);
    faults.any(|(_, fault)| matches!(fault, Fault::Restart(_)))
}

/// The number of earlier containers with the same name.
fn creation_of(trace: &ContainerTrace<'_>) -> u32 {
    let number = trace.id.split('#').nth(1);
    let number = number.and_then(|n| n.parse::<u32>().ok());
    number.map_or(0, |n| n - 1)
}

/// Checks that the shim writes once to the stderr of a container that waits for more than 5 s, and
/// writes nothing after a shorter wait.
pub fn waiting_containers_say_so(run: &Run<'_>) -> Verdict {
    for trace in &run.traces {
        let words = |what: &str| what.contains(": it waits for ");
        let said = trace.told.iter().filter(|(_, what)| words(what));
        let said: Vec<Time> = said.map(|(at, _)| *at).collect();
        broken(said.len() <= 1, || {
            format!("{} says it at {said:?}", trace.id)
        })?;
        let too_early = said.iter().find(|at| at.since(trace.created) < secs(5));
        broken(too_early.is_none(), || {
            format!("{} says it early, at {too_early:?}", trace.id)
        })?;
        if !matches!(trace.part(), Part::Init | Part::Sidecar | Part::App) {
            continue;
        }
        let since = match trace.answered {
            Some((at, true)) => at,
            _ => continue,
        };
        let ends = [
            // The wait ends when the shim releases the container. The program runs a while later.
            trace.released,
            trace.executed.first().copied(),
            trace.died.first().map(|(at, _)| *at),
            trace.reported.map(|(at, _)| at),
            run.log.over,
        ];
        // The shim reports the end of the wait a moment after the event that ended the wait.
        let until = ends.into_iter().flatten().min();
        let by = since.after(secs(5)).after(MOMENT);
        let is_long = until.is_some_and(|until| until > by.after(MOMENT));
        let is_hindered = run.is_hindered(&trace.id, since, by);
        let in_time = is_hindered || said.iter().any(|at| *at <= by);
        broken(!is_long || in_time, || {
            format!(
                "{} waits from {since} to {until:?}, and says {said:?}",
                trace.id
            )
        })?;
    }
    Ok(())
}

/// Checks that an app that is created during a termination runs when the termination is over,
/// unless its caller stops it before.
pub fn containers_of_the_next_run_start(run: &Run<'_>) -> Verdict {
    let longest = secs(run.case.grace).saturating_add(secs(10));
    for taken in run.taken.iter().filter(|taken| taken.because.is_decided()) {
        let is_last = match taken.because {
            Cause::SandboxDied => true,
            // An init container or a sidecar has failed, and is never started again. The
            // containers after it wait in vain.
            Cause::InitFailed { .. } | Cause::SidecarFailed { .. } => true,
            // Kubelet kills the sandbox after the failure of an essential container.
            Cause::EssentialFailed { .. } => {
                !run.case.by_hand && run.case.policy != RestartPolicy::Never
            }
            _ => false,
        };
        let is_of_it = |trace: &&ContainerTrace<'_>| {
            // After the termination, a person creates the whole pod again. Containers that are
            // created between these two events wait until the person has created the whole pod.
            let is_there = match run.case.by_hand {
                true => trace.sandbox > taken.sandbox,
                false => trace.sandbox == taken.sandbox,
            };
            // Skip a container that was created after the shim had decided a later termination. The
            // loop checks this container together with that termination.
            let is_later = run.taken.iter().any(|other| {
                let is_between = other.at > taken.at && other.at < trace.created;
                other.sandbox == trace.sandbox && other.because.is_decided() && is_between
            });
            is_there && trace.part() == Part::App && trace.created > taken.at && !is_later
        };
        for trace in run.traces.iter().filter(is_of_it).filter(|_| !is_last) {
            let Some(ready) = due(run, trace) else {
                continue;
            };
            let due = ready.max(taken.at.after(longest)).after(ms(1_300));
            // The app need not run if it was asked to stop, or if another termination has begun.
            // But if a run was complete without this app, the termination of that run is no excuse.
            let mut others = run
                .taken
                .iter()
                .filter(|other| other.sandbox == trace.sandbox);
            let other = others.find(|other| {
                other.at > taken.at && other.at <= due && other.because != Cause::Completed
            });
            let ends = [
                other.map(|other| other.at),
                run.stopped_all(trace.sandbox).map(|(at, _)| at),
                run.deaths[trace.sandbox],
                run.first_asked(trace),
            ];
            // While the run becomes complete, kubelet may stop a sidecar and create it again. To
            // the shim, this looks like the beginning of a restart of the whole pod.
            let mut sidecars = run
                .of(trace.sandbox)
                .filter(|it| it.part() == Part::Sidecar);
            let looks_restarted = sidecars.any(|it| run.was_asked_alone(it));
            let is_stopped = looks_restarted || ends.into_iter().flatten().any(|at| at <= due);
            let runs = trace.executed.first().is_some_and(|at| *at <= due)
                || run.is_any_hindered(trace.sandbox, taken.at, due);
            broken(runs || is_stopped || run.was_given_up(trace), || {
                format!(
                    "{} was created after {} and never runs",
                    trace.id, taken.because
                )
            })?;
        }
    }
    Ok(())
}

pub fn hopeless_waits_end(run: &Run<'_>) -> Verdict {
    if run.case.policy != RestartPolicy::Never || run.case.by_hand {
        return Ok(());
    }
    for trace in run.traces.iter().filter(|trace| trace.executed.is_empty()) {
        let waits = matches!(trace.part(), Part::Init | Part::Sidecar | Part::App);
        let mut failed = Vec::new();
        for init in predecessors(run, trace).filter(|member| member.part == Part::Init) {
            let traces = run
                .of(trace.sandbox)
                .filter(|of| of.member.name == init.name);
            let last = traces.last().and_then(|last| last.died.first());
            failed.extend(last.filter(|(_, status)| *status != ExitStatus::Code(0)));
        }
        let Some((failed, _)) = failed.first().filter(|_| waits) else {
            continue;
        };
        // From this time on, the container waits in vain.
        let since = trace.created.max(*failed);
        // The wait must be over by this time, whichever grace policy applies. The 40 seconds
        // include the half minute in which kubelet may create a stopped container again.
        let by = since.after(secs(run.case.grace)).after(secs(40));
        let over = trace
            .ended()
            .or(trace.answered.filter(|(_, ok)| !ok).map(|(at, _)| at));
        let is_over = over.is_some_and(|over| over <= by);
        let ends = run
            .stopped_all(trace.sandbox)
            .is_some_and(|(at, _)| at <= by);
        let is_hindered = run.is_any_hindered(trace.sandbox, since, by);
        broken(is_over || ends || is_hindered, || {
            format!("{} waits until {over:?}", trace.id)
        })?;
    }
    Ok(())
}

/// The time from which the container can be started, or `None` if it can never be started.
fn due(run: &Run<'_>, trace: &ContainerTrace<'_>) -> Option<Time> {
    let mut at = trace.created.after(ms(31));
    let (optional, needed): (Vec<_>, Vec<_>) =
        predecessors(run, trace).partition(|member| member.optional);
    for member in needed {
        at = at.max(done(run, trace, member)?);
    }
    // The container waits for each optional container that was created before the wait ends. So an
    // optional container that is created during the wait prolongs it.
    for _ in 0..=optional.len() {
        for member in &optional {
            // After a termination, a person creates all containers again. If the shim had inferred
            // that termination by mistake, the pod has not ended. Then the containers from before
            // the termination still count as created.
            let mut traces = run.traces.iter();
            if traces.any(|of| {
                let is_there = of.sandbox == trace.sandbox || run.case.by_hand;
                // The shim holds waiting containers back for a second after a sidecar's Start,
                // because the sidecar's postStart handler may begin in this second.
                let by = at.after(secs(1));
                is_there && of.member.name == member.name && of.created <= by
            }) {
                at = at.max(done(run, trace, member)?);
            }
        }
    }
    Some(at)
}

/// The containers before a container in the start order.
pub fn predecessors<'a>(
    run: &Run<'a>,
    trace: &ContainerTrace<'a>,
) -> impl Iterator<Item = &'a Member> {
    let staged = |part| matches!(part, Part::Init | Part::Sidecar);
    let members = &run.case.members;
    let place = members.iter().position(|m| m.name == trace.member.name);
    let (part, ordered) = (trace.part(), run.case.ordered);
    let before = members.iter().enumerate().filter(move |(n, member)| {
        let is_listed_before = Some(*n) < place;
        match part {
            Part::App => staged(member.part),
            _ if ordered => staged(member.part) && is_listed_before,
            Part::Sidecar => member.part == Part::Init,
            _ => member.part == Part::Init && is_listed_before,
        }
    });
    before.map(|(_, member)| member)
}

/// The time when `member` was done: an init container had exited with 0, or a sidecar had started.
/// Only containers in the sandbox of `other` count.
fn done(run: &Run<'_>, other: &ContainerTrace<'_>, member: &Member) -> Option<Time> {
    let traces = run
        .of(other.sandbox)
        .filter(|trace| trace.member.name == member.name);
    match member.part {
        Part::Init => {
            // If several containers of the pod had this name, the last one counts.
            let last = traces.last()?;
            let (died, status) = last.died.first()?;
            let was_told = last.signals.iter().any(|(at, _)| at <= died);
            let by_itself = !was_told && !last.executed.is_empty();
            (by_itself && *status == ExitStatus::Code(0)).then_some(*died)
        }
        _ => traces.flat_map(|trace| started(run, trace)).min(),
    }
}

/// The times from which a sidecar counts as started, one per execution.
pub fn started<'a>(
    run: &'a Run<'_>,
    trace: &'a ContainerTrace<'_>,
) -> impl Iterator<Item = Time> + 'a {
    let creation = creation_of(trace);
    let script = trace.member.script(creation);
    let ready = match trace.member.probed {
        true => script
            .ready_after
            .unwrap_or_default()
            .saturating_add(secs(1)),
        false => Duration::ZERO,
    };
    let post_start = ms(trace.member.post_start.unwrap_or_default());
    // The startup probe and the liveness probe use the same port.
    let is_well = trace
        .member
        .unwell
        .is_none_or(|after| !trace.member.probed || ms(after) > ready);
    let succeeds = !post_start_fails(trace);
    let executed = trace.executed.iter().filter(move |_| is_well && succeeds);
    executed.filter_map(move |at| {
        let started = at.after(ready.max(post_start.saturating_add(MOMENT)));
        let handled = trace.answered.map(|(at, _)| at.after(post_start));
        let handled = handled.max(run.taken_for_post_start(trace));
        let started = started.max(handled.unwrap_or(started));
        let died = trace.died.iter().map(|(died, _)| died);
        // A container that was asked to stop or was signaled is not counted as started afterwards.
        // After the shim has decided a termination, no container is counted as started.
        let told = trace.signals.iter().map(|(told, _)| told);
        let asks = run.log.asks.iter();
        let asked = asks.filter(|ask| ask.id == trace.id && !ask.is_handler);
        let told = told.chain(asked.map(|ask| &ask.at));
        let decided = run
            .taken
            .iter()
            .filter(|taken| taken.sandbox == trace.sandbox && taken.because.is_decided());
        let decided = decided.map(|taken| &taken.at);
        let mut ends = died.chain(told).chain(decided).filter(|end| *end >= at);
        ends.all(|end| *end > started).then_some(started)
    })
}
