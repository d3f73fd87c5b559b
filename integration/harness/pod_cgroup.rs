//! A pod's cgroup, which the test makes before the first container, as kubelet does. The containers
//! in this cgroup may have settings for which `ctr` has no options.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Containerd, Finished, PATIENCE, default_config, runtime_under_test};

const ROOT: &str = "/sys/fs/cgroup";

/// True if all cgroups are v2.
pub fn on_v2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// True if containers can have CPU and memory limits. A machine with both cgroup versions uses v1
/// for these controllers. So in a mount namespace that shows only v2, containers cannot have
/// limits.
pub fn has_controllers() -> bool {
    let list = fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"));
    let has = |list: &str, name| list.split_whitespace().any(|word| word == name);
    list.map_or(true, |list| has(&list, "cpu") && has(&list, "memory"))
}

/// The cgroup of a pod, made by the test or by another program.
pub struct CgroupFiles {
    /// The cgroup's path, of the form `/<namespace>/<name>`.
    pub path: String,
}

/// A cgroup below the test's own cgroup, with the controllers of CPU and memory. Dropping the value
/// deletes all containers, and then removes the cgroup.
pub struct PodCgroup<'host> {
    host: &'host Containerd,
    files: CgroupFiles,
}

impl Deref for PodCgroup<'_> {
    type Target = CgroupFiles;

    fn deref(&self) -> &CgroupFiles {
        &self.files
    }
}

impl CgroupFiles {
    /// The cgroup's directory. With cgroup v1 each controller has a hierarchy with such a
    /// directory.
    pub fn directory(&self, controller: &str) -> PathBuf {
        directory(&self.path, controller)
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        let name = if on_v2() { v2 } else { v1 };
        let controller = v1.split('.').next().expect("a name");
        self.directory(controller).join(name)
    }

    #[track_caller]
    pub fn read(&self, v1: &str, v2: &str) -> String {
        let file = self.file(v1, v2);
        let text = fs::read_to_string(&file);
        let text = text.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        text.trim().to_owned()
    }

    #[track_caller]
    pub fn write(&self, v1: &str, v2: &str, value: &str) {
        let file = self.file(v1, v2);
        fs::write(&file, value).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }

    /// The memory limit in bytes; `None` if there is none.
    #[track_caller]
    pub fn memory_limit(&self) -> Option<u64> {
        let text = self.read("memory.limit_in_bytes", "memory.max");
        // Without a limit, v1 reports a number that exceeds every machine's memory.
        text.parse().ok().filter(|limit| *limit < 1 << 60)
    }

    #[track_caller]
    pub fn limit_memory(&self, bytes: u64) {
        let (v1, v2) = ("memory.limit_in_bytes", "memory.max");
        self.write(v1, v2, &bytes.to_string());
    }

    #[track_caller]
    pub fn memory_usage(&self) -> u64 {
        let text = self.read("memory.usage_in_bytes", "memory.current");
        text.parse().expect("a number")
    }

    /// The CPU limit in thousandths of a CPU; `None` if there is none.
    #[track_caller]
    pub fn cpu_limit(&self) -> Option<u64> {
        let (quota, period) = match on_v2() {
            true => {
                let text = self.read("", "cpu.max");
                let (quota, period) = text.split_once(' ').expect("a quota and a period");
                (quota.to_owned(), period.to_owned())
            }
            false => (
                self.read("cpu.cfs_quota_us", ""),
                self.read("cpu.cfs_period_us", ""),
            ),
        };
        let quota: u64 = quota.parse().ok()?;
        Some(quota * 1000 / period.parse::<u64>().expect("a period"))
    }

    #[track_caller]
    pub fn limit_cpu(&self, millis: u64) {
        let quota = millis * 100;
        match on_v2() {
            true => self.write("cpu.", "cpu.max", &format!("{quota} 100000")),
            false => self.write("cpu.cfs_quota_us", "", &quota.to_string()),
        }
    }
}

impl<'host> PodCgroup<'host> {
    /// A pod's cgroup that another program made.
    pub fn at(host: &'host Containerd, path: &str) -> Self {
        let path = path.to_owned();
        let files = CgroupFiles { path };
        Self { host, files }
    }

