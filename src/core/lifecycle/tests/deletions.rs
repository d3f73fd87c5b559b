//! Kubelet deletes pods, and stops containers of living ones: whatever they are made of, the one is
//! never taken for the other.

use std::time::Duration;

use proptest::prelude::*;

use crate::lifecycle::Phase;
use crate::plan::{KubeletFacts, PreStop, RestartPolicy};

use super::kubelet::{Kind, Kubelet, alive, pod, regular, runs};
use crate::simulator::{Script, Seen, World, ms, name_of, secs};

const SIDECARS: [&str; 2] = ["proxy", "logs"];
const APPS: [&str; 3] = ["web", "api", "worker"];
const BEFORE: [&str; 2] = ["first", "second"];
const AFTER: [&str; 2] = ["third", "fourth"];

/// What an app's preStop handler is to kubelet.
#[derive(Clone, Copy, Debug)]
enum Handler {
    Exec,
    Sleep,
    Http,
}

#[derive(Clone, Debug)]
struct Case {
    sidecars: usize,
    apps: usize,
    before: usize,
    after: usize,
    policy: &'static str,
    hook: bool,
    grace: u64,
    scripts: Vec<Script>,
    handlers: Vec<Option<(Handler, u64)>>,
    order: Vec<&'static str>,
}

fn script() -> impl Strategy<Value = Script> {
    let stops = prop_oneof![6 => (0_u64..4_000).prop_map(Some), 1 => Just(None)];
    (stops, 0_u64..2_000).prop_map(|(stops, hook)| Script {
        stops_after: stops.map(ms),
        hook_takes: ms(hook),
        ..Script::default()
    })
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (0_usize..=2, 1_usize..=3, 0_usize..=2, 0_usize..=2);
    let policies = vec!["Shared", "Reserve", "Overrun", "SkipHooks", "Strict"];
    let handler = prop::sample::select(vec![Handler::Exec, Handler::Sleep, Handler::Http]);
    let handlers = prop::option::weighted(0.3, (handler, 0_u64..12));
    (
        shape,
        prop::sample::select(policies),
        any::<bool>(),
        7_u64..30,
        prop::collection::vec(script(), 5),
        prop::collection::vec(0_u64..3_000, 4),
        prop::collection::vec(handlers, 3),
    )
        .prop_flat_map(
            |(shape, policy, hook, grace, mut scripts, runs, handlers)| {
                let names: Vec<_> = SIDECARS[..shape.0]
                    .iter()
                    .chain(&APPS[..shape.1])
                    .chain(&BEFORE[..shape.2])
                    .chain(&AFTER[..shape.3])
                    .copied()
                    .collect();
                scripts.extend(runs.into_iter().map(|run| Script {
                    exits_after: Some((ms(run), 0)),
                    ..Script::default()
                }));
                Just(names).prop_shuffle().prop_map(move |order| Case {
                    sidecars: shape.0,
                    apps: shape.1,
                    before: shape.2,
                    after: shape.3,
                    policy,
                    hook,
                    grace,
                    scripts: scripts.clone(),
                    handlers: handlers.clone(),
                    order,
                })
            },
        )
}

