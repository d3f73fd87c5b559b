//! Warnings about a manifest that does not do what it seems to do.

mod container;
mod listed;

use std::fmt;

use serde::Serialize;

use crate::lifecycle::LAST_APP_AFTER;
use crate::manifest::{Container, Pod};
use crate::plan::{CgroupSizing, Origin, Plan, PodSetting, RestartPolicy, Role, Settings, Stage};

use super::names::with_patterns;
use super::order::{StartOrder, few_joined};
use super::sizes::{cpus, lowered_cpu};
use super::start::{annotation, apps, native_init, run_is_over, shown};

pub(super) use listed::{of_keys, of_names};

/// A sentence about a container, or about the whole pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Warning {
    pub container: Option<String>,
    pub says: String,
}

impl Warning {
    /// A warning that concerns no single container.
    pub fn about_pod(says: impl Into<String>) -> Warning {
        Warning {
            container: None,
            says: says.into(),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(container) = &self.container {
            write!(f, "{container}: ")?;
        }
        f.write_str(&self.says)
    }
}

/// All warnings about a pod; `plan` is `None` without valid annotations.
pub(super) fn of(plan: Option<&Plan>, pod: &Pod) -> Vec<Warning> {
    let Some(plan) = plan else {
        return Vec::new();
    };
    let mut warnings = of_pod(plan, pod);
    let order = StartOrder::of(plan, pod);
    warnings.extend(of_init_containers(plan, pod, &order));
    warnings.extend(of_init_before_sidecars(plan, pod));
    warnings.extend(of_essential(plan));
    let may_be_complete = run_is_over(plan, pod).is_some();
    for container in pod.spec.containers.iter() {
        let of_container = container::of(plan, pod, &order, may_be_complete, container);
        warnings.extend(of_container.into_iter().map(|says| Warning {
            container: Some(container.name.clone()),
            says,
        }));
    }
    warnings
}

fn of_pod(plan: &Plan, pod: &Pod) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let settings = plan.settings();
    // The pattern names every setting, without `..`. So code with a new setting does not compile
    // until the programmer has decided on warnings about the setting.
    let Settings {
        start_mode: _,
        startup_timeout: _,
        restart_policy: _,
        essential: _,
        grace_period: _,
        usual_grace_period: _,
        grace_policy: _,
        sidecar_stop_order: _,
        sidecar_exit_code: _,
        defer_exit_code: _,
        termination_window: _,
        grace_extension: _,
        oom_score: _,
        cgroup_sizing: _,
    } = settings;
    if pod.spec.runtime_class_name.is_none() {
        warnings.push(Warning::about_pod(
            "runtimeClassName is missing: without it the annotations of usher have no effect; \
             expected the name of usher's RuntimeClass",
        ));
    }
    match pod.restart_policy() {
        None => warnings.push(Warning::about_pod(
            "unknown restartPolicy; expected Always, OnFailure or Never",
        )),
        Some(of_pod) if of_pod != settings.restart_policy => {
            let says = match pod.annotations.contains_key("usher/restart-policy") {
                true => format!(
                    "usher/restart-policy is {}, but the pod's restartPolicy is {of_pod}; \
                     expected the same",
                    settings.restart_policy
                ),
                false => format!(
                    "usher/restart-policy is missing, and usher cannot see the pod's \
                     restartPolicy; expected usher/restart-policy: {of_pod}{}",
                    match pod.is_job() {
                        true => ", else the Job never ends",
                        false => "",
                    }
                ),
            };
            warnings.push(Warning::about_pod(says));
        }
        Some(RestartPolicy::Always) => {}
        Some(_) if plan.apps().is_none() => warnings.push(Warning::about_pod(format!(
            "usher/apps is missing: the run is complete only after {} without a new container; \
                 expected {}, which completes it at once",
            shown(LAST_APP_AFTER),
            apps(plan, pod)
        ))),
        Some(_) => {}
    }
    let kubelets = pod.grace_period();
    match settings.grace_period {
        Some(period) if period > kubelets => warnings.push(Warning::about_pod(format!(
            "usher/grace-period is {period:?}, but kubelet kills after terminationGracePeriodSeconds, \
             {}; expected no more than that",
            kubelets.as_secs()
        ))),
        _ => {}
    }
    let grace = settings.grace_period.unwrap_or(kubelets).min(kubelets);
    let (policy, least) = (settings.grace_policy, settings.grace_policy.least());
    if grace < least {
        warnings.push(Warning::about_pod(format!(
            "the grace period is {grace:?}, too short for the grace policy {policy}, which then works like \
             Strict; expected {least:?} or more"
        )));
    }
    if settings.cgroup_sizing != CgroupSizing::Off
        && let Some((asked, needed)) = lowered_cpu(plan, pod)
    {
        warnings.push(Warning::about_pod(format!(
            "spec.resources requests {} of CPU, no more than its containers together: usher gives the \
             pod's cgroup the weight of what they need at any time, {}; expected a larger request, or \
             usher/cgroup-sizing: {}",
            cpus(Some(asked)),
            cpus(Some(needed)),
            CgroupSizing::Off
        )));
    }
    warnings
}

