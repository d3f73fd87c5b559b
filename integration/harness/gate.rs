//! An OCI runtime that takes its time, when told to: runc behind a script that waits at a gate.

use std::fs;
use std::path::PathBuf;

use containerd_shim_protos::api::CreateTaskRequest;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::Options;

use super::{Containerd, PATIENCE, eventually, write_program};

/// The script: the first word that is a verb is the verb, and the gate says whom it is closed for.
const SCRIPT: &str = r#"#!/bin/sh
verb=none
for word in "$@"; do
    case $word in create | start | exec | kill | pause | resume | update | delete)
        verb=$word
        break
        ;;
    esac
done
line="$*"
closed() {
    id=$(cat "$gates/$1" 2>/dev/null) || return 1
    case " $line " in *" $id "*) return 0 ;; esac
    return 1
}
wait_at() {
    closed "$1" || return 0
    echo > "$gates/waits-$1"
    while closed "$1"; do sleep 0.02; done
    rm -f "$gates/waits-$1"
}
wait_at "$verb"
closed "after-$verb" || exec runc "$@"
runc "$@"
code=$?
wait_at "after-$verb"
exit $code
"#;

/// The runtime's gates, one before and one behind each verb; all open at first and at the end.
pub struct Gates {
    dir: PathBuf,
}

// === impl Gates ===

impl Gates {
    pub fn new(host: &Containerd) -> Self {
        let dir = host.dir().join("gates");
        fs::create_dir_all(&dir).expect("the gates' directory");
        let gates = Self { dir };
        let script = SCRIPT.replace("\"$gates/", &format!("\"{}/", gates.dir.display()));
        write_program(&gates.binary(), &script);
        gates
    }

    /// The runtime's program.
    pub fn binary(&self) -> PathBuf {
        self.dir.join("gated-runc")
    }

    /// The options that name it.
    pub fn options(&self) -> Any {
        let options = Options {
            binary_name: self.binary().display().to_string(),
            ..Options::new()
        };
        Any {
            type_url: "containerd.runc.v1.Options".to_owned(),
            value: options.write_to_bytes().expect("a message"),
            ..Any::new()
        }
    }

    /// The request that makes a task with it.
    pub fn with(&self, request: CreateTaskRequest) -> CreateTaskRequest {
        CreateTaskRequest {
            options: MessageField::some(self.options()),
            ..request
        }
    }

    /// From now on a command `verb` for container `id` waits before it does anything; with
    /// `after-` before the verb, when it has done everything.
    pub fn close(&self, verb: &str, id: &str) {
        // Renamed into place: the script must not read half of it.
        let unfinished = self.dir.join("unfinished");
        fs::write(&unfinished, id).expect("a gate");
        fs::rename(unfinished, self.dir.join(verb)).expect("a gate");
    }

    /// Lets those go on that wait.
    pub fn open(&self, verb: &str) {
        let _ = fs::remove_file(self.dir.join(verb));
    }

    /// Waits until a command waits.
    #[track_caller]
    pub fn await_waiting(&self, verb: &str) {
        let waits = self.dir.join(format!("waits-{verb}"));
        eventually(&format!("{verb} waits at its gate"), PATIENCE, || {
            waits.exists()
        });
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        // The runtime itself stays: what is left of the containers has to be deleted with it.
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.path() != self.binary() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
