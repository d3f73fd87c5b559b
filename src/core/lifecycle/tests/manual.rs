//! Requests of a person: `usher stop`, `usher release`.

use proptest::prelude::*;

use crate::lifecycle::{Missing, Obstacle, Phase, Refusal, Status};
use crate::plan::{Role, Signal};

use super::fixtures::{PROBED, TERM, deaf, never_ready, running, stops_after};

use crate::simulator::{Call, Node, Seen, World, ms, secs};

fn was_released(world: &World, name: &str) -> bool {
    let is_it = |(_, seen): &(_, Seen)| matches!(seen, Seen::Released(other) if other == name);
    world.seen.iter().any(is_it)
}

#[test]
fn a_stop_by_hand_runs_the_whole_sequence() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", stops_after(700));
    let mut world = running(world, &["proxy", "web"]);
    let (names, _) = world.stop(None).unwrap();
    assert_eq!(names, ["proxy", "web"]);
    world.run_for(secs(5));
    assert_eq!(
        world.signalled("proxy").unwrap(),
        world.died("web").unwrap()
    );
    assert_eq!(world.pod.phase(), Phase::Terminated);
    assert_eq!(world.pod.view(world.now).status, Status::Stopped);
    world.check_end();
}

#[test]
fn a_stop_by_hand_has_the_grace_period_it_is_given() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    let asked = world.now;
    let (_, deadline) = world.stop(Some(secs(3))).unwrap();
    assert_eq!(deadline, asked.after(secs(3)));
    world.run_for(secs(10));
    let killed = (asked.after(secs(5)), Signal::KILL);
    assert_eq!(world.signals("web").last(), Some(&killed));
}

#[test]
fn a_second_stop_may_shorten_the_grace_period_and_never_lengthens_it() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    let (_, first) = world.stop(Some(secs(10))).unwrap();
    assert_eq!(world.stop(None).unwrap().1, first);
    assert_eq!(world.stop(Some(secs(60))).unwrap().1, first);
    assert!(world.stop(Some(secs(2))).unwrap().1 < first);
}

#[test]
fn containers_without_orders_are_stopped_too_and_the_sandbox_is_not() {
    let world = World::new(&[])
        .script("web", stops_after(100))
        .with_sandbox();
    let mut world = running(world, &["web"]);
    let (names, _) = world.stop(None).unwrap();
    assert_eq!(names, ["web"]);
    world.run_for(secs(5));
    assert_eq!(world.signals("web").len(), 1);
    assert_eq!(world.signals("pause"), []);
    assert!(world.died("web").is_some());
}

#[test]
fn a_guest_and_the_callers_own_init_container_are_stopped_too() {
    let world = World::new(&[("native-init", "setup"), ("apps", "web")]).script("debugger", deaf());
    let mut world = running(world, &["setup", "web", "debugger"]);
    world.stop(Some(secs(1)));
    world.run_for(secs(5));
    for name in ["setup", "web", "debugger"] {
        assert!(world.died(name).is_some(), "{name}");
    }
}

#[test]
fn where_nothing_is_alive_there_is_nothing_to_stop() {
    let mut world = running(World::new(&[("sidecars", "proxy")]), &["proxy"]);
    world.call(Call::Kill("proxy", Signal::KILL, None));
    world.run_for(secs(5));
    assert_eq!(world.stop(None), None);
}

#[test]
fn a_container_that_is_created_when_all_has_stopped_starts_the_pod_over() {
    // Without the sandbox, the pod would be over, and the next container would begin a new pod.
    let world = World::new(&[("sidecars", "proxy"), ("restart-policy", "Never")]).with_sandbox();
    let mut world = running(world, &["proxy", "web"]);
    world.stop(None);
    world.run_for(secs(5));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    assert_eq!(world.pod.phase(), Phase::Initializing);
    assert!(!was_released(&world, "web#2"));
    world.call(Call::Run("proxy#2", None));
    world.run_for(secs(2));
    assert!(was_released(&world, "web#2"));
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn a_container_created_while_a_person_stops_the_pod_does_not_start_it_over() {
    let world = World::new(&[("sidecars", "proxy")])
        .script("proxy", stops_after(5000))
        .with_sandbox();
    let mut world = running(world, &["proxy", "web"]);
    world.stop(None);
    world.run_for(secs(1));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(60));
    assert!(!was_released(&world, "web#2"));
    assert!(world.died("proxy").is_some());
}

#[test]
fn a_termination_that_was_inferred_is_for_certain_when_it_is_asked_for_by_hand() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", stops_after(5000));
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(Call::Kill("web", TERM, None));
    world.call(Call::Kill("proxy", TERM, None));
    world.stop(None);
    world.call(Call::Run("api#2", None));
    world.run_for(secs(60));
    assert_eq!(world.pod.phase(), Phase::Terminated);
    assert!(!was_released(&world, "api#2"));
}

#[test]
fn a_release_by_hand_starts_the_container_and_returns_the_overridden_obstacles() {
    for mode in ["Hold", "Block"] {
        let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", mode), PROBED])
            .script("proxy", never_ready());

        world.call(Call::Run("proxy", None));
        world.call(Call::Run("web", None));
        world.run_for(secs(1));
        let overridden = world.release("web").unwrap();
        let proxy = Obstacle::Container {
            name: "proxy".to_owned(),
            role: Role::Sidecar,
            missing: Missing::NotStarted,
        };
        assert_eq!(overridden, [proxy]);
        world.run_for(secs(1));
        assert!(was_released(&world, "web"));
    }
}

