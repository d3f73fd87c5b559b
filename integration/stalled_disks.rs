//! Calls for a pod with two containers, when a disk stalls that only one container needs. The shim
//! answers the calls for the other container. Nothing is lost when the disk continues.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use containerd_shim_protos::api::{CreateTaskRequest, Status};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::types::mount::Mount;
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use crate::harness::{
    BareShim, Containerd, Finished, PATIENCE, copy_program, eventually, installed_program,
    oci_runtime, run, runtime_under_test, scaled, write_program,
};

/// Deadline of calls that do not need the disk. It is shorter than the time for which the disk
/// stalls.
const PROMPTLY: Duration = Duration::from_secs(5);

/// Deadline of calls that wait for the disk. It is longer than the checks that the test makes while
/// the disk stalls.
const PATIENTLY: Duration = Duration::from_secs(60);

/// fcntl(2) command that chooses the signal for the holder of a lease (`F_SETSIG(2const)`).
const F_SETSIG: i32 = 10;

/// An ext4 file system on a loop device. It is mounted in the shims' mount namespace. Dropping the
/// value unmounts it.
struct Disk<'host> {
    host: &'host Containerd,
    at: PathBuf,
}

/// A disk whose writes block until this value is dropped.
struct Frozen<'disk>(&'disk Disk<'disk>);

/// A program whose execution blocks until this value is dropped.
struct Leased {
    path: PathBuf,
    file: File,
}

impl<'host> Disk<'host> {
    #[track_caller]
    fn new(host: &'host Containerd) -> Disk<'host> {
        let at = host.dir().join("disk");
        let image = host.dir().join("disk.img");
        fs::create_dir(&at).expect("a directory");
        let mut make = Command::new("mke2fs");
        make.args(["-q", "-t", "ext4"]).arg(&image).arg("32M");
        let made = run(make, PATIENCE);
        assert!(made.ok(), "mke2fs: {}", made.err());
        let disk = Disk { host, at };
        disk.must("mount", &["-o", "loop", text(&image), text(&disk.at)]);
        disk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// Runs a program in the mount namespace of the disk.
    fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        let mut command = Command::new(program);
        command.args(arguments);
        self.host.enter(&mut command);
        run(command, PATIENCE)
    }

    #[track_caller]
    fn must(&self, program: &str, arguments: &[&str]) -> String {
        let finished = self.run(program, arguments);
        assert!(finished.ok(), "{program}: {}", finished.err());
        finished.out()
    }

    #[track_caller]
    fn read(&self, name: &str) -> String {
        self.must("cat", &[text(&self.path(name))])
    }

    #[track_caller]
    fn freeze(&self) -> Frozen<'_> {
        self.must("fsfreeze", &["--freeze", text(&self.at)]);
        Frozen(self)
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // Unmounting also frees the loop device.
        let unmounted = self.run("umount", &["--lazy", text(&self.at)]);
        if !unmounted.ok() && !thread::panicking() {
            panic!("umount: {}", unmounted.err());
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let thawed = self.0.run("fsfreeze", &["--unfreeze", text(&self.0.at)]);
        if !thawed.ok() && !thread::panicking() {
            panic!("fsfreeze: {}", thawed.err());
        }
    }
}

impl Leased {
    #[track_caller]
    fn copy_of(program: &Path, path: PathBuf) -> Leased {
        copy_program(program, &path);
        let file = File::open(&path).expect("the copy");
        let leased = Leased { path, file };
        // When a process opens the program, the kernel sends this signal to the test. SIGURG is
        // ignored by default. Without this call, the kernel would send SIGIO, which ends the test.
        leased.control(F_SETSIG, libc::SIGURG);
        leased.control(libc::F_SETLEASE, libc::F_WRLCK);
        leased
    }

    /// True if a process waits to open the program. The kernel then no longer reports a write
    /// lease.
    fn is_wanted(&self) -> bool {
        self.control(libc::F_GETLEASE, 0) != libc::F_WRLCK
    }

