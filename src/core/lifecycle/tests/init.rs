//! Init containers run in their order, each until it has succeeded. The tests check what the caller
//! sees of this.

use crate::lifecycle::Refusal;
use crate::plan::Signal;

use super::fixtures::{TERM, running};
use crate::simulator::{Call, Node, Script, World, ms, secs};

fn ends(after: u64, code: u8) -> Script {
    Script {
        exits_after: Some((ms(after), code)),
        ..Script::default()
    }
}

/// A pod with the init container `migrate`. Each test also creates the app `web`.
fn migrated(policy: &'static str) -> World {
    World::new(&[("init", "migrate"), ("restart-policy", policy)])
}

#[test]
fn init_containers_run_one_after_another_then_sidecars_then_apps() {
    let mut world = World::new(&[("init", "one two"), ("sidecars", "proxy")])
        .script("one", ends(700, 0))
        .script("two", ends(300, 0));
    for name in ["web", "proxy", "two", "one"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(5));
    let order = ["one", "two", "proxy", "web"].map(|name| world.executed(name).unwrap());
    assert!(order.is_sorted(), "{:#?}", world.seen);
    assert!(order[1].since(order[0]) >= ms(700) && order[2].since(order[1]) >= ms(300));
}

#[test]
fn a_startup_order_mixes_init_containers_and_sidecars() {
    let mut world = World::new(&[
        ("init", "one two"),
        ("sidecars", "net proxy"),
        ("startup-order", "one net two proxy"),
        (
            "startup-probe.usher/net",
            r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":100}"#,
        ),
    ])
    .script("one", ends(200, 0))
    .script("two", ends(200, 0))
    .script(
        "net",
        Script {
            ready_after: Some(ms(450)),
            ..Script::default()
        },
    );
    for name in ["web", "proxy", "two", "net", "one"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(10));
    let [one, net, two, proxy, web] =
        ["one", "net", "two", "proxy", "web"].map(|name| world.executed(name).unwrap());
    assert!(net >= one.after(ms(200)) && two >= net.after(ms(450)));
    assert!(
        proxy >= two.after(ms(200)) && web >= proxy,
        "{:#?}",
        world.seen
    );
}

