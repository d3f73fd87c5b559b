//! The runtime: whether containerd knows it, the shim, and the OCI runtime below it.

use std::path::Path;
use std::process::Command;

use toml::{Table, Value};

use crate::VERSION;
use crate::engine::oci::options;

use super::super::containerd::{
    BY_THE_SHIM, Handler, KnownAs, NAME, NO_IMAGE, Node, PROGRAM, RUNC_TYPE, SANDBOXER, TYPE,
    entry as lines_for, find, handlers, output, runtime_table, text,
};
use super::super::manifest;
use super::Finding;

const RUNTIME: &str = "runtime";
const SANDBOX: &str = "sandboxes";
const SHIM: &str = "shim";
const OCI_RUNTIME: &str = "OCI runtime";
const DRIVER: &str = "cgroup driver";
const KUBELET_IS_TOLD: &str = "kubelet is told";

/// Kubelet's configuration file, as kubeadm places it.
const KUBELET: &str = "/var/lib/kubelet/config.yaml";

pub(super) fn findings(node: &Node) -> Vec<Finding> {
    let mut findings = vec![shim(node)];
    if node.dump.is_ok() {
        findings.push(entry(node));
    }
    for (name, runtime) in ours(node) {
        findings.extend(how_known(node, name, runtime));
        findings.extend(sandboxes(node, name, runtime));
        findings.extend(told_of(node, name));
        findings.extend(driver(node, Path::new(KUBELET), name, runtime));
    }
    findings.push(oci_runtime(node));
    findings
}

/// The entries of containerd's configuration that run pods with our shim.
pub(super) fn ours(node: &Node) -> impl Iterator<Item = (&str, &Table)> {
    node.runtimes().filter(|(_, runtime)| is_ours(runtime))
}

fn is_ours(runtime: &Table) -> bool {
    text(runtime, "runtime_type") == Some(TYPE)
        || text(runtime, "runtime_path").is_some_and(|path| path.ends_with(PROGRAM))
}

/// What containerd makes of an entry of ours with this type and path.
fn how_known(node: &Node, name: &str, runtime: &Table) -> Option<Finding> {
    let version = node.version.as_ref()?;
    let is_by_path = text(runtime, "runtime_path").is_some_and(|path| !path.is_empty());
    let is_runcs = text(runtime, "runtime_type") == Some(RUNC_TYPE);
    if is_by_path && version.release == (1, 6) {
        return Some(
            Finding::problem(
                RUNTIME,
                format!(
                    "containerd {} does not look at runtime_path, so {name} runs another shim",
                    version.text
                ),
            )
            .add(lines(node, name, false)),
        );
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
            Finding::warning(RUNTIME, says)
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
    Some(Finding::warning(RUNTIME, says).add(lines(node, name, true)))
}

/// Whether the shim makes the sandboxes of its pods itself.
pub(super) fn is_pauseless(runtime: &Table) -> bool {
    text(runtime, SANDBOXER) == Some(BY_THE_SHIM)
}

/// Who makes the sandboxes, where that is not containerd.
fn sandboxes(node: &Node, name: &str, runtime: &Table) -> Option<Finding> {
    if !is_pauseless(runtime) {
        return None;
    }
    let known_as = match KnownAs::pauseless(node) {
        Ok(known_as) => known_as,
        Err(error) => return Some(Finding::problem(SANDBOX, format!("for {name}, {error}"))),
    };
    if text(runtime, "runtime_type") != Some(TYPE) {
        let says = format!(
            "containerd looks at no runtime_path of a runtime whose sandboxes the shim makes, so those of \
             {name} are another shim's; expected type {TYPE}"
        );
        let lines = lines_for(node.cri_name(), name, &known_as);
        return Some(Finding::problem(SANDBOX, says).add(lines));
    }
    let pulls = runtime.get(NO_IMAGE).and_then(Value::as_bool) == Some(false);
    let table = runtime_table(node.cri_name(), name);
    Some(match pulls {
        true => Finding::warning(
            SANDBOX,
            format!("pods of {name} have no pause container, and containerd pulls its image all the same"),
        )
        .add(format!("[{table}]\n  {NO_IMAGE} = true")),
        false => Finding::ok(
            SANDBOX,
            format!("pods of {name} have no pause container, which is experimental"),
        ),
    })
}

/// What kubelet is told of the runtime, by the containerd that runs with this configuration.
fn told_of(node: &Node, name: &str) -> Option<Finding> {
    node.pid?;
    let socket = node.dump.as_ref().ok()?.socket()?;
    match handlers(Path::new(socket)) {
        Ok(handlers) => told(&handlers, name),
        Err(error) => Some(Finding::warning(
            KUBELET_IS_TOLD,
            format!("containerd does not say what, on {socket}: {error}"),
        )),
    }
}

fn told(handlers: &[Handler], name: &str) -> Option<Finding> {
    // containerd 1 names none, and kubelet expects nothing of them.
    let of_runc = handlers.iter().find(|handler| handler.name == "runc");
    let of_any = of_runc.or(handlers.first())?;
    let Some(ours) = handlers.iter().find(|handler| handler.name == name) else {
        return Some(Finding::warning(
            KUBELET_IS_TOLD,
            format!("the containerd that runs does not know {name} yet: restart it"),
        ));
    };
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
        return Some(Finding::warning(KUBELET_IS_TOLD, says));
    }
    let has = match join(&|ours, _| ours) {
        none if none.is_empty() => {
            "neither user namespaces nor recursive read-only mounts".to_owned()
        }
        has => has,
    };
    Some(Finding::ok(
        KUBELET_IS_TOLD,
        format!("that {name} has {has}"),
    ))
}

