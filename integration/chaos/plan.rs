//! What a round does: pods, what is done with them, and the faults. Nothing but its seed decides.

use std::time::Duration;

use crate::chance::Chance;
use crate::harness::{ContainerSpec, REFERENCE, runtime_under_test};

/// How many pods live side by side.
const PODS: usize = 12;

/// How many steps of a hundred have a fault, and how many another.
const FAULTS: [usize; 2] = [75, 30];

/// One pod and its life.
pub struct PodPlan {
    /// Also how the ids of its containers begin.
    pub name: String,
    pub members: Vec<Member>,
    pub steps: Vec<Step>,
}

/// One container of a pod.
pub struct Member {
    pub id: String,
    pub role: Role,
    pub spec: ContainerSpec,
}

/// What a container is in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Of a pod without annotations.
    Plain,
    Sandbox,
    Init,
    /// Of a pod with a restart policy under which usher restarts it in place.
    Sidecar,
    App,
    Guest,
    Defer,
}

/// What is done with a pod, and what goes wrong meanwhile.
pub struct Step {
    pub what: What,
    pub faults: Vec<Fault>,
}

/// The members are meant by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Run(usize),
    Exec(usize),
    /// Its first process dies, and is restarted in place.
    Crash(usize),
    Kill(usize, &'static str),
    Live,
    /// All are asked to stop at once, as at the end of a pod; killed after a while.
    End,
    Delete(usize),
}

/// A fault that is to come.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    /// When: the part of the time that such a step takes.
    pub moment: f64,
    /// Not before the container that is run has been created: its start takes next to no time.
    pub is_for_start: bool,
    /// For how long what is stopped stays so.
    pub stopped_for: Duration,
}

/// Whom it hits, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ShimKilled,
    ShimStopped,
    ContainerdKilled,
    ContainerdStopped,
    RuntimeKilled,
    RuntimeStopped,
    InitKilled,
    InitStopped,
    CallerKilled,
    CallerStopped,
}

/// What was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum During {
    Create,
    Start,
    Exec,
    Kill,
    Delete,
    Restart,
    Termination,
    Life,
}

// === impl Kind ===

impl Kind {
    pub const ALL: [(Kind, &'static str); 10] = [
        (Kind::ShimKilled, "shim killed"),
        (Kind::ShimStopped, "shim stopped"),
        (Kind::ContainerdKilled, "containerd killed"),
        (Kind::ContainerdStopped, "containerd stopped"),
        (Kind::RuntimeKilled, "runtime's command killed"),
        (Kind::RuntimeStopped, "runtime's command stopped"),
        (Kind::InitKilled, "container's init killed"),
        (Kind::InitStopped, "container's init stopped"),
        (Kind::CallerKilled, "caller killed"),
        (Kind::CallerStopped, "caller stopped"),
    ];

    /// A containerd that is killed disturbs all pods, so that comes seldom.
    const WEIGHTS: [(Kind, usize); 10] = [
        (Kind::ShimKilled, 14),
        (Kind::ShimStopped, 12),
        (Kind::ContainerdKilled, 3),
        (Kind::ContainerdStopped, 4),
        (Kind::RuntimeKilled, 16),
        (Kind::RuntimeStopped, 8),
        (Kind::InitKilled, 15),
        (Kind::InitStopped, 6),
        (Kind::CallerKilled, 16),
        (Kind::CallerStopped, 6),
    ];

    pub fn is_stop(self) -> bool {
        use Kind::*;
        matches!(
            self,
            ShimStopped | ContainerdStopped | RuntimeStopped | InitStopped | CallerStopped
        )
    }
}

impl During {
    pub const ALL: [(During, &'static str); 8] = [
        (During::Create, "create"),
        (During::Start, "start"),
        (During::Exec, "exec"),
        (During::Kill, "kill"),
        (During::Delete, "delete"),
        (During::Restart, "restart in place"),
        (During::Termination, "termination"),
        (During::Life, "nothing"),
    ];
}

// === pods ===

/// How a pod is made up: whether it has a sandbox container, annotations in which `%` stands for the
/// pod's name, and containers with the witness's options.
struct Shape {
    may_have_sandbox: bool,
    annotations: &'static [(&'static str, &'static str)],
    members: &'static [(&'static str, Role, &'static [&'static str])],
}

const TIMES: [(&str, &str); 3] = [
    ("usher/termination-window", "100ms"),
    ("usher/startup-timeout", "10s"),
    ("usher/grace-period", "3s"),
];

const APP: (&str, Role, &[&str]) = ("app", Role::App, &["--exit", "7"]);
const PROXY: (&str, Role, &[&str]) = ("proxy", Role::Sidecar, &["--exit", "8"]);

