//! OOM scores: the kernel kills a sidecar no sooner than the apps that it serves.

use crate::lifecycle::{ContainerId, Demands};

use super::fixtures::TERM;
use crate::simulator::{Call, World, ms};

/// A pod whose containers have these OOM scores. Kubelet computes such scores from resource
/// requests.
fn pod(annotations: &[(&str, &str)], scores: &[(&'static str, i32)]) -> World {
    let world = World::new(annotations);
    scores.iter().fold(world, |world, (name, score)| {
        let demands = Demands {
            oom_score: *score,
            ..Demands::default()
        };
        world.demands(name, demands)
    })
}

fn score(world: &World, name: &str) -> Option<i32> {
    world.pod.oom_score(&ContainerId::from(name))
}

fn run(world: &mut World, names: &[&'static str]) {
    for name in names {
        world.call(Call::Run(name, None));
        world.run_for(ms(50));
    }
}

#[test]
fn a_sidecar_has_the_lowest_score_of_its_apps_in_whichever_order_they_come() {
    let scores = [("p", 990), ("a", 500), ("b", 700)];
    for order in [["p", "a", "b"], ["b", "p", "a"], ["a", "b", "p"]] {
        let mut world = pod(&[("sidecars", "p")], &scores);
        run(&mut world, &order);
        assert_eq!(score(&world, "p"), Some(500));
        assert_eq!((score(&world, "a"), score(&world, "b")), (None, None));
    }
}

#[test]
fn a_sidecar_that_is_better_protected_keeps_its_own_score() {
    let mut world = pod(&[("sidecars", "p")], &[("p", -900), ("a", 500)]);
    run(&mut world, &["a", "p"]);
    assert_eq!(score(&world, "p"), Some(-900));
}

#[test]
fn an_app_counts_from_before_its_creation_until_it_has_ended() {
    let mut world = pod(&[("sidecars", "p")], &[("p", 990), ("a", 500)]);
    run(&mut world, &["p"]);
    assert_eq!(score(&world, "p"), Some(990));
    world.call(Call::Create("a"));
    world.run_for(ms(1));
    assert_eq!(score(&world, "p"), Some(500));
    world.run_for(ms(50));
    world.call(Call::Kill("a", TERM, None));
    world.run_for(ms(100));
    assert_eq!(score(&world, "p"), Some(990));
}

#[test]
fn only_apps_lower_a_score() {
    let scores = [("p", 990), ("q", 1), ("i", 2), ("g", 3), ("a", 800)];
    let lists = [("init", "i"), ("sidecars", "p q"), ("apps", "a")];
    let mut world = pod(&lists, &scores);
    run(&mut world, &["i", "p", "q", "g", "a"]);
    assert_eq!(score(&world, "p"), Some(800));
    assert_eq!(score(&world, "q"), Some(1));
}

#[test]
fn no_score_changes_if_the_setting_is_off() {
    let lists = [("sidecars", "p"), ("oom-score", "Off")];
    let mut world = pod(&lists, &[("p", 990), ("a", 500)]);
    run(&mut world, &["p", "a"]);
    assert_eq!(score(&world, "p"), None);
}
