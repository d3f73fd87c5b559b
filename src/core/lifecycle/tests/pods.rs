//! Pods as kubelet runs them, from the first container to the last.

use proptest::prelude::*;

use crate::lifecycle::Phase;
use crate::plan::RestartPolicy;

use super::kubelet::{Kind, Kubelet, alive, pod, regular, runs};
use crate::simulator::{Node, Script, ms, secs};

const PROBE: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":80},"periodMilliseconds":200,"failureThreshold":1000}"#,
);

fn ends(after: u64, code: u8) -> Script {
    Script {
        exits_after: Some((ms(after), code)),
        ..Script::default()
    }
}

const POLICIES: [(&str, RestartPolicy); 3] = [
    ("Always", RestartPolicy::Always),
    ("OnFailure", RestartPolicy::OnFailure),
    ("Never", RestartPolicy::Never),
];

#[test]
fn a_chain_of_init_containers_and_sidecars_starts_under_every_policy_and_listed_in_any_order() {
    for (word, policy) in POLICIES {
        for names in [
            ["one", "proxy", "two", "web"],
            ["web", "two", "proxy", "one"],
        ] {
            let mut world = pod(&[
                ("init", "one two"),
                ("sidecars", "proxy"),
                ("startup-order", "one proxy two"),
                ("restart-policy", word),
                PROBE,
            ])
            .script("one", ends(1_500, 0))
            .script("two", ends(700, 0));
            let mut kubelet = Kubelet::new(policy, secs(30), &regular(&names));
            kubelet.run_for(&mut world, secs(60));
            assert!(runs(&world, &kubelet, "web"), "{word}: {:#?}", world.seen);
            // Kubelet has no reason to start anything anew.
            assert!(names.iter().all(|name| kubelet.creations(name) == 1));
            assert_eq!(kubelet.start_errors, 0);
        }
    }
}

#[test]
fn a_job_with_a_sidecar_completes() {
    for (word, policy) in &POLICIES[1..] {
        let mut world = pod(&[
            ("init", "setup"),
            ("sidecars", "proxy"),
            ("apps", "work"),
            ("restart-policy", word),
            PROBE,
        ])
        .script("setup", ends(300, 0))
        .script("work", ends(5_000, 0));
        let mut kubelet = Kubelet::new(*policy, secs(30), &regular(&["proxy", "setup", "work"]));
        kubelet.run_for(&mut world, secs(60));
        assert!(kubelet.is_over(), "{word}: {:#?}", world.seen);
        for name in ["proxy", "setup", "work"] {
            assert_eq!(kubelet.code(name), Some(0), "{name} under {word}");
            assert_eq!(kubelet.creations(name), 1, "{name} under {word}");
        }
    }
}

#[test]
fn an_init_container_that_fails_is_restarted_by_kubelet_until_it_succeeds() {
    let mut world = pod(&[("init", "setup"), ("restart-policy", "OnFailure")])
        .script("setup", ends(300, 1))
        .script("setup#3", ends(300, 0));
    let mut kubelet = Kubelet::new(
        RestartPolicy::OnFailure,
        secs(30),
        &regular(&["setup", "web"]),
    );
    kubelet.run_for(&mut world, secs(60));
    assert_eq!(kubelet.creations("setup"), 3);
    assert!(runs(&world, &kubelet, "web"), "{:#?}", world.seen);
}

#[test]
fn with_kubelets_own_init_containers_and_sidecars_nothing_waits_twice() {
    let mut world = pod(&[
        ("native-init", "setup mesh"),
        ("sidecars", "proxy"),
        ("restart-policy", "Always"),
        PROBE,
    ])
    .script("setup", ends(2_000, 0));
    let spec = [
        ("setup", Kind::NativeInit),
        ("mesh", Kind::NativeSidecar),
        ("proxy", Kind::Regular),
        ("web", Kind::Regular),
    ];
    let mut kubelet = Kubelet::new(RestartPolicy::Always, secs(30), &spec);
    kubelet.run_for(&mut world, secs(20));
    assert!(runs(&world, &kubelet, "web") && runs(&world, &kubelet, "mesh"));
    let asked = world.now;
    kubelet.delete(&world);
    kubelet.run_for(&mut world, secs(20));
    assert_eq!(alive(&world), Vec::<&crate::lifecycle::ContainerId>::new());
    assert!(world.died("proxy") <= world.signalled("mesh"));
    assert!(
        world.died("mesh").unwrap() < asked.after(secs(5)),
        "{:#?}",
        world.seen
    );
}

