//! The runtime's options, and the environment of the shim's `start`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::Options;

use super::both;
use crate::harness::{
    BareShim, Containerd, PATIENCE, eventually, oci_runtime, runtime_under_test, write_program,
};

fn any(options: &Options) -> Any {
    Any {
        type_url: "containerd.runc.v1.Options".to_owned(),
        value: options.write_to_bytes().unwrap(),
        ..Any::new()
    }
}

/// A command for `program` with these arguments, in the environment and directory of `command`.
fn instead_of(command: &Command, host: &Containerd, program: &OsStr, words: &[&OsStr]) -> Command {
    let mut other = Command::new(program);
    let set = command.get_envs();
    other
        .args(words)
        .envs(set.filter_map(|(key, value)| Some((key, value?))));
    other.current_dir(command.get_current_dir().expect("the bundle"));
    host.enter(&mut other);
    other
}

fn prepare<'host>(host: &'host Containerd, runtime: &str) -> BareShim<'host> {
    BareShim::prepare(host, runtime, "a", &["/bin/sleep", "1000"], |_| {})
}

/// Starts a shim with these options. Returns the shim and its process id.
#[track_caller]
fn started<'host>(host: &'host Containerd, runtime: &str, options: &Any) -> (BareShim<'host>, u32) {
    let mut shim = prepare(host, runtime);
    let command = shim.command("start");
    shim.try_start(command, options).expect("start");
    let pid = shim.api().connect("a").expect("Connect").shim_pid;
    (shim, pid)
}

/// The directories of a cgroup, one in each hierarchy. They are removed on drop.
struct Cgroup(Vec<PathBuf>);

impl Cgroup {
    fn make(path: &str) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let roots = match root.join("cgroup.controllers").exists() {
            true => vec![root.to_owned()],
            false => ["devices", "memory", "pids"]
                .map(|name| root.join(name))
                .to_vec(),
        };
        let directories: Vec<_> = roots.iter().map(|root| root.join(path)).collect();
        for directory in &directories {
            fs::create_dir_all(directory).expect("a cgroup");
        }
        Self(directories)
    }

    fn holds(&self, pid: u32) -> bool {
        self.0.iter().all(|directory| {
            let members = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
            members.lines().any(|member| member == pid.to_string())
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in &self.0 {
            eventually("the cgroup is empty", PATIENCE, || {
                fs::remove_dir(directory).is_ok() || !directory.exists()
            });
        }
    }
}

#[test]
fn the_shim_runs_in_the_cgroup_of_the_options() {
    // The shim may start its work before or after it is moved to the cgroup. So the test makes
    // several attempts.
    const ROUNDS: usize = 5;
    let seen = both(|host, runtime| {
        let path = format!("/{}/shims", host.namespace);
        let cgroup = Cgroup::make(path.trim_start_matches('/'));
        let mut options = Options::new();
        options.shim_cgroup = path;
        let options = any(&options);
        [(); ROUNDS].map(|()| {
            let (shim, pid) = started(host, runtime, &options);
            let api = shim.api();
            api.create(&shim.create_request()).expect("Create");
            let init = api.start("a", "").expect("Start").pid;
            let seen = (cgroup.holds(pid), cgroup.holds(init));
            drop(shim);
            fs::remove_dir_all(host.dir().join("bundles/a")).expect("the bundle");
            seen
        })
    });
    assert_eq!(seen, [(true, false); ROUNDS]);
}

#[test]
fn a_shim_with_a_missing_cgroup_is_refused_and_does_not_run() {
    let seen = both(|host, runtime| {
        let mut options = Options::new();
        options.shim_cgroup = "/no-such-cgroup".to_owned();
        let mut shim = prepare(host, runtime);
        let command = shim.command("start");
        let refused = shim.try_start(command, &any(&options));
        eventually("no shim runs", PATIENCE, || host.shims().is_empty());
        refused.map_err(|said| said.contains("no-such-cgroup") || said.contains("cgroup deleted"))
    });
    assert_eq!(seen, Err(true));
}

#[test]
fn the_shims_oom_score_is_one_above_its_callers_within_the_limit() {
    let scores = both(|host, runtime| {
        ["0", "7", "1000"].map(|score| {
            let mut shim = prepare(host, runtime);
            let direct = shim.command("start");
            // A shell sets its own OOM score, and then runs `start`. If the test set its own score
            // and had no privileges, it could not lower the score again.
            let script = format!("echo {score} > /proc/$$/oom_score_adj; \"$0\" \"$@\"; exit $?");
            let mut words = vec!["-c".as_ref(), script.as_ref(), direct.get_program()];
            words.extend(direct.get_args());
            let command = instead_of(&direct, host, "/bin/sh".as_ref(), &words);
            shim.try_start(command, &Any::new()).expect("start");
            let pid = shim.api().connect("a").expect("Connect").shim_pid;
            let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
            drop(shim);
            fs::remove_dir_all(host.dir().join("bundles/a")).expect("the bundle");
            score.trim().to_owned()
        })
    });
    assert_eq!(scores, ["1", "8", "1000"]);
}

#[test]
fn core_scheduling_is_enabled_or_refused() {
    let refused = both(|host, runtime| {
        let mut shim = prepare(host, runtime);
        let mut command = shim.command("start");
        command.env("SCHED_CORE", "1");
        let refused = shim.try_start(command, &Any::new()).err();
        if refused.is_some() {
            eventually("no shim runs", PATIENCE, || host.shims().is_empty());
        }
        refused.map(|said| said.contains("SCHED_CORE") || said.contains("sched core"))
    });
    // If the kernel supports core scheduling, the shim must start.
    assert!(refused.unwrap_or(true));
}

#[test]
fn a_shim_with_debug_logs_has_no_second_socket() {
    let host = Containerd::start();
    let mut shim = prepare(&host, &runtime_under_test());
    let quiet = shim.command("start");
    // A flag such as `-debug` must come before the action `start`.
    let mut words = vec![OsStr::new("-debug")];
    words.extend(quiet.get_args());
    let command = instead_of(&quiet, &host, quiet.get_program(), &words);
    shim.try_start(command, &Any::new()).expect("start");
    let sockets = fs::read_dir(host.dir().join("run/s")).expect("sockets");
    assert_eq!(sockets.count(), 1);
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    let log = host.dir().join("bare-shim.log");
    eventually("the OCI runtime logs", PATIENCE, || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("DEBUG"))
    });
}

