//! Sequences of events in which a shim easily breaks the rules of starting and running containers.

use crate::lifecycle::{Phase, Refusal};
use crate::plan::{KubeletFacts, PreStop, Signal};

use super::fixtures::{TERM, ask_all, broken, deaf, running, stops_after};
use crate::simulator::{Call, Node, Script, World, ms, secs};

const QUICK_PROBE: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":1000}"#,
);

fn ends(after: u64, code: u8) -> Script {
    Script {
        exits_after: Some((ms(after), code)),
        ..Script::default()
    }
}

fn job(policy: &'static str, more: &[(&'static str, &'static str)]) -> World {
    let mut annotations = vec![("sidecars", "proxy"), ("restart-policy", policy)];
    annotations.extend_from_slice(more);
    World::new(&annotations)
}

#[test]
fn an_init_container_that_exits_after_a_stop_signal_is_not_done() {
    let world = World::new(&[("init", "migrate")]).script("migrate", stops_after(5));
    let mut world = world;
    world.call(Call::Run("migrate", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(20));
    // The pod is deleted, and kubelet's requests are ten milliseconds apart.
    ask_all(&mut world, &["migrate", "web"], TERM);
    world.run_for(secs(5));
    assert_eq!(world.executed("web"), None, "{:#?}", world.seen);
    assert_eq!(world.reported("web"), Some(143));
}

#[test]
fn an_init_container_that_is_stopped_under_on_failure_is_not_left_out_of_the_next_sandbox() {
    let mut world = World::new(&[("init", "migrate"), ("restart-policy", "OnFailure")])
        .with_sandbox()
        .script("migrate", stops_after(300));
    for name in ["migrate", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(20));
    world.call(Call::Crash("pause", 137));
    world.run_for(secs(5));
    assert_eq!(world.reported("migrate"), Some(143), "{:#?}", world.seen);
}

#[test]
fn an_init_container_that_died_before_its_program_ran_has_not_succeeded() {
    let mut world = World::new(&[("init", "one two")]).script("one", ends(10_000, 0));
    for name in ["one", "two", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(1));
    world.call(Call::Crash("two", 0));
    world.run_for(secs(60));
    assert_eq!(world.executed("two"), None);
    assert_eq!(world.executed("web"), None, "{:#?}", world.seen);
}

#[test]
fn under_never_an_init_container_that_cannot_be_created_ends_the_pod() {
    let mut world = World::new(&[("init", "migrate"), ("restart-policy", "Never")])
        .with_sandbox()
        .script("migrate", broken());
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    world.call(Call::Run("migrate", None));
    world.run_for(secs(1));
    assert_eq!(world.reported("web"), Some(1), "{:#?}", world.seen);
    assert!(world.told("web").join(" ").contains("migrate failed"));
}

#[test]
fn an_older_init_container_counts_again_when_the_newer_one_could_not_be_created() {
    let mut world = World::new(&[("init", "migrate")])
        .script("migrate", ends(2_000, 0))
        .script("migrate#2", broken());
    world.call(Call::Run("migrate", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    world.call(Call::Run("migrate#2", None));
    world.run_for(secs(5));
    assert!(world.is_executing("web"), "{:#?}", world.seen);
}

#[test]
fn the_success_of_an_older_init_container_is_not_that_of_its_successor() {
    let mut world = World::new(&[("init", "migrate")])
        .script("migrate", ends(2_000, 0))
        .script("migrate#2", ends(6_000, 0));
    world.call(Call::Run("migrate", None));
    world.run_for(secs(1));
    world.call(Call::Run("migrate#2", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(4));
    assert_eq!(world.executed("web"), None, "{:#?}", world.seen);
    world.run_for(secs(4));
    assert!(world.is_executing("web"));
}

#[test]
fn an_init_container_that_was_killed_as_the_first_of_a_deleted_pod_has_not_ended_it() {
    let pre_stop = KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: vec!["/bin/bye".to_owned()],
        }),
        ..KubeletFacts::default()
    };
    let mut world = World::new(&[
        ("init", "migrate"),
        ("sidecars", "proxy logs"),
        ("startup-order", "proxy logs migrate"),
        ("restart-policy", "Never"),
    ])
    .with_sandbox()
    .facts("proxy", pre_stop)
    .script("logs", stops_after(500));
    for name in ["proxy", "logs", "migrate", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(30));
    world.call(Call::Crash("migrate", 0));
    world.seen.clear();
    // The init container has run before. Now it is created again, and is killed when the other
    // containers are asked to stop.
    world.call(Call::Run("migrate#2", None));
    world.run_for(secs(1));
    ask_all(&mut world, &["migrate#2"], Signal::KILL);
    ask_all(&mut world, &["logs", "web"], Signal::QUIT);
    world.run_for(ms(600));
    assert_eq!(
        world.signals("web").first().map(|(_, signal)| *signal),
        Some(Signal::QUIT),
        "{:#?}",
        world.seen
    );
    // The shim has not yet seen the preStop handler of `proxy`.
    assert_eq!(world.signalled("proxy"), None, "{:#?}", world.seen);
}

#[test]
fn a_sidecar_that_dies_before_its_turn_to_stop_comes_back_though_it_was_asked() {
    let world = job("Never", &[]).script("web", stops_after(5_000));
    let mut world = running(world, &["proxy", "web"]);
    ask_all(&mut world, &["web", "proxy"], TERM);
    world.run_for(secs(1));
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    assert!(world.is_executing("proxy"), "{:#?}", world.seen);
    assert_eq!(world.reported("proxy"), None);
    world.run_for(secs(10));
    assert!(world.signalled("proxy") >= world.died("web"));
    assert_eq!(world.reported("proxy"), Some(0));
    world.check_end();
}

#[test]
fn a_sidecar_in_back_off_is_restarted_at_once_when_the_end_begins() {
    for asked in [&["web", "api", "proxy"][..], &["web", "api"]] {
        let world = job("Never", &[])
            .script("proxy", ends(500, 1))
            .script("web", stops_after(500))
            .script("api", stops_after(500));
        let mut world = world;
        for name in ["proxy", "web", "api"] {
            world.call(Call::Run(name, None));
        }
        world.run_for(secs(3));
        assert!(world.is_executing("web") && !world.is_alive("proxy"));
        let now = world.now;
        ask_all(&mut world, asked, TERM);
        world.run_for(secs(2));
        // In the second case kubelet has not asked the sidecar to stop. The sidecar then exits by
        // itself when its turn to stop has come, and reports its own code.
        let code = u32::from(asked.len() < 3);
        assert_eq!(world.reported("proxy"), Some(code), "{:#?}", world.seen);
        assert_eq!(world.pod.phase(), Phase::Terminated);
        let again: Vec<_> = world.executions("proxy");
        let again = again.iter().filter(|at| **at >= now).count();
        assert!(again > 0, "{:#?}", world.seen);
    }
}

#[test]
fn a_sidecar_that_dies_in_its_turn_to_stop_is_not_restarted() {
    let pre_stop = KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: vec!["/bin/bye".to_owned()],
        }),
        ..KubeletFacts::default()
    };
    let world = job("Never", &[]).facts("proxy", pre_stop);
    let mut world = running(world, &["proxy", "web", "api"]);
    ask_all(&mut world, &["web", "api"], TERM);
    world.run_for(secs(3));
    // The proxy's turn to stop has come, but kubelet has not begun the proxy's preStop handler.
    world.call(Call::Crash("proxy", 7));
    world.run_for(secs(1));
    assert_eq!(world.reported("proxy"), Some(7), "{:#?}", world.seen);
    assert_eq!(world.executions("proxy"), []);
}

