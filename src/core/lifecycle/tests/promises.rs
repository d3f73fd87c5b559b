//! Tests some of usher's promises with random pods.

use std::time::Duration;

use proptest::prelude::*;

use crate::lifecycle::{Phase, Time};
use crate::plan::Signal;

use crate::simulator::{Call, Script, Seen, World, ms, secs};

const SIDECARS: [&str; 3] = ["proxy", "logs", "agent"];
const APPS: [&str; 3] = ["web", "api", "job"];

/// A pod and the behavior of its containers.
#[derive(Clone, Debug)]
struct Case {
    sidecars: usize,
    apps: usize,
    serial: bool,
    probed: [bool; 3],
    mode: &'static str,
    stop_order: &'static str,
    grace: u64,
    scripts: Vec<Script>,
    /// The order in which the containers are created. `gaps` are the times between two creations.
    order: Vec<&'static str>,
    gaps: Vec<u64>,
    /// The delay of the stop request for each container.
    asks: Vec<u64>,
}

fn script() -> impl Strategy<Value = Script> {
    let stops = prop_oneof![4 => (0_u64..3_000).prop_map(Some), 1 => Just(None)];
    (0_u64..4_000, stops, 0_u64..20).prop_map(|(ready, stops, release)| Script {
        ready_after: Some(ms(ready)),
        stops_after: stops.map(ms),
        exits_after: None,
        release_takes: ms(release),
        ..Script::default()
    })
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (1_usize..=3, 1_usize..=3, any::<bool>(), any::<[bool; 3]>());
    let settings = (
        prop_oneof![Just("Auto"), Just("Block"), Just("Hold")],
        prop_oneof![Just("Reverse"), Just("Parallel")],
        1_u64..10,
    );
    let behaviour = (
        prop::collection::vec(script(), 6),
        prop::collection::vec(0_u64..3_000, 6),
        prop::collection::vec(0_u64..15, 6),
    );
    (shape, settings, behaviour)
        .prop_flat_map(|(shape, settings, behaviour)| {
            let names: Vec<&'static str> = SIDECARS[..shape.0]
                .iter()
                .chain(&APPS[..shape.1])
                .copied()
                .collect();
            (
                Just((shape, settings, behaviour)),
                Just(names).prop_shuffle(),
            )
        })
        .prop_map(|((shape, settings, behaviour), order)| Case {
            sidecars: shape.0,
            apps: shape.1,
            serial: shape.2,
            probed: shape.3,
            mode: settings.0,
            stop_order: settings.1,
            grace: settings.2,
            scripts: behaviour.0,
            order,
            gaps: behaviour.1,
            asks: behaviour.2,
        })
}

