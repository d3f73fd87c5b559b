//! Capabilities and the filter of system calls.

use std::collections::HashSet;

use caps::{CapSet, CapsHashSet};
use libcontainer::capabilities::{self, CapabilityExt};
use libcontainer::oci_spec::runtime::{
    Capabilities, Capability, LinuxCapabilities, LinuxCapabilitiesBuilder, LinuxSeccomp,
    LinuxSeccompArgBuilder, LinuxSeccompOperator,
};
use libcontainer::seccomp;
use libcontainer::syscall::syscall::SyscallType;

use nix::unistd::setgroups;

use crate::error::Failure;

/// What changes mounts and loads a filter, and takes capabilities away afterwards.
const TO_FINISH: [Capability; 2] = [Capability::SysAdmin, Capability::Setpcap];

/// What of wanted capabilities can be given: what the node does not have itself is left out, as runc does it. Who
/// wants none gets none, while libcontainer would leave all.
///
/// # Errors
///
/// If the kernel does not say what there is.
pub fn given(wanted: Option<&LinuxCapabilities>) -> Result<LinuxCapabilities, Failure> {
    let own = |set| caps::read(None, set).map_err(|error| Failure::library(&error));
    let (bounding, permitted) = (own(CapSet::Bounding)?, own(CapSet::Permitted)?);
    let of = |wanted: Option<&Option<Capabilities>>, own: &CapsHashSet| -> Capabilities {
        let own: HashSet<Capability> = own
            .iter()
            .map(|&capability| Capability::from_cap(capability))
            .collect();
        let wanted = wanted.and_then(Option::as_ref);
        wanted
            .map(|wanted| wanted.intersection(&own).copied().collect())
            .unwrap_or_default()
    };
    let built = LinuxCapabilitiesBuilder::default()
        .bounding(of(wanted.map(LinuxCapabilities::bounding), &bounding))
        .effective(of(wanted.map(LinuxCapabilities::effective), &permitted))
        .permitted(of(wanted.map(LinuxCapabilities::permitted), &permitted))
        .inheritable(of(wanted.map(LinuxCapabilities::inheritable), &permitted))
        .ambient(of(wanted.map(LinuxCapabilities::ambient), &permitted))
        .build();
    built.map_err(|error| Failure::library(&error))
}

/// What a process has besides until it is ready to wait, and not when it waits or its program is executed.
pub fn to_finish(rights: &LinuxCapabilities) -> LinuxCapabilities {
    let mut more = rights.clone();
    let with = |set: &Option<Capabilities>| {
        let mut set = set.clone().unwrap_or_default();
        set.extend(TO_FINISH);
        Some(set)
    };
    more.set_bounding(with(rights.bounding()));
    more.set_effective(with(rights.effective()));
    more.set_permitted(with(rights.permitted()));
    more
}

/// Takes from this process the groups of who has called it: libcontainer leaves them to a process that is to have none.
///
/// # Errors
///
/// If the kernel refuses it.
pub fn leave_groups() -> Result<(), Failure> {
    setgroups(&[]).map_err(|error| Failure::Library(format!("supplementary groups: {error}")))
}

/// Puts this process, and all that comes of it, under a filter.
///
/// # Errors
///
/// If the kernel or libseccomp refuses it.
pub fn filter(rules: &LinuxSeccomp) -> Result<(), Failure> {
    let rules = &with_masks_in_place(rules)?;
    // Only an agent gets a descriptor, and those are refused.
    seccomp::initialize_seccomp(rules)
        .map(drop)
        .map_err(|error| Failure::library(&error))
}

/// libcontainer takes the mask of a comparison for its value, and the value for the mask.
fn with_masks_in_place(rules: &LinuxSeccomp) -> Result<LinuxSeccomp, Failure> {
    let mut rules = rules.clone();
    let mut syscalls = rules.syscalls().clone().unwrap_or_default();
    for syscall in &mut syscalls {
        let args = syscall.args().iter().flatten().map(|arg| {
            let is_masked = arg.op() == LinuxSeccompOperator::ScmpCmpMaskedEq;
            let (value, two) = (arg.value(), arg.value_two());
            let (value, two) = match is_masked {
                true => (two.unwrap_or_default(), Some(value)),
                false => (value, two),
            };
            let built = LinuxSeccompArgBuilder::default()
                .index(arg.index())
                .op(arg.op())
                .value(value);
            match two {
                Some(two) => built.value_two(two),
                None => built,
            }
            .build()
        });
        let args = args
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| Failure::library(&error))?;
        syscall.set_args((!args.is_empty()).then_some(args));
    }
    rules.set_syscalls(Some(syscalls));
    Ok(rules)
}

/// Leaves this process no other capabilities.
///
/// # Errors
///
/// If the kernel refuses it.
pub fn restrict(rights: &LinuxCapabilities) -> Result<(), Failure> {
    let syscall = SyscallType::Linux.create_syscall();
    capabilities::drop_privileges(rights, syscall.as_ref())
        .map_err(|error| Failure::library(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(rights: &LinuxCapabilities) -> [Capabilities; 5] {
        [
            rights.bounding(),
            rights.effective(),
            rights.permitted(),
            rights.inheritable(),
            rights.ambient(),
        ]
        .map(|set| set.clone().expect("a set, if only an empty one"))
    }

    #[test]
    fn who_wants_no_capabilities_gets_none() {
        for set in sets(&given(None).unwrap()) {
            assert!(set.is_empty(), "{set:?}");
        }
    }

    #[test]
    fn nobody_gets_more_than_is_wanted_but_to_finish() {
        let wanted = Capabilities::from([Capability::Chown, Capability::Kill]);
        let wanted = LinuxCapabilitiesBuilder::default()
            .bounding(wanted.clone())
            .effective(wanted.clone())
            .permitted(wanted.clone())
            .inheritable(Capabilities::new())
            .ambient(Capabilities::new())
            .build()
            .unwrap();
        let rights = given(Some(&wanted)).unwrap();
        for (given, wanted) in sets(&rights).into_iter().zip(sets(&wanted)) {
            assert!(given.is_subset(&wanted), "{given:?}");
        }
        let [bounding, effective, permitted, inheritable, ambient] = sets(&to_finish(&rights));
        for (more, set) in [bounding, effective, permitted]
            .into_iter()
            .zip(sets(&rights))
        {
            assert_eq!(more, set.into_iter().chain(TO_FINISH).collect());
        }
        assert!(inheritable.is_empty() && ambient.is_empty());
    }
}
