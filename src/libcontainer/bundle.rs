//! config.json as libcontainer is given it.
//!
//! What it does not know it would leave out without a word, and a container without something that was to keep it
//! in is worse than none. So a document is refused that says more than the model of it can hold, and so is what
//! libcontainer ignores, or does weaker than runc. What it does in another way than runc is changed, or taken out
//! and done here.

use std::fs;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{
    LinuxCapabilities, LinuxDeviceCgroupBuilder, LinuxDeviceType, LinuxResources, LinuxSeccomp,
    MountBuilder, PosixRlimit, PosixRlimitBuilder, PosixRlimitType, Process, Spec,
};
use libcontainer::utils::get_cgroup_path;
use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cgroups;
use crate::error::Failure;
use crate::mounts::{self, DEV};
use crate::refusals;

const CONFIG: &str = "config.json";

/// The filter of system calls, beside the document that it was taken from.
const SECCOMP: &str = "seccomp.json";

/// Where in a bundle libcontainer finds its own; containerd removes it with the bundle.
const OWN: &str = "libcontainer";

/// A bundle as libcontainer is given it.
pub struct Bundle {
    pub directory: PathBuf,
    pub spec: Spec,
    /// What all processes of the container are under. libcontainer would have none for those that are executed later.
    pub seccomp: Option<LinuxSeccomp>,
}

impl Bundle {
    /// Reads what a container is to be made of.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or asks for what cannot be given.
    pub fn prepare(bundle: &Path, id: &str, is_systemd: bool) -> Result<Bundle, Failure> {
        let file = bundle.join(CONFIG);
        let mut spec: Spec = read(&file)?;
        refusals::refuse(&spec, bundle, is_systemd)?;
        let root = spec.root().as_ref().map(|root| bundle.join(root.path()));
        if let (Some(own), Some(root)) = (spec.root_mut(), root) {
            own.set_path(root);
        }
        mount_dev(&mut spec)?;
        name_mounts(&mut spec);
        complete(&mut spec, id, is_systemd)?;
        if let Some(linux) = spec.linux_mut() {
            let given = linux.rootfs_propagation().clone();
            linux.set_rootfs_propagation(given.map(|word| mounts::word_for(&word).to_owned()));
        }
        let linux = spec.linux_mut().as_mut();
        let seccomp = linux.and_then(|linux| {
            let seccomp = linux.seccomp().clone();
            linux.set_seccomp(None);
            seccomp
        });
        Ok(Bundle {
            directory: bundle.join(OWN),
            spec,
            seccomp,
        })
    }

    /// Reads what was written for a container before.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn of(directory: &Path) -> Result<Bundle, Failure> {
        Ok(Bundle {
            directory: directory.to_owned(),
            spec: read(&directory.join(CONFIG))?,
            seccomp: read(&directory.join(SECCOMP))?,
        })
    }

    /// Writes libcontainer's own, whose process has these capabilities until its program is executed.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&mut self, rights: LinuxCapabilities) -> Result<(), Failure> {
        if let Some(process) = self.spec.process_mut() {
            make_ready(process, rights);
        }
        match fs::create_dir(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Failure::io(&self.directory, error));
            }
            _ => {}
        }
        write(&self.directory.join(CONFIG), &self.spec)?;
        write(&self.directory.join(SECCOMP), &self.seccomp)
    }

    /// The path of the cgroups of container `id`, as libcontainer understands it.
    pub fn cgroup(&self, id: &str, is_systemd: bool) -> PathBuf {
        let linux = self.spec.linux().as_ref();
        let given = get_cgroup_path(linux.map_or(&None, |linux| linux.cgroups_path()), id);
        cgroups::place(&given, is_systemd)
    }

    /// What the container may have, as it was made.
    pub fn resources(&self) -> Option<&LinuxResources> {
        self.spec.linux().as_ref()?.resources().as_ref()
    }

    /// Has its cgroup be where it is from now on, whoever has made it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn move_to(&mut self, cgroup: &Path) -> Result<(), Failure> {
        if let Some(linux) = self.spec.linux_mut() {
            linux.set_cgroups_path(Some(cgroup.to_owned()));
        }
        write(&self.directory.join(CONFIG), &self.spec)
    }

    /// The process that the container is made for.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn process(&self) -> Result<&Process, Failure> {
        let process = self.spec.process().as_ref();
        process.ok_or_else(|| Failure::Refused("config.json has no process".into()))
    }
}