    #[track_caller]
    pub fn new(host: &'host Containerd, name: &str) -> Self {
        let pod = Self::at(host, &format!("/{}/{name}", host.name));
        make(&pod.path);
        pod
    }

    /// Runs a container of this pod in the background. The container has the default configuration
    /// of `ctr`, with the changes that `edit` makes.
    pub fn try_run(&self, id: &str, args: &[&str], edit: impl FnOnce(&mut Value)) -> Finished {
        let mut config = default_config(self.host, id, args);
        config["linux"]["cgroupsPath"] = format!("{}/{id}", self.path).into();
        config["annotations"] = serde_json::json!({
            "io.kubernetes.cri.sandbox-id": "pod1",
            "io.kubernetes.cri.container-name": id,
        });
        edit(&mut config);
        let file = self.host.dir().join(format!("{id}.json"));
        fs::write(&file, config.to_string()).expect("a configuration");
        let (file, runtime) = (file.display().to_string(), runtime_under_test());
        let fifos = self.host.dir().join("fifo").display().to_string();
        let run = ["run", "--detach", "--fifo-dir", &fifos];
        self.host
            .ctr(&[&run[..], &["--runtime", &runtime, "--config", &file, id]].concat())
    }

    #[track_caller]
    pub fn run(&self, id: &str, args: &[&str], edit: impl FnOnce(&mut Value)) {
        let before = self.host.creations(id);
        let run = self.try_run(id, args, edit);
        assert!(run.ok(), "{id} did not start: {}", run.err());
        self.host.await_creation(id, before);
    }
}

impl Drop for PodCgroup<'_> {
    fn drop(&mut self) {
        for problem in self.host.delete_all() {
            eprintln!("{problem}");
        }
        remove(&self.path);
    }
}

fn directory(path: &str, controller: &str) -> PathBuf {
    let root = match on_v2() {
        true => PathBuf::from(ROOT),
        false => Path::new(ROOT).join(controller),
    };
    root.join(path.trim_start_matches('/'))
}

/// Makes a pod's cgroup as kubelet does.
#[track_caller]
pub(super) fn make(path: &str) {
    if !has_controllers() {
        fs::create_dir_all(directory(path, "")).expect("the pod's cgroup");
    } else if on_v2() {
        // A child cgroup can use a controller only if its parent has enabled it.
        let _ = fs::write(
            Path::new(ROOT).join("cgroup.subtree_control"),
            "+cpu +memory",
        );
        let own = directory(path, "");
        fs::create_dir_all(&own).expect("the pod's cgroup");
        let parent = own.parent().expect("a parent");
        fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory").expect("controllers");
    } else {
        for controller in ["cpu", "memory"] {
            fs::create_dir_all(directory(path, controller)).expect("the pod's cgroup");
        }
    }
}

/// Removes an empty cgroup.
pub(super) fn remove(path: &str) {
    let roots = fs::read_dir(ROOT).into_iter().flatten().flatten();
    let roots = roots.map(|entry| entry.path()).chain([PathBuf::from(ROOT)]);
    for root in roots {
        let _ = fs::remove_dir(root.join(path.trim_start_matches('/')));
    }
}

pub fn annotate(config: &mut Value, annotations: &[(&str, &str)]) {
    for (key, value) in annotations {
        config["annotations"][*key] = (*value).into();
    }
}

/// Waits until `read` returns `wanted`. Otherwise fails the test and prints the last value.
#[track_caller]
pub fn await_value<T: PartialEq + std::fmt::Debug>(what: &str, wanted: &T, read: impl Fn() -> T) {
    let last = std::cell::RefCell::new(None);
    let reached = super::poll(PATIENCE, || {
        let value = read();
        let is_wanted = value == *wanted;
        *last.borrow_mut() = Some(value);
        is_wanted.then_some(())
    });
    assert!(
        reached.is_some(),
        "{what} is {:?}, not {wanted:?}",
        last.borrow()
    );
}
