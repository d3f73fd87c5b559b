//! Exits of containers that end the pod.

use crate::lifecycle::{Phase, Remedy, Report};

use crate::plan::Signal;

use super::fixtures::{TERM, ask_all, deaf, running, stops_after};
use crate::simulator::{Call, Node, Seen, World, ms, secs};

fn job(policy: &'static str, apps: &'static str) -> World {
    let mut annotations = vec![("sidecars", "proxy logs"), ("restart-policy", policy)];
    if !apps.is_empty() {
        annotations.push(("apps", apps));
    }
    World::new(&annotations)
}

#[test]
fn a_job_is_over_when_all_its_apps_have_exited() {
    let mut world = running(job("Never", "web api"), &["proxy", "logs", "web", "api"]);
    world.call(Call::Crash("web", 1));
    world.run_for(secs(60));
    assert_eq!(world.signalled("proxy"), None);
    world.call(Call::Crash("api", 0));
    world.run_for(secs(5));
    // The sidecars stop in the reverse order of their start, and report no failure.
    assert!(
        world.died("logs") <= world.signalled("proxy"),
        "{:#?}",
        world.seen
    );
    assert_eq!(world.reported("proxy"), Some(0));
    assert_eq!(world.reported("logs"), Some(0));
    assert_eq!(world.pod.phase(), Phase::Terminated);
    world.check_end();
}

#[test]
fn under_on_failure_an_app_that_failed_is_waited_for_until_it_succeeds() {
    let mut world = running(job("OnFailure", "web"), &["proxy", "logs", "web"]);
    world.call(Call::Crash("web", 1));
    world.call(Call::Delete("web"));
    world.run_for(secs(300));
    assert!(world.is_executing("proxy"));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    world.call(Call::Crash("web#2", 0));
    world.run_for(secs(5));
    // The run is complete. No other sandbox will need the sidecars, so they report 0.
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
}

#[test]
fn under_on_failure_a_container_stopped_too_early_reports_a_failure() {
    let world = job("OnFailure", "web").script("web", deaf());
    let mut world = running(world, &["proxy", "logs", "web"]);
    ask_all(&mut world, &["proxy", "logs", "web"], TERM);
    world.run_for(secs(10));
    // The caller kills `web` at the end of the grace period.
    world.call(Call::Kill("web", Signal::KILL, None));
    world.run_for(secs(10));
    assert_eq!(world.reported("web"), Some(137));
    assert_eq!(world.reported("proxy"), Some(143), "{:#?}", world.seen);
}

#[test]
fn under_on_failure_a_sidecar_that_is_stopped_alone_reports_a_failure() {
    // kubelet's liveness probe of the sidecar has failed. Under `OnFailure`, kubelet restarts a
    // container only after a failure.
    for (policy, code) in [("OnFailure", 143), ("Never", 0)] {
        let mut world = running(job(policy, "web"), &["proxy", "logs", "web"]);
        world.call(Call::Kill("proxy", TERM, None));
        world.run_for(secs(10));
        assert_eq!(world.reported("proxy"), Some(code), "{policy}");
        assert!(world.is_executing("web"));
    }
}

#[test]
fn a_run_that_waits_for_apps_that_may_still_come_says_so_in_its_sidecars_logs() {
    let mut world = job("Never", "");
    for name in ["proxy", "logs", "web", "api"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(1));
    world.call(Call::Crash("web", 0));
    world.run_for(secs(6));
    assert_eq!(world.told("proxy"), [""; 0], "an app still runs");
    world.call(Call::Crash("api", 0));
    world.run_for(secs(4));
    let late = world.pod.view(world.now).lateness.unwrap();
    let list = vec!["api".to_owned(), "web".to_owned()];
    assert_eq!(late.remedy, Remedy::Complete { list });
    assert_eq!(world.told("proxy"), [""; 0], "nor is it worth a word yet");
    world.run_for(secs(2));
    for name in ["proxy", "logs"] {
        let told = world.told(name);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("usher: all apps have ended"),
            "{told:?}"
        );
        assert!(
            told[0].ends_with("annotation usher/apps: api, web completes it at once"),
            "{told:?}"
        );
    }
    world.run_for(secs(60));
    assert!(world.told("proxy").len() == 1 && world.died("proxy") >= Some(late.until));
    assert_eq!(world.pod.view(world.now).lateness, None);
    world.check_end();
}

/// The container names in each `KeptAlive` report.
fn said_kept(world: &World) -> Vec<Vec<String>> {
    let said = world.seen.iter().filter_map(|(_, seen)| match seen {
        Seen::Reported(Report::KeptAlive { by }) => Some(by.clone()),
        _ => None,
    });
    said.collect()
}

