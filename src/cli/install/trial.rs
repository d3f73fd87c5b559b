//! The trial: starts a containerd with the new configuration, but with directories and sockets that
//! differ from those of the node's containerd.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use toml_edit::{DocumentMut, Item, Table, value};

use super::super::containerd::output;
use super::scratch::{Scratch, log};

/// Time limit for containerd's first answer.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Snapshotters that start only on the file system of the same name. The trial's directory may be
/// on another file system.
const BOUND_SNAPSHOTTERS: [&str; 2] = ["btrfs", "zfs"];
/// The snapshotter that replaces one of [`BOUND_SNAPSHOTTERS`] in the trial. It works on any file
/// system.
const FREE_SNAPSHOTTER: &str = "native";

/// The prefix of the ids of containerd's server plugins (containerd 2.4 and later).
const SERVERS: &str = "io.containerd.server.v1.";

#[derive(Debug)]
pub(super) struct Programs<'a> {
    pub(super) containerd: &'a Path,
    pub(super) ctr: &'a Path,
}

/// Changes a dumped configuration so that a second containerd can start with it. That containerd
/// shares nothing with a running one, and keeps its files in `directory`.
///
/// # Errors
///
/// If the dump is not TOML.
pub(super) fn private(dump: &str, directory: &Path) -> anyhow::Result<String> {
    let mut document: DocumentMut = dump
        .parse()
        .context("containerd's dump of the configuration is not TOML")?;
    let at = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let top = document.as_table_mut();
    top.remove("imports");
    for (key, name) in [("root", "root"), ("state", "state")] {
        set(top, key, &at(name));
    }
    set(top, "temp", "");
    if let Some(score) = top.get_mut("oom_score") {
        // containerd writes its OOM score to `/proc/PID` with its own PID. If this /proc belongs to
        // another PID namespace, that PID is another process.
        *score = value(0);
    }
    let mut listeners = |name: &str, address: &str| {
        let of_plugin = format!("{SERVERS}{name}");
        for path in [&[name][..], &["plugins", &of_plugin]] {
            if let Some(table) = table_at(top, path) {
                set(table, "address", address);
            }
        }
    };
    listeners("grpc", &at("grpc"));
    listeners("ttrpc", &at("ttrpc"));
    for name in ["debug", "metrics", "grpc-tcp"] {
        listeners(name, "");
    }
    if let Some(cgroup) = table_at(top, &["cgroup"]) {
        set(cgroup, "path", "");
    }
    if let Some(opt) = table_at(top, &["plugins", "io.containerd.internal.v1.opt"]) {
        set(opt, "path", &at("opt"));
    }
    for (key, text) in [
        ("tcp_address", ""),
        ("root_path", ""),
        ("socket_path", &*at("nri")),
        // The trial must not start the NRI plugins in the configured directory, because they serve
        // the running containerd.
        ("plugin_path", &*at("nri-plugins")),
        ("stream_server_port", "0"),
    ] {
        set_everywhere(top, key, text);
    }
    free_snapshotters(top);
    Ok(document.to_string())
}

fn free_snapshotters(table: &mut Table) {
    for (key, item) in table.iter_mut() {
        let is_bound = |name: &str| key == "snapshotter" && BOUND_SNAPSHOTTERS.contains(&name);
        if item.as_str().is_some_and(is_bound) {
            *item = value(FREE_SNAPSHOTTER);
        }
        match item {
            Item::Table(below) => free_snapshotters(below),
            Item::ArrayOfTables(tables) => tables.iter_mut().for_each(free_snapshotters),
            Item::None | Item::Value(_) => {}
        }
    }
}

fn set(table: &mut Table, key: &str, text: &str) {
    if let Some(item) = table.get_mut(key) {
        *item = value(text);
    }
}

fn set_everywhere(table: &mut Table, key: &str, text: &str) {
    set(table, key, text);
    for (_, item) in table.iter_mut() {
        if let Item::Table(below) = item {
            set_everywhere(below, key, text);
        }
    }
}

