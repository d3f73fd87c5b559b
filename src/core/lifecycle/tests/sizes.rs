//! Sizes of the pod's cgroup from phase to phase.

use crate::lifecycle::{ContainerId, Demands, Exec, Phase, PodSize, Step};
use crate::sizing::{Bytes, Limit, Millicores, Size, SizeChange};

use super::fixtures::{TERM, stops_after};
use crate::simulator::{Call, Script, World, ms, secs};

/// A size of `amount` thousandths of a CPU and `amount` bytes of memory.
fn size(amount: u64) -> Size {
    Size::exactly(Millicores(amount), Bytes(amount))
}

/// An Update to `amount` thousandths of a CPU and a limit of `amount` bytes.
fn change(amount: u64) -> SizeChange {
    SizeChange {
        cpu_request: Some(Millicores(amount)),
        cpu_limit: Some(Limit::Of(Millicores(amount))),
        memory_limit: Some(Limit::Of(Bytes(amount))),
    }
}

/// A pod whose size depends on its phase (`cgroup-sizing: Phase`), unless the annotations change
/// that.
fn pod(annotations: &[(&str, &str)], sizes: &[(&str, u64)]) -> World {
    let phase = [("cgroup-sizing", "Phase")];
    let annotations: Vec<_> = phase.iter().chain(annotations).copied().collect();
    let world = World::new(&annotations);
    sizes.iter().fold(world, |world, (name, amount)| {
        let demands = Demands {
            size: size(*amount),
            ..Demands::default()
        };
        world.demands(name, demands)
    })
}

