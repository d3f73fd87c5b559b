//! State of the round that is running.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::harness::{Background, Containerd, poll};
use crate::node;
use crate::plan::{During, Kind};

/// Timeout of a call, longer than any call takes: a Start may block for 10 s, and each fault stops
/// a process for up to 1.5 s.
const PATIENCE: Duration = Duration::from_secs(40);

/// Pods that run side by side on one containerd.
pub struct Round<'a> {
    pub host: &'a Containerd,
    pub begun: Instant,
    /// Locked while a fault kills or stops containerd.
    pub containerd: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub faults: Vec<Done>,
    pub findings: Vec<Finding>,
    /// Exit codes that containerd reported for each container. Each code comes with its source,
    /// which is the exit event or a Delete.
    pub codes: BTreeMap<String, Vec<(&'static str, u32)>>,
    /// Containers whose tasks containerd must know.
    pub known: BTreeSet<String>,
    /// Pods whose shim was killed.
    pub shimless: BTreeSet<String>,
    /// The number of bundles that a killed containerd had not finished removing.
    pub containerds: usize,
    /// The pod of each socket of a shim. The key is the part of the socket's name that all sockets
    /// of one shim share.
    pub sockets: BTreeMap<String, String>,
}

/// An injected fault and its effect.
#[derive(Clone, Debug)]
pub struct Done {
    pub at: Duration,
    pub pod: String,
    pub kind: Kind,
    pub during: During,
    /// The process id of the pod's shim, if there was one.
    pub shim: Option<u32>,
    /// Containers of the pod that containerd knew before the fault.
    pub known: BTreeSet<String>,
    /// True if the same shim serves the pod after the fault as before.
    pub lived: bool,
}

/// A violation of what the test expects.
#[derive(Clone, Debug)]
pub struct Finding {
    pub pod: Option<String>,
    pub what: Wrong,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Leftover,
    Code,
    /// Any other violation: a shim that exited although no fault killed it, a task forgotten by
    /// containerd, a call without an answer.
    Other,
}

pub struct Called {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl<'a> Round<'a> {
    pub fn new(host: &'a Containerd) -> Self {
        Self {
            host,
            begun: Instant::now(),
            containerd: Mutex::default(),
            state: Mutex::default(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn into_state(self) -> State {
        self.state.into_inner().unwrap()
    }

    pub fn find(&self, pod: Option<&str>, what: Wrong, text: String) {
        let pod = pod.map(str::to_owned);
        self.state().findings.push(Finding { pod, what, text });
    }

    /// Runs a command, passes its process id to `started`, and waits for its exit.
    pub fn call(&self, command: Command, started: impl FnOnce(u32)) -> Called {
        let words: Vec<_> = command
            .get_args()
            .map(|word| word.to_string_lossy())
            .collect();
        let words = words[4.min(words.len())..].join(" ");
        let mut child = Background::spawn(command);
        started(child.pid());
        if poll(PATIENCE, || (!child.poll_running()).then_some(())).is_none() {
            self.find(
                None,
                Wrong::Other,
                format!("no answer for {PATIENCE:?}: ctr {words}"),
            );
            return Called {
                code: None,
                out: child.stdout(),
                err: child.stderr(),
            };
        }
        let finished = child.finish(PATIENCE);
        Called {
            code: finished.code,
            out: finished.out(),
            err: finished.err(),
        }
    }

    pub fn ctr(&self, args: &[&str]) -> Called {
        self.call(self.host.ctr_command(args), |_| ())
    }

    /// The ids printed by `ctr … list --quiet`; `None` if containerd is down.
    pub fn list(&self, what: &str) -> Option<BTreeSet<String>> {
        let called = self.ctr(&[what, "list", "--quiet"]);
        let ids = called.out.lines().map(str::to_owned);
        (called.code == Some(0)).then(|| ids.collect())
    }

    /// Deletes an ended task, and records its exit code. Returns true on success.
    pub fn delete_task(&self, id: &str, started: impl FnOnce(u32)) -> bool {
        let command = self.host.ctr_command(&["tasks", "delete", id]);
        let called = self.call(command, started);
        let (Some(code), "") = (called.code, called.err.trim()) else {
            return false;
        };
        let mut state = self.state();
        let codes = state.codes.entry(id.to_owned()).or_default();
        codes.push(("Delete", code as u32));
        true
    }

    /// Checks, for each fault that has hit the pod, whether the pod's shim still runs.
    pub fn check_shims(&self, pod: &str) {
        let is_open =
            |done: &&mut Done| done.pod == pod && !done.lived && done.kind != Kind::ShimKilled;
        let mut state = self.state();
        let State { faults, .. } = &mut *state;
        let mut died = None;
        for done in faults.iter_mut().filter(is_open) {
            let Some(shim) = done.shim else { continue };
            match node::is_shim(self.host, shim, pod) {
                true => done.lived = true,
                false => died = Some(done.clone()),
            }
        }
        let died = died.filter(|_| !state.shimless.contains(pod));
        if let Some(done) = died.filter(|done| !done.known.is_disjoint(&state.known)) {
            state.shimless.insert(pod.to_owned());
            state.findings.push(Finding {
                pod: Some(pod.to_owned()),
                what: Wrong::Other,
                text: format!("the shim is gone while containers are there; last: {done:?}"),
            });
        }
    }
}
