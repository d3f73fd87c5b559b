//! The plan of a round: pods, their steps, and the faults during the steps. The plan depends only
//! on the seed.

use std::time::Duration;

use crate::harness::{ContainerSpec, REFERENCE, runtime_under_test};
use crate::random::Random;

/// The number of pods that run at the same time.
const PODS: usize = 12;

/// Probabilities of a first and of a second fault during each step, in percent. Both are decided
/// independently.
const FAULTS: [usize; 2] = [75, 30];

pub struct PodPlan {
    /// The name of the pod. The ids of its containers begin with it.
    pub name: String,
    pub members: Vec<Member>,
    pub steps: Vec<Step>,
}

/// A container in the plan of a pod.
pub struct Member {
    pub id: String,
    pub role: Role,
    pub spec: ContainerSpec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A container in a pod without annotations.
    Plain,
    Sandbox,
    Init,
    /// A sidecar that usher restarts in place.
    Sidecar,
    App,
    Guest,
    Defer,
}

pub struct Step {
    pub what: What,
    pub faults: Vec<Fault>,
}

/// The action of a step. A number is the container's index in the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Run(usize),
    Exec(usize),
    /// The container's first process is killed, and usher restarts the container in place.
    Crash(usize),
    Kill(usize, &'static str),
    Live,
    /// All containers get a stop request at the same time, as at the end of a pod, and later
    /// SIGKILL.
    End,
    Delete(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    /// The moment of the fault, as a fraction of the step's usual duration.
    pub moment: f64,
    /// True if the fault waits until the container is created. The start that follows is too short
    /// to be hit by chance.
    pub is_for_start: bool,
    /// Time that a stopped process stays stopped.
    pub stopped_for: Duration,
}

/// The victim of a fault. The victim is either killed, or stopped for a while.
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

/// The step during which a fault happened.
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

    /// Relative frequencies of the kinds of faults. Killing containerd disturbs all pods, so it is
    /// rare.
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

/// The shape of a pod: its annotations, its containers with the witness's options, and whether the
/// pod may have a sandbox container. `%` in an annotation stands for the pod's name.
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
        // A single container outside of any pod.
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

/// The pods of a round. If the round tests containerd's own shim, no pod has annotations.
pub fn pods(round: usize, seed: u64, is_reference: bool) -> Vec<PodPlan> {
    let random = Random::new(seed);
    let plan = |number| {
        let name = format!("r{round}p{number}");
        pod(&mut random.split(number as u64 + 1), name, is_reference)
    };
    (0..PODS).map(plan).collect()
}

fn pod(random: &mut Random, name: String, is_reference: bool) -> PodPlan {
    let shapes = if is_reference { &SHAPES[..2] } else { SHAPES };
    let shape = random.weighted(shapes);
    let has_sandbox = shape.may_have_sandbox && random.percent(50);
    let has_streams = random.percent(50);
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
    let steps = steps(random, &members);
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

fn steps(random: &mut Random, members: &[Member]) -> Vec<Step> {
    let mut all: Vec<What> = (0..members.len()).map(What::Run).collect();
    for _ in 0..1 + random.below(5) {
        let member = random.below(members.len());
        let sidecar = members.iter().position(|m| m.role == Role::Sidecar);
        let signal = random.one(&["SIGTERM", "SIGKILL"]);
        all.push(match (random.below(10), sidecar) {
            (0..3, Some(sidecar)) => What::Crash(sidecar),
            (0..6, _) => What::Exec(member),
            (6..8, _) => What::Kill(member, signal),
            _ => What::Live,
        });
    }
    if random.percent(85) {
        all.push(What::End);
    }
    // In the other 25 percent of the cases, the cleanup at the end of the round deletes the
    // containers.
    if random.percent(75) {
        all.extend((0..members.len()).rev().map(What::Delete));
    }
    let with_faults = |what| {
        let times = FAULTS
            .iter()
            .filter(|times| random.percent(**times))
            .count();
        Step {
            what,
            faults: (0..times).map(|_| fault(random, what)).collect(),
        }
    };
    all.into_iter().map(with_faults).collect()
}

fn fault(random: &mut Random, what: What) -> Fault {
    Fault {
        kind: random.weighted(&Kind::WEIGHTS),
        moment: random.fraction(),
        is_for_start: matches!(what, What::Run(_)) && random.percent(40),
        stopped_for: Duration::from_millis(20 + random.below(1500) as u64),
    }
}

impl What {
    /// The approximate duration of the step. The moments of faults are chosen within this time.
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
