//! The size of the pod's cgroup: its requests and limits of CPU and memory.
//! [`sizing`](crate::sizing) has the formula. The driver gives the cgroup this size.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{CgroupSizing, ContainerKind, Plan, Role};
use crate::sizing::{Containers, Moment, Requests, Size, Starting};

use super::action::{ContainerId, Step};
use super::container::Container;
use super::effects::ContainerContext;
use super::history::NAMES_AT_MOST;
use super::role_policy::RolePolicy;
use super::{Phase, Pod};

/// The size for the pod's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSize {
    /// With `cgroup-sizing: Phase`, this is the sum of the containers' sizes in the current phase.
    /// Otherwise this is the sum in the phase that needs most. The size is never less than the sum
    /// of the containers in `counted`. The limits of containers outside the pod's plan are added.
    pub size: Size,
    /// The sum of the requests of the pod's containers, as kubelet computes it. `None` while some
    /// requests are unknown. A higher value in the pod's cgroup shows that the pod has requests of
    /// its own (`spec.resources`).
    pub asked: Option<Requests>,
    /// The containers that usher orders and that have a process or will have one soon, except those
    /// in `held`.
    pub counted: Vec<ContainerId>,
    /// The containers that usher orders and whose program is not executed yet. Their only process
    /// is that of the OCI runtime, which waits.
    pub held: Vec<ContainerId>,
}

impl Pod {
    /// The size that the driver is to give the pod's cgroup now. `None` if the cgroup is to have
    /// its original values. This is so if sizing is off, or if no container has or will soon have a
    /// process. With `cgroup-sizing: Effective`, it is also so while sizes are unknown. With
    /// `cgroup-sizing: Phase`, it is also so after the pod has terminated.
    pub fn pod_size(&self) -> Option<PodSize> {
        let plan = self.plan.as_ref().filter(|_| self.may_be_sized())?;
        let apps = self
            .sizes
            .keys()
            .filter(|name| RolePolicy::of(plan.role(name)).is_work);
        let apps = apps.chain(
            plan.apps()
                .into_iter()
                .flatten()
                .filter(|name| !self.sizes.contains_key(*name)),
        );
        let size = |name: &str| self.known_size(name).unwrap_or(Size::NOTHING);
        let all = Containers::of(plan, apps.map(String::as_str), size);
        let size = match plan.settings().cgroup_sizing {
            CgroupSizing::Effective if self.is_all_known() => all.effective(),
            // Until the sizes are known, the cgroup keeps its original values.
            CgroupSizing::Effective => return None,
            CgroupSizing::Phase => all.at(self.moment()?),
            CgroupSizing::Off => return None,
        };
        let mut now = PodSize {
            size: Size::NOTHING,
            asked: self.is_all_known().then(|| self.requests_for_kubelet(plan)),
            counted: Vec::new(),
            held: Vec::new(),
        };
        for (id, container) in &self.containers {
            if !Pod::has_size(container) {
                continue;
            }
            if container.state.is_unexecuted() && !container.execs.has_live() {
                now.held.push(id.clone());
            } else if container.state.has_process()
                || container.state.is_restarting()
                // Without the sandbox, a creation that is still under way is of no use. Kubelet may
                // have made the next sandbox of the pod, whose shim sizes the same cgroup.
                || container.state.is_creating() && !self.sandbox_is_gone
            {
                // The size is at least the sum of these sizes, so that each running container can
                // use its limits in every phase.
                now.size = now.size.plus(container.demands.size);
                now.counted.push(id.clone());
            }
        }
        now.size = now.size.or(size).plus(self.limits_of_guests());
        // Without processes there is nothing to size.
        (!now.counted.is_empty() || !now.held.is_empty()).then_some(now)
    }

    /// The container whose bundle is to keep a note with the original values of the pod's cgroup.
    /// If the shim dies, containerd runs `delete` for this bundle, and `delete` restores the
    /// values. The first choice is the sandbox, because containerd 2.3 runs `delete` only for the
    /// sandbox. The second is a living container, and the last an exited one.
    pub fn container_for_note(&self) -> Option<&ContainerId> {
        let ids = || self.containers.keys();
        let sandbox = ids().find(|id| self.is_sandbox(id));
        let living = || ids().find(|id| !self.has_exited(id));
        sandbox.or_else(living).or_else(|| ids().next())
    }

    /// The requests of the pod as kubelet computes them. kubelet does not know usher's roles. For
    /// kubelet, only native init containers run before the others. It adds up the requests of all
    /// other containers, which run side by side.
    fn requests_for_kubelet(&self, plan: &Plan) -> Requests {
        let is_native = |name: &String| plan.role(name) == Role::NativeInit;
        let size = |name: &String| self.known_size(name).unwrap_or(Size::NOTHING);
        let lists = [
            plan.init(),
            plan.sidecars(),
            plan.pre_exit(),
            plan.post_exit(),
        ];
        let listed = lists.into_iter().flatten();
        let listed = listed.chain(plan.apps().into_iter().flatten());
        let names: BTreeSet<&String> = self.sizes.keys().chain(listed).collect();
        let side_by_side = names.into_iter().filter(|name| !is_native(name));
        let guests = self.guests().map(|guest| guest.demands.size);
        let native = plan.native_init().iter();
        let all = Containers {
            starting: native.map(|name| Starting::Init(size(name))).collect(),
            apps: side_by_side.map(size).chain(guests).collect(),
            ..Containers::default()
        };
        all.effective().requests
    }

