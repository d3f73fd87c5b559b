//! Container operations by the real `ctr`.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::{Background, ContainerSpec, Containerd, Finished, PATIENCE, eventually, run};

/// A line of `ctr task ls`.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub id: String,
    pub pid: u32,
    pub status: Status,
}

/// The state of a task, as containerd reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    Created,
    Running,
    Paused,
    Stopped,
    Unknown,
}

impl Containerd {
    /// A `ctr` command for this containerd and namespace.
    pub fn ctr_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command
            .env("PATH", &self.path)
            // Otherwise, `ctr`'s warnings would mix with the output of containers.
            .env("CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS", "1")
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", &self.namespace]);
        command.args(args);
        command
    }

    /// Runs `ctr`. The command may fail.
    #[track_caller]
    pub fn ctr(&self, args: &[&str]) -> Finished {
        run(self.ctr_command(args), PATIENCE)
    }

    /// Runs `ctr` and returns its output. Fails the test if the command fails.
    #[track_caller]
    pub fn must(&self, args: &[&str]) -> String {
        let finished = self.ctr(args);
        if !finished.ok() {
            panic!(
                "ctr {args:?} exited with {:?}: {}",
                finished.code,
                finished.err()
            );
        }
        finished.out()
    }

    // The following methods create, stop and delete containers and tasks.

    /// Creates and starts a container in the background. Fails the test if the container does not
    /// start.
    #[track_caller]
    pub fn run(&self, spec: &ContainerSpec) {
        let before = self.creations(&spec.id);
        let finished = self.try_run(spec);
        if !finished.ok() {
            panic!("{} did not start: {}", spec.id, finished.err());
        }
        self.await_creation(&spec.id, before);
    }

    /// Creates and starts a container in the background. The command may fail.
    #[track_caller]
    pub fn try_run(&self, spec: &ContainerSpec) -> Finished {
        self.spawn_run(spec).finish(PATIENCE)
    }

    /// Does the same as `try_run`, but does not wait for `ctr`, because Start may block.
    #[track_caller]
    pub fn spawn_run(&self, spec: &ContainerSpec) -> Background {
        self.spawn(spec, &["run", "--detach", "--fifo-dir", &self.fifo_dir()])
    }

    /// Runs a container with `ctr` attached to its stdio, until the container and `ctr` have
    /// exited.
    #[track_caller]
    pub fn run_attached(&self, spec: &ContainerSpec) -> Finished {
        self.spawn_attached(spec).finish(PATIENCE)
    }

    /// Does the same as `run_attached`, but does not wait. `ctr` deletes the task when the
    /// container exits.
    #[track_caller]
    pub fn spawn_attached(&self, spec: &ContainerSpec) -> Background {
        self.spawn(spec, &["run", "--fifo-dir", &self.fifo_dir()])
    }

    #[track_caller]
    fn spawn(&self, spec: &ContainerSpec, command: &[&str]) -> Background {
        Background::spawn(spec.ctr_command(self, command))
    }

    fn fifo_dir(&self) -> String {
        self.dir().join("fifo").display().to_string()
    }

    /// Creates a container without a task. No argument of the program may begin with a dash,
    /// because `ctr containers create` would take it for its own option.
    #[track_caller]
    pub fn create(&self, spec: &ContainerSpec) {
        let finished = run(spec.ctr_command(self, &["containers", "create"]), PATIENCE);
        assert!(finished.ok(), "create {}: {}", spec.id, finished.err());
    }

    /// Creates and starts the task of an existing container. The command may fail.
    #[track_caller]
    pub fn try_start(&self, id: &str) -> Finished {
        self.ctr(&[
            "tasks",
            "start",
            "--detach",
            "--fifo-dir",
            &self.fifo_dir(),
            id,
        ])
    }

    #[track_caller]
    pub fn kill(&self, id: &str, signal: &str) {
        self.must(&["tasks", "kill", "--signal", signal, id]);
    }

    /// Signals several containers at once, as kubelet does at the end of a pod.
    #[track_caller]
    pub fn kill_all(&self, ids: &[&str], signal: &str) {
        let kill = |id: &&str| {
            Background::spawn(self.ctr_command(&["tasks", "kill", "--signal", signal, id]))
        };
        let kills: Vec<Background> = ids.iter().map(kill).collect();
        for (id, kill) in ids.iter().zip(kills) {
            let finished = kill.finish(PATIENCE);
            assert!(finished.ok(), "kill {id}: {}", finished.err());
        }
    }

    /// Waits until the container's task is stopped, and deletes both.
    #[track_caller]
    pub fn delete(&self, id: &str) {
        eventually(&format!("{id} is stopped"), PATIENCE, || {
            self.status(id)
                .is_none_or(|status| status == Status::Stopped)
        });
        if self.status(id).is_some() {
            // `ctr` exits with the task's exit code, so only its log shows whether the command
            // failed.
            let finished = self.ctr(&["tasks", "delete", id]);
            let refused = finished.err().contains("level=error");
            assert!(!refused, "delete {id}: {}", finished.err());
        }
        self.must(&["containers", "delete", id]);
    }

    #[track_caller]
    pub fn tasks(&self) -> Vec<Task> {
        let table = self.must(&["tasks", "list"]);
        table.lines().skip(1).filter_map(Task::parse).collect()
    }

    /// The state of a task; `None` if there is no such task.
    #[track_caller]
    pub fn status(&self, id: &str) -> Option<Status> {
        self.tasks()
            .into_iter()
            .find(|task| task.id == id)
            .map(|task| task.status)
    }

    #[track_caller]
    pub fn await_status(&self, id: &str, wanted: Option<Status>) {
        eventually(&format!("{id} is {wanted:?}"), PATIENCE, || {
            self.status(id) == wanted
        });
    }

    // The following methods act in a running container.

    /// Runs an exec in a container, and waits for its exit.
    #[track_caller]
    pub fn exec(&self, id: &str, args: &[&str]) -> Finished {
        self.spawn_exec(id, &next_exec_id(), args).finish(PATIENCE)
    }

    /// Does the same as `exec`, but does not wait.
    #[track_caller]
    pub fn spawn_exec(&self, id: &str, exec_id: &str, args: &[&str]) -> Background {
        let fifo_dir = self.fifo_dir();
        let line = [
            "tasks",
            "exec",
            "--exec-id",
            exec_id,
            "--fifo-dir",
            &fifo_dir,
            id,
        ];
        Background::spawn(self.ctr_command(&[&line, args].concat()))
    }

    /// The process ids of a task's processes. A process of an exec also has an exec id.
    #[track_caller]
    pub fn pids(&self, id: &str) -> Vec<(u32, Option<String>)> {
        let table = self.must(&["tasks", "ps", id]);
        let parse = |line: &str| {
            let (pid, info) = line.split_once(char::is_whitespace)?;
            // containerd 1.6 prints `&ProcessDetails{ExecID:sleeper,…}`, later versions
            // `exec_id:"sleeper"`.
            let exec_id = ["ExecID:", "exec_id:"]
                .iter()
                .find_map(|key| info.split_once(key))
                .map(|(_, rest)| rest.trim_start_matches('"'))
                .map(|rest| {
                    rest.split([',', '}', '"'])
                        .next()
                        .unwrap_or_default()
                        .to_owned()
                });
            Some((pid.parse().ok()?, exec_id))
        };
        table.lines().skip(1).filter_map(parse).collect()
    }

    /// Waits until the program of an exec runs. The exec's process is in the container's cgroup
    /// earlier, but `ctr tasks ps` then lists it without the exec id.
    #[track_caller]
    pub fn await_exec(&self, id: &str, exec_id: &str) {
        let runs = |(_, exec): &(u32, Option<String>)| exec.as_deref() == Some(exec_id);
        eventually("the container runs the program", PATIENCE, || {
            self.pids(id).iter().any(runs)
        });
    }

    #[track_caller]
    pub fn metrics(&self, id: &str) -> Value {
        let text = self.must(&["tasks", "metrics", "--format", "json", id]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("metrics of {id}: {e}: {text}"))
    }
}

fn next_exec_id() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("exec-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Task {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        Some(Self {
            id: words.next()?.to_owned(),
            pid: words.next()?.parse().ok()?,
            status: match words.next()? {
                "CREATED" => Status::Created,
                "RUNNING" => Status::Running,
                "PAUSED" => Status::Paused,
                "STOPPED" => Status::Stopped,
                _ => Status::Unknown,
            },
        })
    }
}
