//! Sidecars that the shim restarts in place, and sidecars that it does not restart.

use crate::lifecycle::{Action, ActionError, Refusal, RequestId, TaskStatus};
use crate::plan::Signal;
use crate::process::ExitStatus;

use super::fixtures::{TERM, ask_all, by_hand, deaf, never_ready, running, stops_after};
use crate::simulator::{Call, Node, Script, World, ms, secs};

fn job(policy: &'static str) -> World {
    World::new(&[("sidecars", "proxy"), ("restart-policy", policy)])
}

/// Returns all actions that wait to be carried out.
fn actions(world: &mut World) -> Vec<Action> {
    std::iter::from_fn(|| world.pod.poll_action()).collect()
}

#[test]
fn a_crashed_sidecar_restarts_at_once_without_an_exit_event() {
    for policy in ["Never", "OnFailure"] {
        let mut world = running(job(policy), &["proxy", "web"]);
        world.call(Call::Crash("proxy", 1));
        world.run_for(secs(1));
        assert!(world.is_executing("proxy"), "{:#?}", world.seen);
        assert_eq!(world.reported("proxy"), None);
        assert!(world.is_executing("web"));
    }
}

#[test]
fn repeated_crashes_lengthen_the_back_off() {
    let crashes = Script {
        exits_after: Some((ms(500), 1)),
        ..Script::default()
    };
    let mut world = job("Never").script("proxy", crashes);
    world.call(Call::Run("proxy", None));
    world.run_for(secs(40));
    let times = world.executions("proxy");
    let gaps: Vec<u64> = times
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).as_secs())
        .collect();
    assert_eq!(gaps, [0, 10, 20]);
    assert_eq!(world.reported("proxy"), None);
}