#[test]
fn a_failed_init_container_keeps_everything_waiting_until_it_has_succeeded() {
    let mut world = migrated("OnFailure")
        .script("migrate", ends(200, 1))
        .script("migrate#2", ends(200, 0));
    world.call(Call::Run("migrate", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(20));
    assert_eq!(world.reported("migrate"), Some(1));
    assert_eq!(world.executed("web"), None);
    world.call(Call::Delete("migrate"));
    let again = world.now;
    world.call(Call::Run("migrate#2", None));
    world.run_for(secs(2));
    assert!(world.executed("web").unwrap() >= again.after(ms(200)));
}

#[test]
fn under_never_a_failed_init_container_ends_the_pod_and_is_named() {
    for mode in ["Hold", "Block"] {
        let mut world = World::new(&[
            ("init", "migrate"),
            ("sidecars", "proxy"),
            ("startup-order", "proxy migrate"),
            ("restart-policy", "Never"),
            ("start-mode", mode),
        ])
        .script("migrate", ends(200, 3));
        for name in ["proxy", "migrate", "web"] {
            world.call(Call::Run(name, None));
        }
        world.run_for(secs(5));
        assert_eq!(world.reported("migrate"), Some(3));
        assert_eq!(world.executed("web"), None);
        match mode {
            "Hold" => {
                assert_eq!(world.reported("web"), Some(1));
                let told = world.told("web").join(" ");
                assert!(told.contains("migrate failed with 3"), "{told}");
            }
            _ => {
                let refusal = world.start_answer("web").unwrap().1.unwrap_err();
                assert!(matches!(refusal, Refusal::Terminating { .. }));
                assert!(
                    refusal.to_string().contains("migrate failed with 3"),
                    "{refusal}"
                );
            }
        }
        assert!(!world.is_alive("proxy"), "{:#?}", world.seen);
        assert_eq!(world.reported("proxy"), Some(0));
        // Kubelet creates the next container only now.
        world.call(Call::Run("late", None));
        world.run_for(secs(1));
        assert_eq!(world.executed("late"), None);
    }
}

#[test]
fn the_success_of_an_init_container_is_kept_from_a_caller_that_would_restart_it() {
    for (policy, code) in [("Always", 0), ("OnFailure", 143)] {
        let mut world = migrated(policy).script("migrate", ends(200, 0));
        world = running(world, &["migrate", "web"]);
        assert!(world.is_executing("web"));
        assert_eq!(world.reported("migrate"), None);
        world.call(Call::Kill("migrate", TERM, None));
        world.run_for(secs(2));
        assert_eq!(world.reported("migrate"), Some(code), "under {policy}");
        assert!(world.is_executing("web"));
        world.check_end();
    }
}

#[test]
fn a_success_is_not_withheld_from_a_caller_that_has_asked_for_the_stop() {
    let stops = Script {
        stops_after: Some(ms(100)),
        stop_code: 0,
        ..Script::default()
    };
    // The program exits with 0 before the kernel has killed it.
    let exits_first = Script {
        survives_sigkill: true,
        ..ends(300, 0)
    };
    for (script, signal) in [(stops, TERM), (exits_first, Signal::KILL)] {
        for (policy, code) in [("Always", 0), ("OnFailure", 143)] {
            let mut world = migrated(policy).script("migrate", script.clone());
            world.call(Call::Run("migrate", None));
            world.call(Call::Run("web", None));
            world.run_for(ms(100));
            world.call(Call::Kill("migrate", signal, None));
            world.run_for(secs(1));
            assert_eq!(world.reported("migrate"), Some(code), "{policy} {signal}");
        }
    }
}

#[test]
fn under_never_the_success_of_an_init_container_is_published_at_once() {
    let mut world = migrated("Never").script("migrate", ends(200, 0));
    world.call(Call::Run("migrate", None));
    world.run_for(secs(1));
    assert_eq!(world.reported("migrate"), Some(0));
}

#[test]
fn a_withheld_success_is_published_when_the_pod_terminates() {
    let world = World::new(&[("init", "migrate"), ("sidecars", "proxy")]);
    let world = world.script("migrate", ends(200, 0));
    let mut world = running(world, &["migrate", "proxy", "web"]);
    for name in ["proxy", "web"] {
        world.call(Call::Kill(name, TERM, None));
    }
    world.run_for(secs(5));
    assert_eq!(world.reported("migrate"), Some(0));
    world.check_end();
}

#[test]
fn a_withheld_success_is_published_if_the_caller_creates_no_other_container() {
    let mut world = World::new(&[("init", "migrate"), ("startup-timeout", "20s")])
        .script("migrate", ends(200, 0));
    world.call(Call::Run("migrate", None));
    world.run_for(secs(19));
    assert_eq!(world.reported("migrate"), None);
    world.run_for(secs(2));
    assert_eq!(world.reported("migrate"), Some(0));
}

#[test]
fn a_restarted_app_does_not_wait_for_completed_init_containers() {
    let world = World::new(&[("init", "migrate"), ("restart-policy", "Never")]);
    let world = world.script("migrate", ends(200, 0));
    let mut world = running(world, &["migrate", "web"]);
    world.call(Call::Delete("migrate"));
    world.call(Call::Crash("web", 1));
    world.call(Call::Run("web#2", None));
    world.run_for(ms(100));
    assert!(world.is_executing("web#2"), "{:#?}", world.seen);
}

#[test]
fn containers_created_after_a_recreated_init_container_wait_for_it() {
    let world = World::new(&[("init", "migrate"), ("restart-policy", "Never")]);
    let world = world
        .script("migrate", ends(200, 0))
        .script("migrate#2", ends(3_000, 0));
    let mut world = running(world, &["migrate", "web"]);
    world.call(Call::Run("migrate#2", None));
    world.call(Call::Crash("web", 1));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(2));
    assert_eq!(world.executed("web#2"), None);
    world.run_for(secs(2));
    assert!(world.is_executing("web#2"), "{:#?}", world.seen);
}

#[test]
fn native_init_containers_run_at_once_and_delay_no_container() {
    let mut world = World::new(&[("native-init", "setup mesh"), ("sidecars", "proxy")])
        .script("setup", ends(500, 0));
    world.call(Call::Run("setup", None));
    world.run_for(ms(100));
    assert!(world.is_executing("setup"));
    world.run_for(secs(1));
    assert_eq!(world.reported("setup"), Some(0));
    let mut world = running(world, &["mesh", "proxy", "web"]);
    let asked = world.now;
    for name in ["proxy", "web"] {
        world.call(Call::Kill(name, TERM, None));
    }
    world.run_for(secs(10));
    // Kubelet stops a native sidecar only when all other containers are gone. So `proxy` must not
    // wait for `mesh`.
    assert!(
        world.died("proxy").unwrap() < asked.after(secs(1)),
        "{:#?}",
        world.seen
    );
    assert!(world.is_alive("mesh"));
    world.call(Call::Kill("mesh", TERM, None));
    assert!(world.signalled("mesh").is_some());
}
