//! What each annotation is for, in words: what the reference pages are made of.
//!
//! Every setting that the parser knows has its words here, or it does not build; and the tests read each
//! default and each example as the shim would.

use std::borrow::Cow;
use std::time::Duration;

use super::key::{ContainerSetting, PodSetting};
use super::settings::Settings;
use super::word::Word;
use super::{
    CgroupSizing, DeferExitCode, GracePolicy, OomScore, RestartPolicy, SidecarExitCode,
    SidecarStopOrder, StartMode,
};

/// What is to be known of one annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key, with `<container>` where a container's name stands.
    pub key: String,
    /// What its value is.
    pub value: Text,
    /// What holds where it is not there.
    pub default: Text,
    /// What it does, in whole sentences.
    pub about: &'static str,
    /// Annotations of a pod, of which the last is this one.
    pub example: &'static [(&'static str, &'static str)],
}

type Text = Cow<'static, str>;

/// All annotations that there are: the pod's, then those of single containers.
pub fn entries() -> impl Iterator<Item = Entry> {
    let of_pod = PodSetting::words().filter_map(PodSetting::from_word);
    let of_pod = of_pod.map(PodSetting::entry);
    let of_containers = ContainerSetting::words().filter_map(ContainerSetting::from_word);
    let of_containers = of_containers.map(ContainerSetting::entry);
    of_pod.chain(of_containers)
}

const NAMES: &str = "container names, with commas or white space between them";
const OPTIONAL_NAMES: &str = "container names, with commas or white space between them; a name that ends in `?` \
    need not be there";
const DURATION: &str = "a duration as Go writes it: `300ms`, `1.5h`, `1m30s`";
const SIDECARS: (&str, &str) = ("usher/sidecars", "proxy");
const NONE: &str = "none";

/// The words of a setting that has only some.
fn one_of<W: Word>() -> Text {
    let words: Vec<String> = W::WORDS.iter().map(|word| format!("`{word}`")).collect();
    match words.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")).into(),
        None => Text::default(),
    }
}

/// As an annotation would say it.
fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if seconds >= 60 && seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

