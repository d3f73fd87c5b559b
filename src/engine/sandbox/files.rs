//! The files that the containers of a pod share: its host name, its hosts, how names are resolved, and the
//! memory that they can share. They are in the sandbox's bundle, which containerd removes with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::cri::{DNSConfig, PodSandboxConfig};

/// The directory in the bundle.
const DIRECTORY: &str = "usher-sandbox";

/// Where each of them is in a container, and in the directory.
const SHARED: [(&str, &str); 4] = [
    ("/etc/hostname", "hostname"),
    ("/etc/hosts", "hosts"),
    ("/etc/resolv.conf", "resolv.conf"),
    (SHARED_MEMORY, "shm"),
];

/// Where memory is that processes share.
pub(in crate::engine) const SHARED_MEMORY: &str = "/dev/shm";

/// The directory in that one where namespaces are mounted that no process holds.
const PINS: &str = "ns";

/// How much of it there may be, as with a pause container: 64 MiB, for everybody.
const MEMORY_OPTIONS: &str = "mode=1777,size=67108864";

/// What is in them.
#[derive(Clone, Debug)]
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

    /// Makes them.
    ///
    /// # Errors
    ///
    /// One sentence. What was made is removed by [`remove`].
    pub fn make(&self, bundle: &Path) -> Result<(), String> {
        let directory = directory(bundle);
        let at = |name: &str| directory.join(name);
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| format!("{path}: {error}")
        };
        fs::create_dir_all(&directory).map_err(failed(&directory))?;
        let hostname = match self.hostname.as_str() {
            "" => fs::read_to_string("/proc/sys/kernel/hostname")
                .map_err(failed(Path::new("/proc/sys/kernel/hostname")))?,
            name => format!("{name}\n"),
        };
        fs::write(at("hostname"), hostname).map_err(failed(&at("hostname")))?;
        copy("/etc/hosts", &at("hosts"))?;
        match &self.resolv {
            Some(text) => fs::write(at("resolv.conf"), text).map_err(failed(&at("resolv.conf")))?,
            None => copy("/etc/resolv.conf", &at("resolv.conf"))?,
        }
        if self.has_memory {
            let memory = at("shm");
            fs::create_dir_all(&memory).map_err(failed(&memory))?;
            let flags = MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(
                Some("shm"),
                &memory,
                Some("tmpfs"),
                flags,
                Some(MEMORY_OPTIONS),
            )
            .map_err(|error| failed(&memory)(error.into()))?;
        }
        Ok(())
    }
}

/// Unmounts and removes what there is of them.
pub(super) fn remove(bundle: &Path) {
    let directory = directory(bundle);
    // As often as it was mounted; what is no mount says so.
    let pins = fs::read_dir(pins(bundle)).into_iter().flatten().flatten();
    let mounts = pins.map(|pin| pin.path()).chain([directory.join("shm")]);
    mounts.for_each(|path| while umount2(&path, MntFlags::MNT_DETACH).is_ok() {});
    match fs::remove_dir_all(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %directory.display(), %error, "not removed"),
    }
}

/// Where a container that shares them has each, and where that is on the node.
pub(in crate::engine) fn shared(bundle: &Path) -> Vec<(&'static str, PathBuf)> {
    let directory = directory(bundle);
    let places = SHARED.into_iter();
    let places = places.map(|(place, name)| (place, directory.join(name)));
    places.filter(|(_, path)| path.exists()).collect()
}

/// Where namespaces are mounted that no process holds.
pub(super) fn pins(bundle: &Path) -> PathBuf {
    directory(bundle).join(PINS)
}

/// Whether there are any.
pub(super) fn are_in(bundle: &Path) -> bool {
    directory(bundle).exists()
}

fn directory(bundle: &Path) -> PathBuf {
    bundle.join(DIRECTORY)
}

/// A node without such a file has pods with an empty one.
fn copy(from: &str, to: &Path) -> Result<(), String> {
    let text = match fs::read(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read.map_err(|error| format!("{from}: {error}"))?,
    };
    fs::write(to, text).map_err(|error| format!("{}: {error}", to.display()))
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
    fn what_is_made_is_shared_and_can_be_removed() {
        let bundle = tempfile::tempdir().unwrap();
        let files = Files {
            hostname: "web-0".to_owned(),
            resolv: Some(String::new()),
            has_memory: false,
        };
        files.make(bundle.path()).unwrap();
        let shared = shared(bundle.path());
        let places: Vec<_> = shared.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"]);
        assert_eq!(fs::read_to_string(&shared[0].1).unwrap(), "web-0\n");
        remove(bundle.path());
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 0);
        // Nothing is left to be removed.
        remove(bundle.path());
    }
}