fn create(world: &mut World, names: &[&'static str]) {
    for name in names {
        world.call(Call::Run(name, None));
        world.run_for(ms(50));
    }
}

#[track_caller]
fn now(world: &World) -> PodSize {
    world.pod.pod_size().expect("a size")
}

fn ids(names: &[&str]) -> Vec<ContainerId> {
    names.iter().map(|name| ContainerId::from(*name)).collect()
}

#[test]
fn each_phase_has_the_size_of_its_containers() {
    let lists = [
        ("init", "a b"),
        ("sidecars", "p"),
        ("startup-order", "a p b"),
    ];
    let once = |millis| Script {
        exits_after: Some((ms(millis), 0)),
        ..Script::default()
    };
    let mut world = pod(
        &lists,
        &[("a", 1000), ("b", 300), ("p", 20), ("w", 7), ("x", 8)],
    )
    .script("a", once(1000))
    .script("b", once(1000))
    .script("w", stops_after(500))
    .script("x", stops_after(500))
    .script("p", stops_after(500));
    create(&mut world, &["a", "p", "b", "w", "x"]);
    assert_eq!(world.pod.phase(), Phase::Initializing);
    let expected = PodSize {
        size: size(1000),
        asked: Some(size(1335).requests),
        counted: ids(&["a"]),
        held: ids(&["b", "p", "w", "x"]),
    };
    assert_eq!(now(&world), expected);
    world.run_for(secs(1));
    assert_eq!(now(&world).size, size(320));
    assert_eq!(now(&world).held, ids(&["w", "x"]));
    world.run_for(secs(2));
    assert_eq!(world.pod.phase(), Phase::Running);
    assert_eq!(now(&world).size, size(35));
    assert_eq!(now(&world).counted, ids(&["p", "w", "x"]));
    for name in ["p", "w", "x"] {
        world.call(Call::Kill(name, TERM, None));
    }
    world.run_for(ms(100));
    assert_eq!(world.pod.phase(), Phase::Terminating(Step::Apps));
    assert_eq!(now(&world).size, size(35));
    world.run_for(ms(600));
    assert_eq!(world.pod.phase(), Phase::Terminating(Step::Sidecars));
    assert_eq!(now(&world).size, size(20));
    world.run_for(secs(2));
    assert_eq!(world.pod.phase(), Phase::Terminated);
    assert_eq!(world.pod.pod_size(), None);
}

#[test]
fn defer_containers_have_their_turn_one_at_a_time() {
    let lists = [("sidecars", "p"), ("pre-exit", "c d"), ("post-exit", "e")];
    let once = Script {
        exits_after: Some((ms(500), 0)),
        ..Script::default()
    };
    let sizes = [("p", 20), ("w", 7), ("c", 300), ("d", 100), ("e", 9000)];
    let mut world = pod(&lists, &sizes)
        .script("c", once.clone())
        .script("d", once.clone())
        .script("e", once)
        .script("p", stops_after(500));
    create(&mut world, &["p", "w", "c", "d", "e"]);
    world.run_for(secs(60));
    assert_eq!(now(&world).size, size(27));
    assert_eq!(now(&world).held, ids(&["c", "d", "e"]));
    for name in ["p", "w"] {
        world.call(Call::Kill(name, TERM, None));
    }
    world.run_for(ms(100));
    for running in ["c", "d"] {
        assert_eq!(world.pod.phase(), Phase::Terminating(Step::PreExit));
        // In the whole step the pod has the size that its largest pre-exit container needs.
        assert_eq!(now(&world).size, size(327));
        assert!(now(&world).counted.contains(&ContainerId::from(running)));
        world.run_for(ms(500));
    }
    assert_eq!(world.pod.phase(), Phase::Terminating(Step::PostExit));
    assert_eq!(now(&world).size, size(9020));
    world.run_for(ms(500));
    assert_eq!(world.pod.phase(), Phase::Terminating(Step::Sidecars));
    assert_eq!(now(&world).size, size(20));
}

#[test]
fn a_container_counts_from_before_its_creation() {
    let mut world = pod(&[("sidecars", "p")], &[("p", 20), ("w", 7)]);
    create(&mut world, &["p"]);
    world.call(Call::Create("w"));
    world.run_for(ms(1));
    assert_eq!(now(&world).size, size(27));
    assert_eq!(now(&world).counted, ids(&["p", "w"]));
}

#[test]
fn a_container_that_is_still_created_when_the_sandbox_dies_does_not_count() {
    let mut world = pod(&[("apps", "w")], &[("w", 7)]).with_sandbox();
    world.run_for(ms(100));
    world.call(Call::Create("w"));
    world.run_for(ms(1));
    assert_eq!(now(&world).counted, ids(&["w"]));
    world.call(Call::Crash("pause", 137));
    world.run_for(ms(1));
    assert_eq!(world.pod.pod_size(), None);
}

#[test]
fn an_app_that_may_come_back_has_its_place() {
    let mut world = pod(&[("sidecars", "p")], &[("p", 20), ("w", 7), ("x", 1)]);
    create(&mut world, &["p", "w", "x"]);
    world.call(Call::Crash("w", 1));
    world.run_for(secs(1));
    assert_eq!(now(&world).size, size(28));
    assert_eq!(now(&world).counted, ids(&["p", "x"]));
}

#[test]
fn containers_that_run_outside_of_their_phase_count_too() {
    let lists = [("sidecars", "p"), ("native-init", "n")];
    let mut world = pod(&lists, &[("n", 500), ("p", 20), ("w", 7)]);
    create(&mut world, &["n", "p", "w"]);
    assert_eq!(world.pod.phase(), Phase::Running);
    assert_eq!(now(&world).size, size(527));
}

#[test]
fn requests_come_from_the_annotations_until_an_update_changes_them() {
    let lists = [
        ("sidecars", "p"),
        (
            "resources.usher/p",
            r#"{"requests":{"cpu":"3m","memory":"9"}}"#,
        ),
    ];
    let mut world = pod(&lists, &[("p", 20)]);
    create(&mut world, &["p"]);
    let annotated = now(&world).size;
    assert_eq!(annotated.limits, size(20).limits);
    assert_eq!(annotated.requests.cpu, Millicores(3));
    assert_eq!(annotated.requests.memory, Bytes(9));
    world.update("p", change(5));
    assert_eq!(now(&world).size.limits, size(5).limits);
    assert_eq!(now(&world).size.requests.cpu, Millicores(5));
    assert_eq!(now(&world).size.requests.memory, Bytes(9));
}

#[test]
fn a_container_without_a_limit_leaves_its_phase_without() {
    let world = pod(&[("sidecars", "p")], &[("p", 20)]);
    let unlimited = Demands {
        size: Size::UNLIMITED,
        ..Demands::default()
    };
    let mut world = world.demands("w", unlimited);
    create(&mut world, &["p"]);
    assert_eq!(now(&world).size.limits, size(20).limits);
    create(&mut world, &["w"]);
    assert_eq!(now(&world).size.limits.memory, Limit::Unlimited);
    assert_eq!(now(&world).size.limits.cpu, Limit::Unlimited);
}

#[test]
fn a_pod_without_processes_is_as_it_was() {
    let succeeds = Script {
        exits_after: Some((ms(10), 0)),
        ..Script::default()
    };
    let lists = [("init", "a"), ("sidecars", "p")];
    let mut world = pod(&lists, &[("a", 9), ("p", 20)]).script("a", succeeds);
    assert_eq!(world.pod.pod_size(), None);
    create(&mut world, &["a", "p"]);
    world.run_for(secs(1));
    assert_eq!(now(&world).size, size(20));
    // The shim withholds the exit of the init container `a`, so the caller still sees `a` as
    // RUNNING. After this crash of the sidecar no process is left.
    world.call(Call::Crash("p", 1));
    world.run_for(secs(1));
    assert_eq!(world.pod.pod_size(), None);
}

#[test]
fn guests_add_only_their_limits_while_they_live() {
    let lists = [("sidecars", "p"), ("apps", "w")];
    let mut world = pod(&lists, &[("p", 20), ("w", 7), ("g", 1000)]);
    create(&mut world, &["p", "w", "g"]);
    let mut expected = size(27);
    expected.limits = size(1027).limits;
    assert_eq!(now(&world).size, expected);
    assert_eq!(now(&world).counted, ids(&["p", "w"]));
    world.call(Call::Crash("g", 1));
    world.run_for(ms(50));
    assert_eq!(now(&world).size, size(27));
}

#[test]
fn a_held_container_takes_part_in_sizing_while_an_exec_runs_in_it() {
    let lists = [("sidecars", "p"), ("startup-timeout", "1h")];
    let mut world = pod(&lists, &[("p", 20), ("w", 7)]);
    create(&mut world, &["w"]);
    world.run_for(secs(20));
    assert_eq!(now(&world).held, ids(&["w"]));
    let shell = Exec {
        id: "shell",
        argv: &["/bin/sh".to_owned()],
        has_deadline: false,
        is_interactive: true,
    };
    world.exec("w", &shell).unwrap();
    assert_eq!(
        (now(&world).size, now(&world).counted),
        (size(7), ids(&["w"]))
    );
    world.exec_over("w", "shell", Some(0));
    assert_eq!(now(&world).held, ids(&["w"]));
}

#[test]
fn a_pod_keeps_its_size_unless_sizing_is_on() {
    let lists = [("sidecars", "p"), ("cgroup-sizing", "Off")];
    let mut world = pod(&lists, &[("p", 20)]);
    create(&mut world, &["p"]);
    assert_eq!(world.pod.pod_size(), None);
}

#[test]
fn the_effective_size_is_there_from_the_first_container_to_the_last() {
    let lists = [
        ("init", "a"),
        ("sidecars", "p"),
        ("apps", "w"),
        ("post-exit", "z"),
        ("cgroup-sizing", "Effective"),
        (
            "resources.usher/p",
            r#"{"requests":{"cpu":"20m"},"limits":{"cpu":"20m","memory":"20"}}"#,
        ),
        (
            "resources.usher/w",
            r#"{"requests":{"cpu":"7m"},"limits":{"cpu":"7m","memory":"7"}}"#,
        ),
        (
            "resources.usher/z",
            r#"{"requests":{"cpu":"1m"},"limits":{"cpu":"1m","memory":"1"}}"#,
        ),
    ];
    let once = Script {
        exits_after: Some((ms(500), 0)),
        ..Script::default()
    };
    let sizes = [("a", 1000), ("p", 20), ("w", 7), ("z", 1)];
    let mut world = pod(&lists, &sizes)
        .script("a", once.clone())
        .script("z", once);
    world.call(Call::Run("a", None));
    world.run_for(ms(100));
    let limits = size(1000).limits;
    assert_eq!(now(&world).size.limits, limits, "the init container runs");
    create(&mut world, &["p", "w", "z"]);
    world.run_for(secs(2));
    assert_eq!(world.pod.phase(), Phase::Running);
    assert_eq!(now(&world).size.limits, limits, "the app runs");
    for name in ["w", "p", "z"] {
        world.call(Call::Kill(name, TERM, None));
    }
    world.run_for(ms(200));
    assert_eq!(now(&world).size.limits, limits, "the pod ends");
}

#[test]
fn where_not_every_size_is_known_the_effective_one_is_its_callers() {
    let lists = [
        ("sidecars", "p"),
        ("apps", "w"),
        ("cgroup-sizing", "Effective"),
    ];
    let mut world = pod(&lists, &[("p", 20), ("w", 7)]);
    create(&mut world, &["p"]);
    assert_eq!(world.pod.pod_size(), None);
    create(&mut world, &["w"]);
    assert_eq!(now(&world).size, size(27));
}

#[test]
fn requests_match_kubelets_once_all_containers_are_known() {
    let lists = [
        ("native-init", "n"),
        ("init", "a"),
        ("sidecars", "p"),
        ("post-exit", "d"),
        ("apps", "w"),
    ];
    let sizes = [("n", 50), ("a", 100), ("p", 20), ("d", 3), ("w", 7)];
    let once = Script {
        exits_after: Some((ms(100), 0)),
        ..Script::default()
    };
    let mut world = pod(&lists, &sizes)
        .script("n", once.clone())
        .script("a", once);
    create(&mut world, &["n"]);
    assert_eq!(now(&world).asked, None);
    world.run_for(secs(1));
    create(&mut world, &["a", "p", "w", "d"]);
    assert_eq!(now(&world).asked, Some(size(130).requests));
    // kubelet sets the CPU request of `w` to zero. An Update does not change memory requests.
    world.update("w", change(0));
    let asked = now(&world).asked.expect("all are known");
    assert_eq!((asked.cpu, asked.memory), (Millicores(123), Bytes(130)));
}
