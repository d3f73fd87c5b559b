//! An OCI runtime on [youki's `libcontainer`](https://docs.rs/libcontainer), for usher's shim, which
//! executes it where it would execute runc.
//!
//! It takes runc's command line, writes runc's errors into its log, and parks a container as runc does: behind
//! `<root>/<id>/exec.fifo`, in a process that is called `runc:[2:INIT]`. So to the shim it is one runtime more,
//! and containers are made, released and forgotten in one way.
//!
//! What libcontainer does not do as runc does it is done here, or what asks for it is refused by name; nothing
//! that keeps a container in is left out silently.
//!
//! | file | what it is about |
//! |---|---|
//! | `main.rs`, `error.rs`, `report.rs` | the verbs; why one fails, in runc's words, and libcontainer's |
//! | `create.rs`, `exec.rs`, `running.rs` | a container, further processes, and what is done to what runs |
//! | `bundle.rs`, `refusals.rs`, `features.rs` | config.json as libcontainer is given it: what is refused, and what is changed; what there is |
//! | `mounts.rs`, `cgroups.rs`, `devices.rs` | what libcontainer leaves out of them, or gives too much of |
//! | `rights.rs` | capabilities and the filter of system calls |
//! | `program.rs`, `stdio.rs` | from libcontainer's process to the container's program |
//! | `sealed.rs`, `keyring.rs`, `sys.rs` | this program's file, which no container may write; a session's keys; system calls |

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::panic,
        clippy::unreachable,
        clippy::todo,
        clippy::unimplemented,
        clippy::arithmetic_side_effects
    )
)]
#![deny(unsafe_code)]

mod bundle;
mod cgroups;
mod create;
mod devices;
mod error;
mod exec;
mod features;
mod keyring;
mod mounts;
mod program;
mod refusals;
mod report;
mod rights;
mod running;
mod sealed;
mod stdio;
mod sys;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::syscall::syscall::SyscallType;
use liboci_cli::{Create, Delete, Exec, GlobalOpts, Kill, Pause, Ps, Resume, Start, State, Update};
use nix::sys::stat::{Mode, umask};

use error::Failure;
use program::Program;

/// Where the state of containers is if nobody says otherwise.
const DEFAULT_ROOT: &str = "/run/usher-libcontainer";

/// Makes containers with libcontainer, by runc's command line. It is executed by usher's shim.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    global: GlobalOpts,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Create(Create),
    Start(Start),
    State(State),
    Kill(Kill),
    Delete(Delete),
    Exec(Exec),
    Ps(Ps),
    Pause(Pause),
    Resume(Resume),
    Update(Update),
    /// Print what containers can be given, as JSON
    Features,
    /// Refused: libcontainer's checkpoints cannot be restored.
    Checkpoint(Refused),
    /// Refused, as checkpoint.
    Restore(Refused),
}

impl Verb {
    /// The container that it is about.
    fn container(&self) -> Option<&str> {
        Some(match self {
            Verb::Create(order) => &order.container_id,
            Verb::Start(order) => &order.container_id,
            Verb::State(order) => &order.container_id,
            Verb::Kill(order) => &order.container_id,
            Verb::Delete(order) => &order.container_id,
            Verb::Exec(order) => &order.container_id,
            Verb::Ps(order) => &order.container_id,
            Verb::Pause(order) => &order.container_id,
            Verb::Resume(order) => &order.container_id,
            Verb::Update(order) => &order.container_id,
            Verb::Features | Verb::Checkpoint(_) | Verb::Restore(_) => return None,
        })
    }
}

/// An id is the name of a directory: letters, digits and a few signs, as with runc.
fn check_id(id: &str) -> Result<(), Failure> {
    let checked = ContainerBuilder::new(id.to_owned(), SyscallType::Linux).validate_id();
    checked.map(drop).map_err(|error| {
        Failure::Refused(format!(
            "invalid container id {id:?}, expected letters, digits and any of _+-.: {error}"
        ))
    })
}

/// Whatever it is called with.
#[derive(clap::Args)]
struct Refused {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _anything: Vec<String>,
}

/// What all verbs are told.
struct Settings {
    root: PathBuf,
    systemd_cgroup: bool,
}

impl Settings {
    /// Where the state of container `id` is.
    fn state_of(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// What libcontainer makes, or executes in, container `id` by.
    fn builder(
        &self,
        id: String,
        program: Program,
        pid_file: Option<PathBuf>,
        console_socket: Option<PathBuf>,
    ) -> Result<ContainerBuilder, Failure> {
        let failed = |error: LibcontainerError| Failure::library(&error);
        ContainerBuilder::new(id, SyscallType::Linux)
            .with_executor(program)
            .with_console_socket(console_socket)
            .with_pid_file(pid_file)
            .and_then(|builder| builder.with_root_path(&self.root))
            .map_err(failed)
    }
}

fn main() -> ExitCode {
    let Cli { global, verb } = Cli::parse();
    let given = global.root.unwrap_or_else(|| PathBuf::from(DEFAULT_ROOT));
    let done = absolute(&given).and_then(|root| {
        let settings = Settings {
            root,
            systemd_cgroup: global.systemd_cgroup,
        };
        run(verb, &settings)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let is_json = global.log_format.as_deref() == Some("json");
            failure.log(global.log.as_deref().map(|file| (file, is_json)));
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb, settings: &Settings) -> Result<(), Failure> {
    if let Some(id) = verb.container() {
        check_id(id)?;
    }
    // As runc: what is made has the same rights whoever calls.
    umask(Mode::from_bits_truncate(0o022));
    match verb {
        Verb::Create(order) => create::create(settings, order),
        Verb::Exec(order) => exec::exec(settings, order),
        Verb::Ps(order) => running::print_processes(settings, &order),
        Verb::Start(order) => running::start(settings, &order.container_id),
        Verb::State(order) => running::print_state(settings, &order.container_id),
        Verb::Kill(order) => running::kill(settings, &order),
        Verb::Delete(order) => running::delete(settings, &order.container_id, order.force),
        Verb::Pause(order) => running::pause(settings, &order.container_id),
        Verb::Resume(order) => running::resume(settings, &order.container_id),
        Verb::Update(order) => running::update(settings, &order),
        Verb::Features => {
            println!("{:#}", features::features());
            Ok(())
        }
        Verb::Checkpoint(_) => Err(Failure::Refused(
            "checkpoints are not made with libcontainer, use runc".into(),
        )),
        Verb::Restore(_) => Err(Failure::Refused(
            "checkpoints are not restored with libcontainer, use runc".into(),
        )),
    }
}

/// A path that leads to the same wherever this program is.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|source| Failure::io(path, source))
}

/// Where libcontainer is to be: it goes back and forth, and who calls us may be where there is nothing any more, as in
/// the bundle of a container that is gone.
fn leave_for_the_root() -> Result<(), Failure> {
    std::env::set_current_dir("/").map_err(|source| Failure::io(Path::new("/"), source))
}
