//! Corner cases found by reading the code: each failed once, or could have failed unnoticed.

use crate::lifecycle::{Action, ContainerId, Exec, Phase, Refusal};
use crate::plan::{KubeletFacts, PreStop, Signal};

use super::fixtures::{TERM, ask_all, deaf, exec, running, stops_after};
use crate::simulator::{Call, Script, Seen, World, ms, secs};

/// A container that exits with 0 after this many milliseconds.
fn ends(after: u64) -> Script {
    Script {
        exits_after: Some((ms(after), 0)),
        ..Script::default()
    }
}

#[test]
fn a_pod_without_grace_is_stopped_all_the_same() {
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "0s")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    let asked = world.now;
    ask_all(&mut world, &["web", "proxy"], TERM);
    world.run_for(secs(60));
    assert!(
        world
            .died("web")
            .is_some_and(|at| at <= asked.after(ms(2_020))),
        "{:#?}",
        world.seen
    );
    assert_eq!(world.pod.phase(), Phase::Terminated);
}

#[test]
fn the_post_start_of_a_held_sidecar_belongs_to_its_start() {
    let argv = ["/bin/setup".to_owned()];
    let mut world = World::new(&[
        ("init", "setup"),
        ("sidecars", "b"),
        ("start-mode", "Hold"),
        ("restart-policy", "Never"),
    ])
    .script("setup", ends(2_000));
    for name in ["setup", "web", "b"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(ms(100));
    // The Start of `b` has been answered although `b` is held, so the caller runs the postStart
    // handler of `b` at once.
    world.exec("b", &exec("post", &argv)).unwrap();
    world.run_for(secs(3));
    assert!(world.executed("b").is_some());
    assert_eq!(world.executed("web"), None, "b's postStart is not over");
    world.exec_over("b", "post", Some(0));
    world.run_for(ms(10));
    assert!(world.executed("web").is_some());
}

#[test]
fn a_shell_long_after_the_answer_is_no_post_start() {
    let argv = ["/bin/sh".to_owned()];
    let mut world = World::new(&[("sidecars", "a b c"), ("startup-order", "a b c")]);
    world.call(Call::Run("b", None));
    world.run_for(secs(20));
    world.call(Call::Run("a", None));
    world.call(Call::Run("web", None));
    world.run_for(ms(200));
    assert!(world.executed("b").is_some());
    world.exec("b", &exec("shell", &argv)).unwrap();
    world.call(Call::Run("c", None));
    world.run_for(secs(20));
    assert!(world.executed("web").is_some());
}

#[test]
fn a_request_after_a_disproved_termination_counts() {
    let world = World::new(&[("sidecars", "proxy")])
        .script("web", stops_after(5_000))
        .script("api", stops_after(5_000));
    let mut world = running(world, &["proxy", "web", "api"]);
    ask_all(&mut world, &["web", "api"], TERM);
    world.run_for(secs(1));
    world.call(Call::Run("job", None));
    world.run_for(secs(1));
    world.call(Call::Crash("job", 0));
    // Now the pod is deleted: kubelet asks all containers to stop.
    ask_all(&mut world, &["web", "api", "proxy"], TERM);
    world.run_for(secs(10));
    let last = world.died("web").max(world.died("api"));
    assert!(
        world.signalled("proxy") >= last,
        "{:?} {:?}",
        world.signalled("proxy"),
        last
    );
}

#[test]
fn a_disproved_request_does_not_shorten_the_next_termination() {
    let world = World::new(&[("sidecars", "proxy")])
        .script("web", deaf())
        .script("api", deaf())
        .script("job", stops_after(10_000));
    let mut world = running(world, &["proxy", "web", "api"]);
    ask_all(&mut world, &["web", "api"], TERM);
    world.run_for(secs(1));
    world.call(Call::Run("job", None));
    world.run_for(secs(24));
    let asked = world.now;
    ask_all(&mut world, &["proxy", "job"], TERM);
    world.run_for(secs(60));
    assert_eq!(
        world.signals("job").len(),
        1,
        "{:?} asked {asked}",
        world.signals("job")
    );
}

#[test]
fn a_probe_with_the_argv_of_the_pre_stop_handler_is_no_request() {
    let argv = ["/bin/true".to_owned()];
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: argv.to_vec(),
        }),
        ..KubeletFacts::default()
    };
    let world = World::new(&[("sidecars", "proxy")]).facts("web", facts);
    let mut world = running(world, &["proxy", "web", "api"]);
    let probe = Exec {
        id: "probe",
        argv: &argv,
        has_deadline: true,
        is_interactive: false,
    };
    world.exec("web", &probe).unwrap();
    world.exec_over("web", "probe", Some(0));
    world.call(Call::Kill("api", TERM, None));
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn post_start_of_a_sidecar_with_the_argv_of_pre_stop_is_no_request() {
    let argv = ["/bin/sync".to_owned()];
    let facts = || KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: argv.to_vec(),
        }),
        ..KubeletFacts::default()
    };
    let mut world = World::new(&[("sidecars", "proxy logs")])
        .facts("proxy", facts())
        .facts("logs", facts());
    for name in ["proxy", "logs"] {
        world.call(Call::Run(name, None));
        world.run_for(ms(100));
        world.exec(name, &exec("post", &argv)).unwrap();
        world.exec_over(name, "post", Some(0));
    }
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn an_ended_container_is_not_released() {
    let argv = ["/bin/setup".to_owned()];
    let at_once = Script {
        release_takes: ms(0),
        ..Script::default()
    };
    let world = World::new(&[("sidecars", "proxy"), ("start-mode", "Hold")]);
    let mut world = world.with_sandbox().script("web", at_once);
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(31));
    world.exec("proxy", &exec("post", &argv)).unwrap();
    world.run_for(secs(1));
    world.call(Call::Kill("web", TERM, None));
    world.exec_over("proxy", "post", Some(0));
    world.run_for(secs(1));
    assert_eq!(world.executed("web"), None);
    assert_eq!(world.reported("web"), Some(143));
}

