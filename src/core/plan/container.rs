//! The settings of one container.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::duration;
use super::error::{Entry, PlanError, Problem};
use super::exit_codes::{self, ExitCodes};
use super::hook::{self, Hook};
use super::key::{ContainerSetting, PodSetting};
use super::list::is_near;
use super::probe::{self, Probe};
use super::resources::{self, Resources};
use super::role::Role;
use super::role_assignment::{RoleAssignment, lists_of};
use super::rules::Unsaid;
use super::settings::RestartPolicy;
use super::signal::{Signal, parse_stop_signal};

/// The settings of one container. The parser refuses a setting that has no effect in the
/// container's role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerPlan {
    /// The startup probe of a sidecar. The sidecar does not count as started before the probe has
    /// succeeded.
    pub startup_probe: Option<Probe>,
    /// The container's own `restartPolicy` (Kubernetes, container level), for apps and init
    /// containers. `None` if the pod's restart policy applies.
    pub restart_policy: Option<RestartPolicy>,
    /// Exit codes after which the caller creates the container again, although the restart policy
    /// says otherwise; for apps and init containers.
    pub caller_restarts: ExitCodes,
    /// For a sidecar: the shim restarts the sidecar in place when the probe has failed. For a defer
    /// container: the container may get more time while the probe succeeds.
    pub liveness_probe: Option<Probe>,
    /// The hook that runs when the pod terminates, before the other termination steps; for apps and
    /// sidecars.
    pub termination_hook: Option<Hook>,
    /// The shim's restart policy for a sidecar, or for a defer container.
    pub restart: Option<RestartPolicy>,
    /// Maximum time for stopping the container. For a defer container: maximum time of all its runs
    /// together.
    pub grace_period: Option<Duration>,
    /// The container's stop signal; never SIGKILL. It replaces the signal of kubelet's stop
    /// request, and SIGTERM from other callers.
    pub stop_signal: Option<Signal>,
    /// Requests and limits. The shim needs them here because the OCI spec has no requests.
    pub resources: Option<Resources>,
}

impl ContainerPlan {
    pub(super) const NOTHING: ContainerPlan = ContainerPlan {
        startup_probe: None,
        restart_policy: None,
        caller_restarts: ExitCodes::NONE,
        liveness_probe: None,
        termination_hook: None,
        restart: None,
        grace_period: None,
        stop_signal: None,
        resources: None,
    };

    pub(super) fn set(
        &mut self,
        setting: ContainerSetting,
        entry: Entry<'_>,
        unsaid: &Unsaid,
    ) -> Result<(), PlanError> {
        let probe = |entry: Entry<'_>| entry.read(|text| probe::parse(text, unsaid));
        match setting {
            ContainerSetting::StartupProbe => self.startup_probe = Some(probe(entry)?),
            ContainerSetting::RestartPolicy => self.restart_policy = Some(entry.word()?),
            ContainerSetting::CallerRestarts => {
                self.caller_restarts = entry.read(exit_codes::parse)?;
            }
            ContainerSetting::LivenessProbe => self.liveness_probe = Some(probe(entry)?),
            ContainerSetting::TerminationHook => {
                self.termination_hook = Some(entry.read(hook::parse)?);
            }
            ContainerSetting::Restart => self.restart = Some(entry.word()?),
            ContainerSetting::GracePeriod => {
                self.grace_period = Some(entry.read(duration::parse)?);
            }
            ContainerSetting::StopSignal => {
                self.stop_signal = Some(entry.read(parse_stop_signal)?);
            }
            ContainerSetting::Resources => self.resources = Some(entry.read(resources::parse)?),
        }
        Ok(())
    }
}

/// Refuses a setting that has no effect in the container's role. The error names the lists whose
/// containers can have the setting. If one of these lists contains a name similar to `name`, the
/// error also says so, because one of the two names may be misspelled.
pub(super) fn check_use(
    setting: ContainerSetting,
    name: &str,
    assignment: &RoleAssignment,
    entry: Entry<'_>,
) -> Result<(), PlanError> {
    let role = assignment.role(name);
    if is_of_use(setting, role) {
        return Ok(());
    }
    let lists = lists_of(|role| is_of_use(setting, role));
    let lists: Vec<_> = lists.map(PodSetting::key).collect();
    let place = match lists.as_slice() {
        [list] => format!("not in {list}"),
        lists => format!("in none of {}", lists.join(", ")),
    };
    let mut listed = assignment.listed();
    let near = listed.find(|(other, _, role)| is_of_use(setting, *role) && is_near(name, other));
    let near = near.map_or_else(String::new, |(other, list, _)| {
        let list = list.key();
        format!("; {list} lists {other}: is one of the two misspelled?")
    });
    let users = roles_with_use_for(setting).join(" or ");
    Err(entry.useless(Problem::new(format!(
        "{name} is {place}, and its role is {role}; expected a container whose role is {users}{near}"
    ))))
}

/// The words for all roles in which a setting has an effect.
pub(super) fn roles_with_use_for(setting: ContainerSetting) -> Vec<&'static str> {
    let all = Role::WORDS.iter();
    let users = all.filter(|(role, _)| is_of_use(setting, *role));
    users.map(|(_, word)| *word).collect()
}

fn is_of_use(setting: ContainerSetting, role: Role) -> bool {
    use Role::{App, Defer, Guest, Init, NativeInit, Sidecar};
    match setting {
        ContainerSetting::StartupProbe => matches!(role, Sidecar),
        ContainerSetting::RestartPolicy | ContainerSetting::CallerRestarts => {
            matches!(role, App | Init | NativeInit)
        }
        ContainerSetting::LivenessProbe => matches!(role, Sidecar | Defer(_)),
        ContainerSetting::TerminationHook => matches!(role, App | Sidecar),
        ContainerSetting::Restart => matches!(role, Sidecar | Defer(_)),
        ContainerSetting::GracePeriod | ContainerSetting::StopSignal => {
            matches!(role, App | Sidecar | Defer(_) | Init)
        }
        ContainerSetting::Resources => !matches!(role, Guest),
    }
}
