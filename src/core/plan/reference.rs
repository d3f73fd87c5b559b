//! Texts about each annotation, from which the reference pages are made.
//!
//! The compiler demands a text for every setting of the parser, and tests read each default and
//! each example as the shim does.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use super::container::roles_with_use_for;
use super::key::{ContainerSetting, PodSetting};
use super::settings::Settings;
use super::word::Word;
use super::{
    CgroupSizing, DeferExitCode, GracePolicy, OomScore, RestartPolicy, SidecarExitCode,
    SidecarStopOrder, StartMode,
};

/// The description of one annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// The annotation's key, with `<container>` in place of a container's name.
    pub key: String,
    /// The roles of the containers that it is for; empty for a setting of the pod.
    pub roles: Vec<&'static str>,
    /// The form of its value.
    pub value: Text,
    /// The value that applies if the annotation is missing.
    pub default: Text,
    /// The effect, in whole sentences.
    pub about: &'static str,
    /// The Kubernetes proposal that it is from, as the pages name it.
    pub source: &'static str,
    /// Annotations of a pod, of which the last is this one.
    pub example: &'static [(&'static str, &'static str)],
}

type Text = Cow<'static, str>;

/// All annotations: the pod's, then those of single containers.
pub fn entries() -> impl Iterator<Item = Entry> {
    let of_pod = PodSetting::words().filter_map(PodSetting::from_word);
    let of_pod = of_pod.map(PodSetting::entry);
    let of_containers = ContainerSetting::words().filter_map(ContainerSetting::from_word);
    let of_containers = of_containers.map(ContainerSetting::entry);
    of_pod.chain(of_containers)
}

const TIME: &str = "time";
const SIDECARS: (&str, &str) = ("usher/sidecars", "proxy");

/// The words of a setting with a fixed set of them.
fn one_of<W: Word>() -> Text {
    let words: Vec<String> = W::WORDS.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ").into()
}

fn word(default: impl Display) -> Text {
    format!("`{default}`").into()
}

/// A duration as in an annotation.
fn time(default: Duration) -> Text {
    match default.as_secs() {
        seconds if seconds >= 60 && seconds % 60 == 0 => format!("`{}m`", seconds / 60).into(),
        seconds => format!("`{seconds}s`").into(),
    }
}

