//! Containers that keep a pod alive after its run is over.
//!
//! kubelet ends a pod when all its containers have exited. usher stops the containers that it
//! orders. It leaves containers outside the pod's plan (guests) alone. A guest that does not exit
//! by itself keeps a Job's pod alive forever.

use crate::plan::ContainerKind;

use super::Pod;
use super::completion::Completion;
use super::container::Container;
use super::remedy::LOGGED_AFTER;
use super::report::Report;
use super::rules::{Due, PodDecision};
use super::time::Time;

/// The containers that keep a finished pod alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAlive {
    /// Time when the run ended.
    pub since: Time,
    /// Names of the containers, in the order of their creation.
    pub by: Vec<String>,
}

impl Pod {
    /// Returns the guests (containers outside the pod's plan) that keep the pod alive after its
    /// run. Guests that have exited or got a stop request do not count. `None` in these cases:
    ///
    /// - The run goes on.
    /// - A container that usher stops in a termination is still alive.
    /// - No guest keeps the pod alive.
    /// - The sandbox is gone, or the caller or a person ends the pod.
    pub(super) fn kept(&self) -> Option<KeptAlive> {
        self.foreseen_kept().filter(|kept| kept.since <= self.now)
    }

    /// Returns the containers that keep the pod alive after its run, and the time when the run
    /// ends. If this time is in the future, both may still change. For example, the caller may
    /// create another app.
    fn foreseen_kept(&self) -> Option<KeptAlive> {
        let since = self.run_is_over_since()?;
        let workload = self.containers.values();
        let mut living: Vec<&Container> = workload
            .filter(|it| it.kind == ContainerKind::Workload && it.state.is_alive())
            .collect();
        if living.iter().any(|it| it.role_policy().step.is_some()) {
            return None;
        }
        living.retain(|it| !it.is_ordered() && !it.is_asked());
        living.sort_by_key(|it| it.number);
        let by: Vec<String> = living.iter().map(|it| it.name.clone()).collect();
        (!by.is_empty()).then_some(KeptAlive { since, by })
    }

    /// The time at which the run ended. If the run is complete but its end is delayed, the time at
    /// which it will end. From then on, kubelet waits for the remaining containers.
    ///
    /// `None` if the run is not complete, if the sandbox is gone, or if the caller or a person ends
    /// the pod.
    fn run_is_over_since(&self) -> Option<Time> {
        match &self.termination {
            _ if self.sandbox_is_gone => None,
            Some(end) => {
                let is_kept = end.is_over() && end.cause().is_decided() && !end.is_by_hand();
                is_kept.then(|| end.step_began())
            }
            // If no container is left to stop, the shim begins no termination.
            None => {
                let Completion { known, counts } = self.completion()?;
                self.is_complete().then(|| known.max(counts))
            }
        }
    }
}

impl Pod {
    /// Rule: a few seconds after the run is over, the shim logs which containers keep the pod
    /// alive. It does so only once.
    pub(super) fn kept_pod_is_logged(&self) -> Option<Due<PodDecision>> {
        let since = self.foreseen_kept()?.since;
        let is_news = self.kept_said != Some(since);
        is_news.then(|| {
            self.due(since.after(LOGGED_AFTER), || PodDecision::NoteKept {
                since,
            })
        })
    }

    pub(super) fn note_kept(&mut self, since: Time) {
        self.kept_said = Some(since);
        if let Some(KeptAlive { by, .. }) = self.kept() {
            self.out.report(Report::KeptAlive { by });
        }
    }
}
