//! Checks of containerd's entries for usher, and of the OCI runtime that the shim runs.

use std::path::Path;
use std::process::Command;

use toml::{Table, Value};

use usher_api::runtime_options::{self, RemovedOption};

use super::super::containerd::{
    BY_THE_SHIM, Handler, NAME, NO_IMAGE, Node, PROGRAM, RUNC_TYPE, Registration, SANDBOXER, TYPE,
    find, is_ours, output, text,
};
use super::super::manifest;
use super::cures::Cures;
use super::finding::{Code, Finding, Group, Subject};
use super::shim;

const RUNTIME: Subject = Subject::new(Group::Runtime, "runtime");
const SANDBOX: Subject = Subject::new(Group::Runtime, "sandboxes");
const OCI_RUNTIME: Subject = Subject::new(Group::Runtime, "OCI runtime");
const DRIVER: Subject = Subject::new(Group::Runtime, "cgroup driver");
const KUBELET_FEATURES: Subject = Subject::new(Group::Runtime, "features for kubelet");

/// The path to which kubeadm writes kubelet's configuration file.
const KUBELET: &str = "/var/lib/kubelet/config.yaml";

pub(super) fn findings(node: &Node, cures: &Cures) -> Vec<Finding> {
    let mut findings = vec![shim::finding(node, cures)];
    if node.dump.is_ok() {
        findings.push(entry(node, cures));
    }
    for (name, runtime) in ours(node) {
        findings.extend(registration(node, cures, name, runtime));
        findings.extend(sandboxes(node, cures, name, runtime));
        findings.extend(reported_features(node, name));
        findings.extend(driver(node, cures, Path::new(KUBELET), name, runtime));
    }
    findings.push(oci_runtime(node));
    findings
}

/// The runtimes in containerd's configuration whose pods run under usher's shim.
pub(super) fn ours(node: &Node) -> impl Iterator<Item = (&str, &Table)> {
    node.runtimes().filter(|(_, runtime)| is_ours(runtime))
}

/// Checks that this version of containerd supports the runtime's `runtime_type` and `runtime_path`.
fn registration(node: &Node, cures: &Cures, name: &str, runtime: &Table) -> Option<Finding> {
    let version = node.version.as_ref()?;
    let is_by_path = text(runtime, "runtime_path").is_some_and(|path| !path.is_empty());
    let is_runcs = text(runtime, "runtime_type") == Some(RUNC_TYPE);
    if is_by_path && version.release == (1, 6) {
        let says = format!(
            "containerd {} ignores runtime_path, so {name} runs another shim",
            version.text
        );
        let lines = Registration::OwnType.to_string();
        let cure = cures.runtime(name, &lines, false);
        return Some(RUNTIME.problem(Code::RuntimePath, says).cure(cure));
    }
    if node.is_1() || is_runcs {
        return None;
    }
    let options = runtime.get("options").and_then(Value::as_table);
    let has_options = options.is_some_and(|options| !options.is_empty());
    if is_pauseless(runtime) {
        // If the shim makes a runtime's sandboxes, the runtime works only with usher's own type. So
        // this finding advises no other type.
        return has_options.then(|| {
            let says = format!(
                "{name} cannot start pods with a user namespace, since it has options and its shim makes the \
                 sandboxes; expected no options"
            );
            RUNTIME.warning(Code::RuntimeType, says)
        });
    }
    let lacks = if has_options {
        "cannot start pods with a user namespace, since it has options"
    } else if version.release < (2, 3) {
        "has neither user namespaces nor recursive read-only mounts for kubelet"
    } else {
        return None;
    };
    let says = format!(
        "{name} has runtime_type {TYPE} and {lacks}; expected {RUNC_TYPE} and a runtime_path"
    );
    let program = node.shim(PROGRAM);
    let program = program.unwrap_or_else(|| Path::new("/usr/local/bin").join(PROGRAM));
    let lines = Registration::Path(program).to_string();
    let cure = cures.runtime(name, &lines, false);
    Some(RUNTIME.warning(Code::RuntimeType, says).cure(cure))
}

/// True if the shim itself makes the sandboxes of its pods, which then have no pause container.
pub(super) fn is_pauseless(runtime: &Table) -> bool {
    text(runtime, SANDBOXER) == Some(BY_THE_SHIM)
}