impl PodSetting {
    fn entry(self) -> Entry {
        let usual = Settings::default();
        let (value, default, about, example): (Text, Text, _, &[_]) = match self {
            PodSetting::Init => (
                OPTIONAL_NAMES.into(),
                NONE.into(),
                "Init containers that stand among the pod's ordinary `containers`. They run in this \
                 order, and each has to end with 0 before the next one begins.",
                &[("usher/init", "migrate, warm-up")],
            ),
            PodSetting::NativeInit => (
                NAMES.into(),
                NONE.into(),
                "The pod's own `initContainers`. Kubelet knows their order and runs them one by one; \
                 usher has to know their names, so that they are not taken for apps.",
                &[("usher/native-init", "volume-permissions")],
            ),
            PodSetting::Sidecars => (
                OPTIONAL_NAMES.into(),
                NONE.into(),
                "Helpers of the apps. They are started before the apps and stopped after them, and a \
                 run is complete without them.",
                &[("usher/sidecars", "proxy, logs?")],
            ),
            PodSetting::Apps => (
                NAMES.into(),
                "every container in no list".into(),
                "What the pod is there for. Where it is given, a container in no list is a guest, as \
                 one of `kubectl debug` is: it starts at once and is left alone.",
                &[("usher/apps", "web")],
            ),
            PodSetting::PreExit => (
                OPTIONAL_NAMES.into(),
                NONE.into(),
                "Defer containers: they are created with the others and run when the pod ends, one \
                 after another, before its apps are stopped.",
                &[("usher/pre-exit", "drain")],
            ),
            PodSetting::PostExit => (
                OPTIONAL_NAMES.into(),
                NONE.into(),
                "Defer containers that run when the apps have ended, before the sidecars are stopped.",
                &[("usher/post-exit", "upload-results")],
            ),
            PodSetting::StartupOrder => (
                NAMES.into(),
                "init containers, then all sidecars side by side".into(),
                "All init containers and sidecars in the order of their start, one after another. A \
                 sidecar that stands before an init container is there while that runs.",
                &[
                    SIDECARS,
                    ("usher/init", "migrate"),
                    ("usher/startup-order", "proxy, migrate"),
                ],
            ),
            PodSetting::StartMode => (
                one_of::<StartMode>(),
                format!("`{}`", usual.start_mode).into(),
                "What becomes of a Start whose turn has not come. `Block` answers it when the turn \
                 comes, `Hold` at once, with the program not executed yet; `Auto` blocks for some \
                 seconds where all that is waited for is there and lives, and else holds.",
                &[SIDECARS, ("usher/start-mode", "Block")],
            ),
            PodSetting::StartupTimeout => (
                DURATION.into(),
                format!("`{}`", duration(usual.startup_timeout)).into(),
                "How long a container waits for its turn. Then it is ended with 1, and its log says \
                 what it has waited for.",
                &[SIDECARS, ("usher/startup-timeout", "90s")],
            ),
            PodSetting::RestartPolicy => (
                one_of::<RestartPolicy>(),
                format!("`{}`", usual.restart_policy).into(),
                "The `restartPolicy` of the pod's spec, once more: nothing else tells the shim. Under \
                 `Never` and `OnFailure` the pod is over when its apps are.",
                &[SIDECARS, ("usher/restart-policy", "Never")],
            ),
            PodSetting::Essential => (
                NAMES.into(),
                NONE.into(),
                "Containers whose failure ends the pod. Under `Always` and `OnFailure` kubelet then \
                 starts it from the beginning. No defer containers.",
                &[SIDECARS, ("usher/essential", "proxy")],
            ),
            PodSetting::GracePeriod => (
                DURATION.into(),
                format!("kubelet's, else `{}`", duration(usual.usual_grace_period)).into(),
                "How long the end of the pod may take, from the first stop request on.",
                &[SIDECARS, ("usher/grace-period", "45s")],
            ),
            PodSetting::GracePolicy => (
                one_of::<GracePolicy>(),
                format!("`{}`", usual.grace_policy).into(),
                "How the steps of an end share the grace period.",
                &[SIDECARS, ("usher/grace-policy", "Reserve")],
            ),
            PodSetting::SidecarStopOrder => (
                one_of::<SidecarStopOrder>(),
                format!("`{}`", usual.sidecar_stop_order).into(),
                "`Reverse` stops sidecars one by one, the one that started last first; `Parallel` all \
                 at once.",
                &[SIDECARS, ("usher/sidecar-stop-order", "Parallel")],
            ),
            PodSetting::SidecarExitCode => (
                one_of::<SidecarExitCode>(),
                format!("`{}`", usual.sidecar_exit_code).into(),
                "What is told of a sidecar that usher has told to go: `Mask` tells 0, `Signal` 0 if it \
                 died of a signal, `Propagate` what it has ended with.",
                &[SIDECARS, ("usher/sidecar-exit-code", "Signal")],
            ),
            PodSetting::DeferExitCode => (
                one_of::<DeferExitCode>(),
                format!("`{}`", usual.defer_exit_code).into(),
                "What is told of a defer container: `Mask` tells 0 whatever became of it, `Propagate` \
                 what it has ended with.",
                &[
                    ("usher/pre-exit", "drain"),
                    ("usher/defer-exit-code", "Propagate"),
                ],
            ),
            PodSetting::TerminationWindow => (
                DURATION.into(),
                format!("`{}`", duration(usual.termination_window)).into(),
                "How long a stop request waits for a second one, which makes it the end of the pod, \
                 where it could be about its container alone.",
                &[SIDECARS, ("usher/termination-window", "2s")],
            ),
            PodSetting::GraceExtension => (
                "JSON: `{\"probe\": true}`, or `{\"intervalSeconds\": S, \
                \"count\": N}`; both may have `maxSeconds`"
                    .into(),
                NONE.into(),
                "More time for a defer container that is at work when the grace period is over: as long \
                 as its liveness probe succeeds, or so many times so many seconds. `maxSeconds` is the \
                 most in all, 100 if it does not say.",
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
                format!("`{}`", usual.oom_score).into(),
                "`Match`: no sidecar is killed before an app when memory runs out: its \
                 `oom_score_adj` is no higher than that of any app.",
                &[SIDECARS, ("usher/oom-score", "Off")],
            ),
            PodSetting::CgroupSizing => (
                one_of::<CgroupSizing>(),
                format!("`{}`", usual.cgroup_sizing).into(),
                "The size of the pod's cgroup: `Effective` is what the pod needs at any time of its \
                 life, `Phase` what the phase needs that it is in; `Off` leaves it alone.",
                &[SIDECARS, ("usher/cgroup-sizing", "Phase")],
            ),
        };
        Entry {
            key: self.key(),
            value,
            default,
            about,
            example,
        }
    }
}

