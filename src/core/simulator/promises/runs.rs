//! Promises about the runs of a pod in one sandbox: the shim waits for defer containers before it
//! decides a termination, and a restarted pod starts over.

use crate::lifecycle::{Cause, Time};
use crate::simulator::case::{Member, Part};
use crate::simulator::secs;
use crate::simulator::trace::{ContainerTrace, Run, Taken};

use super::starts::{is_unseen_restart, predecessors, was_complete};
use super::{MOMENT, Verdict, broken};

/// Checks that the shim does not terminate a failed or complete pod before all defer containers
/// that are not optional are created. The shim waits for them until 30 s after the last Create of a
/// container with a new name, but at most 60 s after the failure or the completion.
pub fn decided_terminations_wait_for_defers(run: &Run<'_>) -> Verdict {
    for taken in &run.taken {
        let is_of_failure = taken.because.is_decided() && !taken.because.is_left_to_caller();
        let mut others = run.taken.iter().filter(|it| it.sandbox == taken.sandbox);
        let is_first = others.all(|other| other.at >= taken.at);
        let is_by_hand = matches!(taken.because, Cause::Stopped);
        // If kubelet restarts the whole pod and the shim does not notice, the shim still knows the
        // defer containers of the previous run. So the shim does not wait for new ones.
        let is_unseen = run
            .of(taken.sandbox)
            .any(|trace| is_unseen_restart(run, trace));
        if !is_of_failure || is_by_hand || !is_first || run.case.by_hand || is_unseen {
            continue;
        }
        let defers = run.case.members.iter().filter(|it| it.part.is_defer());
        let missing: Vec<_> = defers
            .filter(|member| !member.optional && is_missing(run, taken, member))
            .map(|member| member.name)
            .collect();
        let traces = || run.of(taken.sandbox).filter(|it| it.created <= taken.at);
        let last_new = traces()
            .filter(|trace| is_new(run, trace))
            .map(|trace| trace.created);
        let waits_until = last_new.max().map(|at| at.after(secs(30)));
        let failed = traces().filter(|trace| !trace.executed.is_empty());
        let failed = failed.filter_map(|trace| {
            let died = trace.died.iter().map(|(at, _)| *at);
            died.filter(|at| *at <= taken.at).max()
        });
        let failed = failed.max();
        let is_too_long = failed.is_none_or(|at| taken.at >= at.after(secs(60)));
        let has_waited = waits_until.is_none_or(|until| taken.at.after(MOMENT) >= until);
        broken(missing.is_empty() || has_waited || is_too_long, || {
            format!(
                "the end by {} begins at {}, before {missing:?} can come",
                taken.because, taken.at
            )
        })?;
    }
    Ok(())
}

fn is_new(run: &Run<'_>, trace: &ContainerTrace<'_>) -> bool {
    let mut others = run.of(trace.sandbox);
    others.all(|other| other.member.name != trace.member.name || other.created >= trace.created)
}

fn is_missing(run: &Run<'_>, taken: &Taken, member: &Member) -> bool {
    let mut traces = run.of(taken.sandbox);
    !traces.any(|trace| trace.member.name == member.name && trace.created <= taken.at)
}

/// Checks that a restarted pod starts over as in a new sandbox: before an app runs, its init
/// containers and sidecars have run again.
pub fn restarted_pods_start_over(run: &Run<'_>) -> Verdict {
    let is_of_restart = |trace: &&ContainerTrace<'_>| {
        let is_restarted = run.log.restarted.contains(&trace.sandbox);
        trace.part() == Part::App && is_restarted && !is_unseen_restart(run, trace)
    };
    for app in run.traces.iter().filter(is_of_restart) {
        let mut namesakes = run.of(app.sandbox);
        let has_run = namesakes.any(|it| {
            it.member.name == app.member.name && it.created < app.created && !it.executed.is_empty()
        });
        let Some(&first) = app.executed.first().filter(|_| !has_run) else {
            continue;
        };
        if was_complete(run, app, first) {
            continue;
        }
        for member in predecessors(run, app).filter(|member| !member.optional) {
            let mut traces = run.of(app.sandbox);
            let ran = traces.any(|it| it.member.name == member.name && runs_by(it, first));
            broken(ran, || {
                format!("{} runs at {first} without {}", app.id, member.name)
            })?;
        }
    }
    Ok(())
}

fn runs_by(trace: &ContainerTrace<'_>, at: Time) -> bool {
    trace.executed.iter().any(|executed| *executed <= at)
}
