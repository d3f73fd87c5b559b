//! Files that a pod's containers share: hostname, hosts, resolv.conf and shared memory.
//!
//! Containers may write to hostname, hosts and resolv.conf. So these three are on disk, in
//! containerd's root directory, as for a pause container. (containerd's state directory is in
//! memory.) The bundle's link `work` leads to the directory on disk, which containerd removes with
//! the bundle. Shared memory, mounted namespaces and the shim's notes are in the bundle, to which
//! no container can write.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};

use usher_api::cri::{DNSConfig, PodSandboxConfig};
use usher_linux::PathError;

use super::error::FilesError;

/// Directory in the bundle for the sandbox's files.
const DIRECTORY: &str = "usher-sandbox";

/// containerd's link in the bundle to the sandbox's directory on disk.
const ON_DISK: &str = "work";

/// Files on disk, each with its path in a container and its name in the directory `work`.
const TEXTS: [(&str, &str); 3] = [
    ("/etc/hostname", HOSTNAME),
    ("/etc/hosts", HOSTS),
    ("/etc/resolv.conf", RESOLV),
];
const HOSTNAME: &str = "hostname";
const HOSTS: &str = "hosts";
const RESOLV: &str = "resolv.conf";

/// Path of the shared memory in a container.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";
/// Name of the shared memory in the bundle's directory `usher-sandbox`.
const MEMORY: &str = "shm";

/// Directory in `usher-sandbox` for mounted namespaces.
const PINS: &str = "ns";

/// File in `usher-sandbox` that notes the cgroup made for the sandbox's own processes.
const CGROUP: &str = "cgroup.json";

/// Maximum number of bytes that the shim reads from `cgroup.json`.
const CGROUP_AT_MOST: u64 = 64 * 1024;

/// Mount options of the shared memory, as with a pause container: 64 MiB, writable by all.
const MEMORY_OPTIONS: &str = "mode=1777,size=67108864";

/// Mode of the files, as with a pause container.
const MODE: u32 = 0o644;

/// Contents of the files that a pod's containers share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Files {
    /// Host name of the pod. Empty if the pod uses the node's host name.
    hostname: String,
    /// Content of the pod's `resolv.conf`. `None` if the pod uses the node's file.
    resolv: Option<String>,
    /// False if the pod uses the node's shared memory.
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

    /// Makes the files, in the mount namespace of the node. A disk may stall this.
    ///
    /// # Errors
    ///
    /// If a file cannot be made. Other files may then be left in the bundle; [`remove`] removes
    /// them.
    pub fn make(&self, bundle: &Path) -> Result<(), FilesError> {
        let on_disk = bundle.join(ON_DISK);
        if !on_disk.is_dir() {
            return Err(FilesError::NoDirectory(on_disk));
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
            fs::create_dir_all(&memory).map_err(PathError::cannot("make", &memory))?;
            let flags = MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            let (from, kind) = (Some("shm"), Some("tmpfs"));
            mount(from, &memory, kind, flags, Some(MEMORY_OPTIONS))
                .map_err(PathError::cannot("mount shared memory at", &memory))?;
        }
        Ok(())
    }

    /// Files that containers share: path in a container, and path on the node.
    pub fn shared(&self, bundle: &Path) -> Vec<(&'static str, PathBuf)> {
        let texts = TEXTS.into_iter();
        let texts = texts.map(|(place, name)| (place, bundle.join(ON_DISK).join(name)));
        let memory = (SHARED_MEMORY, directory(bundle).join(MEMORY));
        let memory = self.has_memory.then_some(memory);
        texts.chain(memory).collect()
    }
}

/// Makes the directory `usher-sandbox` in the bundle, and returns its path.
pub(super) fn make_directory(bundle: &Path) -> Result<PathBuf, PathError> {
    let directory = directory(bundle);
    fs::create_dir_all(&directory).map_err(PathError::cannot("make", &directory))?;
    Ok(directory)
}