impl Case {
    fn sidecar_names(&self) -> &'static [&'static str] {
        &SIDECARS[..self.sidecars]
    }

    fn app_names(&self) -> &'static [&'static str] {
        &APPS[..self.apps]
    }

    fn world(&self) -> World {
        let sidecars = self.sidecar_names().join(",");
        let grace = format!("{}s", self.grace);
        let mut annotations = vec![
            ("sidecars", sidecars.as_str()),
            ("start-mode", self.mode),
            ("sidecar-stop-order", self.stop_order),
            ("grace-period", &grace),
        ];
        if self.serial {
            annotations.push(("startup-order", &sidecars));
        }
        let keys = SIDECARS.map(|name| format!("startup-probe.usher/{name}"));
        let probe = r#"{"tcpSocket":{"port":80},"periodMilliseconds":250,"failureThreshold":1000}"#;
        for (position, key) in keys.iter().enumerate().take(self.sidecars) {
            if self.probed[position] {
                annotations.push((key, probe));
            }
        }
        let mut world = World::new(&annotations);
        for (name, script) in SIDECARS.iter().chain(&APPS).zip(&self.scripts) {
            world = world.script(name, script.clone());
        }
        world
    }

    fn create_all(&self, world: &mut World) {
        let mut at = Duration::ZERO;
        for (name, gap) in self.order.iter().zip(&self.gaps) {
            world.call_in(at, Call::Run(name, None));
            at += ms(*gap);
        }
    }

    fn ask_all(&self, world: &mut World) {
        for (name, wait) in self.order.iter().zip(&self.asks) {
            world.call_in(ms(*wait), Call::Kill(name, Signal::TERM, None));
        }
    }

    /// True if all other containers had exited when this container was asked to stop. The delays in
    /// `self.asks` count from the time `asked`.
    fn was_asked_alone(&self, world: &World, name: &str, asked: Time) -> bool {
        let position = self.order.iter().position(|other| *other == name).unwrap();
        let at = asked.after(ms(self.asks[position]));
        let mut others = self.order.iter().filter(|other| **other != name);
        others.all(|other| world.died(other).is_some_and(|died| died <= at))
    }

    /// The time when a sidecar's program was ready for its startup probe.
    fn started(&self, world: &World, position: usize) -> Option<Time> {
        let executed = world.executed(SIDECARS[position])?;
        Some(match self.probed[position] {
            true => executed.after(self.scripts[position].ready_after.unwrap()),
            false => executed,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_app_runs_before_every_sidecar_is_started(case in case()) {
        let mut world = case.world();
        case.create_all(&mut world);
        world.run_for(secs(120));
        let started: Vec<_> = (0..case.sidecars).map(|n| case.started(&world, n)).collect();
        for app in case.app_names() {
            let executed = world.executed(app);
            prop_assert!(executed.is_some(), "{app} never ran: {:#?}", world.seen);
            prop_assert!(started.iter().all(|started| *started <= executed));
        }
        if case.serial {
            for (earlier, later) in started.iter().zip(&SIDECARS[1..case.sidecars]) {
                prop_assert!(*earlier <= world.executed(later));
            }
        }
        world.check_end();
    }

    #[test]
    fn no_start_is_kept_waiting_beyond_what_its_mode_allows(case in case()) {
        let mut world = case.world();
        case.create_all(&mut world);
        world.run_for(secs(120));
        for app in case.app_names() {
            let (answered, answer) = world.start_answer(app).unwrap();
            prop_assert!(answer.is_ok());
            match case.mode {
                "Block" => prop_assert_eq!(Some(answered), world.executed(app)),
                "Hold" => prop_assert!(Some(answered) <= world.executed(app)),
                _ => prop_assert!(answered.since_origin() <= ms(15_000 + 10_000 + 100)),
            }
        }
    }

    #[test]
    fn no_sidecar_is_signaled_while_an_app_lives_and_all_containers_end_in_time(case in case()) {
        let mut world = case.world();
        case.create_all(&mut world);
        world.run_for(secs(120));
        let asked = world.now;
        world.seen.clear();
        case.ask_all(&mut world);
        world.run_for(secs(60));
        // The grace period starts with the first stop request, which may be delayed.
        let first = asked.after(ms(*case.asks[..case.order.len()].iter().min().unwrap()));
        let deadline = first.after(secs(case.grace));
        let last_app = case.app_names().iter().filter_map(|app| world.died(app)).max().unwrap();
        for sidecar in case.sidecar_names() {
            let signalled = world.signalled(sidecar).unwrap();
            prop_assert!(signalled >= last_app.min(deadline), "{sidecar} at {signalled}: {:#?}", world.seen);
        }
        for name in &case.order {
            let died = world.died(name);
            if died.is_none() && case.was_asked_alone(&world, name, asked) {
                // The pod does not terminate, because only this container was asked to stop. The
                // container ignores its signal, and the caller does not kill it.
                continue;
            }
            prop_assert!(died.is_some(), "{name} lives");
            // The grace period starts with the first request of the termination. A request that is
            // delivered before the next one comes is not part of the termination. So even the last
            // request may be the first of the termination, and the limit counts from it. In the
            // simulator a kill takes a millisecond.
            let last = asked.after(ms(*case.asks[..case.order.len()].iter().max().unwrap()));
            prop_assert!(
                died <= Some(last.after(secs(case.grace)).after(ms(2_001))), "{name} died at {died:?}");
        }
        // The phase need not be `Terminated`. If all apps exited before the sidecar was asked to
        // stop, the sidecar was the pod's last container, and there was no termination.
        prop_assert!(!matches!(world.pod.phase(), Phase::Terminating(_)));
        world.check_end();
    }

    #[test]
    fn sidecars_stop_one_by_one_in_the_reverse_order_of_their_start(case in case()) {
        let mut world = case.world();
        case.create_all(&mut world);
        world.run_for(secs(120));
        let mut sidecars: Vec<_> = case
            .sidecar_names()
            .iter()
            .map(|name| (world.executed(name).unwrap(), *name))
            .collect();
        sidecars.sort();
        world.seen.clear();
        let first = world.now.after(ms(*case.asks[..case.order.len()].iter().min().unwrap()));
        case.ask_all(&mut world);
        world.run_for(secs(60));
        let deadline = first.after(secs(case.grace));
        for pair in sidecars.windows(2) {
            let ((earlier_at, earlier), (later_at, later)) = (pair[0], pair[1]);
            let signalled = world.signalled(earlier).unwrap();
            // Sidecars that were started at the same moment stop in any order.
            if case.stop_order == "Reverse" && earlier_at < later_at {
                let died = world.died(later).unwrap();
                prop_assert!(signalled >= died.min(deadline), "{earlier} before {later} was gone");
            }
        }
    }

    #[test]
    fn single_stops_never_end_a_pod(case in case(), which in 0_usize..6, wait in 0_u64..5_000) {
        let mut world = case.world();
        case.create_all(&mut world);
        world.run_for(secs(120));
        world.seen.clear();
        let name = case.order[which % case.order.len()];
        world.call_in(ms(wait), Call::Kill(name, Signal::TERM, None));
        world.run_for(secs(60));
        let signalled = world.seen.iter().filter_map(|(_, seen)| match seen {
            Seen::Signalled(who, _) if who != name => Some(who.clone()),
            _ => None,
        });
        prop_assert_eq!(signalled.collect::<Vec<_>>(), Vec::<String>::new());
    }
}
