//! The pod as a person sees it.

use crate::lifecycle::{
    ContainerView, Missing, Obstacle, Remedy, StateSummary, Status, Step, Then, Time, View,
};
use crate::plan::Role;

use super::fixtures::{PROBED, TERM, ask_all, deaf, never_ready, running, stops_after};

use crate::simulator::{Call, Script, World, ms, secs};

fn view(world: &World) -> View {
    world.pod.view(world.now)
}

fn container(world: &World, name: &str) -> ContainerView {
    let mut containers = view(world).containers.into_iter();
    containers.find(|container| container.name == name).unwrap()
}

fn succeeds_after(millis: u64) -> Script {
    Script {
        exits_after: Some((ms(millis), 0)),
        ..Script::default()
    }
}

#[test]
fn the_status_counts_what_is_done_of_each_stage() {
    let mut world = World::new(&[
        ("init", "one two"),
        ("sidecars", "net proxy"),
        ("apps", "web"),
        PROBED,
    ])
    .script("one", succeeds_after(1000))
    .script("two", succeeds_after(1000))
    .script("proxy", never_ready());
    for name in ["one", "two", "net", "proxy", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(ms(500));
    assert_eq!(view(&world).status, Status::Init(0, 2));
    world.run_for(secs(1));
    assert_eq!(view(&world).status, Status::Init(1, 2));
    assert_eq!(view(&world).ready, (0, 3));
    world.run_for(secs(1));
    assert_eq!(view(&world).status, Status::Sidecar(1, 2));
    assert_eq!(view(&world).ready, (1, 3));
    let stages: Vec<_> = view(&world)
        .stages
        .iter()
        .map(|stage| stage.is_done)
        .collect();
    assert_eq!(stages, [true, true, false]);
}

#[test]
fn a_failed_init_container_is_an_error_until_it_is_created_again() {
    let mut world = World::new(&[("init", "setup")]).script(
        "setup",
        Script {
            exits_after: Some((ms(100), 3)),
            ..Script::default()
        },
    );
    world.call(Call::Run("setup", None));
    world.run_for(secs(1));
    assert_eq!(view(&world).status, Status::InitError);
    world.call(Call::Create("setup#2"));
    assert_eq!(view(&world).status, Status::Init(0, 1));
}

#[test]
fn a_pod_without_orders_runs_and_completes() {
    let world = World::new(&[]).script("web", succeeds_after(90_000));
    let mut world = running(world, &["web"]);
    assert_eq!(view(&world).status, Status::Running);
    assert_eq!(view(&world).ready, (1, 1));
    world.run_for(secs(60));
    assert_eq!(view(&world).status, Status::Completed);
    assert_eq!(view(&world).ready, (0, 1));
}

#[test]
fn a_held_app_shows_its_obstacles_and_the_start_and_end_of_its_wait() {
    let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", "Hold")]);
    world.call(Call::Create("web"));
    world.run_for(secs(1));
    let began = world.now;
    world.call(Call::Start("web", None));
    world.run_for(secs(1));
    let wait = container(&world, "web").wait.unwrap();
    let proxy = Obstacle::Container {
        name: "proxy".to_owned(),
        role: Role::Sidecar,
        missing: Missing::NeverCreated,
    };
    assert_eq!(wait.obstacles, [proxy]);
    assert_eq!(wait.since, Some(began));
    assert_eq!(wait.until, Some((began.after(secs(300)), Then::Ended)));
    assert_eq!(container(&world, "web").state, StateSummary::Held);
}

#[test]
fn a_sidecar_that_is_probed_says_how_often_it_has_failed() {
    let mut world = World::new(&[("sidecars", "proxy"), PROBED]).script("proxy", never_ready());
    world.call(Call::Run("proxy", None));
    world.run_for(ms(2500));
    let wait = container(&world, "proxy").wait.unwrap();
    let [
        Obstacle::StartupProbe {
            failures,
            threshold,
        },
    ] = *wait.obstacles
    else {
        panic!("{wait:?}")
    };
    assert!(failures > 0 && failures < threshold, "{wait:?}");
    assert!(matches!(wait.until, Some((at, Then::Stopped)) if at > world.now));
    assert!(!container(&world, "proxy").is_ready);
}

#[test]
fn the_latest_stop_of_a_probed_sidecar_includes_the_timeouts_of_its_checks() {
    let probe =
        r#"{"tcpSocket":{"port":1},"periodSeconds":1,"timeoutSeconds":5,"failureThreshold":3}"#;
    let slow = Script {
        probe_takes: secs(5),
        ..never_ready()
    };
    let mut world = World::new(&[("sidecars", "proxy"), ("startup-probe.usher/proxy", probe)])
        .script("proxy", slow);
    world.call(Call::Run("proxy", None));
    let began = world.now;
    for after in [1, 4, 7, 14] {
        world.run_for(began.after(secs(after)).since(world.now));
        let until = container(&world, "proxy").wait.unwrap().until;
        // Three checks take 15 seconds in total.
        assert!(
            matches!(until, Some((at, Then::Stopped)) if at >= began.after(secs(15))),
            "after {after}s: {until:?}"
        );
    }
}

#[test]
fn a_start_that_waits_says_whether_it_will_fail() {
    for (mode, then) in [("Block", Then::StartFails), ("Auto", Then::Held)] {
        let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", mode), PROBED])
            .script("proxy", never_ready());
        world.call(Call::Run("proxy", None));
        world.call(Call::Run("web", Some(secs(100))));
        world.run_for(ms(500));
        let (at, what) = container(&world, "web").wait.unwrap().until.unwrap();
        assert_eq!(what, then);
        assert!(at > world.now && at < world.now.after(secs(100)), "{at}");
        // The wait ends as the view has said.
        world.run_for(at.since(world.now));
        let is_held = container(&world, "web").state == StateSummary::Held;
        assert_eq!(is_held, then == Then::Held, "{mode}");
    }
}

#[test]
fn a_sidecar_that_is_to_be_restarted_says_when() {
    let crashes = Script {
        exits_after: Some((ms(100), 1)),
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy"), ("restart-policy", "Never")]);
    let mut world = world.script("proxy", crashes);
    world.call(Call::Run("proxy", None));
    // The first restart comes at once. After 1 s, the sidecar is in the back-off before its second
    // restart.
    world.run_for(secs(1));
    let proxy = container(&world, "proxy");
    assert_eq!(proxy.state, StateSummary::BackingOff);
    let wait = proxy.wait.unwrap();
    assert_eq!(wait.obstacles, [Obstacle::BackOff]);
    assert!(matches!(wait.until, Some((at, Then::ExecutedAnew)) if at > world.now));
}

#[test]
fn a_stopping_container_shows_the_time_of_its_sigkill() {
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "8s")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    let asked = world.now;
    ask_all(&mut world, &["web", "proxy"], TERM);
    world.run_for(secs(3));
    assert_eq!(view(&world).status, Status::Terminating);
    let (web, over) = (container(&world, "web"), asked.after(secs(8)));
    let wait = web.wait.unwrap();
    assert_eq!(
        (web.state, wait.until),
        (StateSummary::Stopping, Some((over, Then::LastSignal)))
    );
    assert_eq!(wait.obstacles, [Obstacle::Exit]);
    let wait = container(&world, "proxy").wait.unwrap();
    let turn = Obstacle::TurnToStop {
        step: Step::Apps,
        defer: None,
    };
    assert_eq!(wait.obstacles, [turn]);
    let termination = view(&world).termination.unwrap();
    assert_eq!(termination.deadline, asked.after(secs(8)));
    world.run_for(secs(60));
    assert_eq!(view(&world).status, Status::Terminated);
}

#[test]
fn the_view_is_there_at_every_moment_of_a_pods_life() {
    let mut world = World::new(&[("init", "setup"), ("sidecars", "proxy")])
        .script("setup", succeeds_after(200))
        .script("web", stops_after(300));
    for name in ["web", "proxy", "setup"] {
        world.call(Call::Run(name, None));
    }
    let end = world.now.after(secs(30));
    let mut seen = Vec::new();
    let mut look = |world: &World| {
        let view = view(world);
        assert!(view.ready.0 <= view.ready.1);
        if seen.last() != Some(&view.status) {
            seen.push(view.status);
        }
    };
    while world.step(end) {
        look(&world);
    }
    ask_all(&mut world, &["web", "proxy", "setup"], TERM);
    let end = end.after(secs(60));
    while world.step(end) {
        look(&world);
    }
    let expected = [
        Status::Init(0, 1),
        Status::Sidecar(0, 1),
        Status::Running,
        Status::Terminating,
        Status::Terminated,
    ];
    assert_eq!(seen, expected);
}

#[test]
fn defers_are_counted_over_both_of_their_turns() {
    let mut world = World::new(&[
        ("sidecars", "proxy"),
        ("pre-exit", "drain save"),
        ("post-exit", "report upload"),
        ("grace-period", "60s"),
    ])
    .script("web", stops_after(1000));
    for name in ["drain", "save", "report", "upload"] {
        world = world.script(name, succeeds_after(1000));
    }
    let names = ["proxy", "web", "drain", "save", "report", "upload"];
    let mut world = running(world, &names);
    assert_eq!(view(&world).status, Status::Running);
    assert_eq!(view(&world).ready, (2, 2));
    let wait = container(&world, "drain").wait.unwrap();
    assert_eq!(
        (wait.obstacles, wait.until),
        (
            vec![Obstacle::TurnAtTheEnd {
                step: None,
                defer: None
            }],
            None
        )
    );
    ask_all(&mut world, &names, TERM);
    let end = world.now.after(secs(60));
    let mut seen = Vec::new();
    while world.step(end) {
        let status = view(&world).status;
        if seen.last() != Some(&status) {
            seen.push(status);
        }
    }
    let expected = [
        Status::Running,
        Status::Defer(0, 4),
        Status::Defer(1, 4),
        Status::Terminating,
        Status::Defer(2, 4),
        Status::Defer(3, 4),
        Status::Terminating,
        Status::Terminated,
    ];
    assert_eq!(seen, expected);
}

/// The time when a container was released. In the simulated world its program runs a millisecond
/// later.
fn released(world: &World, name: &str) -> Time {
    world.executed(name).unwrap().before(ms(1))
}

/// A pod whose defer container never exits by itself. All containers of the pod have been asked to
/// stop.
fn with_a_cleanup_that_hangs(settings: &[(&'static str, &'static str)]) -> World {
    let all = [
        ("sidecars", "proxy logs"),
        ("post-exit", "clean-up"),
        ("grace-period", "20s"),
    ];
    let names = ["proxy", "logs", "web", "clean-up"];
    let world = World::new(&[&all, settings].concat())
        .script("web", stops_after(1000))
        .script("clean-up", deaf());
    let mut world = running(world, &names);
    ask_all(&mut world, &names, TERM);
    world
}

#[test]
fn a_cleanup_that_runs_says_since_when_and_when_it_is_killed_and_the_sidecars_wait_for_it() {
    let mut world = with_a_cleanup_that_hangs(&[]);
    world.run_for(secs(5));
    let began = released(&world, "clean-up");
    let wait = container(&world, "clean-up").wait.unwrap();
    assert_eq!(
        (wait.obstacles, wait.since),
        (vec![Obstacle::Work], Some(began))
    );
    let Some((killed, Then::Killed)) = wait.until else {
        panic!("{:?}", wait.until)
    };
    let turn = Obstacle::TurnToStop {
        step: Step::PostExit,
        defer: Some("clean-up".to_owned()),
    };
    for sidecar in ["proxy", "logs"] {
        let wait = container(&world, sidecar).wait.unwrap();
        assert_eq!(wait.obstacles, std::slice::from_ref(&turn), "{sidecar}");
    }
    // The view shows the defer container's deadline, also after its stop signal.
    world.run_for(killed.since(world.now).saturating_sub(ms(100)));
    let wait = container(&world, "clean-up").wait.unwrap();
    let expected = (
        vec![Obstacle::Exit],
        Some(began),
        Some((killed, Then::Killed)),
    );
    assert_eq!((wait.obstacles, wait.since, wait.until), expected);
    world.run_for(secs(5));
    let last = world.signals("clean-up").pop();
    assert_eq!(last, Some((killed, crate::plan::Signal::KILL)));
}

#[test]
fn a_cap_of_a_cleanup_ends_its_time() {
    let mut world = with_a_cleanup_that_hangs(&[("grace-period.usher/clean-up", "4s")]);
    world.run_for(secs(2));
    let began = released(&world, "clean-up");
    let wait = container(&world, "clean-up").wait.unwrap();
    assert_eq!(wait.until, Some((began.after(secs(6)), Then::Killed)));
}

#[test]
fn sidecars_without_stop_requests_wait_for_a_cleanup_too() {
    let world = World::new(&[
        ("sidecars", "proxy"),
        ("apps", "web"),
        ("post-exit", "clean-up"),
        ("restart-policy", "Never"),
    ]);
    let world = world.script("clean-up", deaf());
    let mut world = running(world, &["proxy", "web", "clean-up"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(1));
    let wait = container(&world, "proxy").wait.unwrap();
    let turn = Obstacle::TurnToStop {
        step: Step::PostExit,
        defer: Some("clean-up".to_owned()),
    };
    assert_eq!((wait.obstacles, wait.since), (vec![turn], None));
}

#[test]
fn a_sidecar_waits_for_the_sidecar_that_stops_before_it() {
    let world = World::new(&[
        ("sidecars", "proxy logs"),
        ("apps", "web"),
        ("restart-policy", "Never"),
    ]);
    let world = world.script("logs", deaf());
    let mut world = running(world, &["proxy", "logs", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(1));
    let obstacles = |name| container(&world, name).wait.unwrap().obstacles;
    assert_eq!(obstacles("logs"), [Obstacle::Exit]);
    let turn = Obstacle::TurnToStop {
        step: Step::Sidecars,
        defer: None,
    };
    assert_eq!(obstacles("proxy"), [turn]);
}

#[test]
fn a_pod_has_as_many_containers_when_one_that_has_ended_is_deleted() {
    let world = World::new(&[("sidecars", "proxy"), ("restart-policy", "Never")]);
    let mut world = running(world, &["proxy", "web", "worker"]);
    assert_eq!(view(&world).ready, (3, 3));
    world.call(Call::Crash("web", 0));
    world.run_for(secs(1));
    assert_eq!(view(&world).ready, (2, 3));
    world.call(Call::Delete("web"));
    world.run_for(secs(1));
    assert_eq!(view(&world).ready, (2, 3));
}

#[test]
fn an_ungrouped_container_names_the_annotation_that_groups_containers() {
    let remedies = |world: &World| container(world, "web").wait.unwrap().remedies;
    let waiting = || World::new(&[("sidecars", "proxy"), ("start-mode", "Hold")]);
    let mut world = waiting().ungrouped();
    world.call(Call::Run("web", None));
    world.run_for(secs(6));
    let group = Remedy::Group {
        container: "web".to_owned(),
    };
    assert_eq!(remedies(&world), std::slice::from_ref(&group));
    let sentence = "web is alone in its pod; containers share a pod if all of them have the annotation \
        io.containerd.runc.v2.group with the same value";
    assert_eq!(group.to_string(), sentence);
    let told = world.told("web");
    assert!(told.iter().any(|line| line.contains(sentence)), "{told:?}");
    let mut world = waiting();
    world.call(Call::Run("web", None));
    world.run_for(secs(6));
    assert!(!remedies(&world).contains(&group));
}
