//! Corner cases that the simulated world has found: each broke a promise once.

use crate::lifecycle::{Cause, HookKind, Phase, Refusal, Report};
use crate::plan::{KubeletFacts, PreStop, Signal};

use super::fixtures::{TERM, ask_all, deaf, exec, never_ready, running};
use crate::simulator::{Call, Node, Script, Seen, World, ms, secs};

/// A stop request of kubelet, with this many seconds of grace.
fn kill(name: &'static str, grace: u64) -> Call {
    Call::Kill(name, TERM, Some(secs(120 + grace)))
}

/// A pod with a sandbox container, as kubelet runs it.
fn pod(annotations: &[(&str, &str)]) -> World {
    let mut world = World::new(annotations);
    world.create_timeout = Some(secs(120));
    world.with_sandbox()
}

fn runs_to(code: u8) -> Script {
    Script {
        exits_after: Some((ms(20), code)),
        ..Script::default()
    }
}

fn handler(argv: &[String]) -> KubeletFacts {
    KubeletFacts {
        pre_stop: Some(PreStop::Exec {
            command: argv.to_vec(),
        }),
        ..KubeletFacts::default()
    }
}

fn first_cause(world: &World) -> Option<Cause> {
    world.seen.iter().find_map(|(_, seen)| match seen {
        Seen::Reported(Report::Terminating { because, .. }) => Some(because.clone()),
        _ => None,
    })
}

#[test]
fn a_request_for_an_exited_container_does_not_shorten_the_termination() {
    let annotations = [
        ("init", "setup"),
        ("sidecars", "proxy logs"),
        ("essential", "logs"),
        ("post-exit", "clean"),
        ("grace-period", "10s"),
    ];
    let world = pod(&annotations).script("setup", runs_to(0));
    let world = world.script("web", deaf());
    let mut world = running(world, &["setup", "proxy", "logs", "web", "clean"]);
    // The shim withholds the success of `setup`, so the caller still sees `setup` as RUNNING and
    // sends a stop request.
    world.call(kill("setup", 10));
    world.run_for(ms(500));
    let failed = world.now;
    world.call(Call::Crash("logs", 1));
    world.run_for(secs(20));
    assert!(
        world.signalled("proxy") >= Some(failed.after(secs(10))),
        "{:#?}",
        world.seen
    );
}

#[test]
fn a_pre_stop_handler_right_after_the_start_counts_if_another_container_has_a_request() {
    let argv = ["/bin/bye".to_owned()];
    let world = pod(&[("sidecars", "proxy")]).facts("proxy", handler(&argv));
    let mut world = running(world, &["web"]);
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    let exec = exec("exec", &argv);
    world.exec("proxy", &exec).unwrap();
    assert_eq!(world.pod.phase(), Phase::Initializing);
    world.call(kill("web", 30));
    assert!(
        matches!(world.pod.phase(), Phase::Terminating(_)),
        "{:?}",
        world.pod.phase()
    );
}

#[test]
fn a_decided_termination_is_not_treated_as_inferred() {
    let annotations = [
        ("apps", "api web"),
        ("essential", "api"),
        ("restart-policy", "Never"),
        (
            "termination-hook.usher/api",
            r#"{"exec":{"command":["/bin/hook"]}}"#,
        ),
    ];
    let mut world = running(pod(&annotations), &["api", "web"]);
    world.call(kill("web", 30));
    world.run_for(ms(20));
    // After this crash, the caller sees only `web` as RUNNING, and the stop request for `web` is
    // still open.
    world.call(Call::Crash("api", 1));
    let failed = matches!(first_cause(&world), Some(Cause::EssentialFailed { .. }));
    assert!(failed, "{:#?}", world.seen);
    world.run_for(secs(1));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    assert!(world.executed("web#2").is_some(), "{:#?}", world.seen);
}

#[test]
fn a_defer_that_ran_at_an_end_that_was_none_is_started_again_by_its_caller() {
    let annotations = [
        ("apps", "web"),
        ("pre-exit", "drain"),
        ("post-exit", "clean"),
        ("restart-policy", "OnFailure"),
    ];
    let world = pod(&annotations).script("drain", runs_to(0));
    let mut world = running(world, &["web", "drain", "clean"]);
    world.call(Call::Crash("web", 1));
    // The image of `clean` is changed while the app is in back-off.
    world.call(kill("clean", 30));
    world.run_for(secs(3));
    assert!(world.executed("drain").is_some());
    // Kubelet creates `drain` again for the real termination only if `drain` reports a failure.
    assert_eq!(world.reported("drain"), Some(143));
}