/// Checks the entry of a runtime whose shim makes the sandboxes.
fn sandboxes(node: &Node, cures: &Cures, name: &str, runtime: &Table) -> Option<Finding> {
    if !is_pauseless(runtime) {
        return None;
    }
    let registration = match Registration::pauseless(node) {
        Ok(registration) => registration,
        Err(error) => {
            let says = format!("for {name}, {error}");
            return Some(SANDBOX.problem(Code::Sandboxer, says));
        }
    };
    if text(runtime, "runtime_type") != Some(TYPE) {
        let says = format!(
            "containerd ignores the runtime_path of a runtime with sandboxer = \"shim\", so another shim makes \
             the sandboxes of {name}; expected runtime_type {TYPE}"
        );
        let cure = cures.runtime(name, &registration.to_string(), true);
        return Some(SANDBOX.problem(Code::Sandboxer, says).cure(cure));
    }
    let pulls = runtime.get(NO_IMAGE).and_then(Value::as_bool) == Some(false);
    Some(match pulls {
        true => {
            let says = format!(
                "pods of {name} have no pause container, but containerd pulls its image anyway"
            );
            let line = format!("{NO_IMAGE} = true");
            let cure = cures.runtime(name, &line, true);
            SANDBOX.warning(Code::PauseImage, says).cure(cure)
        }
        false => SANDBOX.ok(format!(
            "pods of {name} have no pause container (experimental)"
        )),
    })
}

/// Checks the features of the runtime that the running containerd reports to kubelet.
fn reported_features(node: &Node, name: &str) -> Option<Finding> {
    let reported = node.cri_status.as_ref()?.as_ref().ok()?;
    features(&reported.handlers, name)
}

fn features(handlers: &[Handler], name: &str) -> Option<Finding> {
    // containerd 1 reports no runtimes, and kubelet then requires no features.
    let of_runc = handlers.iter().find(|handler| handler.name == "runc");
    let of_any = of_runc.or(handlers.first())?;
    // If containerd has not loaded the runtime, another finding reports that.
    let ours = handlers.iter().find(|handler| handler.name == name)?;
    let features = [
        (
            "user namespaces",
            ours.user_namespaces,
            of_any.user_namespaces,
        ),
        (
            "recursive read-only mounts",
            ours.recursive_read_only_mounts,
            of_any.recursive_read_only_mounts,
        ),
    ];
    let join = |of: &dyn Fn(bool, bool) -> bool| {
        let names = features
            .iter()
            .filter(|(_, ours, others)| of(*ours, *others));
        names
            .map(|(what, ..)| *what)
            .collect::<Vec<_>>()
            .join(" and ")
    };
    let missing = join(&|ours, others| others && !ours);
    if !missing.is_empty() {
        let other = &of_any.name;
        let says = format!(
            "{name} has no {missing}, which {other} has: kubelet refuses pods that need them"
        );
        return Some(KUBELET_FEATURES.warning(Code::KubeletFeatures, says));
    }
    let has = match join(&|ours, _| ours) {
        none if none.is_empty() => {
            "neither user namespaces nor recursive read-only mounts".to_owned()
        }
        has => has,
    };
    Some(KUBELET_FEATURES.ok(format!("{name} has {has}")))
}

fn entry(node: &Node, cures: &Cures) -> Finding {
    let names: Vec<&str> = ours(node).map(|(name, _)| name).collect();
    if !names.is_empty() {
        let said = format!("containerd has an entry for usher: {}", names.join(", "));
        return match names.contains(&NAME) {
            true => RUNTIME.ok(said),
            false => RUNTIME.ok(format!(
                "{said}: use this name as the RuntimeClass's handler"
            )),
        };
    }
    // The report proposes no lines to add, but the installer: containerd 1 drops its built-in
    // runtime if a configuration file contains only usher's runtime.
    let says = format!(
        "containerd has no runtime of type {TYPE} or with a runtime_path to {PROGRAM}; expected one in {}",
        node.config.display()
    );
    let finding = RUNTIME.problem(Code::RuntimeMissing, says);
    finding.cure(cures.install())
}

