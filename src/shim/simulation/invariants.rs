//! Invariants of every node, with any faults: the events that containerd gets match what the
//! machine did, every call is answered, and nothing is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use containerd_shim_protos::api::Status;
use usher_core::simulator::case::{Case, Part};
use usher_core::simulator::name_of;

use usher_core::lifecycle::Report;
use usher_engine::sim::{EngineCall, Happening, Left};
use usher_engine::{Knob, UNLIMITED};

use super::containerd::{Called, Notice};
use super::faults::TOOK_TOO_LONG;
use super::node::{CAT, MEMORY};

pub type Verdict = Result<(), String>;

pub type Invariant = fn(&Account<'_>) -> Verdict;

/// The record of a run, complete when the run is over.
pub struct Account<'a> {
    pub case: &'a Case,
    /// Longest time of an engine call on this node.
    pub slow: Duration,
    pub story: Vec<(Duration, Happening)>,
    pub told: Vec<(Duration, String, Notice)>,
    pub called: Vec<Called>,
    /// The answers to State: for each the time, the task and its state.
    pub read: Vec<(Duration, String, Status)>,
    /// Calls that were never answered.
    pub open: Vec<String>,
    /// Processes, containers and mounts that are left on the machine.
    pub left: Left,
    /// Tasks that containerd has not deleted.
    pub tasks: Vec<String>,
    /// For each shim, true if it has exited.
    pub ended: Vec<bool>,
    /// Panics other than the injected ones.
    pub panics: Vec<String>,
    /// The engine calls in which the seed injected a panic.
    pub lost: Vec<String>,
    /// True if the simulated kubelet has nothing left to do.
    pub is_over: bool,
}

pub const INVARIANTS: &[(&str, Invariant)] = &[
    (
        "nothing panics except where the seed injects a panic",
        nothing_panics,
    ),
    ("the pod ends", the_pod_ends),
    ("nothing is left after the pod is gone", nothing_is_left),
    ("a deleted task does not come back", deleted_tasks_stay_away),
    (
        "a process without a caller is ended",
        no_process_without_a_caller,
    ),
    ("a shim without tasks ends", shims_end),
    ("every call is answered", every_call_is_answered),
    ("each task has one exit, after its start", one_exit_each),
    (
        "each exec that was started has one exit",
        one_exit_of_each_exec,
    ),
    ("an exit has the true code", true_codes),
    ("Wait, Delete and the event give the same code", codes_agree),
    (
        "the recorded exit is the published exit",
        exits_are_recorded,
    ),
    ("events come in the right order", events_are_in_order),
    ("a TaskOOM comes for OOM kills alone", oom_events_are_true),
    (
        "no other call waits than the documented ones",
        only_named_calls_wait,
    ),
    ("Pids lists a process", pids_are_listed),
    ("releases come before cleanups", releases_come_first),
    (
        "a Delete that joins another one gets its answer",
        deletes_join,
    ),
    ("an exec whose stdin is closed ends", closed_stdins_end),
    (
        "no two calls to the engine overlap that must not",
        engine_calls_do_not_overlap,
    ),
    (
        "a task reads as created, running or paused if it was started or paused",
        states_follow_calls,
    ),
    ("a pod has room for each of its containers", pods_have_room),
];

fn broken(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    match holds {
        true => Ok(()),
        false => Err(what()),
    }
}

fn none_of(what: &str, some: &[String]) -> Verdict {
    broken(some.is_empty(), || format!("{what}: {some:?}"))
}

fn nothing_panics(account: &Account<'_>) -> Verdict {
    none_of("panics", &account.panics)
}

fn the_pod_ends(account: &Account<'_>) -> Verdict {
    broken(account.is_over, || "kubelet is not done with it".to_owned())?;
    none_of("not deleted", &account.tasks)
}

fn nothing_is_left(account: &Account<'_>) -> Verdict {
    let left = &account.left;
    broken(*left == Left::default(), || format!("{left:?}"))
}