impl PodSetting {
    fn entry(self) -> Entry {
        let usual = Settings::default();
        let (value, default, about, source, example): (Text, Text, _, _, &[_]) = match self {
            PodSetting::Init => (
                "names in order; `NAME?` is optional".into(),
                "none".into(),
                "Each must exit with 0 before the next comes. To kubelet they are ordinary \
                 containers.",
                "Init, 2016",
                &[("usher/init", "migrate, warm-up")],
            ),
            PodSetting::NativeInit => (
                "names".into(),
                "none".into(),
                "The pod's own `initContainers`. kubelet knows their order, so usher runs each at \
                 once and leaves it alone.",
                "usher",
                &[("usher/native-init", "volume-permissions")],
            ),
            PodSetting::Sidecars => (
                "names; `NAME?` is optional".into(),
                "none".into(),
                "These are started before the apps, and stopped after them.",
                "KEP-753, draft",
                &[("usher/sidecars", "proxy, logs?")],
            ),
            PodSetting::Apps => (
                "names".into(),
                "every container in no list".into(),
                "What the pod is there for. When the list is given, a container in no list is a \
                 guest: it starts at once and is left alone (`kubectl debug`).",
                "usher",
                &[("usher/apps", "web")],
            ),
            PodSetting::PreExit => (
                "names in order; `NAME?` is optional".into(),
                "none".into(),
                "Defer containers: they are held, and run one after another when the pod terminates, \
                 before its apps are stopped.",
                "Defer, 2017",
                &[("usher/pre-exit", "drain")],
            ),
            PodSetting::PostExit => (
                "names in order; `NAME?` is optional".into(),
                "none".into(),
                "Defer containers as those of `pre-exit`, which run after the apps have stopped.",
                "Defer, 2017",
                &[("usher/post-exit", "upload-results")],
            ),
            PodSetting::StartupOrder => (
                "names: all of `init` and `sidecars`, and no other".into(),
                "the init containers one by one, then all sidecars side by side".into(),
                "These start one after another in this order.",
                "KEP-753",
                &[
                    SIDECARS,
                    ("usher/init", "migrate"),
                    ("usher/startup-order", "proxy, migrate"),
                ],
            ),
            PodSetting::StartMode => (
                one_of::<StartMode>(),
                word(usual.start_mode),
                "What becomes of a Start whose turn has not come: `Block` answers it when the turn \
                 comes, `Hold` at once, with the program not executed yet; `Auto` blocks for some \
                 seconds where all that is waited for is there and lives, and else holds.",
                "usher",
                &[SIDECARS, ("usher/start-mode", "Block")],
            ),
            PodSetting::StartupTimeout => (
                TIME.into(),
                time(usual.startup_timeout),
                "How long a container waits for its turn.",
                "usher",
                &[SIDECARS, ("usher/startup-timeout", "90s")],
            ),
            PodSetting::RestartPolicy => (
                one_of::<RestartPolicy>(),
                word(usual.restart_policy),
                "Repeat `spec.restartPolicy` here: the shim cannot see it.",
                "usher",
                &[SIDECARS, ("usher/restart-policy", "Never")],
            ),
            PodSetting::Essential => (
                "names of init containers, sidecars and apps".into(),
                "none".into(),
                "Their failure ends the pod. Under `Always` and `OnFailure` its caller then starts it \
                 from the beginning.",
                "KEP-753, draft",
                &[SIDECARS, ("usher/essential", "proxy")],
            ),
            PodSetting::GracePeriod => (
                TIME.into(),
                format!("kubelet's, else {}", time(usual.usual_grace_period)).into(),
                "From the first stop request to the end.",
                "Kubernetes",
                &[SIDECARS, ("usher/grace-period", "45s")],
            ),
            PodSetting::GracePolicy => (
                one_of::<GracePolicy>(),
                word(usual.grace_policy),
                "How the steps of a termination share the grace period.",
                "KEP-753, draft",
                &[SIDECARS, ("usher/grace-policy", "Reserve")],
            ),
            PodSetting::SidecarStopOrder => (
                one_of::<SidecarStopOrder>(),
                word(usual.sidecar_stop_order),
                "Sidecars are stopped one by one, the last started first; or all at once.",
                "KEP-753",
                &[SIDECARS, ("usher/sidecar-stop-order", "Parallel")],
            ),
            PodSetting::SidecarExitCode => (
                one_of::<SidecarExitCode>(),
                word(usual.sidecar_exit_code),
                "What a sidecar reports that was told to go: 0; 0 if it died of a signal; its own \
                 code.",
                "usher",
                &[SIDECARS, ("usher/sidecar-exit-code", "Signal")],
            ),
            PodSetting::DeferExitCode => (
                one_of::<DeferExitCode>(),
                word(usual.defer_exit_code),
                "What a defer container reports: 0 whatever became of it; its own code.",
                "Defer, 2017",
                &[
                    ("usher/pre-exit", "drain"),
                    ("usher/defer-exit-code", "Propagate"),
                ],
            ),
            PodSetting::TerminationWindow => (
                TIME.into(),
                time(usual.termination_window),
                "How long a stop request waits for a second one, which makes it the end of the pod: \
                 that of a sidecar or a defer container, and any in a pod with defer containers or \
                 hooks.",
                "usher",
                &[SIDECARS, ("usher/termination-window", "2s")],
            ),
            PodSetting::GraceExtension => (
                "JSON: `{\"probe\": true}` or `{\"intervalSeconds\": S, \"count\": N}`, each with \
                 `maxSeconds` or without"
                    .into(),
                "none; `maxSeconds` 100".into(),
                "More time for a defer container that is at work at the end of the grace period: as \
                 long as its liveness probe succeeds, or N times S seconds.",
                "Defer, 2017",
                &[
                    ("usher/pre-exit", "drain"),
                    (
                        "usher/grace-extension",
                        r#"{"intervalSeconds": 10, "count": 3}"#,
                    ),
                ],
            ),
            PodSetting::OomScore => (
                one_of::<OomScore>(),
                word(usual.oom_score),
                "A sidecar's `oom_score_adj` is no higher than that of any of its apps (OOM scores).",
                "KEP-753",
                &[SIDECARS, ("usher/oom-score", "Off")],
            ),
            PodSetting::CgroupSizing => (
                one_of::<CgroupSizing>(),
                word(usual.cgroup_sizing),
                "The size of the pod's cgroup: what the pod needs at any time, from its first \
                 container to its last; what the phase needs that it is in; what kubelet gave \
                 (sizes).",
                "KEP-753; Init, 2016",
                &[SIDECARS, ("usher/cgroup-sizing", "Phase")],
            ),
        };
        Entry {
            name: self.to_string(),
            key: self.key(),
            roles: Vec::new(),
            value,
            default,
            about,
            source,
            example,
        }
    }
}

