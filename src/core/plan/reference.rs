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
    /// The roles of the containers that may have the annotation; empty for a setting of the pod.
    pub roles: Vec<&'static str>,
    /// The form of the annotation's value.
    pub value: Text,
    /// The value that applies if the annotation is missing.
    pub default: Text,
    /// The effect of the annotation, in whole sentences.
    pub about: &'static str,
    /// The Kubernetes proposal that the setting is from, as the reference pages name the proposal.
    pub source: &'static str,
    /// Annotations of an example pod; the last one is the annotation described here.
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

/// The words that a setting allows, for a setting with a fixed set of words.
fn one_of<W: Word>() -> Text {
    let words: Vec<String> = W::WORDS.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ").into()
}

fn word(default: impl Display) -> Text {
    format!("`{default}`").into()
}

/// A duration in the form that annotations use.
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
                "Each must exit with 0 before the next starts. To kubelet they are ordinary \
                 containers.",
                "Init, 2016",
                &[("usher/init", "migrate, warm-up")],
            ),
            PodSetting::NativeInit => (
                "names".into(),
                "none".into(),
                "The pod's own `initContainers`. kubelet knows their order, so usher runs each of \
                 them immediately and leaves it alone.",
                "usher",
                &[("usher/native-init", "volume-permissions")],
            ),
            PodSetting::Sidecars => (
                "names; `NAME?` is optional".into(),
                "none".into(),
                "Sidecars start before the apps, and stop after them.",
                "KEP-753, draft",
                &[("usher/sidecars", "proxy, logs?")],
            ),
            PodSetting::Apps => (
                "names".into(),
                "every container that no other list names".into(),
                "Containers that do the pod's work. If the list is given, a container in no list \
                 is a guest (`kubectl debug`): it starts immediately, and usher leaves it alone.",
                "usher",
                &[("usher/apps", "web")],
            ),
            PodSetting::PreExit => (
                "names in order; `NAME?` is optional".into(),
                "none".into(),
                "Defer containers that are held until the pod terminates, and then run one after \
                 another before its apps are stopped.",
                "Defer, 2017",
                &[("usher/pre-exit", "drain")],
            ),
            PodSetting::PostExit => (
                "names in order; `NAME?` is optional".into(),
                "none".into(),
                "Defer containers like those of `pre-exit`, which run after the apps have exited.",
                "Defer, 2017",
                &[("usher/post-exit", "upload-results")],
            ),
            PodSetting::StartupOrder => (
                "exactly the names in `init` and `sidecars`, each once".into(),
                "the init containers one by one, then all sidecars in parallel".into(),
                "Containers that start one after another in this order.",
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
                "The answer to a Start whose turn has not come. `Block` answers when the turn \
                 comes. `Hold` answers immediately, before the program runs. `Auto` acts as \
                 `Block` for some seconds if every container that the Start waits for exists and \
                 runs; otherwise it acts as `Hold`.",
                "usher",
                &[SIDECARS, ("usher/start-mode", "Block")],
            ),
            PodSetting::StartupTimeout => (
                TIME.into(),
                time(usual.startup_timeout),
                "The longest time that a container waits for its turn.",
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
                "Containers whose failure ends the pod. Under `Always` and `OnFailure` the caller \
                 then starts the pod from the beginning.",
                "KEP-753, draft",
                &[SIDECARS, ("usher/essential", "proxy")],
            ),
            PodSetting::GracePeriod => (
                TIME.into(),
                format!("kubelet's, else {}", time(usual.usual_grace_period)).into(),
                "The time from the first stop request to the end of the termination.",
                "Kubernetes",
                &[SIDECARS, ("usher/grace-period", "45s")],
            ),
            PodSetting::GracePolicy => (
                one_of::<GracePolicy>(),
                word(usual.grace_policy),
                "The rule by which the termination steps share the grace period.",
                "KEP-753, draft",
                &[SIDECARS, ("usher/grace-policy", "Reserve")],
            ),
            PodSetting::SidecarStopOrder => (
                one_of::<SidecarStopOrder>(),
                word(usual.sidecar_stop_order),
                "`Reverse` stops the sidecars one by one, the last started first. `Parallel` stops \
                 all of them at the same time.",
                "KEP-753",
                &[SIDECARS, ("usher/sidecar-stop-order", "Parallel")],
            ),
            PodSetting::SidecarExitCode => (
                one_of::<SidecarExitCode>(),
                word(usual.sidecar_exit_code),
                "The exit code that a stopped sidecar reports. `Mask`: 0. `Signal`: 0 if it died \
                 of a signal, else its own code. `Propagate`: its own code.",
                "usher",
                &[SIDECARS, ("usher/sidecar-exit-code", "Signal")],
            ),
            PodSetting::DeferExitCode => (
                one_of::<DeferExitCode>(),
                word(usual.defer_exit_code),
                "The exit code that a defer container reports. `Mask`: always 0. `Propagate`: its \
                 own code.",
                "Defer, 2017",
                &[
                    ("usher/pre-exit", "drain"),
                    ("usher/defer-exit-code", "Propagate"),
                ],
            ),
            PodSetting::TerminationWindow => (
                TIME.into(),
                time(usual.termination_window),
                "The time that a stop request waits for a second one. If a second one comes, the \
                 pod terminates. Requests for sidecars and defer containers wait; in a pod with \
                 defer containers or hooks, all requests wait.",
                "usher",
                &[SIDECARS, ("usher/termination-window", "2s")],
            ),
            PodSetting::GraceExtension => (
                "JSON: `{\"probe\": true}` or `{\"intervalSeconds\": S, \"count\": N}`, each \
                 optionally with `maxSeconds`"
                    .into(),
                "none; `maxSeconds` 100".into(),
                "More time for a defer container that still runs at the end of the grace period: \
                 as long as its liveness probe succeeds, or N times S seconds.",
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
                "With `Match`, a sidecar's `oom_score_adj` is at most the lowest `oom_score_adj` \
                 of the pod's apps.",
                "KEP-753",
                &[SIDECARS, ("usher/oom-score", "Off")],
            ),
            PodSetting::CgroupSizing => (
                one_of::<CgroupSizing>(),
                word(usual.cgroup_sizing),
                "The size of the pod's cgroup. `Effective`: what the pod needs at any time, from \
                 its first container to its last. `Phase`: what its current phase needs. `Off`: \
                 what kubelet has set.",
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
                "JSON: a Kubernetes `Probe`; `periodMilliseconds` may replace `periodSeconds`"
                    .into(),
                "none".into(),
                "The sidecar is started when this probe has succeeded. Without a probe it is \
                 started when its program runs.",
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
                "exit codes; after a `!`, all except these".into(),
                "none".into(),
                "The exit codes in the container's `restartPolicyRules`. After such an exit \
                 kubelet restarts the container, although its restart policy would not. The exit \
                 does not complete the run.",
                "Kubernetes",
                &[
                    ("usher/restart-policy", "Never"),
                    ("caller-restarts.usher/web", "42, 43"),
                ],
            ),
            ContainerSetting::LivenessProbe => (
                "JSON: a Kubernetes `Probe`; `periodMilliseconds` may replace `periodSeconds`"
                    .into(),
                "none".into(),
                "usher stops a sidecar that fails this probe, and restarts it in place, under every \
                 restart policy. A sidecar for which a stop request has come is not restarted. For \
                 a defer container: the probe that `grace-extension` uses.",
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
                "JSON: a Kubernetes `LifecycleHandler`: `exec`, `httpGet`, `tcpSocket` or `sleep`"
                    .into(),
                "none".into(),
                "The hook runs in the first step of the pod's termination.",
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
                "sidecars: `Always` (in a pod under `Always`, kubelet restarts them until the pod \
                 terminates). Defer containers: `Never`"
                    .into(),
                "When usher restarts a sidecar in place. A defer container with `Always` or \
                 `OnFailure` runs again until it succeeds.",
                "KEP-753; Defer, 2017",
                &[SIDECARS, ("restart.usher/proxy", "OnFailure")],
            ),
            ContainerSetting::GracePeriod => (
                TIME.into(),
                "none".into(),
                "A cap on the time of the container's own stop, from its signal to SIGKILL. For a \
                 defer container: from its release to its signal, with SIGKILL two seconds later. \
                 A cap shortens the time and never lengthens it.",
                "usher",
                &[SIDECARS, ("grace-period.usher/proxy", "5s")],
            ),
            ContainerSetting::StopSignal => (
                "a signal: `QUIT`, `SIGUSR1`, `15`, `SIGRTMIN+3`; not SIGKILL".into(),
                "the caller's signal, else `TERM`".into(),
                "The signal that stops the container. This signal replaces the signal of kubelet's \
                 stop request, and SIGTERM from other callers. usher delivers any other signal as it \
                 is.",
                "Kubernetes",
                &[SIDECARS, ("stop-signal.usher/proxy", "INT")],
            ),
            ContainerSetting::Resources => (
                "JSON: Kubernetes `ResourceRequirements`".into(),
                "CPU requests that follow from the container's CPU shares".into(),
                "Requests, which the shim cannot see otherwise, and sizes of containers that are \
                 not created yet.",
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
