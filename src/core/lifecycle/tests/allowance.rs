//! The CPU allowance of a pod's probes: all probes together get a tenth of a CPU core. If they need
//! more, they take turns.

use std::time::Duration;

use proptest::prelude::*;

use crate::lifecycle::{Report, Time};

use super::fixtures::{TERM, deaf, never_ready, running};
use crate::simulator::{Call, Script, Seen, World, ms, secs};

const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];

/// A pod of sidecars whose probes have these periods, in milliseconds. `scripts` set the CPU time
/// of each attempt.
fn world(periods: &[u64], scripts: Vec<Script>) -> World {
    let names = NAMES[..periods.len()].join(" ");
    let probes: Vec<_> = std::iter::zip(NAMES, periods)
        .map(|(name, period)| {
            let probe = format!(
                r#"{{"exec":{{"command":["true"]}},"periodMilliseconds":{period},"failureThreshold":1000000}}"#
            );
            (format!("startup-probe.usher/{name}"), probe)
        })
        .collect();
    let mut annotations = vec![("sidecars", names.as_str()), ("startup-timeout", "1h")];
    annotations.extend(
        probes
            .iter()
            .map(|(key, probe)| (key.as_str(), probe.as_str())),
    );
    let mut world = World::new(&annotations);
    for (name, script) in std::iter::zip(NAMES, scripts) {
        world = world.script(name, script);
    }
    for name in &NAMES[..periods.len()] {
        world.call(Call::Run(name, None));
    }
    world
}

fn costs(script: Script, millis: u64) -> Script {
    Script {
        probe_costs: ms(millis),
        probe_takes: ms(millis + 10),
        ..script
    }
}

/// The time at which each attempt ended, with the attempt's container and CPU time.
fn attempts(world: &World) -> Vec<(Time, &str, Duration)> {
    let attempts = world.seen.iter().filter_map(|(at, seen)| match seen {
        Seen::Probed(name, cost) => Some((*at, name.as_str(), *cost)),
        _ => None,
    });
    attempts.collect()
}

/// Largest CPU time that all attempts together took in any period of this length.
fn most_within(world: &World, window: Duration) -> Duration {
    let attempts = attempts(world);
    let sums = attempts.iter().map(|(from, ..)| {
        let within = attempts
            .iter()
            .filter(|(at, ..)| at >= from && at.since(*from) <= window);
        within.map(|(.., cost)| *cost).sum()
    });
    sums.max().unwrap_or_default()
}

fn stretched(world: &World) -> Vec<&Report> {
    let reports = world.seen.iter().filter_map(|(_, seen)| match seen {
        Seen::Reported(report @ Report::Stretched { .. }) => Some(report),
        _ => None,
    });
    reports.collect()
}

#[test]
fn commands_every_millisecond_take_a_tenth_of_a_core_in_turns_and_the_log_says_it_once() {
    for count in [1, 2, 5] {
        let mut world = world(&vec![1; count], vec![costs(never_ready(), 25); count]);
        world.run_for(secs(120));
        let most = most_within(&world, secs(30));
        assert!(most <= secs(3), "{count}: {most:?}");
        // The probes use most of the three seconds that they are allowed.
        assert!(most >= secs(2), "{count}: {most:?}");
        let attempts = attempts(&world);
        let made = |name| attempts.iter().filter(|(_, of, _)| *of == name).count();
        let made: Vec<_> = NAMES[..count].iter().map(|name| made(*name)).collect();
        let (least, most) = (made.iter().min().unwrap(), made.iter().max().unwrap());
        assert!(*least > 0 && most - least <= 1, "{made:?}");
        let [Report::Stretched { name, period, to }] = stretched(&world)[..] else {
            panic!("{count}: {:?}", stretched(&world));
        };
        assert!(NAMES.contains(&name.as_str()));
        let long_run = ms(25 * 14) * u32::try_from(count).unwrap();
        assert_eq!(*period, ms(1));
        assert!(*to >= long_run && *to < long_run + ms(100), "{to:?}");
    }
}

#[test]
fn costs_of_other_probes_do_not_keep_a_sidecar_from_starting() {
    let ready = Script {
        ready_after: Some(secs(1)),
        ..Script::default()
    };
    let mut scripts = vec![costs(never_ready(), 60); 4];
    scripts.push(costs(ready, 1));
    let mut world = world(&[1, 1, 1, 1, 100], scripts);
    world.run_for(secs(30));
    let started = world.seen.iter().find_map(|(at, seen)| match seen {
        Seen::Reported(Report::Started { name, .. }) if name == "five" => Some(*at),
        _ => None,
    });
    // The sidecar is ready after a second. A round of the four other probes takes more than three
    // seconds.
    assert!(
        started.is_some_and(|at| at.since_origin() < secs(8)),
        "{started:?}"
    );
}