impl ContainerSetting {
    fn entry(self) -> Entry {
        let (value, default, about, source, example): (Text, Text, _, _, &[_]) = match self {
            ContainerSetting::StartupProbe => (
                "JSON: a Kubernetes `Probe`, in which `periodMilliseconds` may stand for the period".into(),
                "none".into(),
                "The sidecar is started when it has succeeded; without one, when its program runs.",
                "KEP-753",
                &[
                SIDECARS,
                (
                    "startup-probe.usher/proxy",
                    r#"{"httpGet": {"port": 15021, "path": "/healthz/ready"}, "periodMilliseconds": 200, "failureThreshold": 150}"#,
                ),
            ],
            ),
            ContainerSetting::RestartPolicy => (
                one_of::<RestartPolicy>(),
                "the pod's".into(),
                "The container's own `restartPolicy`, if it differs from the pod's.",
                "Kubernetes",
                &[
                    ("usher/restart-policy", "Never"),
                    ("restart-policy.usher/web", "OnFailure"),
                ],
            ),
            ContainerSetting::CallerRestarts => (
                "exit codes; or `!` and exit codes: all but these".into(),
                "none".into(),
                "The exit codes of its `restartPolicyRules`: with these kubelet starts the container \
                 again although its restart policy would not. Such an exit does not complete the run.",
                "Kubernetes",
                &[
                    ("usher/restart-policy", "Never"),
                    ("caller-restarts.usher/web", "42, 43"),
                ],
            ),
            ContainerSetting::LivenessProbe => (
                "JSON: a Kubernetes `Probe`, in which `periodMilliseconds` may stand for the period".into(),
                "none".into(),
                "A sidecar that fails it is stopped and restarted in place, whatever the pod's \
                 policy. One that has been asked to stop is left to that. Of a defer container: \
                 what `grace-extension` asks.",
                "Kubernetes; Defer, 2017",
                &[
                SIDECARS,
                (
                    "liveness-probe.usher/proxy",
                    r#"{"tcpSocket": {"port": 15001}, "periodSeconds": 10}"#,
                ),
            ],
            ),
            ContainerSetting::TerminationHook => (
                "JSON: a Kubernetes `LifecycleHandler`, so `exec`, `httpGet`, `tcpSocket` or `sleep`".into(),
                "none".into(),
                "It is run first of all when the pod terminates.",
                "KEP-753, draft",
                &[
                SIDECARS,
                (
                    "termination-hook.usher/proxy",
                    r#"{"exec": {"command": ["/bin/deregister"]}}"#,
                ),
            ],
            ),
            ContainerSetting::Restart => (
                one_of::<RestartPolicy>(),
                "sidecars: `Always`, but under the restart policy `Always` kubelet does it, until the \
                 pod terminates. Defer containers: `Never`".into(),
                "When usher restarts a sidecar in place. A defer container with one of the first two \
                 is run again until it succeeds.",
                "KEP-753; Defer, 2017",
                &[SIDECARS, ("restart.usher/proxy", "OnFailure")],
            ),
            ContainerSetting::GracePeriod => (
                TIME.into(),
                "none".into(),
                "A cap for its own stop, from its signal to SIGKILL; of a defer container from its \
                 release to its signal, with SIGKILL two seconds later. It only shortens.",
                "usher",
                &[SIDECARS, ("grace-period.usher/proxy", "5s")],
            ),
            ContainerSetting::StopSignal => (
                "a signal: `QUIT`, `SIGUSR1`, `15`, `SIGRTMIN+3`; not SIGKILL".into(),
                "the caller's signal, else `TERM`".into(),
                "The signal that stops it: it replaces that of kubelet's stop, and SIGTERM by hand. \
                 Any other signal is delivered as it is.",
                "Kubernetes",
                &[SIDECARS, ("stop-signal.usher/proxy", "INT")],
            ),
            ContainerSetting::Resources => (
                "JSON: Kubernetes `ResourceRequirements`".into(),
                "CPU requests from the container's shares".into(),
                "Requests, which no container is told of, and sizes of containers that are still to \
                 come.",
                "Kubernetes",
                &[
                SIDECARS,
                (
                    "resources.usher/proxy",
                    r#"{"requests": {"cpu": "100m", "memory": "64Mi"}}"#,
                ),
            ],
            ),
        };
        Entry {
            name: self.to_string(),
            key: self.key("<container>"),
            roles: roles_with_use_for(self),
            value,
            default,
            about,
            source,
            example,
        }
    }
}