#[test]
fn a_container_being_restarted_at_the_deadline_is_signaled_as_soon_as_it_runs() {
    let annotations = [
        ("sidecars", "proxy"),
        ("post-exit", "report"),
        ("grace-period", "3s"),
    ];
    let world = pod(&annotations).script("report", deaf());
    let world = world.script("proxy", deaf());
    let mut world = running(world, &["proxy", "web", "report"]);
    ask_all(&mut world, &["web", "proxy", "report"], TERM);
    world.run_for(ms(2_990));
    world.call(Call::Crash("proxy", 1));
    world.run_for(ms(100));
    let signals = world.signals("proxy");
    assert_eq!(signals.len(), 1, "{:#?}", world.seen);
    world.run_for(secs(10));
    let signals: Vec<_> = world.signals("proxy").iter().map(|(_, s)| *s).collect();
    assert_eq!(signals, [TERM, Signal::KILL]);
}

#[test]
fn two_requests_with_the_same_deadline_belong_to_one_termination() {
    let annotations = [
        ("sidecars", "proxy"),
        ("grace-policy", "Reserve"),
        ("grace-period", "10s"),
    ];
    let world = pod(&annotations).script("web", deaf());
    let mut world = running(world, &["proxy", "web"]);
    world.call(kill("web", 10));
    // The proxy has a preStop handler of five seconds that the shim does not see.
    world.run_for(secs(5));
    world.call(kill("proxy", 5));
    world.run_for(secs(20));
    // A grace period of ten seconds is long enough for `Reserve` to reserve time for the sidecar.
    assert_eq!(
        world.signals("proxy").first().map(|(_, s)| *s),
        Some(TERM),
        "{:#?}",
        world.seen
    );
}

/// A pod that is deleted while its defer container `clean` still runs because of a wrongly inferred
/// termination.
fn with_a_defer_that_runs(policy: &str) -> World {
    let annotations = [
        ("apps", "web"),
        ("pre-exit", "drain"),
        ("post-exit", "report clean"),
        ("grace-policy", policy),
        ("grace-period", "10s"),
    ];
    let world = pod(&annotations).script("report", runs_to(0));
    let world = world.script("drain", runs_to(0)).script("clean", deaf());
    let mut world = running(world, &["web", "drain", "report", "clean"]);
    world.call(Call::Crash("web", 1));
    world.call(kill("report", 10));
    world.run_for(ms(1_500));
    assert!(world.executed("clean").is_some(), "{:#?}", world.seen);
    for name in ["web#2", "drain#2", "report#2"] {
        world.behave(name, deaf());
        world.call(Call::Run(name, None));
        world.run_for(secs(1));
    }
    for name in ["web#2", "drain#2", "report#2", "clean"] {
        world.call(kill(name, 10));
    }
    world.run_for(secs(30));
    world
}

#[test]
fn a_running_defer_gets_its_stop_signal_before_sigkill() {
    for policy in ["Shared", "Reserve", "Overrun", "SkipHooks"] {
        let world = with_a_defer_that_runs(policy);
        let signals: Vec<_> = world.signals("clean").iter().map(|(_, s)| *s).collect();
        assert_eq!(signals, [TERM, Signal::KILL], "{policy} {:#?}", world.seen);
    }
}

#[test]
fn a_request_is_over_when_its_callers_time_is_which_begins_at_the_answer() {
    let annotations = [
        ("sidecars", "proxy"),
        ("grace-policy", "SkipHooks"),
        ("grace-period", "5s"),
    ];
    let world = pod(&annotations).script("proxy", deaf());
    let mut world = running(world, &["proxy", "web", "api"]);
    world.call(kill("proxy", 5));
    // The stop request was answered after a second. The caller makes no further call.
    world.run_for(ms(6_500));
    world.call(kill("api", 5));
    assert_eq!(world.pod.phase(), Phase::Running, "{:#?}", world.seen);
}

