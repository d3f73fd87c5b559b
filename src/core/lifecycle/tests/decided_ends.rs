//! Terminations that the shim decides, and containers that the caller creates or starts during or
//! after them.

use std::time::Duration;

use crate::lifecycle::{Cause, Phase, Refusal, Step};
use crate::plan::Signal;

use super::fixtures::{TERM, ask_all, broken, deaf};
use crate::simulator::{Call, Node, Script, World, ms, secs};

/// The timeout of a stop request with a grace period of two seconds. kubelet sends such requests
/// when it restarts all containers.
const TWO_SECONDS: Option<Duration> = Some(secs(122));

fn pod(policy: &'static str, more: &[(&'static str, &'static str)]) -> World {
    let mut annotations = vec![("sidecars", "proxy"), ("restart-policy", policy)];
    annotations.extend(more);
    World::new(&annotations).with_sandbox()
}

/// A pod whose containers have just been started, in this order.
fn running(mut world: World, names: &[&'static str]) -> World {
    for name in names {
        world.call(Call::Run(name, None));
        world.run_for(ms(500));
    }
    world
}

fn exits_after(millis: u64, code: u8) -> Script {
    Script {
        exits_after: Some((ms(millis), code)),
        ..Script::default()
    }
}

/// Stops a container with a grace period of two seconds, and waits until it has exited. kubelet
/// stops containers in this way when it restarts all of them.
fn stop_shortly(world: &mut World, name: &'static str) {
    world.call(Call::Kill(name, TERM, TWO_SECONDS));
    world.run_for(secs(3));
    assert!(world.reported(name).is_some(), "{:#?}", world.seen);
    world.call(Call::Delete(name));
}

#[test]
fn a_sidecar_that_is_started_after_the_run_is_complete_is_answered_and_ends_with_0() {
    for policy in ["Never", "OnFailure"] {
        for name in ["logs", "setup"] {
            let lists: &[_] = match name {
                "logs" => &[("apps", "web"), ("sidecars", "proxy logs?")],
                _ => &[("apps", "web"), ("init", "setup?")],
            };
            let mut world = running(pod(policy, lists), &["proxy", "web"]);
            world.call(Call::Crash("web", 0));
            world.run_for(secs(1));
            assert_eq!(world.pod.phase(), Phase::Terminated);
            world.call(Call::Run(name, None));
            world.run_for(secs(1));
            let answer = world.start_answer(name).map(|(_, answer)| answer);
            assert_eq!(answer, Some(Ok(())), "{policy}: {:#?}", world.seen);
            assert_eq!(world.reported(name), Some(0), "{policy}: {:#?}", world.seen);
            assert_eq!(world.executed(name), None);
        }
    }
}

#[test]
fn a_sidecar_that_waits_for_its_turn_when_the_run_is_complete_is_answered_and_ends_with_0() {
    let lists = [
        ("apps", "web"),
        ("sidecars", "proxy logs?"),
        ("startup-order", "proxy logs"),
    ];
    let world = pod("Never", &lists).script(
        "proxy",
        Script {
            ready_after: None,
            ..Script::default()
        },
    );
    // The sidecar `proxy` is not started yet, so the Start of `logs` has to wait.
    let mut world = running(world, &["web"]);
    world.call(Call::Create("logs"));
    world.run_for(secs(1));
    world.call(Call::Start("logs", None));
    world.call(Call::Crash("web", 0));
    world.run_for(secs(1));
    let answer = world.start_answer("logs").map(|(_, answer)| answer);
    assert_eq!(answer, Some(Ok(())), "{:#?}", world.seen);
}

#[test]
fn a_defer_that_is_created_after_the_run_is_complete_runs_at_once() {
    let lists = [("apps", "web"), ("post-exit", "report?")];
    let mut world = running(pod("Never", &lists), &["proxy", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(60));
    let world_now = world.now;
    let mut world = world.script("report", exits_after(500, 0));
    world.call(Call::Run("report", None));
    world.run_for(secs(2));
    let executed = world.executed("report").unwrap();
    assert!(executed.since(world_now) < secs(1), "{:#?}", world.seen);
    assert_eq!(world.reported("report"), Some(0));
}

#[test]
fn a_stopped_sidecar_that_is_created_again_starts_the_whole_pod_over() {
    for policy in ["Never", "OnFailure"] {
        let lists = [("apps", "web"), ("init", "setup")];
        let world = pod(policy, &lists).script("setup", exits_after(100, 0));
        let mut world = running(world, &["setup", "proxy", "web"]);
        world.call(Call::Crash("web", 0));
        world.run_for(secs(2));
        let mut world = world.script("setup", exits_after(700, 0));
        for name in ["setup#2", "proxy#2", "web#2"] {
            world.call(Call::Run(name, None));
        }
        world.run_for(ms(500));
        assert_eq!(world.executed("web#2"), None, "{policy}: {:#?}", world.seen);
        world.run_for(secs(2));
        let (proxy, web) = (world.executed("proxy#2"), world.executed("web#2"));
        assert!(
            proxy.is_some() && proxy <= web,
            "{policy}: {:#?}",
            world.seen
        );
        assert!(world.is_executing("web#2"));
    }
}

#[test]
fn an_app_that_is_created_again_alone_after_the_run_is_complete_runs_at_once() {
    let mut world = running(pod("Never", &[("apps", "web")]), &["proxy", "web"]);
    world.call(Call::Crash("web", 1));
    world.run_for(secs(2));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    assert!(world.is_executing("web#2"), "{:#?}", world.seen);
}

#[test]
fn a_sidecar_that_failed_at_the_end_of_a_complete_run_is_answered_again_and_ends_with_0() {
    let world = pod(
        "OnFailure",
        &[("apps", "web"), ("sidecar-exit-code", "Propagate")],
    );
    let stops_badly = Script {
        stop_code: 3,
        ..Script::default()
    };
    let mut world = running(world.script("proxy", stops_badly), &["proxy", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(2));
    assert_eq!(world.reported("proxy"), Some(3));
    world.call(Call::Run("proxy#2", None));
    world.run_for(secs(1));
    let answer = world.start_answer("proxy#2").map(|(_, answer)| answer);
    assert_eq!(answer, Some(Ok(())));
    assert_eq!(world.reported("proxy#2"), Some(0), "{:#?}", world.seen);
    assert_eq!(world.executed("proxy#2"), None);
}

#[test]
fn an_app_that_fails_before_its_cleanup_exists_ends_the_pod_when_the_cleanup_is_there() {
    let lists = [
        ("essential", "web"),
        ("post-exit", "report"),
        ("apps", "web"),
    ];
    for policy in ["Always", "Never"] {
        let world = pod(policy, &lists).script("report", exits_after(200, 0));
        let mut world = running(world, &["proxy", "web"]);
        world.call(Call::Crash("web", 1));
        world.run_for(secs(3));
        assert_eq!(
            world.signalled("proxy"),
            None,
            "{policy}: {:#?}",
            world.seen
        );
        // Kubelet creates the failed container again, and then the containers after it.
        world.call(Call::Run("web#2", Some(secs(120))));
        world.run_for(ms(500));
        assert!(world.start_answer("web#2").is_some(), "{:#?}", world.seen);
        world.call(Call::Run("report", Some(secs(120))));
        world.run_for(secs(3));
        let told = world.signalled("proxy").unwrap();
        assert!(
            world.executed("report").unwrap() < told,
            "{:#?}",
            world.seen
        );
        // Containers created again belong to the next run.
        let begins_anew = world.executed("web#2").is_none_or(|at| at > told);
        assert!(begins_anew, "{policy}: {:#?}", world.seen);
        let killed = world
            .signals("pause")
            .contains(&(told.after(ms(20)), Signal::KILL));
        assert_eq!(killed, policy == "Always", "{:#?}", world.seen);
    }
}

#[test]
fn a_decided_end_waits_for_cleanups_until_30_s_after_the_last_new_name() {
    let lists = [
        ("essential", "web"),
        ("post-exit", "report"),
        ("apps", "web"),
    ];
    let mut world = running(pod("Never", &lists), &["proxy", "web"]);
    let created = world.now;
    world.run_for(secs(5));
    world.call(Call::Crash("web", 1));
    world.run_for(secs(60));
    let told = world.signalled("proxy").unwrap().since(created);
    assert!(told > secs(28) && told < secs(31), "{told:?}");

    let mut world = running(pod("Never", &lists), &["proxy", "web"]);
    world.run_for(secs(40));
    world.call(Call::Crash("web", 1));
    world.run_for(ms(100));
    assert!(world.signalled("proxy").is_some(), "{:#?}", world.seen);
}

#[test]
fn a_decided_end_waits_for_cleanups_for_60_s_at_most() {
    let lists = [
        ("essential", "web"),
        ("post-exit", "report"),
        ("apps", "web"),
        ("sidecars", "proxy a? b? c?"),
    ];
    let mut world = running(pod("Never", &lists), &["proxy", "web"]);
    let failed = world.now;
    world.call(Call::Crash("web", 1));
    for name in ["a", "b", "c"] {
        world.run_for(secs(19));
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(60));
    let told = world.signalled("proxy").unwrap().since(failed);
    assert!(told >= secs(60) && told < secs(61), "{told:?}");
}

#[test]
fn a_deletion_ends_the_wait_for_cleanups() {
    let lists = [
        ("essential", "web"),
        ("post-exit", "report"),
        ("apps", "web api"),
    ];
    let mut world = running(pod("Always", &lists), &["proxy", "web", "api"]);
    world.call(Call::Crash("web", 1));
    world.run_for(secs(2));
    ask_all(&mut world, &["proxy", "api"], TERM);
    world.run_for(secs(3));
    assert!(world.reported("proxy").is_some() && world.reported("api").is_some());
}

#[test]
fn containers_that_wait_for_a_failed_init_container_fail_at_once_while_defers_are_awaited() {
    let lists = [("init", "setup"), ("post-exit", "report"), ("apps", "web")];
    let mut world = running(pod("Never", &lists), &["setup"]);
    world.call(Call::Crash("setup", 1));
    world.run_for(secs(1));
    world.call(Call::Run("web", Some(secs(120))));
    world.run_for(ms(500));
    let answer = world.start_answer("web").map(|(_, answer)| answer);
    let is_refused = matches!(&answer, Some(Err(Refusal::NeverComes { .. })));
    assert!(is_refused, "{answer:?}");
    let mut world = world.script("report", exits_after(200, 0));
    world.call(Call::Run("report", Some(secs(120))));
    world.run_for(secs(2));
    assert!(world.executed("report").is_some(), "{:#?}", world.seen);
}

#[test]
fn no_start_is_refused_because_an_essential_container_has_failed() {
    let lists = [("essential", "web"), ("apps", "web api")];
    let mut world = running(
        pod("Always", &lists).script("proxy", deaf()),
        &["proxy", "web"],
    );
    world.call(Call::Create("api"));
    world.run_for(secs(1));
    world.call(Call::Crash("web", 1));
    world.run_for(ms(100));
    assert!(matches!(
        world.pod.phase(),
        Phase::Terminating(Step::Sidecars)
    ));
    world.call(Call::Start("api", None));
    world.run_for(secs(1));
    let answer = world.start_answer("api").map(|(_, answer)| answer);
    assert_eq!(answer, Some(Ok(())), "{:#?}", world.seen);
    assert_eq!(world.executed("api"), None);
}

#[test]
fn a_blocked_start_is_answered_once_an_essential_container_that_was_stopped_counts_as_failed() {
    let lists = [
        ("essential", "web"),
        ("apps", "web api"),
        ("post-exit", "report"),
        ("start-mode", "Block"),
        ("startup-timeout", "5m"),
    ];
    let mut world = pod("Always", &lists);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    world.call(Call::Kill("web", Signal::KILL, None));
    world.run_for(secs(20));
    world.call(Call::Run("api", None));
    world.run_for(secs(60));
    // Kubelet creates the defer container only after the Start of `api` is answered. The exit of a
    // stopped container counts as a failure only after 30 s, because the caller may create the
    // container again.
    let at = world.start_answer("api").map(|(at, _)| at.since_origin());
    assert_eq!(at.map(|at| at.as_secs()), Some(31), "{:#?}", world.seen);
}

#[test]
fn a_pod_whose_containers_are_all_restarted_starts_in_order_again() {
    for policy in ["Always", "OnFailure", "Never"] {
        for order in [["proxy#2", "web#2"], ["web#2", "proxy#2"]] {
            // Restart rules in the pod's spec make kubelet create the app again. The shim cannot
            // see the spec, so an annotation repeats the rules.
            let rules = ("caller-restarts.usher/web", "42");
            let mut world = running(pod(policy, &[rules]), &["proxy", "web"]);
            world.call(Call::Crash("web", 42));
            world.call(Call::Delete("web"));
            stop_shortly(&mut world, "proxy");
            let slow = Script {
                ready_after: Some(secs(2)),
                ..Script::default()
            };
            let mut world = world.script("proxy", slow);
            for name in order {
                world.call(Call::Run(name, None));
                world.run_for(ms(100));
            }
            world.run_for(secs(20));
            let (proxy, web) = (world.executed("proxy#2"), world.executed("web#2"));
            assert!(
                proxy.is_some() && web > proxy,
                "{policy} {order:?}: {:#?}",
                world.seen
            );
        }
    }
}

#[test]
fn a_pod_that_crashes_does_not_start_over() {
    let mut world = running(pod("Always", &[]), &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.call(Call::Crash("web", 1));
    world.run_for(secs(1));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    assert!(world.is_executing("web#2"), "{:#?}", world.seen);
}

#[test]
fn an_app_that_a_liveness_probe_restarts_while_its_sidecar_is_down_waits_for_nothing() {
    let mut world = running(pod("Always", &[]), &["proxy", "web"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    world.call(Call::Kill("web", TERM, Some(secs(150))));
    world.run_for(secs(2));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    assert!(world.is_executing("web#2"), "{:#?}", world.seen);
}

#[test]
fn defers_run_again_at_the_end_of_a_pod_whose_containers_were_all_restarted() {
    let rules = [
        ("caller-restarts.usher/web", "42"),
        ("post-exit", "report"),
        ("apps", "web"),
    ];
    let world = pod("Never", &rules).script("report", exits_after(200, 0));
    let mut world = running(world, &["proxy", "web", "report"]);
    world.call(Call::Crash("web", 42));
    stop_shortly(&mut world, "report");
    stop_shortly(&mut world, "proxy");
    assert_eq!(world.executed("report"), None, "{:#?}", world.seen);
    for name in ["proxy#2", "web#2", "report#2"] {
        world.call(Call::Run(name, None));
        world.run_for(ms(100));
    }
    world.call(Call::Crash("web#2", 0));
    world.run_for(secs(5));
    assert!(world.executed("report#2").is_some(), "{:#?}", world.seen);
    assert_eq!(world.reported("proxy#2"), Some(0));
}

#[test]
fn the_end_of_a_restarted_pod_waits_for_defers_that_are_not_created_again_yet() {
    let rules = [
        ("caller-restarts.usher/web", "42"),
        ("post-exit", "report"),
        ("apps", "web"),
    ];
    // The test is run twice: the earlier containers still exist, or the caller has deleted them.
    for is_deleted in [false, true] {
        let world = pod("Never", &rules).script("report", exits_after(200, 0));
        let mut world = running(world, &["proxy", "web", "report"]);
        world.call(Call::Crash("web", 42));
        for name in ["report", "proxy"] {
            world.call(Call::Kill(name, TERM, TWO_SECONDS));
            world.run_for(secs(3));
            if is_deleted {
                world.call(Call::Delete(name));
            }
        }
        let mut world = world.script("web#2", broken());
        for name in ["proxy#2", "web#2", "report#2"] {
            world.call(Call::Run(name, None));
            world.run_for(ms(100));
        }
        world.run_for(secs(5));
        assert!(world.executed("report#2").is_some(), "{:#?}", world.seen);
        assert!(world.executed("report#2") < world.signalled("proxy#2"));
    }
}

#[test]
fn names_are_new_again_when_a_pod_is_restarted() {
    let rules = [
        ("caller-restarts.usher/api", "42"),
        ("essential", "web"),
        ("pre-exit", "drain"),
        ("sidecars", "proxy?"),
        ("apps", "web api"),
    ];
    let world = pod("Never", &rules).script("drain", exits_after(200, 0));
    let mut world = running(world, &["web", "api", "drain"]);
    // Wait longer than the shim waits for containers with new names.
    world.run_for(secs(40));
    world.call(Call::Crash("api", 42));
    for name in ["web", "drain"] {
        stop_shortly(&mut world, name);
    }
    let mut world = world.script("web#2", exits_after(50, 1));
    for name in ["web#2", "api#2", "drain#2"] {
        world.call(Call::Run(name, None));
        world.run_for(ms(300));
    }
    world.run_for(secs(5));
    assert!(world.executed("drain#2").is_some(), "{:#?}", world.seen);
}

#[test]
fn an_app_that_its_caller_restarts_by_exit_code_does_not_complete_the_run() {
    let rules = ("caller-restarts.usher/web", "42");
    let mut world = running(pod("Never", &[rules, ("apps", "web")]), &["proxy", "web"]);
    world.call(Call::Crash("web", 42));
    world.run_for(secs(300));
    assert!(world.is_executing("proxy"), "{:#?}", world.seen);
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    world.call(Call::Crash("web#2", 1));
    world.run_for(secs(1));
    assert_eq!(world.reported("proxy"), Some(0));
}

#[test]
fn an_app_that_is_not_created_again_within_six_minutes_has_ended_for_good() {
    let rules = ("caller-restarts.usher/web", "!0");
    let mut world = running(pod("Never", &[rules, ("apps", "web")]), &["proxy", "web"]);
    world.call(Call::Crash("web", 7));
    world.run_for(secs(359));
    assert!(world.is_executing("proxy"));
    world.run_for(secs(2));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
}

#[test]
fn the_restart_policy_of_an_app_decides_when_it_has_ended_for_good() {
    let own = [("restart-policy.usher/web", "OnFailure"), ("apps", "web")];
    let mut world = running(pod("Never", &own), &["proxy", "web"]);
    world.call(Call::Crash("web", 1));
    world.run_for(secs(400));
    assert!(world.is_executing("proxy"), "{:#?}", world.seen);

    let own = [("restart-policy.usher/web", "Never"), ("apps", "web")];
    let mut world = running(pod("OnFailure", &own), &["proxy", "web"]);
    world.call(Call::Crash("web", 1));
    world.run_for(secs(1));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
}

#[test]
fn an_init_container_that_its_caller_restarts_by_exit_code_fails_no_pod() {
    let rules = [
        ("caller-restarts.usher/setup", "!0"),
        ("init", "setup"),
        ("apps", "web"),
    ];
    let mut world = running(pod("Never", &rules), &["setup"]);
    world.call(Call::Crash("setup", 1));
    world.run_for(secs(10));
    assert_eq!(world.pod.phase(), Phase::Initializing);
    let mut world = world.script("setup", exits_after(100, 0));
    for name in ["setup#2", "proxy", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(2));
    assert!(world.is_executing("web"), "{:#?}", world.seen);
    let because = world.pod.view(world.now).termination.map(|it| it.cause);
    assert_eq!(because, None::<Cause>);
}

#[test]
fn a_sidecar_that_was_created_before_its_pod_failed_counts_when_the_pod_starts_from_the_start() {
    let lists = [
        ("init", "setup"),
        ("apps", "web"),
        ("start-mode", "Block"),
        ("sidecars", "proxy"),
        ("restart-policy", "Never"),
    ];
    let mut world = running(World::new(&lists), &["setup"]);
    world.call(Call::Run("proxy", None));
    world.run_for(ms(500));
    world.call(Call::Crash("setup", 1));
    world.run_for(ms(500));
    let mut world = world.script("setup", exits_after(100, 0));
    world.call(Call::Run("setup#2", None));
    world.run_for(ms(500));
    world.call(Call::Start("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    assert!(world.is_executing("web"), "{:#?}", world.seen);
}

/// The app has failed, and its new container is held for the next run. The defer container `report`
/// is not created yet.
#[test]
fn a_cleanup_runs_if_the_pod_is_deleted_while_a_container_of_the_next_run_is_held() {
    let lists = [
        ("restart-policy", "Always"),
        ("essential", "web"),
        ("post-exit", "clean report"),
        ("apps", "web"),
    ];
    let world = World::new(&lists).script("clean", exits_after(100, 0));
    let mut world = running(world.with_sandbox(), &["web", "clean"]);
    world.call(Call::Crash("web", 1));
    world.call(Call::Run("web#2", Some(secs(120))));
    world.run_for(secs(2));
    for name in ["web#2", "clean"] {
        world.call(Call::Kill(name, TERM, Some(secs(150))));
    }
    world.run_for(secs(5));
    assert!(world.executed("clean").is_some(), "{:#?}", world.seen);
    assert!(world.reported("web#2").is_some(), "{:#?}", world.seen);
}
