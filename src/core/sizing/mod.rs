//! Computes the size of a pod in each phase of its run from the requests and limits of its
//! containers.
//!
//! The formula is KEP-753's ("Resources calculation for scheduling and pod admission", "Exposing
//! Pod Resource requirements"). Without sidecars it equals the formula of the init containers'
//! proposal. The two terms for defer containers are added here:
//!
//! ```text
//! init(i)   = init_i + sum of the sidecars started before it
//! running   = sum of the sidecars + sum of the apps
//! pre-exit  = sum of the sidecars + sum of the apps + largest pre-exit container
//! post-exit = sum of the sidecars + largest post-exit container
//! effective = largest of all these + overhead
//! ```
//!
//! The formula is computed for each resource separately, for requests and limits alike. A container
//! without a limit makes every sum that includes it unlimited, as in Kubernetes.

mod quantity;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, Resources, Role, Stage};

use quantity::Quantity;

pub use quantity::{Bytes, Limit, Millicores};

/// Requests and limits of a container or a whole pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    pub requests: Requests,
    pub limits: Limits,
}

/// A change of a container's size. `None` changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SizeChange {
    pub cpu_request: Option<Millicores>,
    pub cpu_limit: Option<Limit<Millicores>>,
    pub memory_limit: Option<Limit<Bytes>>,
}

/// Requests; zero if not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Requests {
    pub cpu: Millicores,
    pub memory: Bytes,
}

/// Limits; unlimited if not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    pub cpu: Limit<Millicores>,
    pub memory: Limit<Bytes>,
}

/// A container of the start sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Starting {
    /// An init container, which exits before the next container starts.
    Init(Size),
    /// A sidecar, which keeps running.
    Sidecar(Size),
}

/// A phase of a pod's run, in which the size of the pod does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Moment {
    /// The start of the container with this index in [`Containers::starting`]. The size is the sum
    /// of this container and all sidecars before it.
    Starting(usize),
    Running,
    PreExit,
    PostExit,
    /// Only the sidecars are left.
    Sidecars,
}

/// The sizes of a pod's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Containers {
    /// Init containers and sidecars in start order; the pod's own init containers come first.
    pub starting: Vec<Starting>,
    pub apps: Vec<Size>,
    pub pre_exit: Vec<Size>,
    pub post_exit: Vec<Size>,
    /// Overhead of the pod itself (a RuntimeClass's `overhead.podFixed`).
    pub overhead: Size,
}

impl Size {
    pub fn changed(self, change: SizeChange) -> Size {
        let Size { requests, limits } = self;
        Size {
            requests: Requests {
                cpu: change.cpu_request.unwrap_or(requests.cpu),
                ..requests
            },
            limits: Limits {
                cpu: change.cpu_limit.unwrap_or(limits.cpu),
                memory: change.memory_limit.unwrap_or(limits.memory),
            },
        }
    }

    /// A size without requests, and with limits of zero.
    pub const NOTHING: Size = Size {
        requests: Requests {
            cpu: Millicores(0),
            memory: Bytes(0),
        },
        limits: Limits {
            cpu: Limit::Of(Millicores(0)),
            memory: Limit::Of(Bytes(0)),
        },
    };

    /// A container without requests and limits.
    pub const UNLIMITED: Size = Size {
        requests: Size::NOTHING.requests,
        limits: Limits {
            cpu: Limit::Unlimited,
            memory: Limit::Unlimited,
        },
    };

    /// A size with equal requests and limits, such as a pod's overhead.
    pub fn exactly(cpu: Millicores, memory: Bytes) -> Size {
        Size {
            requests: Requests { cpu, memory },
            limits: Limits {
                cpu: Limit::Of(cpu),
                memory: Limit::Of(memory),
            },
        }
    }

    /// The sum of two sizes, for containers that run side by side.
    #[must_use]
    pub fn plus(self, other: Size) -> Size {
        Size {
            requests: Requests {
                cpu: self.requests.cpu.plus(other.requests.cpu),
                memory: self.requests.memory.plus(other.requests.memory),
            },
            limits: Limits {
                cpu: self.limits.cpu.plus(other.limits.cpu),
                memory: self.limits.memory.plus(other.limits.memory),
            },
        }
    }

    /// The larger amount of each resource, for containers that run one after the other.
    #[must_use]
    pub fn or(self, other: Size) -> Size {
        Size {
            requests: Requests {
                cpu: self.requests.cpu.max(other.requests.cpu),
                memory: self.requests.memory.max(other.requests.memory),
            },
            limits: Limits {
                cpu: self.limits.cpu.max(other.limits.cpu),
                memory: self.limits.memory.max(other.limits.memory),
            },
        }
    }
}

