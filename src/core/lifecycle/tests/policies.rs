//! The five grace policies, in pods whose containers use all the time that they get.

use std::time::Duration;

use proptest::prelude::*;

use crate::lifecycle::{HookKind, Phase, Time};
use crate::plan::Signal;

use super::fixtures::{TERM, ask_all, deaf, running, stops_after};
use crate::simulator::{Call, Script, Seen, World, ms, secs};

/// Grace policies, and the seconds by which a termination may exceed the grace period under each.
const POLICIES: [(&str, u64); 5] = [
    ("Shared", 2),
    ("Reserve", 2),
    ("Overrun", 8),
    ("SkipHooks", 4),
    ("Strict", 0),
];
const ALL: [&str; 5] = ["proxy", "logs", "web", "before", "after"];
const GRACE: Duration = secs(8);

/// Time between SIGKILL and the exit of a process, summed over all five steps.
const DYING: Duration = ms(5);

fn pod(policy: &'static str, scripts: [Script; 5]) -> World {
    let mut world = World::new(&[
        ("sidecars", "proxy logs"),
        ("startup-order", "proxy logs"),
        ("pre-exit", "before"),
        ("post-exit", "after"),
        ("grace-period", "8s"),
        ("grace-policy", policy),
        ("termination-hook.usher/web", r#"{"sleep":{"seconds":1}}"#),
    ]);
    for (name, script) in ALL.iter().zip(scripts) {
        world = world.script(name, script);
    }
    running(world, &ALL)
}

fn hangs() -> Script {
    Script {
        hook_takes: secs(1_000),
        ..deaf()
    }
}

/// Deletes a pod in which no container exits before SIGKILL. Returns the world and the time of the
/// deletion.
fn delete_a_deaf_one(policy: &'static str) -> (World, Time) {
    let mut world = pod(policy, std::array::from_fn(|_| hangs()));
    let asked = world.now;
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(120));
    (world, asked)
}

fn seconds(world: &World, asked: Time, at: Option<Time>) -> u64 {
    let at = at.unwrap_or_else(|| panic!("{:#?}", world.seen));
    at.since(asked).as_secs()
}

#[test]
fn everything_has_ended_within_the_worst_case_and_uses_it() {
    for (policy, beyond) in POLICIES {
        let (world, asked) = delete_a_deaf_one(policy);
        let last = ALL.iter().filter_map(|name| world.died(name)).max();
        let worst = asked.after(GRACE + secs(beyond));
        assert!(last >= Some(worst), "{policy}: {last:?}");
        assert!(last <= Some(worst.after(DYING)), "{policy}: {last:?}");
        assert_eq!(world.pod.phase(), Phase::Terminated);
        world.check_end();
    }
}

#[test]
fn shared_gives_everything_to_the_first_and_everybody_two_seconds_at_the_end() {
    let (world, asked) = delete_a_deaf_one("Shared");
    let end = asked.after(GRACE);
    for name in ["proxy", "logs", "web"] {
        let expected = [(end, TERM), (end.after(secs(2)), Signal::KILL)];
        assert_eq!(world.signals(name), expected, "{name}");
    }
    assert_eq!(world.executed("before"), None);
}

#[test]
fn reserve_keeps_two_seconds_for_each_later_step() {
    let (world, asked) = delete_a_deaf_one("Reserve");
    // The hooks have two seconds: the grace period of eight seconds minus the reserve of six. Each
    // later step has two seconds.
    let released = world.at(&Seen::Released("before".into()));
    assert_eq!(seconds(&world, asked, released), 2);
    assert_eq!(seconds(&world, asked, world.signalled("web")), 4);
    let released = world.at(&Seen::Released("after".into()));
    assert_eq!(seconds(&world, asked, released), 6);
    // The sidecars share the two seconds of their step: the second sidecar gets its signal after
    // one second.
    assert_eq!(seconds(&world, asked, world.signalled("logs")), 8);
    assert_eq!(seconds(&world, asked, world.signalled("proxy")), 9);
    let killed = world.signals("logs").last().copied().unwrap();
    assert_eq!(killed.1, Signal::KILL);
    assert_eq!(seconds(&world, asked, Some(killed.0)), 10);
}