#[test]
fn a_restart_in_place_does_not_change_the_order_of_stopping() {
    let world = World::new(&[
        ("sidecars", "net proxy"),
        ("startup-order", "net proxy"),
        ("restart-policy", "Never"),
    ])
    .script("proxy", stops_after(400));
    let mut world = running(world, &["net", "proxy", "web"]);
    world.call(Call::Crash("net", 1));
    world.run_for(secs(5));
    ask_all(&mut world, &["net", "proxy", "web"], TERM);
    world.run_for(secs(5));
    assert!(
        world.signalled("net") >= world.died("proxy"),
        "{:#?}",
        world.seen
    );
}

#[test]
fn a_failed_restart_is_no_exit_of_the_container() {
    let world = job("Never", &[]).script(
        "proxy",
        Script {
            restarts_fail: 1,
            ..Script::default()
        },
    );
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(30));
    assert_eq!(world.reported("proxy"), None, "{:#?}", world.seen);
    assert!(world.is_executing("proxy"));
}

#[test]
fn a_sidecar_that_is_killed_during_a_restart_that_fails_has_ended() {
    let world = job("Never", &[]).script(
        "proxy",
        Script {
            restarts_fail: 1,
            restart_takes: secs(3),
            ..Script::default()
        },
    );
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    world.call(Call::Kill("proxy", Signal::KILL, None));
    world.run_for(secs(60));
    assert!(world.reported("proxy").is_some(), "{:#?}", world.seen);
    assert_eq!(world.executions("proxy"), []);
    world.check_end();
}