fn deleted_tasks_stay_away(account: &Account<'_>) -> Verdict {
    let is_deleted = |called: &&Called| {
        let is_tasks = called.call == "Delete" && called.exec_id.is_empty() && !called.is_cut;
        let outcome = called.outcome.as_ref();
        is_tasks && outcome.map_or_else(|why| why.has_words("not found"), |_| true)
    };
    for deleted in account.called.iter().filter(is_deleted) {
        let gone = deleted.at + deleted.took;
        let is_there = |happening: &Happening| match happening {
            Happening::Parked { id, .. }
            | Happening::Executed { id }
            | Happening::ExecBegan { id, .. } => *id == deleted.id,
            _ => false,
        };
        let mut later = account.story.iter().filter(|(at, _)| *at > gone);
        let again = later.find(|(_, happening)| is_there(happening));
        broken(again.is_none(), || {
            format!("{} is deleted at {gone:?}: {again:?}", deleted.id)
        })?;
    }
    Ok(())
}

/// Checks that an exec is killed at once if its caller was gone before the exec began.
fn no_process_without_a_caller(account: &Account<'_>) -> Verdict {
    let is_given_up = |called: &&Called| called.call == "Start" && called.is_cut;
    let starts = account.called.iter().filter(is_given_up);
    for start in starts.filter(|start| !start.exec_id.is_empty()) {
        let of = |happening: &Happening| match happening {
            Happening::ExecBegan { exec_id, .. } => *exec_id == start.exec_id,
            _ => false,
        };
        let began = account.story.iter().find(|(_, it)| of(it));
        let Some((began, _)) = began.filter(|(at, _)| *at > start.at + start.took) else {
            continue;
        };
        let over = account.story.iter().find_map(|(at, it)| {
            let is_its =
                matches!(it, Happening::Died { exec_id: Some(of), .. } if *of == start.exec_id);
            is_its.then_some(*at)
        });
        let by = *began + account.slow + Duration::from_millis(1);
        broken(over.is_some_and(|over| over <= by), || {
            format!(
                "{} of {} is executed at {began:?} and ends at {over:?}",
                start.exec_id, start.id
            )
        })?;
    }
    Ok(())
}

fn shims_end(account: &Account<'_>) -> Verdict {
    let number = account.ended.iter().position(|ended| !ended);
    broken(number.is_none(), || {
        format!("shim {number:?} goes on without a client")
    })
}

fn every_call_is_answered(account: &Account<'_>) -> Verdict {
    none_of("without an answer", &account.open)
}

impl Account<'_> {
    /// The events of a task and its execs, in the order of their arrival.
    fn of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Notice> {
        let told = self.told.iter().filter(move |(_, of, _)| of == id);
        told.map(|(_, _, notice)| notice)
    }

    fn ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> = self.told.iter().map(|(_, id, _)| id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The exit code in the event of a task or an exec.
    fn exit_of(&self, id: &str, exec_id: &str) -> Option<u32> {
        self.of(id).find_map(|notice| match notice {
            Notice::Exited {
                exec_id: of, code, ..
            } if of == exec_id => Some(*code),
            _ => None,
        })
    }
}

fn one_exit_each(account: &Account<'_>) -> Verdict {
    for id in account.ids() {
        let count =
            |is_it: fn(&Notice) -> bool| account.of(id).filter(|notice| is_it(notice)).count();
        let created = count(|notice| matches!(notice, Notice::Created { .. }));
        let started = count(|notice| matches!(notice, Notice::Started { .. }));
        let deleted = count(|notice| matches!(notice, Notice::Deleted { .. }));
        let is_exit = |notice: &Notice| matches!(notice, Notice::Exited { exec_id, .. } if exec_id.is_empty());
        let exited = count(is_exit);
        let all = (created, started, exited, deleted);
        broken(
            created == 1 && started <= 1 && exited == 1 && deleted == 1,
            || format!("{id}: created, started, exited, deleted {all:?} times"),
        )?;
        let place = |is_it: fn(&Notice) -> bool| account.of(id).position(is_it);
        let start = place(|notice| matches!(notice, Notice::Started { .. }));
        let exit = account.of(id).position(is_exit);
        broken(start.is_none_or(|start| Some(start) < exit), || {
            format!("{id} exits before it is started")
        })?;
    }
    // If a Start was answered, containerd has received the event of that start, too.
    for called in &account.called {
        let is_start = called.call == "Start" && called.exec_id.is_empty();
        let started = || {
            account
                .of(&called.id)
                .any(|notice| matches!(notice, Notice::Started { .. }))
        };
        broken(!is_start || called.outcome.is_err() || started(), || {
            format!("{} is started, and its start is not published", called.id)
        })?;
    }
    Ok(())
}

