//! Making a container.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use libcontainer::container::{Container, ContainerStatus};
use libcontainer::notify_socket::{NOTIFY_FILE, NotifySocket};
use libcontainer::oci_spec::runtime::Spec;
use liboci_cli::Create;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::bundle::Bundle;
use crate::error::Failure;
use crate::program::Program;
use crate::report::Report;
use crate::running::{self, FIFO};
use crate::{
    Settings, absolute, cgroups, devices, keyring, leave_for_the_root, mounts, rights, sealed,
    stdio,
};

/// What runc's has: anybody can be released, as whatever user it is.
const FIFO_MODE: u32 = 0o622;

/// Makes a container, whose init waits behind its FIFO then.
///
/// # Errors
///
/// If it asks for what cannot be given, or cannot be made; nothing is left of it.
pub fn create(settings: &Settings, mut order: Create) -> Result<(), Failure> {
    if order.preserve_fds != 0 {
        return Err(Failure::Refused(
            "--preserve-fds is not known here, use runc for it".into(),
        ));
    }
    if order.no_pivot {
        return Err(Failure::Refused(
            "--no-pivot is not known here, use runc for it".into(),
        ));
    }
    sealed::seal()?;
    let given = absolute(&order.bundle)?;
    order.pid_file = order.pid_file.as_deref().map(absolute).transpose()?;
    order.console_socket = order.console_socket.as_deref().map(absolute).transpose()?;
    leave_for_the_root()?;
    let mut bundle = Bundle::prepare(&given, &order.container_id, settings.systemd_cgroup)?;
    let state = settings.state_of(&order.container_id);
    if state.exists() {
        return Err(Failure::Untimely(format!(
            "container with given ID already exists: {:?}",
            order.container_id
        )));
    }
    let cgroup = bundle.cgroup(&order.container_id, settings.systemd_cgroup);
    cgroups::expect_nobody(&cgroups::own(&cgroup))?;
    rights::leave_groups()?;
    if !order.no_new_keyring {
        keyring::join(&order.container_id)?;
    }
    let report = Report::begin()?;
    // libcontainer makes the directory of the state, and wants to be the first.
    let fifo = waiting_fifo(settings, &order.container_id);
    let gate = make_fifo(&fifo)?;
    let (joined, made) = match cgroups::join(&cgroup) {
        (joined, Ok(())) => (
            joined,
            make(settings, order, &mut bundle, &state, (&fifo, gate)),
        ),
        (joined, failed) => (joined, failed),
    };
    if made.is_err() {
        // The error is what is told; the file may be in its place.
        let _ = fs::remove_file(&fifo);
        joined.undo();
        // Nobody was in its cgroups before, and nothing was known of it.
        let _ = cgroups::clear(&cgroups::own(&cgroup));
        let _ = fs::remove_dir_all(&state);
    }
    made.map_err(|failure| failure.because(report.cause()))
}

fn make(
    settings: &Settings,
    order: Create,
    bundle: &mut Bundle,
    state: &Path,
    (fifo, gate): (&Path, OwnedFd),
) -> Result<(), Failure> {
    let process = bundle.process()?;
    let rights = rights::given(process.capabilities().as_ref())?;
    let program = Program::new(
        process,
        &rights,
        bundle.seccomp.clone(),
        Some(gate.as_raw_fd()),
    )
    .of_init(&bundle.spec)?;
    stdio::give(process.user().uid());
    bundle.write(program.rights_until_then())?;
    stdio::make_cwd(&bundle.spec)?;
    let builder = settings.builder(
        order.container_id,
        program,
        order.pid_file,
        order.console_socket,
    )?;
    let mut container = builder
        .as_init(&bundle.directory)
        .with_systemd(settings.systemd_cgroup)
        .with_detach(true)
        .build()
        .map_err(|error| Failure::library(&error))?;
    let parked = audit(&container, &bundle.spec)
        .and_then(|()| limit(&mut container, bundle))
        .and_then(|()| park(&mut container, fifo, state));
    if parked.is_err() {
        // Its first error is the one that is told.
        let _ = container.delete(true);
    }
    parked
}

/// Where a container's FIFO is until its state has a directory.
pub fn waiting_fifo(settings: &Settings, id: &str) -> PathBuf {
    settings.root.join(format!(".{id}.{FIFO}"))
}

fn make_fifo(path: &Path) -> Result<OwnedFd, Failure> {
    let made = || {
        if let Some(root) = path.parent() {
            // Root's own, as what it tells of containers is.
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(root)?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        mkfifo(path, Mode::from_bits_truncate(FIFO_MODE))?;
        // The umask is not asked.
        fs::set_permissions(path, fs::Permissions::from_mode(FIFO_MODE))?;
        Ok(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?)
    };
    made().map_err(|source| Failure::io(path, source))
}

/// Looks at what has come of it, from outside.
fn audit(container: &Container, spec: &Spec) -> Result<(), Failure> {
    let Some((pid, linux)) = container.pid().zip(spec.linux().as_ref()) else {
        return Err(Failure::Library("it has no process".into()));
    };
    let file = PathBuf::from(format!("/proc/{pid}/mountinfo"));
    let mountinfo = fs::read_to_string(&file).map_err(|source| Failure::io(&file, source))?;
    match mounts::stray_over_proc(&mountinfo, linux) {
        None => Ok(()),
        Some(at) => Err(Failure::Refused(format!(
            "something was mounted at {at}: a link in the image leads there"
        ))),
    }
}

/// Sets what libcontainer has left out of the limits of a container.
fn limit(container: &mut Container, bundle: &mut Bundle) -> Result<(), Failure> {
    if container.systemd() {
        running::take_from_systemd(container, bundle)?;
        if let Some(resources) = bundle.resources() {
            // systemd is told of some of them alone, and of no devices.
            running::apply(&running::manager(container)?, resources)?;
        }
    }
    devices::deny_console(
        &running::config_of(container)?.cgroup_path,
        bundle.resources(),
    )
}

/// Has its init go on to the FIFO, and notes that it is there to be executed in.
fn park(container: &mut Container, fifo: &Path, state: &Path) -> Result<(), Failure> {
    let own = state.join(FIFO);
    fs::rename(fifo, &own).map_err(|source| Failure::io(&own, source))?;
    NotifySocket::new(state.join(NOTIFY_FILE))
        .notify_container_start()
        .map_err(|error| Failure::library(&error))?;
    running::note_start_time(container)?;
    running::note_cgroups(container)?;
    container.set_status(ContainerStatus::Running);
    container.save().map_err(|error| Failure::library(&error))
}
