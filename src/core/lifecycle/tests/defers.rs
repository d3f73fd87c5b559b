//! Defer containers run one after another when the pod ends. Each runs once, whatever ends the pod.

use crate::lifecycle::{ContainerId, Phase, Report};
use crate::plan::{KubeletFacts, Signal};

use super::fixtures::{TERM, ask_all, deaf, running, stops_after};
use crate::simulator::{Call, Node, Script, Seen, World, ms, secs};

/// The annotations of the example in the defer proposal.
const SHARD: [(&str, &str); 2] = [
    ("pre-exit", "remove-shard wait-for-rebalance kill-db"),
    ("post-exit", "clean-update"),
];
const DEFERS: [&str; 4] = [
    "remove-shard",
    "wait-for-rebalance",
    "kill-db",
    "clean-update",
];

fn ends(after: u64, code: u8) -> Script {
    Script {
        exits_after: Some((ms(after), code)),
        ..Script::default()
    }
}

fn shard(more: &[(&'static str, &'static str)]) -> World {
    let mut annotations = vec![("sidecars", "proxy")];
    annotations.extend(SHARD);
    annotations.extend_from_slice(more);
    let mut world = World::new(&annotations);
    for name in DEFERS {
        world = world.script(name, ends(300, 0));
    }
    world.script("db", stops_after(200))
}

const ALL: [&str; 6] = [
    "proxy",
    "db",
    "remove-shard",
    "wait-for-rebalance",
    "kill-db",
    "clean-update",
];

fn one(key: &'static str, more: &[(&'static str, &'static str)]) -> World {
    let mut annotations = vec![(key, "bye")];
    annotations.extend_from_slice(more);
    World::new(&annotations)
}

fn reports(world: &World, which: impl Fn(&Report) -> bool) -> usize {
    let reports = world.seen.iter();
    reports
        .filter(|(_, seen)| matches!(seen, Seen::Reported(report) if which(report)))
        .count()
}

#[test]
fn they_are_held_from_the_start_and_run_one_after_another_around_the_end_of_the_apps() {
    let mut world = running(shard(&[]), &ALL);
    assert!(DEFERS.iter().all(|name| world.executed(name).is_none()));
    assert_eq!(world.pod.phase(), Phase::Running);
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(10));
    for pair in ["remove-shard", "wait-for-rebalance", "kill-db"].windows(2) {
        assert_eq!(
            world.at(&Seen::Released(pair[1].into())),
            world.died(pair[0])
        );
    }
    assert_eq!(world.signalled("db"), world.died("kill-db"));
    assert_eq!(
        world.at(&Seen::Released("clean-update".into())),
        world.died("db")
    );
    assert_eq!(world.signalled("proxy"), world.died("clean-update"));
    assert!(ALL.iter().all(|name| world.reported(name) == Some(0)));
    // No defer container gets a signal. A stop request for a defer container does not stop it, but
    // shows that the pod ends.
    assert!(DEFERS.iter().all(|name| world.signals(name).is_empty()));
    assert_eq!(world.pod.phase(), Phase::Terminated);
    world.check_end();
}