    #[track_caller]
    fn control(&self, command: i32, value: i32) -> i32 {
        // SAFETY: these commands of fcntl(2) take and give integers.
        let answer = unsafe { libc::fcntl(self.file.as_raw_fd(), command, value) };
        assert!(answer >= 0, "fcntl: {}", io::Error::last_os_error());
        answer
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.control(libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain text")
}

fn in_pod(config: &mut Value, name: &str, annotations: &[(&str, &str)]) {
    let mut all = json!({
        "io.kubernetes.cri.sandbox-id": "pod1",
        "io.kubernetes.cri.container-name": name,
    });
    for (key, value) in annotations {
        all[key] = json!(value);
    }
    config["annotations"] = all;
}

/// Creates and starts another container of the pod, which does not need the disk.
#[track_caller]
fn neighbor<'host>(
    host: &'host Containerd,
    name: &str,
    annotations: &[(&str, &str)],
) -> BareShim<'host> {
    let args = ["/bin/sleep", "1000"];
    let shim = BareShim::start(host, &runtime_under_test(), "b", &args, |config| {
        in_pod(config, name, annotations);
    });
    shim.api().create(&shim.create_request()).expect("create b");
    shim.api().start("b", "").expect("start b");
    shim
}

/// The container that needs the disk. Only its bundle exists: the container is not created yet.
#[track_caller]
fn stalled<'host>(
    host: &'host Containerd,
    script: &str,
    edit: impl FnOnce(&mut Value),
) -> BareShim<'host> {
    let args = ["/bin/sh", "-c", script];
    BareShim::start(host, &runtime_under_test(), "a", &args, |config| {
        in_pod(config, "a", &[]);
        edit(config);
    })
}

/// Waits until a thread of the shim blocks in the kernel (state D).
#[track_caller]
fn await_stall(pid: u32) {
    let is_stalled = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('D'))
    };
    eventually("the disk stalls the shim", PATIENCE, || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the shim's threads");
        threads.flatten().any(is_stalled)
    });
}

/// Checks that the shim promptly answers State, Kill and Wait for `b`, the container that does not
/// stall.
#[track_caller]
fn check_neighbor(shim: &BareShim) {
    let api = shim.api().deadline(scaled(PROMPTLY));
    let state = api.state("b", "").expect("State of b");
    assert_eq!(state.status.enum_value_or_default(), Status::RUNNING);
    api.kill("b", "", 9, false).expect("SIGKILL of b");
    api.wait("b", "").expect("Wait of b");
}

/// Calls Create for `a`, which stalls because the shim executes the `leased` program for it.
/// Meanwhile checks that the shim answers calls for `b`. Then lets the program continue.
#[track_caller]
fn create_while_stalled(leased: Leased, a: &BareShim, b: &BareShim, request: &CreateTaskRequest) {
    thread::scope(|scope| {
        let created = scope.spawn(|| a.api().deadline(scaled(PATIENTLY)).create(request));
        eventually("the program stalls", PATIENCE, || leased.is_wanted());
        check_neighbor(b);
        assert!(!created.is_finished());
        drop(leased);
        created.join().unwrap().expect("create a");
    });
}

/// Starts the container, waits for its exit with `code`, and deletes it.
#[track_caller]
fn run_to_exit(a: &BareShim, code: u32) {
    a.api().start("a", "").expect("start a");
    assert_eq!(a.api().wait("a", "").expect("Wait of a").exit_status, code);
    a.api().delete("a", "").expect("Delete of a");
}

fn numbers(last: u32) -> String {
    (1..=last).map(|number| format!("{number}\n")).collect()
}