impl ContainerSetting {
    fn entry(self) -> Entry {
        let (value, default, about, example): (Text, Text, _, &[_]) = match self {
            ContainerSetting::StartupProbe => (
                "a Kubernetes `Probe` as JSON; `periodMilliseconds` may stand in the place of \
                 `periodSeconds`".into(),
                "none: it is started when its program runs".into(),
                "For a sidecar: it counts as started when this has succeeded, and who waits for it \
                 waits for that.",
                &[
                SIDECARS,
                (
                    "startup-probe.usher/proxy",
                    r#"{"httpGet": {"port": 15021, "path": "/healthz/ready"}, "periodMilliseconds": 200, "failureThreshold": 150}"#,
                ),
            ],
            ),
            ContainerSetting::LivenessProbe => (
                "a Kubernetes `Probe` as JSON; `periodMilliseconds` may stand in the place of \
                 `periodSeconds`".into(),
                NONE.into(),
                "For a sidecar: one that fails it is stopped and restarted in place, whatever the \
                 pod's policy is. For a defer container: what `usher/grace-extension` asks.",
                &[
                SIDECARS,
                (
                    "liveness-probe.usher/proxy",
                    r#"{"tcpSocket": {"port": 15001}, "periodSeconds": 10}"#,
                ),
            ],
            ),
            ContainerSetting::TerminationHook => (
                "a Kubernetes `LifecycleHandler` as JSON: `exec`, `httpGet`, `tcpSocket` or `sleep`".into(),
                NONE.into(),
                "For an app or a sidecar: what is run first of all when the pod ends.",
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
                "`Always` for a sidecar, by kubelet where the pod's policy is that; `Never` for a \
                 defer container".into(),
                "For a sidecar: whether usher restarts it in place when it ends. For a defer container: \
                 one with `Always` or `OnFailure` is run again until it has ended with 0.",
                &[SIDECARS, ("restart.usher/proxy", "OnFailure")],
            ),
            ContainerSetting::GracePeriod => (
                DURATION.into(),
                NONE.into(),
                "The most that its own stop may take, from its signal to SIGKILL; for a defer \
                 container, all of its run.",
                &[SIDECARS, ("grace-period.usher/proxy", "5s")],
            ),
            ContainerSetting::StopSignal => (
                "a signal by name or number".into(),
                "`TERM`".into(),
                "What it is stopped with where nobody asks for another signal.",
                &[SIDECARS, ("stop-signal.usher/proxy", "INT")],
            ),
            ContainerSetting::Resources => (
                "Kubernetes `ResourceRequirements` as JSON".into(),
                "CPU requests from the container's shares".into(),
                "Requests, which no container is told of, and sizes of containers that are still to \
                 come: what the size of the pod's cgroup is reckoned from.",
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
            key: self.key("<container>"),
            value,
            default,
            about,
            example,
        }
    }
}
