//! The history of container names. A name may have several containers, one after another.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::action::Cause;
use super::time::Time;

/// Maximum number of names that are remembered. A pod's spec has fewer. If a caller uses more, the
/// shim has no record of some names. It then does not infer the completion of a run whose apps are
/// not listed, because one of the unrecorded names may be an app.
pub(super) const NAMES_AT_MOST: usize = 1024;

/// Time from the exit of a stopped container until this exit counts as final. Meanwhile, the caller
/// may create the container again, whatever its exit code. Kubelet does so after a failed liveness
/// probe or a changed image.
const ASKED_COUNTS_AFTER: Duration = Duration::from_secs(30);

/// Time from an exit until it counts as final, if the setting `caller-restarts` covers the exit
/// code. The shim expects the caller to create the container again within this time. Kubelet's
/// longest back-off is 5 min.
const CALLER_RESTARTS_WITHIN: Duration = Duration::from_secs(360);

/// Longest time between two successive exits while the caller restarts the whole pod. Kubelet gives
/// each container 2 s, and stops the next container as soon as one has exited. A later exit has
/// another cause, even if its container got only 2 s. A preStop handler that the shim cannot see
/// may have used up the rest of its grace period.
pub const RESTARTS_ALL_WITHIN: Duration = Duration::from_secs(10);

/// The history of all container names of a pod.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub(super) struct History {
    names: BTreeMap<String, NameRecord>,
    /// True if some names were not recorded because there were too many.
    incomplete: bool,
    /// Number of exits that were reported to the caller.
    exits: u64,
}

/// The history of one name. Containers are identified by their creation number.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub(super) struct NameRecord {
    /// Creation number of the container that was created last under this name. The fields below
    /// call it the last container.
    pub created: u64,
    /// True if a program of this name has exited by itself with 0 in this sandbox.
    pub succeeded: bool,
    /// Creation number of the first container of this name that has started up in this sandbox
    /// (KEP-753, "Started condition").
    pub started: Option<u64>,
    /// Creation number of the last container of this name whose program was executed.
    pub ran: Option<u64>,
    /// True if a defer container of this name has had its turn in a termination. False again if the
    /// shim had inferred that termination by mistake.
    pub deferred: bool,
    /// Creation number of the oldest container of this name that was created after the name's last
    /// success. `None` if no container was created since.
    pub reopened: Option<u64>,
    /// The exit code of the last container: the program's own, even if the shim reports another
    /// one. Recorded when no restart in place follows the exit; `None` before.
    pub code: Option<u32>,
    /// The time from which the exit of the last container is final for the pod. If the caller
    /// creates another container of this name before this time, the exit no longer counts.
    pub counts: Time,
    /// The reason for the pod's end, if the exit of the last container ends the pod.
    pub fatal: Option<Cause>,
    /// The exit of the last container, as reported to the caller. `None` until it is reported.
    pub reported: Option<ReportedExit>,
}

/// An exit that was reported to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct ReportedExit {
    /// The exit code that the shim reported to the caller.
    pub code: u32,
    /// The exit's place in the order of all exits of the pod.
    number: u64,
    at: Time,
    reason: ExitReason,
}

/// The reason for an exit. From these reasons the shim detects that the caller restarts the whole
/// pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum ExitReason {
    /// The container has exited by itself, or the shim stopped it for a failure, such as that of a
    /// probe.
    Itself,
    /// The caller gave the container 2 s at most, or the shim stopped it in a termination inferred
    /// from such stop requests.
    StoppedShortly,
    /// The container was stopped in any other way.
    Stopped,
}

/// The end of a container, to be recorded in the history.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub at: Time,
    pub code: u32,
    /// The program was executed.
    pub has_run: bool,
    /// The caller had begun to stop the container, or the shim had delivered its stop signal.
    pub asked: bool,
    /// The container's stop signal was delivered, but not for a failure.
    pub was_signaled: bool,
    /// The caller creates the container again after this code, whatever the restart policy.
    pub caller_restarts: bool,
}

impl History {
    /// Records container `number` as the last one created under its name. Called when the container
    /// is created, and when it moves to the current run. Forgets the exit of the previous
    /// container.
    pub fn record_creation(&mut self, name: &str, number: u64) {
        if self.names.len() >= NAMES_AT_MOST && !self.names.contains_key(name) {
            self.incomplete = true;
            return;
        }
        let record = self.names.entry(name.to_owned()).or_default();
        if record.succeeded {
            record.reopened.get_or_insert(number);
        }
        record.created = number;
        record.code = None;
        record.fatal = None;
        record.reported = None;
    }