/// Reads a document, which may say no more than its model holds.
///
/// # Errors
///
/// If it cannot be read, or says more.
pub fn read<T: DeserializeOwned + Serialize>(file: &Path) -> Result<T, Failure> {
    parse(
        file,
        &fs::read(file).map_err(|source| Failure::io(file, source))?,
    )
}

/// The same of a document that `file` had.
///
/// # Errors
///
/// If it says more than its model holds.
pub fn parse<T: DeserializeOwned + Serialize>(file: &Path, bytes: &[u8]) -> Result<T, Failure> {
    let wrong = |error: serde_json::Error| Failure::document(file, error);
    let given: Value = serde_json::from_slice(bytes).map_err(wrong)?;
    let model: T = serde_json::from_slice(bytes).map_err(wrong)?;
    let held = serde_json::to_value(&model).map_err(wrong)?;
    match lost(&given, &held) {
        None => Ok(model),
        Some(at) => Err(Failure::document(
            file,
            format!("{at} is not known here, use runc for it"),
        )),
    }
}

/// Writes a document.
///
/// # Errors
///
/// If it cannot be written.
pub fn write<T: Serialize>(file: &Path, document: &T) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(document).map_err(|error| Failure::document(file, error))?;
    fs::write(file, bytes).map_err(|source| Failure::io(file, source))
}

/// The first thing that is given and not held, if it says anything.
fn lost(given: &Value, held: &Value) -> Option<String> {
    match (given, held) {
        (Value::Object(given), Value::Object(held)) => given.iter().find_map(|(key, value)| {
            let lost = match held.get(key) {
                Some(held) => lost(value, held)?,
                None if says_nothing(value) => return None,
                None => String::new(),
            };
            Some(format!(".{key}{lost}"))
        }),
        // Sets come back in another order; they are words, and those are held or the document is refused.
        (Value::Array(given), Value::Array(held)) if given.len() == held.len() => {
            let mut pairs = given.iter().zip(held).enumerate();
            pairs
                .find_map(|(index, (given, held))| Some(format!("[{index}]{}", lost(given, held)?)))
        }
        (Value::Array(given), Value::Array(_)) if given.iter().all(Value::is_string) => None,
        (given, _) if says_nothing(given) => None,
        (Value::Object(_) | Value::Array(_), _) => Some(String::new()),
        _ => None,
    }
}

/// Whether a value is what it would be without being given.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is) => !is,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.values().all(says_nothing),
        Value::Number(_) => false,
    }
}

/// Mounts an empty directory where nothing is mounted at /dev: what each container has there is made by path, and in
/// the container's own files a link could lead anywhere.
fn mount_dev(spec: &mut Spec) -> Result<(), Failure> {
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    if mounts
        .iter()
        .any(|mount| mount.destination() == Path::new(DEV))
    {
        return Ok(());
    }
    let options = ["nosuid", "strictatime", "mode=755", "size=65536k"];
    let dev = MountBuilder::default()
        .destination(DEV)
        .typ("tmpfs")
        .source("tmpfs")
        .options(options.map(ToOwned::to_owned))
        .build();
    // Whatever is mounted below comes after it.
    mounts.insert(0, dev.map_err(|error| Failure::library(&error))?);
    spec.set_mounts(Some(mounts));
    Ok(())
}

