//! Inference of a pod's termination: the meaning of a single stop request.

use crate::lifecycle::{HookKind, Phase};
use crate::plan::{KubeletFacts, PreStop, Signal};

use super::fixtures::{TERM, deaf, running};
use crate::simulator::{Call, Script, Seen, World, ms, secs};

fn with_pre_stop(pre_stop: PreStop) -> World {
    let facts = KubeletFacts {
        pre_stop: Some(pre_stop),
        ..KubeletFacts::default()
    };
    running(
        World::new(&[("sidecars", "proxy")]).facts("web", facts),
        &["proxy", "web"],
    )
}

#[test]
fn a_lone_request_for_an_app_is_delivered_at_once_and_ends_no_pod() {
    let mut world = running(World::new(&[("sidecars", "proxy")]), &["proxy", "web"]);
    world.call(Call::Kill("web", TERM, None));
    assert_eq!(world.signalled("web"), Some(world.now));
    world.run_for(secs(60));
    assert_eq!(world.signalled("proxy"), None);
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn a_lone_request_for_a_sidecar_is_delivered_after_the_window() {
    for (window, wait) in [("1s", 1000), ("250ms", 250)] {
        let world = World::new(&[("sidecars", "proxy"), ("termination-window", window)]);
        let mut world = running(world, &["proxy", "web"]);
        let asked = world.now;
        world.call(Call::Kill("proxy", TERM, None));
        world.run_for(secs(5));
        assert_eq!(world.signalled("proxy"), Some(asked.after(ms(wait))));
        assert_eq!(world.signalled("web"), None);
        assert_ne!(world.pod.phase(), Phase::Terminated);
    }
}

#[test]
fn a_request_for_the_last_container_that_runs_is_delivered_at_once() {
    let mut world = running(World::new(&[("sidecars", "proxy")]), &["proxy", "web"]);
    world.call(Call::Crash("web", 0));
    world.call(Call::Kill("proxy", TERM, None));
    assert_eq!(world.signalled("proxy"), Some(world.now));
}

#[test]
fn an_app_that_exits_before_the_sidecar_is_asked_is_no_obstacle() {
    // Kubelet asks all containers to stop, but ten milliseconds apart.
    let quick = Script {
        stops_after: Some(ms(2)),
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy")]).script("web", quick);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Kill("web", TERM, None));
    world.call_in(ms(10), Call::Kill("proxy", TERM, None));
    world.run_for(secs(1));
    assert!(world.signalled("proxy") >= world.died("web"));
    assert!(world.died("proxy").is_some());
}

#[test]
fn a_handler_that_the_shim_cannot_see_may_hide_the_apps_request() {
    for (handler, wait) in [
        (PreStop::Sleep(secs(5)), ms(6_000)),
        // The shim waits for half of the sidecar's grace period of thirty seconds.
        (PreStop::HttpGet, ms(15_000)),
        (PreStop::TcpSocket, ms(15_000)),
        (
            PreStop::Exec {
                command: vec!["/bin/bye".to_owned()],
            },
            ms(1_000),
        ),
    ] {
        let mut world = with_pre_stop(handler.clone());
        let asked = world.now;
        world.call(Call::Kill("proxy", TERM, None));
        world.run_for(secs(40));
        assert_eq!(
            world.signalled("proxy"),
            Some(asked.after(wait)),
            "{handler:?}"
        );
        assert_eq!(world.signalled("web"), None);
    }
}

#[test]
fn a_hidden_request_is_recognized_when_it_arrives() {
    let mut world = with_pre_stop(PreStop::Sleep(secs(5)));
    world.call(Call::Kill("proxy", TERM, None));
    world.call_in(secs(5), Call::Kill("web", TERM, None));
    world.run_for(secs(10));
    assert_eq!(world.signalled("proxy"), world.died("web"));
}

#[test]
fn two_requests_that_are_not_open_at_once_are_no_termination() {
    // Kubelet's SyncPod stops one container after another, and waits for each.
    let world = World::new(&[("sidecars", "proxy")]);
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(Call::Kill("web", TERM, None));
    world.run_for(ms(100));
    world.call(Call::Kill("api", TERM, None));
    world.run_for(ms(100));
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(secs(5));
    assert!(!matches!(
        world.pod.phase(),
        Phase::Terminating(_) | Phase::Terminated
    ));
}

#[test]
fn a_request_closes_when_its_grace_period_is_over() {
    let deaf = Script {
        stops_after: None,
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "5s")]).script("web", deaf);
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(Call::Kill("web", TERM, None));
    // The caller's timer starts at the answer, which may have come two seconds late.
    world.run_for(secs(8));
    world.call(Call::Kill("api", TERM, None));
    world.run_for(ms(500));
    assert_eq!(world.signalled("proxy"), None);
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn kills_after_an_exit_count_for_nothing() {
    let mut world = running(
        World::new(&[("sidecars", "proxy")]),
        &["proxy", "web", "api"],
    );
    world.call(Call::Crash("web", 1));
    // containerd sends SIGKILL to all processes of a container whose init process has exited.
    world.call(Call::Kill("web", Signal::KILL, None));
    world.call(Call::Kill("api", TERM, None));
    world.run_for(secs(5));
    assert_eq!(world.signalled("proxy"), None);
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn a_create_disproves_an_inferred_termination() {
    let slow = Script {
        stops_after: Some(secs(3)),
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy")])
        .script("web", slow.clone())
        .script("api", slow);
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(Call::Kill("web", TERM, None));
    world.call(Call::Kill("api", TERM, None));
    assert!(matches!(world.pod.phase(), Phase::Terminating(_)));
    world.run_for(secs(1));
    world.call(Call::Run("job", None));
    world.run_for(secs(20));
    assert!(world.executed("job").is_some(), "{:#?}", world.seen);
    assert_eq!(world.signalled("proxy"), None);
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn a_termination_that_was_decided_is_not_disproved() {
    let slow = Script {
        stops_after: Some(secs(3)),
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy")])
        .with_sandbox()
        .script("web", slow);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("pause", 0));
    world.call(Call::Run("job", None));
    world.run_for(secs(20));
    assert_eq!(world.executed("job"), None);
    assert!(world.died("proxy").is_some());
}

#[test]
fn the_silence_of_any_other_container_proves_that_the_pod_lives_on() {
    let hides = || KubeletFacts {
        pre_stop: Some(PreStop::HttpGet),
        ..KubeletFacts::default()
    };
    for (more, wait) in [
        (&["api"][..], ms(1_000)),
        (&["logs"], ms(1_000)),
        (&["clean"], ms(1_000)),
        // Kubelet stops a native sidecar (`vpn`) only when all other containers have exited. A
        // guest (`debug`, which no list names) can stop at any time. So the pod may terminate
        // although kubelet has sent no stop request to `vpn` or `debug`.
        (&["vpn"], ms(7_500)),
        (&["debug"], ms(7_500)),
        (&[], ms(7_500)),
    ] {
        let lists = [
            ("sidecars", "proxy logs?"),
            ("post-exit", "clean?"),
            ("native-init", "vpn"),
            ("apps", "web api"),
            ("grace-period", "15s"),
        ];
        let world = World::new(&lists).with_sandbox().facts("web", hides());
        let mut world = running(world, &[&["proxy", "web"], more].concat());
        let asked = world.now;
        world.call(Call::Kill("proxy", TERM, Some(secs(135))));
        world.run_for(secs(20));
        assert_eq!(
            world.signalled("proxy"),
            Some(asked.after(wait)),
            "{more:?}"
        );
        assert_eq!(world.signalled("web"), None);
        assert_eq!(world.pod.phase(), Phase::Running);
    }
}

#[test]
fn the_silence_of_a_signaled_container_proves_nothing() {
    let hides = KubeletFacts {
        pre_stop: Some(PreStop::HttpGet),
        ..KubeletFacts::default()
    };
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "10s")]);
    let world = world.facts("web", hides).script("api", deaf());
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(Call::Kill("api", TERM, Some(secs(130))));
    // The caller goes away, and sends no SIGKILL at the end of the grace period.
    world.run_for(secs(60));
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, Some(secs(130))));
    world.run_for(secs(20));
    assert_eq!(world.signalled("proxy"), Some(asked.after(secs(5))));
}

