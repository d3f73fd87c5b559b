//! The files that the containers of a pod share: its host name, its hosts, how names are resolved, and the
//! memory that they can share.
//!
//! Containers may write to the first three. They are where containerd keeps those of a pause container's
//! sandbox: in its root directory, which is on a disk, and not in its state directory, which is in memory. A
//! bundle has a link there, `work`, and containerd removes the directory with the bundle. Memory, pinned
//! namespaces and the shim's notes are in the bundle, which no container can write to.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};

use crate::cri::{DNSConfig, PodSandboxConfig};

/// The directory in the bundle.
const DIRECTORY: &str = "usher-sandbox";

/// containerd's link in the bundle to a directory of the sandbox's own on disk.
const ON_DISK: &str = "work";

/// The files on disk: where each is in a container, and its name.
const TEXTS: [(&str, &str); 3] = [
    ("/etc/hostname", HOSTNAME),
    ("/etc/hosts", HOSTS),
    ("/etc/resolv.conf", RESOLV),
];
const HOSTNAME: &str = "hostname";
const HOSTS: &str = "hosts";
const RESOLV: &str = "resolv.conf";

/// The memory that processes share: its place in a container, and its name in the bundle's directory.
pub(in crate::engine) const SHARED_MEMORY: &str = "/dev/shm";
const MEMORY: &str = "shm";

/// The directory in the bundle's where namespaces are mounted that no process holds.
const PINS: &str = "ns";

/// The note in the bundle's directory of the cgroup that was made for the sandbox's own processes.
const CGROUP: &str = "cgroup.json";

/// The most that is read of that note, in bytes.
const CGROUP_AT_MOST: u64 = 64 * 1024;

/// How much of it there may be, as with a pause container: 64 MiB, for everybody.
const MEMORY_OPTIONS: &str = "mode=1777,size=67108864";

/// The mode that containerd gives these files for a pause container.
const MODE: u32 = 0o644;

/// The content of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Files {
    /// Empty for the node's.
    hostname: String,
    /// None for the node's.
    resolv: Option<String>,
    /// Not where the pod has the node's.
    has_memory: bool,
}

impl Files {
    pub fn of(config: &PodSandboxConfig, has_memory: bool) -> Files {
        Files {
            hostname: config.hostname.clone(),
            resolv: config.dns_config.as_ref().map(resolv),
            has_memory,
        }
    }

    /// Makes the files, in the mount namespace of the node. The disk may stall this.
    ///
    /// # Errors
    ///
    /// A sentence with the path. [`remove`] removes what was made in the bundle.
    pub fn make(&self, bundle: &Path) -> Result<(), String> {
        let on_disk = bundle.join(ON_DISK);
        if !on_disk.is_dir() {
            return Err(format!(
                "{} does not lead to a directory, expected containerd's own of this bundle on disk",
                on_disk.display()
            ));
        }
        let hostname = match self.hostname.as_str() {
            "" => read("/proc/sys/kernel/hostname")?,
            name => format!("{name}\n").into_bytes(),
        };
        let resolv = match &self.resolv {
            Some(text) => text.clone().into_bytes(),
            None => read("/etc/resolv.conf")?,
        };
        let texts = [
            (HOSTNAME, hostname),
            (HOSTS, read("/etc/hosts")?),
            (RESOLV, resolv),
        ];
        for (name, text) in texts {
            write(&on_disk.join(name), &text)?;
        }
        if self.has_memory {
            let memory = make_directory(bundle)?.join(MEMORY);
            fs::create_dir_all(&memory).map_err(failed(&memory))?;
            let flags = MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            let (from, kind) = (Some("shm"), Some("tmpfs"));
            mount(from, &memory, kind, flags, Some(MEMORY_OPTIONS))
                .map_err(|error| failed(&memory)(error.into()))?;
        }
        Ok(())
    }

    /// The files that containers share: the place of each in a container, and its path on the node.
    pub fn shared(&self, bundle: &Path) -> Vec<(&'static str, PathBuf)> {
        let texts = TEXTS.into_iter();
        let texts = texts.map(|(place, name)| (place, bundle.join(ON_DISK).join(name)));
        let memory = (SHARED_MEMORY, directory(bundle).join(MEMORY));
        let memory = self.has_memory.then_some(memory);
        texts.chain(memory).collect()
    }
}

/// Makes the directory in the bundle, and names it.
pub(super) fn make_directory(bundle: &Path) -> Result<PathBuf, String> {
    let directory = directory(bundle);
    fs::create_dir_all(&directory).map_err(failed(&directory))?;
    Ok(directory)
}

/// Notes the directories of the cgroup that is going to be made for the sandbox's own processes: `delete` needs them
/// after the shim has died.
pub(super) fn note_cgroup(bundle: &Path, cgroup: &BTreeSet<PathBuf>) -> Result<(), String> {
    let text = serde_json::to_vec(cgroup).map_err(|error| error.to_string())?;
    write(&make_directory(bundle)?.join(CGROUP), &text)
}