#[test]
fn overrun_gives_each_later_step_two_seconds_beyond_the_end() {
    let (world, asked) = delete_a_deaf_one("Overrun");
    let released = world.at(&Seen::Released("before".into()));
    assert_eq!(seconds(&world, asked, released), 8);
    assert_eq!(seconds(&world, asked, world.signalled("web")), 10);
    assert_eq!(seconds(&world, asked, world.signalled("logs")), 14);
}

#[test]
fn skip_hooks_leaves_out_hooks_without_time() {
    let (world, asked) = delete_a_deaf_one("SkipHooks");
    for name in ["before", "after"] {
        assert_eq!(world.executed(name), None);
        assert_eq!(world.reported(name), Some(0));
    }
    assert_eq!(seconds(&world, asked, world.signalled("web")), 8);
    assert_eq!(seconds(&world, asked, world.signalled("logs")), 10);
    // If there is enough time, the defer containers run.
    let script = || Script {
        exits_after: Some((ms(100), 0)),
        ..Script::default()
    };
    let stops = || stops_after(100);
    let mut world = pod("SkipHooks", [stops(), stops(), stops(), script(), script()]);
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(20));
    assert!(world.executed("before").is_some() && world.executed("after").is_some());
}

#[test]
fn strict_kills_containers_without_time() {
    let (world, asked) = delete_a_deaf_one("Strict");
    let end = asked.after(GRACE);
    for name in ["proxy", "logs", "web"] {
        let signals = world.signals(name);
        assert_eq!(signals.len(), 1, "{name}: {signals:?}");
        assert_eq!(signals[0].1, Signal::KILL);
        assert!(signals[0].0 >= end && signals[0].0 <= end.after(DYING));
    }
    // Sidecars that are killed at the end of the grace period report no failure.
    assert_eq!(
        [world.reported("proxy"), world.reported("logs")],
        [Some(0); 2]
    );
    // If the caller kills a sidecar before the sidecar's turn to stop, the sidecar gets SIGKILL at
    // once, without a stop signal before.
    let mut world = pod("Strict", std::array::from_fn(|_| hangs()));
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(1));
    world.call(Call::Kill("proxy", Signal::KILL, None));
    assert_eq!(world.signals("proxy"), [(world.now, Signal::KILL)]);
}

#[test]
fn reserve_is_strict_if_the_caller_gives_less_than_the_reserve() {
    let mut world = pod("Reserve", std::array::from_fn(|_| hangs()));
    let asked = world.now;
    for name in ALL {
        world.call(Call::Kill(name, TERM, Some(ms(124_990))));
    }
    world.run_for(secs(60));
    let last = ALL.iter().filter_map(|name| world.died(name)).max();
    assert!(last <= Some(asked.after(secs(5)).after(DYING)), "{last:?}");
}

