//! Random calls in random order for random pods: nothing panics or spins, every request is answered
//! once and in time, and no program runs before its turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use crate::lifecycle::{Cause, ContainerId, Phase, Report, Time};
use crate::plan::{Plan, Role, Signal};
use crate::process::ExitStatus;

use crate::simulator::{Call, Script, Seen, World, ms, name_of, secs};

const INITS: [&str; 2] = ["one", "two"];
const SIDECARS: [&str; 3] = ["proxy", "logs", "mesh"];
/// A native init container, two apps, two defer containers, and a container that no annotation
/// lists. This container is a guest if the annotation `apps` lists the apps.
const OTHERS: [&str; 6] = ["native", "web", "api", "bye", "last", "other"];

/// Ids of the containers: each may be created three times.
const IDS: [[&str; 3]; 11] = [
    ["one", "one#2", "one#3"],
    ["two", "two#2", "two#3"],
    ["proxy", "proxy#2", "proxy#3"],
    ["logs", "logs#2", "logs#3"],
    ["mesh", "mesh#2", "mesh#3"],
    ["native", "native#2", "native#3"],
    ["web", "web#2", "web#3"],
    ["api", "api#2", "api#3"],
    ["bye", "bye#2", "bye#3"],
    ["last", "last#2", "last#3"],
    ["other", "other#2", "other#3"],
];

const STARTUP_TIMEOUT: Duration = secs(30);
const PROBE: &str = r#"{"tcpSocket":{"port":80},"periodMilliseconds":200,"failureThreshold":20}"#;

/// The annotations of a pod.
#[derive(Clone, Debug)]
struct Shape {
    inits: usize,
    sidecars: usize,
    order: Option<Vec<&'static str>>,
    listed: bool,
    mode: &'static str,
    policy: &'static str,
    exit_code: &'static str,
    restart: Option<&'static str>,
    essential: Option<&'static str>,
    with_sandbox: bool,
    ending: Ending,
}

/// The annotations about the pod's termination.
#[derive(Clone, Debug)]
struct Ending {
    defers: bool,
    policy: &'static str,
    extension: Option<&'static str>,
    hook: bool,
    defer_restart: Option<&'static str>,
    cap: Option<&'static str>,
    defer_cap: bool,
}

fn ending() -> impl Strategy<Value = Ending> {
    let policies = vec!["Shared", "Reserve", "Overrun", "SkipHooks", "Strict"];
    let extensions = vec![
        r#"{"probe":true,"maxSeconds":20}"#,
        r#"{"intervalSeconds":2,"count":3}"#,
    ];
    (
        any::<bool>(),
        prop::sample::select(policies),
        prop::option::of(prop::sample::select(extensions)),
        any::<bool>(),
        prop::option::of(prop::sample::select(vec!["Always", "OnFailure", "Never"])),
        prop::option::of(prop::sample::select(vec!["0", "1s", "3s"])),
        any::<bool>(),
    )
        .prop_map(
            |(defers, policy, extension, hook, defer_restart, cap, defer_cap)| Ending {
                defers,
                policy,
                extension,
                hook,
                defer_restart,
                cap,
                defer_cap,
            },
        )
}

fn shape() -> impl Strategy<Value = Shape> {
    let policies = || prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    (
        (0_usize..=2, 1_usize..=3, any::<bool>(), any::<bool>()),
        prop::sample::select(vec!["Auto", "Block", "Hold"]),
        policies(),
        prop::sample::select(vec!["Mask", "Signal", "Propagate"]),
        prop::option::of(policies()),
        prop::option::of(prop::sample::select(vec!["web", "proxy"])),
        any::<bool>(),
        ending(),
    )
        .prop_flat_map(
            |(
                (inits, sidecars, serial, listed),
                mode,
                policy,
                exit_code,
                restart,
                essential,
                with_sandbox,
                ending,
            )| {
                let names = INITS[..inits].iter().chain(&SIDECARS[..sidecars]);
                let names: Vec<_> = names.copied().collect();
                Just(names).prop_shuffle().prop_map(move |order| Shape {
                    inits,
                    sidecars,
                    order: serial.then_some(order),
                    listed,
                    mode,
                    policy,
                    exit_code,
                    restart,
                    essential,
                    with_sandbox,
                    ending: ending.clone(),
                })
            },
        )
}

