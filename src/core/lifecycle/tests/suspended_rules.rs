//! Rules that repeat without end: one rule that is faulty on purpose, and some that had bugs in the
//! past.

use crate::lifecycle::{Report, Time};
use crate::plan::Signal;
use crate::simulator::{Call, Script, Seen, World, ms, secs};

use super::fixtures::{TERM, ask_all, running};

/// The durations for which the faulty rule was suspended.
fn pauses(world: &World) -> Vec<u64> {
    let seen = world.seen.iter();
    let pauses = seen.filter_map(|(_, seen)| match seen {
        Seen::Reported(Report::RuleSuspended { rule, name, pause }) => {
            assert_eq!((*rule, name), ("faulty", &None));
            Some(pause.as_secs())
        }
        _ => None,
    });
    pauses.collect()
}

#[test]
fn a_rule_that_repeats_without_effect_is_suspended_and_the_pod_goes_on() {
    let mut world = World::new(&[("usher/sidecars", "proxy"), ("usher/apps", "web")]);
    world.pod.break_a_rule(true);
    for name in ["proxy", "web"] {
        world.call(Call::Run(name, None));
        world.run_for(ms(50));
    }
    assert_eq!(pauses(&world), [1]);
    let runs = |name: &str| {
        let executed = |seen: &Seen| *seen == Seen::Executed(name.to_owned());
        world.seen.iter().any(|(_, seen)| executed(seen))
    };
    assert!(runs("proxy") && runs("web"), "{:#?}", world.seen);
    world.run_for(secs(29));
    assert_eq!(pauses(&world), [1, 2, 4, 8, 16]);
    let next = world.next_at().unwrap();
    assert!(next > world.now, "no timer is due again at once");
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(1));
    let died = |seen: &Seen| matches!(seen, Seen::Died(id, _) if id == "web");
    assert!(world.seen.iter().any(|(_, seen)| died(seen)));
}

/// A pod in which the shim inferred a termination, and took it back when the pod went on. The defer
/// container `flush` was released in between, and still runs. `flush` has a grace period of 4 s,
/// but ignores signals.
fn with_a_defer_of_a_false_end(flush: Script) -> World {
    let annotations = [
        ("pre-exit", "drain flush"),
        ("apps", "web"),
        ("grace-period", "10s"),
        ("grace-period.usher/flush", "4s"),
    ];
    let drain = Script {
        exits_after: Some((ms(300), 0)),
        ..Script::default()
    };
    let world = World::new(&annotations).with_sandbox();
    let world = world.script("drain", drain).script("flush", flush);
    let mut world = running(world, &["drain", "web", "flush"]);
    world.call(Call::Crash("web", 1));
    world.run_for(secs(10));
    // While the app is in back-off, the image of the container `drain` is changed. So kubelet stops
    // this container.
    world.call(Call::Kill("drain", TERM, None));
    world.run_for(secs(2));
    assert!(world.executed("flush").is_some(), "{:#?}", world.seen);
    for name in ["web#2", "drain#2"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(20));
    world
}

fn kills(world: &World, name: &str) -> Vec<Time> {
    let signals = world.signals(name).into_iter();
    let kills = signals.filter(|(_, signal)| *signal == Signal::KILL);
    kills.map(|(at, _)| at).collect()
}

#[test]
fn a_defer_of_a_disproved_termination_whose_cap_is_over_is_signaled_in_the_real_one() {
    let deaf = Script {
        stops_after: None,
        ..Script::default()
    };
    let mut world = with_a_defer_of_a_false_end(deaf);
    let known = world.now.after(ms(10));
    ask_all(&mut world, &["drain#2", "web#2", "flush"], TERM);
    world.run_for(secs(9));
    assert_eq!(kills(&world, "flush"), [known.after(secs(2))]);
    assert_eq!(world.signalled("flush"), Some(known));
    assert!(world.executed("drain#2").is_some(), "{:#?}", world.seen);
}

#[test]
fn a_defer_of_a_disproved_termination_that_survives_sigkill_is_given_up_once() {
    let hangs = Script {
        stops_after: None,
        survives_sigkill: true,
        ..Script::default()
    };
    let mut world = with_a_defer_of_a_false_end(hangs);
    ask_all(&mut world, &["drain#2", "web#2", "flush"], TERM);
    world.run_for(secs(20));
    let died = world.died("web#2");
    assert!(died.is_some(), "{:#?}", world.seen);
    assert!(world.executed("drain#2") < died, "{:#?}", world.seen);
}