#[test]
fn every_step_is_reported_with_the_time_of_each_container() {
    let mut world = running(shard(&[]), &ALL);
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(10));
    let lines = world.seen.iter().filter_map(|(_, seen)| match seen {
        Seen::Reported(report @ Report::StepOver { .. }) => Some(report.to_string()),
        _ => None,
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(
        lines,
        [
            "pre-exit containers over after 903ms: remove-shard 301ms, wait-for-rebalance 301ms, kill-db 301ms",
            "apps over after 200ms: db 200ms",
            "post-exit containers over after 301ms: clean-update 301ms",
            "sidecars over after 20ms: proxy 20ms",
        ]
    );
}

#[test]
fn a_failed_defer_does_not_stop_the_sequence_and_reports_no_failure() {
    for (policy, code) in [("Mask", 0), ("Propagate", 3)] {
        let world = shard(&[("defer-exit-code", policy)]).script("remove-shard", ends(100, 3));
        let mut world = running(world, &ALL);
        ask_all(&mut world, &ALL, TERM);
        world.run_for(secs(10));
        assert!(DEFERS.iter().all(|name| world.executed(name).is_some()));
        assert_eq!(world.reported("remove-shard"), Some(code), "{policy}");
        let told = |report: &Report| matches!(report, Report::DeferOver { code: 3, .. });
        assert_eq!(reports(&world, told), 1);
    }
}

#[test]
fn a_defer_with_a_restart_policy_runs_until_it_succeeds() {
    for restart in ["OnFailure", "Always"] {
        let flaky = Script {
            then_exits: Some(0),
            ..ends(100, 1)
        };
        let world = one("pre-exit", &[("restart.usher/bye", restart)]).script("bye", flaky);
        let mut world = running(world, &["web", "bye"]);
        ask_all(&mut world, &["web", "bye"], TERM);
        world.run_for(secs(20));
        assert_eq!(world.executions("bye").len(), 2, "{restart}");
        assert!(world.signalled("web").unwrap() > world.executions("bye")[1]);
        assert_eq!(world.reported("bye"), Some(0));
    }
    // By default a failed defer container is not run again.
    let mut world = running(
        one("pre-exit", &[]).script("bye", ends(100, 1)),
        &["web", "bye"],
    );
    ask_all(&mut world, &["web", "bye"], TERM);
    world.run_for(secs(20));
    assert_eq!(world.executions("bye").len(), 1);
}

#[test]
fn a_defer_that_never_succeeds_is_retried_until_its_time_is_up() {
    let world = one(
        "pre-exit",
        &[("restart.usher/bye", "OnFailure"), ("grace-period", "5s")],
    );
    let mut world = running(world.script("bye", ends(100, 1)), &["web", "bye"]);
    let asked = world.now;
    ask_all(&mut world, &["web", "bye"], TERM);
    world.run_for(secs(60));
    // The first retry comes at once. A second retry would be due one second later. By then the
    // remaining time belongs to the app, so there is no second retry.
    assert_eq!(world.executions("bye").len(), 2);
    assert!(world.signalled("web") < Some(asked.after(secs(1))));
    assert_eq!(world.reported("bye"), Some(0));
    world.check_end();
}

#[test]
fn a_hanging_defer_is_stopped_at_the_end_of_the_grace_period_and_no_other_runs() {
    let world = shard(&[("grace-period", "5s")]).script("remove-shard", deaf());
    let mut world = running(world, &ALL);
    let end = world.now.after(secs(5));
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(20));
    let expected = [(end, TERM), (end.after(secs(2)), Signal::KILL)];
    assert_eq!(world.signals("remove-shard"), expected);
    for name in &DEFERS[1..] {
        assert_eq!(world.executed(name), None, "{name}");
        assert_eq!(world.reported(name), Some(0), "{name}");
    }
    assert_eq!(world.signalled("db"), Some(end));
    world.check_end();
}

#[test]
fn a_cap_bounds_the_whole_turn_of_a_defer_and_the_next_has_its_own() {
    let world = shard(&[("grace-period.usher/remove-shard", "4s")]).script("remove-shard", deaf());
    let mut world = running(world, &ALL);
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(20));
    let began = world.at(&Seen::Released("remove-shard".into())).unwrap();
    let expected = [
        (began.after(secs(4)), TERM),
        (began.after(secs(6)), Signal::KILL),
    ];
    assert_eq!(world.signals("remove-shard"), expected);
    assert_eq!(
        world.at(&Seen::Released("wait-for-rebalance".into())),
        world.died("remove-shard")
    );
    assert!(world.signalled("db") >= world.died("kill-db"));
    world.check_end();
}

#[test]
fn a_cap_only_shortens_the_time_of_the_pod() {
    for (policy, told, killed) in [("Shared", 6, 8), ("Strict", 6, 6)] {
        let lists = [
            ("grace-policy", policy),
            ("grace-period", "6s"),
            ("grace-period.usher/bye", "5500ms"),
        ];
        let world = one("post-exit", &lists).script("web", stops_after(1_000));
        let mut world = running(world.script("bye", deaf()), &["web", "bye"]);
        let asked = world.now;
        ask_all(&mut world, &["web", "bye"], TERM);
        world.run_for(secs(20));
        let signals = world.signals("bye");
        let kill = (asked.after(secs(killed)), Signal::KILL);
        assert_eq!(signals.last(), Some(&kill), "{policy}");
        if killed > told {
            assert_eq!(signals[0], (asked.after(secs(told)), TERM), "{policy}");
        }
    }
}

