//! What is remembered of names: containers come and go, their names have a past.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::action::Cause;
use super::time::Time;

/// How many names are remembered. A pod's spec has fewer; a caller that makes up new ones without
/// end gets no completion inferred, which needs them all.
pub(super) const NAMES_AT_MOST: usize = 1024;

/// A container that was asked to stop has not ended of its own accord: its caller may be about to
/// create it again, whatever it ended with. Kubelet does so at once where a liveness probe has
/// failed, or an image has changed.
const ASKED_COUNTS_AFTER: Duration = Duration::from_secs(30);

/// Longest wait for a container that its caller creates again after the code that it ended with: longer
/// than kubelet's longest back-off of 5 min.
const CALLER_RESTARTS_WITHIN: Duration = Duration::from_secs(360);

/// The past of all names of a pod.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub(super) struct History {
    names: BTreeMap<String, Past>,
    /// More names came than are remembered.
    incomplete: bool,
    /// Exits that the caller was told of.
    exits: u64,
}

/// The past of one name.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub(super) struct Past {
    /// Its last creation, by the pod's count.
    pub created: u64,
    /// A program of that name has ended by itself with 0, in this sandbox.
    pub succeeded: bool,
    /// The first container of that name that was started (KEP-753, "Started condition"), in this
    /// sandbox, by the pod's count.
    pub started: Option<u64>,
    /// The last container of that name whose program was executed, by the pod's count.
    pub ran: Option<u64>,
    /// A defer container of that name has been run, in this sandbox.
    pub deferred: bool,
    /// It has been created again since it succeeded, by the pod's count.
    pub reopened: Option<u64>,
    /// The code that the last container of that name ended with; none while it lives.
    pub code: Option<u32>,
    /// When that end counts for the whole pod, if none of that name is created before.
    pub counts: Time,
    /// The end of the pod that it is.
    pub fatal: Option<Cause>,
    /// The exit of the last container of that name, once the caller was told; none while it reads RUNNING.
    pub reported: Option<ReportedExit>,
}

/// An exit that the caller was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct ReportedExit {
    /// The code that was reported.
    pub code: u32,
    /// Counts exits of the pod, so that two can be put in order.
    number: u64,
    reason: ExitReason,
}

/// What made a container exit, as far as it tells whether its caller restarts the whole pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum ExitReason {
    /// Nothing but the container itself.
    Itself,
    /// The caller stopped it, and left it 2 s at most.
    StoppedShortly,
    /// It was stopped in any other way.
    Stopped,
}

/// How a container ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub at: Time,
    pub code: u32,
    /// Its program was executed.
    pub has_run: bool,
    /// It was asked to stop, or told to.
    pub asked: bool,
    /// It was told to.
    pub told: bool,
    /// The caller creates the container again after this code, whatever its restart policy says.
    pub caller_restarts: bool,
}

impl History {
    /// A container of the name is being created, as number `number`.
    pub fn created(&mut self, name: &str, number: u64) {
        if self.names.len() >= NAMES_AT_MOST && !self.names.contains_key(name) {
            self.incomplete = true;
            return;
        }
        let past = self.names.entry(name.to_owned()).or_default();
        if past.succeeded {
            past.reopened.get_or_insert(number);
        }
        past.created = number;
        past.code = None;
        past.fatal = None;
        past.reported = None;
    }

    /// Its caller wants a container of the name that cannot be created: whatever the last one ended with,
    /// its work is not done.
    pub fn wanted(&mut self, name: &str) {
        if let Some(past) = self.names.get_mut(name) {
            past.code = None;
        }
    }

    /// The container of the name with creation number `number` has ended; `fatal` is what that
    /// means to the pod. Only the container that counts for the name does.
    pub fn ended(&mut self, name: &str, number: u64, end: End, fatal: Option<Cause>) {
        if let Some(past) = self.names.get_mut(name)
            && past.created == number
        {
            past.code = Some(end.code);
            past.counts = match (end.caller_restarts, end.asked) {
                (true, _) => end.at.after(CALLER_RESTARTS_WITHIN),
                (false, true) => end.at.after(ASKED_COUNTS_AFTER),
                (false, false) => end.at,
            };
            past.fatal = fatal;
            if end.code == 0 && end.has_run && !end.told {
                past.succeeded = true;
                past.reopened = None;
            }
        }
    }

    /// The caller is told that the name's container with creation number `number` has exited with `code`.
    pub fn exit_reported(&mut self, name: &str, number: u64, code: u32, reason: ExitReason) {
        let Some(past) = self.names.get_mut(name) else {
            return;
        };
        if past.created == number {
            self.exits = self.exits.saturating_add(1);
            past.reported = Some(ReportedExit {
                code,
                number: self.exits,
                reason,
            });
        }
    }