#[test]
fn the_request_of_a_guest_counts_as_a_second_one() {
    let lists = [("sidecars", "proxy"), ("apps", "web")];
    let slow = Script {
        stops_after: Some(secs(3)),
        ..Script::default()
    };
    let world = World::new(&lists).script("web", slow);
    let mut world = running(world, &["proxy", "web", "debug"]);
    world.call(Call::Kill("debug", TERM, None));
    assert_eq!(world.signalled("debug"), Some(world.now));
    assert_eq!(world.pod.phase(), Phase::Running);
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(secs(10));
    assert_eq!(world.signalled("proxy"), world.died("web"));
}

#[test]
fn under_cri_any_signal_but_kill_is_a_stop_signal_in_a_call_with_a_deadline() {
    let winch = Signal::new(28).unwrap();
    let slow = Script {
        stops_after: Some(secs(2)),
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy")])
        .with_sandbox()
        .script("web", slow.clone());
    let mut world = running(world, &["proxy", "web"]);
    // A person sends this signal to make the program reload.
    world.call(Call::Kill("web", winch, None));
    assert_eq!(world.signals("web"), [(world.now, winch)]);
    assert_eq!(world.pod.phase(), Phase::Running);
    world.call(Call::Kill("proxy", TERM, Some(secs(150))));
    world.call(Call::Kill("web", winch, Some(secs(150))));
    world.run_for(secs(5));
    assert_eq!(world.signals("web")[1].1, winch);
    assert_eq!(world.signalled("proxy"), world.died("web"));

    // In a pod without a sandbox container SIGWINCH is an ordinary signal.
    let world = World::new(&[("sidecars", "proxy")]).script("web", slow);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Kill("web", winch, None));
    assert_eq!(world.signalled("web"), Some(world.now));
    assert_eq!(world.pod.phase(), Phase::Running);
}

/// Kubelet asks a native sidecar to stop only after all apps have exited.
#[test]
fn a_native_sidecar_does_not_hide_that_the_only_app_is_stopped_with_its_pod() {
    let world = World::new(&[
        ("native-init", "mesh"),
        ("apps", "web"),
        ("termination-hook.usher/web", r#"{"sleep":{"seconds":1}}"#),
    ])
    .with_sandbox();
    let mut world = running(world, &["mesh", "web"]);
    world.call(Call::Kill("web", TERM, Some(secs(150))));
    world.run_for(secs(5));
    let hook = world.at(&Seen::HookBegan("web".into(), HookKind::Termination));
    assert!(
        hook.is_some() && hook < world.signalled("web"),
        "{:#?}",
        world.seen
    );
    assert_eq!(world.signalled("mesh"), None);
}
