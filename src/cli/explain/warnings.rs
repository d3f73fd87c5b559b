//! What in a manifest does not do what it looks like.

use serde::Serialize;
use serde_json::Value;

use crate::plan::{GracePolicy, Plan, RESERVED, RestartPolicy, Role, Stage, StartMode};

use super::super::convert;
use super::super::manifest::{Container, Node, Pod};
use super::start::{Held, held};
use super::{role, sizes};

/// One sentence about a container, or about the whole pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Warning {
    pub(crate) container: Option<String>,
    pub(crate) says: String,
}

/// All warnings about a pod; `plan` is none where there are no annotations, or none that are valid.
pub(crate) fn of(plan: Option<&Plan>, pod: &Pod) -> Vec<Warning> {
    let Some(plan) = plan else {
        return Vec::new();
    };
    let mut warnings = of_pod(plan, pod);
    warnings.extend(of_names(plan, pod));
    for container in &pod.spec.containers {
        let of_container = of_container(plan, pod, container);
        warnings.extend(of_container.into_iter().map(|says| Warning {
            container: Some(container.name.clone()),
            says,
        }));
    }
    warnings
}

/// Fields that no cluster has, which are dropped or refused there, and mean nothing to usher.
pub(super) fn of_other_apis(pod: &Node) -> Option<Warning> {
    convert::is_of_proposals(pod).then(|| {
        about_pod(
            "it has fields of an API that Kubernetes does not have; expected what usher convert \
             makes of it",
        )
    })
}

fn about_pod(says: impl Into<String>) -> Warning {
    Warning {
        container: None,
        says: says.into(),
    }
}

fn of_pod(plan: &Plan, pod: &Pod) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let settings = plan.settings();
    if pod.spec.runtime_class_name.is_none() {
        warnings.push(about_pod(
            "runtimeClassName is missing: without it no annotation of usher means anything; \
             expected the name of usher's RuntimeClass",
        ));
    }
    match pod.restart_policy() {
        None => warnings.push(about_pod(
            "restartPolicy is no word of Kubernetes; expected Always, OnFailure or Never",
        )),
        Some(of_pod) if of_pod != settings.restart_policy => {
            let says = match pod.annotations.contains_key("usher/restart-policy") {
                true => format!(
                    "usher/restart-policy is {}, and the pod's restartPolicy {of_pod}; expected \
                     the same",
                    settings.restart_policy
                ),
                false => format!(
                    "usher/restart-policy is missing, and the pod's restartPolicy is {of_pod}, \
                     which nothing else tells usher; expected it to be {of_pod}{}",
                    match pod.is_job() {
                        true => ", else the Job is never over",
                        false => "",
                    }
                ),
            };
            warnings.push(about_pod(says));
        }
        Some(RestartPolicy::Always) => {}
        Some(_) if plan.apps().is_none() => warnings.push(about_pod(
            "usher/apps is missing: the run is complete only when no container has been created \
             for 30 s; with the list it is complete at once",
        )),
        Some(_) => {}
    }
    let kubelets = pod.grace_period();
    match settings.grace_period {
        Some(period) if period > kubelets => warnings.push(about_pod(format!(
            "usher/grace-period is {period:?}, and terminationGracePeriodSeconds {}: kubelet kills \
             at the earlier; expected no more",
            kubelets.as_secs()
        ))),
        _ => {}
    }
    if settings.grace_policy == GracePolicy::Reserve
        && settings.grace_period.unwrap_or(kubelets) < RESERVED
    {
        warnings.push(about_pod(format!(
            "terminationGracePeriodSeconds is {}, too short for the grace policy Reserve, which \
             then is as Strict; expected {} or more",
            kubelets.as_secs(),
            RESERVED.as_secs()
        )));
    }
    warnings
}

/// Names that the annotations and the manifest do not share.
fn of_names(plan: &Plan, pod: &Pod) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for container in &pod.spec.init_containers {
        let says = match plan.role(&container.name) {
            Role::NativeInit => continue,
            Role::App | Role::Guest => {
                "is an init container of the pod and not in usher/native-init: usher holds it like \
                 an app, and kubelet waits for it; expected it there"
            }
            _ => {
                "is an init container of the pod, and usher is to hold it back: kubelet waits for \
                 it before it creates what it would wait for; expected it among the containers"
            }
        };
        warnings.push(Warning {
            container: Some(container.name.clone()),
            says: says.to_owned(),
        });
    }
    let ordered = plan.stages().iter().flat_map(|Stage(names)| names);
    let lists = ordered
        .chain(plan.apps().into_iter().flatten())
        .chain(plan.pre_exit())
        .chain(plan.post_exit());
    for name in lists {
        if pod.container(name).is_none() {
            let waits = match plan.role(name) {
                Role::Init | Role::Sidecar => "what waits for it never runs",
                Role::App => "the run is never complete",
                _ => "nothing will run in its turn",
            };
            warnings.push(Warning {
                container: Some(name.clone()),
                says: format!("is in a list of usher's and not in the pod: {waits}"),
            });
        }
    }
    for name in plan.native_init() {
        if !pod.spec.init_containers.iter().any(|it| it.name == *name) {
            warnings.push(Warning {
                container: Some(name.clone()),
                says: "is in usher/native-init and no init container of the pod".to_owned(),
            });
        }
    }
    warnings
}