fn one_exit_of_each_exec(account: &Account<'_>) -> Verdict {
    for (_, id, notice) in &account.told {
        let Notice::ExecStarted { exec_id, .. } = notice else {
            continue;
        };
        let exits = account
            .of(id)
            .filter(|notice| matches!(notice, Notice::Exited { exec_id: of, .. } if of == exec_id));
        let count = exits.count();
        broken(count == 1, || {
            format!("{exec_id} of {id} exits {count} times")
        })?;
    }
    Ok(())
}

fn is_sandbox(id: &str) -> bool {
    name_of(id).starts_with("pause")
}

fn true_codes(account: &Account<'_>) -> Verdict {
    let mut truth: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    let mut executed: BTreeMap<&str, u32> = BTreeMap::new();
    for (_, happening) in &account.story {
        match happening {
            Happening::Died {
                id,
                exec_id,
                status,
                ..
            } => {
                let exec_id = exec_id.as_deref().unwrap_or_default();
                truth.insert((id, exec_id), status.code());
            }
            Happening::Executed { id } => *executed.entry(id).or_default() += 1,
            _ => {}
        }
    }
    for (_, id, notice) in &account.told {
        let Notice::Exited { exec_id, code, .. } = notice else {
            continue;
        };
        let truth = truth.get(&(id.as_str(), exec_id.as_str())).copied();
        let Some(truth) = truth else {
            // No process has died for this exit event. Accept it only for a container whose
            // program once ran, because the shim may have failed to create the container again for
            // a restart.
            let is_remade = exec_id.is_empty() && executed.contains_key(id.as_str());
            broken(is_remade, || {
                format!("{id} {exec_id} exits with {code} and has not died")
            })?;
            continue;
        };
        let part = (!is_sandbox(id)).then(|| account.case.member(name_of(id)).part);
        let was_executed = executed.contains_key(id.as_str());
        let is_true = *code == truth;
        let is_excused = match part {
            _ if !exec_id.is_empty() => false,
            // The exit code of a container that was never executed only tells why it was not
            // executed.
            _ if !was_executed => matches!(code, 0 | 1 | 137 | 143),
            // The pod's next sandbox may need this container again. Under the restart policy
            // `OnFailure`, the caller does not create a container there that has exited with 0. So
            // the shim reports 143.
            Some(Part::App | Part::Guest | Part::NativeInit | Part::NativeSidecar) => {
                truth == 0 && *code == 143
            }
            // The shim may replace the exit codes of these containers.
            Some(Part::Sidecar | Part::PreExit | Part::PostExit | Part::Init) => {
                matches!(code, 0 | 143 | 137)
            }
            None => false,
        };
        broken(is_true || is_excused, || {
            format!("{id} {exec_id} has ended with {truth}, and {code} is told")
        })?;
    }
    Ok(())
}