/// Checks that the runtime has the same cgroup driver as kubelet, because kubelet uses one kind of
/// cgroup path for all its pods. If kubelet's driver is unknown, the driver of another runtime
/// stands in for it. A runtime without the option `SystemdCgroup` is not checked, because the shim
/// then derives the driver from the cgroup path.
fn driver(
    node: &Node,
    cures: &Cures,
    kubelet: &Path,
    name: &str,
    runtime: &Table,
) -> Option<Finding> {
    let given = systemd(runtime)?;
    let (other, theirs) = kubelet_uses_systemd(kubelet)
        .map(|driver| ("kubelet", driver))
        .or_else(|| {
            node.runtimes().find_map(|(other, runtime)| {
                Some((other, systemd(runtime).filter(|_| !is_ours(runtime))?))
            })
        })?;
    if node.version.as_ref().is_some_and(|it| it.release == (1, 6)) {
        // containerd 1.6 does not pass a runtime's options on to the shim.
        return None;
    }
    let shown = |systemd| if systemd { "systemd" } else { "cgroupfs" };
    let (driver, other_driver) = (shown(given), shown(theirs));
    if given == theirs {
        return Some(DRIVER.ok(format!("{driver} for {name} and for {other}")));
    }
    let says = format!("{driver} for {name}, but {other_driver} for {other}");
    let line = format!("SystemdCgroup = {theirs}");
    let cure = cures.keys(name, ".options", &line);
    Some(DRIVER.warning(Code::CgroupDriver, says).cure(cure))
}

/// True if kubelet's configuration file selects the cgroup driver systemd.
fn kubelet_uses_systemd(file: &Path) -> Option<bool> {
    let text = std::fs::read_to_string(file).ok()?;
    let documents = manifest::parse(&text).ok()?;
    let driver = documents.first()?.text_of("cgroupDriver")?;
    Some(driver == "systemd")
}

fn systemd(runtime: &Table) -> Option<bool> {
    runtime.get("options")?.get("SystemdCgroup")?.as_bool()
}

fn oci_runtime(node: &Node) -> Finding {
    if let Some(refusal) = ours(node).find_map(|(_, runtime)| refusal(runtime)) {
        return OCI_RUNTIME.problem(Code::OciRuntimeRemoved, refusal.to_string());
    }
    let name = ours(node).find_map(|(_, runtime)| binary_name(runtime));
    let name = name.unwrap_or_else(|| runtime_options::DEFAULT_BINARY.to_owned());
    let Some(program) = find(&node.path, &name) else {
        let says = format!("{name} is not on {}: install it", node.whose_path());
        return OCI_RUNTIME.problem(Code::OciRuntimeMissing, says);
    };
    match output(Command::new(&program).arg("--version")) {
        Ok(said) => {
            let said = said.lines().next().unwrap_or_default();
            OCI_RUNTIME.ok(format!("{}: {said}", program.display()))
        }
        Err(error) => OCI_RUNTIME.problem(
            Code::OciRuntimeFails,
            format!("{} --version fails: {error}", program.display()),
        ),
    }
}

/// The OCI runtime's program: `BinaryName` in the options of the runtime's table.
fn binary_name(runtime: &Table) -> Option<String> {
    let options = options_of(runtime)?;
    let program = text(&options, "BinaryName").filter(|name| !name.is_empty());
    program.map(str::to_owned)
}

/// The shim's error if an option chooses the OCI runtime that was removed from usher.
fn refusal(runtime: &Table) -> Option<RemovedOption> {
    let options = options_of(runtime)?;
    let mut options = options.iter();
    options
        .find_map(|(key, value)| runtime_options::refusal(key, value.as_str().unwrap_or_default()))
}