/// The lines for containerd's configuration.
fn lines(node: &Node, name: &str, by_path: bool) -> String {
    let known_as = match by_path {
        true => {
            let program = node.shim(PROGRAM);
            let program = program.unwrap_or_else(|| Path::new("/usr/local/bin").join(PROGRAM));
            KnownAs::Path(program)
        }
        false => KnownAs::OwnType,
    };
    lines_for(node.cri_name(), name, &known_as)
}

fn entry(node: &Node) -> Finding {
    let names: Vec<&str> = ours(node).map(|(name, _)| name).collect();
    if !names.is_empty() {
        let said = format!("containerd runs pods with it as {}", names.join(", "));
        return match names.contains(&NAME) {
            true => Finding::ok(RUNTIME, said),
            false => Finding::ok(RUNTIME, format!("{said}: the RuntimeClass's handler")),
        };
    }
    Finding::problem(
        RUNTIME,
        format!(
            "containerd knows no runtime of type {TYPE} or with the path of {PROGRAM}; expected in {}",
            node.config.display()
        ),
    )
    .add(lines(node, NAME, !node.is_1()))
}

/// The shim that containerd would run, and whether it is of this version.
fn shim(node: &Node) -> Finding {
    let named = ours(node).find_map(|(_, runtime)| text(runtime, "runtime_path"));
    let program = match named {
        Some(path) => find("", path),
        None => node.shim(PROGRAM),
    };
    let Some(program) = program else {
        let place = match named {
            Some(path) => format!("{path}, which runtime_path names, is no program"),
            None => format!("{PROGRAM} is not on {}", node.whose_path()),
        };
        return Finding::problem(SHIM, format!("{place}: put it into /usr/local/bin"));
    };
    let shown = program.display();
    match output(Command::new(&program).arg("-v")) {
        Err(error) => Finding::problem(SHIM, format!("{shown} -v fails: {error}")),
        Ok(said) => match version(&said) {
            Some(VERSION) => Finding::ok(SHIM, format!("{shown}, version {VERSION}")),
            Some(other) => Finding::warning(
                SHIM,
                format!("{shown} is version {other}, and this command {VERSION}"),
            ),
            None => Finding::problem(SHIM, format!("{shown} does not say that it is usher's")),
        },
    }
}

/// From what `containerd-shim-usher-v2 -v` says.
fn version(said: &str) -> Option<&str> {
    said.lines()
        .find_map(|line| line.trim().strip_prefix("Version:"))
        .map(str::trim)
}

/// Pods of one kubelet have one kind of cgroup path, so all runtimes have to agree on it. Where no
/// options are given the shim goes by the path itself.
fn driver(node: &Node, kubelet: &Path, name: &str, runtime: &Table) -> Option<Finding> {
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
    if given == theirs {
        return Some(Finding::ok(
            DRIVER,
            format!("{} for {name} and for {other}", shown(given)),
        ));
    }
    Some(
        Finding::warning(
            DRIVER,
            format!(
                "{} for {name}, and {} for {other}",
                shown(given),
                shown(theirs)
            ),
        )
        .add(format!(
            "[{}.options]\n  SystemdCgroup = {theirs}",
            runtime_table(node.cri_name(), name)
        )),
    )
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
        return Finding::problem(OCI_RUNTIME, refusal);
    }
    let name = ours(node).find_map(|(_, runtime)| binary_name(runtime));
    let name = name.unwrap_or_else(|| crate::engine::oci::DEFAULT_BINARY.to_owned());
    let Some(program) = find(&node.path, &name) else {
        return Finding::problem(
            OCI_RUNTIME,
            format!("{name} is not on {}: install it", node.whose_path()),
        );
    };
    match output(Command::new(&program).arg("--version")) {
        Ok(said) => {
            let said = said.lines().next().unwrap_or_default();
            Finding::ok(OCI_RUNTIME, format!("{}: {said}", program.display()))
        }
        Err(error) => Finding::problem(
            OCI_RUNTIME,
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
    use super::super::Level;
    use super::*;

    const V2: &str = super::super::super::containerd::CRI_2;
    const V3: &str = super::super::super::containerd::CRI;

    #[test]
    fn a_runtime_that_containerd_does_not_know_comes_with_the_lines_to_add() {
        for (version, plugin) in [("1.6.20", V2), ("1.7.24", V2), ("2.1.4", V3)] {
            let dump = format!("[plugins.'{plugin}'.containerd]\nx = 1");
            let finding = entry(&Node::with(version, &dump));
            assert_eq!(finding.level, Level::Problem, "{version}");
            let added = format!("{dump}\n{}", finding.add.unwrap());
            let finding = entry(&Node::with(version, &added));
            assert_eq!(finding.level, Level::Ok, "{version}");
        }
    }

    #[test]
    fn a_name_that_containerd_treats_worse_than_runcs_is_judged_by_its_version() {
        let level = |version: &str, plugin: &str, lines: &str| {
            let dump = format!("[plugins.'{plugin}'.containerd.runtimes.usher]\n{lines}");
            let node = Node::with(version, &dump);
            let (name, runtime) = ours(&node).next().unwrap();
            how_known(&node, name, runtime).map(|finding| finding.level)
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
            sandboxes(&node, name, runtime).map(|finding| finding.level)
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
        let finding = sandboxes(&node, name, runtime).unwrap();
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
        assert_eq!(level(&[handler("runc", true)]), Some(Level::Warning));
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
            driver(node, Path::new("/nowhere"), name, runtime)
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

    #[test]
    fn a_shims_version_is_read_from_what_it_says() {
        let said = "containerd-shim-usher-v2:\n  Version:  0.1.0\n  Revision: abc\n";
        assert_eq!(version(said), Some("0.1.0"));
        assert_eq!(version("something else"), None);
    }
}