#[test]
fn the_rest_of_the_grace_period_after_a_handler_does_not_shorten_the_delay_of_answers() {
    let annotations = [
        ("sidecars", "proxy logs"),
        ("grace-policy", "Reserve"),
        ("grace-period", "10s"),
    ];
    let world = pod(&annotations).script("web", deaf());
    let mut world = running(world, &["proxy", "logs", "web"]);
    world.call(kill("web", 10));
    world.call(kill("logs", 10));
    world.run_for(secs(3));
    world.call(kill("proxy", 2));
    let request = world.asked.last().copied().unwrap();
    assert!(
        !world.answered.contains_key(&request),
        "its two seconds begin at the answer"
    );
}

#[test]
fn a_sigkill_for_a_container_that_was_never_started_is_no_evidence_about_the_pod() {
    let argv = ["/bin/bye".to_owned()];
    let world = pod(&[("pre-exit", "drain"), ("apps", "web api")]).facts("web", handler(&argv));
    let mut world = running(world, &["web", "drain"]);
    world.call(Call::Create("api"));
    world.run_for(ms(100));
    let exec = exec("exec", &argv);
    world.exec("web", &exec).unwrap();
    // The caller has given up on the Start of `api`, and deletes the container.
    world.call(Call::Kill("api", Signal::KILL, Some(secs(10))));
    assert_eq!(world.pod.phase(), Phase::Running, "{:#?}", world.seen);
}

#[test]
fn a_second_sigkill_for_a_container_that_was_never_started_is_no_evidence_about_the_pod() {
    let argv = ["/bin/bye".to_owned()];
    let stuck = Script {
        survives_sigkill: true,
        ..Script::default()
    };
    let world = pod(&[("pre-exit", "drain"), ("apps", "web api")]).facts("web", handler(&argv));
    let mut world = running(world.script("api", stuck), &["web", "drain"]);
    world.call(Call::Create("api"));
    world.run_for(ms(100));
    let exec = exec("exec", &argv);
    world.exec("web", &exec).unwrap();
    // The caller has given up on the Start of `api`, and deletes the container. The container's
    // process hangs, so the caller tries again.
    for _ in 0..2 {
        world.call(Call::Kill("api", Signal::KILL, Some(secs(10))));
        world.run_for(ms(100));
    }
    assert_eq!(world.pod.phase(), Phase::Running, "{:#?}", world.seen);
}

#[test]
fn a_sigkill_after_a_start_that_timed_out_is_no_evidence_about_the_pod() {
    let argv = ["/bin/bye".to_owned()];
    let slow = Script {
        release_takes: secs(300),
        ..Script::default()
    };
    let world = pod(&[("pre-exit", "drain"), ("apps", "web api")]).facts("web", handler(&argv));
    let mut world = running(world.script("api", slow), &["web", "drain"]);
    world.call(Call::Run("api", None));
    world.run_for(secs(130));
    let exec = exec("exec", &argv);
    world.exec("web", &exec).unwrap();
    // The Start was never answered, so containerd gives up on the Start and deletes the container.
    world.call(Call::Kill("api", Signal::KILL, Some(secs(10))));
    assert_eq!(world.pod.phase(), Phase::Running, "{:#?}", world.seen);
}

#[test]
fn a_sigkill_for_a_container_started_after_its_callers_deadline_is_no_evidence_about_the_pod() {
    let slow = Script {
        release_takes: secs(3),
        ..Script::default()
    };
    let world = pod(&[("pre-exit", "drain"), ("apps", "web api")]);
    let world = world.script("web", slow.clone()).script("api", slow);
    let mut world = running(world, &["drain"]);
    for app in ["web", "api"] {
        world.call(Call::Run(app, None));
        world.run_for(ms(100));
        // The caller of the Start goes away, and then the container runs.
        world.call(Call::GiveUp(app));
        world.run_for(secs(4));
    }
    world.call(Call::Kill("web", Signal::KILL, Some(secs(10))));
    world.call(Call::Kill("api", Signal::KILL, Some(secs(10))));
    world.run_for(secs(2));
    assert_eq!(world.pod.phase(), Phase::Running, "{:#?}", world.seen);
}

