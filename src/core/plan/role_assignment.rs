//! The role of each container of a pod, the start order, and the containers that are present.
//!
//! An optional name counts as unlisted until a container of that name is created. From then on it
//! counts as listed. So no list that this module returns contains the name of an absent optional
//! container. Code that reads the lists need not check for absent containers. The same applies to
//! sidecars that only the node's rules name.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::error::{Entry, PlanError, Problem, quote};
use super::key::PodSetting;
use super::list::{MAX_NAMES, Names};
use super::pattern::Roles;
use super::role::{DeferTurn, Origin, Role, Stage};

/// All lists of roles, free of contradictions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct RoleAssignment {
    /// The roles of all listed names.
    roles: BTreeMap<String, Role>,
    pub(super) native_init: Vec<String>,
    /// The listed apps; `None` if no app is listed, and never an empty set.
    pub(super) apps: Option<BTreeSet<String>>,
    /// The lists in force. An optional name is left out while its container is absent. A sidecar
    /// that only the node's rules name is added once its container is present.
    pub(super) order: Order,
    /// True if the author has set the start order.
    is_serial: bool,
    /// The roles that the node's rules give to containers in no list of the pod.
    of_node: Roles,
    /// Present if at least one listed name is optional, or if the node's rules gave a role to a
    /// present container.
    conditional: Option<Box<Conditional>>,
}

/// The lists whose order matters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) init: Vec<String>,
    pub(super) sidecars: Vec<String>,
    pub(super) pre_exit: Vec<String>,
    pub(super) post_exit: Vec<String>,
    pub(super) stages: Vec<Stage>,
}

/// Optional names, and names of sidecars from the node's rules. `RoleAssignment::order` contains
/// such a name only while its container is present.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Conditional {
    /// The lists as they were written.
    written: Order,
    optional: BTreeSet<String>,
    /// Optional names whose containers are present.
    come: BTreeSet<String>,
    /// Sidecars that are present and that only the node's rules name, in the order of their
    /// creation.
    of_node: Vec<String>,
}

/// The lists of an annotated pod, each with the annotation it came from.
pub(super) type Lists<'a> = BTreeMap<PodSetting, (Entry<'a>, Names)>;

const ROLE_LISTS: [(PodSetting, Role); 6] = [
    (PodSetting::Init, Role::Init),
    (PodSetting::NativeInit, Role::NativeInit),
    (PodSetting::Sidecars, Role::Sidecar),
    (PodSetting::Apps, Role::App),
    (PodSetting::PreExit, Role::Defer(DeferTurn::PreExit)),
    (PodSetting::PostExit, Role::Defer(DeferTurn::PostExit)),
];

/// All settings that are lists of containers; those that give a role come first.
pub(crate) fn lists() -> impl Iterator<Item = PodSetting> {
    let others = [PodSetting::StartupOrder, PodSetting::Essential];
    ROLE_LISTS
        .into_iter()
        .map(|(setting, _)| setting)
        .chain(others)
}

pub(super) fn is_list(setting: PodSetting) -> bool {
    lists().any(|list| list == setting)
}

/// The lists that give a role for which `holds` is true.
pub(super) fn lists_of(holds: impl Fn(Role) -> bool) -> impl Iterator<Item = PodSetting> {
    let lists = ROLE_LISTS.into_iter();
    let lists = lists.filter(move |(_, role)| holds(*role));
    lists.map(|(setting, _)| setting)
}

pub(crate) fn gives_a_role(setting: PodSetting) -> bool {
    role_of_list(setting).is_some()
}

/// The role that a list gives its names.
pub(crate) fn role_of_list(setting: PodSetting) -> Option<Role> {
    let mut lists = ROLE_LISTS.into_iter();
    lists.find_map(|(list, role)| (list == setting).then_some(role))
}

/// True if this list may have optional names (`NAME?`). Optional names are allowed if other
/// containers wait for the listed ones, or if the listed ones run one after another in the
/// termination.
pub(super) fn has_optional_names(setting: PodSetting) -> bool {
    use PodSetting::{Init, PostExit, PreExit, Sidecars};
    matches!(setting, Init | Sidecars | PreExit | PostExit)
}

impl RoleAssignment {
    /// Assigns the roles of the lists.
    ///
    /// # Errors
    ///
    /// A name in two lists that give a role, or a start order that does not have exactly the init
    /// and sidecar containers.
    pub(super) fn from_lists(
        mut lists: Lists<'_>,
        of_node: Roles,
    ) -> Result<RoleAssignment, PlanError> {
        let roles = assign(&lists)?;
        let order = lists.remove(&PodSetting::StartupOrder);
        let mut optional = BTreeSet::new();
        let mut take = |setting| {
            let (_, names) = lists.remove(&setting)?;
            optional.extend(names.optional);
            Some(names.all)
        };
        let init = take(PodSetting::Init).unwrap_or_default();
        let sidecars = take(PodSetting::Sidecars).unwrap_or_default();
        let native_init = take(PodSetting::NativeInit).unwrap_or_default();
        let apps = take(PodSetting::Apps).map(BTreeSet::from_iter);
        let pre_exit = take(PodSetting::PreExit).unwrap_or_default();
        let post_exit = take(PodSetting::PostExit).unwrap_or_default();
        let is_serial = order.is_some();
        let stages = match order {
            Some((entry, order)) => {
                check_order(&order.all, &roles, &init, &sidecars)
                    .map_err(|problem| entry.invalid(problem))?;
                let names = order.all.into_iter();
                names.map(|name| Stage(vec![name])).collect()
            }
            None => default_stages(&init, &sidecars),
        };
        let mut assignment = RoleAssignment {
            roles,
            native_init,
            apps,
            order: Order {
                init,
                sidecars,
                pre_exit,
                post_exit,
                stages,
            },
            is_serial,
            of_node,
            conditional: None,
        };
        if !optional.is_empty() {
            assignment.conditional().optional = optional;
            assignment.settle();
        }
        Ok(assignment)
    }