    /// Records that the caller has tried to create a container of the name after the sandbox was
    /// gone. The caller runs the container again in the next sandbox, so its last exit code no
    /// longer counts.
    pub fn record_attempt(&mut self, name: &str) {
        if let Some(record) = self.names.get_mut(name) {
            record.code = None;
        }
    }

    /// Records the end of container `number`. `fatal` is the reason for the pod's end if this exit
    /// ends the pod. Does nothing if the name has a later container.
    pub fn record_end(&mut self, name: &str, number: u64, end: End, fatal: Option<Cause>) {
        if let Some(record) = self.names.get_mut(name)
            && record.created == number
        {
            record.code = Some(end.code);
            record.counts = match (end.caller_restarts, end.asked) {
                (true, _) => end.at.after(CALLER_RESTARTS_WITHIN),
                (false, true) => end.at.after(ASKED_COUNTS_AFTER),
                (false, false) => end.at,
            };
            record.fatal = fatal;
            if end.code == 0 && end.has_run && !end.was_signaled {
                record.succeeded = true;
                record.reopened = None;
            }
        }
    }

    /// Records the exit of container `number`, which the shim is about to report to the caller with
    /// `code`. `at` is the time of the exit. If the shim has hidden the exit before, `at` is the
    /// time at which the shim decides to report it. The record serves to detect [a restart of the
    /// whole pod](History::is_restart_of_all).
    pub fn record_exit(
        &mut self,
        (name, number): (&str, u64),
        at: Time,
        code: u32,
        reason: ExitReason,
    ) {
        let Some(record) = self.names.get_mut(name) else {
            return;
        };
        if record.created == number {
            self.exits = self.exits.saturating_add(1);
            record.reported = Some(ReportedExit {
                code,
                number: self.exits,
                at,
                reason,
            });
        }
    }

    /// True if the reported exits fit a restart of the whole pod in its sandbox (Kubernetes'
    /// RestartAllContainers, KEP-5532):
    ///
    /// - A container has exited by itself. After the last such exit, at least one other container
    ///   has exited.
    /// - Each of these other containers was stopped with a grace period of 2 s at most.
    /// - Each of them exited within [`RESTARTS_ALL_WITHIN`] after the previous exit.
    /// - `name`, which the caller creates now, is among the names with a reported exit.
    ///
    /// Only names that usher orders (`is_ordered`) count. Ignores living containers.
    pub fn is_restart_of_all(&self, name: &str, is_ordered: impl Fn(&str) -> bool) -> bool {
        let mut exits: Vec<_> = self
            .reported()
            .filter(|(name, _)| is_ordered(name))
            .collect();
        exits.sort_by_key(|(_, exit)| exit.number);
        let by_itself = |(_, exit): &(&str, ReportedExit)| exit.reason == ExitReason::Itself;
        let Some(first) = exits.iter().rposition(by_itself) else {
            return false;
        };
        let is_of_it = exits.iter().any(|(of, _)| *of == name);
        let of_restart = exits.get(first..).unwrap_or_default();
        let stopped = of_restart.get(1..).unwrap_or_default();
        let mut stops = of_restart.iter().zip(stopped);
        is_of_it
            && !stopped.is_empty()
            && stops.all(|((_, before), (_, exit))| {
                let is_soon = exit.at.since(before.at) <= RESTARTS_ALL_WITHIN;
                exit.reason == ExitReason::StoppedShortly && is_soon
            })
    }

    /// True if the last container with this name has failed, and its failure ends the pod.
    pub fn is_fatal(&self, name: &str) -> bool {
        self.of(name).is_some_and(|record| record.fatal.is_some())
    }

    /// Returns the names and exits of the containers whose exit was reported to the caller. For
    /// each name, only its last container counts.
    pub fn reported(&self) -> impl Iterator<Item = (&str, ReportedExit)> {
        let names = self.names.iter();
        names.filter_map(|(name, record)| Some((name.as_str(), record.reported?)))
    }

    /// Marks these names as done: no container waits for them any more. Called after a complete
    /// run, for names that the caller does not create again in the next run.
    pub fn excuse(&mut self, names: &[String]) {
        for name in names {
            if let Some(record) = self.names.get_mut(name) {
                record.started.get_or_insert(record.created);
                record.succeeded = true;
            }
        }
    }