fn of_container(plan: &Plan, pod: &Pod, container: &Container) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = container.name.as_str();
    let role = role(plan, pod, name);
    let waits_for = waits_for(plan, role, name);
    match role {
        Role::App | Role::Init | Role::Sidecar => {
            warnings.extend(of_held(plan, pod, container, &waits_for));
        }
        Role::Defer(_) => warnings.extend(of_defer(container)),
        Role::Guest => warnings
            .push("is in no list: a guest, which starts at once and nobody waits for".to_owned()),
        Role::NativeInit => {}
    }
    if role == Role::Sidecar
        && container.startup_probe.is_some()
        && plan.container(name).startup_probe.is_none()
    {
        warnings.push(format!(
            "has a startupProbe, which usher does not see: it is started when its program runs; \
             expected startup-probe.usher/{name} too"
        ));
    }
    if let (Some(annotated), Some(given)) = (&plan.container(name).resources, &container.resources)
        && sizes::read(given).as_ref() != Some(annotated)
    {
        warnings.push(format!(
            "resources.usher/{name} says something else than its resources"
        ));
    }
    warnings
}

fn waits_for(plan: &Plan, role: Role, name: &str) -> Vec<String> {
    let stages = match role {
        Role::App => plan.stages(),
        _ => {
            let position = plan.position(name).unwrap_or(0);
            plan.stages().get(..position).unwrap_or_default()
        }
    };
    stages
        .iter()
        .flat_map(|Stage(names)| names.clone())
        .collect()
}

/// Of a container that may be held while kubelet takes it for running.
fn of_held(plan: &Plan, pod: &Pod, container: &Container, waits_for: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    let place = |name: &str| pod.spec.containers.iter().position(|it| it.name == name);
    let own = place(&container.name);
    let later: Vec<&str> = waits_for
        .iter()
        .map(String::as_str)
        .filter(|name| place(name) > own)
        .collect();
    let names = later.join(", ");
    match held(plan, pod, &container.name, waits_for) {
        Held::Blocked if !later.is_empty() => {
            warnings.push(format!(
                "is listed before {names}, and with the start mode {} its Start is not answered \
                 until kubelet has created what it waits for, which it never does; expected it \
                 behind them, or Auto",
                StartMode::Block
            ));
            return warnings;
        }
        Held::AtOnce if !later.is_empty() => {
            let reads = match container.readiness_probe {
                None => "it is held and reads Ready before it runs",
                Some(_) => "it is held and reads Running before it runs",
            };
            warnings.push(format!(
                "is listed before {names}: {reads}; expected it behind them"
            ));
        }
        Held::AtOnce => {}
        Held::No | Held::Blocked | Held::UntilTermination => return warnings,
    }
    for (kind, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        if asks_from_outside(probe.as_ref()) {
            warnings.push(format!(
                "its {kind} fails while it is held, and kubelet restarts it; expected an exec probe, \
                 which does not count then"
            ));
        }
    }
    if container.lifecycle.post_start.is_some() {
        warnings.push(
            "its postStart runs while it is held: one that waits for the container's own program \
             never ends"
                .to_owned(),
        );
    }
    warnings
}

/// Of a container that is held until the pod terminates.
fn of_defer(container: &Container) -> Vec<String> {
    let mut warnings = Vec::new();
    for (kind, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        if asks_from_outside(probe.as_ref()) {
            warnings.push(format!(
                "its {kind} fails as long as it is held, and kubelet restarts it; expected none"
            ));
        }
    }
    if container.readiness_probe.is_some() {
        warnings.push(
            "its readinessProbe never succeeds while it is held: the pod is never Ready; expected \
             none"
                .to_owned(),
        );
    }
    warnings
}

/// Whether a probe is one that kubelet does not discard while its container is held.
fn asks_from_outside(probe: Option<&Value>) -> bool {
    probe.is_some_and(|probe| probe.get("exec").is_none_or(Value::is_null))
}
