//! The order in which a pod's containers run when they are created and started.

use crate::lifecycle::{Exec, Refusal, Time};
use crate::plan::KubeletFacts;

use super::fixtures::{broken, exec};
use crate::simulator::{Call, Script, World, ms, secs};

const PROBE: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":1000}"#,
);

fn ready_after(millis: u64) -> Script {
    Script {
        ready_after: Some(ms(millis)),
        ..Script::default()
    }
}

#[test]
fn an_app_that_is_created_first_runs_when_its_sidecar_is_started() {
    let mut world = World::new(&[("sidecars", "proxy"), PROBE]).script("proxy", ready_after(450));
    world.call(Call::Run("web", None));
    world.call_in(ms(200), Call::Run("proxy", None));
    world.run_for(secs(5));
    let started = world.executed("proxy").unwrap().after(ms(450));
    let app = world.executed("web").unwrap();
    assert!(
        app >= started && app <= started.after(ms(110)),
        "{:#?}",
        world.seen
    );
    // The Start was answered at once, because the caller may create the proxy only after the
    // answer.
    assert!(world.start_answer("web").unwrap().0 < world.executed("proxy").unwrap());
    world.check_end();
}

#[test]
fn an_app_that_is_created_last_is_not_reported_started_before_it_runs() {
    let mut world = World::new(&[("sidecars", "proxy"), PROBE]).script("proxy", ready_after(450));
    world.call(Call::Run("proxy", None));
    world.call_in(ms(100), Call::Run("web", None));
    world.run_for(secs(5));
    assert_eq!(
        world.start_answer("web").unwrap().0,
        world.executed("web").unwrap()
    );
    world.check_end();
}

#[test]
fn a_sidecar_that_is_ready_before_any_container_waits_for_it_counts() {
    let mut world = World::new(&[("sidecars", "proxy"), PROBE]);
    world.call(Call::Run("proxy", None));
    world.run_for(secs(2));
    let asked = world.now;
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    assert!(world.executed("web").unwrap() <= asked.after(ms(31)));
}

#[test]
fn sidecars_start_side_by_side_and_the_app_waits_for_the_slowest() {
    let slow = r#"{"exec":{"command":["true"]},"periodMilliseconds":50,"failureThreshold":1000}"#;
    let mut world = World::new(&[
        ("sidecars", "proxy, logs"),
        PROBE,
        ("startup-probe.usher/logs", slow),
    ])
    .script("proxy", ready_after(100))
    .script("logs", ready_after(900));
    for name in ["web", "logs", "proxy"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(5));
    let (logs, proxy) = (
        world.executed("logs").unwrap(),
        world.executed("proxy").unwrap(),
    );
    assert!(proxy.since(logs) < ms(5) && logs.since(proxy) < ms(5));
    assert!(world.executed("web").unwrap() >= logs.after(ms(900)));
}

#[test]
fn a_startup_order_starts_sidecars_one_after_another() {
    let mut world = World::new(&[
        ("sidecars", "proxy logs"),
        ("startup-order", "logs proxy"),
        PROBE,
    ])
    .script("proxy", ready_after(300));
    for name in ["web", "proxy", "logs"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(secs(5));
    let (logs, proxy) = (
        world.executed("logs").unwrap(),
        world.executed("proxy").unwrap(),
    );
    assert!(logs < proxy && world.executed("web").unwrap() >= proxy.after(ms(300)));
}

#[test]
fn block_keeps_the_caller_waiting_and_fails_with_the_name_at_the_timeout() {
    let mut world = World::new(&[
        ("sidecars", "proxy"),
        ("start-mode", "Block"),
        ("startup-timeout", "3s"),
    ]);
    world.call(Call::Run("web", None));
    world.run_for(secs(10));
    let (at, answer) = world.start_answer("web").unwrap();
    assert_eq!(at.since_origin(), ms(3030));
    let refusal = answer.unwrap_err();
    assert!(matches!(refusal, Refusal::StartTimedOut { .. }));
    assert!(
        refusal.to_string().contains("sidecar proxy (never created"),
        "{refusal}"
    );
    assert_eq!(world.executed("web"), None);
    // A second Start works when the sidecar has been created.
    world.call(Call::Run("proxy", None));
    world.run_for(secs(1));
    world.call(Call::Start("web", None));
    world.run_for(secs(1));
    assert!(world.executed("web").is_some());
    world.check_end();
}

#[test]
fn block_fails_two_seconds_before_its_caller_gives_up() {
    let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", "Block")]);
    world.call(Call::Run("web", Some(secs(10))));
    world.run_for(secs(20));
    let (at, answer) = world.start_answer("web").unwrap();
    assert_eq!(at.since_origin(), ms(8030));
    assert!(answer.is_err());
}

#[test]
fn hold_answers_at_once_even_though_the_turn_would_come_by_itself() {
    let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", "Hold"), PROBE])
        .script("proxy", ready_after(1000));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.call(Call::Run("web", None));
    world.run_for(secs(5));
    assert!(world.start_answer("web").unwrap().0 < world.executed("web").unwrap());
}

#[test]
fn auto_blocks_for_ten_seconds_in_a_sandbox_all_told() {
    let mut world = World::new(&[("sidecars", "proxy"), ("startup-timeout", "1m"), PROBE])
        .script("proxy", ready_after(50_000));
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(5));
    world.call(Call::Kill("web", crate::plan::Signal::KILL, None));
    world.run_for(secs(1));
    world.call(Call::Delete("web"));
    assert!(world.start_answer("web").unwrap().1.is_err());
    world.seen.clear();
    // The first Start has used five of the ten seconds for which Starts may be blocked.
    let mut later = world.script("web", Script::default());
    later.call(Call::Run("web", None));
    let asked = later.now;
    later.run_for(secs(2));
    assert_eq!(later.start_answer("web"), None);
    later.run_for(secs(8));
    let answered = later.start_answer("web").unwrap().0;
    // Each Start comes 30 ms after its Create. The first Start was blocked from then until the
    // SIGKILL at 5,000 ms, that is, for 4,970 ms. The second Start may be blocked for the remaining
    // 5,030 ms.
    assert_eq!(answered.since(asked), ms(30 + 5_030));
}

