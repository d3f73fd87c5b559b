//! The runtime: containerd's entry for it, and the OCI runtime below it.

use std::path::Path;
use std::process::Command;

use toml::{Table, Value};

use crate::engine::oci::options;

use super::super::containerd::{
    BY_THE_SHIM, Handler, KnownAs, NAME, NO_IMAGE, Node, PROGRAM, RUNC_TYPE, SANDBOXER, TYPE, find,
    is_ours, output, text,
};
use super::super::manifest;
use super::cures::Cures;
use super::finding::{Code, Finding, Group, Subject};
use super::shim;

const RUNTIME: Subject = Subject::new(Group::Runtime, "runtime");
const SANDBOX: Subject = Subject::new(Group::Runtime, "sandboxes");
const OCI_RUNTIME: Subject = Subject::new(Group::Runtime, "OCI runtime");
const DRIVER: Subject = Subject::new(Group::Runtime, "cgroup driver");
const KUBELET_IS_TOLD: Subject = Subject::new(Group::Runtime, "kubelet is told");

/// Kubelet's configuration file, as kubeadm places it.
const KUBELET: &str = "/var/lib/kubelet/config.yaml";

pub(super) fn findings(node: &Node, cures: &Cures) -> Vec<Finding> {
    let mut findings = vec![shim::finding(node, cures)];
    if node.dump.is_ok() {
        findings.push(entry(node, cures));
    }
    for (name, runtime) in ours(node) {
        findings.extend(how_known(node, cures, name, runtime));
        findings.extend(sandboxes(node, cures, name, runtime));
        findings.extend(told_of(node, name));
        findings.extend(driver(node, cures, Path::new(KUBELET), name, runtime));
    }
    findings.push(oci_runtime(node));
    findings
}

/// The entries of containerd's configuration that run pods with our shim.
pub(super) fn ours(node: &Node) -> impl Iterator<Item = (&str, &Table)> {
    node.runtimes().filter(|(_, runtime)| is_ours(runtime))
}

/// What containerd makes of an entry of ours with this type and path.
fn how_known(node: &Node, cures: &Cures, name: &str, runtime: &Table) -> Option<Finding> {
    let version = node.version.as_ref()?;
    let is_by_path = text(runtime, "runtime_path").is_some_and(|path| !path.is_empty());
    let is_runcs = text(runtime, "runtime_type") == Some(RUNC_TYPE);
    if is_by_path && version.release == (1, 6) {
        let says = format!(
            "containerd {} does not look at runtime_path, so {name} runs another shim",
            version.text
        );
        let lines = KnownAs::OwnType.to_string();
        let cure = cures.runtime(name, &lines, false);
        return Some(RUNTIME.problem(Code::RuntimePath, says).cure(cure));
    }
    if node.is_1() || is_runcs {
        return None;
    }
    let options = runtime.get("options").and_then(Value::as_table);
    let has_options = options.is_some_and(|options| !options.is_empty());
    if is_pauseless(runtime) {
        // It cannot be known otherwise.
        return has_options.then(|| {
            let says = format!(
                "{name} cannot start pods with a user namespace, as it has options and its sandboxes are \
                 the shim's; expected none"
            );
            RUNTIME.warning(Code::RuntimeType, says)
        });
    }
    let what = if has_options {
        "cannot start pods with a user namespace, as it has options"
    } else if version.release < (2, 3) {
        "has neither user namespaces nor recursive read-only mounts, as kubelet is told"
    } else {
        return None;
    };
    let says = format!("of type {TYPE}, {name} {what}; expected type {RUNC_TYPE} and the path");
    let program = node.shim(PROGRAM);
    let program = program.unwrap_or_else(|| Path::new("/usr/local/bin").join(PROGRAM));
    let lines = KnownAs::Path(program).to_string();
    let cure = cures.runtime(name, &lines, false);
    Some(RUNTIME.warning(Code::RuntimeType, says).cure(cure))
}

/// Whether the shim makes the sandboxes of its pods itself.
pub(super) fn is_pauseless(runtime: &Table) -> bool {
    text(runtime, SANDBOXER) == Some(BY_THE_SHIM)
}