/// Only `usher stop` stops containers outside the pod's plan (guests).
#[test]
fn a_run_that_is_complete_and_stopped_by_hand_stops_guests_too() {
    let world = World::new(&[
        ("sidecars", "proxy"),
        ("apps", "web"),
        ("restart-policy", "Never"),
    ]);
    let world = world.script("proxy", stops_after(700));
    let mut world = running(world, &["proxy", "web", "debugger"]);
    world.call(Call::Crash("web", 3));
    world.run_for(ms(10));
    assert!(matches!(world.pod.phase(), Phase::Terminating(_)));
    assert!(world.stop(Some(secs(5))).is_some());
    world.run_for(secs(5));
    assert!(!world.is_alive("debugger"), "{:#?}", world.seen);
    world.check_end();
}

#[test]
fn a_container_that_does_not_wait_cannot_be_released() {
    let mut world = running(World::new(&[("sidecars", "proxy")]), &["proxy", "web"]);
    let refused = world.release("web").unwrap_err();
    assert!(matches!(refused, Refusal::NotHeld { .. }), "{refused}");
    assert!(matches!(
        world.release("api"),
        Err(Refusal::NotFound { .. })
    ));
    world.call(Call::Create("api"));
    world.run_for(secs(1));
    let refused = world.release("api").unwrap_err();
    assert!(matches!(refused, Refusal::NotHeld { .. }), "{refused}");
}

/// Events that may come before `usher stop`.
#[derive(Clone, Debug)]
enum Before {
    Run(&'static str),
    Kill(&'static str),
    Crash(&'static str),
    Release(&'static str),
}

const NAMES: [&str; 6] = ["setup", "proxy", "logs", "web", "api", "debugger"];

fn before() -> impl Strategy<Value = (u64, Before)> {
    let name = || prop::sample::select(NAMES.to_vec());
    let what = prop_oneof![
        5 => name().prop_map(Before::Run),
        1 => name().prop_map(Before::Kill),
        1 => name().prop_map(Before::Crash),
        1 => name().prop_map(Before::Release),
    ];
    (0_u64..3000, what)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_container_outlives_the_grace_period_of_a_stop_by_hand(
        befores in prop::collection::vec(before(), 1..14),
        is_deaf in prop::collection::vec(any::<bool>(), NAMES.len()),
        has_orders in any::<bool>(),
        has_sandbox in any::<bool>(),
        policy in prop::sample::select(vec!["Always", "OnFailure", "Never"]),
        grace in 0_u64..20,
    ) {
        let orders = [
            ("init", "setup"),
            ("sidecars", "proxy logs"),
            ("apps", "web api"),
            ("restart-policy", policy),
            PROBED,
        ];
        let mut world = World::new(if has_orders { &orders } else { &[] });
        for (name, is_deaf) in NAMES.iter().zip(&is_deaf) {
            world = world.script(name, if *is_deaf { deaf() } else { stops_after(700) });
        }
        if has_sandbox {
            world = world.with_sandbox();
        }
        let mut created = Vec::new();
        for (wait, what) in befores {
            match what {
                Before::Run(name) if !created.contains(&name) => {
                    created.push(name);
                    world.call(Call::Run(name, None));
                }
                Before::Kill(name) if created.contains(&name) => {
                    world.call(Call::Kill(name, TERM, None));
                }
                Before::Crash(name) if created.contains(&name) => {
                    world.call(Call::Crash(name, 3));
                }
                Before::Release(name) => drop(world.release(name)),
                _ => {}
            }
            world.run_for(ms(wait));
        }
        let asked = world.now;
        let stopped = world.stop(Some(secs(grace)));
        // SIGKILL comes two seconds after the last signal. The 200 ms are for the simulated
        // runtime.
        let end = asked.after(secs(grace + 2) + ms(200));
        while world.step(end) {
            let view = world.pod.view(world.now);
            prop_assert!(view.ready.0 <= view.ready.1);
        }
        for name in created {
            prop_assert!(!world.is_alive(name), "{name}: {:#?}", world.seen);
        }
        if stopped.is_some() {
            prop_assert_eq!(world.pod.phase(), Phase::Terminated);
        }
        prop_assert_eq!(world.signals("pause"), []);
        world.check_end();
    }
}

#[test]
fn a_stop_by_hand_ends_a_held_container_of_the_next_run_although_its_step_is_over() {
    let world = World::new(&[
        ("sidecars", "proxy"),
        ("essential", "web"),
        ("restart-policy", "Always"),
    ])
    .script("proxy", stops_after(5_000))
    .with_sandbox();
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("web", 1));
    world.run_for(secs(1));
    world.call(Call::Run("web#2", Some(secs(120))));
    world.run_for(ms(100));
    assert!(world.is_alive("web#2"), "{:#?}", world.seen);
    world.stop(None).unwrap();
    world.run_for(secs(40));
    assert!(!world.is_alive("web#2"), "{:#?}", world.seen);
    assert_eq!(world.executed("web#2"), None);
}