#[test]
fn auto_holds_when_half_of_the_callers_own_time_is_gone() {
    let mut world = World::new(&[("sidecars", "proxy"), PROBE]).script("proxy", ready_after(9_000));
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", Some(secs(6))));
    world.run_for(secs(8));
    assert_eq!(
        world.start_answer("web").unwrap().0.since_origin(),
        ms(3_030)
    );
}

#[test]
fn auto_holds_as_soon_as_the_sidecar_it_waits_for_has_died() {
    let mut world = World::new(&[("sidecars", "proxy"), PROBE]).script("proxy", ready_after(9_000));
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.call_in(secs(2), Call::Crash("proxy", 1));
    world.run_for(secs(3));
    assert_eq!(world.start_answer("web").unwrap().0.since_origin(), secs(2));
    assert_eq!(world.executed("web"), None);
}

#[test]
fn a_hold_says_so_once_and_ends_with_its_reason() {
    let mut world = World::new(&[("sidecars", "proxy"), ("startup-timeout", "20s")]);
    world.call(Call::Run("web", None));
    world.run_for(secs(4));
    assert_eq!(world.told("web"), [""; 0], "a short one says nothing");
    world.run_for(secs(56));
    let told = world.told("web");
    assert_eq!(told.len(), 2, "{told:?}");
    let expected = "usher: web has been held for 5s: it waits for sidecar proxy (never created)";
    assert!(told[0].starts_with(expected), "{told:?}");
    assert!(told[1].contains("is ended"), "{told:?}");
    assert!(told[1].contains("usher/native-init"), "{told:?}");
    assert_eq!(world.reported("web"), Some(1));
    assert_eq!(world.executed("web"), None);
    world.check_end();
}

#[test]
fn a_start_that_blocks_for_long_says_so_once_and_not_again_when_it_is_held() {
    let mut world =
        World::new(&[("sidecars", "proxy"), PROBE]).script("proxy", ready_after(30_000));
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(9));
    let expected =
        "usher: web has not been started for 5s: it waits for sidecar proxy (not started yet)";
    assert_eq!(world.told("web"), [expected]);
    assert!(world.start_answer("web").is_none());
    world.run_for(secs(20));
    assert!(world.start_answer("web").is_some());
    assert_eq!(world.told("web").len(), 1, "{:?}", world.told("web"));
}

/// The advice in the first line on a container's stderr. The advice names a missing annotation, and
/// begins after the first `; `.
fn advice(world: &World, name: &str) -> String {
    let told = world.told(name);
    let (_, advice) = told[0].split_once("; ").unwrap_or_default();
    advice.to_owned()
}

#[test]
fn an_unlisted_native_init_container_gets_a_warning_that_names_its_list() {
    let mut world = World::new(&[("sidecars", "proxy"), ("native-init", "fetch")]);
    world.call(Call::Run("fetch", None));
    world.run_for(secs(1));
    world.call(Call::Crash("fetch", 0));
    world.call(Call::Run("migrate", None));
    world.run_for(secs(6));
    assert_eq!(
        advice(&world, "migrate"),
        "if migrate is one of the pod's own initContainers, the annotation usher/native-init: fetch, \
         migrate lets it run at once"
    );
}

