//! Reads annotations into a plan: first each key alone, then all keys together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::container::{ContainerPlan, check_use};
use super::error::{Entry, Found, MAX_TOTAL_BYTES, PlanError, Problem, Refusals, quote};
use super::key::{ContainerSetting, Key, PodSetting};
use super::list::MAX_NAMES;
use super::pattern::Roles;
use super::role::Role;
use super::role_assignment::{Lists, RoleAssignment, has_optional_names, is_list};
use super::rules::{Reading, Rules, UnknownKeys, Unsaid};
use super::settings::{GracePolicy, Settings, parse_grace_extension};
use super::{Plan, duration, list};

/// Maximum number of ignored keys that are reported.
const MAX_IGNORED: usize = 8;

/// The annotations read so far; each value is valid by itself.
#[derive(Debug, Default)]
pub(super) struct Draft<'a> {
    given: bool,
    settings: Settings,
    unsaid: Unsaid,
    /// The roles that the node's rules give to containers in no list of the pod.
    roles: Roles,
    /// The pod-wide grace period as it was written.
    grace_period: Option<Entry<'a>>,
    /// The grace policy from the pod's own annotations.
    grace_policy: Option<GracePolicy>,
    lists: Lists<'a>,
    containers: BTreeMap<String, ContainerPlan>,
    /// Each setting of a container, with the container's name and the annotation.
    uses: Vec<(ContainerSetting, &'a str, Entry<'a>)>,
    /// True if a list was refused, or if a refused key may be the misspelled key of a list.
    lacks_lists: bool,
}

impl<'a> Draft<'a> {
    /// Reads a plan from annotations, under a node's rules.
    pub(super) fn read(
        annotations: &'a BTreeMap<String, String>,
        rules: &Rules,
        mut found: Found,
    ) -> Result<Reading, Refusals> {
        let mut draft = Draft {
            settings: rules.defaults.clone(),
            unsaid: rules.unsaid,
            roles: match rules.enabled {
                true => rules.roles.clone(),
                false => Roles::default(),
            },
            ..Draft::default()
        };
        let mut ignored = Vec::new();
        let mut total = 0_usize;
        for (key, value) in annotations {
            if found.is_full() {
                break;
            }
            let entry = Entry { key, value };
            let key = match Key::read(entry) {
                Ok(Some(key)) => key,
                Ok(None) => continue,
                Err(unknown @ PlanError::UnknownSetting { .. })
                    if rules.unknown_keys == UnknownKeys::Warn =>
                {
                    if ignored.len() < MAX_IGNORED {
                        ignored.push(unknown);
                    }
                    continue;
                }
                Err(error) => {
                    // The refused key may be the misspelled key of a list (`usher/sidecar`).
                    draft.lacks_lists = true;
                    found.ok::<()>(Err(error));
                    continue;
                }
            };
            draft.given = true;
            total = total.saturating_add(entry.bytes());
            let fits = entry.check_length();
            let fits = fits.and_then(|()| check_total(total, entry));
            if found.ok(fits).is_none() {
                draft.lacks_lists = true;
                match total > MAX_TOTAL_BYTES {
                    true => break,
                    false => continue,
                }
            }
            let read = match key {
                Key::Pod(setting) => draft.set(setting, entry),
                Key::Container(setting, name) => draft.set_container(setting, name, entry),
            };
            if found.ok(read).is_none() {
                draft.lacks_lists |= matches!(key, Key::Pod(setting) if is_list(setting));
            }
        }
        let plan = draft.finish(&mut found);
        let plan = found.nothing_or(plan)?;
        Ok(Reading {
            plan,
            ignored,
            bytes: total,
        })
    }

    fn set(&mut self, setting: PodSetting, entry: Entry<'a>) -> Result<(), PlanError> {
        let settings = &mut self.settings;
        match setting {
            PodSetting::Init
            | PodSetting::NativeInit
            | PodSetting::Sidecars
            | PodSetting::Apps
            | PodSetting::PreExit
            | PodSetting::PostExit
            | PodSetting::StartupOrder
            | PodSetting::Essential => {
                let names = entry.read(|text| list::parse(text, has_optional_names(setting)))?;
                self.lists.insert(setting, (entry, names));
            }
            PodSetting::StartMode => settings.start_mode = entry.word()?,
            PodSetting::StartupTimeout => settings.startup_timeout = entry.read(duration::parse)?,
            PodSetting::RestartPolicy => settings.restart_policy = entry.word()?,
            PodSetting::GracePeriod => {
                settings.grace_period = Some(entry.read(duration::parse)?);
                self.grace_period = Some(entry);
            }
            PodSetting::GracePolicy => {
                settings.grace_policy = entry.word()?;
                self.grace_policy = Some(settings.grace_policy);
            }
            PodSetting::SidecarStopOrder => settings.sidecar_stop_order = entry.word()?,
            PodSetting::SidecarExitCode => settings.sidecar_exit_code = entry.word()?,
            PodSetting::DeferExitCode => settings.defer_exit_code = entry.word()?,
            PodSetting::TerminationWindow => {
                settings.termination_window = entry.read(duration::parse)?;
            }
            PodSetting::GraceExtension => {
                let usual = self.unsaid.grace_extension;
                let read = |text| parse_grace_extension(text, usual);
                settings.grace_extension = Some(entry.read(read)?);
            }
            PodSetting::OomScore => settings.oom_score = entry.word()?,
            PodSetting::CgroupSizing => settings.cgroup_sizing = entry.word()?,
        }
        Ok(())
    }