#[test]
fn probes_as_one_would_write_them_are_made_when_they_are_due() {
    // One probe runs a command every second, and two connect ten times a second.
    let scripts = vec![
        costs(never_ready(), 40),
        costs(never_ready(), 1),
        costs(never_ready(), 1),
    ];
    let mut world = world(&[1000, 100, 100], scripts);
    world.run_for(secs(60));
    assert!(stretched(&world).is_empty());
    let attempts = attempts(&world);
    for (name, period) in [("one", 1000), ("two", 100), ("three", 100)] {
        let times: Vec<_> = attempts.iter().filter(|(_, of, _)| *of == name).collect();
        for pair in times.windows(2) {
            assert_eq!(pair[1].0.since(pair[0].0), ms(period), "{name}");
        }
    }
}

#[test]
fn a_pod_whose_sidecars_start_at_once_waits_for_nothing() {
    let ready = Script {
        ready_after: Some(ms(60)),
        ..Script::default()
    };
    let mut world = world(&[100; 5], vec![costs(ready, 15); 5]);
    world.run_for(secs(5));
    let begun = world.executed("one").unwrap();
    for name in NAMES {
        let over: Vec<_> = attempts(&world)
            .iter()
            .filter(|(_, of, _)| *of == name)
            .map(|(at, ..)| at.since(begun))
            .collect();
        assert_eq!(over.len(), 2, "{name}");
        assert!(over[1] <= ms(130), "{name}: {over:?}");
    }
    assert!(stretched(&world).is_empty());
}

#[test]
fn a_defer_whose_probe_is_put_off_goes_on_until_it_can_be_asked() {
    let annotations = [
        ("pre-exit", "bye"),
        ("grace-period", "5s"),
        ("grace-extension", r#"{"probe":true,"maxSeconds":60}"#),
        (
            "liveness-probe.usher/bye",
            r#"{"exec":{"command":["true"]},"periodMilliseconds":1}"#,
        ),
    ];
    let well = Script {
        unwell_after: Some(secs(40)),
        ..costs(deaf(), 400)
    };
    let world = World::new(&annotations).script("bye", well);
    let mut world = running(world, &["web", "bye"]);
    let asked = world.now;
    for name in ["web", "bye"] {
        world.call(Call::Kill(name, TERM, Some(secs(125))));
    }
    world.run_for(secs(100));
    // The container `bye` is healthy for forty seconds. One attempt is made every six seconds.
    let told = world.signalled("bye").unwrap().since(asked);
    assert!(told >= secs(40) && told < secs(48), "{told:?}");
    assert!(most_within(&world, secs(30)) <= secs(3));
    assert_eq!(stretched(&world).len(), 1);
    world.check_end();
    // The extension ends at its bound, however much CPU time an attempt takes.
    let well = costs(deaf(), 20_000);
    let world = World::new(&annotations).script("bye", well);
    let mut world = running(world, &["web", "bye"]);
    let asked = world.now;
    for name in ["web", "bye"] {
        world.call(Call::Kill(name, TERM, Some(secs(125))));
    }
    world.run_for(secs(100));
    let told = world.signalled("bye").unwrap().since(asked);
    assert!(told <= secs(65), "{told:?}");
    world.check_end();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn probes_of_a_pod_take_a_tenth_of_a_core_and_each_gets_its_share(
        containers in prop::collection::vec((1_u64..2_000, 0_u64..60, 0_u64..2_000), 1..=5),
    ) {
        let periods: Vec<_> = containers.iter().map(|(period, ..)| *period).collect();
        let scripts = containers.iter().map(|(_, cost, takes)| Script {
            probe_costs: ms(*cost),
            probe_takes: ms(*takes),
            ..never_ready()
        });
        let mut world = world(&periods, scripts.collect());
        world.run_for(secs(90));
        let most = most_within(&world, secs(30));
        prop_assert!(most <= secs(3), "{most:?}");
        // The longest time between two attempts of a probe: the attempt itself, the period, and two
        // rounds. In a round, each probe makes one attempt. In the worst case, this probe is just
        // too late for one round, and comes last in the next round.
        let turn: u64 = containers.iter().map(|(_, cost, _)| (cost + 1) * 14).sum();
        let attempts = attempts(&world);
        for (name, (period, _, takes)) in std::iter::zip(NAMES, &containers) {
            let times: Vec<_> = attempts.iter().filter(|(_, of, _)| *of == name).collect();
            let bound = ms((*period).max((*takes).min(1000)) + takes + 2 * turn);
            for pair in times.windows(2) {
                let apart = pair[1].0.since(pair[0].0);
                prop_assert!(apart <= bound, "{name}: {apart:?} of {bound:?}");
            }
            prop_assert!(times.len() > 5, "{name}");
        }
    }
}
