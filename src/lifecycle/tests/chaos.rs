//! Whatever the caller does, in whatever order: nothing panics, nothing spins, every request is
//! answered once, and no program runs that may not.

use proptest::prelude::*;

use crate::lifecycle::{ContainerId, ExitStatus, Phase};
use crate::plan::Signal;

use super::simulator::{Call, Script, Seen, World, ms, secs};

const NAMES: [&str; 6] = ["proxy", "logs", "setup", "web", "api", "pause"];

fn call() -> impl Strategy<Value = Call> {
    let name = || prop::sample::select(NAMES.as_slice());
    let patience = || prop::option::of((1_u64..200).prop_map(secs));
    let signal = prop::sample::select(vec![
        Signal::TERM,
        Signal::KILL,
        Signal::QUIT,
        Signal::new(1).unwrap(),
    ]);
    prop_oneof![
        6 => (name(), patience()).prop_map(|(name, patience)| Call::Run(name, patience)),
        1 => name().prop_map(Call::Create),
        1 => (name(), patience()).prop_map(|(name, patience)| Call::Start(name, patience)),
        1 => name().prop_map(Call::GiveUp),
        3 => (name(), signal, patience()).prop_map(|(name, signal, p)| Call::Kill(name, signal, p)),
        3 => name().prop_map(Call::Delete),
        2 => (name(), 0_u8..3).prop_map(|(name, code)| Call::Crash(name, code)),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let maybe = |limit: u64| prop::option::of((0..limit).prop_map(ms));
    (
        maybe(3_000),
        maybe(3_000),
        prop::option::of((0_u64..5_000, 0_u8..2)),
        0_u64..50,
    )
        .prop_map(|(ready_after, stops_after, exits, release)| Script {
            ready_after,
            stops_after,
            exits_after: exits.map(|(after, code)| (ms(after), code)),
            release_takes: ms(release),
            ..Script::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_call_is_answered_and_no_program_runs_out_of_turn(
        mode in prop::sample::select(vec!["Auto", "Block", "Hold"]),
        policy in prop::sample::select(vec!["Always", "OnFailure", "Never"]),
        listed in any::<bool>(),
        essential in prop::sample::select(vec!["web", "logs"]),
        with_sandbox in any::<bool>(),
        scripts in prop::collection::vec(script(), 5),
        calls in prop::collection::vec((0_u64..4_000, call()), 1..40),
    ) {
        let probe = r#"{"tcpSocket":{"port":80},"periodMilliseconds":200,"failureThreshold":20}"#;
        let mut annotations = vec![
            ("init", "setup"),
            ("sidecars", "proxy logs"),
            ("restart-policy", policy),
            ("essential", essential),
            ("start-mode", mode),
            ("startup-timeout", "30s"),
            ("grace-period", "5s"),
            ("startup-probe.usher/proxy", probe),
        ];
        if listed {
            annotations.push(("apps", "web api"));
        }
        let mut world = World::new(&annotations);
        for (name, script) in NAMES.iter().zip(scripts) {
            world = world.script(name, script);
        }
        if with_sandbox {
            world = world.with_sandbox();
        }
        for (wait, call) in calls {
            world.call_in(ms(wait), call);
            let end = world.now.after(ms(wait));
            loop {
                let before = world.seen.len();
                let more = world.step(end);
                for (_, seen) in &world.seen[before..] {
                    if let Seen::Released(name) = seen {
                        prop_assert!(may_run(&world, name), "{name} is released too early: {:#?}", world.seen);
                    }
                }
                if !more {
                    break;
                }
            }
        }
        // Longer than any bound: startup timeout, grace period, last chance.
        let mut steps = 0;
        let end = world.now.after(secs(600));
        while world.step(end) {
            steps += 1;
            prop_assert!(steps < 100_000, "it never comes to rest");
        }
        world.check_end();
        prop_assert!(!matches!(world.pod.phase(), Phase::Terminating(_)), "it never ended");
        for name in NAMES {
            prop_assert!(!world.pod.is_held(&ContainerId::from(name)), "{name} is held for ever");
        }
    }
}

/// An app is released only while both sidecars are started: the one would answer its startup probe,
/// the other, which has none, runs. Nothing but the init container comes before that has succeeded.
fn may_run(world: &World, name: &str) -> bool {
    let set_up = || {
        let mut seen = world.seen.iter().map(|(_, seen)| seen);
        seen.any(|seen| *seen == Seen::Died("setup".to_owned(), ExitStatus::Code(0)))
    };
    match name {
        "web" | "api" => set_up() && world.is_ready("proxy") && world.is_executing("logs"),
        "proxy" | "logs" => set_up(),
        _ => true,
    }
}