    /// True if a Create of `name` restarts the whole pod in its sandbox (Kubernetes'
    /// RestartAllContainers, KEP-5532): a container has exited by itself, its caller has stopped all
    /// others since then and left them 2 s at most, and it creates one again now that has ended. `is_ordered`
    /// says which names count.
    pub fn is_restart_of_all(&self, name: &str, is_ordered: impl Fn(&str) -> bool) -> bool {
        let exits: Vec<_> = self
            .reported()
            .filter(|(name, _)| is_ordered(name))
            .collect();
        let by_itself = exits
            .iter()
            .filter(|(_, exit)| exit.reason == ExitReason::Itself);
        let Some(first) = by_itself.map(|(_, exit)| exit.number).max() else {
            return false;
        };
        let mut stopped = exits.iter().filter(|(_, exit)| exit.number > first);
        let is_of_it = exits.iter().any(|(of, _)| *of == name);
        is_of_it
            && stopped.clone().next().is_some()
            && stopped.all(|(_, exit)| exit.reason == ExitReason::StoppedShortly)
    }

    /// True if the failure of the name's last container ends the pod.
    pub fn is_fatal(&self, name: &str) -> bool {
        self.of(name).is_some_and(|past| past.fatal.is_some())
    }

    /// The names whose last container has exited as far as the caller knows, and how.
    pub fn reported(&self) -> impl Iterator<Item = (&str, ReportedExit)> {
        let names = self.names.iter();
        names.filter_map(|(name, past)| Some((name.as_str(), past.reported?)))
    }

    /// No container waits for these names any more.
    pub fn excuse(&mut self, names: &[String]) {
        for name in names {
            if let Some(past) = self.names.get_mut(name) {
                past.started.get_or_insert(past.created);
                past.succeeded = true;
            }
        }
    }

    /// The name's container with creation number `number` is gone though it has not ended: the one
    /// before it, `heir`, counts again.
    pub fn inherit(&mut self, name: &str, number: u64, heir: u64) {
        if let Some(past) = self.names.get_mut(name)
            && past.created == number
        {
            past.created = heir;
        }
    }

    /// A defer container of the name is run.
    pub fn deferred(&mut self, name: &str) {
        if let Some(past) = self.names.get_mut(name) {
            past.deferred = true;
        }
    }

    /// Whether a defer container of the name was run.
    pub fn was_deferred(&self, name: &str) -> bool {
        self.of(name).is_some_and(|past| past.deferred)
    }

    /// What has run at an end that was none runs again at the real one.
    pub fn forget_defers(&mut self) {
        for past in self.names.values_mut() {
            past.deferred = false;
        }
    }

    /// The program of the name's container with creation number `number` is executed.
    pub fn ran(&mut self, name: &str, number: u64) {
        if let Some(past) = self.names.get_mut(name) {
            past.ran = Some(number);
        }
    }

    /// Whether a program of the name was executed before its container with creation number `number`
    /// was created.
    pub fn has_run_before(&self, name: &str, number: u64) -> bool {
        let ran = self.of(name).and_then(|past| past.ran);
        ran.is_some_and(|ran| ran < number)
    }

    /// The name's container with creation number `number` is started.
    pub fn started(&mut self, name: &str, number: u64) {
        if let Some(past) = self.names.get_mut(name)
            && past.created == number
        {
            past.started.get_or_insert(number);
        }
    }

    /// That container was not started after all: its postStart handler has only begun.
    pub fn not_started(&mut self, name: &str, number: u64) {
        if let Some(past) = self.names.get_mut(name) {
            past.started.take_if(|first| *first == number);
        }
    }

    /// Whether an init container of the name was created again that had succeeded.
    pub fn is_reopened(&self, name: &str) -> bool {
        self.of(name).is_some_and(|past| past.reopened.is_some())
    }

    /// The pod begins again after its end. `anew` says whether its caller creates all of it again; what
    /// has done its part has done it otherwise.
    pub fn start_over(&mut self, anew: bool) {
        if anew {
            *self = History::default();
        }
        for past in self.names.values_mut() {
            past.fatal = None;
        }
    }

    /// The end of the pod that comes first of all that ends of containers were, and when.
    pub fn fatal(&self) -> Option<(Time, &Cause)> {
        let fatal = self
            .names
            .values()
            .filter_map(|past| Some((past.counts, past.fatal.as_ref()?)));
        fatal.min_by_key(|(at, _)| *at)
    }

    /// Whether no container of another name was ever created.
    pub fn is_alone(&self, name: &str) -> bool {
        !self.incomplete && self.names.keys().all(|other| other == name)
    }

    /// What is remembered of a name.
    pub fn of(&self, name: &str) -> Option<&Past> {
        self.names.get(name)
    }

    /// All names and their pasts; none if there were more than are remembered.
    pub fn all(&self) -> Option<impl Iterator<Item = (&str, &Past)>> {
        (!self.incomplete).then(|| self.names.iter().map(|(name, past)| (name.as_str(), past)))
    }
}

/// Stands for the exit code of a container that could not be created; 128 is what containerd gives
/// one that could not be started.
pub(super) const NEVER_CREATED: u32 = 128;

impl Past {
    /// Whether the container with creation number `number` need not wait for an init container
    /// with this past. One that has succeeded stays done until it is created again, and then for
    /// those that were there before.
    pub fn is_done_for(&self, number: u64) -> bool {
        self.succeeded && self.reopened.is_none_or(|reopened| number < reopened)
    }
}