/// Notes the directories of the cgroup for the sandbox's own processes, before the cgroup is made.
/// `delete` needs the note if the shim dies.
pub(super) fn note_cgroup(bundle: &Path, cgroup: &BTreeSet<PathBuf>) -> Result<(), FilesError> {
    let text = serde_json::to_vec(cgroup)?;
    Ok(write(&make_directory(bundle)?.join(CGROUP), &text)?)
}

/// Reads the directories that [`note_cgroup`] has recorded in the bundle. Returns an empty set if
/// the record is missing or cannot be read.
pub(super) fn noted_cgroup(bundle: &Path) -> BTreeSet<PathBuf> {
    let file = fs::File::open(directory(bundle).join(CGROUP));
    let noted = file.map(|file| serde_json::from_reader(file.take(CGROUP_AT_MOST)));
    match noted {
        Ok(Ok(noted)) => noted,
        Ok(Err(error)) => {
            tracing::warn!(bundle = %bundle.display(), %error, "cannot read the cgroup's note");
            BTreeSet::new()
        }
        // Not every sandbox has a note.
        Err(_) => BTreeSet::new(),
    }
}

/// Unmounts and removes the files in the bundle. containerd removes the files on disk with the
/// bundle.
pub(super) fn remove(bundle: &Path) {
    let directory = directory(bundle);
    // A path may have several mounts, so unmount until none is left.
    let pins = fs::read_dir(pins(bundle)).into_iter().flatten().flatten();
    let mounts = pins.map(|pin| pin.path()).chain([directory.join(MEMORY)]);
    mounts.for_each(|path| while umount2(&path, MntFlags::MNT_DETACH).is_ok() {});
    match fs::remove_dir_all(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(path = %directory.display(), %error, "cannot remove its files");
        }
    }
}

pub(super) fn pins(bundle: &Path) -> PathBuf {
    directory(bundle).join(PINS)
}

/// True if a sandbox was made in this bundle, and has not been removed.
pub(super) fn are_in(bundle: &Path) -> bool {
    directory(bundle).exists()
}

fn directory(bundle: &Path) -> PathBuf {
    bundle.join(DIRECTORY)
}

/// Reads a file of the node; empty if it does not exist.
fn read(path: &str) -> Result<Vec<u8>, PathError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(PathError::cannot("read", Path::new(path))),
    }
}

/// Writes a file that is readable by all, regardless of the umask.
fn write(path: &Path, text: &[u8]) -> Result<(), PathError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let written = options.open(path).and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.write_all(text)
    });
    written.map_err(PathError::cannot("write", path))
}

/// Content of `resolv.conf(5)`.
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
    fn resolv_conf_has_kubelets_settings() {
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
    fn files_that_containers_write_to_are_on_disk_and_not_in_the_bundle() {
        let (bundle, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Files {
            hostname: "web-0".to_owned(),
            resolv: Some(String::new()),
            has_memory: false,
        };
        let refused = files.make(bundle.path()).unwrap_err().to_string();
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
    fn a_pod_with_the_nodes_shared_memory_gets_none_of_its_own() {
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
    fn the_note_of_a_cgroup_is_read_and_removed_with_the_files() {
        let bundle = tempfile::tempdir().unwrap();
        assert!(!are_in(bundle.path()) && noted_cgroup(bundle.path()).is_empty());
        let cgroup = BTreeSet::from([PathBuf::from("/sys/fs/cgroup/pod/s1")]);
        note_cgroup(bundle.path(), &cgroup).unwrap();
        assert!(are_in(bundle.path()));
        assert_eq!(noted_cgroup(bundle.path()), cgroup);
        // The note about the cgroup is malformed.
        fs::write(directory(bundle.path()).join(CGROUP), "[").unwrap();
        assert!(noted_cgroup(bundle.path()).is_empty());
        remove(bundle.path());
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 0);
        // A second removal does no harm.
        remove(bundle.path());
    }
}
