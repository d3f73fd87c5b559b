//! Bounds of waits: the pod's view names the latest end of each wait, and the event that ends it.
//! If nothing else happens before, the wait ends at that time with that event.

use crate::lifecycle::{ContainerView, Obstacle, Step, Then, Time, Wait};
use crate::plan::Signal;
use crate::simulator::{Call, World, ms, secs};

use super::fixtures::{TERM, ask_all, deaf, running};

type Settings<'a> = &'a [(&'static str, &'static str)];

fn container(world: &World, name: &str) -> ContainerView {
    let mut containers = world.pod.view(world.now).containers.into_iter();
    containers.find(|container| container.name == name).unwrap()
}

fn wait(world: &World, name: &str) -> Wait {
    container(world, name).wait.unwrap()
}

/// The end of a wait according to the view, in milliseconds after `since`, and the event that ends
/// the wait.
fn bound(world: &World, name: &str, since: Time) -> (u64, Then) {
    let (until, then) = wait(world, name).until.unwrap();
    (u64::try_from(until.since(since).as_millis()).unwrap(), then)
}

/// Asks all containers of a pod to stop, and waits a second. The containers named in `is_deaf`
/// ignore their stop signals. Returns the world and the time of the stop requests.
fn hanging(settings: Settings, names: &[&'static str], is_deaf: &[&str]) -> (World, Time) {
    let all: Settings = &[("sidecars", "proxy logs"), ("grace-period", "20s")];
    let mut world = World::new(&[all, settings].concat());
    for name in is_deaf {
        world = world.script(name, deaf());
    }
    let mut world = running(world, names);
    let asked = world.now;
    ask_all(&mut world, names, TERM);
    world.run_for(secs(1));
    (world, asked)
}

/// Runs until `millis` milliseconds after `since`, and two milliseconds more.
fn run_until(world: &mut World, since: Time, millis: u64) {
    let end = since.after(ms(millis + 2));
    world.run_for(end.since(world.now));
}

#[test]
fn an_app_that_ignores_its_signal_is_said_to_end_as_it_does() {
    for (policy, at, then) in [
        ("Shared", 20_000, Then::LastSignal),
        ("Strict", 20_000, Then::Killed),
        ("Reserve", 14_000, Then::Killed),
        ("Overrun", 20_000, Then::Killed),
        ("SkipHooks", 20_000, Then::Killed),
    ] {
        let names = ["proxy", "logs", "web"];
        let (mut world, asked) = hanging(&[("grace-policy", policy)], &names, &["web"]);
        assert_eq!(bound(&world, "web", asked), (at, then), "{policy}");
        let before = world.signals("web").len();
        run_until(&mut world, asked, at);
        let signals = world.signals("web").split_off(before);
        let expected = match then {
            Then::LastSignal => TERM,
            _ => Signal::KILL,
        };
        assert_eq!(signals, [(asked.after(ms(at)), expected)], "{policy}");
        if then == Then::LastSignal {
            assert_eq!(bound(&world, "web", asked), (at + 2000, Then::Killed));
            run_until(&mut world, asked, at + 2000);
            let last = world.signals("web").pop();
            assert_eq!(last, Some((asked.after(ms(at + 2000)), Signal::KILL)));
        }
    }
}

#[test]
fn a_sidecar_behind_an_app_that_ignores_its_signal_is_said_to_end_as_it_does() {
    for (policy, at, then) in [
        ("Shared", 20_000, Then::LastSignal),
        ("Strict", 20_000, Then::Killed),
        // The step begins when the app is killed; the containers of the step share two seconds.
        ("Reserve", 15_000, Then::LastSignal),
        ("Overrun", 21_000, Then::LastSignal),
        ("SkipHooks", 21_000, Then::LastSignal),
    ] {
        let names = ["proxy", "logs", "web"];
        let is_deaf = ["web", "logs", "proxy"];
        let (mut world, asked) = hanging(&[("grace-policy", policy)], &names, &is_deaf);
        let (told, what) = bound(&world, "proxy", asked);
        assert_eq!(what, then, "{policy}");
        // The simulated node takes a millisecond to kill a process.
        assert!(told.abs_diff(at) <= 5, "{policy}: {told}");
        run_until(&mut world, asked, at + 5);
        let (first, signal) = world.signals("proxy").remove(0);
        let expected = match then {
            Then::LastSignal => TERM,
            _ => Signal::KILL,
        };
        assert_eq!(signal, expected, "{policy}");
        assert!(first.since(asked) <= ms(at + 5), "{policy}: {first}");
    }
}

#[test]
fn a_cap_of_an_app_ends_its_wait_and_that_of_those_behind_it() {
    let settings = [
        ("grace-period.usher/web", "4s"),
        ("post-exit", "clean-up"),
        ("grace-policy", "Overrun"),
    ];
    let names = ["proxy", "logs", "web", "clean-up"];
    let (mut world, asked) = hanging(&settings, &names, &["web"]);
    let told = world.signalled("web").unwrap();
    let end = told.after(secs(4));
    assert_eq!(wait(&world, "web").until, Some((end, Then::Killed)));
    let turn = Some((end, Then::ItsTurn));
    assert_eq!(wait(&world, "clean-up").until, turn);
    assert_eq!(wait(&world, "clean-up").since, Some(asked));
    world.run_for(end.after(ms(20)).since(world.now));
    assert!(world.executed("clean-up").is_some());
}

#[test]
fn a_cleanup_behind_an_app_that_ignores_its_signal_says_when_it_is_left_out_or_runs() {
    for (policy, at, then) in [
        ("Shared", 20_000, Then::LeftOut),
        ("Strict", 20_000, Then::LeftOut),
        ("SkipHooks", 20_000, Then::LeftOut),
        ("Reserve", 14_000, Then::ItsTurn),
        ("Overrun", 20_000, Then::ItsTurn),
    ] {
        let settings = [("post-exit", "clean-up"), ("grace-policy", policy)];
        let names = ["proxy", "logs", "web", "clean-up"];
        let (mut world, asked) = hanging(&settings, &names, &["web"]);
        assert_eq!(bound(&world, "clean-up", asked), (at, then), "{policy}");
        let turn = Obstacle::TurnAtTheEnd {
            step: Some(Step::Apps),
            defer: None,
        };
        assert_eq!(wait(&world, "clean-up").obstacles, [turn]);
        run_until(&mut world, asked, at - 10);
        assert_eq!(world.executed("clean-up"), None, "{policy}");
        run_until(&mut world, asked, at + 10);
        let has_run = world.executed("clean-up").is_some();
        assert_eq!(has_run, then == Then::ItsTurn, "{policy}");
        let has_ended = world.died("clean-up").is_some();
        assert_eq!(has_ended, then == Then::LeftOut, "{policy}");
    }
}

#[test]
fn defers_behind_a_hanging_one_wait_for_its_time_and_for_earlier_defers() {
    let settings = [
        ("post-exit", "one two three"),
        ("grace-period.usher/one", "4s"),
    ];
    let names = ["proxy", "logs", "web", "one", "two", "three"];
    let (world, asked) = hanging(&settings, &names, &["one", "two"]);
    let began = world.executed("one").unwrap().before(ms(1));
    let end = began.after(secs(6));
    assert_eq!(wait(&world, "one").until, Some((end, Then::Killed)));
    assert_eq!(wait(&world, "two").until, Some((end, Then::ItsTurn)));
    assert_eq!(bound(&world, "three", asked), (20_000, Then::LeftOut));
}

#[test]
fn a_lone_request_waits_until_its_signal_is_delivered() {
    let world = World::new(&[("sidecars", "proxy")]).script("proxy", deaf());
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Kill("proxy", TERM, None));
    assert_eq!(
        wait(&world, "proxy").obstacles,
        [Obstacle::TerminationWindow]
    );
    let (at, then) = wait(&world, "proxy").until.unwrap();
    assert_eq!(then, Then::StopSignal);
    world.run_for(at.after(ms(1)).since(world.now));
    assert_eq!(world.signals("proxy"), [(at, TERM)]);
    // After the stop signal, the caller's SIGKILL comes next.
    let (_, then) = wait(&world, "proxy").until.unwrap();
    assert_eq!(then, Then::Killed);
}