fn table_at<'a>(table: &'a mut Table, path: &[&str]) -> Option<&'a mut Table> {
    path.iter()
        .try_fold(table, |table, key| table.get_mut(key)?.as_table_mut())
}

/// True if `ctr plugins ls` reports all CRI plugins as ok (containerd 1 has one, containerd 2
/// several). None if the listing has no CRI plugin.
fn cri_is_ok(listing: &str) -> Option<bool> {
    let of_plugins = listing.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_one = words.first()?.contains(".cri.") || words.get(1) == Some(&"cri");
        is_one.then(|| words.last() == Some(&"ok"))
    });
    of_plugins.reduce(|all, one| all && one)
}

/// The last error in containerd's log.
fn complaint(log: &str) -> Option<&str> {
    let is_one = |line: &&str| {
        ["level=error", "level=fatal"]
            .iter()
            .any(|level| line.contains(level))
            || line.starts_with("containerd: ")
    };
    log.lines().rev().find(is_one)
}

/// Starts containerd with the configuration in `dump`, and checks that its CRI plugins run.
///
/// # Errors
///
/// containerd's last error.
pub(super) fn starts(programs: &Programs, dump: &str, scratch: &Scratch) -> anyhow::Result<()> {
    let directory = scratch.path().join("trial");
    let text = private(dump, &directory)?;
    let config = scratch.path().join("trial.toml");
    const CANNOT: &str = "cannot start the trial";
    std::fs::create_dir(&directory).context(CANNOT)?;
    std::fs::write(&config, text).context(CANNOT)?;
    let mut command = Command::new(programs.containerd);
    command.arg("--config").arg(&config);
    let log_file = log(scratch).context(CANNOT)?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file);
    scratch
        .start(|| in_mounts_of_its_own(command))
        .context(CANNOT)?;
    let found = await_plugins(programs, &directory.join("grpc"), scratch);
    scratch.end();
    match found {
        Some(true) => Ok(()),
        _ => {
            let log = std::fs::read(scratch.log()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            bail!("{}", complaint(&log).unwrap_or("its log has no error"))
        }
    }
}

/// Starts a command in a new mount namespace, so that the command's mounts end with it. The
/// namespace is that of a new thread, whose children inherit it.
fn in_mounts_of_its_own(mut command: Command) -> std::io::Result<std::process::Child> {
    let start = move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
        command.spawn()
    };
    let ended = thread::spawn(start).join();
    ended.unwrap_or_else(|_| {
        Err(std::io::Error::other(
            "internal error: the starting thread panicked",
        ))
    })
}

