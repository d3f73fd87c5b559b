//! Pods whose state is replaced by a copy of their snapshot after every event.

use std::fmt;

use crate::lifecycle::{Pod, SnapshotError};
use crate::simulator::case::Case;
use crate::simulator::kubelet::Log;
use crate::simulator::survey::{self, Broken, check, number};
use crate::simulator::{Call, World, ms, secs};

/// A pod whose state is written down and read back after every event.
struct Copied(Case);

impl Copied {
    fn live(&self, is_copied: bool) -> World {
        let (mut world, mut log) = (World::with_plan(self.0.plan()), Log::default());
        world.is_copied = is_copied;
        self.0.live_on(&mut world, &mut log);
        world.run_for(secs(600));
        world
    }
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl survey::World for Copied {
    fn run(&self) -> Vec<Broken> {
        let (seen, of_copies) = (self.live(false).seen, self.live(true).seen);
        let differs = seen
            .iter()
            .zip(&of_copies)
            .find(|(one, other)| one != other);
        if differs.is_none() && seen.len() == of_copies.len() {
            return Vec::new();
        }
        vec![Broken {
            promise: "a pod whose state was written down and read back goes on as before",
            what: format!("{differs:?}"),
            timeline: String::new(),
        }]
    }

    fn simpler(&self) -> Vec<Copied> {
        self.0.simpler().into_iter().map(Copied).collect()
    }
}

#[test]
fn a_pod_read_from_its_snapshot_behaves_as_before() {
    check(0..150, 1, |seed| Some(Copied(Case::numbered(seed))));
}

/// Runs the cases of `scripts/simulate --copies`.
#[test]
#[ignore = "takes as long as it is told to"]
fn simulate() {
    let (from, seeds) = (number("USHER_FROM", 0), number("USHER_SEEDS", 1_000));
    check(from..from + seeds, 1, |seed| {
        Some(Copied(Case::numbered(seed)))
    });
}

#[test]
fn the_snapshot_of_a_pod_of_five_is_a_few_kilobytes() {
    let lists = [
        ("init", "setup"),
        ("sidecars", "proxy, logs"),
        ("apps", "web, api"),
    ];
    let mut world = World::new(&lists);
    for name in ["setup", "proxy", "logs", "web", "api"] {
        world.call(Call::Run(name, None));
        world.run_for(ms(100));
    }
    let size = world.pod.to_snapshot().unwrap().len();
    println!("{size} bytes");
    assert!((1_000..16_000).contains(&size), "{size} bytes");
}

#[test]
fn a_snapshot_of_another_version_is_refused() {
    let text = Pod::default().to_snapshot().unwrap();
    let later = text.replacen("\"version\":1", "\"version\":2", 1);
    let refused = Pod::from_snapshot(&later).unwrap_err();
    assert!(matches!(refused, SnapshotError::OtherVersion { found: 2 }));
    assert_eq!(
        refused.to_string(),
        "the state of a pod has format version 2; usher reads only 1"
    );
    assert!(Pod::from_snapshot(&text[..text.len() - 1]).is_err());
}
