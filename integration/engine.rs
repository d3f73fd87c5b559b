//! Tests the engine for real OCI runtimes against the laws, the rules that every engine must keep.
//! The simulated engine passes the same tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::types::mount::Mount;
use nix::sys::prctl::set_child_subreaper;
use serde_json::{Value, json};
use usher_engine::{CancelToken, CreateOptions, Deletion, Engine, ExecOrder, Order};
use usher_linux::reaper::Reaper;
use usher_oci::OciEngine;

use super::harness::{Isolation, oci_runtime, populate};
use usher_engine::laws::{Runs, Testbed};

/// Name of the environment variable that makes a process run the test. The value is the directory
/// in which the test runs.
const DIRECTORY: &str = "USHER_TEST_LAWS";

const NAMESPACE: &str = "laws";

/// An OCI engine, and the directory in which it keeps its containers.
struct Real {
    directory: PathBuf,
    engine: OciEngine,
}

/// Runs the test in a separate process, by executing this program again. The engine's reaper
/// collects all children of its process, and would otherwise collect those of other tests.
#[test]
fn an_oci_runtime_keeps_the_laws() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return try_in(PathBuf::from(directory));
    }
    let prefix = std::env::var("USHER_TEST_PREFIX").unwrap_or_else(|_| "usher-it-".to_owned());
    let directory = tempfile::Builder::new().prefix(&prefix).tempdir();
    let directory = directory.expect("a directory");
    let state = directory.path().join("state");
    fs::create_dir(&state).expect("a directory for what is below /run/containerd");
    populate(&directory.path().join("root"));
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let name = "engine::an_oci_runtime_keeps_the_laws";
    command.args(["--exact", name, "--nocapture"]);
    command.env(DIRECTORY, directory.path());
    let isolation = Isolation {
        state,
        hides_unified: oci_runtime() == "crun",
        own_network: false,
    };
    isolation.create_in(&mut command);
    let output = command.output().expect("this program");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "{said}");
}

fn try_in(directory: PathBuf) {
    set_child_subreaper(true).expect("a subreaper");
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    tokio.expect("a runtime").block_on(async {
        let reaper = Reaper::default();
        reaper.start().expect("SIGCHLD");
        let engine = OciEngine::new(NAMESPACE, reaper);
        let real = Real { directory, engine };
        usher_engine::laws::check_all(&real).await;
        a_panic_in_a_deletion_leaves_no_mount(&real).await;
    });
}

/// The deletion panics because it uses a timer on a thread whose runtime has no timers.
async fn a_panic_in_a_deletion_leaves_no_mount(real: &Real) {
    let id = "panics";
    let order = real.order(id, true, Runs::UntilTold, Runs::UntilTold);
    let (container, _) = real.engine.read(&order, None).expect("a bundle");
    let options = CreateOptions::default();
    let created = container
        .create(&order, options, &CancelToken::default())
        .await;
    let _created = created.expect("a container");
    assert!(real.left_of(id).contains("mount"));
    let panicking = Arc::clone(&container);
    let deletion = std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread().build();
        let deletion = panicking.delete(Deletion::Forced, Vec::new());
        tokio.expect("a runtime").block_on(deletion)
    });
    let deleted = deletion.join();
    assert!(!real.left_of(id).contains("mount"), "{}", real.left_of(id));
    let error = deleted.expect("no panic").expect_err("a mistake");
    assert!(error.to_string().contains("panicked"), "{error}");
    let deleted = container.delete(Deletion::Forced, Vec::new()).await;
    assert_eq!((deleted, real.left_of(id)), (Ok(()), String::new()));
}

impl Real {
    fn cgroup(&self, id: &str) -> String {
        let directory = self.directory.file_name().unwrap_or_default();
        format!("{}-{id}", directory.to_string_lossy())
    }

    fn bundle(&self, id: &str) -> PathBuf {
        self.directory.join("bundles").join(id)
    }

