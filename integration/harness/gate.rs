//! A slow OCI runtime: a script that runs runc, and can be made to wait before or after one of
//! runc's commands. A place at which the script can wait is called a gate.

use std::fs;
use std::path::PathBuf;

use containerd_shim_protos::api::CreateTaskRequest;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::Options;

use super::{Containerd, PATIENCE, eventually, write_program};

/// The script in place of runc. `verb` is the first argument that is the name of a runc command.
/// The file of a closed gate contains a container's id. Only commands for this container wait at
/// the gate.
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

/// The gates of the OCI runtime: one before and one after each of runc's commands. All gates are
/// open at first. Dropping the value opens all of them.
pub struct Gates {
    dir: PathBuf,
}

impl Gates {
    pub fn new(host: &Containerd) -> Self {
        let dir = host.dir().join("gates");
        fs::create_dir_all(&dir).expect("the gates' directory");
        let gates = Self { dir };
        let script = SCRIPT.replace("\"$gates/", &format!("\"{}/", gates.dir.display()));
        write_program(&gates.binary(), &script);
        gates
    }

    /// The path of the script.
    pub fn binary(&self) -> PathBuf {
        self.dir.join("gated-runc")
    }

    /// Options for a Create that name the script as the OCI runtime.
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

    /// The Create request, with the script as its OCI runtime.
    pub fn with(&self, request: CreateTaskRequest) -> CreateTaskRequest {
        CreateTaskRequest {
            options: MessageField::some(self.options()),
            ..request
        }
    }

    /// Closes a gate. From now on, the command `verb` for the container `id` waits before it does
    /// its work. If `verb` begins with `after-`, the command waits after its work.
    pub fn close(&self, verb: &str, id: &str) {
        // The file gets its name when it is complete, so that the script never reads a part of it.
        let unfinished = self.dir.join("unfinished");
        fs::write(&unfinished, id).expect("a gate");
        fs::rename(unfinished, self.dir.join(verb)).expect("a gate");
    }

    /// Opens a gate, and lets the waiting commands continue.
    pub fn open(&self, verb: &str) {
        let _ = fs::remove_file(self.dir.join(verb));
    }

    /// Waits until a command has reached this gate and waits there.
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
        // The script itself stays: shims still use it to delete containers.
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.path() != self.binary() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