#[test]
fn the_window_of_the_unasked_begins_with_the_termination() {
    let quit = Signal::QUIT;
    let world = World::new(&[("sidecars", "proxy")])
        .script("web", deaf())
        .script("api", stops_after(1_000));
    let mut world = running(world, &["proxy", "web", "api"]);
    // Kubelet stops `web`, whose liveness probe has failed. The container ignores the signal.
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(10));
    // Then the pod is deleted.
    ask_all(&mut world, &["proxy", "api"], quit);
    world.run_for(secs(1));
    assert_eq!(
        world
            .signals("api")
            .iter()
            .map(|(_, s)| *s)
            .collect::<Vec<_>>(),
        [quit]
    );
}

#[test]
fn a_lone_request_is_delivered_before_its_own_deadline() {
    let world = World::new(&[
        ("sidecars", "proxy"),
        ("grace-period", "10s"),
        ("termination-window", "1h"),
    ]);
    let mut world = running(world, &["proxy", "web"]);
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(secs(7_200));
    assert!(
        world
            .signalled("proxy")
            .is_some_and(|at| at <= asked.after(secs(10))),
        "{:?}",
        world.signalled("proxy").map(|at| at.since(asked))
    );
}

#[test]
fn sleep_longer_than_grace() {
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::Sleep(secs(60))),
        ..KubeletFacts::default()
    };
    let world = World::new(&[("sidecars", "proxy")]).facts("web", facts);
    let mut world = running(world, &["proxy", "web"]);
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(secs(7_200));
    assert!(
        world
            .signalled("proxy")
            .is_some_and(|at| at <= asked.after(secs(30))),
        "{:?}",
        world.signalled("proxy").map(|at| at.since(asked))
    );
}

#[test]
fn when_the_sandbox_died_kubelet_still_runs_pre_stop_first() {
    let argv = ["/bin/bye".to_owned()];
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: argv.to_vec(),
        }),
        ..KubeletFacts::default()
    };
    let world = World::new(&[("sidecars", "proxy")])
        .with_sandbox()
        .facts("web", facts);
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Crash("pause", 137));
    world.run_for(ms(500));
    assert_eq!(world.signalled("web"), None);
}

#[test]
fn a_sigkill_is_the_deadline_arriving() {
    let world = World::new(&[("sidecars", "proxy")])
        .script("web", deaf())
        .script("api", deaf());
    let mut world = running(world, &["proxy", "web", "api"]);
    ask_all(&mut world, &["proxy", "web", "api"], TERM);
    world.run_for(secs(4));
    let killed = world.now;
    world.call(Call::Kill("web", Signal::KILL, None));
    world.run_for(secs(60));
    assert!(
        world.died("proxy") <= Some(killed.after(ms(2_001))),
        "{:?}",
        world.died("proxy").map(|at| at.since(killed))
    );
}

#[test]
fn nothing_but_kill_is_sent_while_a_program_is_being_executed() {
    let slow = Script {
        release_takes: secs(10),
        ..Script::default()
    };
    let world =
        World::new(&[("sidecars", "proxy logs"), ("grace-period", "3s")]).script("web", slow);
    let mut world = running(world, &["proxy", "logs"]);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    ask_all(&mut world, &["proxy", "logs", "web"], TERM);
    world.run_for(secs(20));
    assert!(
        world.signals("web").iter().all(|(_, s)| *s == Signal::KILL),
        "{:?} {:?}",
        world.signals("web"),
        world.reported("web")
    );
}

