//! The text of `usher inspect`.

use protobuf::MessageField;
use protobuf::well_known_types::timestamp::Timestamp;

use super::*;
use usher_core::lifecycle::Remedy;

fn at(seconds: i64) -> MessageField<Timestamp> {
    MessageField::some(Timestamp {
        seconds,
        ..Timestamp::new()
    })
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn held() -> api::Pod {
    let obstacle = api::Obstacle {
        container: "proxy".to_owned(),
        role: Some(api::Role::ROLE_SIDECAR.into()),
        missing: api::Missing::MISSING_NOT_STARTED.into(),
        ..api::Obstacle::new()
    };
    let wait = api::Wait {
        obstacles: vec![obstacle],
        since: at(1000),
        until: at(1300),
        then: Some(api::Then::THEN_ENDED.into()),
        ..api::Wait::new()
    };
    let web = api::Container {
        name: "web".to_owned(),
        role: api::Role::ROLE_APP.into(),
        state: api::State::STATE_HELD.into(),
        wait: MessageField::some(wait),
        ..api::Container::new()
    };
    api::Pod {
        name: "shop".to_owned(),
        status: MessageField::some(api::Status {
            doing: api::Doing::DOING_SIDECAR.into(),
            total: 1,
            ..api::Status::new()
        }),
        containers: vec![web],
        created: at(998),
        ..api::Pod::new()
    }
}

#[test]
fn the_first_lines_describe_the_wait_and_its_end() {
    let text = plain(&text(&held(), None, 1012.0));
    let lines: Vec<&str> = text.lines().take(3).collect();
    let expected = [
        "shop waits: Sidecar:0/1 (web)",
        "  app web is held for 12.0s, waiting for sidecar proxy (not started yet)",
        "    in 4m48s at the latest it ends with exit code 1 (usher/startup-timeout); to run it now: usher release \
         shop web",
    ];
    assert_eq!(lines, expected);
}

/// `usher release` refuses containers of a pod that terminates.
#[test]
fn a_held_app_of_a_pod_that_terminates_waits_for_its_turn_to_stop() {
    let pod = api::Pod {
        phase: api::Phase::PHASE_TERMINATING.into(),
        ..held()
    };
    let waits = waits::waits(&pod, 1012.0).join("\n");
    let expected =
        "app web is held for 12.0s, waiting for its turn to stop\n  it ends when its turn comes";
    assert!(plain(&waits).starts_with(expected), "{waits}");
}

#[test]
fn a_wait_comes_with_the_annotation_that_may_be_missing() {
    let mut pod = held();
    if let Some(wait) = pod.containers[0].wait.as_mut() {
        let remedy = Remedy::NativeInit {
            container: "web".to_owned(),
            list: vec!["fetch".to_owned(), "web".to_owned()],
        };
        wait.remedies = vec![api::Remedy::from(&remedy)];
    }
    let expected = "    if web is one of the pod's own initContainers, the annotation \
        usher/native-init: fetch, web lets it run at once";
    let text = plain(&text(&pod, None, 1012.0));
    assert_eq!(text.lines().nth(3), Some(expected), "{text}");
}

#[test]
fn advice_for_several_containers_is_given_once() {
    let mut pod = held();
    pod.containers.push(pod.containers[0].clone());
    pod.containers[1].name = "proxi".to_owned();
    for container in &mut pod.containers {
        let name = container.name.clone();
        let wait = container.wait.as_mut().unwrap();
        wait.obstacles[0].missing = api::Missing::MISSING_NEVER_CREATED.into();
        let list = vec![name.clone()];
        wait.remedies = vec![api::Remedy::from(&Remedy::NativeInit {
            container: name.clone(),
            list: list.clone(),
        })];
        if name == "proxi" {
            let guest = Remedy::Guest {
                container: name,
                list,
            };
            wait.remedies.push(api::Remedy::from(&guest));
        }
    }
    let text = plain(&text(&pod, None, 1012.0));
    let expected = "  the annotation usher/native-init lets those of web, proxi run at once that are the \
        pod's own initContainers, if it names them\n  \
        the annotation usher/apps lets containers that were added to the pod (kubectl debug) run at \
        once, if it names only the pod's apps\n  \
        never created: proxy; created so far: web, proxi; compare the names with the pod's spec\n";
    assert!(text.contains(expected), "{text}");
    assert_eq!(text.matches("initContainers").count(), 1, "{text}");
}

#[test]
fn a_late_run_is_named_first() {
    let list = vec!["web".to_owned()];
    let mut pod = held();
    pod.containers.clear();
    pod.late = MessageField::some(api::Late {
        until: at(1020),
        remedy: MessageField::some(api::Remedy::from(&Remedy::Complete { list })),
        ..api::Late::new()
    });
    let text = plain(&text(&pod, None, 1012.0));
    let lines: Vec<&str> = text.lines().take(2).collect();
    let expected = [
        "shop waits for apps that may still be created: Sidecar:0/1",
        "  all apps have ended; the run is complete in 8.00s unless another container is \
         created; the annotation usher/apps: web completes it at once",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn guests_that_keep_a_pod_running_are_named_first() {
    let mut pod = held();
    pod.containers.clear();
    pod.kept = MessageField::some(api::Kept {
        since: at(1000),
        by: vec!["agent".to_owned(), "debug".to_owned()],
        ..api::Kept::new()
    });
    let text = plain(&text(&pod, None, 1012.0));
    let lines: Vec<&str> = text.lines().take(2).collect();
    let expected = [
        "shop cannot end by itself: Sidecar:0/1",
        "  the run ended 12.0s ago, but the pod still runs because of agent, debug, which usher does \
         not stop; list containers that do not exit by themselves in usher/sidecars",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_terminating_pod_shows_the_cause_and_the_step() {
    let termination = api::Termination {
        cause: api::Cause::CAUSE_SIDECAR_FAILED.into(),
        failed: Some("proxy".to_owned()),
        exit_code: Some(3),
        since: at(1000),
        deadline: at(1030),
        step: api::StepName::STEP_APPS.into(),
        ..api::Termination::new()
    };
    let mut pod = held();
    pod.phase = api::Phase::PHASE_TERMINATING.into();
    pod.termination = MessageField::some(termination);
    let text = plain(&text(&pod, None, 1012.0));
    let expected = "the pod has been terminating for 12.0s: its sidecar proxy ended with 3 before \
        it was started, and is never restarted; step apps, 18.0s of the grace period left";
    assert!(text.contains(expected), "{text}");
}

/// A pod whose cleanup hangs, with these sidecars.
fn cleaning_up(sidecars: &[&str]) -> api::Pod {
    let waiting = |name: &str, role: api::Role, missing: api::Missing, since| {
        let turn = missing == api::Missing::MISSING_TURN_TO_STOP;
        let obstacle = api::Obstacle {
            missing: missing.into(),
            container: if turn { "clean-up" } else { "" }.to_owned(),
            role: turn.then(|| api::Role::ROLE_POST_EXIT.into()),
            step: turn.then(|| api::StepName::STEP_POST_EXIT.into()),
            ..api::Obstacle::new()
        };
        let wait = api::Wait {
            obstacles: vec![obstacle],
            since: at(since),
            until: at(1020),
            then: Some(api::Then::THEN_KILLED.into()),
            ..api::Wait::new()
        };
        api::Container {
            name: name.to_owned(),
            role: role.into(),
            state: api::State::STATE_RUNNING.into(),
            wait: MessageField::some(wait),
            ..api::Container::new()
        }
    };
    use api::Missing::{MISSING_TURN_TO_STOP, MISSING_WORK};
    use api::Role::{ROLE_POST_EXIT, ROLE_SIDECAR};
    let sidecars = sidecars.iter();
    let sidecars = sidecars.map(|name| waiting(name, ROLE_SIDECAR, MISSING_TURN_TO_STOP, 1000));
    let cleanup = waiting("clean-up", ROLE_POST_EXIT, MISSING_WORK, 1004);
    let mut pod = held();
    pod.phase = api::Phase::PHASE_TERMINATING.into();
    pod.containers = sidecars.chain([cleanup]).collect();
    pod
}

#[test]
fn a_cleanup_under_way_has_one_line_with_its_time_and_the_containers_that_wait_for_it() {
    let mut pod = cleaning_up(&["proxy", "logs"]);
    let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; proxy and logs wait for it; \
        killed in 11.8s";
    assert_eq!(waits_of(&pod), [expected]);
    let wait = pod.containers[2].wait.as_mut().unwrap();
    wait.obstacles[0].missing = api::Missing::MISSING_EXIT.into();
    let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; proxy and logs wait for it; \
        it got its stop signal; killed in 11.8s";
    assert_eq!(waits_of(&pod), [expected]);
    let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; proxy waits for it; \
        killed in 11.8s";
    assert_eq!(waits_of(&cleaning_up(&["proxy"])), [expected]);
    let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; killed in 11.8s";
    assert_eq!(waits_of(&cleaning_up(&[])), [expected]);
}

/// The lines about waits.
fn waits_of(pod: &api::Pod) -> Vec<String> {
    let text = plain(&text(pod, None, 1008.2));
    let lines = text.lines().skip(1).take_while(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

#[test]
fn an_app_that_ignores_its_signal_and_the_cleanup_after_it_show_the_ends_of_their_waits() {
    let mut pod = cleaning_up(&[]);
    pod.containers.push(pod.containers[0].clone());
    let [app, cleanup] = &mut pod.containers[..] else {
        panic!("two containers")
    };
    app.name = "web".to_owned();
    app.role = api::Role::ROLE_APP.into();
    app.state = api::State::STATE_STOPPING.into();
    let wait = app.wait.as_mut().unwrap();
    wait.since = at(1000);
    wait.then = Some(api::Then::THEN_LAST_SIGNAL.into());
    wait.obstacles[0].missing = api::Missing::MISSING_EXIT.into();
    cleanup.state = api::State::STATE_HELD.into();
    let wait = cleanup.wait.as_mut().unwrap();
    wait.since = at(1000);
    wait.then = Some(api::Then::THEN_LEFT_OUT.into());
    wait.obstacles[0].missing = api::Missing::MISSING_TURN_AT_THE_END.into();
    wait.obstacles[0].step = Some(api::StepName::STEP_APPS.into());
    let expected = [
        "  app web is stopping for 8.20s, waiting for its exit after its stop signal",
        "    in 11.8s at the latest it gets a last signal, and SIGKILL within two seconds",
        "  post-exit clean-up is held for 8.20s, waiting for its turn to run; it is now the turn of the apps",
        "    in 11.8s at the latest its program is never executed, since too little of the grace period is left",
    ];
    assert_eq!(waits_of(&pod), expected);
}

#[test]
fn a_later_cleanup_is_among_the_containers_that_wait_for_the_present_one() {
    let mut pod = cleaning_up(&["proxy"]);
    pod.containers[0].state = api::State::STATE_HELD.into();
    pod.containers[0].role = api::Role::ROLE_POST_EXIT.into();
    let wait = pod.containers[0].wait.as_mut().unwrap();
    wait.obstacles[0].missing = api::Missing::MISSING_TURN_AT_THE_END.into();
    let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; proxy waits for it; \
        killed in 11.8s";
    assert_eq!(waits_of(&pod), [expected]);
}

#[test]
fn the_version_of_a_pods_shim_is_shown() {
    let shim = |version: &str| {
        let pod = api::Pod {
            shim_pid: 7,
            shim_version: version.to_owned(),
            ..held()
        };
        let text = text(&pod, None, 1012.0);
        let line = text.lines().find(|line| line.contains("process 7"));
        line.unwrap_or_default().to_owned()
    };
    assert!(plain(&shim("0.0.9")).ends_with("process 7, version 0.0.9"));
    assert!(shim("0.0.9").contains(&WARNING.to_string()));
    assert!(!shim(usher_api::VERSION).contains(&WARNING.to_string()));
    // An older shim does not send its version.
    assert!(plain(&shim("")).ends_with("process 7, version unknown"));
}

#[test]
fn killed_containers_are_named_with_the_reason() {
    let kills = |why: api::Why, count| api::Kills {
        why: why.into(),
        count,
        ..api::Kills::new()
    };
    let mut pod = held();
    pod.containers[0].kills = vec![
        kills(api::Why::WHY_GRACE_OVER, 1),
        kills(api::Why::WHY_LIVENESS_PROBE_FAILED, 3),
    ];
    let text = plain(&text(&pod, None, 1012.0));
    let expected = "web was killed: the grace period was over\n\
        web was killed 3 times: its liveness probe has failed\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_failed_probe_stands_with_the_wait_for_it_or_else_at_the_end() {
    let mut pod = held();
    let web = &mut pod.containers[0];
    web.failed_probe = MessageField::some(api::FailedProbe {
        probe: api::Probe::PROBE_STARTUP.into(),
        at: at(1010),
        reason: "connection refused".to_owned(),
        ..api::FailedProbe::new()
    });
    let said = "its startup probe last failed 2.00s ago: connection refused";
    let lines = |pod: &api::Pod| {
        let text = plain(&text(pod, None, 1012.0));
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| line.contains("probe last failed"));
        Vec::from_iter(lines.map(|(number, line)| (number, line.to_owned())))
    };
    // The container does not wait for the probe, so the probe has its own line.
    let expected = format!("web: {said}");
    assert_eq!(lines(&pod), [(12, expected)]);
    let wait = pod.containers[0].wait.as_mut().unwrap();
    wait.obstacles[0].missing = api::Missing::MISSING_STARTUP_PROBE.into();
    assert_eq!(lines(&pod), [(3, format!("    {said}"))]);
    // The probe has succeeded after its last failure.
    pod.containers[0].wait = MessageField::none();
    pod.containers[0].ready = true;
    assert_eq!(lines(&pod), []);
    let failed = pod.containers[0].failed_probe.as_mut().unwrap();
    failed.probe = api::Probe::PROBE_LIVENESS.into();
    assert_eq!(lines(&pod).len(), 1);
}

#[test]
fn a_wait_for_a_sidecar_names_its_failed_startup_probe() {
    let mut pod = held();
    let reason = "connection refused";
    let failed = api::FailedProbe {
        probe: api::Probe::PROBE_STARTUP.into(),
        at: at(1010),
        reason: reason.to_owned(),
        ..api::FailedProbe::new()
    };
    let proxy = api::Container {
        name: "proxy".to_owned(),
        role: api::Role::ROLE_SIDECAR.into(),
        state: api::State::STATE_STOPPED.into(),
        failed_probe: MessageField::some(failed),
        ..api::Container::new()
    };
    pod.containers.push(proxy);
    let said = plain(&text(&pod, None, 1012.0));
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(reason)).collect();
    let expected = "    proxy: its startup probe last failed 2.00s ago: connection refused";
    assert_eq!(lines, [expected], "{said}");
    // The sidecar is being stopped because its probe failed, but ignores its signal.
    let obstacle = api::Obstacle {
        missing: api::Missing::MISSING_EXIT.into(),
        ..api::Obstacle::new()
    };
    pod.containers[1].state = api::State::STATE_STOPPING.into();
    pod.containers[1].wait = MessageField::some(api::Wait {
        obstacles: vec![obstacle],
        ..api::Wait::new()
    });
    let said = plain(&text(&pod, None, 1012.0));
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(reason)).collect();
    let expected = "    its startup probe last failed 2.00s ago: connection refused";
    assert_eq!(lines, [expected], "{said}");
}

#[test]
fn a_role_is_shown_with_its_origin() {
    let mut pod = held();
    let row = |pod: &api::Pod| {
        let text = plain(&text(pod, None, 1012.0));
        let row = text.lines().find(|line| line.starts_with("web"));
        let row = row.unwrap_or_default().split("  ").map(str::trim);
        let cells: Vec<_> = row.filter(|cell| !cell.is_empty()).take(3).collect();
        cells.join("|")
    };
    assert_eq!(row(&pod), "web|app|-");
    pod.containers[0].role_origin = api::RoleOrigin::ROLE_ORIGIN_NODE.into();
    assert_eq!(row(&pod), "web|app|node");
    pod.containers[0].role_origin = api::RoleOrigin::ROLE_ORIGIN_LIST.into();
    pod.containers[0].optional = true;
    assert_eq!(row(&pod), "web|app|list, optional");
}

#[test]
fn a_different_reported_exit_code_is_shown_as_well() {
    let mut container = api::Container::new();
    assert_eq!(words::exit(&container), "-");
    container.exit_code = Some(143);
    container.reported_code = Some(0);
    assert_eq!(words::exit(&container), "143, reported as 0");
    container.reported_code = Some(143);
    assert_eq!(words::exit(&container), "143");
}
