//! What is valid, but not supported yet: to be refused, never ignored.
//!
//! The two tables are the whole truth: a setting that is in none of them is supported, and what
//! gets built is taken out. They judge what was written. A default is no promise of the pod's
//! author, so one that is not built yet is refused only where it is asked for by name.

use std::collections::BTreeMap;

use super::error::{Entry, PlanError};
use super::key::{ContainerSetting, Key, PodSetting};
use super::settings::{GracePolicy, Settings};
use super::{ContainerPlan, Plan};

/// A setting, and whether what was read of it is missing.
type Row<S, P> = (S, fn(&P) -> bool);

/// Pod-wide settings that are not built, or not for some of their values.
const POD: &[Row<PodSetting, Settings>] = &[
    (PodSetting::PreExit, |_| true),
    (PodSetting::PostExit, |_| true),
    (PodSetting::GraceExtension, |_| true),
    (PodSetting::DeferExitCode, |_| true),
    (PodSetting::GracePolicy, |pod| {
        pod.grace_policy != GracePolicy::Shared
    }),
];

/// Settings of one container that are not built, or not for some of their values.
const CONTAINER: &[Row<ContainerSetting, ContainerPlan>] = &[
    (ContainerSetting::LivenessProbe, |_| true),
    (ContainerSetting::TerminationHook, |_| true),
    (ContainerSetting::GracePeriod, |_| true),
];

/// Refuses the first of the annotations, of which `plan` was read, that is not supported yet.
pub(super) fn check(plan: &Plan, annotations: &BTreeMap<String, String>) -> Result<(), PlanError> {
    for (key, value) in annotations {
        let entry = Entry { key, value };
        let missing = match Key::read(entry) {
            // Not usher's, or unknown, which has been judged already.
            Ok(None) | Err(_) => false,
            Ok(Some(Key::Pod(given))) => POD
                .iter()
                .any(|(setting, missing)| *setting == given && missing(plan.settings())),
            Ok(Some(Key::Container(given, name))) => CONTAINER
                .iter()
                .any(|(setting, missing)| *setting == given && missing(plan.container(name))),
        };
        if missing {
            return Err(entry.not_supported_yet());
        }
    }
    Ok(())
}