#[test]
fn retries_of_a_defer_leave_later_defers_their_time() {
    let lists = [
        ("sidecars", "proxy"),
        ("post-exit", "report clean"),
        ("restart.usher/report", "OnFailure"),
    ];
    let world = World::new(&lists).script("report", ends(100, 1));
    let mut world = running(
        world.script("clean", ends(300, 0)),
        &["proxy", "web", "report", "clean"],
    );
    let asked = world.now;
    ask_all(&mut world, &["web", "report", "clean", "proxy"], TERM);
    world.run_for(secs(60));
    let times = world.executions("report");
    let gaps = times
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).as_secs());
    assert_eq!(gaps.collect::<Vec<_>>(), [0, 1, 2, 4, 4, 4, 4]);
    // The retries end so early that two seconds each are left for `clean`, for the sidecars' step,
    // and for `report` itself.
    assert!(world.executed("clean") < Some(asked.after(secs(24))));
    assert_eq!(world.signalled("proxy"), world.died("clean"));

    // A retry that hangs is stopped when only the time of the later steps is left.
    let hangs = Script {
        exits_after: None,
        ..deaf()
    };
    let mut world = World::new(&lists).script("report", ends(100, 1));
    world = world.script("clean", ends(300, 0));
    let mut world = running(world, &["proxy", "web", "report", "clean"]);
    let asked = world.now;
    ask_all(&mut world, &["web", "report", "clean", "proxy"], TERM);
    world.run_for(ms(150));
    // From its second run on, `report` hangs.
    let id = ContainerId::from("report");
    world.processes.get_mut(&id).unwrap().script = hangs;
    world.run_for(secs(60));
    let expected = [
        (asked.after(secs(24)), TERM),
        (asked.after(secs(26)), Signal::KILL),
    ];
    assert_eq!(world.signals("report"), expected);
    assert_eq!(
        world.at(&Seen::Released("clean".into())),
        world.died("report").max(Some(asked.after(ms(26_001))))
    );
}

#[test]
fn a_defer_in_back_off_does_not_run_again_after_a_disproved_termination() {
    let world = one("pre-exit", &[("restart.usher/bye", "OnFailure")]).script("bye", ends(100, 1));
    let mut world = running(world, &["web", "bye"]);
    ask_all(&mut world, &["web", "bye"], TERM);
    // The third run is due after a second.
    world.run_for(ms(500));
    assert_eq!(world.executions("bye").len(), 2);
    world.call(Call::Run("api", None));
    world.run_for(secs(60));
    assert_eq!(world.executions("bye").len(), 2);
    assert_eq!(world.reported("bye"), Some(0));
}

#[test]
fn a_sigkill_ends_the_running_defer_and_no_later_one_runs() {
    let world = shard(&[]).script("wait-for-rebalance", deaf());
    let mut world = running(world, &ALL);
    ask_all(&mut world, &ALL, TERM);
    world.run_for(secs(2));
    world.call(Call::Kill("wait-for-rebalance", Signal::KILL, None));
    assert_eq!(
        world.signals("wait-for-rebalance"),
        [(world.now, Signal::KILL)]
    );
    world.run_for(secs(10));
    for name in ["kill-db", "clean-update"] {
        assert_eq!(world.executed(name), None);
    }
    // The SIGKILL for a defer container does not end the grace period.
    assert_eq!(world.signalled("proxy"), world.died("db"));
    world.check_end();
}

#[test]
fn a_forced_deletion_runs_none() {
    for call_timeout in [secs(122), ms(121_999)] {
        let mut world = running(shard(&[]), &ALL);
        for name in ALL {
            world.call(Call::Kill(name, TERM, Some(call_timeout)));
        }
        world.run_for(secs(10));
        assert!(DEFERS.iter().all(|name| world.executed(name).is_none()));
        assert!(world.signalled("proxy") >= world.died("db"));
        world.check_end();
    }
    let mut world = running(shard(&[]), &ALL);
    for name in ALL {
        world.call(Call::Kill(name, Signal::KILL, None));
    }
    world.run_for(secs(10));
    assert!(DEFERS.iter().all(|name| world.executed(name).is_none()));
    world.check_end();
}