#[test]
fn a_late_probe_result_does_not_count_for_the_next_execution() {
    let mut world = job("Never", &[QUICK_PROBE]).script(
        "proxy",
        Script {
            ready_after: Some(ms(950)),
            probe_takes: ms(90),
            ..Script::default()
        },
    );
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    // The sidecar crashes during a probe attempt that succeeds afterwards.
    world.run_for(ms(1_040));
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(10));
    let again = world.executions("proxy")[1];
    assert!(
        world.executed("web").unwrap() >= again.after(ms(950)),
        "{:#?}",
        world.seen
    );
}

#[test]
fn probes_that_flap_do_not_hold_back_what_comes_while_a_started_sidecar_is_down() {
    let world = job("OnFailure", &[QUICK_PROBE]).script(
        "proxy",
        Script {
            ready_after: Some(ms(700)),
            ..Script::default()
        },
    );
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(ms(100));
    world.call(Call::Crash("web", 1));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(5));
    let again = world.executions("proxy")[0];
    assert!(world.executed("web#2").unwrap() < again.after(ms(700)));
}

#[test]
fn under_on_failure_a_run_waits_for_a_stopped_app() {
    for apps in [&[("apps", "web")][..], &[]] {
        let mut world = running(job("OnFailure", apps), &["proxy", "web"]);
        // The liveness probe of `web` has failed, so kubelet stops `web`, and creates it again
        // despite exit code 0.
        world.call(Call::Kill("web", TERM, None));
        world.run_for(secs(2));
        assert_eq!(world.reported("web"), Some(0));
        world.call(Call::Delete("web"));
        world.call(Call::Run("web#2", None));
        world.run_for(secs(60));
        assert!(world.is_executing("web#2"), "{:#?}", world.seen);
        assert!(world.is_executing("proxy"));
    }
}

#[test]
fn a_stopped_app_that_is_not_created_again_is_done() {
    for apps in [&[("apps", "web")][..], &[]] {
        let mut world = running(job("OnFailure", apps), &["proxy", "web"]);
        world.call(Call::Kill("web", TERM, None));
        world.run_for(secs(28));
        assert!(world.is_executing("proxy"), "{:#?}", world.seen);
        world.run_for(secs(5));
        assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    }
}

#[test]
fn a_stopped_essential_container_that_is_created_again_ends_no_pod() {
    let world = job("OnFailure", &[("essential", "web")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(30));
    world.call(Call::Kill("web", Signal::KILL, None));
    world.run_for(secs(1));
    assert_eq!(world.reported("web"), Some(137));
    assert!(world.is_executing("proxy"), "{:#?}", world.seen);
    world.call(Call::Delete("web"));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(120));
    assert!(world.is_executing("web#2") && world.is_executing("proxy"));
}