/// Checks that the shim does not clean up an exited container at the moment at which the exit
/// releases another container. The cleanup comes later, because the release must not wait for the
/// cleanup.
///
/// Leaves out these containers:
///
/// - Containers that are being deleted or restarted in place.
/// - Sandboxes. containerd, or the shim if there is no pause container, deletes each sandbox as
///   soon as its exit is reported.
/// - Containers that were never executed. The decision to end such a container already releases the
///   next one.
fn releases_come_first(account: &Account<'_>) -> Verdict {
    // For each exited container: the time of its exit, and the container that this exit released.
    let mut died: BTreeMap<&str, (Duration, Option<&str>)> = BTreeMap::new();
    let mut executed = BTreeSet::new();
    let mut restarts = BTreeSet::new();
    let mut came: BTreeMap<&str, Duration> = BTreeMap::new();
    // A release may be due to a Kill that arrived at the same time, and not to an exit.
    let is_asked_for = |at: Duration| {
        let mut called = account.called.iter();
        called.any(|called| called.call == "Kill" && called.at == at)
    };
    for (at, happening) in &account.story {
        match happening {
            Happening::Executed { id } => {
                executed.insert(id.as_str());
            }
            Happening::Died {
                id, exec_id: None, ..
            } => {
                restarts.remove(name_of(id));
                if executed.remove(id.as_str()) {
                    died.insert(id, (*at, None));
                }
            }
            Happening::Decided(Report::Restarts { name, .. }) => {
                restarts.insert(name.as_str());
            }
            Happening::Parked { id, .. } => {
                came.insert(name_of(id), *at);
            }
            // A container that was created at this time is released because of its creation, and
            // not because of an exit.
            Happening::Decided(Report::Released { name, .. })
                if came.get(name.as_str()) == Some(at) || is_asked_for(*at) => {}
            Happening::Decided(Report::Released { name, .. }) => {
                let just_now = died.values_mut().filter(|(died, _)| died == at);
                just_now.for_each(|(_, next)| *next = Some(name));
            }
            Happening::Forgotten { id } if is_sandbox(id) => {}
            Happening::Forgotten { id } if !restarts.contains(name_of(id)) => {
                let deletions = account.called.iter().filter(|called| called.id == *id);
                let is_deleted = deletions
                    .filter(|called| called.call == "Delete")
                    .any(|called| called.at <= *at);
                // Check only if no other container has just exited. Otherwise, the release may be
                // due to the other exit, which the shim learned of later.
                let lately = at.saturating_sub(account.slow);
                let alone = died.values().filter(|(died, _)| *died >= lately).count() == 1;
                let own = died
                    .get(id.as_str())
                    .filter(|(died, _)| alone && died == at);
                let next = own.and_then(|(_, next)| *next);
                broken(is_deleted || next.is_none(), || {
                    format!("{id} is cleared away while {next:?} is released")
                })?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn deletes_join(account: &Account<'_>) -> Verdict {
    let is_tasks =
        |called: &&Called| called.call == "Delete" && called.exec_id.is_empty() && !called.is_cut;
    let deletes = || account.called.iter().filter(is_tasks);
    for first in deletes() {
        let during = first.at..first.at + first.took;
        let joins = |other: &&Called| other.id == first.id && during.contains(&other.at);
        for second in deletes().filter(joins) {
            broken(first.outcome == second.outcome, || {
                let (one, other) = (&first.outcome, &second.outcome);
                format!("{} is deleted twice at once: {one:?}, {other:?}", first.id)
            })?;
        }
    }
    Ok(())
}

fn closed_stdins_end(account: &Account<'_>) -> Verdict {
    let is_close = |called: &&Called| called.call == "CloseIO" && called.exec_id.ends_with(CAT);
    let closes = account.called.iter().filter(is_close);
    for close in closes.filter(|close| close.outcome.is_ok()) {
        let when = |is_it: &dyn Fn(&Happening) -> bool| {
            let its = account.story.iter().find(|(_, happening)| is_it(happening));
            its.map(|(at, _)| *at)
        };
        let began = when(
            &|it| matches!(it, Happening::ExecBegan { exec_id, .. } if *exec_id == close.exec_id),
        );
        let Some(began) = began else { continue };
        // A paused exec cannot exit.
        let mut calls = account.called.iter();
        if calls.any(|called| called.call == "Pause" && called.id == close.id) {
            continue;
        }
        let over = when(
            &|it| matches!(it, Happening::Died { exec_id: Some(of), .. } if *of == close.exec_id),
        );
        let by = began.max(close.at) + account.slow * 2 + Duration::from_millis(10);
        broken(over.is_some_and(|over| over <= by), || {
            let Called { exec_id, at, .. } = close;
            format!("the stdin of {exec_id} is closed at {at:?}; it ends at {over:?}")
        })?;
    }
    Ok(())
}

fn engine_calls_do_not_overlap(account: &Account<'_>) -> Verdict {
    let mut story = account.story.iter();
    let first = story.find(|(_, it)| matches!(it, Happening::Overlapped { .. }));
    broken(first.is_none(), || format!("{first:?}"))
}

fn states_follow_calls(account: &Account<'_>) -> Verdict {
    // A node can have many thousand calls, so the calls that matter here are sorted first.
    let mut sorted: BTreeMap<(&str, &str), Vec<&Called>> = BTreeMap::new();
    let matters = |called: &&Called| matches!(called.call, "Start" | "Pause");
    for called in account.called.iter().filter(matters) {
        if called.exec_id.is_empty() {
            let key = (called.call, called.id.as_str());
            sorted.entry(key).or_default().push(called);
        }
    }
    for (at, id, status) in &account.read {
        let calls = |call| {
            let calls = sorted.get(&(call, id.as_str()));
            calls.into_iter().flatten().copied()
        };
        let ends = |called: &Called| called.at + called.took;
        // The outcome of a call that was cut off is unknown.
        let may_have_succeeded = |called: &Called| {
            let has_succeeded = called.outcome.is_ok() && ends(called) <= *at;
            has_succeeded || called.is_cut && called.at <= *at
        };
        let is_true = match *status {
            // The State call may have been answered just before the Start call, at the same
            // simulated time.
            Status::CREATED => {
                !calls("Start").any(|called| called.outcome.is_ok() && ends(called) < *at)
            }
            Status::RUNNING => calls("Start").any(may_have_succeeded),
            Status::PAUSED => calls("Pause").any(may_have_succeeded),
            _ => true,
        };
        broken(is_true, || format!("{id} reads {status:?} at {at:?}"))?;
    }
    Ok(())
}

/// The memory limits of containers: as at the creation, or as changed by Updates.
#[derive(Default)]
struct Limits<'a> {
    /// The present limits of the containers whose limit was changed by an Update.
    updated: BTreeMap<&'a str, u64>,
    /// The running apps and sidecars by name. For each name: the id of the latest container with
    /// this name, and the container's memory limit in bytes.
    running: BTreeMap<&'a str, (&'a str, u64)>,
    executed: BTreeSet<&'a str>,
}

impl<'a> Limits<'a> {
    fn note(&mut self, case: &Case, happening: &'a Happening) {
        match happening {
            // The sandbox's limit is no part of the pod's size.
            Happening::Limited { id, .. } | Happening::Executed { id } if is_sandbox(id) => {}
            Happening::Executed { id } => {
                let part = case.member(name_of(id)).part;
                // A container that is restarted in place keeps the limit that Updates have set.
                let is_first = self.executed.insert(id);
                let updated = self.updated.get(id.as_str()).copied();
                let memory = updated.unwrap_or(if is_first { MEMORY } else { 0 });
                if matches!(part, Part::App | Part::Sidecar) {
                    self.running.insert(name_of(id), (id, memory));
                }
            }
            Happening::Limited { id, memory } => {
                self.updated.insert(id, *memory);
                if let Some((of, limit)) = self.running.get_mut(name_of(id))
                    && of == id
                {
                    *limit = *memory;
                }
            }
            Happening::Died {
                id, exec_id: None, ..
            } => {
                self.updated.remove(id.as_str());
                let is_its = |(of, _): &mut (&str, u64)| *of == id;
                if self.running.get_mut(name_of(id)).is_some_and(is_its) {
                    self.running.remove(name_of(id));
                }
            }
            _ => {}
        }
    }

    /// The largest limit that an Update has set for one container. The shim raises the pod's limit
    /// before it raises the container's.
    fn needed_by_one(&self) -> u64 {
        self.updated.values().copied().max().unwrap_or_default()
    }

    /// The sum of the limits of the pod's apps and sidecars.
    fn needed_by_all(&self) -> u64 {
        self.running.values().map(|(_, memory)| memory).sum()
    }
}

/// Checks that the pod's memory limit is large enough: for the limits of its running apps and
/// sidecars together, and for each limit that an Update has set.
fn pods_have_room(account: &Account<'_>) -> Verdict {
    // After a write that failed or hung, the pod's limit may be too small. A failed write changes
    // nothing, and a write that hangs delays the writes after it.
    let is_refused = |it: &Happening| match it {
        Happening::Failed { call, why, .. } => {
            let hangs = *call == EngineCall::LowerMemory && why.contains(TOOK_TOO_LONG);
            hangs || *call == EngineCall::WritePod
        }
        _ => false,
    };
    let refused = account.story.iter().find(|(_, it)| is_refused(it));
    // Time for which the pod's limit may be too small, because one write of the limit is in
    // progress and the next write waits for it.
    let moment = account.slow * 4 + Duration::from_millis(10);
    let (mut limits, mut pod, mut small) = (Limits::default(), UNLIMITED, None);
    let mut story = account.story.iter().peekable();
    while let Some((at, happening)) = story.next() {
        if refused.is_some_and(|(refused, _)| refused <= at) {
            break;
        }
        limits.note(account.case, happening);
        if let Happening::PodSized {
            knob: Knob::Memory,
            value,
        } = happening
        {
            pod = *value;
        }
        // Compare the limits only after all events that happened at the same time.
        if story.peek().is_some_and(|(next, _)| next == at) {
            continue;
        }
        let needed = limits.needed_by_all();
        small = match needed <= pod {
            true => None,
            false => small.or(Some(*at)),
        };
        let in_time = small.is_none_or(|since| *at - since <= moment);
        broken(in_time && limits.needed_by_one() <= pod, || {
            let Limits {
                updated, running, ..
            } = &limits;
            format!("at {at:?} the pod has {pod} of {needed}: {running:?}, {updated:?}")
        })?;
    }
    Ok(())
}

fn codes_agree(account: &Account<'_>) -> Verdict {
    for called in &account.called {
        let Ok(code) = called.outcome else { continue };
        let is_about_exit = matches!(called.call, "Wait" | "Delete");
        let Some(told) = account.exit_of(&called.id, &called.exec_id) else {
            continue;
        };
        broken(!is_about_exit || told == code, || {
            let Called {
                call, id, exec_id, ..
            } = called;
            format!("{call} of {id} {exec_id} gives {code}, the event {told}")
        })?;
    }
    Ok(())
}

fn exits_are_recorded(account: &Account<'_>) -> Verdict {
    let mut recorded: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for (_, happening) in &account.story {
        if let Happening::ExitRecorded { id, pid, code } = happening {
            recorded.insert(id, (pid.unsigned_abs(), *code));
        }
    }
    for (_, id, notice) in &account.told {
        let Notice::Exited {
            exec_id, pid, code, ..
        } = notice
        else {
            continue;
        };
        let recorded = recorded.get(id.as_str());
        let is_recorded = recorded == Some(&(*pid, *code));
        broken(!exec_id.is_empty() || is_recorded, || {
            format!("{id} exits as {pid} with {code}, written down is {recorded:?}")
        })?;
    }
    Ok(())
}

fn events_are_in_order(account: &Account<'_>) -> Verdict {
    for id in account.ids() {
        let notices: Vec<_> = account.of(id).collect();
        let is_first = matches!(notices.first(), Some(Notice::Created { .. }));
        let is_last = matches!(notices.last(), Some(Notice::Deleted { .. }));
        broken(is_first && is_last, || format!("{id}: {notices:?}"))?;
    }
    Ok(())
}

fn oom_events_are_true(account: &Account<'_>) -> Verdict {
    for id in account.ids() {
        let is_it = |happening: &Happening| matches!(happening, Happening::OutOfMemory { id: of } if of == id);
        let happened = account.story.iter().any(|(_, happening)| is_it(happening));
        let told = account.of(id).any(|notice| *notice == Notice::OutOfMemory);
        // If the shim could not find the cgroup, it cannot watch for OOM kills.
        let is_hidden = |happening: &Happening| matches!(happening, Happening::Failed { call: EngineCall::FindCgroup, id: of, .. } if of == id);
        let may_be_missed = account.story.iter().any(|(_, it)| is_hidden(it));
        broken(happened == told || happened && may_be_missed, || {
            format!("{id}: out of memory {happened}, told {told}")
        })?;
    }
    Ok(())
}

/// Checks that each answer to Pids has a process. When containerd 1.7 or later restarts, it deletes
/// a task that lists none.
fn pids_are_listed(account: &Account<'_>) -> Verdict {
    for called in &account.called {
        let is_empty = called.call == "Pids" && matches!(called.outcome, Ok(0));
        broken(!is_empty || called.is_cut, || {
            format!("Pids of {} at {:?} has no process", called.id, called.at)
        })?;
    }
    Ok(())
}

/// Checks that State, Pids, Stats, Connect and similar calls are answered at once. Checks that
/// calls such as Create and Delete are answered within a bound.
fn only_named_calls_wait(account: &Account<'_>) -> Verdict {
    for called in &account.called {
        let at_once = [
            "State",
            "Pids",
            "Stats",
            "Connect",
            "ResizePty",
            "CloseIO",
            "Kill 0",
        ];
        let is_slow = at_once.contains(&called.call) && called.took > Duration::from_millis(1);
        broken(!is_slow || called.is_cut, || {
            let Called { call, id, took, .. } = called;
            format!("{call} of {id} took {took:?}")
        })?;
    }
    // Create and similar calls may have to wait for other engine calls that hang, or their own
    // engine call may hang.
    let hangs = account.story.iter().filter(
        |(_, happening)| matches!(happening, Happening::Failed { why, .. } if why.contains(TOOK_TOO_LONG)),
    );
    let bound = Duration::from_secs(30) + hangs.count() as u32 * Duration::from_secs(120);
    for called in &account.called {
        let is_bounded =
            ["Create", "Exec", "Delete", "Pause", "Resume", "Update"].contains(&called.call);
        broken(!is_bounded || called.took <= bound, || {
            let Called { call, id, took, .. } = called;
            format!("{call} of {id} took {took:?}")
        })?;
    }
    Ok(())
}
