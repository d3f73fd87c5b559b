//! Names that end in `?`. A name without a container has no effect. A name with a container counts
//! like any other name.

use crate::lifecycle::{Status, Time};
use crate::plan::{Plan, Roles, Rules};

use crate::simulator::case::{Case, Part};
use crate::simulator::kubelet::Log;
use crate::simulator::survey::noting_panics;
use crate::simulator::{Call, Script, Seen, World, expand, ms, secs};

use super::fixtures::{TERM, ask_all, running, stops_after};

/// Runs the case, and returns all that was observed.
fn seen(case: &Case) -> Vec<(Time, Seen)> {
    let mut world = World::with_plan(case.plan());
    let (_, panic) = noting_panics(|| case.live_on(&mut world, &mut Log::default()));
    assert_eq!(panic, None, "{case}");
    world.seen
}

#[track_caller]
fn assert_same(case: &Case, other: &Case) {
    let (seen, others) = (seen(case), seen(other));
    let differs = seen
        .iter()
        .zip(&others)
        .position(|(one, other)| one != other);
    let at = differs.unwrap_or(seen.len().min(others.len()));
    assert!(
        seen == others,
        "{case}\n{:#?}\nand without it\n{:#?}",
        seen.get(at),
        others.get(at)
    );
}

#[test]
fn an_optional_name_without_a_container_has_no_effect() {
    for seed in 0..1_000 {
        let mut case = Case::numbered(seed);
        case.absent = Vec::new();
        let without = case.clone();
        let parts = [Part::Init, Part::Sidecar, Part::PreExit, Part::PostExit];
        case.absent = ["seed", "mesh", "save", "bill"]
            .into_iter()
            .zip(parts)
            .collect();
        assert_same(&case, &without);
    }
}

/// The small pods create the app last, after all other containers that usher orders.
#[test]
fn an_optional_name_whose_container_is_created_counts_like_any_other() {
    for without in Case::small() {
        let mut case = without.clone();
        for member in &mut case.members {
            let is_ordered = member.part.is_ours() && member.part != Part::App;
            member.optional = is_ordered;
        }
        assert_same(&case, &without);
    }
}

#[test]
fn an_app_waits_for_an_optional_sidecar_that_is_there() {
    let probe = r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":1000}"#;
    let slow = Script {
        ready_after: Some(ms(450)),
        ..Script::default()
    };
    let annotations = [("sidecars", "proxy?"), ("startup-probe.usher/proxy", probe)];
    let mut world = World::new(&annotations).script("proxy", slow.clone());
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(5));
    let started = world.executed("proxy").unwrap().after(ms(450));
    assert!(world.executed("web").unwrap() >= started);
    // Without the optional sidecar, the app runs at once. A sidecar created later also runs.
    let mut world = World::new(&annotations).script("proxy", slow);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    assert!(world.executed("web").unwrap() <= Time::default().after(ms(50)));
    world.call(Call::Run("proxy", None));
    world.run_for(secs(5));
    assert!(world.executed("proxy").is_some());
}

#[test]
fn an_optional_sidecar_that_came_late_is_stopped_last() {
    let world = World::new(&[("sidecars", "proxy?")]).script("web", stops_after(700));
    let mut world = running(world, &["web", "proxy"]);
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(5));
    assert!(world.signalled("proxy").unwrap() >= world.died("web").unwrap());
}

#[test]
fn a_pod_that_nothing_came_to_runs() {
    let mut world = World::new(&[("init", "setup?"), ("sidecars", "proxy?")]);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    let view = world.pod.view(world.now);
    assert_eq!((view.status, view.ready), (Status::Running, (1, 1)));
    assert_eq!(view.stages, []);
}

fn world_of_node(everywhere: bool, annotations: &[(&str, &str)]) -> World {
    let mut rules = Rules::default();
    rules.roles = Roles::new(["*-proxy"], everywhere).unwrap();
    let plan = Plan::parse_under(&expand(annotations), &rules)
        .unwrap()
        .plan;
    World::with_plan(plan)
}

#[test]
fn a_sidecar_that_only_the_node_knows_is_stopped_last() {
    for (everywhere, annotations) in [(false, &[("apps", "web")][..]), (true, &[])] {
        for order in [["web", "istio-proxy"], ["istio-proxy", "web"]] {
            let world = world_of_node(everywhere, annotations).script("web", stops_after(700));
            let mut world = running(world, &order);
            ask_all(&mut world, &["istio-proxy", "web"], TERM);
            world.run_for(secs(5));
            let told = world.signalled("istio-proxy").unwrap();
            assert!(
                told >= world.died("web").unwrap(),
                "{order:?}: {:#?}",
                world.seen
            );
        }
    }
}

#[test]
fn an_optional_sidecar_does_not_keep_a_run_from_completion() {
    let ends = Script {
        exits_after: Some((secs(2), 0)),
        ..Script::default()
    };
    let annotations = [("apps", "job"), ("restart-policy", "Never")];
    let mut world = world_of_node(false, &annotations).script("job", ends);
    world.call(Call::Run("job", None));
    world.call(Call::Run("istio-proxy", None));
    world.run_for(secs(5));
    assert!(world.died("istio-proxy").is_some());
}

#[test]
fn a_pod_without_annotations_and_such_a_sidecar_sees_no_difference() {
    let story = |mut world: World| {
        let names = ["web", "api"];
        world = running(world, &names);
        ask_all(&mut world, &names, TERM);
        world.run_for(secs(5));
        // Either the core or its driver answers a Kill, and the caller sees no difference.
        let answers = |seen: &Seen| matches!(seen, Seen::KillAnswered(_, Ok(())));
        world.seen.retain(|(_, seen)| !answers(seen));
        world.seen
    };
    assert_eq!(
        story(world_of_node(true, &[])),
        story(world_of_node(false, &[]))
    );
}