    pub(super) fn role(&self, name: &str) -> Role {
        match (self.roles.get(name), &self.apps) {
            (Some(role), _) => *role,
            (None, _) if self.of_node.is_sidecar(name) => Role::Sidecar,
            (None, Some(_)) => Role::Guest,
            (None, None) => Role::App,
        }
    }

    /// All names in the lists of roles, each with its list and its role.
    pub(super) fn listed(&self) -> impl Iterator<Item = (&str, PodSetting, Role)> {
        ROLE_LISTS.into_iter().flat_map(|(setting, role)| {
            let names = self.roles.iter();
            let names = names.filter(move |(_, its)| **its == role);
            names.map(move |(name, _)| (name.as_str(), setting, role))
        })
    }

    pub(super) fn origin(&self, name: &str) -> Origin {
        match self.roles.contains_key(name) {
            true => Origin::List,
            false if self.of_node.is_sidecar(name) => Origin::Node,
            false => Origin::Default,
        }
    }

    /// True if the node's roles apply to pods without annotations, too.
    pub(super) fn is_for_all_pods(&self) -> bool {
        self.of_node.are_everywhere()
    }

    /// True if a sidecar is present that only the node's rules name.
    pub(super) fn has_one_of_node(&self) -> bool {
        let conditional = self.conditional.as_ref();
        conditional.is_some_and(|names| !names.of_node.is_empty())
    }

    /// All names in the annotations, even names of containers that the pod lacks.
    pub(super) fn written(&self) -> &Order {
        self.conditional
            .as_ref()
            .map_or(&self.order, |names| &names.written)
    }

    pub(super) fn is_optional(&self, name: &str) -> bool {
        let conditional = self.conditional.as_ref();
        conditional.is_some_and(|names| names.optional.contains(name))
            || self.origin(name) == Origin::Node
    }

    pub(super) fn mark_all_present<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let mut is_new = false;
        for name in names {
            is_new |= self.note(name);
        }
        if is_new {
            self.settle();
        }
    }

    /// Records that a container is present. Returns true if this adds the container's name to a
    /// list.
    fn note(&mut self, name: &str) -> bool {
        let is_of_node = self.origin(name) == Origin::Node;
        if !is_of_node && !self.is_optional(name) {
            return false;
        }
        let names = self.conditional();
        match is_of_node {
            // The number of names is limited, because a caller may create containers with ever new
            // names.
            true if names.of_node.len() == MAX_NAMES => false,
            true if names.of_node.iter().any(|other| other == name) => false,
            true => {
                names.of_node.push(name.to_owned());
                true
            }
            false => names.come.insert(name.to_owned()),
        }
    }

    /// True if no optional container is present.
    pub(super) fn is_as_written(&self) -> bool {
        let conditional = self.conditional.as_ref();
        conditional.is_none_or(|names| names.come.is_empty() && names.of_node.is_empty())
    }

    pub(super) fn forget_who_came(&mut self) {
        let Some(names) = &mut self.conditional else {
            return;
        };
        names.come.clear();
        names.of_node.clear();
        self.settle();
        // Without optional names, `conditional` is `None` again, as before the first Create.
        self.conditional.take_if(|names| names.optional.is_empty());
    }

    fn conditional(&mut self) -> &mut Conditional {
        self.conditional.get_or_insert_with(|| {
            Box::new(Conditional {
                written: self.order.clone(),
                ..Conditional::default()
            })
        })
    }

    /// Rebuilds the lists from the names that are present.
    fn settle(&mut self) {
        let Some(names) = &self.conditional else {
            return;
        };
        let mut order = names.written.clone();
        let mut has_a_stage = !self.is_serial && !order.sidecars.is_empty();
        for name in &names.of_node {
            order.sidecars.push(name.clone());
            match order.stages.last_mut().filter(|_| has_a_stage) {
                Some(Stage(last)) => last.push(name.clone()),
                None => order.stages.push(Stage(vec![name.clone()])),
            }
            has_a_stage = true;
        }
        order.retain(|name| names.come.contains(name) || !names.optional.contains(name));
        self.order = order;
    }
}

impl Order {
    fn retain(&mut self, is_there: impl Fn(&String) -> bool) {
        for list in [
            &mut self.init,
            &mut self.sidecars,
            &mut self.pre_exit,
            &mut self.post_exit,
        ] {
            list.retain(&is_there);
        }
        for Stage(names) in &mut self.stages {
            names.retain(&is_there);
        }
        self.stages.retain(|Stage(names)| !names.is_empty());
    }
}

fn assign(lists: &Lists<'_>) -> Result<BTreeMap<String, Role>, PlanError> {
    let mut roles = BTreeMap::new();
    for (setting, role) in ROLE_LISTS {
        let Some((entry, names)) = lists.get(&setting) else {
            continue;
        };
        for name in &names.all {
            let Some(other) = roles.insert(name.clone(), role) else {
                continue;
            };
            let other = ROLE_LISTS.iter().find(|(_, role)| *role == other);
            let other = other.map_or_else(String::new, |(setting, _)| setting.key());
            return Err(entry.invalid(Problem::new(format!(
                "lists {}, and so does {other}; expected each name in one role",
                quote(name)
            ))));
        }
    }
    Ok(roles)
}

/// Checks that `order` has exactly the init and sidecar containers. The parser has already refused
/// duplicates.
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
