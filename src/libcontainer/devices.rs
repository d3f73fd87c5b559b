//! The console of the node, which libcontainer lets every container open that may make devices: its list of those that
//! all may use has it (`c 5:1`), and runc's does not. It is taken out again before the container's program runs.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use libcgroups::v2::devices::bpf::{BpfError, prog};
use libcgroups::v2::devices::program::Program;
use libcontainer::oci_spec::runtime::{
    LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxDeviceType, LinuxResources,
};

use crate::cgroups;
use crate::error::Failure;

/// `/dev/console` (the kernel's list of devices, "character devices", 5).
const CONSOLE: (i64, i64) = (5, 1);

/// All that can be done with a device: read, write, make (`devices.allow` of cgroup v1).
const ACCESS: &str = "rwm";

/// Of these what is to make one.
const MAKING: char = 'm';

/// The licence that a program tells the kernel; one that calls nothing of the kernel's may have any.
const LICENCE: &str = "Apache";

/// Takes the console from a container again, as far as its own rules do not give it.
///
/// # Errors
///
/// If the kernel does not do it; the container may not run then.
pub fn deny_console(cgroup: &Path, resources: Option<&LinuxResources>) -> Result<(), Failure> {
    let rules = resources.and_then(|resources| resources.devices().as_deref());
    let rules = rules.unwrap_or_default();
    let (allowed, denied): (String, String) = ACCESS
        .chars()
        .partition(|&access| is_allowed(rules, access));
    if denied.is_empty() {
        return Ok(());
    }
    let own = cgroups::own(cgroup);
    if cgroups::is_unified() {
        let program = program(&allowed)?;
        return own.iter().try_for_each(|own| attach(&program, own));
    }
    let (major, minor) = CONSOLE;
    let files = own.iter().map(|own| own.join("devices.deny"));
    files.filter(|file| file.exists()).try_for_each(|file| {
        fs::write(&file, format!("c {major}:{minor} {denied}"))
            .map_err(|source| Failure::io(&file, source))
    })
}

/// Whether a container's own rules give it an access to the console: the last that says anything of it holds.
fn is_allowed(rules: &[LinuxDeviceCgroup], access: char) -> bool {
    let is_about = |rule: &&LinuxDeviceCgroup| {
        let (major, minor) = CONSOLE;
        let is = |given: Option<i64>, own| given.is_none_or(|given| given < 0 || given == own);
        let letters = rule.access().as_deref().unwrap_or_default();
        match rule.typ().unwrap_or_default() {
            // What else it says is not asked for.
            LinuxDeviceType::A => true,
            LinuxDeviceType::C => {
                is(rule.major(), major) && is(rule.minor(), minor) && letters.contains(access)
            }
            _ => false,
        }
    };
    let last = rules.iter().rfind(is_about);
    last.is_some_and(LinuxDeviceCgroup::allow)
}

/// A program for the kernel that allows all devices but the console, and of that what is allowed.
fn program(allowed: &str) -> Result<Program, Failure> {
    let (major, minor) = CONSOLE;
    let rule = |allow, access: &str| {
        LinuxDeviceCgroupBuilder::default()
            .allow(allow)
            .typ(LinuxDeviceType::C)
            .major(major)
            .minor(minor)
            .access(access)
            .build()
            .map_err(|error| Failure::library(&error))
    };
    // The last is asked first, and holds for who asks for no more than it is about. Making one is allowed to all who
    // may make devices, as of any other.
    let rules = [
        rule(false, ACCESS)?,
        rule(true, &format!("{allowed}{MAKING}"))?,
    ];
    Program::from_rules(&rules, true).map_err(|error| Failure::library(&error))
}

/// Attaches a program to a cgroup beside libcontainer's: what one of them denies is denied.
fn attach(program: &Program, cgroup: &Path) -> Result<(), Failure> {
    let failed = |error: BpfError| Failure::library(&error);
    let directory = File::open(cgroup).map_err(|source| Failure::io(cgroup, source))?;
    let program = prog::load(LICENCE, program.bytecodes()).map_err(failed)?;
    // It is this process's only use of it; the cgroup holds what is attached to it.
    prog::attach(program, directory.as_raw_fd()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allowed(rules: serde_json::Value) -> String {
        let rules: Vec<LinuxDeviceCgroup> = serde_json::from_value(rules).unwrap();
        ACCESS
            .chars()
            .filter(|&access| is_allowed(&rules, access))
            .collect()
    }

    #[test]
    fn the_console_is_who_s_rules_give_it() {
        let none = json!({"allow": false, "access": "rwm"});
        let all = json!({"allow": true, "access": "rwm"});
        let terminals = json!({"allow": true, "type": "c", "major": 5, "access": "rw"});
        let console = |allow, access| json!({"allow": allow, "type": "c", "major": 5, "minor": 1, "access": access});
        let disks = json!({"allow": true, "type": "b", "access": "rwm"});
        assert_eq!(allowed(json!([])), "");
        assert_eq!(allowed(json!([none])), "");
        assert_eq!(allowed(json!([all])), "rwm");
        assert_eq!(allowed(json!([none, disks])), "");
        assert_eq!(allowed(json!([none, terminals])), "rw");
        assert_eq!(allowed(json!([none, console(true, "r")])), "r");
        assert_eq!(allowed(json!([all, console(false, "rwm")])), "");
        assert_eq!(allowed(json!([console(true, "rwm"), none])), "");
    }

    #[test]
    fn the_program_denies_the_console_and_nothing_else() {
        let may = |allowed: &str, major, minor, access: &str| {
            let program = program(allowed).unwrap();
            program
                .execute(LinuxDeviceType::C, major, minor, access.to_owned())
                .unwrap()
                == 1
        };
        for access in ["r", "w", "rw", "rwm"] {
            assert!(!may("", 5, 1, access), "{access}");
            assert!(may("", 5, 0, access) && may("", 1, 3, access), "{access}");
        }
        assert!(may("", 5, 1, "m"));
        assert!(may("r", 5, 1, "r") && !may("r", 5, 1, "rw") && !may("r", 5, 1, "w"));
        let program = program("").unwrap();
        let disk = program.execute(LinuxDeviceType::B, 5, 1, "r".to_owned());
        assert_eq!(disk.unwrap(), 1);
    }
}