#[test]
fn a_stalled_root_file_system_delays_no_other_container() {
    let host = Containerd::start();
    let disk = Disk::new(&host);
    let b = neighbor(&host, "b", &[]);
    let a = stalled(&host, "sleep 1000", |config| {
        config["root"]["path"] = json!("rootfs");
    });
    let [upper, work] = ["upper", "work"].map(|name| disk.path(name));
    disk.must("mkdir", &[text(&upper), text(&work)]);
    let overlay = Mount {
        type_: "overlay".to_owned(),
        source: "overlay".to_owned(),
        options: vec![
            format!("lowerdir={}", host.dir().join("rootfs").display()),
            format!("upperdir={}", upper.display()),
            format!("workdir={}", work.display()),
        ],
        ..Mount::new()
    };
    let request = CreateTaskRequest {
        rootfs: vec![overlay],
        ..a.create_request()
    };
    let pid = b.pid();
    thread::scope(|scope| {
        let frozen = disk.freeze();
        let created = scope.spawn(|| a.api().deadline(scaled(PATIENTLY)).create(&request));
        await_stall(pid);
        check_neighbor(&b);
        assert!(!created.is_finished());
        drop(frozen);
        created.join().unwrap().expect("create a");
    });
    a.api().start("a", "").expect("start a");
    a.api().kill("a", "", 9, false).expect("SIGKILL of a");
    a.api().wait("a", "").expect("Wait of a");
    a.api().delete("a", "").expect("Delete of a");
}

#[test]
fn output_to_a_stalled_log_file_waits_and_is_not_lost() {
    let host = Containerd::start();
    let disk = Disk::new(&host);
    let b = neighbor(&host, "b", &[]);
    // This output is longer than the pipe and the shim's buffer together.
    let a = stalled(&host, "seq 1 60000; exit 3", |_| ());
    let request = CreateTaskRequest {
        stdout: format!("file://{}", disk.path("logs/a").display()),
        ..a.create_request()
    };
    let (api, pid) = (a.api().deadline(scaled(PATIENTLY)), b.pid());
    api.create(&request).expect("create a");
    let frozen = disk.freeze();
    api.start("a", "").expect("start a");
    await_stall(pid);
    check_neighbor(&b);
    let state = api.state("a", "").expect("State of a");
    assert_eq!(state.status.enum_value_or_default(), Status::RUNNING);
    drop(frozen);
    assert_eq!(api.wait("a", "").expect("Wait of a").exit_status, 3);
    api.delete("a", "").expect("Delete of a");
    assert!(disk.read("logs/a") == numbers(60_000));
}

#[test]
fn a_delete_waits_for_a_stalled_log_file() {
    let host = Containerd::start();
    let disk = Disk::new(&host);
    let b = neighbor(&host, "b", &[]);
    // This output fits into the pipe and the shim's buffer together.
    let a = stalled(&host, "seq 1 20000", |_| ());
    let request = CreateTaskRequest {
        stdout: format!("file://{}", disk.path("log").display()),
        ..a.create_request()
    };
    let (api, pid) = (a.api().deadline(scaled(PATIENTLY)), b.pid());
    api.create(&request).expect("create a");
    thread::scope(|scope| {
        let frozen = disk.freeze();
        api.start("a", "").expect("start a");
        await_stall(pid);
        assert_eq!(api.wait("a", "").expect("Wait of a").exit_status, 0);
        let delete = || a.api().deadline(scaled(PATIENTLY)).delete("a", "");
        let deleted = scope.spawn(delete);
        check_neighbor(&b);
        assert!(!deleted.is_finished());
        drop(frozen);
        deleted.join().unwrap().expect("Delete of a");
    });
    assert!(disk.read("log") == numbers(20_000));
}

#[test]
fn a_stalled_termination_message_delays_the_exit_only_briefly() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy, logs"),
        ("usher/start-mode", "Hold"),
        ("usher/startup-timeout", "600ms"),
    ];
    let host = Containerd::start();
    let disk = Disk::new(&host);
    let b = neighbor(&host, "proxy", POD);
    disk.must("touch", &[text(&disk.path("message"))]);
    // The app is held, because its sidecar is never created.
    let a = stalled(&host, "exit 0", |config| {
        in_pod(config, "app", POD);
        let path = "/dev/termination-log";
        config["annotations"]["io.kubernetes.container.terminationMessagePath"] = json!(path);
        let message = json!({
            "destination": path, "type": "bind", "source": disk.path("message"),
            "options": ["rbind", "rw"],
        });
        config["mounts"]
            .as_array_mut()
            .expect("mounts")
            .push(message);
    });
    let (api, pid) = (a.api(), b.pid());
    api.create(&a.create_request()).expect("create a");
    let frozen = disk.freeze();
    api.start("a", "").expect("start a");
    await_stall(pid);
    check_neighbor(&b);
    assert_eq!(api.wait("a", "").expect("Wait of a").exit_status, 1);
    drop(frozen);
    eventually("the message is left", PATIENCE, || {
        disk.read("message").contains("app was held for")
    });
    api.delete("a", "").expect("Delete of a");
}

