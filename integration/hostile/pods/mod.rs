//! The hostile pods, each in a file of its own that says what it does.
//!
//! What a pod does it does within a CPU, a memory and a number of processes that are bounded, as on
//! any node that means to live. The first process of a container is deaf to stop signals unless it
//! asks for them: a plain `sleep` is.

// Only the figures say what each pod is about.
#![allow(dead_code)]

use std::time::Duration;

use serde_json::Value;

use super::stage::Stage;

/// Declares a file for each pod, and lists their pods.
macro_rules! pods {
    ($($file:ident),* $(,)?) => {
        $(mod $file;)*

        /// All of them.
        pub fn all() -> Vec<&'static Pod> {
            [$($file::PODS),*].into_iter().flatten().collect()
        }
    };
}

pods! {
    addresses,
    answers_by_grpc,
    answers_by_http,
    containerd_stopped,
    crash_loop,
    crowd,
    deaf,
    defers,
    devices,
    exec_at_a_fifo,
    fifo,
    forks,
    frozen,
    hooks,
    logger,
    memory,
    namespaces,
    orphans,
    output,
    own_cgroups,
    paused,
    probes,
    probes_in_a_slow_container,
    probes_that_talk,
    runtime_hangs,
}

/// A hostile pod.
pub struct Pod {
    pub name: &'static str,
    /// For the report.
    pub about: &'static str,
    pub annotations: &'static [(&'static str, &'static str)],
    /// In the order of their start.
    pub containers: &'static [Container],
    /// The bound of its CPU time: little, so that several pods can be looked at side by side, and the
    /// machine lives.
    pub cpu_millis: u64,
    /// What is done to it, once, while it lives.
    pub meanwhile: fn(&Stage),
    /// What is done to it right before its end; the file `/shared/end` appears then.
    pub at_its_end: fn(&Stage),
    /// The verbs at which the OCI runtime hangs from its end on.
    pub hangs: &'static [&'static str],
    /// The time by which our shim may tell the exit late, for a client that still reads the output.
    pub told_late: Duration,
    /// Is any of its harm done without annotations of ours?
    pub is_plain: bool,
}

/// A container of it.
pub struct Container {
    pub name: &'static str,
    pub args: &'static [&'static str],
    /// Changes `ctr`'s default configuration.
    pub edit: fn(&Stage, &mut Value),
    pub stdio: Stdio,
}

/// Who takes a container's output.
#[derive(Clone, Copy)]
pub enum Stdio {
    /// Nobody: FIFOs without a reader.
    Unread,
    /// A logging program.
    Logger(&'static str),
}

impl Pod {
    /// To be filled in.
    pub const NEW: Pod = Pod {
        name: "",
        about: "",
        annotations: &[],
        containers: &[],
        cpu_millis: 250,
        meanwhile: |_| (),
        at_its_end: |_| (),
        hangs: &[],
        told_late: Duration::ZERO,
        is_plain: true,
    };
}

impl Container {
    pub const fn new(name: &'static str, args: &'static [&'static str]) -> Self {
        Self {
            name,
            args,
            edit: |_, _| (),
            stdio: Stdio::Unread,
        }
    }

    const fn edit(self, edit: fn(&Stage, &mut Value)) -> Self {
        Self { edit, ..self }
    }

    const fn stdio(self, stdio: Stdio) -> Self {
        Self { stdio, ..self }
    }
}

/// A container that does nothing, and does not end for a stop signal either.
const fn sleeper(name: &'static str) -> Container {
    Container::new(name, &["/bin/sleep", "100000"])
}
