//! The signals that containers of a running pod see when they are asked to stop.

use crate::lifecycle::{Phase, Refusal};
use crate::plan::{KubeletFacts, PreStop, Signal};

use super::fixtures::{TERM, ask_all, deaf, exec, never_ready, running, stops_after};
use crate::simulator::{Call, Node, Seen, World, ms, secs};

#[test]
fn sidecars_are_signaled_after_the_apps_have_exited_in_any_order_of_requests() {
    for order in [
        ["proxy", "web", "api"],
        ["web", "proxy", "api"],
        ["api", "web", "proxy"],
    ] {
        let world = World::new(&[("sidecars", "proxy")])
            .script("web", stops_after(700))
            .script("api", stops_after(1500));
        let mut world = running(world, &["proxy", "web", "api"]);
        ask_all(&mut world, &order, TERM);
        world.run_for(secs(5));
        let (web, api) = (world.died("web").unwrap(), world.died("api").unwrap());
        assert_eq!(world.signalled("proxy").unwrap(), web.max(api), "{order:?}");
        assert_eq!(world.pod.phase(), Phase::Terminated);
        world.check_end();
    }
}

#[test]
fn a_request_is_answered_when_it_is_delivered_and_two_seconds_later_at_most() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", stops_after(2000));
    let mut world = running(world, &["proxy", "web"]);
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, None));
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(10));
    let answers = world.seen.iter().filter_map(|(at, seen)| match seen {
        Seen::KillAnswered(_, Ok(())) => Some(*at),
        _ => None,
    });
    // The proxy's turn comes when the app exits, two seconds after the requests.
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers, [asked, asked.after(secs(2))]);
}

#[test]
fn sidecars_stop_in_the_reverse_order_of_their_start_each_after_the_one_before() {
    let world = World::new(&[("sidecars", "a b c"), ("startup-order", "b c a")])
        .script("a", stops_after(300))
        .script("b", stops_after(300))
        .script("c", stops_after(300));
    let mut world = running(world, &["a", "b", "c", "web"]);
    ask_all(&mut world, &["a", "b", "c", "web"], TERM);
    world.run_for(secs(5));
    assert_eq!(world.signalled("a").unwrap(), world.died("web").unwrap());
    assert_eq!(world.signalled("c").unwrap(), world.died("a").unwrap());
    assert_eq!(world.signalled("b").unwrap(), world.died("c").unwrap());
}

#[test]
fn sidecars_stop_side_by_side_where_the_plan_says_so() {
    let world = World::new(&[("sidecars", "a b"), ("sidecar-stop-order", "Parallel")])
        .script("a", deaf())
        .script("b", stops_after(300));
    let mut world = running(world, &["a", "b", "web"]);
    ask_all(&mut world, &["a", "b", "web"], TERM);
    world.run_for(secs(1));
    assert_eq!(world.signalled("a"), world.signalled("b"));
}

#[test]
fn the_signal_that_was_asked_for_is_the_one_that_is_delivered_later() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", stops_after(500));
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Kill("proxy", Signal::QUIT, None));
    world.call(Call::Kill("web", Signal::INT, None));
    world.run_for(secs(2));
    assert_eq!(world.signals("proxy")[0].1, Signal::QUIT);
    assert_eq!(world.signals("web")[0].1, Signal::INT);
}

#[test]
fn all_containers_end_with_the_grace_period() {
    let world =
        World::new(&[("sidecars", "proxy logs"), ("grace-period", "8s")]).script("web", deaf());
    let world = world.script("proxy", deaf());
    let mut world = running(world, &["proxy", "logs", "web"]);
    let asked = world.now;
    ask_all(&mut world, &["proxy", "logs", "web"], TERM);
    world.run_for(secs(30));
    let end = asked.after(secs(8));
    // The app used up the grace period. At the end of the grace period every living container gets
    // a last signal, and SIGKILL two seconds later.
    assert_eq!(world.signalled("logs"), Some(end));
    assert_eq!(world.signalled("proxy"), Some(end));
    assert_eq!(world.signals("web")[1], (end, TERM));
    assert_eq!(world.signals("web")[2], (end.after(secs(2)), Signal::KILL));
    assert_eq!(world.died("proxy"), Some(end.after(ms(2001))));
    assert_eq!(world.died("logs"), Some(end.after(ms(20))));
    assert_eq!(world.pod.phase(), Phase::Terminated);
    world.check_end();
}