#[test]
fn a_hook_that_was_under_way_at_an_end_that_was_none_runs_again_at_the_real_one() {
    let hook = r#"{"exec":{"command":["/bin/hook"]}}"#;
    let annotations = [
        ("sidecars", "proxy"),
        ("termination-hook.usher/proxy", hook),
    ];
    let slow = Script {
        hook_takes: secs(4),
        ..Script::default()
    };
    let mut world = running(
        pod(&annotations).script("proxy", slow),
        &["proxy", "web", "api"],
    );
    let begun = |world: &World| {
        let began = |seen: &Seen| matches!(seen, Seen::HookBegan(id, _) if id == "proxy");
        world.seen.iter().filter(|(_, seen)| began(seen)).count()
    };
    world.call(kill("web", 30));
    world.call(kill("api", 30));
    assert_eq!(begun(&world), 1);
    world.run_for(secs(1));
    // This Create shows that the pod does not end, because kubelet creates no container in a pod
    // that it ends.
    world.call(Call::Run("web#2", None));
    world.run_for(secs(10));
    world.call(kill("web#2", 30));
    world.call(kill("proxy", 30));
    world.run_for(secs(10));
    assert_eq!(begun(&world), 2, "{:#?}", world.seen);
}

#[test]
fn a_held_defer_that_is_asked_while_an_init_container_works_runs() {
    let annotations = [("init", "setup"), ("pre-exit", "drain"), ("apps", "web")];
    let handler = KubeletFacts {
        pre_stop: Some(PreStop::HttpGet),
        ..KubeletFacts::default()
    };
    let world = pod(&annotations).facts("setup", handler);
    let mut world = running(world, &["drain", "setup"]);
    // The stop request for `setup` comes after its preStop handler, which the shim does not see.
    world.call(kill("drain", 4));
    world.run_for(secs(3));
    assert!(world.executed("drain").is_some(), "{:#?}", world.seen);
}

#[test]
fn the_answer_to_the_request_that_proves_the_termination_depends_on_the_whole_grace_period() {
    let annotations = [
        ("sidecars", "proxy"),
        ("grace-policy", "Reserve"),
        ("grace-period", "6s"),
    ];
    let mut world = running(pod(&annotations).script("web", deaf()), &["proxy", "web"]);
    world.call(kill("web", 6));
    // The proxy's preStop handler took five seconds, so kubelet gives the proxy two seconds more.
    world.run_for(secs(5));
    world.call(kill("proxy", 2));
    let request = world.asked.last().copied().unwrap();
    world.run_for(ms(10));
    assert!(
        !world.answered.contains_key(&request),
        "its two seconds begin at the answer: {:#?}",
        world.seen
    );
}

#[test]
fn a_run_is_not_complete_whose_app_is_created_once_more_when_its_sandbox_has_died() {
    let annotations = [
        ("post-exit", "clean"),
        ("apps", "web"),
        ("restart-policy", "OnFailure"),
    ];
    let world = pod(&annotations).script("clean", runs_to(0));
    let mut world = running(world, &["web", "clean"]);
    world.call(kill("web", 10));
    world.run_for(ms(300));
    world.call(Call::Crash("pause", 137));
    world.run_for(ms(20));
    world.call(Call::Run("web#2", None));
    world.run_for(secs(5));
    assert_eq!(world.reported("clean"), Some(143), "{:#?}", world.seen);
}

#[test]
fn a_complete_run_is_not_complete_after_its_app_is_recreated_and_the_sandbox_dies() {
    let annotations = [
        ("apps", "web"),
        ("pre-exit", "flush"),
        ("restart.usher/flush", "Always"),
        ("restart-policy", "OnFailure"),
    ];
    let world = pod(&annotations).script("flush", runs_to(1));
    let mut world = running(world, &["web", "flush"]);
    world.call(Call::Crash("web", 0));
    world.run_for(secs(2));
    // Kubelet creates `web` again despite exit code 0, because it had found the container
    // unhealthy.
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    world.call(Call::Crash("pause", 137));
    world.run_for(secs(5));
    assert_eq!(world.reported("flush"), Some(143), "{:#?}", world.seen);
}