/// Who makes the sandboxes, where that is not containerd.
fn sandboxes(node: &Node, cures: &Cures, name: &str, runtime: &Table) -> Option<Finding> {
    if !is_pauseless(runtime) {
        return None;
    }
    let known_as = match KnownAs::pauseless(node) {
        Ok(known_as) => known_as,
        Err(error) => {
            let says = format!("for {name}, {error}");
            return Some(SANDBOX.problem(Code::Sandboxer, says));
        }
    };
    if text(runtime, "runtime_type") != Some(TYPE) {
        let says = format!(
            "containerd looks at no runtime_path of a runtime whose sandboxes the shim makes, so those of \
             {name} are another shim's; expected type {TYPE}"
        );
        let cure = cures.runtime(name, &known_as.to_string(), true);
        return Some(SANDBOX.problem(Code::Sandboxer, says).cure(cure));
    }
    let pulls = runtime.get(NO_IMAGE).and_then(Value::as_bool) == Some(false);
    Some(match pulls {
        true => {
            let says = format!(
                "pods of {name} have no pause container, and containerd pulls its image all the same"
            );
            let line = format!("{NO_IMAGE} = true");
            let cure = cures.runtime(name, &line, true);
            SANDBOX.warning(Code::PauseImage, says).cure(cure)
        }
        false => SANDBOX.ok(format!(
            "pods of {name} have no pause container, which is experimental"
        )),
    })
}

/// What kubelet is told of the runtime, by the containerd that runs with this configuration.
fn told_of(node: &Node, name: &str) -> Option<Finding> {
    let told_kubelet = node.told.as_ref()?.as_ref().ok()?;
    told(&told_kubelet.handlers, name)
}

fn told(handlers: &[Handler], name: &str) -> Option<Finding> {
    // containerd 1 names none, and kubelet expects nothing of them.
    let of_runc = handlers.iter().find(|handler| handler.name == "runc");
    let of_any = of_runc.or(handlers.first())?;
    // A runtime that is not loaded yet is a finding of its own.
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
            "that {name} has no {missing}, and that {other} has: pods that want them are refused"
        );
        return Some(KUBELET_IS_TOLD.warning(Code::KubeletFeatures, says));
    }
    let has = match join(&|ours, _| ours) {
        none if none.is_empty() => {
            "neither user namespaces nor recursive read-only mounts".to_owned()
        }
        has => has,
    };
    Some(KUBELET_IS_TOLD.ok(format!("that {name} has {has}")))
}

fn entry(node: &Node, cures: &Cures) -> Finding {
    let names: Vec<&str> = ours(node).map(|(name, _)| name).collect();
    if !names.is_empty() {
        let said = format!(
            "containerd is configured to run pods with it as {}",
            names.join(", ")
        );
        return match names.contains(&NAME) {
            true => RUNTIME.ok(said),
            false => RUNTIME.ok(format!("{said}: the RuntimeClass's handler")),
        };
    }
    // No lines: alone they would have containerd 1 forget its built-in runtime.
    let says = format!(
        "containerd knows no runtime of type {TYPE} or with the path of {PROGRAM}; expected in {}",
        node.config.display()
    );
    let finding = RUNTIME.problem(Code::RuntimeMissing, says);
    finding.cure(cures.install())
}

/// Pods of one kubelet have one kind of cgroup path, so all runtimes have to agree on it. Where no
/// options are given the shim goes by the path itself.
fn driver(
    node: &Node,
    cures: &Cures,
    kubelet: &Path,
    name: &str,
    runtime: &Table,
) -> Option<Finding> {
    let given = systemd(runtime)?;
    let (other, theirs) = kubelets(kubelet)
        .map(|driver| ("kubelet", driver))
        .or_else(|| {
            node.runtimes().find_map(|(other, runtime)| {
                Some((other, systemd(runtime).filter(|_| !is_ours(runtime))?))
            })
        })?;
    if node.version.as_ref().is_some_and(|it| it.release == (1, 6)) {
        // Options are not passed on.
        return None;
    }
    let shown = |systemd| if systemd { "systemd" } else { "cgroupfs" };
    let (driver, other_driver) = (shown(given), shown(theirs));
    if given == theirs {
        return Some(DRIVER.ok(format!("{driver} for {name} and for {other}")));
    }
    let says = format!("{driver} for {name}, and {other_driver} for {other}");
    let line = format!("SystemdCgroup = {theirs}");
    let cure = cures.keys(name, ".options", &line);
    Some(DRIVER.warning(Code::CgroupDriver, says).cure(cure))
}

