use std::time::Duration;

use super::{plan, refusal};
use crate::plan::{
    CgroupSizing, DeferExitCode, GraceExtension, GracePolicy, OomScore, RestartPolicy, Settings,
    SidecarExitCode, SidecarStopOrder, StartMode,
};

#[test]
fn a_pod_without_settings_has_the_defaults_of_the_contract() {
    let settings = plan(&[("usher/sidecars", "a")]).settings().clone();
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.start_mode, StartMode::Auto);
    assert_eq!(settings.startup_timeout, Duration::from_secs(300));
    assert_eq!(settings.restart_policy, RestartPolicy::Always);
    assert_eq!(settings.grace_period, None);
    assert_eq!(settings.grace_policy, GracePolicy::Shared);
    assert_eq!(settings.sidecar_stop_order, SidecarStopOrder::Reverse);
    assert_eq!(settings.sidecar_exit_code, SidecarExitCode::Mask);
    assert_eq!(settings.defer_exit_code, DeferExitCode::Mask);
    assert_eq!(settings.termination_window, Duration::from_secs(1));
    assert_eq!(settings.oom_score, OomScore::Match);
    assert_eq!(settings.cgroup_sizing, CgroupSizing::Effective);
}

#[test]
fn every_scalar_is_read_into_its_setting() {
    let read = plan(&[
        ("usher/start-mode", "Hold"),
        ("usher/startup-timeout", "1m30s"),
        ("usher/restart-policy", "Never"),
        ("usher/essential", "web"),
        ("usher/grace-period", "6s"),
        ("usher/grace-policy", "Reserve"),
        ("usher/sidecar-stop-order", "Parallel"),
        ("usher/sidecar-exit-code", "Signal"),
        ("usher/defer-exit-code", "Propagate"),
        ("usher/termination-window", "0"),
        ("usher/grace-extension", r#"{"probe": true}"#),
        ("usher/oom-score", "Off"),
        ("usher/cgroup-sizing", "Off"),
    ]);
    let expected = Settings {
        start_mode: StartMode::Hold,
        startup_timeout: Duration::from_secs(90),
        restart_policy: RestartPolicy::Never,
        essential: ["web".to_owned()].into(),
        grace_period: Some(Duration::from_secs(6)),
        usual_grace_period: Duration::from_secs(30),
        grace_policy: GracePolicy::Reserve,
        sidecar_stop_order: SidecarStopOrder::Parallel,
        sidecar_exit_code: SidecarExitCode::Signal,
        defer_exit_code: DeferExitCode::Propagate,
        termination_window: Duration::ZERO,
        grace_extension: Some(GraceExtension::Probe {
            max: Duration::from_secs(100),
        }),
        oom_score: OomScore::Off,
        cgroup_sizing: CgroupSizing::Off,
    };
    assert_eq!(*read.settings(), expected);
}

#[test]
fn a_word_that_a_setting_does_not_have_is_refused_with_those_it_has() {
    let refused = [
        ("usher/start-mode", "Slow", "Auto, Block, Hold"),
        ("usher/start-mode", "auto", "Auto, Block, Hold"),
        ("usher/start-mode", " Auto", "Auto, Block, Hold"),
        ("usher/restart-policy", "", "Always, OnFailure, Never"),
        (
            "usher/grace-policy",
            "Fair",
            "Shared, Reserve, Overrun, SkipHooks, Strict",
        ),
        ("usher/sidecar-stop-order", "Forward", "Reverse, Parallel"),
        ("usher/sidecar-exit-code", "0", "Mask, Signal, Propagate"),
        ("usher/defer-exit-code", "Signal", "Mask, Propagate"),
        ("usher/oom-score", "On", "Match, Off"),
        ("usher/cgroup-sizing", "true", "Effective, Phase, Off"),
    ];
    for (key, value, allowed) in refused {
        assert_eq!(
            refusal(&[(key, value)]),
            format!("{key}: \"{value}\" is not one of {allowed}")
        );
    }
}

#[test]
fn a_duration_that_is_none_or_negative_is_refused() {
    for key in [
        "usher/startup-timeout",
        "usher/grace-period",
        "usher/termination-window",
    ] {
        assert!(refusal(&[(key, "5")]).contains("\"5\" is not a duration; expected one such as"));
        assert!(refusal(&[(key, "-1s")]).contains("\"-1s\" is negative; expected"));
    }
}

#[test]
fn reserve_needs_a_grace_period_of_six_seconds() {
    let reserve = ("usher/grace-policy", "Reserve");
    assert_eq!(
        refusal(&[("usher/grace-period", "5999ms"), reserve]),
        "usher/grace-period: \"5999ms\" is too short for usher/grace-policy Reserve; expected 6s or more"
    );
    plan(&[("usher/grace-period", "6s"), reserve]);
    plan(&[reserve]);
    plan(&[("usher/grace-period", "1s")]);
}

#[test]
fn a_grace_extension_depends_on_the_probe_or_on_intervals() {
    let extension = |json| {
        plan(&[("usher/grace-extension", json)])
            .settings()
            .grace_extension
    };
    assert_eq!(
        extension(r#"{"probe": true, "maxSeconds": 7}"#),
        Some(GraceExtension::Probe {
            max: Duration::from_secs(7)
        })
    );
    assert_eq!(
        extension(r#"{"intervalSeconds": 5, "count": 3}"#),
        Some(GraceExtension::Interval {
            interval: Duration::from_secs(5),
            count: 3,
            max: Duration::from_secs(100)
        })
    );
}

#[test]
fn any_other_grace_extension_is_refused() {
    let refused = [
        "",
        "true",
        "{}",
        "[true]",
        r#"{"probe": false}"#,
        r#"{"probe": "true"}"#,
        r#"{"probe": true, "count": 1}"#,
        r#"{"probe": false, "intervalSeconds": 1, "count": 1}"#,
        r#"{"intervalSeconds": 1}"#,
        r#"{"count": 1}"#,
        r#"{"maxSeconds": 1}"#,
        r#"{"intervalSeconds": 0, "count": 1}"#,
        r#"{"intervalSeconds": 1, "count": 0}"#,
        r#"{"intervalSeconds": 1.5, "count": 1}"#,
        r#"{"intervalSeconds": -1, "count": 1}"#,
        r#"{"probe": true, "maxSeconds": 0}"#,
        r#"{"probe": true, "maxSeconds": 99999999999999999999}"#,
        r#"{"probe": true, "more": 1}"#,
        r#"{"probe": true, "probe": true}"#,
        r#"{"probe": true} {}"#,
    ];
    for json in refused {
        let sentence = refusal(&[("usher/grace-extension", json)]);
        assert!(
            sentence.contains("is not a grace extension"),
            "{json}: {sentence}"
        );
    }
}
