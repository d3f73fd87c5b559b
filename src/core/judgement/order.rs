//! The start order according to the manifest: which containers each container waits for.

use std::collections::BTreeMap;

use crate::manifest::Pod;
use crate::plan::{Plan, Stage, StartMode};

use super::start::Held;

/// Maximum number of names of a list that are shown. Further names are only counted.
const SHOWN_NAMES: usize = 32;
/// Maximum total size of the shown names, in bytes.
const SHOWN_BYTES: usize = 1 << 10;

/// The first names of a list; the last item tells how many more there are.
pub(super) fn few<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut names = names.into_iter();
    let mut shown = Vec::new();
    let mut bytes = 0_usize;
    for name in names.by_ref() {
        bytes = bytes.saturating_add(name.len());
        if shown.len() == SHOWN_NAMES || bytes > SHOWN_BYTES {
            let more = names.count().saturating_add(1);
            shown.push(format!("and {more} more"));
            break;
        }
        shown.push(name.to_owned());
    }
    shown
}

/// The first names of a list, joined by commas.
pub(super) fn few_joined<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    few(names).join(", ")
}

/// The init containers and sidecars of a plan in start order.
pub(super) struct StartOrder<'a> {
    plan: &'a Plan,
    pod: &'a Pod,
    staged: Vec<Staged<'a>>,
    /// The index in `staged` at which a container's stage begins, by the container's name. The
    /// containers of a stage start together.
    begins: BTreeMap<&'a str, usize>,
}

/// An init container or a sidecar.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staged<'a> {
    pub(super) name: &'a str,
    /// Index of the container among all containers of the manifest; `None` if the manifest does not
    /// have it.
    place: Option<usize>,
    is_optional: bool,
}

/// The containers that another container waits for.
pub(super) struct Waits<'a> {
    pub(super) names: Vec<&'a str>,
    /// True if kubelet creates one of `names` only after the waiting container, according to the
    /// manifest.
    is_for_later: bool,
    /// True if the waiting container is in the manifest's `initContainers`.
    is_init: bool,
}

impl<'a> StartOrder<'a> {
    pub(super) fn of(plan: &'a Plan, pod: &'a Pod) -> StartOrder<'a> {
        let mut order = StartOrder {
            plan,
            pod,
            staged: Vec::new(),
            begins: BTreeMap::new(),
        };
        for Stage(names) in plan.stages() {
            let begin = order.staged.len();
            for name in names {
                order.begins.insert(name, begin);
                order.staged.push(Staged {
                    name,
                    place: pod.place_among_all(name),
                    is_optional: plan.is_optional(name),
                });
            }
        }
        order
    }

    pub(super) fn all(&self) -> &[Staged<'a>] {
        &self.staged
    }

    /// The containers of all stages before the stage of the container `name`.
    pub(super) fn before(&self, name: &str) -> &[Staged<'a>] {
        let begin = self.begins.get(name).copied().unwrap_or_default();
        self.staged.get(..begin).unwrap_or_default()
    }

    /// The containers of `before` that the container `name` waits for when kubelet starts it. An
    /// optional container is among them only if kubelet has created it before.
    pub(super) fn waits(&self, name: &str, before: &[Staged<'a>]) -> Waits<'a> {
        let own = self.pod.place_among_all(name);
        let waited_for = before
            .iter()
            .filter(|it| !it.is_optional || !it.is_after(own));
        let mut waits = Waits {
            names: Vec::new(),
            is_for_later: false,
            is_init: self.pod.has_init_container(name),
        };
        for staged in waited_for {
            waits.names.push(staged.name);
            waits.is_for_later |= staged.is_after(own);
        }
        waits
    }

    /// The waits of a container that kubelet creates after all others: it waits for every init
    /// container and sidecar.
    pub(super) fn waits_of_last(&self) -> Waits<'a> {
        let mut staged = self.staged.iter();
        Waits {
            names: self.staged.iter().map(|it| it.name).collect(),
            is_for_later: staged.any(|it| it.place.is_none()),
            is_init: false,
        }
    }

    /// Returns how usher holds a container that waits for the containers in `waits`. Kubelet starts
    /// the containers in the order of the manifest, and waits for the answer to each Start. After
    /// an init container, kubelet creates nothing until the init container has exited.
    pub(super) fn held(&self, waits: &Waits<'_>) -> Held {
        if waits.names.is_empty() {
            return Held::No;
        }
        match self.plan.settings().start_mode {
            _ if waits.is_init && waits.is_for_later => Held::InVain,
            StartMode::Block => Held::Blocked,
            StartMode::Auto if !waits.is_for_later => Held::Blocked,
            StartMode::Auto | StartMode::Hold => Held::AtOnce,
        }
    }
}

impl Staged<'_> {
    /// True if kubelet creates this container after the container at index `place` of the manifest.
    pub(super) fn is_after(&self, place: Option<usize>) -> bool {
        self.place.is_none() || self.place > place
    }

    /// True if this container is optional, and kubelet creates it only after the container at index
    /// `place`, which therefore does not wait for it.
    pub(super) fn is_missed_at(&self, place: Option<usize>) -> bool {
        self.is_optional && self.is_after(place)
    }
}