impl Shape {
    fn plan(&self) -> Plan {
        let (inits, sidecars) = (
            INITS[..self.inits].join(" "),
            SIDECARS[..self.sidecars].join(" "),
        );
        let order = self.order.as_ref().map(|order| order.join(" "));
        let mut annotations = vec![
            ("sidecars", sidecars.as_str()),
            ("native-init", "native"),
            ("restart-policy", self.policy),
            ("start-mode", self.mode),
            ("sidecar-exit-code", self.exit_code),
            ("startup-timeout", "30s"),
            ("grace-period", "7s"),
            ("grace-policy", self.ending.policy),
            ("startup-probe.usher/proxy", PROBE),
        ];
        if self.inits > 0 {
            annotations.push(("init", &inits));
        }
        if let Some(order) = &order {
            annotations.push(("startup-order", order));
        }
        if self.listed {
            annotations.push(("apps", "web api"));
        }
        if let Some(essential) = self.essential {
            annotations.push(("essential", essential));
        }
        let ending = &self.ending;
        if ending.defers {
            annotations.extend([("pre-exit", "bye"), ("post-exit", "last")]);
            if let Some(restart) = ending.defer_restart {
                annotations.push(("restart.usher/bye", restart));
            }
            if ending.extension.is_some() {
                annotations.push((
                    "liveness-probe.usher/last",
                    r#"{"tcpSocket":{"port":80},"periodSeconds":2}"#,
                ));
            }
            if ending.defer_cap {
                annotations.push(("grace-period.usher/last", "1500ms"));
            }
        }
        if let Some(extension) = ending.extension {
            annotations.push(("grace-extension", extension));
        }
        if ending.hook {
            let hook = r#"{"sleep":{"seconds":1}}"#;
            annotations.extend([
                ("termination-hook.usher/web", hook),
                ("termination-hook.usher/proxy", hook),
            ]);
        }
        if let Some(cap) = ending.cap {
            annotations.push(("grace-period.usher/web", cap));
        }
        if let Some(restart) = self.restart {
            annotations.push(("restart.usher/proxy", restart));
        }
        Plan::parse(&crate::simulator::expand(&annotations)).unwrap()
    }