#[test]
fn the_notice_always_names_a_reason() {
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::HttpGet),
        ..KubeletFacts::default()
    };
    let argv = ["/bin/setup".to_owned()];
    let mut world = World::new(&[("sidecars", "proxy logs"), ("start-mode", "Hold")])
        .facts("web", facts)
        .script("proxy", deaf());
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("logs", None));
    world.run_for(ms(100));
    world.exec("proxy", &exec("post", &argv)).unwrap();
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    ask_all(&mut world, &["proxy", "logs"], TERM);
    world.run_for(secs(1));
    world.exec_over("proxy", "post", Some(0));
    world.run_for(secs(60));
    assert!(
        world
            .told("web")
            .iter()
            .all(|t| !t.trim_end().ends_with("for")),
        "{:?}",
        world.told("web")
    );
}

#[test]
fn masks() {
    for (policy, code) in [("Mask", 0), ("Signal", 3), ("Propagate", 3)] {
        let world = World::new(&[("sidecars", "proxy"), ("sidecar-exit-code", policy)]);
        let mut world = running(world.script("proxy", deaf()), &["proxy", "web"]);
        ask_all(&mut world, &["proxy", "web"], TERM);
        world.run_for(secs(2));
        assert!(world.signalled("proxy").is_some());
        world.call(Call::Crash("proxy", 3));
        assert_eq!(world.reported("proxy"), Some(code), "{policy}");
    }
}

#[test]
fn a_shell_does_not_replace_post_start() {
    let argv = ["/bin/setup".to_owned()];
    let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.exec("proxy", &exec("post", &argv)).unwrap();
    world.exec("proxy", &exec("shell", &argv)).unwrap();
    world.exec_over("proxy", "post", Some(0));
    world.call(Call::Run("web", None));
    world.run_for(secs(20));
    assert!(
        world.executed("web").is_some(),
        "the shell of somebody keeps the app from running"
    );
}

#[test]
fn other_way() {
    let argv = ["/bin/setup".to_owned()];
    let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.exec("proxy", &exec("post", &argv)).unwrap();
    world.exec("proxy", &exec("shell", &argv)).unwrap();
    world.exec_over("proxy", "shell", Some(0));
    world.run_for(secs(5));
    assert_eq!(world.executed("web"), None, "postStart runs");
}

#[test]
fn killed_blocked_start_answer() {
    let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", "Block")]);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(1));
    assert!(matches!(
        world.start_answer("web"),
        Some((_, Err(crate::lifecycle::Refusal::EndedBeforeStart { .. })))
    ));
    let _ = |s: Seen| s;
}

#[test]
fn the_base_is_the_largest_workload_create_rounded_up() {
    let mut world = World::new(&[("sidecars", "proxy")]).script("web", deaf());
    world.create_timeout = Some(secs(240));
    world = world.with_sandbox();
    world.create_timeout = Some(ms(59_900));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.create_timeout = Some(secs(50));
    let mut world = running(world, &["web"]);
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, Some(secs(64))));
    world.call(Call::Kill("web", TERM, Some(secs(64))));
    world.run_for(secs(60));
    assert_eq!(world.signalled("proxy"), Some(asked.after(secs(4))));
}

#[test]
fn a_grace_period_longer_than_annotated_does_not_count() {
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "3s")]);
    let mut world = running(world.script("web", deaf()), &["proxy", "web"]);
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, Some(secs(150))));
    world.call(Call::Kill("web", TERM, Some(secs(150))));
    world.run_for(secs(60));
    assert_eq!(world.signalled("proxy"), Some(asked.after(secs(3))));
}

#[test]
fn a_later_request_with_less_time_moves_the_deadline() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", deaf());
    let mut world = running(world.script("api", deaf()), &["proxy", "web", "api"]);
    let asked = world.now;
    world.call(Call::Kill("web", TERM, None));
    world.call(Call::Kill("proxy", TERM, None));
    // A forced deletion follows, with two seconds of grace.
    world.call(Call::Kill("api", TERM, Some(secs(122))));
    world.run_for(secs(60));
    assert_eq!(world.signalled("proxy"), Some(asked.after(secs(2))));
    assert_eq!(
        world.signals("api").len(),
        3,
        "once, at the deadline, and SIGKILL"
    );
}

#[test]
fn the_same_container_asked_again_with_less_time() {
    let world = World::new(&[("sidecars", "proxy")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    ask_all(&mut world, &["proxy", "web"], TERM);
    world.run_for(secs(5));
    let again = world.now;
    world.call(Call::Kill("web", TERM, Some(secs(122))));
    assert_eq!(world.signals("web").len(), 2, "who asks again means it");
    world.run_for(secs(60));
    assert_eq!(world.signalled("proxy"), Some(again.after(secs(2))));
}

#[test]
fn the_same_container_asked_again_after_its_time_was_over() {
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "5s")]).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(6));
    assert_eq!(world.signals("web").len(), 1);
    world.call(Call::Kill("web", TERM, None));
    assert_eq!(world.signals("web").len(), 2, "who asks again means it");
}