#[test]
fn the_shim_does_not_restart_a_container_that_its_caller_restarts_unless_configured() {
    let mut world = running(job("Always"), &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    assert_eq!(world.reported("proxy"), Some(1));

    let world = World::new(&[("sidecars", "proxy"), ("restart.usher/proxy", "OnFailure")]);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    assert!(world.is_executing("proxy"));
    world.call(Call::Crash("proxy", 0));
    assert_eq!(world.reported("proxy"), Some(0));
}

#[test]
fn a_stopped_container_is_not_restarted() {
    for signal in [TERM, Signal::KILL] {
        let mut world = running(job("Never"), &["proxy", "web"]);
        world.call(Call::Kill("proxy", signal, None));
        world.run_for(secs(60));
        assert!(world.reported("proxy").is_some(), "{:#?}", world.seen);
        assert_eq!(world.executions("proxy"), []);
    }
}

/// A container whose restart never ends: the OCI runtime hangs.
fn hangs() -> Script {
    Script {
        restart_takes: secs(100_000),
        ..Script::default()
    }
}

#[test]
fn a_defer_whose_restart_hangs_ends_with_sigkill() {
    for policy in ["Never", "OnFailure"] {
        let mut world = running(job(policy).script("proxy", hangs()), &["proxy", "web"]);
        world.call(Call::Crash("proxy", 1));
        world.run_for(secs(5));
        assert_eq!(world.reported("proxy"), None);
        world.call(Call::Kill("proxy", Signal::KILL, None));
        world.run_for(secs(1));
        assert!(world.reported("proxy").is_some(), "{:#?}", world.seen);
        assert!(world.is_executing("web"));
    }
}

#[test]
fn a_defer_whose_restart_hangs_ends_with_the_grace_period() {
    for (policy, beyond) in [
        ("Shared", 2),
        ("Reserve", 2),
        ("Overrun", 8),
        ("SkipHooks", 4),
        ("Strict", 0),
    ] {
        let world = World::new(&[
            ("sidecars", "proxy"),
            ("restart-policy", "Never"),
            ("grace-policy", policy),
            ("grace-period", "8s"),
        ]);
        let mut world = running(world.script("proxy", hangs()), &["proxy", "web"]);
        world.call(Call::Crash("proxy", 1));
        world.run_for(secs(1));
        ask_all(&mut world, &["proxy", "web"], TERM);
        world.run_for(secs(8 + beyond) + ms(20));
        for name in ["proxy", "web"] {
            assert!(
                world.reported(name).is_some(),
                "{policy}: {name}: {:#?}",
                world.seen
            );
        }
        world.check_end();
    }
}

/// The SIGKILL comes too late to cancel the restart, so the new process gets it.
#[test]
fn a_restart_that_succeeds_as_it_is_killed_is_killed_all_the_same() {
    let mut world = running(job("Never"), &["proxy", "web"]);
    let id = "proxy".into();
    world.call(Call::Crash("proxy", 1));
    world.run_for(ms(10));
    world.now = world.now.after(ms(1));
    let now = world.now;
    world
        .pod
        .handle_kill(now, &id, RequestId(9_000), by_hand(Signal::KILL));
    world.pod.handle_restarted(now, &id, Ok(()));
    let actions = actions(&mut world);
    let is_kill = |action: &Action| matches!(action, Action::Signal { id: to, order } if *to == id && order.signal == Signal::KILL);
    assert!(actions.iter().any(is_kill), "{actions:#?}");
}

/// After the sandbox's death another process may get its PID, and a container that is created or
/// restarted then would join the namespaces of that process.
#[test]
fn no_container_is_created_or_restarted_after_the_sandbox_is_gone() {
    let slow = Script {
        restart_takes: secs(3),
        ..stops_after(3_000)
    };
    // When the sandbox dies, the sidecar is in back-off, is being restarted, or is alive.
    for (crashes, before) in [(2, secs(5)), (1, secs(1)), (0, secs(1))] {
        let world = job("Never").with_sandbox().script("proxy", slow.clone());
        let mut world = running(world.script("web", stops_after(3_000)), &["proxy", "web"]);
        for _ in 0..crashes {
            world.call(Call::Crash("proxy", 1));
            world.run_for(before);
        }
        world.seen.clear();
        world.call(Call::Crash("pause", 1));
        world.run_for(ms(100));
        world.call(Call::Crash("proxy", 1));
        world.call(Call::Run("api", None));
        assert!(
            matches!(world.refused.last(), Some(Refusal::SandboxGone { .. })),
            "{:?}",
            world.refused
        );
        world.run_for(secs(60));
        assert_eq!(world.executions("proxy"), [], "{:#?}", world.seen);
        assert!(world.reported("proxy").is_some());
        assert!(world.reported("web").is_some());
        world.check_end();
    }
}

#[test]
fn a_defer_in_back_off_ends_with_its_stop_request() {
    let crashes = Script {
        exits_after: Some((ms(500), 1)),
        ..Script::default()
    };
    for (exit_code, signal, reported) in [
        ("Mask", TERM, 0),
        ("Signal", TERM, 1),
        ("Propagate", TERM, 1),
        ("Mask", Signal::KILL, 0),
    ] {
        let mut world = World::new(&[
            ("sidecars", "proxy"),
            ("restart-policy", "Never"),
            ("sidecar-exit-code", exit_code),
        ])
        .script("proxy", crashes.clone());
        world.call(Call::Run("proxy", None));
        world.run_for(secs(4));
        assert!(!world.is_alive("proxy"));
        world.call(Call::Kill("proxy", signal, None));
        world.run_for(ms(10));
        assert_eq!(world.reported("proxy"), Some(reported), "{exit_code}");
        world.run_for(secs(600));
        world.check_end();
    }
}

#[test]
fn a_sidecar_that_is_being_restarted_gets_its_signal_when_it_runs() {
    let slow = Script {
        restart_takes: secs(3),
        ..stops_after(10)
    };
    let world = job("Never").script("proxy", slow);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(2));
    assert_eq!(world.signalled("proxy"), None);
    world.run_for(secs(2));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    world.check_end();
}

#[test]
fn a_sidecar_killed_during_a_restart_ends_between_two_executions() {
    let slow = Script {
        restart_takes: secs(3),
        ..stops_after(10)
    };
    let world = job("Never").script("proxy", slow);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    world.call(Call::Kill("proxy", Signal::KILL, None));
    world.run_for(secs(1));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    world.run_for(secs(5));
    assert_eq!(world.executions("proxy"), []);
    world.check_end();
}

/// A pod whose sidecar cannot be restarted: each restart fails after three seconds.
fn not_restarted() -> World {
    let fails = Script {
        restart_takes: secs(3),
        restarts_fail: 100,
        ..stops_after(10)
    };
    running(job("Never").script("proxy", fails), &["proxy", "web"])
}