    fn world(&self, scripts: &[Script]) -> World {
        let mut world = World::with_plan(self.plan());
        let names = INITS.iter().chain(&SIDECARS).chain(&OTHERS);
        for (name, script) in names.zip(scripts) {
            world = world.script(name, script.clone());
        }
        match self.with_sandbox {
            true => world.with_sandbox(),
            false => world,
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    // Prefers the id of a container's first creation to the ids of its later creations.
    let id = || {
        let creation = prop_oneof![4 => Just(0_usize), 2 => Just(1), 1 => Just(2)];
        (prop::sample::select(IDS.as_slice()), creation).prop_map(|(ids, creation)| ids[creation])
    };
    let call_timeout = || prop::option::of((1_u64..200).prop_map(secs));
    let signal = prop::sample::select(vec![Signal::TERM, Signal::KILL, Signal::QUIT, hangup()]);
    prop_oneof![
        8 => (id(), call_timeout()).prop_map(|(name, call_timeout)| Call::Run(name, call_timeout)),
        1 => id().prop_map(Call::Create),
        1 => (id(), call_timeout()).prop_map(|(name, call_timeout)| Call::Start(name, call_timeout)),
        1 => id().prop_map(Call::GiveUp),
        1 => (id(), 0_u64..3_000).prop_map(|(name, takes)| Call::PostStart(name, ms(takes), 0)),
        3 => (id(), signal, call_timeout()).prop_map(|(name, signal, p)| Call::Kill(name, signal, p)),
        3 => id().prop_map(Call::Delete),
        2 => (id(), 0_u8..3).prop_map(|(name, code)| Call::Crash(name, code)),
        1 => Just(Call::Crash("pause", 137)),
    ]
}

fn hangup() -> Signal {
    Signal::new(1).unwrap()
}

fn script() -> impl Strategy<Value = Script> {
    let maybe = |limit: u64| prop::option::of((0..limit).prop_map(ms));
    (
        maybe(3_000),
        maybe(3_000),
        prop::option::of((0_u64..5_000, 0_u8..2)),
        (0_u64..50, 0_u64..3_000, 0_u32..2),
        (0_u32..10, 0_u64..300),
        (0_u64..9_000, maybe(9_000)),
    )
        .prop_map(
            |(ready_after, stops_after, exits, takes, (luck, probe), (hook, unwell))| Script {
                heeds: None,
                hook_takes: ms(hook),
                unwell_after: unwell,
                then_exits: None,
                ready_after,
                stops_after,
                exits_after: exits.map(|(after, code)| (ms(after), code)),
                release_takes: ms(takes.0),
                restart_takes: ms(takes.1),
                restarts_fail: takes.2,
                cannot_be_created: luck == 0,
                cannot_be_released: luck == 1,
                probe_takes: ms(probe),
                probe_costs: ms(probe / 4),
                stop_code: 0,
                survives_sigkill: false,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_call_is_answered_and_no_program_runs_out_of_turn(
        shape in shape(),
        scripts in prop::collection::vec(script(), 11),
        calls in prop::collection::vec((0_u64..4_000, call()), 1..60),
    ) {
        let plan = shape.plan();
        let mut world = shape.world(&scripts);
        for (wait, call) in calls {
            world.call_in(ms(wait), call);
            let end = world.now.after(ms(wait));
            loop {
                let before = world.seen.len();
                let more = world.step(end);
                for (_, seen) in &world.seen[before..] {
                    if let Seen::Released(id) = seen {
                        let too_early = awaited(&world, &plan, id);
                        prop_assert!(too_early.is_empty(), "{id} is released before {too_early:?}: {:#?}", world.seen);
                    }
                }
                if !more {
                    break;
                }
            }
        }
        // Run for longer than the startup timeout, the grace period and the last chance together.
        let mut steps = 0;
        let end = world.now.after(secs(600));
        while world.step(end) {
            steps += 1;
            prop_assert!(steps < 100_000, "it never comes to rest");
        }
        world.check_end();
        prop_assert!(!matches!(world.pod.phase(), Phase::Terminating(_)), "it never ended");
        for id in IDS.iter().flatten() {
            // A defer container may be held as long as its pod lives.
            let waits = matches!(plan.role(name_of(id)), Role::Defer(_))
                && world.pod.phase() != Phase::Terminated;
            let is_held = world.pod.is_held(&ContainerId::from(*id));
            prop_assert!(waits || !is_held, "{id} is held for ever: {:#?}", world.seen);
        }
        for (wait, call_timeout) in &world.start_waits {
            let bound = match shape.mode {
                "Hold" => Duration::ZERO,
                "Auto" => call_timeout.map_or(secs(10), |call_timeout| secs(10).min(call_timeout / 2)),
                _ => call_timeout.map_or(STARTUP_TIMEOUT, |call_timeout| {
                    STARTUP_TIMEOUT.min(call_timeout.saturating_sub(secs(2)))
                }),
            };
            // A release takes up to 50 ms here.
            prop_assert!(*wait <= bound + ms(50), "a Start waits for {wait:?} of {bound:?}");
        }
        if shape.mode == "Auto" {
            prop_assert!(world.blocked_for() <= secs(10) + ms(50) * 60);
        }
    }
}

/// The containers that have to be ready before the container `id` may run. The test computes them
/// itself, without the core.
fn awaited(world: &World, plan: &Plan, id: &str) -> Vec<String> {
    let name = name_of(id);
    let stages = match plan.role(name) {
        Role::Init | Role::Sidecar => plan.position(name).unwrap(),
        Role::App if name != "pause" => usize::MAX,
        _ => 0,
    };
    let before = plan.stages().iter().take(stages);
    let names = before.flat_map(|stage| stage.0.iter());
    let finished = finished_for_good(world, plan);
    names
        .filter(|other| !finished.contains(other.as_str()))
        .filter(|other| match plan.role(other) {
            Role::Init => !has_succeeded_for(world, other, id),
            _ => !ran_before(world, id) && !was_up(world, plan, other),
        })
        .cloned()
        .collect()
}

/// Names of containers that exited in a complete run and that the caller does not create again. If
/// another run follows in the same sandbox, no container waits for them.
fn finished_for_good<'a>(world: &'a World, plan: &Plan) -> BTreeSet<&'a str> {
    let mut is_complete = false;
    let mut exits: BTreeMap<&str, u32> = BTreeMap::new();
    let mut finished = BTreeSet::new();
    for (_, seen) in &world.seen {
        match seen {
            Seen::ExitReported(id, code) => drop(exits.insert(name_of(id), *code)),
            Seen::Reported(Report::Terminating { because, .. }) => {
                is_complete = *because == Cause::Completed;
            }
            Seen::Reported(Report::StartsOver { from_the_start, .. }) if *from_the_start => {
                finished.clear();
            }
            Seen::Reported(Report::StartsOver { .. }) if is_complete => {
                let gone = exits.iter();
                let gone = gone.filter(|(name, code)| !plan.is_created_again(name, **code));
                finished.extend(gone.map(|(name, _)| *name));
            }
            _ => {}
        }
    }
    finished
}

/// True if some sidecar of that name was ever ready.
fn was_up(world: &World, plan: &Plan, name: &str) -> bool {
    let is_probed = plan.container(name).startup_probe.is_some();
    world.seen.iter().enumerate().any(|(n, (at, seen))| {
        let Seen::Executed(id) = seen else {
            return false;
        };
        let later = world.seen.iter().skip(n);
        let mut ends = later.filter_map(|(at, seen)| match seen {
            Seen::Died(who, _) if who == id => Some(*at),
            _ => None,
        });
        let ready_after = world.script_for(id).ready_after;
        let ready = match is_probed {
            true => ready_after.map(|after| at.after(after)),
            false => Some(*at),
        };
        name_of(id) == name && ready.is_some_and(|at| at <= ends.next().unwrap_or(world.now))
    })
}

/// True if another container of the same name ran before container `id`.
fn ran_before(world: &World, id: &str) -> bool {
    let mut seen = world.seen.iter();
    seen.any(|(_, seen)| {
        matches!(seen, Seen::Executed(other) if other != id && name_of(other) == name_of(id))
    })
}

/// True if the init container `name` has succeeded by itself. False if the caller created the init
/// container again between its last success and the creation of the container `waits`.
fn has_succeeded_for(world: &World, name: &str, waits: &str) -> bool {
    let created = |which: &dyn Fn(&str) -> bool| -> Vec<Time> {
        let times = world.created.iter().filter(|(_, id)| which(id));
        times.map(|(at, _)| *at).collect()
    };
    let own = created(&|id| id == waits).last().copied();
    // Under CRI, a SIGQUIT is a stop request only if its call has a deadline. The record does not
    // contain deadlines.
    let has_sandbox = world
        .seen
        .iter()
        .any(|(_, seen)| matches!(seen, Seen::Executed(id) if id == "pause"));
    let is_stop = |signal: Signal| match signal {
        Signal::TERM | Signal::KILL => true,
        other => !has_sandbox && other != hangup(),
    };
    let last_success = world
        .seen
        .iter()
        .enumerate()
        .rev()
        .find_map(|(n, (at, seen))| {
            let Seen::Died(id, ExitStatus::Code(0)) = seen else {
                return None;
            };
            let earlier = || world.seen[..n].iter().rev().map(|(_, seen)| seen);
            let ran = earlier().find_map(|seen| match seen {
                Seen::Executed(who) if who == id => Some(true),
                Seen::Signalled(who, signal) if who == id && is_stop(*signal) => Some(false),
                _ => None,
            });
            (name_of(id) == name && ran == Some(true)).then_some(*at)
        });
    let Some((success, own)) = last_success.zip(own) else {
        return false;
    };
    let again = created(&|id| name_of(id) == name);
    !again.iter().any(|at| *at > success && *at < own)
}