#[test]
fn a_native_init_container_in_a_list_of_usher_gets_a_warning() {
    let mut world = World::new(&[("sidecars", "proxy"), ("init", "fetch migrate")]);
    world.call(Call::Run("migrate", None));
    world.run_for(secs(6));
    assert!(
        advice(&world, "migrate").ends_with("usher/native-init: migrate lets it run at once"),
        "{:?}",
        world.told("migrate")
    );
}

#[test]
fn a_container_added_to_a_waiting_pod_names_the_missing_annotation() {
    let mut world =
        World::new(&[("sidecars", "proxy"), PROBE]).script("proxy", ready_after(60_000));
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(12));
    assert_eq!(advice(&world, "web"), "", "nothing is missing for it");
    world.call(Call::Run("debugger", None));
    world.run_for(secs(6));
    assert_eq!(
        advice(&world, "debugger"),
        "if debugger was added to the pod (kubectl debug), the annotation usher/apps: web lets it \
         run at once"
    );
}

#[test]
fn who_is_listed_is_told_nothing_but_what_it_waits_for() {
    let mut world = World::new(&[("sidecars", "proxy"), ("apps", "web api")]);
    world.call(Call::Run("web", None));
    world.call(Call::Run("api", None));
    world.run_for(secs(6));
    assert_eq!(advice(&world, "api"), "", "{:?}", world.told("api"));
}

#[test]
fn a_caller_that_gives_up_leaves_the_container_as_it_was() {
    let mut world = World::new(&[("sidecars", "proxy"), ("start-mode", "Block")]);
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    world.call(Call::GiveUp("web"));
    world.call(Call::Run("proxy", None));
    world.run_for(secs(1));
    assert_eq!(world.executed("web"), None, "nobody asked for it any more");
    world.call(Call::Start("web", None));
    world.run_for(secs(1));
    assert!(world.executed("web").is_some());
}

#[test]
fn a_sidecar_whose_startup_probe_fails_too_often_is_stopped_and_its_code_is_its_own() {
    let probe = r#"{"tcpSocket":{"port":80},"periodMilliseconds":100,"failureThreshold":3}"#;
    let never = Script {
        ready_after: None,
        stops_after: None,
        ..Script::default()
    };
    let mut world = World::new(&[
        ("sidecars", "proxy"),
        ("startup-probe.usher/proxy", probe),
        ("grace-period", "4s"),
    ])
    .script("proxy", never);
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(secs(10));
    let signals = world.signals("proxy");
    assert_eq!(signals.len(), 2, "{signals:?}");
    assert_eq!(signals[1].0.since(signals[0].0), secs(4));
    assert_eq!(
        world.reported("proxy"),
        Some(137),
        "it was not told to go, it has failed"
    );
    assert_eq!(world.executed("web"), None);
}

#[test]
fn a_restarted_app_waits_for_a_sidecar_that_is_down() {
    let mut world = World::new(&[("sidecars", "proxy"), PROBE]).script("proxy", ready_after(300));
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(2));
    world.call(Call::Crash("proxy", 1));
    world.call(Call::Crash("web", 1));
    world.call(Call::Delete("proxy"));
    world.call(Call::Delete("web"));
    world.seen.clear();
    world.call(Call::Run("web", None));
    world.call_in(secs(1), Call::Run("proxy", None));
    world.run_for(secs(3));
    assert!(world.executed("web").unwrap() >= world.executed("proxy").unwrap().after(ms(300)));
}

#[test]
fn a_guest_is_started_at_once() {
    let mut world = World::new(&[("sidecars", "proxy"), ("apps", "web")]);
    world.call(Call::Run("web", None));
    world.call(Call::Run("debugger", None));
    world.run_for(secs(1));
    assert!(world.executed("debugger").is_some());
    assert_eq!(world.executed("web"), None);
}

#[test]
fn post_start_belongs_to_the_start_of_a_sidecar() {
    let argv = ["/bin/setup".to_owned()];
    let exec = exec("post", &argv);
    let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    world.call(Call::Run("web", None));
    world.call(Call::Run("proxy", None));
    world.run_for(ms(100));
    world.exec("proxy", &exec).unwrap();
    world.run_for(secs(3));
    assert_eq!(world.executed("web"), None);
    world.exec_over("proxy", "post", Some(0));
    world.run_for(ms(10));
    assert!(world.executed("web").is_some());
}