/// The size from `ResourceRequirements`; an unmentioned resource has no request and no limit.
impl From<&Resources> for Size {
    fn from(resources: &Resources) -> Size {
        let (requests, limits) = (resources.requests(), resources.limits());
        Size {
            requests: Requests {
                cpu: Millicores(requests.cpu_millis.unwrap_or_default()),
                memory: Bytes(requests.memory_bytes.unwrap_or_default()),
            },
            limits: Limits {
                cpu: limits.cpu_millis.map(Millicores).into(),
                memory: limits.memory_bytes.map(Bytes).into(),
            },
        }
    }
}

impl Containers {
    /// The containers of a pod with this plan. The caller names the `apps`, because a plan need not
    /// list them; `size` returns the size of a container by name.
    pub fn of<'a>(
        plan: &'a Plan,
        apps: impl IntoIterator<Item = &'a str>,
        size: impl Fn(&str) -> Size,
    ) -> Containers {
        let sizes = |names: &[String]| names.iter().map(|name| size(name)).collect();
        let native = plan.native_init().iter();
        let native = native.map(|name| Starting::Init(size(name)));
        let ordered = plan.stages().iter().flat_map(|Stage(names)| names);
        let ordered = ordered.map(|name| match plan.role(name) {
            Role::Init => Starting::Init(size(name)),
            _ => Starting::Sidecar(size(name)),
        });
        Containers {
            starting: native.chain(ordered).collect(),
            apps: apps.into_iter().map(&size).collect(),
            pre_exit: sizes(plan.pre_exit()),
            post_exit: sizes(plan.post_exit()),
            overhead: Size::NOTHING,
        }
    }

    /// The size of the pod at this moment, without overhead.
    pub fn at(&self, moment: Moment) -> Size {
        match moment {
            Moment::Starting(index) => {
                let size = self.starting_sizes().nth(index);
                size.unwrap_or_else(|| self.sidecars())
            }
            Moment::Running => self.sidecars().plus(sum(&self.apps)),
            Moment::PreExit => self.at(Moment::Running).plus(largest(&self.pre_exit)),
            Moment::PostExit => self.sidecars().plus(largest(&self.post_exit)),
            Moment::Sidecars => self.sidecars(),
        }
    }

    pub fn moments(&self) -> impl Iterator<Item = Moment> + use<> {
        let starting = (0..self.starting.len()).map(Moment::Starting);
        starting.chain([
            Moment::Running,
            Moment::PreExit,
            Moment::PostExit,
            Moment::Sidecars,
        ])
    }

    /// The size of the pod at each moment, without overhead.
    pub fn sizes(&self) -> Vec<(Moment, Size)> {
        let starting = self.starting_sizes().enumerate();
        let starting = starting.map(|(index, size)| (Moment::Starting(index), size));
        let later = self.moments().skip(self.starting.len());
        starting
            .chain(later.map(|moment| (moment, self.at(moment))))
            .collect()
    }

    /// The size for the scheduler: the largest that the pod needs at any moment, plus its overhead.
    pub fn effective(&self) -> Size {
        let sizes = self.sizes().into_iter().map(|(_, size)| size);
        sizes.fold(Size::NOTHING, Size::or).plus(self.overhead)
    }

    /// For each container of [`Containers::starting`], the size of the pod at the time when this
    /// container starts. The overhead is not included.
    fn starting_sizes(&self) -> impl Iterator<Item = Size> {
        let mut stay = Size::NOTHING;
        self.starting.iter().map(move |starting| {
            let size = stay.plus(starting.size());
            if let Some(stays) = starting.stays() {
                stay = stay.plus(stays);
            }
            size
        })
    }

    fn sidecars(&self) -> Size {
        let sidecars = self.starting.iter().filter_map(Starting::stays);
        sidecars.fold(Size::NOTHING, Size::plus)
    }
}

impl Starting {
    fn size(&self) -> Size {
        let (Starting::Init(size) | Starting::Sidecar(size)) = self;
        *size
    }

    /// The size of a sidecar, which runs as long as its pod; `None` for an init container.
    fn stays(&self) -> Option<Size> {
        match self {
            Starting::Init(_) => None,
            Starting::Sidecar(size) => Some(*size),
        }
    }
}

/// The size of containers that run side by side.
fn sum(sizes: &[Size]) -> Size {
    sizes.iter().copied().fold(Size::NOTHING, Size::plus)
}

/// The size of containers that run one after another.
fn largest(sizes: &[Size]) -> Size {
    sizes.iter().copied().fold(Size::NOTHING, Size::or)
}