#[test]
fn a_stalled_oci_runtime_program_delays_no_other_container() {
    let host = Containerd::start();
    let b = neighbor(&host, "b", &[]);
    let a = stalled(&host, "exit 3", |_| ());
    let program = installed_program(&oci_runtime());
    let leased = Leased::copy_of(&program, host.dir().join("runc-on-a-disk"));
    let options = Options {
        binary_name: leased.path.display().to_string(),
        ..Options::new()
    };
    let options = Any {
        type_url: "containerd.runc.v1.Options".to_owned(),
        value: options.write_to_bytes().expect("a message"),
        ..Any::new()
    };
    let request = CreateTaskRequest {
        options: MessageField::some(options),
        ..a.create_request()
    };
    create_while_stalled(leased, &a, &b, &request);
    run_to_exit(&a, 3);
}

#[test]
fn a_stalled_logging_program_delays_no_other_container() {
    let host = Containerd::start();
    let b = neighbor(&host, "b", &[]);
    let a = stalled(&host, "echo words; exit 3", |_| ());
    let (script, log) = (host.dir().join("script"), host.dir().join("log"));
    let lines = format!(
        "#!/bin/busybox sh\n/bin/busybox cat <&3 3<&- 4<&- 5>&- > {} &\nexec 3<&- 4<&- 5>&-\nwait\n",
        log.display()
    );
    write_program(&script, &lines);
    let leased = Leased::copy_of(&script, host.dir().join("script-on-a-disk"));
    let logger = format!("binary://{}", leased.path.display());
    let request = CreateTaskRequest {
        stdout: logger.clone(),
        stderr: logger,
        ..a.create_request()
    };
    create_while_stalled(leased, &a, &b, &request);
    run_to_exit(&a, 3);
    assert_eq!(fs::read_to_string(log).expect("the log"), "words\n");
}

#[test]
fn a_stalled_options_file_delays_no_other_container() {
    let host = Containerd::start();
    let b = neighbor(&host, "b", &[]);
    let a = stalled(&host, "exit 3", |_| ());
    // A FIFO stands in for a file on a stalled disk: reading a FIFO blocks until a writer opens it.
    let file = host.dir().join("options.toml");
    mkfifo(&file, Mode::S_IRWXU).expect("a FIFO");
    let path = text(&file);
    // Field 2 of `runtimeoptions.v1.Options`, a string.
    let mut value = vec![2 << 3 | 2, u8::try_from(path.len()).expect("a short path")];
    value.extend(path.as_bytes());
    let options = Any {
        type_url: "runtimeoptions.v1.Options".to_owned(),
        value,
        ..Any::new()
    };
    let request = CreateTaskRequest {
        options: MessageField::some(options),
        ..a.create_request()
    };
    thread::scope(|scope| {
        let created = scope.spawn(|| a.api().deadline(scaled(PATIENTLY)).create(&request));
        let mut writer = None;
        eventually("the file is read", PATIENCE, || {
            let mut options = OpenOptions::new();
            let opened = options.write(true).custom_flags(libc::O_NONBLOCK);
            writer = opened.open(&file).ok();
            writer.is_some()
        });
        check_neighbor(&b);
        assert!(!created.is_finished());
        let table = format!("BinaryName = {:?}\n", oci_runtime());
        let mut writer = writer.expect("the FIFO");
        writer.write_all(table.as_bytes()).expect("the options");
        drop(writer);
        created.join().unwrap().expect("create a");
    });
    run_to_exit(&a, 3);
}