/// Gives mounts the type and the options that mean to libcontainer what they mean to runc.
fn name_mounts(spec: &mut Spec) {
    let Some(mounts) = spec.mounts_mut() else {
        return;
    };
    for mount in mounts {
        let mut options = mount.options().clone().unwrap_or_default();
        if options
            .iter()
            .any(|option| option == "bind" || option == "rbind")
        {
            // Whatever else it is called.
            mount.set_typ(Some("bind".to_owned()));
        }
        for option in &mut options {
            if option == "nosymfollow" {
                "rnosymfollow".clone_into(option);
            }
        }
        mount.set_options(Some(options));
    }
}

/// Has a container begin with no device, as with runc, whatever its rules add: without a rule that denies all,
/// libcontainer leaves it those of the node.
fn deny_other_devices(resources: &mut LinuxResources) -> Result<(), Failure> {
    let none = LinuxDeviceCgroupBuilder::default()
        .allow(false)
        .typ(LinuxDeviceType::A)
        .access("rwm")
        .build()
        .map_err(|error| Failure::library(&error))?;
    let given = resources.devices().iter().flatten().cloned();
    resources.set_devices(Some([none].into_iter().chain(given).collect()));
    Ok(())
}

/// Says what libcontainer takes in another way than runc where it is not said.
fn complete(spec: &mut Spec, id: &str, is_systemd: bool) -> Result<(), Failure> {
    if let Some(linux) = spec.linux_mut() {
        let given = linux.cgroups_path().clone();
        let given = given.filter(|path| !path.as_os_str().is_empty());
        let own = match is_systemd {
            true => PathBuf::from(format!(":runc:{id}")),
            false => Path::new("/").join(id),
        };
        linux.set_cgroups_path(Some(given.unwrap_or(own)));
        if let Some(namespaces) = linux.namespaces_mut() {
            for namespace in namespaces {
                let path = namespace.path().clone();
                namespace.set_path(path.filter(|path| !path.as_os_str().is_empty()));
            }
        }
        let resources = linux
            .resources_mut()
            .get_or_insert_with(LinuxResources::default);
        limit_swap(resources);
        deny_other_devices(resources)?;
    }
    if let Some(process) = spec.process_mut() {
        let profile = process.apparmor_profile().clone();
        process.set_apparmor_profile(profile.filter(|profile| !profile.is_empty()));
        let mut limits = process.rlimits().clone().unwrap_or_default();
        if !limits
            .iter()
            .any(|limit| limit.typ() == PosixRlimitType::RlimitMemlock)
            && let Some(own) = own_memlock()
        {
            // libcontainer raises its own where it loads programs into the kernel.
            limits.push(own);
        }
        process.set_rlimits(Some(limits));
    }
    Ok(())
}

/// On cgroup v2 libcontainer takes no swap for no limit of it.
pub fn limit_swap(resources: &mut LinuxResources) {
    let memory = resources.memory().as_ref();
    let is_all = memory.is_some_and(|memory| {
        memory
            .limit()
            .is_some_and(|limit| limit > 0 && memory.swap() == Some(limit))
    });
    if is_all && cgroups::is_unified() {
        let mut unified = resources.unified().clone().unwrap_or_default();
        unified
            .entry("memory.swap.max".to_owned())
            .or_insert_with(|| "0".to_owned());
        resources.set_unified(Some(unified));
    }
}

fn own_memlock() -> Option<PosixRlimit> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    let built = PosixRlimitBuilder::default()
        .typ(PosixRlimitType::RlimitMemlock)
        .soft(soft)
        .hard(hard)
        .build();
    built.ok()
}

/// What a process that is executed in a container has of it, as long as nothing else is said.
pub fn inherit(process: &mut Process, from: &Process) {
    if process
        .apparmor_profile()
        .as_ref()
        .is_none_or(String::is_empty)
    {
        process.set_apparmor_profile(from.apparmor_profile().clone());
    }
    if process.rlimits().as_ref().is_none_or(Vec::is_empty) {
        process.set_rlimits(from.rlimits().clone());
    }
    if process.oom_score_adj().is_none() {
        process.set_oom_score_adj(from.oom_score_adj());
    }
}