fn await_plugins(programs: &Programs, socket: &Path, scratch: &Scratch) -> Option<bool> {
    let deadline = Instant::now().checked_add(PATIENCE)?;
    while Instant::now() < deadline {
        let mut ctr = Command::new(programs.ctr);
        ctr.arg("--address").arg(socket);
        ctr.args([
            "--connect-timeout",
            "2s",
            "--timeout",
            "10s",
            "plugins",
            "ls",
        ]);
        if socket.exists()
            && let Ok(listing) = output(&mut ctr)
        {
            return cri_is_ok(&listing);
        }
        if scratch.has_ended() {
            return None;
        }
        thread::sleep(LOOK_EVERY);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_shares_nothing_with_the_running_containerd() {
        let dump = "version = 3\nroot = '/var/lib/containerd'\nstate = '/run/containerd'\ntemp = '/t'\n\
            imports = ['/etc/containerd/conf.d/*.toml']\noom_score = -999\n\
            [grpc]\naddress = '/run/containerd/containerd.sock'\ntcp_address = '0.0.0.0:1'\n\
            [ttrpc]\naddress = '/run/containerd/containerd.sock.ttrpc'\n\
            [debug]\naddress = '/run/debug'\n[metrics]\naddress = '127.0.0.1:2'\n\
            [cgroup]\npath = '/containerd'\n\
            [plugins]\n\
            [plugins.'io.containerd.server.v1.grpc']\naddress = '/run/containerd/containerd.sock'\n\
            [plugins.'io.containerd.server.v1.grpc-tcp']\naddress = ':3'\n\
            [plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = '10010'\n\
            [plugins.'io.containerd.internal.v1.opt']\npath = '/opt/containerd'\n\
            [plugins.'io.containerd.nri.v1.nri']\nsocket_path = '/var/run/nri/nri.sock'\n\
            plugin_path = '/opt/nri/plugins'\n\
            [plugins.'io.containerd.snapshotter.v1.zfs']\nroot_path = '/zfs'\n";
        let private = private(dump, Path::new("/t/r'ial")).unwrap();
        let table: toml::Table = private.parse().unwrap();
        let expected: toml::Table =
            "version = 3\nroot = \"/t/r'ial/root\"\nstate = \"/t/r'ial/state\"\n\
            temp = ''\noom_score = 0\n\
            [grpc]\naddress = \"/t/r'ial/grpc\"\ntcp_address = ''\n\
            [ttrpc]\naddress = \"/t/r'ial/ttrpc\"\n\
            [debug]\naddress = ''\n[metrics]\naddress = ''\n[cgroup]\npath = ''\n\
            [plugins]\n\
            [plugins.'io.containerd.server.v1.grpc']\naddress = \"/t/r'ial/grpc\"\n\
            [plugins.'io.containerd.server.v1.grpc-tcp']\naddress = ''\n\
            [plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = '0'\n\
            [plugins.'io.containerd.internal.v1.opt']\npath = \"/t/r'ial/opt\"\n\
            [plugins.'io.containerd.nri.v1.nri']\nsocket_path = \"/t/r'ial/nri\"\n\
            plugin_path = \"/t/r'ial/nri-plugins\"\n\
            [plugins.'io.containerd.snapshotter.v1.zfs']\nroot_path = ''\n"
                .parse()
                .unwrap();
        assert_eq!(table, expected, "{private}");
    }

    #[test]
    fn a_trial_uses_no_snapshotter_that_needs_its_own_file_system() {
        let dump = |name: &str| {
            format!(
                "[plugins.'io.containerd.cri.v1.images']\nsnapshotter = '{name}'\n\
                 [[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\nsnapshotter = '{name}'\n\
                 [plugins.'io.containerd.snapshotter.v1.{name}']\nroot_path = ''\n"
            )
        };
        for (name, expected) in [("zfs", "native"), ("btrfs", "native"), ("nydus", "nydus")] {
            let private = private(&dump(name), Path::new("/t")).unwrap();
            let tried = private
                .matches(&format!("snapshotter = '{expected}'"))
                .count()
                + private
                    .matches(&format!("snapshotter = \"{expected}\""))
                    .count();
            assert_eq!(tried, 2, "{private}");
            assert!(
                private.contains(&format!("snapshotter.v1.{name}'")),
                "{private}"
            );
        }
    }

    #[test]
    fn every_cri_plugin_has_to_be_ok() {
        let head = "TYPE ID PLATFORMS STATUS\nio.containerd.snapshotter.v1 zfs linux/amd64 skip\n";
        for (lines, expected) in [
            ("io.containerd.grpc.v1 cri linux/amd64 ok\n", Some(true)),
            ("io.containerd.grpc.v1 cri linux/amd64 error\n", Some(false)),
            (
                "io.containerd.cri.v1 images - ok\nio.containerd.cri.v1 runtime linux/amd64 error\n",
                Some(false),
            ),
            (
                "io.containerd.cri.v1 images - ok\nio.containerd.grpc.v1 cri - ok\n",
                Some(true),
            ),
            ("", None),
        ] {
            assert_eq!(cri_is_ok(&format!("{head}{lines}")), expected, "{lines}");
        }
    }

    #[test]
    fn the_complaint_is_the_last_error_in_the_log() {
        let log =
            "time=1 level=error msg=first\ncontainerd: cannot listen\ntime=2 level=info msg=bye\n";
        assert_eq!(complaint(log), Some("containerd: cannot listen"));
        assert_eq!(complaint("level=info\n"), None);
    }
}