/// The directories that were noted; none if nothing was.
pub(super) fn noted_cgroup(bundle: &Path) -> BTreeSet<PathBuf> {
    let file = fs::File::open(directory(bundle).join(CGROUP));
    let noted = file.map(|file| serde_json::from_reader(file.take(CGROUP_AT_MOST)));
    match noted {
        Ok(Ok(noted)) => noted,
        Ok(Err(error)) => {
            tracing::warn!(bundle = %bundle.display(), %error, "the sandbox's cgroup is not known");
            BTreeSet::new()
        }
        // A sandbox need not have one.
        Err(_) => BTreeSet::new(),
    }
}

/// Unmounts and removes what is in the bundle. containerd removes what is on disk, with the bundle.
pub(super) fn remove(bundle: &Path) {
    let directory = directory(bundle);
    // As often as it was mounted; what is no mount says so.
    let pins = fs::read_dir(pins(bundle)).into_iter().flatten().flatten();
    let mounts = pins.map(|pin| pin.path()).chain([directory.join(MEMORY)]);
    mounts.for_each(|path| while umount2(&path, MntFlags::MNT_DETACH).is_ok() {});
    match fs::remove_dir_all(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %directory.display(), %error, "not removed"),
    }
}

/// Where namespaces are mounted that no process holds.
pub(super) fn pins(bundle: &Path) -> PathBuf {
    directory(bundle).join(PINS)
}

/// True if a sandbox was made in this bundle and not removed since.
pub(super) fn are_in(bundle: &Path) -> bool {
    directory(bundle).exists()
}

fn directory(bundle: &Path) -> PathBuf {
    bundle.join(DIRECTORY)
}

/// A file of the node; empty if there is none.
fn read(path: &str) -> Result<Vec<u8>, String> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| format!("{path}: {error}")),
    }
}

/// Writes a file that anybody may read, whatever the umask.
fn write(path: &Path, text: &[u8]) -> Result<(), String> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let mut file = options.open(path).map_err(failed(path))?;
    file.set_permissions(Permissions::from_mode(MODE))
        .and_then(|()| file.write_all(text))
        .map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

/// As `resolv.conf(5)` has it.
fn resolv(config: &DNSConfig) -> String {
    let line = |word: &str, values: &[String]| match values {
        [] => String::new(),
        values => format!("{word} {}\n", values.join(" ")),
    };
    let servers = config.servers.iter();
    let servers: String = servers
        .map(|server| format!("nameserver {server}\n"))
        .collect();
    [
        line("search", &config.searches),
        servers,
        line("options", &config.options),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn names_are_resolved_as_kubelet_says() {
        let config = DNSConfig {
            servers: words(&["10.0.0.10", "1.1.1.1"]),
            searches: words(&["a.svc", "svc"]),
            options: words(&["ndots:5"]),
            ..DNSConfig::new()
        };
        let expected =
            "search a.svc svc\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n";
        assert_eq!(resolv(&config), expected);
        assert_eq!(resolv(&DNSConfig::new()), "");
    }

    #[test]
    fn what_containers_write_to_is_on_disk_and_not_in_the_bundle() {
        let (bundle, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Files {
            hostname: "web-0".to_owned(),
            resolv: Some(String::new()),
            has_memory: false,
        };
        let refused = files.make(bundle.path()).unwrap_err();
        assert!(
            refused.contains("work does not lead to a directory"),
            "{refused}"
        );
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 0);

        std::os::unix::fs::symlink(root.path(), bundle.path().join(ON_DISK)).unwrap();
        files.make(bundle.path()).unwrap();
        let shared = files.shared(bundle.path());
        let places: Vec<_> = shared.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"]);
        for (_, path) in &shared {
            let real = path.canonicalize().unwrap();
            assert!(
                real.starts_with(root.path().canonicalize().unwrap()),
                "{real:?}"
            );
            assert_eq!(
                fs::metadata(path).unwrap().permissions().mode() & 0o777,
                MODE
            );
        }
        assert_eq!(fs::read_to_string(&shared[0].1).unwrap(), "web-0\n");
        remove(bundle.path());
    }

    #[test]
    fn a_pod_with_the_nodes_memory_shares_none_of_its_own() {
        let memory = |has_memory| {
            let files = Files {
                has_memory,
                ..Files::default()
            };
            files.shared(Path::new("/b")).pop().unwrap()
        };
        assert_eq!(memory(true).0, SHARED_MEMORY);
        assert_eq!(memory(false).0, "/etc/resolv.conf");
    }

    #[test]
    fn a_noted_cgroup_is_found_and_removed_with_the_rest() {
        let bundle = tempfile::tempdir().unwrap();
        assert!(!are_in(bundle.path()) && noted_cgroup(bundle.path()).is_empty());
        let cgroup = BTreeSet::from([PathBuf::from("/sys/fs/cgroup/pod/s1")]);
        note_cgroup(bundle.path(), &cgroup).unwrap();
        assert!(are_in(bundle.path()));
        assert_eq!(noted_cgroup(bundle.path()), cgroup);
        // What is there is no note.
        fs::write(directory(bundle.path()).join(CGROUP), "[").unwrap();
        assert!(noted_cgroup(bundle.path()).is_empty());
        remove(bundle.path());
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 0);
        // Nothing is left to be removed.
        remove(bundle.path());
    }
}
