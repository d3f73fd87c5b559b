//! A rule that is a bug.

use super::fixtures::TERM;
use crate::lifecycle::Report;
use crate::simulator::{Call, Seen, World, ms, secs};

/// How long the faulty rule was set aside, each time.
fn pauses(world: &World) -> Vec<u64> {
    let seen = world.seen.iter();
    let pauses = seen.filter_map(|(_, seen)| match seen {
        Seen::Reported(Report::Circle { rule, name, pause }) => {
            assert_eq!((*rule, name), ("faulty", &None));
            Some(pause.as_secs())
        }
        _ => None,
    });
    pauses.collect()
}

#[test]
fn a_rule_that_goes_round_in_circles_waits_and_the_pod_goes_on() {
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