/// Warnings about lists with patterns. The shim refuses a list with a pattern.
pub(super) fn of_patterns(pod: &Pod) -> Vec<Warning> {
    let says = with_patterns(&pod.annotations).map(|(setting, _)| {
        format!(
            "{} has a pattern: usher-webhook replaces it by names, but the shim refuses it; \
             expected names where there is no usher-webhook",
            setting.key()
        )
    });
    says.map(Warning::about_pod).collect()
}

/// Notes about essential containers and their effect on the pod.
fn of_essential(plan: &Plan) -> Vec<Warning> {
    let settings = plan.settings();
    let then = match settings.restart_policy {
        RestartPolicy::Never => "and the pod has failed",
        RestartPolicy::Always | RestartPolicy::OnFailure => {
            "then its sandbox is killed, so that the whole pod starts again"
        }
    };
    let essential = settings.essential.iter();
    essential
        .map(|name| Warning {
            container: Some(name.clone()),
            says: format!("is essential: if it fails, the pod ends in order, {then}"),
        })
        .collect()
}

/// Warnings about the pod's own init containers, because kubelet runs them to completion before it
/// creates the first sidecar of usher. Init containers that may change the network get no warning,
/// because they prepare the network for a proxy and do not need the sidecar.
fn of_init_before_sidecars(plan: &Plan, pod: &Pod) -> Vec<Warning> {
    let sidecars = plan.sidecars().iter();
    let later = sidecars.filter(|name| !pod.has_init_container(name));
    let later: Vec<&str> = later.map(String::as_str).collect();
    if later.is_empty() {
        return Vec::new();
    }
    let names = few_joined(later);
    let inits = pod.spec.init_containers.iter().filter(|init| {
        let is_listed = plan.role(&init.name) == Role::NativeInit;
        is_listed && !init.is_native_sidecar() && !init.may_change_network()
    });
    inits
        .map(|Container { name, .. }| Warning {
            container: Some(name.clone()),
            says: format!(
                "runs before {names}: if it needs {names}, it fails, and so does the pod; expected in that case \
                 {names} ahead of it in initContainers (restartPolicy: Always) and in \
                 usher/native-init, or {name} among the containers, with {} and {}",
                annotation(PodSetting::Init, strs(plan.init()).chain([name.as_str()])),
                annotation(
                    PodSetting::StartupOrder,
                    staged(plan).chain([name.as_str()])
                ),
            ),
        })
        .collect()
}

fn strs(names: &[String]) -> impl Iterator<Item = &str> {
    names.iter().map(String::as_str)
}

/// The names of all init containers and sidecars that usher orders.
fn staged(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.stages().iter().flat_map(|Stage(names)| strs(names))
}

/// Warnings about the pod's own init containers that are not in `usher/native-init`.
fn of_init_containers(plan: &Plan, pod: &Pod, order: &StartOrder<'_>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let native_init = native_init(plan, pod);
    let waits = |name: &str| !order.waits(name, order.all()).names.is_empty();
    for container in pod.spec.init_containers.iter() {
        let says = match plan.role(&container.name) {
            Role::NativeInit => continue,
            Role::App if waits(&container.name) => format!(
                "is an init container of the pod and not in usher/native-init: usher holds it like \
                 an app, and kubelet waits for it; expected {native_init}"
            ),
            role @ (Role::App | Role::Guest) => format!(
                "is an init container of the pod and not in usher/native-init: usher treats it as \
                 a container of role {role}; expected {native_init}"
            ),
            role if plan.origin(&container.name) == Origin::Node => format!(
                "is an init container of the pod, but the node gives it the role {role}; \
                 expected {native_init}"
            ),
            Role::Sidecar
                if container.is_native_sidecar() && plan.position(&container.name) == Some(0) =>
            {
                "is an init container of the pod, which kubelet starts and stops by itself; \
                 expected it in usher/native-init, and in no other list"
                    .to_owned()
            }
            _ => {
                "is an init container of the pod that usher has to hold: kubelet creates the containers \
                  that it waits for only after it has ended; expected it among the containers"
                    .to_owned()
            }
        };
        warnings.push(Warning {
            container: Some(container.name.clone()),
            says,
        });
    }
    warnings
}
