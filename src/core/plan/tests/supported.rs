use super::annotations;
use crate::plan::Plan;

const SIDECARS: (&str, &str) = ("usher/sidecars", "p");

#[test]
fn supported_settings_are_accepted() {
    let supported = [
        ("usher/apps", "web"),
        ("usher/startup-order", "p"),
        ("usher/start-mode", "Auto"),
        ("usher/start-mode", "Block"),
        ("usher/start-mode", "Hold"),
        ("usher/startup-timeout", "1m"),
        ("usher/restart-policy", "Always"),
        ("usher/restart-policy", "OnFailure"),
        ("usher/restart-policy", "Never"),
        ("usher/init", "a b"),
        ("usher/native-init", "a"),
        ("usher/essential", "p"),
        ("restart.usher/p", "Always"),
        ("usher/grace-period", "10s"),
        ("usher/pre-exit", "a"),
        ("usher/post-exit", "a"),
        ("usher/grace-extension", r#"{"probe":true}"#),
        ("usher/defer-exit-code", "Mask"),
        ("usher/defer-exit-code", "Propagate"),
        ("usher/grace-policy", "Shared"),
        ("usher/grace-policy", "Reserve"),
        ("usher/grace-policy", "Overrun"),
        ("usher/grace-policy", "SkipHooks"),
        ("usher/grace-policy", "Strict"),
        ("termination-hook.usher/p", r#"{"sleep": {"seconds": 1}}"#),
        ("grace-period.usher/p", "1s"),
        ("usher/sidecar-stop-order", "Reverse"),
        ("usher/sidecar-stop-order", "Parallel"),
        ("usher/sidecar-exit-code", "Mask"),
        ("usher/sidecar-exit-code", "Signal"),
        ("usher/sidecar-exit-code", "Propagate"),
        ("usher/termination-window", "0"),
        ("usher/oom-score", "Match"),
        ("usher/oom-score", "Off"),
        ("usher/cgroup-sizing", "Effective"),
        ("usher/cgroup-sizing", "Phase"),
        ("usher/cgroup-sizing", "Off"),
        ("resources.usher/p", "{}"),
        (
            "startup-probe.usher/p",
            r#"{"exec": {"command": ["true"]}}"#,
        ),
        ("startup-probe.usher/p", r#"{"tcpSocket": {"port": "web"}}"#),
        ("startup-probe.usher/p", r#"{"httpGet": {"port": 1}}"#),
        ("startup-probe.usher/p", r#"{"grpc": {"port": 1}}"#),
        ("liveness-probe.usher/p", r#"{"grpc": {"port": 1}}"#),
        ("stop-signal.usher/p", "INT"),
        ("stop-signal.usher/web", "INT"),
        ("restart-policy.usher/web", "Always"),
        ("restart-policy.usher/web", "OnFailure"),
        ("restart-policy.usher/web", "Never"),
        ("caller-restarts.usher/web", "42, 43"),
        ("caller-restarts.usher/web", "!0"),
    ];
    for pair in supported {
        let parsed = Plan::parse(&annotations(&[SIDECARS, pair]));
        assert!(parsed.is_ok(), "{pair:?}: {parsed:?}");
    }
}
