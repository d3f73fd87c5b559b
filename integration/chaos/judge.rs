//! Checks, after a round, what is left on the node and which exit codes were reported.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use crate::harness::{ContainerSpec, Containerd, REFERENCE, Record, poll};
use crate::plan::{Kind, Member, PodPlan, Role};
use crate::play;
use crate::round::{Done, Finding, Round, State, Wrong};

/// Time for the cleanup after a round: containerd cleans up after a dead shim within five seconds,
/// and a shim exits a little later.
const SETTLING: Duration = Duration::from_secs(8);

/// Time for slow cleanups after a round. A shim without containers exits within 20 s. If a fault
/// has killed containerd, the restarted containerd does not know some leftovers. Only the shim of
/// the node's next container removes these leftovers.
const SETTLING_LATE: Duration = Duration::from_secs(40);

/// Exit codes of a container that was killed (137), and of a container that was stopped before its
/// program ran (143).
const KILLED: u32 = 137;
const STOPPED: u32 = 143;

/// Counters of the checks after a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    /// The number of exit codes compared.
    pub codes: usize,
    /// The number of containers that exited by themselves, but for which containerd reported 137
    /// because their shim had been killed.
    pub killed_by_cleanup: usize,
}

/// Waits until no process, mount, socket or file of the round is left, and records everything that
/// stays as a finding. Returns true if leftovers disappeared only after the next container was
/// created.
pub fn leftovers(round: &Round) -> bool {
    let mut remains = Vec::new();
    let mut is_clean = || {
        remains = round.host.remains();
        remains.is_empty().then_some(())
    };
    if poll(SETTLING, &mut is_clean).is_some() {
        return false;
    }
    let with_next = || {
        let next = ContainerSpec::new("next").option(&["--null-io"]);
        let next = match round.host.is_reference() {
            true => next.runtime(REFERENCE),
            false => next,
        };
        round.call(next.ctr_command(round.host, &["run", "--detach"]), |_| ());
        play::clear(round);
        poll(Duration::from_secs(2), &mut is_clean)
    };
    if poll(SETTLING_LATE, with_next).is_some() {
        return true;
    }
    let mut all = round.state();
    let killed = |done: &Done| done.kind == Kind::ContainerdKilled;
    if all.faults.iter().any(killed) {
        let (own, others): (Vec<_>, Vec<_>) = remains
            .into_iter()
            .partition(|text| is_containerds_leftover(text));
        all.containerds += own.len();
        remains = others;
        own.iter()
            .filter_map(|text| text.strip_prefix("file "))
            .for_each(remove);
    }
    drop(all);
    for text in remains {
        let state = round.state();
        let of_socket = state.sockets.iter().find(|(name, _)| text.contains(*name));
        let pod = of_socket.map(|(_, pod)| pod.clone());
        drop(state);
        let pod = pod.or_else(|| Some(pod_in(&text)?.to_owned()));
        round.find(pod.as_deref(), Wrong::Leftover, with_content(text));
    }
    false
}

/// True if containerd was killed while it removed this bundle. containerd renames a bundle before
/// it removes it. A restarted containerd ignores bundles with such names.
fn is_containerds_leftover(text: &str) -> bool {
    let path = text.strip_prefix("file ").map(Path::new);
    let name = path.and_then(Path::file_name).and_then(OsStr::to_str);
    let is_command_log = |name: &OsStr| name.to_string_lossy().starts_with("usher-");
    name.is_some_and(|name| name.starts_with('.'))
        && text.contains("/io.containerd.runtime.v2.task/")
        && !names_in(path).iter().any(|name| is_command_log(name))
}

fn remove(path: &str) {
    let _ = std::fs::remove_dir_all(path);
}

fn names_in(path: Option<&Path>) -> Vec<OsString> {
    let entries = path
        .map(std::fs::read_dir)
        .into_iter()
        .flatten()
        .flatten()
        .flatten();
    entries.map(|entry| entry.file_name()).collect()
}

/// Appends the names of the files in a leftover directory to the directory's description.
fn with_content(text: String) -> String {
    let names = names_in(text.strip_prefix("file ").map(Path::new));
    match names.is_empty() {
        true => text,
        false => format!("{text}, with {names:?}"),
    }
}

/// Finds the name of a pod in a text, for example `r7p2`.
fn pod_in(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric();
    text.split(|c| !is_part(c)).find(|word| {
        let numbers = word.strip_prefix('r').and_then(|rest| rest.split_once('p'));
        numbers.is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
    })
}