#[test]
fn a_failed_restart_is_tried_again_without_an_exit_event() {
    let mut world = not_restarted();
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(60));
    assert_eq!(world.reported("proxy"), None, "{:#?}", world.seen);
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(secs(10));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    world.check_end();
}

#[test]
fn a_sidecar_that_is_killed_during_a_restart_that_fails_is_not_forgotten() {
    for signal in [TERM, Signal::KILL] {
        let mut world = not_restarted();
        world.call(Call::Crash("proxy", 1));
        world.run_for(secs(1));
        world.call(Call::Kill("proxy", signal, None));
        world.run_for(secs(5));
        assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
        world.check_end();
    }
}

#[test]
fn until_its_turn_to_stop_a_sidecar_is_restarted_and_an_app_is_not() {
    let world = job("Never")
        .script("web", stops_after(5_000))
        .script("api", deaf());
    let mut world = running(world, &["proxy", "web", "api"]);
    ask_all(&mut world, &["web", "api"], TERM);
    world.run_for(secs(1));
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    assert!(world.is_executing("proxy"), "{:#?}", world.seen);
    assert_eq!(world.executions("web"), []);
}

#[test]
fn a_sidecar_that_failed_its_startup_probe_comes_back() {
    let mut world = World::new(&[
        ("sidecars", "proxy"),
        ("restart-policy", "Never"),
        (
            "startup-probe.usher/proxy",
            r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":5}"#,
        ),
    ])
    .script("proxy", never_ready());
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(5));
    assert_eq!(world.executions("proxy").len(), 2, "{:#?}", world.seen);
    assert_eq!(world.reported("proxy"), None);
    assert_eq!(world.executed("web"), None);
}

#[test]
fn a_recreated_container_does_not_wait_for_a_sidecar_that_is_down() {
    let slow = Script {
        restart_takes: secs(2),
        ..Script::default()
    };
    let world = job("OnFailure").script("proxy", slow);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.call(Call::Crash("web", 1));
    let crashed = world.now;
    world.call(Call::Run("web#2", None));
    world.run_for(secs(5));
    assert!(world.executed("web#2").unwrap() < crashed.after(secs(1)));
}

#[test]
fn inside_an_end_a_sidecar_that_crashes_is_there_again_after_0_1_2_then_4_seconds() {
    let crashes = Script {
        exits_after: Some((ms(100), 1)),
        ..Script::default()
    };
    let world = job("Never").script("web", stops_after(20_000));
    let mut world = world.script("proxy", crashes);
    for name in ["proxy", "web"] {
        world.call(Call::Run(name, None));
    }
    // After these 900 seconds, the sidecar's back-off is five minutes.
    world.run_for(secs(900));
    assert!(!world.is_executing("proxy"));
    world.seen.clear();
    let asked = world.now;
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(19));
    let times = world.executions("proxy");
    assert_eq!(
        times.first(),
        Some(&asked.after(ms(50))),
        "{:#?}",
        world.seen
    );
    let gaps = times
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).as_secs());
    assert_eq!(gaps.collect::<Vec<_>>(), [0, 1, 2, 4, 4, 4]);
    world.run_for(secs(20));
    assert_eq!(world.reported("proxy"), Some(0));
    world.check_end();
}