#[test]
fn an_app_that_comes_after_an_end_is_ended_soon_if_that_has_stopped_the_sidecar_it_waits_for() {
    let annotations = [
        ("sidecars", "proxy logs"),
        ("apps", "api"),
        ("essential", "proxy"),
        ("restart-policy", "Never"),
        (
            "startup-probe.usher/logs",
            r#"{"tcpSocket":{"port":1},"failureThreshold":100}"#,
        ),
    ];
    let world = pod(&annotations).script("logs", never_ready());
    let mut world = running(world, &["proxy", "logs"]);
    world.call(Call::Crash("proxy", 1));
    world.run_for(ms(10));
    world.call(Call::Run("api", None));
    world.run_for(secs(35));
    assert_eq!(world.reported("api"), Some(1), "{:#?}", world.seen);
}

#[test]
fn an_unseen_pre_stop_handler_hides_the_stop_request_behind_it() {
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::TcpSocket),
        ..KubeletFacts::default()
    };
    let annotations = [("sidecars", "proxy"), ("apps", "web")];
    let world = pod(&annotations).facts("web", facts);
    let mut world = running(world.script("web", deaf()), &["proxy", "web"]);
    world.call(kill("web", 7));
    // The caller goes away, and sends no SIGKILL at the end of the grace period.
    world.run_for(secs(9));
    world.call(kill("proxy", 8));
    world.run_for(secs(2));
    world.call(kill("web", 6));
    world.run_for(secs(3));
    assert_eq!(world.signalled("proxy"), None, "{:#?}", world.seen);
    world.call(Call::Crash("web", 1));
    world.run_for(ms(100));
    assert!(world.signalled("proxy").is_some(), "{:#?}", world.seen);
}

#[test]
fn a_container_with_a_stop_request_is_not_stopped_for_its_probe() {
    let facts = KubeletFacts {
        pre_stop: Some(PreStop::HttpGet),
        ..KubeletFacts::default()
    };
    let unwell = Script {
        unwell_after: Some(secs(61)),
        ..Script::default()
    };
    let annotations = [
        ("sidecars", "logs"),
        ("apps", "web"),
        (
            "liveness-probe.usher/logs",
            r#"{"tcpSocket":{"port":80},"periodSeconds":1,"failureThreshold":2}"#,
        ),
        (
            "termination-hook.usher/logs",
            r#"{"exec":{"command":["/bin/hook"]}}"#,
        ),
    ];
    let world = pod(&annotations).facts("web", facts).script("logs", unwell);
    let mut world = running(world, &["logs", "web"]);
    // The pod is deleted. The stop request for `web` comes after its preStop handler, which the
    // shim does not see.
    world.call(kill("logs", 30));
    world.run_for(secs(10));
    assert_eq!(world.signalled("logs"), None, "{:#?}", world.seen);
    world.call(kill("web", 20));
    world.run_for(secs(2));
    let hook = Seen::HookBegan("logs".to_owned(), HookKind::Termination);
    assert!(
        world.at(&hook).is_some() && world.signalled("logs") >= world.died("web"),
        "{:#?}",
        world.seen
    );
}

#[test]
fn an_end_that_shows_when_its_time_is_over_leaves_a_moment() {
    let annotations = [
        ("native-init", "vpn"),
        ("sidecars", "logs"),
        ("apps", "web"),
        ("grace-period", "10s"),
    ];
    let world = pod(&annotations).script("logs", deaf());
    let mut world = running(world.script("vpn", deaf()), &["vpn", "logs"]);
    // The pod is deleted before its app is created. Kubelet stops a native sidecar when the grace
    // period of all other containers is over.
    world.call(kill("logs", 10));
    world.run_for(ms(10_300));
    let shows = world.now;
    world.call(kill("vpn", 2));
    world.run_for(secs(5));
    for name in ["vpn", "logs"] {
        let killed = world.signals(name).into_iter();
        let killed = killed.filter(|(_, signal)| *signal == Signal::KILL);
        let killed: Vec<_> = killed.map(|(at, _)| at).collect();
        assert_eq!(killed, [shows.after(secs(2))], "{name}: {:#?}", world.seen);
    }
}