/// Compares every exit code that containerd reported with the containers' own records.
pub fn codes(host: &Containerd, pods: &[PodPlan], state: &mut State) -> Judged {
    let mut judged = Judged::default();
    let record = host.record();
    let ids: BTreeSet<&str> = pods
        .iter()
        .flat_map(|pod| pod.members.iter().map(|member| member.id.as_str()))
        .collect();
    for event in host.events() {
        if event.topic == "/tasks/exit" && event.is_init() && ids.contains(event.container()) {
            let codes = state.codes.entry(event.container().to_owned()).or_default();
            codes.push(("TaskExit", event.exit_status()));
        }
    }
    for pod in pods {
        let is_shimless = state.shimless.contains(&pod.name);
        for member in &pod.members {
            let expected = expected(member, &record);
            for (how, code) in state.codes.get(&member.id).cloned().unwrap_or_default() {
                judged.codes += 1;
                if expected.contains(&code) {
                    continue;
                }
                // The shim was killed before it recorded the exit, so containerd reports 137.
                if code == KILLED && is_shimless {
                    judged.killed_by_cleanup += 1;
                    continue;
                }
                state.findings.push(Finding {
                    pod: Some(pod.name.clone()),
                    what: Wrong::Code,
                    text: format!(
                        "{} ({:?}) ended with {code} by {how}, expected one of {expected:?}; it has recorded {:?}",
                        member.id,
                        member.role,
                        story(&record, &member.id)
                    ),
                });
            }
        }
    }
    judged
}

fn story(record: &Record, name: &str) -> Vec<String> {
    let of_it = record.0.iter().filter(|event| event.name == name);
    of_it
        .map(|event| format!("{} {}", event.what, event.detail))
        .collect()
}

/// Returns the exit codes that containerd may report, given the events that the container itself
/// recorded.
fn expected(member: &Member, record: &Record) -> BTreeSet<u32> {
    let mut own = None;
    let mut has_run = false;
    for event in record.0.iter().filter(|event| event.name == member.id) {
        match event.what.as_str() {
            "start" => (has_run, own) = (true, None),
            "exit" => own = event.detail.parse::<u32>().ok(),
            _ => {}
        }
    }
    let mut codes = BTreeSet::from([own.unwrap_or(KILLED)]);
    match member.role {
        Role::Plain | Role::App | Role::Guest | Role::Sandbox => {}
        // If an init container exits with 0, usher usually hides the exit. usher reports the exit
        // when the container gets a stop request or the pod terminates. If the apps are not
        // complete then, usher reports 143 under the restart policy OnFailure. So kubelet runs the
        // init container again in the next sandbox.
        Role::Init if own == Some(0) => codes.extend([0, STOPPED]),
        Role::Init => {}
        // A stopped sidecar reports 0. A sidecar that is killed while it waits to be restarted
        // reports 137.
        Role::Sidecar => codes.extend([0, KILLED, STOPPED]),
        Role::Defer => codes.extend([0, STOPPED]),
    }
    // A container may be stopped before its program runs. Its exit code then depends on the signal:
    // at SIGTERM, runc's process that waits in the sandbox exits with 2. The sandbox's program
    // records no events, so the test cannot know if it has run. That is why exit code 2 is always
    // accepted for a sandbox.
    match member.role {
        Role::Sandbox => codes.extend([2]),
        _ if !has_run => codes.extend([0, 1, 2, 128, STOPPED]),
        _ => {}
    }
    codes
}

/// Records which pod owns each socket, so that the report of a leftover socket can name the pod.
pub fn note_sockets(round: &Round, pod: &PodPlan) {
    for member in &pod.members {
        let file = round.host.bundle_dir(&member.id).join("address");
        let address = std::fs::read_to_string(file).unwrap_or_default();
        if let Some(name) = address.rsplit('/').next().and_then(|name| name.get(..32)) {
            let sockets = &mut round.state().sockets;
            sockets.insert(name.to_owned(), pod.name.clone());
        }
    }
}

/// Records tasks that containerd has forgotten, though no caller deleted them.
pub fn forgotten(round: &Round) {
    let Some(listed) = round.list("tasks") else {
        return round.find(None, Wrong::Other, "containerd does not answer".to_owned());
    };
    let known = round.state().known.clone();
    for id in known.difference(&listed) {
        let pod = pod_in(id);
        round.find(
            pod,
            Wrong::Other,
            format!("containerd does not know {id} any more"),
        );
    }
}