#[test]
fn a_stopped_essential_container_that_is_not_created_again_ends_the_pod() {
    let world = job("Never", &[("essential", "web"), ("apps", "web api")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(30));
    world.call(Call::Kill("web", Signal::KILL, None));
    world.run_for(secs(29));
    assert!(world.is_executing("api"));
    world.run_for(secs(5));
    assert!(!world.is_alive("api") && !world.is_alive("proxy"));
}

#[test]
fn an_essential_container_that_heeds_a_deletion_first_does_not_cut_the_others_short() {
    let world = job("Always", &[("essential", "web")])
        .script("web", deaf())
        .script("api", stops_after(700));
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(Call::Kill("web", TERM, None));
    world.call(Call::Crash("web", 143));
    ask_all(&mut world, &["proxy", "api"], Signal::QUIT);
    world.run_for(secs(5));
    let quit = world.signals("api").iter().all(|(_, s)| *s == Signal::QUIT);
    assert!(quit, "{:#?}", world.seen);
}

#[test]
fn a_run_is_not_complete_while_an_app_lives() {
    let world = job("Never", &[("apps", "web")]).script("web#2", broken());
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Run("web#2", None));
    world.run_for(secs(60));
    assert!(world.is_executing("web"), "{:#?}", world.seen);
    assert!(world.is_executing("proxy"));
}

#[test]
fn a_sidecar_that_is_started_when_the_run_is_complete_is_answered_and_ends_with_0() {
    let world = job(
        "OnFailure",
        &[("apps", "web"), ("restart.usher/proxy", "Never")],
    );
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    world.call(Call::Create("proxy#2"));
    world.run_for(secs(1));
    world.call(Call::Crash("web", 0));
    // The Start may come at any time.
    world.run_for(secs(40));
    assert_eq!(world.reported("proxy#2"), None, "{:#?}", world.seen);
    world.call(Call::Start("proxy#2", None));
    world.run_for(secs(1));
    let answer = world.start_answer("proxy#2").map(|(_, answer)| answer);
    assert_eq!(answer, Some(Ok(())), "{:#?}", world.seen);
    assert_eq!(world.reported("proxy#2"), Some(0), "{:#?}", world.seen);
    assert_eq!(world.executed("proxy#2"), None);
}

#[test]
fn under_on_failure_a_sidecar_that_stops_in_order_is_not_left_out_of_the_next_sandbox() {
    for policy in ["Mask", "Signal", "Propagate"] {
        let world = job(
            "OnFailure",
            &[("apps", "web"), ("sidecar-exit-code", policy)],
        );
        let mut world = running(world.script("web", deaf()), &["proxy", "web"]);
        ask_all(&mut world, &["proxy", "web"], TERM);
        world.run_for(secs(1));
        world.call(Call::Kill("web", Signal::KILL, None));
        world.run_for(secs(5));
        assert_eq!(
            world.reported("proxy"),
            Some(143),
            "{policy}: {:#?}",
            world.seen
        );
    }
}

#[test]
fn a_completed_init_container_does_not_keep_sidecars_from_stopping() {
    let world = World::new(&[("init", "migrate"), ("sidecars", "proxy logs")])
        .script("migrate", ends(200, 0));
    let mut world = running(world, &["migrate", "proxy", "logs"]);
    let asked = world.now;
    ask_all(&mut world, &["proxy", "logs"], TERM);
    world.run_for(secs(60));
    assert_eq!(world.reported("migrate"), Some(0));
    assert!(
        world.died("proxy") <= Some(asked.after(secs(1))),
        "{:#?}",
        world.seen
    );
}

#[test]
fn a_start_in_a_pod_that_failed_names_what_failed() {
    let mut world = World::new(&[("init", "migrate"), ("restart-policy", "Never")])
        .with_sandbox()
        .script("migrate", ends(100, 2));
    world.call(Call::Run("migrate", None));
    world.run_for(secs(1));
    world.call(Call::Delete("migrate"));
    world.call(Call::Create("web"));
    world.run_for(secs(1));
    world.call(Call::Start("web", None));
    world.run_for(secs(1));
    let refusal = world.start_answer("web").unwrap().1.unwrap_err();
    assert!(matches!(refusal, Refusal::Terminating { .. }), "{refusal}");
}

#[test]
fn sidecars_that_wait_to_be_restarted_end_one_after_another_without_a_wait() {
    let world = World::new(&[("sidecars", "a b c"), ("restart-policy", "Never")])
        .script("a", stops_after(100))
        .script("b", ends(200, 1))
        .script("c", ends(200, 1));
    let mut world = world;
    for name in ["a", "b", "c", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(5));
    let asked = world.now;
    ask_all(&mut world, &["a", "b", "c", "web"], TERM);
    world.run_for(secs(60));
    assert!(
        world.died("a") <= Some(asked.after(secs(1))),
        "{:#?}",
        world.seen
    );
}

