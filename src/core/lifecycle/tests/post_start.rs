//! A sidecar's postStart handler: which Exec the shim takes for the handler, and what a failure of
//! the handler means.

use crate::lifecycle::{Exec, Time};
use crate::plan::{KubeletFacts, PreStop};

use super::fixtures::{TERM, exec};
use crate::simulator::{Call, Node, Seen, World, ms, secs};

/// A pod whose app was created before its sidecar. The sidecar's postStart handler has just ended
/// with `code`.
fn post_started(code: Option<u8>, more: &[(&'static str, &'static str)]) -> (World, Time) {
    let argv = ["/bin/setup".to_owned()];
    let exec = exec("post", &argv);
    let lists = [&[("sidecars", "proxy"), ("apps", "web")][..], more].concat();
    let mut world = World::new(&lists).with_sandbox();
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.exec("proxy", &exec).unwrap();
    world.run_for(secs(2));
    assert_eq!(world.executed("web"), None);
    world.exec_over("proxy", "post", code);
    let over = world.now;
    (world, over)
}

#[test]
fn a_sidecar_whose_post_start_failed_is_not_started() {
    for policy in ["Always", "OnFailure", "Never"] {
        for code in [Some(1), None] {
            let (mut world, over) = post_started(code, &[("restart-policy", policy)]);
            world.call_in(ms(5), Call::Kill("proxy", TERM, Some(secs(150))));
            world.run_for(secs(20));
            assert_eq!(world.executed("web"), None, "{policy}: {:#?}", world.seen);
            assert!(world.died("proxy") < Some(over.after(secs(2))));
            if policy == "Never" {
                world.run_for(secs(60));
                // The app is never started, because the pod has failed.
                assert_eq!(world.reported("web"), Some(1), "{:#?}", world.seen);
                continue;
            }
            world.call(Call::Run("proxy#2", None));
            world.run_for(secs(2));
            assert!(world.executed("web") > world.executed("proxy#2"));
        }
    }
}

#[test]
fn an_exec_that_fails_and_no_stop_follows_keeps_no_sidecar_out_for_ever() {
    let (mut world, over) = post_started(Some(1), &[]);
    world.run_for(secs(20));
    assert_eq!(world.executed("web"), Some(over.after(ms(10_001))));
    // The failed Exec is not run again when the sidecar is restarted in place.
    let (mut world, _) = post_started(Some(1), &[("restart-policy", "OnFailure")]);
    world.run_for(secs(20));
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(1));
    assert!(world.is_executing("proxy"));
    let again = Seen::PostStarted("proxy".into());
    assert_eq!(world.at(&again), None);
}

#[test]
fn a_post_start_that_ends_with_its_sidecar_has_failed_although_it_runs_again_after_the_restart() {
    let argv = ["/bin/setup".to_owned()];
    let exec = exec("post", &argv);
    let lists = [("sidecars", "proxy"), ("restart-policy", "OnFailure")];
    let mut world = World::new(&lists).with_sandbox();
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.exec("proxy", &exec).unwrap();
    world.call(Call::Crash("proxy", 1));
    world.exec_over("proxy", "post", Some(137));
    // Kubelet stops the sidecar because the handler has failed, but only a moment later.
    world.run_for(ms(500));
    assert!(world.at(&Seen::PostStarted("proxy".into())).is_some());
    assert_eq!(world.executed("web"), None, "{:#?}", world.seen);
    world.call(Call::Kill("proxy", TERM, Some(secs(150))));
    world.run_for(secs(20));
    assert_eq!(world.executed("web"), None, "{:#?}", world.seen);
}

#[test]
fn a_pre_stop_handler_delays_the_stop_after_a_failed_post_start() {
    for (handler, wait) in [(PreStop::Sleep(secs(4)), 14), (PreStop::HttpGet, 25)] {
        let facts = KubeletFacts {
            pre_stop: Some(handler),
            ..KubeletFacts::default()
        };
        let argv = ["/bin/setup".to_owned()];
        let exec = exec("post", &argv);
        let world = World::new(&[("sidecars", "proxy")]).with_sandbox();
        let mut world = world.facts("proxy", facts);
        world.call(Call::Run("web", None));
        world.call(Call::Run("proxy", None));
        world.run_for(ms(100));
        world.exec("proxy", &exec).unwrap();
        world.exec_over("proxy", "post", Some(1));
        let over = world.now;
        world.run_for(secs(60));
        assert_eq!(
            world.executed("web"),
            Some(over.after(secs(wait)).after(ms(1)))
        );
    }
}

#[test]
fn a_create_shows_that_an_exec_is_no_post_start() {
    // The Create comes while the Exec runs, or after the Exec has failed without a stop request.
    for code in [None, Some(1)] {
        let (mut world, _) = match code {
            Some(_) => post_started(code, &[]),
            None => {
                let argv = ["/bin/top".to_owned()];
                let exec = exec("top", &argv);
                let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
                world.call(Call::Run("web", None));
                world.call(Call::Run("proxy", None));
                world.run_for(ms(100));
                world.exec("proxy", &exec).unwrap();
                world.run_for(secs(5));
                let now = world.now;
                (world, now)
            }
        };
        assert_eq!(world.executed("web"), None);
        world.call(Call::Create("api"));
        world.run_for(ms(10));
        assert!(
            world.executed("web").is_some(),
            "{code:?}: {:#?}",
            world.seen
        );
    }
}

#[test]
fn an_exec_that_is_not_started_keeps_no_container_waiting() {
    let argv = ["/bin/setup".to_owned()];
    let exec = exec("post", &argv);
    let mut world = World::new(&[("sidecars", "proxy"), ("apps", "web")]).with_sandbox();
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    let now = world.now;
    world.pod.handle_exec(now, &"proxy".into(), &exec).unwrap();
    world.run_for(ms(900));
    assert_eq!(world.executed("web"), None);
    world.run_for(ms(200));
    assert_eq!(world.executed("web"), Some(now.after(ms(1_001))));
}

#[test]
fn a_shell_with_a_terminal_or_stdin_is_no_post_start() {
    let argv = ["/bin/sh".to_owned()];
    let shell = Exec {
        id: "shell",
        argv: &argv,
        has_deadline: false,
        is_interactive: true,
    };
    let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.exec("proxy", &shell).unwrap();
    world.run_for(secs(2));
    assert!(world.executed("web").is_some());
}

#[test]
fn a_held_container_waits_a_second_for_the_post_start_of_its_sidecar() {
    let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(secs(5));
    let started = world.executed("proxy").unwrap();
    assert_eq!(world.executed("web"), Some(started.after(ms(1_001))));
    // If another container is created, the app does not wait any longer, because kubelet runs a
    // container's handler before the next Create.
    let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    for name in ["web", "proxy", "api"] {
        world.call(Call::Run(name, None));
        world.run_for(ms(100));
    }
    assert!(world.executed("web").is_some());
    // Without a sandbox container the caller is not kubelet, so no handler is expected.
    let mut world = World::new(&[("sidecars", "proxy")]);
    for name in ["web", "proxy"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(ms(100));
    assert!(world.executed("web").is_some());
}