#[test]
fn the_callers_own_deadline_tells_the_real_grace_period() {
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "10s")]);
    let mut world = running(world.script("web", deaf()), &["proxy", "web"]);
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, Some(secs(124))));
    world.call(Call::Kill("web", TERM, Some(secs(124))));
    world.run_for(secs(30));
    assert_eq!(world.signalled("proxy"), Some(asked.after(secs(4))));
}

#[test]
fn a_sigkill_is_never_queued_for_an_app() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(1));
    world.call(Call::Kill("web", Signal::KILL, None));
    assert_eq!(
        world.signals("web").last().unwrap(),
        &(world.now, Signal::KILL)
    );
    world.run_for(secs(1));
    // The app is gone, so the sidecar's turn has come.
    assert_eq!(world.signals("proxy")[0].1, TERM);
}

#[test]
fn a_sidecar_that_is_killed_before_its_turn_gets_its_stop_signal_and_two_seconds() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", deaf());
    let mut world = running(world.script("proxy", deaf()), &["proxy", "web"]);
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(1));
    let killed = world.now;
    // A forced deletion sends SIGKILL more than once.
    world.call(Call::Kill("proxy", Signal::KILL, None));
    world.call(Call::Kill("proxy", Signal::KILL, None));
    world.run_for(secs(5));
    let expected = [(killed, TERM), (killed.after(secs(2)), Signal::KILL)];
    assert_eq!(world.signals("proxy"), expected);
}

#[test]
fn a_sidecar_that_is_killed_in_its_turn_or_in_a_living_pod_dies_at_once() {
    let world = World::new(&[("sidecars", "proxy")]).script("proxy", deaf());
    let mut world = running(world, &["proxy", "web"]);
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(1));
    world.call(Call::Kill("proxy", Signal::KILL, None));
    assert_eq!(
        world.signals("proxy").last(),
        Some(&(world.now, Signal::KILL))
    );

    let mut world = running(World::new(&[("sidecars", "proxy")]), &["proxy", "web"]);
    world.call(Call::Kill("proxy", Signal::KILL, None));
    assert_eq!(world.signals("proxy"), [(world.now, Signal::KILL)]);
}

#[test]
fn a_held_container_exits_with_the_code_of_its_stop_signal() {
    for (signal, code) in [(TERM, 143), (Signal::QUIT, 143), (Signal::KILL, 137)] {
        let mut world = World::new(&[("sidecars", "proxy")]);
        world.call(Call::Run("web", None));
        world.run_for(secs(1));
        world.call(Call::Kill("web", signal, None));
        world.run_for(ms(10));
        assert_eq!(world.reported("web"), Some(code), "{signal}");
        assert_eq!(world.signals("web")[0].1, Signal::KILL);
        assert_eq!(world.executed("web"), None);
        world.check_end();
    }
}

#[test]
fn a_signal_that_stops_nothing_is_refused_while_the_container_is_held() {
    let mut world = World::new(&[("sidecars", "proxy")]);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    world.call(Call::Kill("web", Signal::new(1).unwrap(), None));
    let refused = |seen: &Seen| matches!(seen, Seen::KillAnswered(_, Err(Refusal::Held { .. })));
    assert!(world.seen.iter().any(|(_, seen)| refused(seen)));
    assert!(world.is_alive("web"));
}

#[test]
fn a_refused_signal_for_a_held_defer_container_names_the_end_of_the_pod() {
    let mut world = running(
        World::new(&[("sidecars", "proxy"), ("post-exit", "bye")]),
        &["proxy", "web", "bye"],
    );
    world.call(Call::Kill("bye", Signal::new(1).unwrap(), None));
    let waits = world.seen.iter().find_map(|(_, seen)| match seen {
        Seen::KillAnswered(_, Err(Refusal::Held { waits_for, .. })) => Some(waits_for.as_str()),
        _ => None,
    });
    assert_eq!(waits, Some("the end of its pod"));
}

#[test]
fn a_container_held_when_the_pod_terminates_never_runs() {
    let probe = r#"{"tcpSocket":{"port":80},"failureThreshold":1000}"#;
    let world = World::new(&[
        ("sidecars", "proxy logs"),
        ("startup-probe.usher/proxy", probe),
    ]);
    let mut world = running(
        world.script("proxy", never_ready()),
        &["web", "proxy", "logs"],
    );
    ask_all(&mut world, &["proxy", "logs", "web"], TERM);
    world.run_for(secs(5));
    assert_eq!(world.executed("web"), None);
    assert_eq!(world.reported("web"), Some(143));
    assert!(world.died("proxy").is_some() && world.died("logs").is_some());
    world.check_end();
}

