//! Further processes in a container.

use std::fs;
use std::path::Path;
use std::time::Duration;

use libcontainer::container::ContainerStatus;
use libcontainer::oci_spec::runtime::Process;
use liboci_cli::Exec;

use crate::bundle::{self, Bundle};
use crate::error::Failure;
use crate::program::Program;
use crate::report::Report;
use crate::running::{config_of, load};
use crate::{
    Settings, absolute, cgroups, keyring, leave_for_the_root, refusals, rights, sealed, stdio,
};

/// Executes a process in a container: with the rights that it is said to have, under the container's filter of
/// system calls.
///
/// # Errors
///
/// If the container does not run, or the process asks for what cannot be given.
pub fn exec(settings: &Settings, mut order: Exec) -> Result<(), Failure> {
    let Some(file) = order.process.take().filter(|_| order.detach) else {
        return Err(Failure::Refused(
            "exec without --detach and --process is not known here, use runc for it".into(),
        ));
    };
    if order.preserve_fds != 0 || order.cgroup.is_some() {
        return Err(Failure::Refused(
            "--preserve-fds and --cgroup are not known here, use runc for them".into(),
        ));
    }
    sealed::seal()?;
    let file = absolute(&file)?;
    order.pid_file = order.pid_file.as_deref().map(absolute).transpose()?;
    order.console_socket = order.console_socket.as_deref().map(absolute).transpose()?;
    leave_for_the_root()?;
    let container = load(settings, &order.container_id)?;
    match container.status() {
        ContainerStatus::Running => {}
        ContainerStatus::Paused if order.ignore_paused => {}
        ContainerStatus::Paused => {
            return Err(Failure::Untimely(
                "cannot exec in a paused container".into(),
            ));
        }
        _ => {
            return Err(Failure::Untimely(
                "cannot exec in a stopped container".into(),
            ));
        }
    }
    let mut process: Process = bundle::read(&file)?;
    refusals::refuse_process(&process)?;
    let bundle = Bundle::of(container.bundle())?;
    bundle::inherit(&mut process, bundle.process()?);
    let seccomp = bundle.seccomp;
    let rights = rights::given(process.capabilities().as_ref())?;
    let program = Program::new(&process, &rights, seccomp, None);
    stdio::give(process.user().uid());
    bundle::make_ready(&mut process, program.rights_until_then());
    // The caller's own file, of which it has no need any more.
    let copy = file.with_extension("libcontainer.json");
    bundle::write(&copy, &process)?;
    rights::leave_groups()?;
    let cgroup = config_of(&container)?.cgroup_path;
    cgroups::join(&cgroup).1?;
    let below = container
        .pid()
        .and_then(|init| cgroups::below(&cgroup, init.as_raw()));
    keyring::join(&order.container_id)?;
    let executed = || -> Result<(), Failure> {
        let builder = settings.builder(
            order.container_id,
            program,
            order.pid_file,
            order.console_socket,
        )?;
        let tenant = builder
            .as_tenant()
            .with_detach(true)
            .with_process(Some(&copy))
            .with_sub_cgroup(below);
        tenant
            .with_ignore_paused(order.ignore_paused)
            .build()
            .map(drop)
            .map_err(|error| Failure::library(&error))
    };
    remove_litter(&container.root);
    let report = Report::begin()?;
    let executed = executed();
    // It lies in the bundle, which goes as a whole.
    let _ = fs::remove_file(&copy);
    executed.map_err(|failure| failure.because(report.cause()))
}

/// How old a socket is that nobody uses any more: an exec takes less.
const LITTER_AFTER: Duration = Duration::from_secs(600);

/// Removes what libcontainer leaves of each exec in the directory of the state.
fn remove_litter(state: &Path) {
    let entries = fs::read_dir(state).into_iter().flatten().flatten();
    let of_execs =
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("tenant-"));
    for entry in of_execs {
        let made = fs::symlink_metadata(entry.path()).and_then(|stat| stat.modified());
        if made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > LITTER_AFTER)) {
            // It goes with the state at the latest.
            let _ = fs::remove_file(entry.path());
        }
    }
}