    /// True if the size of each container of the plan is known. If the plan does not list the apps,
    /// the size of one app is enough, although more apps may be created.
    fn is_all_known(&self) -> bool {
        let Some(plan) = &self.plan else {
            return false;
        };
        let lists = [
            plan.init(),
            plan.native_init(),
            plan.sidecars(),
            plan.pre_exit(),
            plan.post_exit(),
        ];
        let is_known = |name: &String| self.known_size(name).is_some();
        let mut names = self.sizes.keys();
        let has_app = names.any(|name| RolePolicy::of(plan.role(name)).is_work);
        let apps = plan.apps().map(|apps| apps.iter().all(is_known));
        lists.into_iter().flatten().all(is_known) && apps.unwrap_or(has_app)
    }

    /// The sum of the limits of the living guests (containers outside the pod's plan), without
    /// their requests. The formula for the size leaves guests out. [`pod_size`](Pod::pod_size) adds
    /// this sum so that no guest is killed for using its limit. Also, cgroup v1 refuses a
    /// container's quota that exceeds the quota of the pod. Kubernetes sets no limits for the
    /// guests of `kubectl debug`.
    fn limits_of_guests(&self) -> Size {
        let sizes = self.guests().map(|guest| guest.demands.size);
        let sum = sizes.fold(Size::NOTHING, Size::plus);
        Size {
            limits: sum.limits,
            ..Size::NOTHING
        }
    }

    fn guests(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().filter(|container| {
            container.kind == ContainerKind::Workload
                && !container.role_policy().is_ordered
                && (container.state.has_process() || container.state.is_creating())
        })
    }

    /// True if usher sizes the pod's cgroup at some time: it orders the pod's containers, and the
    /// setting `cgroup-sizing` is not `Off`.
    pub fn may_be_sized(&self) -> bool {
        self.has_orders()
            && self
                .plan
                .as_ref()
                .is_some_and(|plan| plan.settings().cgroup_sizing != CgroupSizing::Off)
    }

    /// Returns the size of a container that is being created: requests from the annotations,
    /// because the OCI specification has shares only, and limits from the bundle. Remembers the
    /// size for the name if the container has a role in usher's order.
    pub(super) fn size_at_creation(&mut self, name: &str, role: Role, mut size: Size) -> Size {
        let plan = self.plan.as_ref();
        if let Some(resources) = plan.and_then(|plan| plan.container(name).resources.as_ref()) {
            size.requests = Size::from(resources).requests;
        }
        if RolePolicy::of(role).is_ordered {
            remember(&mut self.sizes, name, size);
        }
        size
    }

    /// The size of the container created last under this name, or else the size in the annotations.
    /// `None` if there is neither.
    fn known_size(&self, name: &str) -> Option<Size> {
        let annotated = || {
            let resources = self.plan.as_ref()?.container(name).resources.as_ref();
            resources.map(Size::from)
        };
        self.sizes.get(name).copied().or_else(annotated)
    }

    /// True if the size of the pod includes the container. It includes neither the sandbox nor
    /// containers outside the pod's plan.
    fn has_size(container: &Container) -> bool {
        container.role_policy().is_ordered
    }

    fn moment(&self) -> Option<Moment> {
        Some(match self.phase() {
            Phase::Initializing => Moment::Starting(self.last_index_of_open_stage()),
            Phase::Running => Moment::Running,
            Phase::Terminating(step) => match step {
                Step::Hooks | Step::Apps => Moment::Running,
                Step::PreExit => Moment::PreExit,
                Step::PostExit => Moment::PostExit,
                Step::Sidecars => Moment::Sidecars,
                Step::Over => return None,
            },
            Phase::Terminated => return None,
        })
    }

    /// The index, in [`Containers::starting`], of the last container of the stage that starts now:
    /// the first stage that is not done. Called only in [`Phase::Initializing`], in which there is
    /// such a stage.
    fn last_index_of_open_stage(&self) -> usize {
        let Some(plan) = &self.plan else { return 0 };
        let closed = self.closed_stage().unwrap_or_default();
        let until = plan.stages().iter().take(closed.saturating_add(1));
        let names: usize = until.map(|stage| stage.0.len()).sum();
        plan.native_init()
            .len()
            .saturating_add(names)
            .saturating_sub(1)
    }
}

impl ContainerContext<'_> {
    /// Records new requests and limits of the container, when an Update begins and when it is over.
    /// The driver changes the container's cgroup.
    pub(super) fn resize(&mut self, size: Size) {
        self.container.demands.size = size;
        if Pod::has_size(self.container) {
            remember(self.sizes, &self.container.name, size);
        }
    }
}

fn remember(sizes: &mut BTreeMap<String, Size>, name: &str, size: Size) {
    if sizes.len() < NAMES_AT_MOST || sizes.contains_key(name) {
        sizes.insert(name.to_owned(), size);
    }
}