/// Has libcontainer give a process these capabilities, and leave its HOME alone: it would ask glibc for it, in the
/// container, and with the container's libraries.
pub fn make_ready(process: &mut Process, rights: LinuxCapabilities) {
    process.set_capabilities(Some(rights));
    let mut env = process.env().clone().unwrap_or_default();
    env.push("HOME=/".to_owned());
    process.set_env(Some(env));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rights;

    use super::*;

    fn config() -> Value {
        json!({
            "ociVersion": "1.1.0",
            "process": { "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": ["/bin/true"], "cwd": "/" },
            "root": { "path": "rootfs" },
            "linux": { "namespaces": [{ "type": "mount" }, { "type": "pid" }] },
        })
    }

    fn prepared(change: impl FnOnce(&mut Value)) -> Result<Bundle, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config();
        change(&mut config);
        fs::write(directory.path().join(CONFIG), config.to_string()).unwrap();
        Bundle::prepare(directory.path(), "a", false)
    }

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        prepared(change).err().expect("refused").to_string()
    }

    #[test]
    fn what_cannot_be_given_is_refused_by_name() {
        for (at, value, named) in [
            (
                "/linux/namespaces/1",
                json!({ "type": "user" }),
                "user namespace",
            ),
            (
                "/linux/namespaces/0",
                json!({ "type": "ipc" }),
                "mount namespace",
            ),
            (
                "/process/user",
                json!({ "uid": 0, "gid": 0, "ofALaterVersion": 1 }),
                ".process.user.ofALaterVersion",
            ),
            (
                "/root",
                json!({ "path": "rootfs", "new": [{ "a": true }] }),
                ".root.new",
            ),
        ] {
            let error = refusal(|config| *config.pointer_mut(at).unwrap() = value);
            assert!(error.contains(named), "{error}");
        }
        for (within, key, value, named) in [
            (
                "/process",
                "selinuxLabel",
                json!("system_u:system_r:a:s0"),
                "process.selinuxLabel",
            ),
            (
                "/linux",
                "mountLabel",
                json!("system_u:object_r:a:s0"),
                "linux.mountLabel",
            ),
            (
                "/linux",
                "intelRdt",
                json!({ "closID": "a" }),
                "linux.intelRdt",
            ),
            (
                "/linux",
                "personality",
                json!({ "domain": "LINUX", "flags": ["ADDR_NO_RANDOMIZE"] }),
                "personality",
            ),
            (
                "/linux",
                "seccomp",
                json!({ "defaultAction": "SCMP_ACT_NOTIFY" }),
                "SCMP_ACT_NOTIFY",
            ),
            (
                "/linux",
                "seccomp",
                json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{ "names": ["a"], "action": "SCMP_ACT_NOTIFY" }] }),
                "SCMP_ACT_NOTIFY",
            ),
            (
                "/linux",
                "ofALaterVersion",
                json!({ "is": true }),
                ".linux.ofALaterVersion",
            ),
            ("", "ofALaterVersion", json!(3), ".ofALaterVersion"),
            (
                "",
                "mounts",
                json!([{ "destination": "/dev", "type": "bind", "source": "/dev" }]),
                "at /dev",
            ),
            (
                "",
                "mounts",
                json!([{ "destination": "/", "type": "tmpfs", "source": "tmpfs" }]),
                "at /:",
            ),
            (
                "",
                "mounts",
                json!([{
                    "destination": "/data", "type": "bind", "source": "/a",
                    "uidMappings": [{ "containerID": 0, "hostID": 7, "size": 1 }],
                }]),
                "other owners, at /data",
            ),
            (
                "/linux",
                "devices",
                json!([{ "path": "/etc/null", "type": "c", "major": 1, "minor": 3 }]),
                "/etc/null",
            ),
            (
                "/linux",
                "devices",
                json!([{ "path": "/dev/../x", "type": "c", "major": 1, "minor": 3 }]),
                "/dev/../x",
            ),
            (
                "",
                "mounts",
                json!([{ "destination": "dev", "type": "bind", "source": "/dev", "options": ["rbind"] }]),
                "no absolute path",
            ),
            ("/process", "cwd", json!("bin"), "process.cwd"),
            (
                "",
                "mounts",
                json!([{ "destination": "/proc/self", "type": "tmpfs", "source": "tmpfs" }]),
                "/proc/self",
            ),
            (
                "",
                "mounts",
                json!([{ "destination": "/proc", "type": "bind", "source": "/a", "options": ["bind"] }]),
                "/proc",
            ),
            (
                "",
                "mounts",
                json!([{ "destination": "/data/../proc", "type": "tmpfs", "source": "tmpfs" }]),
                "goes up",
            ),
            (
                "",
                "mounts",
                json!([{ "destination": "/a", "source": "/b", "options": ["bind", "sync"] }]),
                "\"sync\"",
            ),
            (
                "",
                "hooks",
                json!({ "createContainer": [{ "path": "/bin/true" }] }),
                "hooks.createContainer",
            ),
            ("/linux", "cgroupsPath", json!("/a/../b"), "/a/../b"),
            ("/linux", "cgroupsPath", json!("/"), "a cgroup at /:"),
            (
                "/linux",
                "resources",
                json!({ "devices": [{ "allow": false, "type": "c", "major": 1, "minor": 3, "access": "w" }] }),
                "denies in part",
            ),
            (
                "/linux",
                "resources",
                json!({ "rdma": { "mlx5_1": { "hcaHandles": 3 } } }),
                "rdma",
            ),
        ] {
            let error = refusal(|config| {
                config.pointer_mut(within).unwrap()[key] = value;
            });
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn an_image_whose_dev_leads_elsewhere_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(CONFIG), config().to_string()).unwrap();
        fs::create_dir(directory.path().join("rootfs")).unwrap();
        assert!(Bundle::prepare(directory.path(), "a", false).is_ok());
        std::os::unix::fs::symlink("/etc", directory.path().join("rootfs/dev")).unwrap();
        let error = Bundle::prepare(directory.path(), "a", false)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("/dev is a link"), "{error}");
    }

    #[test]
    fn what_says_nothing_is_no_reason_to_refuse() {
        let bundle = prepared(|config| {
            config["process"]["selinuxLabel"] = json!("");
            config["linux"]["ofALaterVersion"] = json!({ "is": false, "words": [], "name": "" });
            config["linux"]["seccomp"] = Value::Null;
        });
        assert!(bundle.is_ok());
    }

    #[test]
    fn something_is_mounted_at_dev_before_anything_below_it() {
        let mounts_of = |given: Value| {
            let bundle = prepared(|config| config["mounts"] = given).unwrap();
            let mounts = bundle.spec.mounts().clone().unwrap();
            let destinations = mounts
                .iter()
                .map(|mount| mount.destination().display().to_string());
            destinations.collect::<Vec<_>>()
        };
        let pts = json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts" });
        let dev = json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs" });
        assert_eq!(mounts_of(json!([pts])), ["/dev", "/dev/pts"]);
        assert_eq!(mounts_of(json!([pts, dev])), ["/dev/pts", "/dev"]);
    }

    #[test]
    fn the_filter_of_system_calls_is_kept_and_libcontainer_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config();
        config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "syscalls": [{ "names": ["read", "write"], "action": "SCMP_ACT_ALLOW" }],
        });
        fs::write(directory.path().join(CONFIG), config.to_string()).unwrap();
        let mut bundle = Bundle::prepare(directory.path(), "a", false).unwrap();
        bundle.write(rights::given(None).unwrap()).unwrap();
        assert!(bundle.seccomp.is_some());
        assert_eq!(bundle.spec.linux().as_ref().unwrap().seccomp(), &None);
        let again = Bundle::of(&bundle.directory).unwrap();
        assert_eq!((again.spec, again.seccomp), (bundle.spec, bundle.seccomp));
        assert_eq!(again.directory, directory.path().join(OWN));
    }
}