/// An OCI runtime that records its arguments, then runs runc.
fn recording_runtime(host: &Containerd) -> (String, PathBuf) {
    let (program, notes) = (host.dir().join("recording-runc"), host.dir().join("notes"));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\nexec runc \"$@\"\n",
        notes.display()
    );
    write_program(&program, &script);
    (program.display().to_string(), notes)
}

#[test]
fn the_options_reach_the_oci_runtime() {
    let seen = both(|host, runtime| {
        let (program, notes) = recording_runtime(host);
        let root = host.dir().join("run/own-root");
        let mut options = Options::new();
        options.binary_name = program;
        options.root = root.display().to_string();
        options.no_pivot_root = true;
        options.no_new_keyring = true;
        let options = any(&options);
        let (shim, _) = started(host, runtime, &options);
        let api = shim.api();
        let mut request = shim.create_request();
        request.options = MessageField::some(options);
        api.create(&request).expect("Create");
        let state = root.join(&host.namespace).join("a").exists();
        api.start("a", "").expect("Start");
        drop(shim);
        let notes = fs::read_to_string(notes).unwrap();
        let create = notes
            .lines()
            .find(|line| line.contains(" create "))
            .unwrap();
        let given = ["--no-pivot", "--no-new-keyring"].map(|flag| create.contains(flag));
        let roots = notes
            .lines()
            .all(|line| line.contains(root.to_str().unwrap()));
        fs::remove_dir_all(&root).expect("the state's root");
        (state, given, roots)
    });
    assert_eq!(seen, (true, [true; 2], true));
}

#[test]
fn the_pipes_belong_to_the_owner_in_the_options() {
    let owners = both(|host, runtime| {
        let mut options = Options::new();
        (options.io_uid, options.io_gid) = (1234, 2345);
        let options = any(&options);
        let (shim, _) = started(host, runtime, &options);
        let api = shim.api();
        let (mut request, _output) = shim.create_request_with_stdio();
        request.options = MessageField::some(options);
        api.create(&request).expect("Create");
        let init = api.start("a", "").expect("Start").pid;
        [0, 1, 2].map(|fd| {
            let pipe = fs::metadata(format!("/proc/{init}/fd/{fd}")).expect("a stream");
            (pipe.uid(), pipe.gid())
        })
    });
    // The owner of the running container's pipe depends on the OCI runtime. runc changes the user
    // to that of the program, crun changes user and group, and youki changes neither.
    let owner = match oci_runtime().as_str() {
        "runc" => (0, 2345),
        "crun" => (0, 0),
        _ => (1234, 2345),
    };
    assert_eq!(owners, [owner; 3]);
}

#[test]
fn a_missing_oci_runtime_in_the_options_is_named() {
    let named = both(|host, runtime| {
        let mut options = Options::new();
        options.binary_name = "no-runc".to_owned();
        let options = any(&options);
        let (shim, _) = started(host, runtime, &options);
        let mut request = shim.create_request();
        request.options = MessageField::some(options);
        let (_, message) = shim.api().create(&request).expect_err("no such runtime");
        message.contains("no-runc")
    });
    assert!(named);
}

#[test]
fn options_from_containerds_configuration_take_effect() {
    let host = Containerd::start();
    let (program, notes) = recording_runtime(&host);
    let table = format!("BinaryName = {program:?}\nNoNewKeyring = true\n");
    let mut value = vec![(3 << 3) | 2, table.len() as u8];
    value.extend(table.as_bytes());
    let options = Any {
        type_url: "runtimeoptions.v1.Options".to_owned(),
        value,
        ..Any::new()
    };
    let (shim, _) = started(&host, &runtime_under_test(), &options);
    let mut request = shim.create_request();
    request.options = MessageField::some(options);
    shim.api().create(&request).expect("Create");
    let notes = fs::read_to_string(notes).expect("notes");
    assert!(notes.contains("--no-new-keyring"), "{notes}");
}