    fn order_of(&self, id: &str, has_own_pid_namespace: bool, args: &[&str]) -> Order {
        let bundle = self.bundle(id);
        fs::create_dir_all(&bundle).expect("a bundle");
        let _ = fs::remove_file(self.mark(id));
        let kinds = ["mount", "ipc", "uts", "network"];
        let own = has_own_pid_namespace.then_some("pid");
        let namespaces = kinds.into_iter().chain(own);
        let namespaces: Vec<_> = namespaces.map(|kind| json!({ "type": kind })).collect();
        let config = json!({
            "ociVersion": "1.0.2",
            "process": process(args),
            "root": { "path": "rootfs" },
            "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
            "linux": {
                "namespaces": namespaces,
                "cgroupsPath": format!("/{}", self.cgroup(id)),
            },
        });
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        let options = Options {
            binary_name: oci_runtime(),
            root: self.directory.join("runtime").display().to_string(),
            ..Options::new()
        };
        Order {
            id: id.to_owned(),
            bundle,
            rootfs: vec![Mount {
                type_: "bind".to_owned(),
                source: self.directory.join("root").display().to_string(),
                options: vec!["rbind".to_owned(), "rw".to_owned()],
                ..Mount::new()
            }],
            options: Some(Any {
                type_url: "containerd.runc.v1.Options".to_owned(),
                value: options.write_to_bytes().expect("options"),
                ..Any::new()
            }),
            ..Order::default()
        }
    }

    /// A file that the container's program creates when it starts.
    fn mark(&self, id: &str) -> PathBuf {
        self.directory.join("root/shared").join(id)
    }
}

fn process(args: &[&str]) -> Value {
    json!({
        "terminal": false,
        "user": { "uid": 0, "gid": 0 },
        "args": args,
        "env": ["PATH=/bin"],
        "cwd": "/",
    })
}

fn script(runs: Runs) -> String {
    match runs {
        Runs::UntilTold => "trap 'exit 7' TERM; sleep 1000 & wait $!".to_owned(),
        Runs::UntilKilled => "trap '' TERM; while :; do sleep 1000; done".to_owned(),
        Runs::AndExits(code) => format!("exit {code}"),
    }
}

impl Testbed for Real {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::new(self.engine.clone())
    }

    fn order(&self, id: &str, has_own_pid_namespace: bool, runs: Runs, _: Runs) -> Order {
        let script = format!(": > /shared/{id}; {}", script(runs));
        self.order_of(id, has_own_pid_namespace, &["/bin/sh", "-c", &script])
    }

    fn broken_order(&self, id: &str) -> Order {
        self.order_of(id, true, &["/no/such/program"])
    }

    fn exec(&self, exec_id: &str, execs: Runs) -> ExecOrder {
        let process = process(&["/bin/sh", "-c", &script(execs)]);
        ExecOrder {
            exec_id: exec_id.to_owned(),
            spec: process.to_string().into_bytes(),
            ..ExecOrder::default()
        }
    }

    fn was_executed(&self, id: &str) -> bool {
        self.mark(id).exists()
    }

    fn is_there(&self, pid: i32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    fn left_of(&self, id: &str) -> String {
        let mut found = Vec::new();
        let state = self.directory.join("runtime").join(NAMESPACE).join(id);
        if state.exists() {
            found.push(format!("container {}", state.display()));
        }
        let table = fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
        let rootfs = self.bundle(id).join("rootfs").display().to_string();
        if table.contains(&format!(" {rootfs} ")) {
            found.push(format!("mount {rootfs}"));
        }
        let hierarchies = fs::read_dir("/sys/fs/cgroup").expect("cgroups");
        // If there is no cgroup v2 at this path, crun creates plain files there and leaves them.
        let unified = (oci_runtime() == "crun").then(|| Path::new("/sys/fs/cgroup/unified"));
        let hierarchies = hierarchies.flatten().map(|entry| entry.path());
        let hierarchies = hierarchies.filter(|at| Some(at.as_path()) != unified);
        let own = Path::new("/sys/fs/cgroup").to_owned();
        for cgroup in hierarchies.chain([own]).map(|at| at.join(self.cgroup(id))) {
            if cgroup.exists() {
                found.push(format!("cgroup {}", cgroup.display()));
            }
            let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
            let processes = processes.lines();
            found.extend(processes.map(|pid| format!("process {pid}")));
        }
        found.join(", ")
    }
}