const SHAPES: &[(&Shape, usize)] = &[
    (
        // A container of its own.
        &Shape {
            may_have_sandbox: false,
            annotations: &[],
            members: &[("one", Role::Plain, &["--exit", "9"])],
        },
        2,
    ),
    (
        &Shape {
            may_have_sandbox: true,
            annotations: &[],
            members: &[
                ("one", Role::Plain, &["--exit", "9"]),
                ("two", Role::Plain, &["--run-for", "700ms", "--exit", "10"]),
            ],
        },
        3,
    ),
    (
        &Shape {
            may_have_sandbox: true,
            annotations: &[
                ("usher/sidecars", "%-proxy"),
                ("usher/restart-policy", "Never"),
            ],
            members: &[
                PROXY,
                APP,
                ("work", Role::App, &["--run-for", "400ms", "--exit", "11"]),
            ],
        },
        3,
    ),
    (
        &Shape {
            may_have_sandbox: true,
            annotations: &[
                ("usher/init", "%-setup"),
                ("usher/sidecars", "%-proxy"),
                ("usher/apps", "%-app"),
                ("usher/pre-exit", "%-before"),
                ("usher/post-exit", "%-after"),
                ("usher/restart-policy", "OnFailure"),
            ],
            members: &[
                ("setup", Role::Init, &["--run-for", "50ms"]),
                PROXY,
                APP,
                (
                    "before",
                    Role::Defer,
                    &["--run-for", "50ms", "--exit", "12"],
                ),
                ("after", Role::Defer, &["--run-for", "50ms", "--exit", "13"]),
                ("debug", Role::Guest, &["--exit", "14"]),
            ],
        },
        4,
    ),
    (
        &Shape {
            may_have_sandbox: true,
            annotations: &[("usher/init", "%-setup"), ("usher/pre-exit", "%-before")],
            members: &[
                ("setup", Role::Init, &["--run-for", "20ms"]),
                APP,
                ("before", Role::Defer, &["--run-for", "200ms"]),
            ],
        },
        2,
    ),
];

/// The pods of a round; with containerd's own shim only those without annotations.
pub fn pods(round: usize, seed: u64, is_reference: bool) -> Vec<PodPlan> {
    let chance = Chance::new(seed);
    let plan = |number| {
        let name = format!("r{round}p{number}");
        pod(&mut chance.split(number as u64 + 1), name, is_reference)
    };
    (0..PODS).map(plan).collect()
}

fn pod(chance: &mut Chance, name: String, is_reference: bool) -> PodPlan {
    let shapes = if is_reference { &SHAPES[..2] } else { SHAPES };
    let shape = chance.weighted(shapes);
    let has_sandbox = shape.may_have_sandbox && chance.percent(50);
    let has_streams = chance.percent(50);
    let make = |&(member, role, options): &(&str, Role, &[&str])| {
        let id = format!("{name}-{member}");
        let mut spec = ContainerSpec::new(&id);
        if shape.may_have_sandbox {
            spec = spec.in_pod(&name, &id);
        }
        if has_sandbox {
            spec = spec.annotation("io.kubernetes.cri.container-type", "container");
        }
        let spec = finish(
            spec.witness(options),
            shape,
            &name,
            has_streams,
            is_reference,
        );
        Member { id, role, spec }
    };
    let sandbox = || {
        let spec = ContainerSpec::new(&name)
            .in_pod(&name, "")
            .annotation("io.kubernetes.cri.container-type", "sandbox")
            .args(&["/bin/sleep", "1000000"]);
        Member {
            id: name.clone(),
            role: Role::Sandbox,
            spec: finish(spec, shape, &name, has_streams, is_reference),
        }
    };
    let sandbox = has_sandbox.then(sandbox);
    let members: Vec<Member> = sandbox
        .into_iter()
        .chain(shape.members.iter().map(make))
        .collect();
    let steps = steps(chance, &members);
    PodPlan {
        name,
        members,
        steps,
    }
}

fn finish(
    mut spec: ContainerSpec,
    shape: &Shape,
    pod: &str,
    has_streams: bool,
    is_reference: bool,
) -> ContainerSpec {
    if !shape.annotations.is_empty() {
        spec = spec.annotations(&TIMES);
    }
    for (key, value) in shape.annotations {
        spec = spec.annotation(key, &value.replace('%', pod));
    }
    if !has_streams {
        spec = spec.option(&["--null-io"]);
    }
    let runtime = match is_reference {
        true => REFERENCE.to_owned(),
        false => runtime_under_test(),
    };
    spec.runtime(&runtime)
}

fn steps(chance: &mut Chance, members: &[Member]) -> Vec<Step> {
    let mut all: Vec<What> = (0..members.len()).map(What::Run).collect();
    for _ in 0..1 + chance.below(5) {
        let member = chance.below(members.len());
        let sidecar = members.iter().position(|m| m.role == Role::Sidecar);
        let signal = chance.one(&["SIGTERM", "SIGKILL"]);
        all.push(match (chance.below(10), sidecar) {
            (0..3, Some(sidecar)) => What::Crash(sidecar),
            (0..6, _) => What::Exec(member),
            (6..8, _) => What::Kill(member, signal),
            _ => What::Live,
        });
    }
    if chance.percent(85) {
        all.push(What::End);
    }
    // The others are left to whoever cleans up.
    if chance.percent(75) {
        all.extend((0..members.len()).rev().map(What::Delete));
    }
    let with_faults = |what| {
        let times = FAULTS
            .iter()
            .filter(|times| chance.percent(**times))
            .count();
        Step {
            what,
            faults: (0..times).map(|_| fault(chance, what)).collect(),
        }
    };
    all.into_iter().map(with_faults).collect()
}

fn fault(chance: &mut Chance, what: What) -> Fault {
    Fault {
        kind: chance.weighted(&Kind::WEIGHTS),
        moment: chance.fraction(),
        is_for_start: matches!(what, What::Run(_)) && chance.percent(40),
        stopped_for: Duration::from_millis(20 + chance.below(1500) as u64),
    }
}

impl What {
    /// About how long it takes, so that faults come within.
    pub fn takes(self) -> Duration {
        Duration::from_millis(match self {
            What::Run(_) => 300,
            What::Exec(_) => 180,
            What::Crash(_) => 250,
            What::Kill(..) => 80,
            What::Live => 300,
            What::End => 900,
            What::Delete(_) => 150,
        })
    }
}