impl Case {
    fn defers(&self) -> impl Iterator<Item = &'static str> {
        BEFORE[..self.before]
            .iter()
            .chain(&AFTER[..self.after])
            .copied()
    }

    fn run(&self) -> (World, Kubelet) {
        let lists = [
            ("sidecars", SIDECARS[..self.sidecars].join(" ")),
            ("pre-exit", BEFORE[..self.before].join(" ")),
            ("post-exit", AFTER[..self.after].join(" ")),
        ];
        let grace = format!("{}s", self.grace);
        let mut annotations = vec![
            ("grace-policy", self.policy),
            ("grace-period", grace.as_str()),
        ];
        let lists: Vec<_> = lists
            .iter()
            .filter(|(_, names)| !names.is_empty())
            .collect();
        annotations.extend(lists.iter().map(|(key, names)| (*key, names.as_str())));
        if self.hook {
            annotations.push(("termination-hook.usher/web", r#"{"sleep":{"seconds":1}}"#));
        }
        let mut world = pod(&annotations);
        let names = SIDECARS.iter().chain(&APPS).chain(&BEFORE).chain(&AFTER);
        for (name, script) in names.zip(&self.scripts) {
            world = world.script(name, script.clone());
        }
        let kinds = regular(&self.order);
        let mut kubelet = Kubelet::new(RestartPolicy::Always, secs(self.grace), &kinds);
        for (name, handler) in APPS.iter().zip(&self.handlers) {
            let Some((handler, takes)) = handler else {
                continue;
            };
            let command = vec!["/bye".to_owned()];
            let (pre_stop, command) = match handler {
                Handler::Exec => (
                    PreStop::Exec {
                        command: command.clone(),
                    },
                    Some(command),
                ),
                Handler::Sleep => (PreStop::Sleep(secs(*takes)), None),
                Handler::Http => (PreStop::HttpGet, None),
            };
            let facts = KubeletFacts {
                pre_stop: Some(pre_stop),
                ..KubeletFacts::default()
            };
            world = world.facts(name, facts);
            kubelet.pre_stop(name, secs(*takes), command);
        }
        (world, kubelet)
    }

    /// By when everything has ended, since the deletion.
    fn worst(&self) -> Duration {
        let beyond = match self.policy {
            "Shared" | "Reserve" => 2,
            "Overrun" => 8,
            "SkipHooks" => 4,
            // Kubelet's own minimum after a preStop handler.
            _ => 2,
        };
        // Kubelet looks at its pods once a second, before it asks and before it kills.
        secs(self.grace + beyond) + ms(2_500)
    }

    /// Whether two are asked at once, whatever their handlers.
    fn is_unmistakable(&self) -> bool {
        let handlers = self.handlers[..self.apps].iter().flatten().count();
        self.order.len() - handlers > 1
    }
}

fn was_run(world: &World, name: &str) -> bool {
    let executed = |seen: &Seen| matches!(seen, Seen::Executed(id) if name_of(id) == name);
    world.seen.iter().any(|(_, seen)| executed(seen))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_deletion_is_recognised_wherever_two_containers_live(case in case(), moment in 0_u64..5_000) {
        let (mut world, mut kubelet) = case.run();
        kubelet.run_for(&mut world, secs(40) + ms(moment));
        for name in SIDECARS[..case.sidecars].iter().chain(&APPS[..case.apps]) {
            prop_assert!(runs(&world, &kubelet, name), "{name} does not run: {:#?}", world.seen);
        }
        prop_assert!(case.defers().all(|name| !was_run(&world, name)));
        world.seen.clear();
        let mut kubelet = kubelet.deaf();
        let asked = world.now;
        kubelet.delete(&world);
        kubelet.run_for(&mut world, secs(300));
        prop_assert!(alive(&world).is_empty(), "{:?} live: {:#?}", alive(&world), world.seen);
        let died = |name: &str| world.died(name).unwrap();
        let two_live = case.order.len() > 1;
        if two_live {
            for name in &case.order {
                prop_assert!(died(name) <= asked.after(case.worst()), "{name} died at {}: {:#?}", died(name), world.seen);
            }
        }
        // What runs in time runs in its order, and before what it comes before.
        let deadline = asked.after(secs(case.grace.saturating_sub(6)));
        let last_app = APPS[..case.apps].iter().map(|name| died(name)).max().unwrap();
        for sidecar in &SIDECARS[..case.sidecars] {
            let signalled = world.signalled(sidecar).unwrap();
            prop_assert!(signalled >= last_app.min(deadline), "{sidecar}: {:#?}", world.seen);
        }
        let last_app = last_app.max(asked);
        if last_app < deadline {
            if let Some(name) = AFTER[..case.after].first().filter(|_| case.is_unmistakable()) {
                prop_assert!(was_run(&world, name), "{name} was not run: {:#?}", world.seen);
            }
            for name in AFTER[..case.after].iter().filter(|name| was_run(&world, name)) {
                prop_assert!(world.executed(name).unwrap() >= last_app);
            }
        }
        // Whatever the policy, there is time for the first.
        if let Some(name) = BEFORE[..case.before].first().filter(|_| case.is_unmistakable()) {
            prop_assert!(was_run(&world, name), "{name} was not run: {:#?}", world.seen);
        }
        for name in &BEFORE[..case.before] {
            for app in &APPS[..case.apps] {
                if was_run(&world, name) {
                    prop_assert!(world.signalled(app).unwrap() >= died(name).min(deadline));
                }
            }
        }
        if case.is_unmistakable() {
            prop_assert_eq!(world.pod.phase(), Phase::Terminated);
        }
    }

    #[test]
    fn no_sequence_of_single_stops_ends_a_pod_or_runs_a_defer(
        case in case(),
        stops in prop::collection::vec((0_usize..5, 0_u64..40_000), 1..8),
    ) {
        let (mut world, mut kubelet) = case.run();
        kubelet.run_for(&mut world, secs(40));
        let names: Vec<_> = SIDECARS[..case.sidecars].iter().chain(&APPS[..case.apps]).collect();
        for (which, wait) in stops {
            kubelet.unhealthy(&mut world, names[which % names.len()]);
            kubelet.run_for(&mut world, ms(wait));
            // Whatever is the last that runs in a pod with a hook is taken for its end.
            let may_be_the_last = case.hook && case.defers().next().is_none();
            prop_assert!(may_be_the_last || !matches!(world.pod.phase(), Phase::Terminating(_) | Phase::Terminated), "{:#?}", world.seen);
        }
        // Kubelet restarts what it stops, with a back-off of five minutes at most.
        kubelet.run_for(&mut world, secs(700));
        for name in names {
            prop_assert!(runs(&world, &kubelet, name), "{name} does not run: {:#?}", world.seen);
        }
        prop_assert!(case.defers().all(|name| !was_run(&world, name)), "{:#?}", world.seen);
        prop_assert_eq!(world.pod.phase(), Phase::Running);
    }
}

#[test]
fn with_kubelets_own_sidecars_the_defers_run_before_they_are_asked() {
    let mut world = pod(&[("native-init", "mesh"), ("post-exit", "third")]).script(
        "third",
        Script {
            exits_after: Some((secs(1), 0)),
            ..Script::default()
        },
    );
    let spec = [
        ("mesh", Kind::NativeSidecar),
        ("web", Kind::Regular),
        ("third", Kind::Regular),
    ];
    let mut kubelet = Kubelet::new(RestartPolicy::Always, secs(30), &spec);
    kubelet.run_for(&mut world, secs(20));
    kubelet.delete(&world);
    kubelet.run_for(&mut world, secs(60));
    assert!(alive(&world).is_empty());
    assert!(world.executed("third") >= world.died("web"));
    assert!(world.signalled("mesh") >= world.died("third"));
}
