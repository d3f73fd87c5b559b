//! How large the pod is in each phase of its life, and its QoS class.

use serde::Serialize;
use serde_json::Value;

use crate::plan::{self, Plan, Role};
use crate::sizing::{Bytes, Containers, Limit, Millicores, Moment, Size, Starting};

use super::super::manifest::{Container, Pod};
use super::role;

/// The sizes of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resources {
    pub(super) qos_class: &'static str,
    /// The last one is what the pod is scheduled by.
    pub(super) phases: Vec<Phase>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Phase {
    pub(super) phase: String,
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
}

/// A limit that is none is no limit; a request is at least 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Amounts {
    pub(super) cpu_millis: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
}

pub(super) fn resources(plan: Option<&Plan>, pod: &Pod) -> Resources {
    let containers = containers(plan, pod);
    let starting = starting_names(plan, pod);
    let mut phases: Vec<Phase> = containers
        .moments()
        .filter(|moment| match moment {
            Moment::PreExit => !containers.pre_exit.is_empty(),
            Moment::PostExit => !containers.post_exit.is_empty(),
            // Smaller than any other one.
            Moment::Sidecars => false,
            Moment::Starting(_) | Moment::Running => true,
        })
        .map(|moment| {
            let name = match moment {
                Moment::Starting(index) => {
                    format!(
                        "start of {}",
                        starting.get(index).map_or("", String::as_str)
                    )
                }
                Moment::Running => "running".to_owned(),
                Moment::PreExit => "pre-exit".to_owned(),
                Moment::PostExit => "post-exit".to_owned(),
                Moment::Sidecars => "sidecars".to_owned(),
            };
            phase(name, containers.at(moment))
        })
        .collect();
    phases.push(phase("effective".to_owned(), containers.effective()));
    Resources {
        qos_class: qos_class(pod),
        phases,
    }
}

fn containers(plan: Option<&Plan>, pod: &Pod) -> Containers {
    let size = |name: &str| pod.container(name).map_or(Size::UNLIMITED, size);
    let mut of_plan = match plan {
        Some(plan) => {
            let apps = pod.spec.containers.iter().map(|it| it.name.as_str());
            let apps = apps.filter(|name| role(plan, pod, name) == Role::App);
            Containers::of(plan, apps, size)
        }
        None => Containers {
            apps: pod.spec.containers.iter().map(self::size).collect(),
            ..Containers::default()
        },
    };
    // As the manifest has them: a native sidecar stays, and kubelet starts those in no list too.
    let listed = plan.map_or(0, |plan| plan.native_init().len());
    let native = pod
        .spec
        .init_containers
        .iter()
        .map(|it| match it.is_native_sidecar() {
            true => Starting::Sidecar(self::size(it)),
            false => Starting::Init(self::size(it)),
        });
    of_plan.starting = native
        .chain(of_plan.starting.iter().skip(listed).copied())
        .collect();
    if let Some(overhead) = &pod.spec.overhead
        && let Some(amounts) = read(&serde_json::json!({"limits": overhead}))
    {
        let limits = amounts.limits();
        of_plan.overhead = Size::exactly(
            Millicores(limits.cpu_millis.unwrap_or_default()),
            Bytes(limits.memory_bytes.unwrap_or_default()),
        );
    }
    of_plan
}

fn starting_names(plan: Option<&Plan>, pod: &Pod) -> Vec<String> {
    let native = pod.spec.init_containers.iter().map(|it| it.name.clone());
    let stages = plan.map_or(&[][..], Plan::stages).iter();
    native
        .chain(stages.flat_map(|stage| stage.0.clone()))
        .collect()
}

fn size(container: &Container) -> Size {
    let resources = container.resources.as_ref().and_then(read);
    resources.as_ref().map_or(Size::UNLIMITED, Size::from)
}

/// By the parser of the annotation of that name; none if Kubernetes would refuse it.
pub(super) fn read(resources: &Value) -> Option<plan::Resources> {
    plan::parse_resources(&resources.to_string()).ok()
}

fn phase(phase: String, size: Size) -> Phase {
    Phase {
        phase,
        requests: Amounts {
            cpu_millis: Some(size.requests.cpu.0),
            memory_bytes: Some(size.requests.memory.0),
        },
        limits: Amounts {
            cpu_millis: amount(size.limits.cpu).map(|cpu| cpu.0),
            memory_bytes: amount(size.limits.memory).map(|memory| memory.0),
        },
    }
}

fn amount<Q>(limit: Limit<Q>) -> Option<Q> {
    match limit {
        Limit::Of(amount) => Some(amount),
        Limit::Unlimited => None,
    }
}

/// As kubelet classifies it, by CPU and memory of all containers
/// (<https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>).
fn qos_class(pod: &Pod) -> &'static str {
    let amounts = |container: &Container| {
        let resources = container.resources.as_ref().and_then(read)?;
        Some((resources.requests(), resources.limits()))
    };
    let something = |amount: Option<u64>| amount.filter(|amount| *amount > 0);
    let mut best_effort = true;
    let mut guaranteed = true;
    for container in pod.all() {
        let (requests, limits) = amounts(container).unwrap_or_default();
        for (request, limit) in [
            (requests.cpu_millis, limits.cpu_millis),
            (requests.memory_bytes, limits.memory_bytes),
        ] {
            let (request, limit) = (something(request), something(limit));
            best_effort &= request.is_none() && limit.is_none();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (best_effort, guaranteed) {
        (true, _) => "BestEffort",
        (false, true) => "Guaranteed",
        (false, false) => "Burstable",
    }
}