#[test]
fn a_deletion_that_is_forced_later_ends_what_runs() {
    let world = shard(&[]).script("remove-shard", deaf());
    let mut world = running(world, &ALL);
    for name in ALL {
        world.call(Call::Kill(name, TERM, Some(secs(150))));
    }
    world.run_for(secs(3));
    let forced = world.now;
    for name in ALL {
        world.call(Call::Kill(name, TERM, Some(secs(122))));
    }
    world.run_for(secs(20));
    assert_eq!(
        world.signals("remove-shard")[0],
        (forced.after(secs(2)), TERM)
    );
    assert_eq!(world.executed("kill-db"), None);
    world.check_end();
}

#[test]
fn a_job_runs_them_when_its_apps_are_done() {
    for policy in ["Never", "OnFailure"] {
        let world = one("post-exit", &[("apps", "work"), ("restart-policy", policy)]);
        let world = world
            .script("work", ends(5_000, 0))
            .script("bye", ends(200, 0));
        let mut world = world;
        for name in ["work", "bye"] {
            world.call(Call::Run(name, None));
        }
        world.run_for(secs(20));
        assert_eq!(
            world.at(&Seen::Released("bye".into())),
            world.died("work"),
            "{policy}"
        );
        assert_eq!(world.reported("bye"), Some(0));
    }
}

#[test]
fn a_job_waits_for_those_that_are_still_to_be_created() {
    let world = one(
        "post-exit",
        &[("apps", "work"), ("restart-policy", "Never")],
    );
    let mut world = world
        .script("work", ends(100, 0))
        .script("bye", ends(200, 0));
    world.call(Call::Run("work", None));
    world.run_for(secs(10));
    world.call(Call::Run("bye", None));
    world.run_for(secs(5));
    assert!(world.executed("bye").is_some(), "{:#?}", world.seen);
    assert_eq!(world.reported("bye"), Some(0));
}

#[test]
fn a_later_sandbox_does_not_wait_for_apps_that_kubelet_has_left_out() {
    let again = KubeletFacts {
        restart_count: 1,
        ..KubeletFacts::default()
    };
    let world = World::new(&[
        ("sidecars", "proxy"),
        ("apps", "one two"),
        ("restart-policy", "OnFailure"),
    ]);
    let mut world = world.facts("two", again).script("two", ends(1_000, 0));
    for name in ["proxy", "two"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(60));
    assert_eq!(world.reported("proxy"), Some(0), "{:#?}", world.seen);
    // In a pod's first sandbox an app may be created arbitrarily late, because kubelet may have to
    // pull the image.
    let world = World::new(&[
        ("sidecars", "proxy"),
        ("apps", "one two"),
        ("restart-policy", "OnFailure"),
    ]);
    let mut world = world.script("two", ends(1_000, 0));
    for name in ["proxy", "two"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(600));
    assert_eq!(world.reported("proxy"), None);
}

#[test]
fn the_failure_of_an_essential_container_and_the_end_of_the_sandbox_run_them_too() {
    let mut world = running(shard(&[("essential", "proxy")]), &ALL);
    world.call(Call::Crash("proxy", 1));
    world.run_for(secs(20));
    assert!(DEFERS.iter().all(|name| world.executed(name).is_some()));

    let mut world = running(shard(&[]).with_sandbox(), &ALL);
    world.call(Call::Crash("pause", 137));
    world.run_for(secs(20));
    assert!(DEFERS.iter().all(|name| world.executed(name).is_some()));
}

#[test]
fn a_pod_without_any_execution_runs_no_defers() {
    let mut world = one("post-exit", &[("init", "setup")]);
    for name in ["web", "bye"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(20));
    ask_all(&mut world, &["web", "bye"], TERM);
    world.run_for(secs(10));
    assert_eq!(world.executed("bye"), None);
    world.check_end();
    // If an init container of the pod has run, the defer containers run, too.
    let mut world = one("post-exit", &[("init", "setup")]).script("bye", ends(100, 0));
    for name in ["setup", "web", "bye"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(1));
    ask_all(&mut world, &["setup", "web", "bye"], TERM);
    world.run_for(secs(10));
    assert!(world.executed("bye").is_some());
}

#[test]
fn a_defer_that_ran_in_a_disproved_termination_runs_again_in_the_real_one() {
    let slow = stops_after(20_000);
    let world = one("pre-exit", &[])
        .script("bye", ends(100, 0))
        .script("web", slow);
    let mut world = running(world, &["web", "bye"]);
    ask_all(&mut world, &["web", "bye"], TERM);
    world.run_for(secs(2));
    assert_eq!(world.executions("bye").len(), 1);
    // The Create shows that the pod does not end.
    world.call(Call::Run("bye#2", None));
    world.run_for(secs(60));
    assert_eq!(world.executed("bye#2"), None);
    ask_all(&mut world, &["web", "bye#2"], TERM);
    world.run_for(secs(2));
    assert_eq!(world.executions("bye#2").len(), 1);
}

