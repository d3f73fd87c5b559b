//! Who is who in a pod, and in which order they start.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::error::{Entry, PlanError, Problem, quote};
use super::key::PodSetting;

/// What a container is to its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Runs to completion before what comes after it.
    Init,
    /// An init container of the caller's own: it knows when to start it.
    NativeInit,
    /// Started before the apps, stopped after them.
    Sidecar,
    /// What the pod is there for.
    App,
    /// Runs to completion when the pod terminates.
    Defer(DeferTurn),
    /// None of our business.
    Guest,
}

/// When a defer container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeferTurn {
    /// Before the apps are stopped.
    PreExit,
    /// After the apps have stopped.
    PostExit,
}

/// Containers that are started side by side, once those of the stage before have done their part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stage(pub Vec<String>);

/// All lists of roles, free of contradictions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Cast {
    roles: BTreeMap<String, Role>,
    pub(super) init: Vec<String>,
    pub(super) native_init: Vec<String>,
    pub(super) sidecars: Vec<String>,
    /// Never an empty set.
    pub(super) apps: Option<BTreeSet<String>>,
    pub(super) pre_exit: Vec<String>,
    pub(super) post_exit: Vec<String>,
    pub(super) stages: Vec<Stage>,
}

/// The lists of an annotated pod, each with the annotation it came from.
pub(super) type Lists<'a> = BTreeMap<PodSetting, (Entry<'a>, Vec<String>)>;

/// The lists that give a role.
const CASTING: [(PodSetting, Role); 6] = [
    (PodSetting::Init, Role::Init),
    (PodSetting::NativeInit, Role::NativeInit),
    (PodSetting::Sidecars, Role::Sidecar),
    (PodSetting::Apps, Role::App),
    (PodSetting::PreExit, Role::Defer(DeferTurn::PreExit)),
    (PodSetting::PostExit, Role::Defer(DeferTurn::PostExit)),
];

// === impl Role ===

impl Role {
    /// The words of the annotation contract; both turns of defers have one.
    pub(super) const WORDS: [(Role, &'static str); 6] = [
        (Role::Init, "init"),
        (Role::NativeInit, "native-init"),
        (Role::Sidecar, "sidecar"),
        (Role::App, "app"),
        (Role::Defer(DeferTurn::PostExit), "defer"),
        (Role::Guest, "guest"),
    ];
}

/// The word of the annotation contract; `defer` for both turns.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Role::WORDS.iter().find(|(role, _)| role == self);
        f.pad(word.map_or("defer", |(_, word)| word))
    }
}

/// The setting that lists such containers.
impl fmt::Display for DeferTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeferTurn::PreExit => "pre-exit",
            DeferTurn::PostExit => "post-exit",
        })
    }
}

// === impl Cast ===

impl Cast {
    /// # Errors
    ///
    /// A name in two lists that give a role; a start order that is not one of exactly the init and
    /// sidecar containers.
    pub(super) fn from_lists(mut lists: Lists<'_>) -> Result<Cast, PlanError> {
        let roles = assign(&lists)?;
        let order = lists.remove(&PodSetting::StartupOrder);
        let mut take = |setting| lists.remove(&setting).map(|(_, names)| names);
        let init = take(PodSetting::Init).unwrap_or_default();
        let sidecars = take(PodSetting::Sidecars).unwrap_or_default();
        let stages = match order {
            Some((entry, order)) => {
                check_order(&order, &roles, &init, &sidecars)
                    .map_err(|problem| entry.invalid(problem))?;
                order.into_iter().map(|name| Stage(vec![name])).collect()
            }
            None => default_stages(&init, &sidecars),
        };
        Ok(Cast {
            native_init: take(PodSetting::NativeInit).unwrap_or_default(),
            apps: take(PodSetting::Apps).map(BTreeSet::from_iter),
            pre_exit: take(PodSetting::PreExit).unwrap_or_default(),
            post_exit: take(PodSetting::PostExit).unwrap_or_default(),
            roles,
            init,
            sidecars,
            stages,
        })
    }

    pub(super) fn role(&self, name: &str) -> Role {
        let unlisted = if self.apps.is_some() {
            Role::Guest
        } else {
            Role::App
        };
        self.roles.get(name).copied().unwrap_or(unlisted)
    }
}

fn assign(lists: &Lists<'_>) -> Result<BTreeMap<String, Role>, PlanError> {
    let mut roles = BTreeMap::new();
    for (setting, role) in CASTING {
        let Some((entry, names)) = lists.get(&setting) else {
            continue;
        };
        for name in names {
            let Some(other) = roles.insert(name.clone(), role) else {
                continue;
            };
            let other = CASTING.iter().find(|(_, role)| *role == other);
            let other = other.map_or_else(String::new, |(setting, _)| setting.to_string());
            return Err(entry.invalid(Problem::new(format!(
                "lists {}, and so does usher/{other}; expected each name in one role",
                quote(name)
            ))));
        }
    }
    Ok(roles)
}

/// `order` has no name twice already.
fn check_order(
    order: &[String],
    roles: &BTreeMap<String, Role>,
    init: &[String],
    sidecars: &[String],
) -> Result<(), Problem> {
    const EXPECTED: &str = "expected every init and sidecar container, and no other";
    let is_ordered = |name: &&String| matches!(roles.get(*name), Some(Role::Init | Role::Sidecar));
    if let Some(stranger) = order.iter().find(|name| !is_ordered(name)) {
        return Err(Problem::new(format!(
            "lists {}; {EXPECTED}",
            quote(stranger)
        )));
    }
    let order: BTreeSet<&String> = order.iter().collect();
    if let Some(missing) = init
        .iter()
        .chain(sidecars)
        .find(|name| !order.contains(name))
    {
        return Err(Problem::new(format!(
            "leaves out {}; {EXPECTED}",
            quote(missing)
        )));
    }
    Ok(())
}

/// Init containers one after another, then all sidecars at once, as in the KEP-753 draft.
fn default_stages(init: &[String], sidecars: &[String]) -> Vec<Stage> {
    let serial = init.iter().map(|name| Stage(vec![name.clone()]));
    let parallel = (!sidecars.is_empty()).then(|| Stage(sidecars.to_vec()));
    serial.chain(parallel).collect()
}
