//! Signals from the caller that count as stop requests, and the reasons for the signals that the
//! shim sends.

use crate::lifecycle::{ContainerId, ProbeKind, SignalReason};
use crate::plan::Signal;

use super::fixtures::{TERM, ask_all, by_hand, deaf, running};
use crate::simulator::{Call, Script, World, ms, secs};

fn signal(name: &str) -> Signal {
    name.parse().unwrap()
}

/// The signals that a container got, with their reasons.
fn whys(world: &World, name: &str) -> Vec<(Signal, SignalReason)> {
    let of_it = |(id, ..): &&(ContainerId, Signal, SignalReason)| id.as_str() == name;
    let signals = world.whys.iter().filter(of_it);
    signals.map(|(_, signal, why)| (*signal, *why)).collect()
}

#[test]
fn a_containers_own_stop_signal_is_one_and_another_is_a_message() {
    let world = World::new(&[
        ("sidecars", "proxy"),
        ("stop-signal.usher/web", "WINCH"),
        ("termination-window", "0s"),
    ])
    .script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    let winch = signal("WINCH");
    let (web, proxy) = (ContainerId::from("web"), ContainerId::from("proxy"));
    assert!(world.pod.is_stop(&web, by_hand(winch)));
    assert!(!world.pod.is_stop(&proxy, by_hand(winch)));
    assert!(world.pod.is_stop(&proxy, by_hand(TERM)));
    world.call(Call::Kill("web", signal("HUP"), None));
    world.call(Call::Kill("web", winch, None));
    world.run_for(secs(1));
    // A repeated signal is delivered at once.
    world.call(Call::Kill("web", winch, None));
    world.run_for(ms(10));
    let expected = [
        (signal("HUP"), SignalReason::Other),
        (winch, SignalReason::Alone),
        (winch, SignalReason::PassedOn),
    ];
    assert_eq!(whys(&world, "web"), expected);
    assert!(!SignalReason::Other.is_stop() && SignalReason::PassedOn.is_stop());
}

#[test]
fn a_stop_signal_to_an_unordered_container_counts_as_a_stop() {
    let mut world = running(World::new(&[]).script("web", deaf()), &["web"]);
    for name in ["USR1", "QUIT", "KILL"] {
        world.call(Call::Kill("web", signal(name), None));
    }
    world.run_for(secs(1));
    let expected = [
        (signal("USR1"), SignalReason::Other),
        (Signal::QUIT, SignalReason::PassedOn),
        (Signal::KILL, SignalReason::PassedOn),
    ];
    assert_eq!(whys(&world, "web"), expected);
}

#[test]
fn each_sigkill_is_reported_with_its_cause() {
    let last = |world: &World, name: &str| whys(world, name).last().copied();
    // First case: the grace period is over.
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "8s")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    ask_all(&mut world, &["web", "proxy"], TERM);
    world.run_for(secs(60));
    assert_eq!(
        last(&world, "web"),
        Some((Signal::KILL, SignalReason::GraceOver))
    );
    assert_eq!(last(&world, "proxy"), Some((TERM, SignalReason::TimeShort)));
    // Second case: the program is never executed.
    let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", "Hold")]);
    world.call(Call::Run("web", None));
    world.run_for(secs(301));
    assert_eq!(whys(&world, "web"), [(Signal::KILL, SignalReason::Held)]);
    // Third case: the container is unhealthy, and ignores its stop signal.
    let unwell = Script {
        unwell_after: Some(secs(20)),
        ..deaf()
    };
    let probe = r#"{"tcpSocket":{"port":80},"periodSeconds":2}"#;
    let world = World::new(&[("sidecars", "proxy"), ("liveness-probe.usher/proxy", probe)])
        .script("proxy", unwell);
    let mut world = running(world, &["proxy", "web"]);
    world.run_for(secs(70));
    let why = SignalReason::ProbeFailed(ProbeKind::Liveness);
    assert_eq!(
        whys(&world, "proxy")[..2],
        [(TERM, why), (Signal::KILL, why)]
    );
}

#[test]
fn an_authors_stop_signal_replaces_that_of_cri_and_comes_once_more_before_sigkill() {
    let (int, quit) = (Signal::INT, Signal::QUIT);
    for image in [TERM, quit] {
        let world = World::new(&[
            ("sidecars", "proxy"),
            ("stop-signal.usher/web", "INT"),
            ("grace-period", "5s"),
        ]);
        let world = world.with_sandbox().script("web", deaf());
        let mut world = running(world, &["proxy", "web"]);
        for name in ["web", "proxy"] {
            world.call(Call::Kill(name, image, Some(secs(125))));
        }
        world.run_for(secs(20));
        let expected = [
            (int, SignalReason::Alone),
            (int, SignalReason::TimeShort),
            (Signal::KILL, SignalReason::GraceOver),
        ];
        assert_eq!(whys(&world, "web"), expected, "{image}");
        // Without an annotation the image's stop signal is used.
        assert_eq!(
            whys(&world, "proxy").first().map(|(it, _)| *it),
            Some(image)
        );
    }
}

#[test]
fn without_a_deadline_an_authors_stop_signal_replaces_sigterm_alone() {
    let signals = [("TERM", "INT"), ("QUIT", "QUIT"), ("INT", "INT")];
    for (asked, delivered) in signals {
        let world = World::new(&[("sidecars", "proxy"), ("stop-signal.usher/web", "INT")]);
        let mut world = running(world, &["proxy", "web"]);
        world.call(Call::Kill("web", signal(asked), None));
        world.run_for(secs(5));
        assert_eq!(
            whys(&world, "web"),
            [(signal(delivered), SignalReason::Alone)]
        );
    }
    for reload in ["USR1", "HUP"] {
        let world = World::new(&[("sidecars", "proxy"), ("stop-signal.usher/web", "INT")]);
        let mut world = running(world.with_sandbox(), &["proxy", "web"]);
        world.call(Call::Kill("web", signal(reload), None));
        world.run_for(secs(60));
        assert_eq!(whys(&world, "web"), [(signal(reload), SignalReason::Other)]);
        assert!(
            !world
                .pod
                .is_stop(&ContainerId::from("web"), by_hand(signal(reload)))
        );
    }
}
