//! How large the pod is now: the formula of [`sizing`](crate::sizing), for the phase it is in.

use std::collections::BTreeSet;

use crate::plan::{CgroupSizing, ContainerKind, Plan, Role};
use crate::sizing::{Containers, Moment, Requests, Size, Starting};

use super::action::{ContainerId, Step};
use super::container::Container;
use super::duty::Duty;
use super::history::NAMES_AT_MOST;
use super::{Phase, Pod};

/// What the pod's cgroup is to be sized by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSize {
    /// The sum of what belongs together now.
    pub size: Size,
    /// What all containers of the pod ask for as kubelet reckons it; `None` while not all are known. If
    /// kubelet has given the pod more, the pod asks for it as a whole (`spec.resources`).
    pub asked: Option<Requests>,
    /// The containers that keep within their part of it.
    pub counted: Vec<ContainerId>,
    /// Those of which only a parked process is there.
    pub held: Vec<ContainerId>,
}

impl Pod {
    /// What the pod's cgroup is to be sized by; none if it is to be as its caller has made it.
    pub fn pod_size(&self) -> Option<PodSize> {
        let plan = self.plan.as_ref().filter(|_| self.may_be_sized())?;
        let apps = self
            .sizes
            .keys()
            .filter(|name| Duty::of(plan.role(name)).is_work);
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
            // It is as its caller has made it, until it is known what that should have been.
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
            if container.life.is_unexecuted() && !container.task.has_live_execs() {
                now.held.push(id.clone());
            } else if container.life.has_process()
                || container.life.is_creating()
                || container.life.is_restarting()
            {
                // Whatever the phase is: nobody is to lack what it may use.
                now.size = now.size.plus(container.demands.size);
                now.counted.push(id.clone());
            }
        }
        now.size = now.size.or(size).plus(self.limits_of_guests());
        // Where nothing is, nothing is to be sized.
        (!now.counted.is_empty() || !now.held.is_empty()).then_some(now)
    }

    /// What kubelet takes the containers of the pod to ask for together. To kubelet all that run side by
    /// side are alike, and only its own init containers come before them.
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

    /// Whether the size of each container of the plan is known. Where the plan does not list the apps,
    /// more of them may come.
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
        let has_app = names.any(|name| Duty::of(plan.role(name)).is_work);
        let apps = plan.apps().map(|apps| apps.iter().all(is_known));
        lists.into_iter().flatten().all(is_known) && apps.unwrap_or(has_app)
    }

    /// Guests have no part in any phase, but nobody is to be killed for what one of them may use, and
    /// version 1 refuses one a quota above its pod's. As Kubernetes makes them (`kubectl debug`) they
    /// have no limit.
    fn limits_of_guests(&self) -> Size {
        let sizes = self.guests().map(|guest| guest.demands.size);
        let sum = sizes.fold(Size::NOTHING, Size::plus);
        Size {
            limits: sum.limits,
            ..Size::NOTHING
        }
    }

    /// The guests that live.
    fn guests(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().filter(|container| {
            container.kind == ContainerKind::Workload
                && !container.duty().is_ordered
                && (container.life.has_process() || container.life.is_creating())
        })
    }

    /// Whether the pod's cgroup is to be sized at all.
    pub fn may_be_sized(&self) -> bool {
        self.has_orders()
            && self
                .plan
                .as_ref()
                .is_some_and(|plan| plan.settings().cgroup_sizing != CgroupSizing::Off)
    }

    /// What a container asks for and may use.
    pub fn size_of(&self, id: &ContainerId) -> Option<Size> {
        Some(self.known(id).ok()?.demands.size)
    }

    /// The caller has changed what a container asks for and may use.
    pub fn handle_resized(&mut self, id: &ContainerId, size: Size) {
        let resized = self.reach(id, |hand| {
            hand.container.demands.size = size;
            (hand.container.name.clone(), Pod::has_size(hand.container))
        });
        if let Some((name, has_size)) = resized {
            self.remember_size(name, size, has_size);
        }
    }

    /// What a container that is created asks for is what the annotations say: the OCI specification
    /// has shares only. What it may use is what the kernel will be told.
    pub(super) fn size_at_creation(&mut self, name: &str, role: Role, mut size: Size) -> Size {
        let plan = self.plan.as_ref();
        if let Some(resources) = plan.and_then(|plan| plan.container(name).resources.as_ref()) {
            size.requests = Size::from(resources).requests;
        }
        self.remember_size(name.to_owned(), size, Duty::of(role).is_ordered);
        size
    }

    fn remember_size(&mut self, name: String, size: Size, has_size: bool) {
        if has_size && (self.sizes.len() < NAMES_AT_MOST || self.sizes.contains_key(&name)) {
            self.sizes.insert(name, size);
        }
    }

    /// That of the last container of the name, else what the annotations say.
    fn known_size(&self, name: &str) -> Option<Size> {
        let annotated = || {
            let resources = self.plan.as_ref()?.container(name).resources.as_ref();
            resources.map(Size::from)
        };
        self.sizes.get(name).copied().or_else(annotated)
    }

    /// Whether it counts; the sandbox and guests do not.
    fn has_size(container: &Container) -> bool {
        container.duty().is_ordered
    }

    fn moment(&self) -> Option<Moment> {
        Some(match self.phase() {
            Phase::Initializing => Moment::Starting(self.starting()),
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

    /// The last of those that start now, in the order of [`Containers::starting`].
    fn starting(&self) -> usize {
        let Some(plan) = &self.plan else { return 0 };
        let closed = self.closed_stage(usize::MAX).unwrap_or_default();
        let until = plan.stages().iter().take(closed.saturating_add(1));
        let names: usize = until.map(|stage| stage.0.len()).sum();
        plan.native_init()
            .len()
            .saturating_add(names)
            .saturating_sub(1)
    }
}