/// Whether kubelet leaves cgroups to systemd, as its configuration file says.
fn kubelets(file: &Path) -> Option<bool> {
    let text = std::fs::read_to_string(file).ok()?;
    let documents = manifest::parse(&text).ok()?;
    let driver = documents.first()?.text_of("cgroupDriver")?;
    Some(driver == "systemd")
}

fn systemd(runtime: &Table) -> Option<bool> {
    runtime.get("options")?.get("SystemdCgroup")?.as_bool()
}

/// The program below the shim.
fn oci_runtime(node: &Node) -> Finding {
    if let Some(refusal) = ours(node).find_map(|(_, runtime)| refusal(runtime)) {
        return OCI_RUNTIME.problem(Code::OciRuntimeRemoved, refusal);
    }
    let name = ours(node).find_map(|(_, runtime)| binary_name(runtime));
    let name = name.unwrap_or_else(|| crate::engine::oci::DEFAULT_BINARY.to_owned());
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

/// `BinaryName` of the runtime's options.
fn binary_name(runtime: &Table) -> Option<String> {
    let options = options_of(runtime)?;
    let program = text(&options, "BinaryName").filter(|name| !name.is_empty());
    program.map(str::to_owned)
}

/// Why the shim refuses the runtime's options, if they choose an OCI runtime that was removed.
fn refusal(runtime: &Table) -> Option<String> {
    let options = options_of(runtime)?;
    let mut options = options.iter();
    options.find_map(|(key, value)| options::refusal(key, value.as_str().unwrap_or_default()))
}

/// The runtime's options, or those of the file that they name.
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
    fn a_runtime_that_containerd_does_not_know_comes_with_the_command_that_installs_it() {
        for (version, plugin) in [("1.6.20", V2), ("1.7.24", V2), ("2.1.4", V3)] {
            let mut node = Node::with(version, &format!("[plugins.'{plugin}'.containerd]\nx = 1"));
            node.path = "/sbin:/usr/local/bin:/bin".to_owned();
            let finding = entry(&node, &cures(&node));
            assert_eq!(finding.level, Level::Problem, "{version}");
            assert_eq!(finding.cure, Cure::run("usher install --restart"));
            // Nothing here restarts it.
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

    /// containerd 1 looks for the shim on its PATH, and beside itself.
    #[test]
    fn the_command_that_installs_puts_the_shim_where_containerd_looks() {
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
    fn a_name_that_containerd_treats_worse_than_runcs_is_judged_by_its_version() {
        let level = |version: &str, plugin: &str, lines: &str| {
            let dump = format!("[plugins.'{plugin}'.containerd.runtimes.usher]\n{lines}");
            let node = Node::with(version, &dump);
            let (name, runtime) = ours(&node).next().unwrap();
            how_known(&node, &cures(&node), name, runtime).map(|finding| finding.level)
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
    fn who_makes_the_sandboxes_is_judged_by_what_containerd_can() {
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
    fn what_kubelet_is_told_is_compared_with_what_it_is_told_of_runc() {
        let handler = |name: &str, has: bool| Handler {
            name: name.to_owned(),
            user_namespaces: has,
            recursive_read_only_mounts: has,
        };
        let level = |handlers: &[Handler]| told(handlers, NAME).map(|finding| finding.level);
        // containerd 1 says nothing.
        assert_eq!(level(&[]), None);
        // The other findings say that the runtime is not loaded.
        assert_eq!(level(&[handler("runc", true)]), None);
        for (runcs, ours, expected) in [
            (true, true, Level::Ok),
            (true, false, Level::Warning),
            // The kernel has none of it.
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
            kubelets(file.path())
        };
        assert_eq!(
            of("kind: KubeletConfiguration\ncgroupDriver: systemd\n"),
            Some(true)
        );
        assert_eq!(of("cgroupDriver: cgroupfs\n"), Some(false));
        assert_eq!(of("kind: KubeletConfiguration\n"), None);
    }

    #[test]
    fn an_oci_runtime_is_the_one_of_the_options() {
        let dump = format!(
            "[plugins.'{V3}'.containerd.runtimes.usher]\nruntime_type = '{TYPE}'\n\
             [plugins.'{V3}'.containerd.runtimes.usher.options]\nBinaryName = '/no/such/crun'\n"
        );
        let finding = oci_runtime(&Node::with("2.1.4", &dump));
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.says.contains("/no/such/crun"), "{}", finding.says);
    }

    #[test]
    fn options_that_choose_the_removed_runtime_are_a_problem() {
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