    fn set_container(
        &mut self,
        setting: ContainerSetting,
        name: &'a str,
        entry: Entry<'a>,
    ) -> Result<(), PlanError> {
        set_container(&mut self.containers, setting, name, entry, &self.unsaid)?;
        self.uses.push((setting, name, entry));
        Ok(())
    }

    /// Combines all settings, and refuses contradictions. If a list could not be read, the roles of
    /// containers are unknown, so nothing that depends on roles is checked.
    fn finish(mut self, found: &mut Found) -> Plan {
        let essential = self.lists.remove(&PodSetting::Essential);
        let assignment = match self.lacks_lists || found.is_full() {
            true => None,
            false => found.ok(RoleAssignment::from_lists(self.lists, self.roles)),
        };
        if let Some(assignment) = &assignment {
            for (setting, name, entry) in self.uses {
                if found.is_full() {
                    break;
                }
                found.ok(check_use(setting, name, assignment, entry));
            }
            if let Some((entry, names)) = &essential {
                let fits = check_essential(&names.all, assignment);
                found.ok(fits.map_err(|problem| entry.invalid(problem)));
            }
        }
        if let Some((_, names)) = essential {
            self.settings.essential = BTreeSet::from_iter(names.all);
        }
        if let (Some(entry), Some(policy)) = (self.grace_period, self.grace_policy) {
            let fits = check_grace_period(policy, self.settings.grace_period);
            found.ok(fits.map_err(|problem| entry.invalid(problem)));
        }
        Plan {
            given: self.given,
            assignment: assignment.unwrap_or_default(),
            containers: self.containers,
            settings: self.settings,
        }
    }
}

impl Plan {
    /// Adds a container's setting to the plan, after the same checks as for an annotation. `bytes`
    /// is the size of the annotations so far ([`Reading::bytes`]). A refused setting changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// The reason why the setting is refused.
    pub fn say(
        &mut self,
        setting: ContainerSetting,
        name: &str,
        value: &str,
        bytes: usize,
        rules: &Rules,
    ) -> Result<(), PlanError> {
        let key = setting.key(name);
        let entry = Entry { key: &key, value };
        Key::read(entry)?;
        entry.check_length()?;
        check_total(bytes.saturating_add(entry.bytes()), entry)?;
        let before = self.containers.get(name).cloned();
        let unsaid = &rules.unsaid;
        let said = set_container(&mut self.containers, setting, name, entry, unsaid)
            .and_then(|()| check_use(setting, name, &self.assignment, entry))
            .and_then(|()| rules.check_container(setting, self.container(name), entry));
        self.given |= said.is_ok();
        if said.is_err() {
            match before {
                Some(before) => self.containers.insert(name.to_owned(), before),
                None => self.containers.remove(name),
            };
        }
        said
    }
}

fn check_total(bytes: usize, entry: Entry<'_>) -> Result<(), PlanError> {
    if bytes <= MAX_TOTAL_BYTES {
        return Ok(());
    }
    Err(entry.invalid(Problem::new(format!(
        "is one of more than {MAX_TOTAL_BYTES} bytes of usher annotations; expected at most \
         {MAX_TOTAL_BYTES} in all"
    ))))
}

fn set_container(
    containers: &mut BTreeMap<String, ContainerPlan>,
    setting: ContainerSetting,
    name: &str,
    entry: Entry<'_>,
    unsaid: &Unsaid,
) -> Result<(), PlanError> {
    if containers.len() == MAX_NAMES && !containers.contains_key(name) {
        return Err(entry.invalid(Problem::new(format!(
            "is for one container more than {MAX_NAMES}; expected settings of at most {MAX_NAMES}"
        ))));
    }
    let container = containers.entry(name.to_owned()).or_default();
    container.set(setting, entry, unsaid)
}

fn check_essential(names: &[String], assignment: &RoleAssignment) -> Result<(), Problem> {
    let useless = |name: &&String| matches!(assignment.role(name), Role::Guest | Role::Defer(_));
    match names.iter().find(useless) {
        None => Ok(()),
        Some(name) => Err(Problem::new(format!(
            "lists {}, whose role is {}; expected names of init, native-init, sidecar and app containers",
            quote(name),
            assignment.role(name)
        ))),
    }
}

/// Checks that the grace period is long enough for a grace policy that the pod itself sets. (If the
/// policy is only the node's default, a pod with a shorter grace period gets another policy.)
fn check_grace_period(policy: GracePolicy, period: Option<Duration>) -> Result<(), Problem> {
    let least = policy.least();
    if period.is_some_and(|period| period < least) {
        return Err(Problem::new(format!(
            "is too short for usher/grace-policy {policy}; expected {least:?} or more"
        )));
    }
    Ok(())
}
