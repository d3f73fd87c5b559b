//! The keys of usher's annotations.

use super::error::{Entry, PlanError, Problem, quote};
use super::list::{CONTAINER_NAME, is_container_name, is_near};
use super::word::{Word, words};
use serde::{Deserialize, Serialize};

words! {
    /// A setting of the whole pod: the key is `usher/<setting>`.
    pub enum PodSetting {
        Init = "init",
        NativeInit = "native-init",
        Sidecars = "sidecars",
        Apps = "apps",
        PreExit = "pre-exit",
        PostExit = "post-exit",
        StartupOrder = "startup-order",
        StartMode = "start-mode",
        StartupTimeout = "startup-timeout",
        RestartPolicy = "restart-policy",
        Essential = "essential",
        GracePeriod = "grace-period",
        GracePolicy = "grace-policy",
        SidecarStopOrder = "sidecar-stop-order",
        SidecarExitCode = "sidecar-exit-code",
        DeferExitCode = "defer-exit-code",
        TerminationWindow = "termination-window",
        GraceExtension = "grace-extension",
        OomScore = "oom-score",
        CgroupSizing = "cgroup-sizing",
    }
}

words! {
    /// A setting of one container: the key is `<setting>.usher/<container>`.
    pub enum ContainerSetting {
        StartupProbe = "startup-probe",
        RestartPolicy = "restart-policy",
        CallerRestarts = "caller-restarts",
        LivenessProbe = "liveness-probe",
        TerminationHook = "termination-hook",
        Restart = "restart",
        GracePeriod = "grace-period",
        StopSignal = "stop-signal",
        Resources = "resources",
    }
}

/// The setting named by an annotation's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Key<'a> {
    Pod(PodSetting),
    Container(ContainerSetting, &'a str),
}

/// True if an annotation's key is in usher's name space, known or not.
pub fn is_usher_key(key: &str) -> bool {
    let prefix = key.split_once('/').map(|(prefix, _)| prefix);
    prefix.is_some_and(|prefix| prefix == "usher" || prefix.ends_with(".usher"))
}

impl<'a> Key<'a> {
    /// Reads the key of `entry`. Returns `None` if the key is not usher's.
    ///
    /// A key has one slash. The part before the slash tells whether the key is usher's, as in the
    /// patterns `usher/*` and `*.usher/*` by which containerd passes annotations on (a `*` there
    /// matches no slash).
    pub(super) fn read(entry: Entry<'a>) -> Result<Option<Key<'a>>, PlanError> {
        let Some((prefix, name)) = entry.key.split_once('/') else {
            return Ok(None);
        };
        if prefix == "usher" {
            let unknown = || {
                let expected = format!("usher/ and one of {}", PodSetting::list());
                entry.unknown(expected, PodSetting::meant_by(name))
            };
            return PodSetting::from_word(name)
                .map(Key::Pod)
                .map(Some)
                .ok_or_else(unknown);
        }
        let Some(setting) = prefix.strip_suffix(".usher") else {
            return Ok(None);
        };
        let setting = ContainerSetting::from_word(setting).ok_or_else(|| {
            let expected = format!("one of {} before .usher/", ContainerSetting::list());
            entry.unknown(expected, ContainerSetting::meant_by(setting, name))
        })?;
        if !is_container_name(name) {
            let name = quote(name);
            let problem = format!("is for a container named {name}; expected {CONTAINER_NAME}");
            return Err(entry.invalid(Problem::new(problem)));
        }
        Ok(Some(Key::Container(setting, name)))
    }
}

/// The first of `words` that `written` may be a misspelling of.
fn near_word(words: &[&'static str], written: &str) -> Option<&'static str> {
    let mut words = words.iter();
    words.find(|word| is_near(written, word)).copied()
}

impl PodSetting {
    /// The key that was probably meant by the unknown key `usher/<name>`.
    fn meant_by(name: &str) -> Option<String> {
        let of_container = || Some(ContainerSetting::from_word(name)?.key("CONTAINER"));
        let near = near_word(Self::WORDS, name).map(|word| format!("usher/{word}"));
        near.or_else(of_container)
    }

    pub fn key(self) -> String {
        format!("usher/{self}")
    }

    pub fn words() -> impl Iterator<Item = &'static str> {
        Self::WORDS.iter().copied()
    }

    fn list() -> String {
        Self::WORDS.join(", ")
    }
}

impl ContainerSetting {
    /// The key that was probably meant by the unknown key `<setting>.usher/<name>`.
    fn meant_by(setting: &str, name: &str) -> Option<String> {
        let of_pod = || Some(PodSetting::from_word(setting)?.key());
        let near = near_word(Self::WORDS, setting).filter(|_| is_container_name(name));
        near.map(|word| format!("{word}.usher/{name}"))
            .or_else(of_pod)
    }

    /// The annotation key of this setting for the container of this name.
    pub fn key(self, container: &str) -> String {
        format!("{self}.usher/{container}")
    }

    pub fn words() -> impl Iterator<Item = &'static str> {
        Self::WORDS.iter().copied()
    }

    fn list() -> String {
        Self::WORDS.join(", ")
    }
}