#[test]
fn a_probe_and_a_pre_stop_handler_are_refused_while_the_container_is_held() {
    let argv = ["/bin/bye".to_owned()];
    let facts = KubeletFacts {
        pre_stop: Some(crate::plan::PreStop::Exec {
            command: argv.to_vec(),
        }),
        ..KubeletFacts::default()
    };
    let mut world = World::new(&[("sidecars", "proxy")]).facts("web", facts);
    world.call(Call::Run("web", None));
    world.run_for(ms(100));
    let pre_stop = exec("a", &argv);
    assert!(matches!(
        world.exec("web", &pre_stop),
        Err(Refusal::Held { .. })
    ));
    let other = ["/bin/other".to_owned()];
    let probe = Exec {
        id: "b",
        argv: &other,
        has_deadline: true,
        is_interactive: false,
    };
    assert!(matches!(
        world.exec("web", &probe),
        Err(Refusal::Held { .. })
    ));
    let shell = exec("c", &other);
    assert_eq!(world.exec("web", &shell), Ok(()));
}

/// Runs a pod whose app waits in vain, because the sidecar is stopped before its startup probe
/// succeeds, and is not restarted. Returns the world and the time of the stop request.
fn waits_in_vain(mode: &str) -> (World, Time) {
    let mut world = World::new(&[
        ("sidecars", "proxy"),
        ("restart-policy", "OnFailure"),
        ("restart.usher/proxy", "Never"),
        ("start-mode", mode),
        PROBE,
    ])
    .script("proxy", ready_after(600_000));
    world.call(Call::Run("proxy", None));
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    let stopped = world.now;
    world.call(Call::Kill("proxy", crate::plan::Signal::TERM, None));
    // Within 30 s the caller may create the sidecar again.
    world.run_for(secs(29));
    assert!(world.died("proxy").is_some() && world.died("web").is_none());
    world.run_for(secs(10));
    (world, stopped)
}

#[test]
fn a_container_held_for_one_that_will_not_restart_ends_at_once() {
    let (world, stopped) = waits_in_vain("Hold");
    let ended = world.died("web").expect("an end of its own");
    assert!(ended < stopped.after(secs(31)), "{:#?}", world.seen);
}

#[test]
fn a_start_that_waits_for_a_container_that_will_not_restart_fails_at_once() {
    let (world, stopped) = waits_in_vain("Block");
    let (at, answer) = world.start_answer("web").expect("an answer");
    assert!(matches!(answer, Err(Refusal::NeverComes { .. })));
    assert!(at < stopped.after(secs(31)), "{:#?}", world.seen);
}

#[test]
fn without_a_sandbox_the_first_plan_counts_and_another_is_refused() {
    let mut world = World::new(&[("sidecars", "proxy")]);
    world.call(Call::Run("web", None));
    world.replan(&[("sidecars", "logs")]);
    world.call(Call::Run("proxy", None));
    assert!(matches!(world.refused[..], [Refusal::OtherPlan { .. }]));
    world.replan(&[("sidecars", "proxy")]);
    world.call(Call::Run("proxy", None));
    world.run_for(secs(1));
    assert!(world.executed("web").is_some());
}

#[test]
fn annotations_of_later_containers_do_not_change_the_plan_of_the_sandbox() {
    let mut world = World::new(&[("sidecars", "proxy")]).with_sandbox();
    world.replan(&[("sidecars", "web")]);
    world.call(Call::Run("web", None));
    world.call_in(secs(1), Call::Run("proxy", None));
    world.run_for(secs(3));
    assert!(world.refused.is_empty());
    assert!(world.executed("web") > world.executed("proxy"));
}

#[test]
fn a_pod_without_annotations_sees_no_difference() {
    let mut world = World::new(&[]);
    for name in ["a", "b"] {
        world.call(Call::Run(name, None));
    }
    world.run_for(ms(100));
    for name in ["a", "b"] {
        assert_eq!(
            world.start_answer(name).unwrap().0,
            world.executed(name).unwrap()
        );
        world.call(Call::Kill(name, crate::plan::Signal::TERM, None));
        assert!(world.signalled(name).is_some());
    }
    assert_eq!(world.pod.next_timer(), None);
}

#[test]
fn a_start_during_the_failed_creation_of_a_container_with_the_same_name_counts() {
    let slow = Script {
        release_takes: ms(100),
        ..Script::default()
    };
    let mut world = World::new(&[("sidecars", "proxy")])
        .script("proxy", slow)
        .script("proxy#2", broken());
    world.call(Call::Run("proxy", None));
    world.run_for(ms(120));
    world.call(Call::Create("proxy#2"));
    world.run_for(ms(100));
    world.call(Call::Run("web", None));
    world.run_for(secs(1));
    assert!(world.executed("web").is_some(), "{:#?}", world.seen);
}