#[test]
fn a_sidecar_in_back_off_is_not_restarted_if_no_container_needs_it() {
    let crashes = Script {
        exits_after: Some((ms(500), 1)),
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy logs"), ("restart-policy", "Never")]);
    let world = world
        .script("proxy", crashes)
        .script("logs", stops_after(3_000));
    let mut world = running(world, &["proxy", "logs"]);
    assert!(!world.is_executing("proxy"));
    ask_all(&mut world, &["proxy", "logs"], TERM);
    world.run_for(secs(10));
    assert_eq!(world.executions("proxy"), []);
    assert_eq!(world.reported("proxy"), Some(0));
}

#[test]
fn under_on_failure_a_sidecar_that_ends_with_0_before_its_stop_is_delivered_is_created_again() {
    let mut world = running(job("OnFailure"), &["proxy", "web"]);
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(ms(500));
    assert_eq!(world.signalled("proxy"), None);
    world.call(Call::Crash("proxy", 0));
    // The request may still be the first one of a termination.
    assert_eq!(world.reported("proxy"), None);
    world.run_for(secs(1));
    assert_eq!(world.reported("proxy"), Some(143));
    assert_eq!(world.executions("proxy"), []);
}

#[test]
fn a_sidecar_that_exits_between_two_stop_requests_is_restarted_before_the_app_exits() {
    for policy in ["Always", "OnFailure", "Never"] {
        let world = job(policy).script("web", stops_after(3_000));
        let mut world = running(world, &["proxy", "web"]);
        world.call(Call::Kill("proxy", TERM, None));
        world.run_for(ms(200));
        world.call(Call::Crash("proxy", 137));
        world.run_for(ms(200));
        assert_eq!(world.executions("proxy"), [], "{policy}");
        world.call(Call::Kill("web", TERM, None));
        world.run_for(ms(500));
        assert_eq!(world.executions("proxy").len(), 1, "{policy}");
        world.run_for(secs(10));
        assert!(world.signalled("proxy") >= world.died("web"), "{policy}");
    }
}

#[test]
fn a_sidecar_that_a_checkpoint_ends_is_not_restarted() {
    let crashed = |exits| {
        let mut world = running(job("Never"), &["proxy", "web"]);
        let proxy = "proxy".into();
        let begun = world.pod.handle_checkpoint(&proxy, exits);
        begun.expect("a sidecar that runs");
        world.call(Call::Crash("proxy", 137));
        if exits {
            world.pod.handle_checkpointed(world.now, &proxy);
        }
        world.run_for(secs(20));
        world
    };
    let world = crashed(true);
    assert_eq!(world.executions("proxy"), []);
    assert_eq!(world.reported("proxy"), Some(137));
    // A checkpoint that leaves its container running changes nothing.
    assert_eq!(crashed(false).executions("proxy").len(), 1);
}

#[test]
fn a_paused_sidecar_does_not_fail_its_liveness_probe() {
    let unwell = Script {
        unwell_after: Some(secs(30)),
        ..Script::default()
    };
    let probe = r#"{"tcpSocket":{"port":80},"periodSeconds":1,"failureThreshold":3}"#;
    let world = World::new(&[("sidecars", "proxy"), ("liveness-probe.usher/proxy", probe)]);
    let mut world = running(world.script("proxy", unwell), &["proxy", "web"]);
    let proxy = "proxy".into();
    world.run_for(secs(1));
    world.pod.handle_pause(&proxy).expect("a sidecar that runs");
    world.pod.handle_paused(world.now, &proxy, true);
    world.run_for(secs(60));
    assert_eq!(world.signals("proxy"), []);
    world.pod.handle_resumed(world.now, &proxy, true);
    world.drain();
    let resumed = world.now;
    world.run_for(secs(20));
    let stopped = world.signalled("proxy").expect("three attempts fail");
    assert!(stopped.since(resumed) >= secs(2), "{:#?}", world.seen);
}

fn ends_output(action: &Action) -> bool {
    matches!(action, Action::EndOutput { .. })
}

/// A sidecar whose restart is under way. The new process has died before its release, for example
/// because memory ran out.
fn died_during_restart() -> World {
    let mut world = running(job("Never"), &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(ms(1));
    let (now, id) = (world.now, "proxy".into());
    world.pod.handle_created_again(&id);
    world
        .pod
        .handle_container_exited(now, &id, ExitStatus::Signal(9));
    world
}

#[test]
fn a_restart_whose_process_died_before_its_release_is_tried_again() {
    let mut world = died_during_restart();
    let (now, id) = (world.now, "proxy".into());
    let gone = Err(ActionError::reported("its process has ended"));
    world.pod.handle_restarted(now, &id, gone);
    assert_eq!(world.pod.task_status(&id), Some(TaskStatus::Running));
    let actions = actions(&mut world);
    assert!(!actions.iter().any(ends_output), "{actions:#?}");
}

#[test]
fn a_sigkill_after_the_exit_of_a_process_that_is_being_restarted_prevents_the_next_restart() {
    for outcome in [Ok(()), Err(ActionError::reported("its process has ended"))] {
        let mut world = died_during_restart();
        let (now, id) = (world.now, "proxy".into());
        world
            .pod
            .handle_kill(now, &id, RequestId(9_000), by_hand(Signal::KILL));
        world.pod.handle_restarted(now, &id, outcome);
        let actions = actions(&mut world);
        assert!(actions.iter().any(ends_output), "{actions:#?}");
    }
}
