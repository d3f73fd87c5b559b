//! The hostile pods. Each has a file that describes its attack.
//!
//! Limits of CPU, memory and processes apply to each pod, as on any sensible node. The first
//! process of a container ignores stop signals unless it handles them. Even a plain `sleep` ignores
//! them.

// The field `about` is used by the program `figures` only.
#![allow(dead_code)]

use std::time::Duration;

use serde_json::Value;

use super::stage::Stage;

/// Declares a module for each file, and lists their pods.
macro_rules! pods {
    ($($file:ident),* $(,)?) => {
        $(mod $file;)*

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
    defers,
    devices,
    exec_at_a_fifo,
    fifo,
    forks,
    frozen,
    hooks,
    logger,
    many_sidecars,
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
    unresponsive,
}

pub struct Pod {
    pub name: &'static str,
    /// Description for the report.
    pub about: &'static str,
    pub annotations: &'static [(&'static str, &'static str)],
    /// The containers, in the order of their start.
    pub containers: &'static [Container],
    /// CPU limit in thousandths of a CPU. A low limit allows several pods to run at the same time
    /// without overloading the machine.
    pub cpu_millis: u64,
    /// An attack made once while the pod runs.
    pub meanwhile: fn(&Stage),
    /// A further attack, right before the pod ends. After this attack, the test makes the file
    /// `/shared/end`.
    pub at_its_end: fn(&Stage),
    /// The commands of the OCI runtime that hang from the beginning of the pod's termination.
    pub hangs: &'static [&'static str],
    /// Additional time that our shim may take to report an exit, because a client still reads the
    /// output.
    pub told_late: Duration,
    /// True if the attack also works without usher's annotations.
    pub is_plain: bool,
}

pub struct Container {
    pub name: &'static str,
    pub args: &'static [&'static str],
    /// Changes the default configuration of the container.
    pub edit: fn(&Stage, &mut Value),
    pub stdio: Stdio,
}

/// The receiver of a container's output.
#[derive(Clone, Copy)]
pub enum Stdio {
    /// FIFOs without a reader.
    Unread,
    /// A logging program.
    Logger(&'static str),
}

impl Pod {
    /// A pod with default values.
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

/// A container that does nothing, and ignores stop signals.
const fn sleeper(name: &'static str) -> Container {
    Container::new(name, &["/bin/sleep", "100000"])
}