/// The options in the file that `ConfigPath` names. Without a readable file, the options in the
/// runtime's table.
fn options_of(runtime: &Table) -> Option<Table> {
    let options = runtime.get("options")?.as_table()?;
    let file = text(options, "ConfigPath").map(Path::new);
    let from_file = file
        .and_then(|path| std::fs::read_to_string(path).ok())
        .and_then(|said| said.parse::<Table>().ok());
    from_file.or_else(|| Some(options.clone()))
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Cure, Level};
    use super::*;

    fn cures(node: &Node) -> Cures {
        Cures::with(node, &[], true)
    }

    const V2: &str = super::super::super::containerd::CRI_2;
    const V3: &str = super::super::super::containerd::CRI;

    #[test]
    fn a_missing_runtime_comes_with_the_command_that_installs_it() {
        for (version, plugin) in [("1.6.20", V2), ("1.7.24", V2), ("2.1.4", V3)] {
            let mut node = Node::with(version, &format!("[plugins.'{plugin}'.containerd]\nx = 1"));
            node.path = "/sbin:/usr/local/bin:/bin".to_owned();
            let finding = entry(&node, &cures(&node));
            assert_eq!(finding.level, Level::Problem, "{version}");
            assert_eq!(finding.cure, Cure::run("usher install --restart"));
            // Without systemd, the proposed command does not restart containerd.
            let without = entry(&node, &Cures::with(&node, &[], false));
            assert_eq!(without.cure, Cure::run("usher install"));
            let options = [
                ("--config", Some("/it's/c.toml".to_owned())),
                ("--path", None),
            ];
            let named = entry(&node, &Cures::with(&node, &options, true));
            let expected = r"usher install --restart --config '/it'\''s/c.toml'";
            assert_eq!(named.cure.run.as_deref(), Some(expected));
        }
    }

    /// containerd 1 looks for the shim on its PATH and in the directory of its own program.
    #[test]
    fn the_install_command_puts_the_shim_where_containerd_looks() {
        let command = |version: &str, path: &str| {
            let mut node = Node::with(version, &format!("[plugins.'{V2}'.containerd]\nx = 1"));
            node.program = Ok("/opt/containerd/containerd".into());
            node.path = path.to_owned();
            let options = [("--path", Some(path.to_owned()))];
            let cure = entry(&node, &Cures::with(&node, &options, true)).cure;
            cure.run.unwrap()
        };
        assert_eq!(
            command("1.7.24", "/srv/x:/opt/my/bin"),
            "usher install --restart --prefix /opt/my --path /srv/x:/opt/my/bin"
        );
        let copied = command("1.6.20", "/srv/x");
        let end = format!("/{PROGRAM} /srv/x && usher install --restart --path /srv/x");
        assert!(
            copied.starts_with("install -m 755 /") && copied.ends_with(&end),
            "{copied}"
        );
        let told = command("2.1.4", "/srv/x");
        assert_eq!(told, "usher install --restart --path /srv/x");
    }

    #[test]
    fn the_expected_runtime_type_depends_on_containerds_version() {
        let level = |version: &str, plugin: &str, lines: &str| {
            let dump = format!("[plugins.'{plugin}'.containerd.runtimes.usher]\n{lines}");
            let node = Node::with(version, &dump);
            let (name, runtime) = ours(&node).next().unwrap();
            registration(&node, &cures(&node), name, runtime).map(|finding| finding.level)
        };
        let own = format!("runtime_type = '{TYPE}'\n");
        let options = format!(
            "{own}[plugins.'{V3}'.containerd.runtimes.usher.options]\nSystemdCgroup = true\n"
        );
        let by_path =
            format!("runtime_type = '{RUNC_TYPE}'\nruntime_path = '/opt/bin/{PROGRAM}'\n");
        assert_eq!(level("1.6.20", V2, &own), None);
        assert_eq!(level("1.6.20", V2, &by_path), Some(Level::Problem));
        assert_eq!(level("1.7.24", V2, &own), None);
        assert_eq!(level("1.7.24", V2, &by_path), None);
        assert_eq!(level("2.1.9", V3, &own), Some(Level::Warning));
        assert_eq!(level("2.1.9", V3, &by_path), None);
        assert_eq!(level("2.3.0", V3, &own), None);
        assert_eq!(level("2.3.0", V3, &options), Some(Level::Warning));
    }

    #[test]
    fn a_sandboxer_that_containerd_does_not_support_is_a_problem() {
        let level = |version: &str, plugin: &str, lines: &str| {
            let dump = format!(
                "[plugins.'{plugin}'.containerd.runtimes.usher]\nruntime_type = '{TYPE}'\n{lines}"
            );
            let node = Node::with(version, &dump);
            let (name, runtime) = ours(&node).next().unwrap();
            sandboxes(&node, &cures(&node), name, runtime).map(|finding| finding.level)
        };
        assert_eq!(level("2.4.2", V3, "sandboxer = 'podsandbox'"), None);
        assert_eq!(level("2.3.0", V3, "sandboxer = 'shim'"), Some(Level::Ok));
        assert_eq!(
            level("2.2.8", V3, "sandboxer = 'shim'"),
            Some(Level::Problem)
        );
        assert_eq!(
            level("1.7.24", V2, "sandboxer = 'shim'"),
            Some(Level::Problem)
        );
        let pulls = "sandboxer = 'shim'\ndisable_pause_image_pull = false";
        assert_eq!(level("2.4.2", V3, pulls), Some(Level::Warning));
        let by_path = format!(
            "[plugins.'{V3}'.containerd.runtimes.usher]\nruntime_type = '{RUNC_TYPE}'\n\
             runtime_path = '/opt/bin/{PROGRAM}'\nsandboxer = 'shim'"
        );
        let node = Node::with("2.4.2", &by_path);
        let (name, runtime) = ours(&node).next().unwrap();
        let finding = sandboxes(&node, &cures(&node), name, runtime).unwrap();
        assert_eq!(finding.level, Level::Problem);
        let does_not = "sandboxer = 'shim'\ndisable_pause_image_pull = true";
        assert_eq!(level("2.4.2", V3, does_not), Some(Level::Ok));
    }

    #[test]
    fn features_that_runc_has_and_usher_lacks_are_a_warning() {
        let handler = |name: &str, has: bool| Handler {
            name: name.to_owned(),
            user_namespaces: has,
            recursive_read_only_mounts: has,
        };
        let level = |handlers: &[Handler]| features(handlers, NAME).map(|finding| finding.level);
        // containerd 1 reports no runtimes.
        assert_eq!(level(&[]), None);
        // Another finding reports that the runtime is not loaded.
        assert_eq!(level(&[handler("runc", true)]), None);
        for (runcs, ours, expected) in [
            (true, true, Level::Ok),
            (true, false, Level::Warning),
            // Neither runtime has the features, because the kernel lacks them.
            (false, false, Level::Ok),
        ] {
            let handlers = [
                handler("", runcs),
                handler("runc", runcs),
                handler(NAME, ours),
            ];
            assert_eq!(level(&handlers), Some(expected));
        }
    }

    #[test]
    fn a_cgroup_driver_that_differs_from_the_other_runtimes_is_a_warning() {
        let node = |ours, theirs| {
            let runtimes = format!("plugins.'{V3}'.containerd.runtimes");
            let dump = format!(
                "[{runtimes}.usher]\nruntime_type = '{TYPE}'\n\
                 [{runtimes}.usher.options]\nSystemdCgroup = {ours}\n\
                 [{runtimes}.runc]\nruntime_type = 'io.containerd.runc.v2'\n\
                 [{runtimes}.runc.options]\nSystemdCgroup = {theirs}\n"
            );
            Node::with("2.1.4", &dump)
        };
        let level = |node: &Node| {
            let (name, runtime) = ours(node).next().unwrap();
            driver(node, &cures(node), Path::new("/nowhere"), name, runtime)
                .unwrap()
                .level
        };
        assert_eq!(level(&node(true, true)), Level::Ok);
        assert_eq!(level(&node(false, true)), Level::Warning);
    }

    #[test]
    fn kubelets_driver_is_read_from_its_configuration() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            kubelet_uses_systemd(file.path())
        };
        assert_eq!(
            of("kind: KubeletConfiguration\ncgroupDriver: systemd\n"),
            Some(true)
        );
        assert_eq!(of("cgroupDriver: cgroupfs\n"), Some(false));
        assert_eq!(of("kind: KubeletConfiguration\n"), None);
    }

    #[test]
    fn the_oci_runtime_is_the_one_in_the_options() {
        let dump = format!(
            "[plugins.'{V3}'.containerd.runtimes.usher]\nruntime_type = '{TYPE}'\n\
             [plugins.'{V3}'.containerd.runtimes.usher.options]\nBinaryName = '/no/such/crun'\n"
        );
        let finding = oci_runtime(&Node::with("2.1.4", &dump));
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.says.contains("/no/such/crun"), "{}", finding.says);
    }

    #[test]
    fn options_that_choose_a_removed_runtime_are_a_problem() {
        let finding = |options: &str| {
            let dump = format!(
                "[plugins.'{V3}'.containerd.runtimes.usher]\nruntime_type = '{TYPE}'\n\
                 [plugins.'{V3}'.containerd.runtimes.usher.options]\n{options}\n"
            );
            oci_runtime(&Node::with("2.1.4", &dump))
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "Engine = 'libcontainer'").unwrap();
        let in_file = format!("ConfigPath = '{}'", file.path().display());
        for options in [
            "Engine = 'libcontainer'",
            "BinaryName = '/opt/usher-libcontainer'",
            &in_file,
        ] {
            let finding = finding(options);
            assert_eq!(finding.level, Level::Problem);
            let named = "name runc or another OCI runtime in BinaryName";
            assert!(finding.says.contains(named), "{}", finding.says);
        }
    }
}
