//! Pods under a simulated kubelet. A pod that is left alone becomes ready, and becomes ready again
//! after any fault. Promises about the termination of pods are tested in
//! [`trouble`](super::trouble).

use std::fmt;

use crate::lifecycle::Time;
use crate::plan::RestartPolicy;

use crate::simulator::case::{Behavior, Case, Deletion, Member, Part, WELL};
use crate::simulator::kubelet::{End, Log};
use crate::simulator::promises::Promise;
use crate::simulator::survey::{self, Broken, check};
use crate::simulator::trace::{self, Run};
use crate::simulator::{World, ms};

use super::trouble::broken_promises;

/// Milliseconds after which a pod has settled. The time is longer than the sum of all back-offs of
/// kubelet, from the first to the longest.
const SETTLES: u64 = 1_500_000;

/// A pod that is left alone after its last fault, and deleted only after it has settled.
#[derive(Clone, Debug)]
struct LeftAlone(Case);

impl LeftAlone {
    fn new(mut case: Case) -> LeftAlone {
        let never = case.policy == RestartPolicy::Never;
        if never {
            // Under `Never` a failed container is not created again, so the pod would not become
            // ready.
            case.faults.clear();
        }
        for member in &mut case.members {
            (member.restart, member.unwell, member.then) = (None, None, None);
            if never {
                member.post_starts_fail = 0;
            }
            // If the handler always failed, kubelet would create the container again for ever.
            member.post_starts_fail = member.post_starts_fail.min(2);
            settle(member, case.policy);
        }
        case.by_hand = false;
        case.late.clear();
        let last = case.faults.iter().map(|(at, _)| *at).max();
        case.deleted = (last.unwrap_or_default() + SETTLES, Deletion::Usual);
        LeftAlone(case)
    }

    /// True if no container fails, and the caller stops no container.
    fn is_well(&self) -> bool {
        let is_well = |member: &Member| member.behaviors.len() == 1 && member.post_starts_fail == 0;
        self.0.faults.is_empty() && self.0.members.iter().all(is_well)
    }
}

/// Makes the last behavior of a container succeed. Earlier behaviors may fail, but not more often
/// than the caller restarts the container.
fn settle(member: &mut Member, policy: RestartPolicy) {
    if member.part.is_defer() {
        return;
    }
    // A restart in place always repeats the same behavior.
    let has_one = policy == RestartPolicy::Never || member.part == Part::Sidecar;
    let last = member.behaviors.pop().unwrap_or(WELL);
    if has_one {
        member.behaviors.clear();
    }
    let ends = match member.part {
        Part::Init | Part::NativeInit => last.ends.map(|(after, _)| (after, 0)),
        _ => None,
    };
    member.behaviors.push(Behavior { ends, ..last });
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl survey::World for LeftAlone {
    fn run(&self) -> Vec<Broken> {
        let promises: [(&str, Promise); 2] = [
            ("a pod that is left alone comes up", comes_up),
            (
                "in a pod that is well nothing is created twice",
                nothing_twice,
            ),
        ];
        let others = if self.is_well() { 2 } else { 1 };
        broken_promises(&self.0, &promises[..others])
    }

    fn simpler(&self) -> Vec<LeftAlone> {
        let simpler = self.0.simpler().into_iter().map(LeftAlone::new);
        simpler.filter(|simpler| simpler.0 != self.0).collect()
    }
}

/// The moment just before the pod's deletion.
fn settled(run: &Run<'_>) -> Time {
    Time::default().after(ms(run.case.deleted.0 - 1))
}

fn comes_up(run: &Run<'_>) -> Result<(), String> {
    let at = settled(run);
    // If the pod is complete, kubelet has stopped all of its containers.
    let is_over = |(ended, _, end): &(Time, usize, End)| *ended <= at && *end == End::Over;
    if run.log.ends.iter().any(is_over) {
        return Ok(());
    }
    for member in &run.case.members {
        let is_to_run = matches!(
            member.part,
            Part::App | Part::Sidecar | Part::Guest | Part::NativeSidecar
        );
        if !is_to_run {
            continue;
        }
        let mut traces = run.traces.iter().rev();
        let trace = traces.find(|trace| trace.member.name == member.name && trace.created <= at);
        // Under `OnFailure`, a container that has exited with 0 is done: kubelet does not create it
        // again. A sidecar is done only if it got a signal, because a sidecar that exits by itself
        // has to run again.
        let is_done = |trace: &trace::ContainerTrace<'_>| {
            let (_, code) = trace.reported.unwrap_or((at, u32::MAX));
            let may_be = member.part != Part::Sidecar || !trace.signals.is_empty();
            run.case.policy == RestartPolicy::OnFailure && code == 0 && may_be
        };
        let is_well = trace.is_some_and(|trace| trace.runs(at) || is_done(trace));
        if !is_well {
            return Err(format!("{} does not run", member.name));
        }
    }
    Ok(())
}

fn nothing_twice(run: &Run<'_>) -> Result<(), String> {
    let at = settled(run);
    let created = run.traces.iter().filter(|trace| trace.created <= at);
    let mut again = created.filter(|trace| trace.id.contains('#'));
    match (again.next(), run.log.given_up.first()) {
        (None, None) => Ok(()),
        (Some(trace), _) => Err(format!("{} was created", trace.id)),
        (None, Some(id)) => Err(format!("{id} was given up")),
    }
}

#[test]
fn every_pod_without_further_faults_becomes_ready() {
    check(0..500, 1, |seed| Some(LeftAlone::new(Case::random(seed))));
}

/// Runs a pod without faults from its creation to its deletion.
fn lived(case: &Case) -> (World, Log) {
    let (mut world, mut log) = (World::with_plan(case.plan()), Log::default());
    case.live_on(&mut world, &mut log);
    (world, log)
}

#[test]
fn a_job_with_a_sidecar_completes() {
    for policy in [RestartPolicy::OnFailure, RestartPolicy::Never] {
        let mut work = Member::well("work", Part::App);
        work.behaviors[0].ends = Some((5_000, 0));
        let members = vec![
            Member::well("proxy", Part::Sidecar),
            Member::well("setup", Part::Init),
            work,
        ];
        let case = Case {
            listed: true,
            ..Case::plain(policy, members, 60_000)
        };
        let (world, log) = lived(&case);
        let run = Run::new(&case, &log, world.account());
        let [(ended, _, end)] = run.log.ends[..] else {
            panic!("{:?}", run.log.ends);
        };
        assert_eq!(end, End::Over, "{policy:?}");
        assert!(ended < Time::default().after(ms(20_000)), "{ended}");
        assert_eq!(run.traces.len(), 3, "{policy:?}");
        for trace in &run.traces {
            assert_eq!(
                trace.reported.map(|(_, code)| code),
                Some(0),
                "{}",
                trace.id
            );
        }
    }
}

#[test]
fn with_kubelets_own_sidecars_the_defers_run_before_they_are_asked() {
    let members = vec![
        Member::well("mesh", Part::NativeSidecar),
        Member::well("web", Part::App),
        Member::well("third", Part::PostExit),
    ];
    let case = Case::plain(RestartPolicy::Always, members, 20_000);
    let (world, _) = lived(&case);
    assert!(world.executed("third") >= world.died("web"));
    assert!(world.signalled("mesh") >= world.died("third"));
}
