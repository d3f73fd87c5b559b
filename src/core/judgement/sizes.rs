//! The size of the pod in each phase, and its QoS class.

use serde::Serialize;

use crate::manifest::{Container, Pod, Requirements};
use crate::plan::{self, Plan, Role};
use crate::sizing::{Bytes, Containers, Limit, Millicores, Moment, Size, Starting};

use super::role;

/// The sizes of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    pub qos_class: &'static str,
    /// The size in each phase. The last entry is the size that the scheduler uses.
    pub phases: Vec<Phase>,
}

/// The size of a pod in a phase of its run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Phase {
    pub phase: String,
    pub requests: Amounts,
    pub limits: Amounts,
}

/// Amounts of CPU and memory. If they are limits, `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
}

/// Computes the size of a pod in each phase and the pod's QoS class, as kubelet and usher do.
pub fn resources(plan: Option<&Plan>, pod: &Pod) -> Resources {
    let containers = containers(plan, pod);
    let starting = starting_names(plan, pod);
    let whole = whole(pod);
    let capped = |size| whole.map_or(size, |whole| cap(size, whole));
    let effective = containers.effective();
    let effective = whole.map_or(effective, |whole| replace(effective, whole));
    let mut phases: Vec<Phase> = containers
        .sizes()
        .into_iter()
        .filter(|(moment, _)| match moment {
            Moment::PreExit => !containers.pre_exit.is_empty(),
            Moment::PostExit => !containers.post_exit.is_empty(),
            // The output leaves out the phase in which only sidecars run. In this phase, the pod is
            // never larger than in the phase in which the apps run.
            Moment::Sidecars => false,
            Moment::Starting(_) | Moment::Running => true,
        })
        .map(|(moment, size)| {
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
            phase(name, capped(size))
        })
        .collect();
    phases.push(phase("effective".to_owned(), effective.plus(overhead(pod))));
    Resources {
        qos_class: qos_class(pod, whole),
        phases,
    }
}

/// Returns two CPU requests in millicores: the request of the pod as a whole, and the request of
/// the containers that run at the same time, where it is largest. Returns `None` if usher does not
/// lower the first to the second.
///
/// usher lowers a pod's request that exceeds the second, but not one that exceeds the request of
/// all containers together.
pub(super) fn lowered_cpu(plan: &Plan, pod: &Pod) -> Option<(u64, u64)> {
    let asked = pod.spec.resources?.requests.cpu_millis?;
    let together = containers(None, pod).effective().requests.cpu.0;
    let needed = containers(Some(plan), pod).effective().requests.cpu.0;
    (needed < asked && asked <= together).then_some((asked, needed))
}

/// The sizes of the pod's containers, without the pod's overhead. Without a plan, all containers in
/// `spec.containers` count as apps.
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
    // Init containers are taken from the manifest, not from the lists. Only the manifest tells
    // which of them are native sidecars, which keep running. And kubelet also starts init
    // containers that are in no list.
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
    of_plan
}

fn overhead(pod: &Pod) -> Size {
    let amounts = pod.spec.overhead.unwrap_or_default();
    Size::exactly(
        Millicores(amounts.cpu_millis.unwrap_or_default()),
        Bytes(amounts.memory_bytes.unwrap_or_default()),
    )
}

fn starting_names(plan: Option<&Plan>, pod: &Pod) -> Vec<String> {
    let native = pod.spec.init_containers.iter().map(|it| it.name.clone());
    let stages = plan.map_or(&[][..], Plan::stages).iter();
    native
        .chain(stages.flat_map(|stage| stage.0.clone()))
        .collect()
}

fn size(container: &Container) -> Size {
    let resources = container.resources.as_ref();
    resources.map_or(Size::UNLIMITED, Size::from)
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

/// The QoS class as kubelet computes it: from the CPU and memory of the pod as a whole if its
/// manifest has them, else from all containers
/// (<https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/>).
fn qos_class(pod: &Pod, whole: Option<Requirements>) -> &'static str {
    let amounts = |container: &Container| {
        let resources = container.resources.as_ref();
        resources.map_or_else(Requirements::default, |resources| Requirements {
            requests: resources.requests(),
            limits: resources.limits(),
        })
    };
    let parts: Vec<Requirements> = match whole {
        Some(whole) => vec![whole],
        None => pod.all().map(amounts).collect(),
    };
    let something = |amount: Option<u64>| amount.filter(|amount| *amount > 0);
    let mut best_effort = true;
    let mut guaranteed = true;
    for Requirements { requests, limits } in parts {
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

/// CPU as Kubernetes writes it; a dash for no limit.
pub fn cpus(millis: Option<u64>) -> String {
    match millis {
        None => "-".to_owned(),
        Some(millis) if millis.is_multiple_of(1000) => (millis / 1000).to_string(),
        Some(millis) => format!("{millis}m"),
    }
}

/// Memory as Kubernetes writes it; a dash for no limit.
pub fn bytes(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else {
        return "-".to_owned();
    };
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    match unit {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// The requests and limits of the pod as a whole, if its manifest has them. If the pod has limits
/// but lacks a request, adds the request that Kubernetes 1.34 would fill in. This is the request of
/// the containers by Kubernetes' own formula, or the limit if the containers request nothing.
fn whole(pod: &Pod) -> Option<Requirements> {
    let given = pod.spec.resources?;
    let Requirements { requests, limits } = given;
    let nothing = plan::Amounts::default();
    if limits == nothing {
        return (requests != nothing).then_some(given);
    }
    let asked = containers(None, pod).effective().requests;
    let fill = |request: Option<u64>, asked: u64, limit: Option<u64>| {
        request.or(Some(asked).filter(|asked| *asked > 0)).or(limit)
    };
    let (cpu, memory) = (asked.cpu.0, asked.memory.0);
    Some(Requirements {
        requests: plan::Amounts {
            cpu_millis: fill(requests.cpu_millis, cpu, limits.cpu_millis),
            memory_bytes: fill(requests.memory_bytes, memory, limits.memory_bytes),
        },
        limits,
    })
}

/// Caps the limits of containers by the limits of the pod, because their cgroups are inside the
/// pod's cgroup.
fn cap(mut size: Size, whole: Requirements) -> Size {
    let of_cpu = Limit::from(whole.limits.cpu_millis.map(Millicores));
    let of_memory = Limit::from(whole.limits.memory_bytes.map(Bytes));
    size.limits.cpu = size.limits.cpu.min(of_cpu);
    size.limits.memory = size.limits.memory.min(of_memory);
    size
}

/// Replaces the sizes of the containers by those of the pod as a whole.
fn replace(mut size: Size, whole: Requirements) -> Size {
    let Requirements { requests, limits } = whole;
    if let Some(cpu) = requests.cpu_millis {
        size.requests.cpu = Millicores(cpu);
    }
    if let Some(memory) = requests.memory_bytes {
        size.requests.memory = Bytes(memory);
    }
    if let Some(cpu) = limits.cpu_millis {
        size.limits.cpu = Limit::Of(Millicores(cpu));
    }
    if let Some(memory) = limits.memory_bytes {
        size.limits.memory = Limit::Of(Bytes(memory));
    }
    size
}
