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
    pub default: Text,
    /// The effect of the annotation, in whole sentences.
    pub about: &'static str,
    /// The Kubernetes proposal that the setting is from, as the reference pages name the proposal.
    pub source: &'static str,
    /// Annotations of an example pod; the last one is the annotation described here.
    pub example: &'static [(&'static str, &'static str)],
}

type Text = Cow<'static, str>;

/// Descriptions of all annotations: first those of the whole pod, then those of single containers.
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
                "names in order; `NAME?` marks an optional name".into(),
                "none".into(),
                "Init containers run one after another. Each init container must exit with 0 \
                 before the next container starts. List ordinary containers here, not the pod's \
                 `initContainers`.",
                "Init, 2016",
                &[("usher/init", "migrate, warm-up")],
            ),
            PodSetting::NativeInit => (
                "names".into(),
                "none".into(),
                "List the pod's own `initContainers` here. kubelet already runs these containers \
                 in order, so usher starts them immediately.",
                "usher",
                &[("usher/native-init", "volume-permissions")],
            ),
            PodSetting::Sidecars => (
                "names; `NAME?` marks an optional name".into(),
                "none".into(),
                "Sidecars start before the apps, and stop after the apps.",
                "KEP-753, draft",
                &[("usher/sidecars", "proxy, logs?")],
            ),
            PodSetting::Apps => (
                "names".into(),
                "all containers that are in no other list".into(),
                "Apps do the pod's work. If you set this list, every container in no list is a \
                 guest, for example a container that `kubectl debug` adds. usher starts a guest \
                 immediately, and does not stop the guest when the pod terminates.",
                "usher",
                &[("usher/apps", "web")],
            ),
            PodSetting::PreExit => (
                "names in order; `NAME?` marks an optional name".into(),
                "none".into(),
                "When the pod terminates, these defer containers run one after another, before \
                 usher stops the apps.",
                "Defer, 2017",
                &[("usher/pre-exit", "drain")],
            ),
            PodSetting::PostExit => (
                "names in order; `NAME?` marks an optional name".into(),
                "none".into(),
                "When the pod terminates, these defer containers run one after another, after the \
                 apps have exited.",
                "Defer, 2017",
                &[("usher/post-exit", "upload-results")],
            ),
            PodSetting::StartupOrder => (
                "exactly the names in `init` and `sidecars`, each once".into(),
                "the init containers one by one, then all sidecars in parallel".into(),
                "The init containers and sidecars start one after another, in this order.",
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
                "Decides when usher answers containerd's call `Start` for a container whose turn \
                 has not come. Under `Block`, usher answers when the turn comes. Under `Hold`, \
                 usher answers immediately, before the container's program runs. If all containers \
                 that this container waits for exist and have not exited, `Auto` acts like `Block` \
                 for at most ten seconds. Otherwise `Auto` acts like `Hold`.",
                "usher",
                &[SIDECARS, ("usher/start-mode", "Block")],
            ),
            PodSetting::StartupTimeout => (
                TIME.into(),
                time(usual.startup_timeout),
                "A held init container, sidecar or app that has waited this long for its turn \
                 exits with code 1. Under `Block`, its `Start` fails instead.",
                "usher",
                &[SIDECARS, ("usher/startup-timeout", "90s")],
            ),
            PodSetting::RestartPolicy => (
                one_of::<RestartPolicy>(),
                word(usual.restart_policy),
                "Repeat the pod's `spec.restartPolicy` here, because the shim cannot see it.",
                "usher",
                &[SIDECARS, ("usher/restart-policy", "Never")],
            ),
            PodSetting::Essential => (
                "names of init containers, native-init containers, sidecars and apps".into(),
                "none".into(),
                "If one of these containers fails, usher ends the pod. kubelet then starts the \
                 whole pod again, except under the restart policy `Never`.",
                "KEP-753, draft",
                &[SIDECARS, ("usher/essential", "proxy")],
            ),
            PodSetting::GracePeriod => (
                TIME.into(),
                format!(
                    "the pod's `terminationGracePeriodSeconds`, else {}",
                    time(usual.usual_grace_period)
                )
                .into(),
                "Limits the time from the first stop request to the end of the termination. Some \
                 grace policies allow a few seconds more. If kubelet stops the pod, the setting \
                 can only shorten kubelet's own grace period.",
                "Kubernetes",
                &[SIDECARS, ("usher/grace-period", "45s")],
            ),
            PodSetting::GracePolicy => (
                one_of::<GracePolicy>(),
                word(usual.grace_policy),
                "Decides how the termination steps share the grace period.",
                "KEP-753, draft",
                &[SIDECARS, ("usher/grace-policy", "Reserve")],
            ),
            PodSetting::SidecarStopOrder => (
                one_of::<SidecarStopOrder>(),
                word(usual.sidecar_stop_order),
                "`Reverse` stops the sidecars one by one, in reverse order of their start. \
                 `Parallel` stops all sidecars at the same time.",
                "KEP-753",
                &[SIDECARS, ("usher/sidecar-stop-order", "Parallel")],
            ),
            PodSetting::SidecarExitCode => (
                one_of::<SidecarExitCode>(),
                word(usual.sidecar_exit_code),
                "Decides which exit code usher reports for a sidecar that usher has stopped. \
                 `Mask` reports 0. `Signal` reports 0 if a signal killed the sidecar, and the \
                 sidecar's own code if no signal killed it. `Propagate` always reports the \
                 sidecar's own code.",
                "usher",
                &[SIDECARS, ("usher/sidecar-exit-code", "Signal")],
            ),
            PodSetting::DeferExitCode => (
                one_of::<DeferExitCode>(),
                word(usual.defer_exit_code),
                "Decides which exit code usher reports for a defer container. `Mask` reports 0. \
                 `Propagate` reports the container's own code.",
                "Defer, 2017",
                &[
                    ("usher/pre-exit", "drain"),
                    ("usher/defer-exit-code", "Propagate"),
                ],
            ),
            PodSetting::TerminationWindow => (
                TIME.into(),
                time(usual.termination_window),
                "After a stop request for a sidecar or defer container, usher waits this long for \
                 a second stop request. A second stop request would show that the whole pod \
                 terminates. In a pod with defer containers or termination hooks, usher also waits \
                 after a stop request for an app.",
                "usher",
                &[SIDECARS, ("usher/termination-window", "2s")],
            ),
            PodSetting::GraceExtension => (
                "JSON: `{\"probe\": true}` or `{\"intervalSeconds\": S, \"count\": N}`, each \
                 optionally with `maxSeconds`"
                    .into(),
                "none; the default of `maxSeconds` is 100".into(),
                "A defer container that still runs at the end of the grace period gets up to \
                 `maxSeconds` more seconds. With `probe`, the container goes on running as long as \
                 its liveness probe succeeds. With `count`, the defer containers together \
                 get at most N extensions of S seconds.",
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
                "`Match` lowers a sidecar's `oom_score_adj` to the lowest value among the pod's \
                 apps. `Off` does not change `oom_score_adj`.",
                "KEP-753",
                &[SIDECARS, ("usher/oom-score", "Off")],
            ),
            PodSetting::CgroupSizing => (
                one_of::<CgroupSizing>(),
                word(usual.cgroup_sizing),
                "Decides how much CPU and memory the pod's cgroup gets. `Effective` gives the most \
                 that the pod needs at any time. `Phase` gives what the current phase of the pod \
                 needs. `Off` keeps what kubelet has set.",
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
                "A sidecar with a startup probe counts as started only after the probe has \
                 succeeded. A sidecar without a startup probe counts as started when its program \
                 runs and its postStart handler, if any, has succeeded.",
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
                "Repeat the container's own `restartPolicy` here, if it differs from the pod's.",
                "Kubernetes",
                &[
                    ("usher/restart-policy", "Never"),
                    ("restart-policy.usher/web", "OnFailure"),
                ],
            ),
            ContainerSetting::CallerRestarts => (
                "exit codes; `!` before the first code means all exit codes except these".into(),
                "none".into(),
                "Repeat the exit codes from the container's `restartPolicyRules` here. kubelet \
                 restarts the container after an exit with one of these codes, so such an exit \
                 does not complete the pod's run.",
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
                "If a sidecar fails this probe, usher restarts the sidecar in place, under every \
                 restart policy of the pod. For a defer container, the setting `grace-extension` \
                 uses this probe.",
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
                "usher runs this hook in the first step of the pod's termination.",
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
                "none for sidecars, `Never` for defer containers".into(),
                "Decides after which exits usher restarts a sidecar in place. Without this \
                 setting, usher restarts a sidecar after every exit if the pod's restart policy is \
                 `OnFailure` or `Never`. If the pod's restart policy is `Always`, kubelet restarts \
                 the sidecar. A defer container with `Always` or `OnFailure` runs again until it \
                 succeeds.",
                "KEP-753; Defer, 2017",
                &[SIDECARS, ("restart.usher/proxy", "OnFailure")],
            ),
            ContainerSetting::GracePeriod => (
                TIME.into(),
                "none".into(),
                "Limits the time from the container's stop signal to SIGKILL. For a defer \
                 container, the setting limits the time from the container's start to its stop \
                 signal, and SIGKILL follows at most two seconds later. The setting can only shorten \
                 the time that the pod's grace period allows.",
                "usher",
                &[SIDECARS, ("grace-period.usher/proxy", "5s")],
            ),
            ContainerSetting::StopSignal => (
                "a signal except SIGKILL, for example `QUIT`, `SIGUSR1`, `15` or `SIGRTMIN+3`"
                    .into(),
                "the caller's signal; `TERM` if usher stops the container".into(),
                "usher sends this signal when kubelet stops the container, and when another \
                 caller, such as `ctr`, sends SIGTERM. usher delivers every other signal of such a \
                 caller unchanged.",
                "Kubernetes",
                &[SIDECARS, ("stop-signal.usher/proxy", "INT")],
            ),
            ContainerSetting::Resources => (
                "JSON: Kubernetes `ResourceRequirements`".into(),
                "the CPU request that follows from the container's CPU shares".into(),
                "Repeat the container's requests and limits here. Without this setting, the shim \
                 does not know the memory request, and learns the limits only when the container \
                 is created.",
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