#[test]
fn a_guest_that_keeps_a_complete_pod_alive_is_named_once() {
    for policy in ["Never", "OnFailure"] {
        let mut world = running(job(policy, "web"), &["proxy", "logs", "web"]);
        world.call(Call::Run("agent", None));
        world.run_for(secs(60));
        assert_eq!(world.pod.view(world.now).kept, None, "the run goes on");
        world.call(Call::Crash("web", 0));
        world.run_for(secs(4));
        let kept = world.pod.view(world.now).kept.expect("it is over");
        assert_eq!(kept.by, ["agent"]);
        assert!(said_kept(&world).is_empty(), "it may be about to exit");
        world.run_for(secs(600));
        assert_eq!(said_kept(&world), [["agent"]]);
        world.call(Call::Crash("agent", 0));
        world.run_for(secs(1));
        assert_eq!(world.pod.view(world.now).kept, None);
    }
}

#[test]
fn a_guest_beside_an_app_alone_is_named_too() {
    let annotations = [("apps", "web"), ("restart-policy", "Never")];
    let mut world = World::new(&annotations);
    for name in ["agent", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(60));
    world.call(Call::Crash("web", 1));
    world.run_for(secs(6));
    assert_eq!(world.pod.view(world.now).kept.unwrap().by, ["agent"]);
    assert_eq!(said_kept(&world), [["agent"]]);
}

#[test]
fn a_guest_keeps_no_pod_alive_whose_end_its_caller_asks_for() {
    let mut world = running(job("Never", "web"), &["proxy", "logs", "web"]);
    world.call(Call::Run("agent", None));
    ask_all(&mut world, &["proxy", "logs", "web"], TERM);
    world.run_for(secs(20));
    assert_eq!(world.pod.view(world.now).kept, None);
    assert!(said_kept(&world).is_empty());
}

#[test]
fn a_run_with_listed_apps_is_not_late() {
    let mut world = job("Never", "web").script("proxy", deaf());
    for name in ["proxy", "logs", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(1));
    world.call(Call::Crash("web", 0));
    assert_eq!(world.pod.view(world.now).lateness, None);
    world.run_for(secs(20));
    assert_eq!(world.told("proxy"), [""; 0]);
}

#[test]
fn a_run_waits_for_a_listed_app_that_is_not_created_yet() {
    let mut world = running(job("Never", "web api"), &["proxy", "logs", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(3_600));
    assert!(world.is_executing("proxy"));
}

#[test]
fn where_apps_are_not_listed_none_is_expected_after_thirty_seconds() {
    let mut world = job("Never", "");
    for name in ["proxy", "logs", "web"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(1));
    world.call(Call::Crash("web", 0));
    world.run_for(secs(28));
    assert!(world.is_executing("proxy"));
    world.call(Call::Run("api", None));
    world.run_for(secs(1));
    world.call(Call::Crash("api", 0));
    world.run_for(secs(28));
    assert!(world.is_executing("proxy"), "{:#?}", world.seen);
    world.run_for(secs(3));
    assert!(!world.is_alive("proxy"), "{:#?}", world.seen);
}

#[test]
fn a_pod_of_sidecars_is_not_complete() {
    let mut world = running(job("Never", ""), &["proxy", "logs"]);
    world.run_for(secs(3_600));
    assert!(world.is_executing("proxy"));
}

#[test]
fn under_always_nothing_is_ever_complete() {
    let mut world = running(job("Always", "web"), &["proxy", "logs", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(3_600));
    assert!(world.is_executing("proxy"));
}

#[test]
fn the_failure_of_an_essential_container_ends_the_pod_apps_first() {
    let world = World::new(&[
        ("sidecars", "proxy logs"),
        ("restart-policy", "Never"),
        ("essential", "logs"),
    ])
    .script("web", stops_after(700));
    let mut world = running(world, &["proxy", "logs", "web"]);
    world.call(Call::Crash("logs", 1));
    world.run_for(secs(5));
    assert_eq!(world.reported("logs"), Some(1));
    assert!(world.died("web").unwrap() <= world.signalled("proxy").unwrap());
    assert_eq!(world.reported("proxy"), Some(0));
    world.check_end();
}

#[test]
fn the_success_of_an_essential_container_ends_nothing() {
    let world = World::new(&[("sidecars", "proxy"), ("essential", "web")]);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("web", 0));
    world.run_for(ms(5_000));
    assert!(world.is_executing("proxy"));
}