#[test]
fn answers_of_held_requests_are_withheld_as_long_as_the_policy_needs_it() {
    for (policy, withheld) in [
        ("Shared", 2),
        ("Reserve", 2),
        ("Overrun", 8),
        ("SkipHooks", 4),
        ("Strict", 0),
    ] {
        let mut world = pod(policy, std::array::from_fn(|_| hangs()));
        let asked = world.now;
        for name in ALL {
            world.call(Call::Kill(name, TERM, Some(secs(128))));
        }
        world.run_for(secs(60));
        let answers = world.seen.iter().filter_map(|(at, seen)| match seen {
            Seen::KillAnswered(_, Ok(())) => Some(*at),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        assert_eq!(answers.len(), ALL.len());
        let expected = asked.after(secs(withheld));
        assert!(
            answers.iter().all(|at| *at == expected),
            "{policy}: {answers:?}"
        );
        world.check_end();
    }
}

#[test]
fn a_request_that_is_delivered_is_answered() {
    let quick = || Script {
        hook_takes: ms(1),
        exits_after: None,
        ..stops_after(3_000)
    };
    let ends = || Script {
        exits_after: Some((ms(500), 0)),
        ..Script::default()
    };
    let mut world = pod("Overrun", [quick(), quick(), quick(), ends(), ends()]);
    world.call(Call::Kill("web", TERM, Some(secs(128))));
    world.call(Call::Kill("before", TERM, Some(secs(128))));
    world.run_for(secs(30));
    let told = world.signalled("web").unwrap();
    let answered = |at: &Time| {
        let answers = world.seen.iter();
        answers
            .filter(|(when, seen)| when == at && matches!(seen, Seen::KillAnswered(..)))
            .count()
    };
    // `web` gets its stop signal when `before` exits. At this moment the shim answers both stop
    // requests: `web` has got its signal, and `before` has exited.
    assert_eq!(answered(&told), 2, "{:#?}", world.seen);
}

#[test]
fn an_answer_is_never_later_than_its_caller_waits() {
    let mut world = pod("Overrun", std::array::from_fn(|_| hangs()));
    let asked = world.now;
    world.call(Call::Kill("web", TERM, Some(secs(13))));
    world.call(Call::Kill("logs", TERM, Some(secs(13))));
    world.run_for(secs(30));
    let last = world.seen.iter().rev().find_map(|(at, seen)| match seen {
        Seen::KillAnswered(..) => Some(*at),
        _ => None,
    });
    assert_eq!(last, Some(asked.after(secs(3))));
}

#[test]
fn hooks_come_first_side_by_side_and_are_waited_for() {
    let hooked = |takes: u64| Script {
        hook_takes: ms(takes),
        ..stops_after(50)
    };
    let world = World::new(&[
        ("sidecars", "proxy"),
        (
            "termination-hook.usher/web",
            r#"{"exec":{"command":["/bye"]}}"#,
        ),
        ("termination-hook.usher/proxy", r#"{"httpGet":{"port":80}}"#),
    ]);
    let world = world
        .script("web", hooked(700))
        .script("proxy", hooked(1_500));
    let mut world = running(world, &["proxy", "web", "api"]);
    let asked = world.now;
    ask_all(&mut world, &["proxy", "web", "api"], TERM);
    world.run_for(secs(10));
    let recognised = asked.after(ms(10));
    for name in ["web", "proxy"] {
        let began = world.at(&Seen::HookBegan(name.into(), HookKind::Termination));
        assert_eq!(began, Some(recognised), "{name}");
    }
    let over = recognised.after(ms(1_500));
    assert_eq!(world.signalled("web"), Some(over));
    assert_eq!(world.signalled("api"), Some(over));
    world.check_end();
}

#[test]
fn a_lone_app_runs_its_hook_before_its_signal_where_nothing_can_tell_them_apart() {
    let world = World::new(&[
        ("apps", "web"),
        ("termination-hook.usher/web", r#"{"sleep":{"seconds":3}}"#),
    ]);
    let script = Script {
        hook_takes: secs(3),
        ..stops_after(50)
    };
    let mut world = running(world.script("web", script), &["web"]);
    let asked = world.now;
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(10));
    assert_eq!(world.signalled("web"), Some(asked.after(secs(3))));
    // If there is a second container, the request for `web` stops `web` alone, and the hook of
    // `web` does not run.
    let world = World::new(&[
        ("apps", "web api"),
        ("termination-hook.usher/web", r#"{"sleep":{"seconds":3}}"#),
    ]);
    let mut world = running(world, &["web", "api"]);
    let asked = world.now;
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(10));
    assert_eq!(world.signalled("web"), Some(asked.after(secs(1))));
    assert_eq!(
        world.at(&Seen::HookBegan("web".into(), HookKind::Termination)),
        None
    );
}

#[test]
fn a_lone_apps_hook_leaves_it_time_to_stop() {
    let world = World::new(&[
        ("apps", "web"),
        ("grace-period", "6s"),
        ("termination-hook.usher/web", r#"{"sleep":{"seconds":60}}"#),
    ]);
    let mut world = running(world.script("web", hangs()), &["web"]);
    let asked = world.now;
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(10));
    // Because the pod terminates, each container gets two more seconds at the end of the grace
    // period.
    assert_eq!(world.signalled("web"), Some(asked.after(secs(6))));
    assert_eq!(world.died("web"), Some(asked.after(secs(8)).after(ms(1))));
}

#[test]
fn the_shim_runs_pre_stop_handlers_in_terminations_that_it_decides() {
    let facts = |seconds: u64| {
        crate::plan::KubeletFacts::read(
            &[(
                "io.kubernetes.container.preStopHandler".to_owned(),
                format!(r#"{{"httpGet":{{"path":"/bye","port":{seconds}}}}}"#),
            )]
            .into(),
        )
    };
    let pod = || {
        let world = World::new(&[
            ("sidecars", "proxy"),
            ("apps", "work"),
            ("restart-policy", "Never"),
        ]);
        let script = Script {
            hook_takes: secs(2),
            ..stops_after(50)
        };
        world
            .facts("proxy", facts(80))
            .script("proxy", script)
            .script(
                "work",
                Script {
                    exits_after: Some((secs(5), 0)),
                    ..Script::default()
                },
            )
    };
    let mut world = pod();
    for name in ["proxy", "work"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(30));
    let done = world.died("work").unwrap();
    assert_eq!(
        world.at(&Seen::HookBegan("proxy".into(), HookKind::PreStop)),
        Some(done)
    );
    assert_eq!(world.signalled("proxy"), Some(done.after(secs(2))));
    // If the pod is deleted, the shim runs no preStop handlers, because kubelet runs them itself.
    let mut world = running(pod().script("work", stops_after(10)), &["proxy", "work"]);
    ask_all(&mut world, &["proxy", "work"], TERM);
    world.run_for(secs(30));
    assert_eq!(
        world.at(&Seen::HookBegan("proxy".into(), HookKind::PreStop)),
        None
    );
}

#[test]
fn a_cap_of_its_own_ends_the_stop_of_one_container() {
    let world = World::new(&[("sidecars", "proxy"), ("grace-period.usher/web", "3s")]);
    let mut world = running(world.script("web", deaf()), &["proxy", "web"]);
    let asked = world.now;
    ask_all(&mut world, &["web", "proxy"], TERM);
    world.run_for(secs(20));
    assert_eq!(
        world.signals("web")[1],
        (asked.after(secs(3)), Signal::KILL)
    );
    assert_eq!(world.signalled("proxy"), world.died("web"));
    // The limit of three seconds also holds for a container that is stopped alone.
    let world = World::new(&[("sidecars", "proxy"), ("grace-period.usher/web", "3s")]);
    let mut world = running(world.script("web", deaf()), &["proxy", "web"]);
    let asked = world.now;
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(20));
    assert_eq!(
        world.signals("web")[1],
        (asked.after(secs(3)), Signal::KILL)
    );
}

const INTERVAL: (&str, &str) = ("grace-extension", r#"{"intervalSeconds":3,"count":4}"#);
const PROBED: (&str, &str) = ("grace-extension", r#"{"probe":true,"maxSeconds":60}"#);
const LIVENESS: (&str, &str) = (
    "liveness-probe.usher/bye",
    r#"{"tcpSocket":{"port":80},"periodSeconds":2}"#,
);

fn extended(more: &[(&'static str, &'static str)], bye: Script) -> (World, Time) {
    let mut annotations = vec![
        ("sidecars", "proxy"),
        ("pre-exit", "bye"),
        ("grace-period", "5s"),
    ];
    annotations.extend_from_slice(more);
    let world = World::new(&annotations).script("bye", bye);
    let mut world = running(world, &["proxy", "web", "bye"]);
    let asked = world.now;
    for name in ["proxy", "web", "bye"] {
        world.call(Call::Kill(name, TERM, Some(secs(125))));
    }
    world.run_for(secs(200));
    world.check_end();
    (world, asked)
}

#[test]
fn a_defer_at_work_is_extended_so_many_times_by_so_much() {
    let (world, asked) = extended(&[INTERVAL], deaf());
    // The stop signal comes after the grace period of 5 s and four extensions of 3 s. SIGKILL
    // follows two seconds later.
    let end = asked.after(secs(17));
    let expected = [(end, TERM), (end.after(secs(2)), Signal::KILL)];
    assert_eq!(world.signals("bye"), expected);
    assert_eq!(world.signalled("web"), world.died("bye"));
    // If the defer container exits sooner, each later step still has its two seconds.
    let done = Script {
        exits_after: Some((secs(10), 0)),
        ..Script::default()
    };
    let (world, _) = extended(&[INTERVAL], done);
    assert_eq!(world.signals("bye"), []);
    assert_eq!(world.signalled("web"), world.died("bye"));
    assert_eq!(world.signalled("proxy"), world.died("web"));
    assert_eq!(world.signals("proxy").len(), 1);
}

#[test]
fn a_defer_is_extended_as_long_as_its_probe_succeeds() {
    let unwell = Script {
        unwell_after: Some(secs(20)),
        ..deaf()
    };
    let (world, asked) = extended(&[PROBED, LIVENESS], unwell);
    let told = world.signalled("bye").unwrap();
    assert!(
        told >= asked.after(secs(19)) && told <= asked.after(secs(24)),
        "{told}"
    );
    // If the probe never fails, the defer container gets more time up to the bound, and not beyond.
    let (world, asked) = extended(&[PROBED, LIVENESS], deaf());
    let told = world.signalled("bye").unwrap();
    assert_eq!(told, asked.after(secs(65)));
}

#[test]
fn an_attempt_that_hangs_carries_no_extension_beyond_its_bound() {
    let hangs = Script {
        probe_takes: secs(25),
        ..deaf()
    };
    let annotations = [
        ("sidecars", "proxy"),
        ("pre-exit", "bye"),
        ("grace-period", "5s"),
        ("grace-extension", r#"{"probe":true,"maxSeconds":1}"#),
        (
            "liveness-probe.usher/bye",
            r#"{"tcpSocket":{"port":80},"periodSeconds":2,"timeoutSeconds":25}"#,
        ),
    ];
    // The test is run twice: kubelet ends the pod, or `usher stop` ends it and the caller sends no
    // Kill.
    for is_decided in [false, true] {
        let world = World::new(&annotations).script("bye", hangs.clone());
        let mut world = running(world, &["proxy", "web", "bye"]);
        let asked = world.now;
        if is_decided {
            world.stop(None);
        } else {
            for name in ["proxy", "web", "bye"] {
                world.call(Call::Kill(name, TERM, Some(secs(125))));
            }
        }
        world.run_for(secs(100));
        let end = asked.after(secs(6));
        let expected = [(end, TERM), (end.after(secs(2)), Signal::KILL)];
        assert_eq!(world.signals("bye"), expected, "decided: {is_decided}");
        assert_eq!(world.signalled("web"), world.died("bye"));
        world.check_end();
    }
}

#[test]
fn a_sigkill_ends_an_extension() {
    let annotations = [("pre-exit", "bye"), ("grace-period", "5s"), INTERVAL];
    let mut world = running(
        World::new(&annotations).script("bye", deaf()),
        &["web", "bye"],
    );
    ask_all(&mut world, &["web", "bye"], TERM);
    world.run_for(secs(8));
    world.call(Call::Kill("bye", Signal::KILL, None));
    assert_eq!(world.signals("bye"), [(world.now, Signal::KILL)]);
    world.run_for(secs(3));
    assert!(world.died("web").is_some());
}

#[test]
fn in_a_pod_that_may_be_extended_answers_wait_until_its_last_defer_has_ended() {
    let (world, asked) = extended(&[PROBED, LIVENESS], deaf());
    let answers = world.seen.iter().filter_map(|(at, seen)| match seen {
        Seen::KillAnswered(_, Ok(())) => Some(*at),
        _ => None,
    });
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers.len(), 3);
    let ended = world.died("bye").unwrap();
    assert!(answers.iter().all(|at| *at >= ended), "{answers:?} {ended}");
    assert!(answers.iter().all(|at| *at <= asked.after(secs(115))));
}

fn script() -> impl Strategy<Value = Script> {
    let stops = prop_oneof![3 => (0_u64..6_000).prop_map(Some), 1 => Just(None)];
    let exits = prop::option::of((0_u64..6_000, 0_u8..2));
    (stops, exits, 0_u64..12_000, 0_u64..20).prop_map(|(stops, exits, hook, release)| Script {
        stops_after: stops.map(ms),
        exits_after: exits.map(|(after, code)| (ms(after), code)),
        hook_takes: ms(hook),
        release_takes: ms(release),
        ..Script::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pod_ends_in_its_steps_and_within_its_worst_case(
        which in 0_usize..POLICIES.len(),
        mut scripts in prop::collection::vec(script(), 5),
    ) {
        let (policy, beyond) = POLICIES[which];
        for script in &mut scripts[..3] {
            script.exits_after = None;
        }
        let mut world = pod(policy, scripts.try_into().unwrap());
        let asked = world.now;
        ask_all(&mut world, &ALL, TERM);
        world.run_for(secs(120));
        let worst = asked.after(GRACE + secs(beyond) + DYING + ms(60));
        for name in ALL {
            let died = world.died(name);
            prop_assert!(died.is_some() && died <= Some(worst), "{policy}: {name} {died:?}: {:#?}", world.seen);
        }
        // Under `Shared` and `Strict`, the steps keep their order only until the end of the grace
        // period.
        let deadline = match policy {
            "Shared" | "Strict" => asked.after(GRACE),
            _ => worst,
        };
        let order = [&["before"][..], &["web"], &["after"], &["logs"], &["proxy"]];
        for pair in order.windows(2) {
            let (first, then) = (pair[0][0], pair[1][0]);
            if world.executions(first).is_empty() && ["before", "after"].contains(&first) {
                continue;
            }
            let began = world.executed(then).filter(|_| then == "after").or(world.signalled(then));
            let Some(began) = began else { continue };
            let bound = match (first, then) {
                // When the time of a step is over, its containers are signaled without waiting for
                // each other.
                ("logs", "proxy") if policy != "Shared" && policy != "Strict" => continue,
                _ => world.died(first).unwrap().min(deadline),
            };
            prop_assert!(began >= bound, "{policy}: {then} before {first} has ended: {:#?}", world.seen);
        }
        world.check_end();
    }
}

/// A forced deletion kills the sandbox at the same time as the containers.
#[test]
fn after_an_early_sigkill_the_death_of_the_sandbox_takes_no_sidecar_its_last_chance() {
    let world = World::new(&[("sidecars", "proxy"), ("grace-policy", "Reserve")])
        .script("web", deaf())
        .script("proxy", stops_after(1_500))
        .with_sandbox();
    let mut world = running(world, &["proxy", "web"]);
    for name in ["proxy", "web"] {
        world.call(Call::Kill(name, TERM, Some(secs(150))));
    }
    world.run_for(secs(2));
    for name in ["web", "proxy"] {
        world.call(Call::Kill(name, Signal::KILL, Some(secs(120))));
    }
    world.run_for(ms(5));
    world.call(Call::Crash("pause", 137));
    world.run_for(secs(10));
    let signals: Vec<_> = world
        .signals("proxy")
        .iter()
        .map(|(_, signal)| *signal)
        .collect();
    assert_eq!(signals, [TERM], "{:#?}", world.seen);
}