#[test]
fn a_termination_that_the_shim_decides_waits_for_a_pre_stop_handler_under_way() {
    let argv = ["/bin/bye".to_owned()];
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: argv.to_vec(),
        }),
        ..KubeletFacts::default()
    };
    let world = World::new(&[("essential", "heart"), ("apps", "heart web")]).facts("web", facts);
    let mut world = running(world, &["heart", "web"]);
    let asked = world.now;
    world.exec("web", &exec("bye", &argv)).unwrap();
    world.call(Call::Crash("heart", 1));
    world.run_for(secs(3));
    assert_eq!(world.signalled("web"), None);
    world.exec_over("web", "bye", Some(0));
    world.call(Call::Kill("web", TERM, None));
    world.run_for(secs(1));
    assert_eq!(world.signalled("web"), Some(asked.after(secs(3))));
}

#[test]
fn a_defer_container_that_cannot_be_executed_fails_as_any_other() {
    for (policy, code) in [("Mask", 0), ("Propagate", 1)] {
        let lists = [("pre-exit", "bye"), ("defer-exit-code", policy)];
        let world = World::new(&lists).script(
            "bye",
            Script {
                cannot_be_released: true,
                ..Script::default()
            },
        );
        let mut world = running(world, &["web", "bye"]);
        ask_all(&mut world, &["web", "bye"], TERM);
        world.run_for(secs(60));
        assert_eq!(world.reported("bye"), Some(code), "{policy}");
        assert_eq!(world.reported("web"), Some(0));
    }
}

#[test]
fn a_sidecar_that_stops_with_all_others_is_not_restarted_any_more() {
    let lists = [
        ("sidecars", "first second"),
        ("sidecar-stop-order", "Parallel"),
        ("restart-policy", "OnFailure"),
    ];
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: vec!["/bin/bye".to_owned()],
        }),
        ..KubeletFacts::default()
    };
    let world = World::new(&lists)
        .facts("first", facts)
        .script("second", deaf());
    let mut world = running(world, &["first", "second", "web"]);
    ask_all(&mut world, &["second", "web"], TERM);
    world.run_for(secs(1));
    world.call(Call::Crash("first", 1));
    world.run_for(secs(5));
    assert_eq!(world.executions("first").len(), 0);
}

#[test]
fn an_exec_after_a_second_or_after_the_next_create_is_no_post_start() {
    for (wait, other) in [(ms(1_100), false), (ms(100), true)] {
        let argv = ["/bin/sh".to_owned()];
        let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
        world.call(Call::Run("proxy", None));
        world.run_for(wait);
        if other {
            world.call(Call::Create("web"));
        }
        world.exec("proxy", &exec("shell", &argv)).unwrap();
        if !other {
            world.call(Call::Create("web"));
        }
        world.run_for(ms(100));
        world.call(Call::Start("web", None));
        world.run_for(secs(1));
        assert!(world.executed("web").is_some(), "{wait:?} {other}");
    }
}

#[test]
fn the_first_attempt_waits_for_the_initial_delay() {
    let probe = r#"{"tcpSocket":{"port":80},"initialDelaySeconds":3}"#;
    let mut world = World::new(&[("sidecars", "proxy"), ("startup-probe.usher/proxy", probe)]);
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(10));
    assert_eq!(
        world
            .executed("web")
            .unwrap()
            .since(world.executed("proxy").unwrap()),
        ms(3_002)
    );
}

#[test]
fn a_stop_request_that_a_handler_may_hide_is_awaited_for_half_of_the_time() {
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::HttpGet),
        ..KubeletFacts::default()
    };
    let world = World::new(&[("sidecars", "proxy"), ("grace-period", "5s")])
        .facts("web", facts)
        .script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    world.call(Call::Kill("web", TERM, None));
    // The caller's timer starts at the answer, which may have come two seconds late.
    world.run_for(secs(8));
    let asked = world.now;
    world.call(Call::Kill("proxy", TERM, None));
    world.run_for(secs(20));
    assert_eq!(world.signalled("proxy"), Some(asked.after(ms(2_500))));
}

#[test]
fn a_start_that_waits_is_answered_when_its_container_is_removed() {
    let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", "Block")]);
    world.call(Call::Run("web", None));
    world.run_for(ms(100));
    let id = ContainerId::from("web");
    world.pod.handle_removed(world.now, &id);
    let answers = std::iter::from_fn(|| world.pod.poll_action());
    let refusals: Vec<_> = answers
        .filter_map(|action| match action {
            Action::AnswerStart { answer, .. } => answer.err(),
            _ => None,
        })
        .collect();
    let name = "web".to_owned();
    assert_eq!(refusals, [Refusal::EndedBeforeStart { name }]);
}
