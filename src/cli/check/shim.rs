//! Checks of the shim's program.

use std::process::Command;

use usher_api::VERSION;

use super::super::containerd::{Node, PROGRAM, find, find_file, output, text};
use super::cures::Cures;
use super::finding::{Code, Cure, Finding, Group, Subject};
use super::runtime::ours;

const SHIM: Subject = Subject::new(Group::Runtime, "shim");

/// Compares the version of the shim that containerd would run with the version of this command.
pub(super) fn finding(node: &Node, cures: &Cures) -> Finding {
    let named = ours(node).find_map(|(_, runtime)| text(runtime, "runtime_path"));
    let program = match named {
        Some(path) => find("", path),
        None => node.shim(PROGRAM),
    };
    let Some(program) = program else {
        return no_shim(node, cures, named);
    };
    let shown = program.display();
    let finding = match output(Command::new(&program).arg("-v")) {
        Err(error) => SHIM.problem(Code::ShimFails, format!("{shown} -v fails: {error}")),
        Ok(said) => match version(&said) {
            Some(VERSION) => return SHIM.ok(format!("{shown}, version {VERSION}")),
            Some(other) => SHIM.warning(
                Code::ShimVersion,
                format!("{shown} is version {other}, but this command is version {VERSION}"),
            ),
            None => SHIM.problem(
                Code::ShimFails,
                format!("{shown} -v does not print usher's version; expected usher's shim"),
            ),
        },
    };
    finding.cure(cures.install())
}

/// The finding for a shim that is missing or not executable.
fn no_shim(node: &Node, cures: &Cures, named: Option<&str>) -> Finding {
    let file = match named {
        Some(path) => find_file("", path),
        None => find_file(&node.path, PROGRAM),
    };
    if let Some(file) = file {
        let file = file.display();
        let finding = SHIM.problem(Code::ShimMode, format!("{file} is not executable"));
        return finding.cure(Cure::run(format!("chmod 755 {file}")));
    }
    let says = match named {
        Some(path) => format!("runtime_path names {path}, which does not exist"),
        None => format!("{PROGRAM} is not on {}", node.whose_path()),
    };
    SHIM.problem(Code::ShimMissing, says).cure(cures.install())
}

/// The version in the output of `containerd-shim-usher-v2 -v`.
fn version(said: &str) -> Option<&str> {
    said.lines()
        .find_map(|line| line.trim().strip_prefix("Version:"))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_shim_that_is_not_executable_comes_with_the_command_that_makes_it_so() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(PROGRAM);
        fs::write(&file, "#!/bin/sh\necho Version: 0\n").unwrap();
        let mut node = Node::with("1.7.24", "");
        node.path = format!("/nowhere:{}", directory.path().display());
        let finding = super::finding(&node, &Cures::with(&node, &[], true));
        assert_eq!(finding.code, Some(Code::ShimMode), "{}", finding.says);
        let command = format!("chmod 755 {}", file.display());
        assert_eq!(finding.cure, Cure::run(command));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let finding = super::finding(&node, &Cures::with(&node, &[], true));
        assert_eq!(finding.code, Some(Code::ShimVersion), "{}", finding.says);
        fs::remove_file(&file).unwrap();
        let finding = super::finding(&node, &Cures::with(&node, &[], true));
        assert_eq!(finding.code, Some(Code::ShimMissing), "{}", finding.says);
    }

    #[test]
    fn the_shims_version_is_read_from_its_output() {
        let said = "containerd-shim-usher-v2:\n  Version:  0.1.0\n  Revision: abc\n";
        assert_eq!(version(said), Some("0.1.0"));
        assert_eq!(version("something else"), None);
    }
}