#[test]
fn a_defer_that_ran_in_a_decided_termination_exits_with_0_when_it_is_created_again() {
    let world = one("pre-exit", &[])
        .script("bye", ends(100, 0))
        .script("web", stops_after(20_000));
    let mut world = running(world, &["web", "bye"]);
    world.stop(None);
    world.run_for(secs(2));
    assert_eq!(world.executions("bye").len(), 1);
    world.call(Call::Run("bye#2", None));
    world.run_for(secs(1));
    assert_eq!(world.reported("bye#2"), Some(0));
    assert_eq!(world.executed("bye#2"), None);
}

#[test]
fn a_lone_request_ends_a_held_one_without_a_run_after_the_window() {
    let mut world = running(one("pre-exit", &[]), &["web", "bye"]);
    let asked = world.now;
    world.call(Call::Kill("bye", TERM, None));
    world.run_for(secs(5));
    assert_eq!(world.signals("bye"), [(asked.after(secs(1)), Signal::KILL)]);
    assert_eq!(world.executed("bye"), None);
    assert_eq!(world.reported("bye"), Some(0));
    assert_eq!(world.signalled("web"), None);
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn under_on_failure_a_defer_that_did_not_run_is_created_in_the_next_sandbox() {
    let world = one("pre-exit", &[("restart-policy", "OnFailure")]);
    let mut world = running(world, &["web", "bye"]);
    world.call(Call::Kill("bye", TERM, None));
    world.run_for(secs(5));
    assert_eq!(world.reported("bye"), Some(143));
}

#[test]
fn a_lone_request_for_an_app_waits_for_the_window_in_a_pod_with_defers() {
    for key in ["pre-exit", "post-exit"] {
        let mut world = running(one(key, &[]), &["web", "bye"]);
        let asked = world.now;
        world.call(Call::Kill("web", TERM, None));
        world.run_for(secs(5));
        assert_eq!(world.signalled("web"), Some(asked.after(secs(1))));
        assert_eq!(world.executed("bye"), None);
    }
}

#[test]
fn single_stops_run_no_defer() {
    let mut world = running(shard(&[]), &ALL);
    for name in ["db", "proxy"] {
        world.call(Call::Kill(name, TERM, None));
        world.run_for(secs(5));
        assert!(world.died(name).is_some());
        let again: &'static str = Box::leak(format!("{name}#2").into_boxed_str());
        world.call(Call::Run(again, None));
        world.run_for(secs(5));
        assert!(world.is_executing(again));
    }
    assert!(DEFERS.iter().all(|name| world.executed(name).is_none()));
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn a_defer_created_during_the_termination_still_runs() {
    let world = one(
        "post-exit",
        &[
            ("apps", "work helper"),
            ("essential", "helper"),
            ("restart-policy", "Never"),
        ],
    );
    let world = world.script("bye", ends(100, 0)).with_sandbox();
    let world = world.script("work", stops_after(3_000));
    let mut world = running(world, &["work", "helper"]);
    world.call(Call::Crash("helper", 1));
    world.run_for(secs(1));
    world.call(Call::Run("bye", None));
    world.run_for(secs(10));
    assert!(world.executed("bye") >= world.died("work"));
    world.check_end();
}

#[test]
fn a_defers_exit_before_the_report_of_its_release_ends_no_step() {
    let slow = Script {
        release_takes: ms(300),
        ..Script::default()
    };
    let annotations = [
        ("apps", "web"),
        ("pre-exit", "before"),
        ("restart.usher/before", "OnFailure"),
    ];
    let world = World::new(&annotations).script("before", slow);
    let mut world = running(world, &["web", "before"]);
    ask_all(&mut world, &["web", "before"], TERM);
    world.run_for(ms(100));
    world.call(Call::Crash("before", 1));
    world.run_for(ms(100));
    assert_eq!(world.signalled("web"), None, "{:#?}", world.seen);
    world.run_for(secs(40));
    assert!(world.signalled("web").is_some(), "{:#?}", world.seen);
}
