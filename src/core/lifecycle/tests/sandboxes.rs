//! Pods as kubelet runs them through thick and thin: crashes, failed liveness probes, postStart
//! handlers, and new sandboxes. They come up again.

use proptest::prelude::*;

use crate::plan::RestartPolicy;

use super::kubelet::{Kind, Kubelet, pod, regular, runs};
use crate::simulator::{Call, Script, World, ms, secs};

const PROBE: &str = r#"{"tcpSocket":{"port":80},"periodMilliseconds":200,"failureThreshold":100}"#;

const INITS: [&str; 2] = ["one", "two"];
const SIDECARS: [&str; 3] = ["proxy", "logs", "mesh"];
const APPS: [&str; 3] = ["web", "api", "worker"];

const POLICIES: [(&str, RestartPolicy); 3] = [
    ("Always", RestartPolicy::Always),
    ("OnFailure", RestartPolicy::OnFailure),
    ("Never", RestartPolicy::Never),
];

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    Crash(&'static str),
    Unhealthy(&'static str),
    SandboxDies,
}

#[derive(Clone, Debug)]
struct Case {
    inits: usize,
    sidecars: usize,
    apps: usize,
    policy: usize,
    mode: &'static str,
    listed: bool,
    startup_order: Option<Vec<&'static str>>,
    order: Vec<&'static str>,
    /// Kubelet's own init container and sidecar.
    natives: bool,
    post_starts: Vec<(&'static str, u64)>,
    scripts: Vec<Script>,
    mishaps: Vec<(u64, Mishap)>,
}

fn script() -> impl Strategy<Value = Script> {
    (0_u64..5_000, prop::option::of(0_u64..3_000), 0_u64..2_000).prop_map(
        |(ready, stops, restarts)| Script {
            ready_after: Some(ms(ready)),
            stops_after: stops.map(ms),
            restart_takes: ms(restarts),
            ..Script::default()
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (0_usize..=2, 1_usize..=3, 1_usize..=3, 0_usize..2);
    let settings = (
        prop::sample::select(vec!["Auto", "Hold", "Block"]),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let scripts = prop::collection::vec(script(), 8);
    (shape, settings, scripts)
        .prop_flat_map(|(shape, settings, scripts)| {
            let ordered = INITS[..shape.0].iter().chain(&SIDECARS[..shape.1]);
            let ordered: Vec<_> = ordered.copied().collect();
            let apps = APPS[..shape.2].iter().copied();
            let all: Vec<_> = ordered.iter().copied().chain(apps).collect();
            let who = prop::sample::select(all.clone());
            let mishap = (who.clone(), 0_u32..7).prop_map(|(name, kind)| match kind {
                0..=2 => Mishap::Crash(name),
                3..=5 => Mishap::Unhealthy(name),
                _ => Mishap::SandboxDies,
            });
            (
                Just((shape, settings, scripts)),
                Just(ordered).prop_shuffle(),
                Just(all).prop_shuffle(),
                prop::collection::vec((who, 0_u64..3_000), 0..3),
                prop::collection::vec((0_u64..60_000, mishap), 0..6),
            )
        })
        .prop_map(
            |((shape, settings, scripts), ordered, order, post_starts, mishaps)| Case {
                inits: shape.0,
                sidecars: shape.1,
                apps: shape.2,
                policy: shape.3,
                mode: settings.0,
                listed: settings.1,
                startup_order: settings.2.then_some(ordered),
                natives: settings.3,
                order,
                post_starts,
                scripts,
                mishaps,
            },
        )
}

impl Case {
    /// A sandbox of the pod.
    fn sandbox(&self) -> World {
        let inits = INITS[..self.inits].join(" ");
        let (sidecars, apps) = (
            SIDECARS[..self.sidecars].join(" "),
            APPS[..self.apps].join(" "),
        );
        let order = self.startup_order.as_ref().map(|order| order.join(" "));
        let mut annotations = vec![
            ("sidecars", sidecars.as_str()),
            ("native-init", "setup vpn"),
            ("start-mode", self.mode),
            ("restart-policy", POLICIES[self.policy].0),
            ("startup-probe.usher/proxy", PROBE),
        ];
        if self.inits > 0 {
            annotations.push(("init", &inits));
        }
        if self.listed {
            annotations.push(("apps", &apps));
        }
        if let Some(order) = &order {
            annotations.push(("startup-order", order));
        }
        let mut world = pod(&annotations);
        let names = INITS.iter().chain(&SIDECARS).chain(&APPS);
        for (name, script) in names.zip(&self.scripts) {
            let mut script = script.clone();
            if INITS.contains(name) {
                script.exits_after = script.ready_after.map(|after| (after, 0));
            }
            world = world.script(name, script);
        }
        let ends = Script {
            exits_after: Some((ms(400), 0)),
            ..Script::default()
        };
        world.script("setup", ends)
    }

    fn kubelet(&self) -> Kubelet {
        let mut order = self.order.clone();
        if self.mode == "Block" {
            // What is listed before those it waits for would be waited for in vain.
            let places = [
                self.startup_order.as_deref().unwrap_or_default(),
                &INITS,
                &SIDECARS,
            ];
            let place = |name: &&str| places.concat().iter().position(|other| other == name);
            order.sort_by_key(|name| place(name).unwrap_or(usize::MAX));
        }
        let mut spec = regular(&order);
        if self.natives {
            let natives = [("setup", Kind::NativeInit), ("vpn", Kind::NativeSidecar)];
            spec.splice(0..0, natives);
        }
        let mut kubelet = Kubelet::new(POLICIES[self.policy].1, secs(20), &spec);
        for (name, takes) in &self.post_starts {
            kubelet.post_start(name, ms(*takes));
        }
        kubelet
    }

    fn go_wrong(&self, world: &mut World, kubelet: &mut Kubelet) {
        for (wait, mishap) in &self.mishaps {
            kubelet.run_for(world, ms(*wait));
            match mishap {
                Mishap::Crash(name) => {
                    if let Some(id) = kubelet.current(name) {
                        world.call(Call::Crash(id, 1));
                    }
                }
                Mishap::Unhealthy(name) => kubelet.unhealthy(world, name),
                Mishap::SandboxDies => kubelet.change_sandbox(world, self.sandbox()),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn kubelet_gets_every_pod_up_again_whatever_goes_wrong(case in case()) {
        let (mut world, mut kubelet) = (case.sandbox(), case.kubelet());
        case.go_wrong(&mut world, &mut kubelet);
        // Longer than any back-off.
        kubelet.run_for(&mut world, secs(1_800));
        let apps = &APPS[..case.apps];
        // What kubelet stopped may have ended with 0: it is done then, unless it comes again.
        let is_done = |name: &&str| case.policy == 1 && kubelet.code(name) == Some(0);
        if apps.iter().all(&is_done) {
            return Ok(());
        }
        for name in SIDECARS[..case.sidecars].iter().chain(apps) {
            prop_assert!(
                is_done(name) || runs(&world, &kubelet, name),
                "{name} does not run, {:?}: {:#?}", kubelet.code(name), world.seen
            );
        }
        world.check_end();
    }
}