#[test]
fn under_on_failure_a_run_whose_apps_may_not_all_have_come_is_not_complete() {
    let world = job("OnFailure", &[]).with_sandbox();
    let mut world = world;
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(5));
    // Kubelet was about to create the next app, whose image was still being pulled.
    world.call(Call::Crash("pause", 137));
    world.run_for(secs(5));
    assert_eq!(world.reported("web"), Some(0));
    assert_eq!(world.reported("proxy"), Some(143), "{:#?}", world.seen);
}

#[test]
fn under_on_failure_a_run_whose_apps_have_all_ended_with_0_is_complete_though_they_were_asked() {
    let world = job("OnFailure", &[("apps", "web")]).with_sandbox();
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("pause", 137));
    world.run_for(secs(5));
    // Neither container is needed in the next sandbox.
    assert_eq!(world.reported("web"), Some(0));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
}

#[test]
fn a_sidecar_that_exits_in_its_last_chance_before_its_turn_is_not_restarted() {
    let world = job("Never", &[]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    ask_all(&mut world, &["web", "proxy"], TERM);
    world.run_for(secs(1));
    // After this SIGKILL the proxy gets its stop signal and has two seconds. It exits sooner.
    world.call(Call::Kill("proxy", Signal::KILL, None));
    world.run_for(secs(1));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    assert_eq!(world.executions("proxy"), []);
}

#[test]
fn a_sidecar_that_dies_after_a_lone_request_is_not_restarted() {
    let mut world = running(job("Never", &[]), &["proxy", "web"]);
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(ms(300));
    assert_eq!(world.signalled("proxy"), None);
    world.call(Call::Crash("proxy", 4));
    world.run_for(secs(5));
    assert_eq!(world.reported("proxy"), Some(4), "{:#?}", world.seen);
    assert_eq!(world.executions("proxy"), []);
}

#[test]
fn a_run_is_not_complete_while_an_older_app_of_the_name_lives() {
    let mut world = running(job("Never", &[("apps", "web")]), &["proxy", "web", "web#2"]);
    world.call(Call::Crash("web#2", 0));
    world.run_for(secs(60));
    assert!(world.is_executing("web"), "{:#?}", world.seen);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(5));
    assert_eq!(world.reported("proxy"), Some(0));
}

#[test]
fn the_attempt_that_reaches_the_threshold_is_the_last() {
    let probe = r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":3}"#;
    let never_ready = Script {
        ready_after: None,
        ..Script::default()
    };
    let mut world = World::new(&[("sidecars", "proxy"), ("startup-probe.usher/proxy", probe)])
        .script("proxy", never_ready);
    world.call(Call::Run("proxy", None));
    world.run_for(secs(5));
    let executed = world.executed("proxy").unwrap();
    // The attempts are made at 0, 100 and 200 ms. The result of the last takes a millisecond more.
    assert_eq!(world.signalled("proxy"), Some(executed.after(ms(201))));
}

#[test]
fn a_sidecar_stopped_in_a_disproved_termination_is_not_restarted() {
    let world = job("Never", &[]).script("proxy", stops_after(3_000));
    let mut world = running(world, &["proxy", "web", "api"]);
    ask_all(&mut world, &["web", "api"], TERM);
    world.run_for(secs(2));
    // The sidecar got its stop signal without a stop request, because its turn to stop had come.
    assert!(world.signalled("proxy").is_some());
    world.call(Call::Run("job", None));
    world.run_for(secs(5));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    assert_eq!(world.executions("proxy"), []);
}

#[test]
fn a_held_container_that_cannot_be_released_ends_with_the_reason() {
    let stuck = Script {
        cannot_be_released: true,
        ..Script::default()
    };
    let mut world = World::new(&[("sidecars", "proxy")]).script("web", stuck);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    world.call(Call::Run("proxy", None));
    world.run_for(secs(1));
    assert_eq!(world.reported("web"), Some(1), "{:#?}", world.seen);
    assert!(world.told("web").join(" ").contains("it is stuck"));
    world.check_end();
}