#[test]
fn a_sandbox_that_has_died_is_not_forgotten_when_it_is_deleted() {
    let annotations = [("sidecars", "proxy"), ("restart-policy", "OnFailure")];
    let mut world = pod(&annotations);
    world.run_for(ms(100));
    world.call(Call::Crash("pause", 137));
    world.call(Call::Delete("pause"));
    // The caller does not know yet that the sandbox is dead.
    world.call(Call::Run("proxy", None));
    assert!(
        matches!(world.refused.last(), Some(Refusal::SandboxGone { .. })),
        "{:#?}",
        world.seen
    );
}

#[test]
fn a_closed_request_and_the_next_one_make_no_termination() {
    let argv = ["/bin/bye".to_owned()];
    let annotations = [
        ("sidecars", "proxy"),
        ("apps", "api"),
        ("pre-exit", "drain"),
        ("grace-period", "3s"),
    ];
    let world = pod(&annotations).facts("proxy", handler(&argv));
    let mut world = running(world.script("proxy", deaf()), &["proxy", "api", "drain"]);
    // Kubelet stops `proxy` because the container is unhealthy, and goes away before it sends
    // SIGKILL.
    let exec = exec("exec", &argv);
    world.exec("proxy", &exec).unwrap();
    world.run_for(ms(1_500));
    world.exec_over("proxy", "exec", Some(0));
    world.call(kill("proxy", 2));
    world.run_for(ms(2_300));
    // The image of `drain` has changed, so kubelet stops `drain`.
    world.call(kill("drain", 3));
    world.run_for(secs(2));
    assert_eq!(world.executed("drain"), None, "{:#?}", world.seen);
    assert_eq!(world.pod.phase(), Phase::Running);
}

#[test]
fn an_app_with_a_changed_image_waits_for_no_init_container() {
    let mut world = pod(&[
        ("init", "setup"),
        ("apps", "web"),
        ("restart-policy", "Never"),
    ]);
    world = running(world.script("setup", runs_to(0)), &["setup", "web"]);
    world.run_for(secs(15));
    // A preStop handler that the shim cannot see has taken the grace period, so that 2 s are left.
    world.call(kill("web", 2));
    world.run_for(secs(1));
    assert!(world.reported("web").is_some());
    world.call(Call::Run("web#2", None));
    world.run_for(ms(100));
    assert!(world.is_executing("web#2"), "{:#?}", world.seen);
}

#[test]
fn a_restart_of_the_whole_pod_starts_in_order() {
    let annotations = [
        ("init", "setup"),
        ("sidecars", "proxy"),
        ("apps", "web api"),
        ("restart-policy", "Never"),
        ("caller-restarts.usher/web", "42"),
    ];
    let names = ["setup", "proxy", "web", "api"];
    let mut world = running(pod(&annotations).script("setup", runs_to(0)), &names);
    world.call(Call::Crash("web", 42));
    for name in ["api", "proxy"] {
        world.run_for(secs(1));
        world.call(kill(name, 2));
        world.run_for(secs(3));
        assert!(world.reported(name).is_some(), "{name}: {:#?}", world.seen);
    }
    world.call(Call::Run("web#2", None));
    world.run_for(secs(1));
    assert!(!world.is_executing("web#2"), "{:#?}", world.seen);
    world.call(Call::Run("setup#2", None));
    world.call(Call::Run("proxy#2", None));
    world.run_for(secs(3));
    assert!(world.is_executing("web#2"), "{:#?}", world.seen);
}

#[test]
fn a_stop_after_a_pre_stop_handler_that_took_all_the_time_is_not_forced() {
    let argv = ["/bin/bye".to_owned()];
    let annotations = [
        ("sidecars", "proxy"),
        ("post-exit", "clean"),
        ("grace-period", "5s"),
    ];
    let world = pod(&annotations).facts("web", handler(&argv));
    let mut world = running(world, &["proxy", "web", "clean"]);
    let exec = exec("exec", &argv);
    world.exec("web", &exec).unwrap();
    world.run_for(secs(5));
    world.exec_over("web", "exec", None);
    world.call(kill("web", 2));
    world.call(kill("proxy", 2));
    world.run_for(secs(5));
    assert!(world.executed("clean").is_some(), "{:#?}", world.seen);
}