    /// Drops container `number`, whose creation failed. The previous container of this name,
    /// `heir`, counts again.
    pub fn inherit(&mut self, name: &str, number: u64, heir: u64) {
        if let Some(record) = self.names.get_mut(name)
            && record.created == number
        {
            record.created = heir;
            record.reopened.take_if(|reopened| *reopened == number);
        }
    }

    /// Records that the turn of a defer container of the name begins: its program is executed.
    pub fn record_defer_run(&mut self, name: &str) {
        if let Some(record) = self.names.get_mut(name) {
            record.deferred = true;
        }
    }

    /// True if a defer container of the name has had its turn in a termination. A termination that
    /// was inferred by mistake does not count.
    pub fn was_deferred(&self, name: &str) -> bool {
        self.of(name).is_some_and(|record| record.deferred)
    }

    /// Forgets which defer containers have run, because the shim had inferred the termination by
    /// mistake. They run again in the real termination.
    pub fn forget_defers(&mut self) {
        for record in self.names.values_mut() {
            record.deferred = false;
        }
    }

    /// Records that the program of container `number` is executed.
    pub fn record_run(&mut self, name: &str, number: u64) {
        if let Some(record) = self.names.get_mut(name) {
            record.ran = Some(number);
        }
    }

    /// True if the program of an earlier container of the name was executed, and the program of
    /// container `number` was not.
    pub fn has_run_before(&self, name: &str, number: u64) -> bool {
        let ran = self.of(name).and_then(|record| record.ran);
        ran.is_some_and(|ran| ran < number)
    }

    /// Records that container `number` has started up (KEP-753, "Started condition").
    pub fn record_start(&mut self, name: &str, number: u64) {
        if let Some(record) = self.names.get_mut(name)
            && record.created == number
        {
            record.started.get_or_insert(number);
        }
    }

    /// Withdraws the record that container `number` has started up. Its postStart handler has begun
    /// only now, and must succeed first.
    pub fn withdraw_start(&mut self, name: &str, number: u64) {
        if let Some(record) = self.names.get_mut(name) {
            record.started.take_if(|first| *first == number);
        }
    }

    /// True if an init container of the name was created again after it succeeded, and has not
    /// succeeded since.
    pub fn is_reopened(&self, name: &str) -> bool {
        self.of(name)
            .is_some_and(|record| record.reopened.is_some())
    }

    /// Prepares the records for the next run. With `anew` the caller creates the whole pod again,
    /// so all records are dropped. Otherwise names that are done stay done.
    pub fn start_over(&mut self, anew: bool) {
        if anew {
            *self = History::default();
        }
        for record in self.names.values_mut() {
            record.fatal = None;
        }
    }

    /// Returns the failure that ends the pod: the time from which its exit is
    /// [final](NameRecord::counts), and the reason for the pod's end. If there are several
    /// failures, returns the one with the earliest of these times. The history forgets a failure
    /// when the caller creates another container of the same name.
    pub fn fatal(&self) -> Option<(Time, &Cause)> {
        let fatal = self
            .names
            .values()
            .filter_map(|record| Some((record.counts, record.fatal.as_ref()?)));
        fatal.min_by_key(|(at, _)| *at)
    }

    /// True if the pod has used only this name since the history was last cleared.
    pub fn is_alone(&self, name: &str) -> bool {
        !self.incomplete && self.names.keys().all(|other| other == name)
    }

    pub fn of(&self, name: &str) -> Option<&NameRecord> {
        self.names.get(name)
    }

    /// All names and their records, or `None` if some are not remembered.
    pub fn all(&self) -> Option<impl Iterator<Item = (&str, &NameRecord)>> {
        (!self.incomplete).then(|| {
            self.names
                .iter()
                .map(|(name, record)| (name.as_str(), record))
        })
    }
}

/// The exit code recorded for a container that could not be created. 128 is containerd's code for a
/// container that could not be started.
pub(super) const NEVER_CREATED: u32 = 128;

impl NameRecord {
    /// True if an init container with this record counts as done for container `number`. An init
    /// container is done when it has succeeded. If the caller creates the init container again
    /// after that, containers created later wait for another success.
    pub fn is_done_for(&self, number: u64) -> bool {
        self.succeeded && self.reopened.is_none_or(|reopened| number < reopened)
    }
}