#[derive(Clone, Debug)]
struct Case {
    inits: usize,
    sidecars: usize,
    apps: usize,
    policy: usize,
    serial: bool,
    mode: &'static str,
    order: Vec<&'static str>,
    scripts: Vec<Script>,
}

const INITS: [&str; 2] = ["one", "two"];
const SIDECARS: [&str; 3] = ["proxy", "logs", "mesh"];
const APPS: [&str; 3] = ["web", "api", "worker"];

fn case() -> impl Strategy<Value = Case> {
    let shape = (0_usize..=2, 1_usize..=3, 1_usize..=3, 0_usize..3);
    let mode = prop::sample::select(vec!["Auto", "Hold"]);
    (
        shape,
        any::<bool>(),
        mode,
        prop::collection::vec((0_u64..8_000, 0_u64..4_000), 8),
    )
        .prop_flat_map(|((inits, sidecars, apps, policy), serial, mode, times)| {
            let names: Vec<_> = INITS[..inits]
                .iter()
                .chain(&SIDECARS[..sidecars])
                .chain(&APPS[..apps])
                .copied()
                .collect();
            let scripts = times.iter().enumerate().map(|(n, (ready, stops))| Script {
                ready_after: Some(ms(*ready)),
                stops_after: Some(ms(*stops)),
                exits_after: (n < 2).then(|| (ms(*ready), 0)),
                ..Script::default()
            });
            let scripts: Vec<_> = scripts.collect();
            Just(names).prop_shuffle().prop_map(move |order| Case {
                inits,
                sidecars,
                apps,
                policy,
                serial,
                mode,
                order,
                scripts: scripts.clone(),
            })
        })
}

impl Case {
    fn run(&self) -> (crate::simulator::World, Kubelet) {
        let (inits, sidecars) = (
            INITS[..self.inits].join(" "),
            SIDECARS[..self.sidecars].join(" "),
        );
        let (word, policy) = POLICIES[self.policy];
        let mut annotations = vec![
            ("sidecars", sidecars.as_str()),
            ("start-mode", self.mode),
            ("restart-policy", word),
            PROBE,
        ];
        if self.inits > 0 {
            annotations.push(("init", &inits));
        }
        let order = format!("{} {inits}", sidecars);
        if self.serial {
            annotations.push(("startup-order", order.trim()));
        }
        let mut world = pod(&annotations);
        let scripted = INITS.iter().chain(&SIDECARS).chain(&APPS);
        for (name, script) in scripted.zip(&self.scripts) {
            world = world.script(name, script.clone());
        }
        (world, Kubelet::new(policy, secs(20), &regular(&self.order)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn kubelet_gets_every_pod_up_without_a_restart(case in case()) {
        let (mut world, mut kubelet) = case.run();
        kubelet.run_for(&mut world, secs(240));
        for name in SIDECARS[..case.sidecars].iter().chain(&APPS[..case.apps]) {
            prop_assert!(runs(&world, &kubelet, name), "{name} does not run: {:#?}", world.seen);
        }
        for name in &case.order {
            prop_assert_eq!(kubelet.creations(name), 1, "{}: {:#?}", name, world.seen);
        }
        prop_assert_eq!(kubelet.start_errors, 0);
        prop_assert_eq!(world.pod.phase(), Phase::Running);
        let last_init = INITS[..case.inits].iter().map(|name| world.died(name).unwrap()).max();
        for app in &APPS[..case.apps] {
            prop_assert!(world.executed(app) >= last_init);
        }
    }

    #[test]
    fn kubelet_gets_rid_of_every_pod_at_any_moment(case in case(), moment in 0_u64..40_000) {
        let (mut world, mut kubelet) = case.run();
        kubelet.run_for(&mut world, ms(moment));
        world.seen.clear();
        let mut kubelet = kubelet.deaf();
        let ran: Vec<_> = case.order.iter().filter(|name| world.is_executing(name)).collect();
        let asked = world.now;
        kubelet.delete(&world);
        kubelet.run_for(&mut world, secs(180));
        prop_assert!(alive(&world).is_empty(), "{:?} live: {:#?}", alive(&world), world.seen);
        for sidecar in SIDECARS.iter().filter(|name| ran.contains(name)) {
            let Some(signalled) = world.signalled(sidecar) else { continue };
            let deadline = asked.after(secs(20));
            for app in APPS.iter().filter(|name| ran.contains(name)) {
                if let Some(died) = world.died(app) {
                    prop_assert!(signalled >= died.min(deadline), "{sidecar} before {app}: {:#?}", world.seen);
                }
            }
        }
    }
}