#[test]
fn a_gate_that_opens_after_the_termination_began_starts_nothing() {
    let argv = ["/bin/setup".to_owned()];
    let world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    let mut world = world.script("proxy", deaf());
    for name in ["web", "api", "proxy"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(ms(100));
    let post_start = exec("post", &argv);
    world.exec("proxy", &post_start).unwrap();
    world.run_for(secs(12));
    world.call(Call::Kill("proxy", TERM, None));
    world.call(Call::Kill("api", TERM, None));
    world.exec_over("proxy", "post", Some(0));
    world.run_for(secs(10));
    assert_eq!(world.executed("web"), None);
    assert_eq!(world.reported("web"), Some(143));
}

#[test]
fn a_blocked_start_fails_when_the_pod_terminates() {
    let probe = r#"{"tcpSocket":{"port":80},"failureThreshold":1000}"#;
    let world = World::new(&[
        ("sidecars", "proxy logs"),
        ("start-mode", "Block"),
        ("startup-probe.usher/proxy", probe),
    ]);
    let mut world = running(
        world.script("proxy", never_ready()),
        &["proxy", "logs", "web"],
    );
    ask_all(&mut world, &["proxy", "logs"], TERM);
    world.run_for(secs(5));
    assert!(matches!(
        world.start_answer("web").unwrap().1,
        Err(Refusal::Terminating { .. })
    ));
    assert_eq!(world.executed("web"), None);
}

#[test]
fn a_stopped_sidecar_reports_the_exit_code_of_the_plan() {
    for (policy, code) in [("Mask", 0), ("Signal", 0), ("Propagate", 137)] {
        let world = World::new(&[
            ("sidecars", "proxy"),
            ("sidecar-exit-code", policy),
            ("grace-period", "3s"),
        ]);
        let mut world = running(world.script("proxy", deaf()), &["proxy", "web"]);
        ask_all(&mut world, &["proxy", "web"], TERM);
        world.run_for(secs(10));
        assert_eq!(world.reported("proxy"), Some(code), "{policy}");
    }
}

#[test]
fn a_sidecar_that_crashes_on_its_own_reports_its_own_code() {
    let mut world = running(World::new(&[("sidecars", "proxy")]), &["proxy", "web"]);
    world.call(Call::Crash("proxy", 7));
    assert_eq!(world.reported("proxy"), Some(7));
}

#[test]
fn a_container_without_a_stop_request_is_stopped_with_the_others_after_the_window() {
    let world = World::new(&[("sidecars", "proxy"), ("stop-signal.usher/api", "INT")]);
    let mut world = running(world, &["proxy", "web", "api"]);
    let asked = world.now;
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(5));
    assert_eq!(
        world.signals("api"),
        [(asked.after(ms(1_010)), Signal::INT)]
    );
    assert!(world.signalled("proxy") >= world.died("api"));
}

#[test]
fn a_pre_stop_handler_that_is_seen_counts_for_a_request() {
    let argv = ["/bin/bye".to_owned()];
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: argv.to_vec(),
        }),
        ..KubeletFacts::default()
    };
    let world = World::new(&[("sidecars", "proxy")]).facts("web", facts);
    let mut world = running(world, &["proxy", "web"]);
    let asked = world.now;
    world.exec("web", &exec("p", &argv)).unwrap();
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(secs(3));
    assert!(world.signalled("web").is_none() && world.signalled("proxy").is_none());
    world.exec_over("web", "p", Some(0));
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(1));
    assert_eq!(world.signalled("web"), Some(asked.after(secs(3))));
    assert_eq!(world.signalled("proxy"), world.died("web"));
}

#[test]
fn after_the_death_of_its_sandbox_a_pod_stops_in_order() {
    let world = World::new(&[("sidecars", "proxy")])
        .with_sandbox()
        .script("web", stops_after(400));
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("pause", 0));
    world.run_for(secs(2));
    assert_eq!(world.signalled("proxy"), world.died("web"));
    assert!(world.died("proxy").is_some());
}

#[test]
fn the_sandbox_is_never_queued() {
    let world = World::new(&[("sidecars", "proxy")])
        .with_sandbox()
        .script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    ask_all(&mut world, &["web", "proxy"], TERM);
    world.run_for(secs(1));
    world.call(Call::Kill("pause", Signal::KILL, None));
    assert_eq!(world.signals("pause"), [(world.now, Signal::KILL)]);
}