const IMPATIENT_PROBE: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":5}"#,
);

/// The driver may report the failed execution before it reports the exit of the container's
/// process.
#[test]
fn a_held_container_that_is_killed_while_it_is_released_was_killed() {
    let slow = Script {
        release_takes: ms(100),
        cannot_be_released: true,
        ..Script::default()
    };
    let mut world = World::new(&[("sidecars", "proxy")]).script("web", slow);
    world.call(Call::Run("web", None));
    world.run_for(ms(100));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(30 + 1 + 99));
    world.call(Call::Kill("web", Signal::KILL, None));
    world.run_for(secs(1));
    assert_eq!(world.reported("web"), Some(137), "{:#?}", world.seen);
    assert_eq!(world.told("web"), Vec::<String>::new());
}

#[test]
fn each_execution_of_a_sidecar_has_its_own_startup_and_its_own_failure() {
    let never_ready = Script {
        ready_after: None,
        ..Script::default()
    };
    let mut world = job("Never", &[IMPATIENT_PROBE]).script("proxy", never_ready);
    world.call(Call::Run("proxy", None));
    world.run_for(secs(60));
    let lives = world.executions("proxy").len();
    assert!(lives > 2);
    assert_eq!(world.signals("proxy").len(), lives, "{:#?}", world.seen);
}

#[test]
fn a_sidecar_that_has_to_be_killed_after_its_startup_probe_failed_comes_back_too() {
    let deaf = Script {
        ready_after: None,
        ..deaf()
    };
    let mut world = job("Never", &[IMPATIENT_PROBE, ("grace-period", "1s")]).script("proxy", deaf);
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(ms(1_600));
    assert_eq!(world.executions("proxy").len(), 2, "{:#?}", world.seen);
    assert_eq!(world.reported("proxy"), None);
    // The previous execution has failed. The current execution does not count as failed.
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(10));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
}

#[test]
fn a_killed_sidecar_is_not_restarted_although_its_startup_probe_has_failed() {
    let deaf = Script {
        ready_after: None,
        ..deaf()
    };
    let mut world = job("Never", &[IMPATIENT_PROBE]).script("proxy", deaf);
    world.call(Call::Run("proxy", None));
    world.run_for(secs(1));
    world.call(Call::Kill("proxy", Signal::KILL, None));
    world.run_for(secs(60));
    assert_eq!(world.reported("proxy"), Some(137), "{:#?}", world.seen);
    assert_eq!(world.executions("proxy").len(), 1);
}

#[test]
fn init_containers_are_no_apps_that_have_done_their_work() {
    let world = job("Never", &[("init", "migrate")]).script("migrate", ends(200, 0));
    let mut world = world;
    world.call(Call::Run("migrate", None));
    world.call(Call::Run("proxy", None));
    world.run_for(secs(120));
    assert!(world.is_executing("proxy"), "{:#?}", world.seen);
}

#[test]
fn kubelets_own_sidecars_do_not_keep_a_run_from_being_complete() {
    let world = job("Never", &[("native-init", "mesh")]);
    let mut world = running(world, &["mesh", "proxy", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(5));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    assert!(world.is_executing("mesh"));
}

#[test]
fn a_guest_runs_in_a_pod_that_has_ended() {
    let mut world = running(job("Never", &[("apps", "web")]), &["proxy", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(5));
    assert_eq!(world.pod.phase(), Phase::Terminated);
    world.call(Call::Run("debugger", None));
    world.run_for(secs(1));
    assert!(world.is_executing("debugger"));
}

#[test]
fn the_success_of_an_init_container_outlasts_a_second_one_that_could_not_be_created() {
    let mut world = World::new(&[("init", "migrate")])
        .script("migrate", ends(500, 0))
        .script("migrate#2", broken());
    world.call(Call::Run("migrate", None));
    world.run_for(secs(2));
    world.call(Call::Run("migrate#2", None));
    world.run_for(secs(1));
    world.call(Call::Run("web", None));
    world.run_for(secs(2));
    assert!(world.is_executing("web"), "{:#?}", world.seen);
}
