//! What is done to a container that is there.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libcgroups::common::{
    AnyCgroupManager, CgroupConfig, CgroupManager, ControllerOpt, FreezerState,
};
use libcontainer::config::YoukiConfig;
use libcontainer::container::{Container, ContainerStatus};
use libcontainer::hooks::run_hooks;
use libcontainer::oci_spec::runtime::LinuxResources;
use liboci_cli::{Kill, Ps, Update};
use nix::libc;
use nix::sys::signal::Signal;

use crate::bundle::Bundle;
use crate::create::waiting_fifo;
use crate::error::Failure;
use crate::{Settings, bundle, cgroups, devices, sys};

/// Behind what an init waits for its release.
pub const FIFO: &str = "exec.fifo";

/// The cgroups of a container. Where they are files, there is nothing else of it to be removed but the directory of its
/// state, and so whoever has seen it end may do both: usher's shim does (`src/engine/oci/forget.rs`).
const CGROUPS: &str = "cgroups.json";

/// The scope of systemd's that is a container's cgroup.
const SCOPE: &str = "scope";

/// When an init has begun.
const START_TIME: &str = "start-time";

/// How long killed processes may take to be gone, and how often they are looked for.
const GONE_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A container that is known.
///
/// # Errors
///
/// If it is not.
pub fn load(settings: &Settings, id: &str) -> Result<Container, Failure> {
    let state = settings.state_of(id);
    if !state.join("state.json").exists() {
        return Err(Failure::Unknown);
    }
    let mut container = Container::load(state).map_err(|error| Failure::library(&error))?;
    if !is_of_its_time(&container) {
        // Its number is another process's.
        container.set_status(ContainerStatus::Stopped);
    }
    let can_be_frozen = [ContainerStatus::Running, ContainerStatus::Paused];
    if can_be_frozen.contains(&container.status())
        && let Ok(config) = config_of(&container)
        && let Some(is_frozen) = cgroups::is_frozen(&cgroups::own(&config.cgroup_path))
    {
        // Whoever has frozen it, and whatever was noted then.
        container.set_status(match is_frozen {
            true => ContainerStatus::Paused,
            false => ContainerStatus::Running,
        });
    }
    Ok(container)
}

/// Notes when the init of a container began: its number may be another's one day.
///
/// # Errors
///
/// If it cannot be noted.
pub fn note_start_time(container: &Container) -> Result<(), Failure> {
    let file = container.root.join(START_TIME);
    let time = container
        .pid()
        .and_then(|pid| start_time(pid.as_raw()))
        .unwrap_or_default();
    fs::write(&file, time).map_err(|source| Failure::io(&file, source))
}

/// Notes which cgroups are a container's own.
///
/// # Errors
///
/// If they cannot be noted.
pub fn note_cgroups(container: &Container) -> Result<(), Failure> {
    if scope_of(container).is_some() {
        return Ok(());
    }
    let own = cgroups::own(&config_of(container)?.cgroup_path);
    bundle::write(&container.root.join(CGROUPS), &own)
}

/// Has the cgroup of a container that systemd has made be files from now on: so it was asked for (`Delegate=`), and
/// what is executed in the container needs nobody's help. systemd is asked again where it may forget: at an update.
///
/// # Errors
///
/// If the container is somewhere else.
pub fn take_from_systemd(container: &mut Container, bundle: &mut Bundle) -> Result<(), Failure> {
    let mut config = config_of(container)?;
    let scope = container.root.join(SCOPE);
    let name = config.cgroup_path.as_os_str().as_encoded_bytes();
    fs::write(&scope, name).map_err(|source| Failure::io(&scope, source))?;
    config.cgroup_path = cgroups::place(&config.cgroup_path, true);
    if let Some(pid) = container.pid() {
        cgroups::expect_at(&config.cgroup_path, pid.as_raw())?;
    }
    config
        .save(&container.root)
        .map_err(|error| Failure::library(&error))?;
    container.set_systemd(false);
    bundle.move_to(&config.cgroup_path)
}

/// The scope of systemd's that a container is in, as `slice:prefix:name`.
fn scope_of(container: &Container) -> Option<PathBuf> {
    let name = fs::read_to_string(container.root.join(SCOPE)).ok()?;
    Some(PathBuf::from(name))
}

/// Whether the process with the number of its init is its init. One that was ended while it was created is not known by
/// its time.
fn is_of_its_time(container: &Container) -> bool {
    let Ok(noted) = fs::read_to_string(container.root.join(START_TIME)) else {
        return true;
    };
    let now = container.pid().and_then(|pid| start_time(pid.as_raw()));
    now.is_none_or(|now| now == noted)
}

/// In the kernel's ticks since it began (`proc_pid_stat(5)`, field 22).
fn start_time(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A name may have anything in it.
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(19).map(str::to_owned)
}

/// Releases a container, and runs what is to be run when its program has been executed.
///
/// # Errors
///
/// If it does not wait for that.
pub fn start(settings: &Settings, id: &str) -> Result<(), Failure> {
    let container = load(settings, id)?;
    let fifo = container.root.join(FIFO);
    if container.status() == ContainerStatus::Stopped {
        return Err(Failure::Untimely(
            "cannot start a container that has stopped".into(),
        ));
    }
    if !fifo.exists() {
        return Err(Failure::Untimely(
            "cannot start an already running container".into(),
        ));
    }
    let mut gate = OpenOptions::new()
        .read(true)
        .open(&fifo)
        .map_err(|source| Failure::io(&fifo, source))?;
    let read = gate
        .read(&mut [0])
        .map_err(|source| Failure::io(&fifo, source))?;
    if read == 0 {
        return Err(Failure::Untimely(
            "cannot start a container that has stopped".into(),
        ));
    }
    fs::remove_file(&fifo).map_err(|source| Failure::io(&fifo, source))?;
    let config = config_of(&container)?;
    let hooks = config
        .hooks
        .as_ref()
        .and_then(|hooks| hooks.poststart().as_ref());
    run_hooks(
        hooks,
        Some(&container.state),
        Some(&container.root),
        None,
        None,
    )
    .map_err(|error| Failure::library(&error))
}

/// Prints what a container is (OCI runtime specification, "State").
///
/// # Errors
///
/// If it is not known.
pub fn print_state(settings: &Settings, id: &str) -> Result<(), Failure> {
    let container = load(settings, id)?;
    let status = match container.status() {
        ContainerStatus::Running if container.root.join(FIFO).exists() => ContainerStatus::Created,
        status => status,
    };
    let state = serde_json::json!({
        "ociVersion": "1.2.0",
        "id": id,
        "status": word_for(status),
        "pid": container.pid().map_or(0, |pid| pid.as_raw()),
        "bundle": container.bundle().parent(),
    });
    println!("{state:#}");
    Ok(())
}

/// How the specification calls it.
fn word_for(status: ContainerStatus) -> String {
    status.to_string().to_ascii_lowercase()
}

/// Prints the processes of a container, as their numbers, in JSON.
///
/// # Errors
///
/// If it is not known, or they are to be printed in another way.
pub fn print_processes(settings: &Settings, order: &Ps) -> Result<(), Failure> {
    if order.format != "json" {
        return Err(Failure::Refused(
            "ps without --format json is not known here, use runc for it".into(),
        ));
    }
    let container = load(settings, &order.container_id)?;
    let pids = manager(&container)?
        .get_all_pids()
        .map_err(|error| Failure::library(&error))?;
    let pids: Vec<i32> = pids.iter().map(|pid| pid.as_raw()).collect();
    println!("{}", serde_json::json!(pids));
    Ok(())
}

/// Sends a signal to a container's init, or to all of its processes.
///
/// # Errors
///
/// If there is nobody to send it to.
pub fn kill(settings: &Settings, order: &Kill) -> Result<(), Failure> {
    let container = load(settings, &order.container_id)?;
    let signal = number_of(&order.signal)?;
    if order.all {
        return kill_all(&container, signal);
    }
    let Some(pid) = container
        .pid()
        .filter(|_| container.status() != ContainerStatus::Stopped)
    else {
        return Err(Failure::Untimely("container not running".into()));
    };
    match sys::kill(pid.as_raw(), signal) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(Failure::Ended),
        sent => sent?,
    }
    if signal == libc::SIGKILL && container.status() == ContainerStatus::Paused {
        // On cgroup v1 what is frozen does not die.
        freeze(&manager(&container)?, FreezerState::Thawed)?;
    }
    Ok(())
}

/// The number of a signal, which may be one in real time, or none: that asks whether the process is there.
fn number_of(signal: &str) -> Result<i32, Failure> {
    let number = match signal.parse::<i32>() {
        Ok(number) => Some(number).filter(|number| (0..=libc::SIGRTMAX()).contains(number)),
        Err(_) => {
            let name = signal.to_ascii_uppercase();
            let known: Result<Signal, _> = name.parse().or_else(|_| format!("SIG{name}").parse());
            known.ok().map(|known| known as i32)
        }
    };
    number.ok_or_else(|| {
        Failure::Refused(format!(
            "unknown signal {signal:?}, expected a name or number of signal(7)"
        ))
    })
}

/// They are frozen meanwhile, or one could beget another behind our back.
fn kill_all(container: &Container, signal: i32) -> Result<(), Failure> {
    let cgroups = manager(container)?;
    let pids = cgroups.get_all_pids().unwrap_or_default();
    if pids.is_empty() {
        return Ok(());
    }
    if signal == libc::SIGKILL && cgroups::kill(&cgroups::own(&config_of(container)?.cgroup_path)) {
        return Ok(());
    }
    let was_paused = container.status() == ContainerStatus::Paused;
    // Who waits for what never comes does not freeze, and is sent it all the same.
    let frozen = freeze(&cgroups, FreezerState::Frozen);
    let pids = cgroups
        .get_all_pids()
        .map_err(|error| Failure::library(&error))?;
    for pid in pids {
        // It may have ended.
        let _ = sys::kill(pid.as_raw(), signal);
    }
    match was_paused && signal != libc::SIGKILL && frozen.is_ok() {
        true => Ok(()),
        false => freeze(&cgroups, FreezerState::Thawed),
    }
}

/// Removes a container that has ended, or, with `force`, any: its processes, its cgroups, its state.
///
/// # Errors
///
/// If it runs, or something of it cannot be removed.
pub fn delete(settings: &Settings, id: &str, force: bool) -> Result<(), Failure> {
    // Of a creation that came to nothing.
    let _ = fs::remove_file(waiting_fifo(settings, id));
    let state = settings.state_of(id);
    let mut container = match load(settings, id) {
        Err(Failure::Unknown) if force => return forget(&state),
        Err(_) if force => return clear(&state),
        loaded => loaded?,
    };
    let is_created = container.root.join(FIFO).exists();
    let status = container.status();
    if status != ContainerStatus::Stopped && !force && !is_created {
        return Err(Failure::Untimely(format!(
            "cannot delete container {id} that is not stopped: {}",
            word_for(status)
        )));
    }
    end(&container)?;
    let Ok(mut config) = config_of(&container) else {
        return clear(&state);
    };
    let cgroups = cgroups::own(&config.cgroup_path);
    cgroups::remove_below(&cgroups)?;
    // libcontainer would keep a container for ever whose hook fails each time.
    let hooks = config.hooks.take();
    config
        .save(&container.root)
        .map_err(|error| Failure::library(&error))?;
    // It knows its init by the number alone, which may be another process's now; nothing of the container lives.
    container.state.pid = None;
    container
        .delete(true)
        .map_err(|error| Failure::library(&error))?;
    let removed = cgroups::remove(&cgroups);
    let hooks = hooks.and_then(|hooks| hooks.poststop().clone());
    for hook in hooks.unwrap_or_default() {
        if let Err(error) = run_hooks(Some(&vec![hook]), Some(&container.state), None, None, None) {
            // The others run, and it is deleted (OCI runtime specification, "Lifecycle").
            let _ = writeln!(io::stderr(), "warning: a poststop hook has failed: {error}");
        }
    }
    removed
}

/// Removes a container whose notes were cut short while they were written: what is known of it is where its cgroups
/// are, at the most.
fn clear(state: &Path) -> Result<(), Failure> {
    let noted = bundle::read::<Vec<PathBuf>>(&state.join(CGROUPS));
    cgroups::clear(&noted.unwrap_or_default())?;
    forget(state)
}

/// What a creation has left that was ended before it noted anything.
fn forget(state: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(state) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Failure::Unknown),
        removed => removed.map_err(|source| Failure::io(state, source)),
    }
}

/// Ends what is left of it. The number of an init that has ended may be another process's.
fn end(container: &Container) -> Result<(), Failure> {
    if let Some(pid) = container
        .pid()
        .filter(|_| container.status() != ContainerStatus::Stopped)
    {
        // It may have ended.
        let _ = sys::kill(pid.as_raw(), libc::SIGKILL);
    }
    let Ok(cgroups) = manager(container) else {
        return Ok(());
    };
    let began = Instant::now();
    loop {
        kill_all(container, libc::SIGKILL)?;
        // Those that are dead and not collected are not among them.
        if cgroups.get_all_pids().unwrap_or_default().is_empty() {
            return Ok(());
        }
        if began.elapsed() > GONE_WITHIN {
            return Err(Failure::Untimely(
                "its processes are killed and do not end".into(),
            ));
        }
        sleep(LOOK_EVERY);
    }
}

/// Freezes a container.
///
/// # Errors
///
/// If it does not run.
pub fn pause(settings: &Settings, id: &str) -> Result<(), Failure> {
    let mut container = load(settings, id)?;
    match container.status() {
        ContainerStatus::Running => container.pause().map_err(|error| Failure::library(&error)),
        _ => Err(Failure::Untimely("container not running".into())),
    }
}

/// Thaws a container.
///
/// # Errors
///
/// If it is not frozen.
pub fn resume(settings: &Settings, id: &str) -> Result<(), Failure> {
    let mut container = load(settings, id)?;
    match container.status() {
        ContainerStatus::Paused => container.resume().map_err(|error| Failure::library(&error)),
        _ => Err(Failure::Untimely("container not paused".into())),
    }
}

/// Changes the resources of a container.
///
/// # Errors
///
/// If the kernel refuses them.
pub fn update(settings: &Settings, order: &Update) -> Result<(), Failure> {
    let container = load(settings, &order.container_id)?;
    let Some(file) = order.resources.as_deref() else {
        return Err(Failure::Refused(
            "update without --resources is not known here, use runc for it".into(),
        ));
    };
    let mut resources: LinuxResources = match file == Path::new("-") {
        true => bundle::parse(file, &read_to_end(io::stdin())?)?,
        false => bundle::read(file)?,
    };
    if container.status() == ContainerStatus::Stopped {
        return Err(Failure::Untimely("container not running".into()));
    }
    let cgroup = config_of(&container)?.cgroup_path;
    let cgroups = manager(&container)?;
    // As runc, which changes no devices.
    resources.set_devices(None);
    let bundle = Bundle::of(container.bundle())?;
    let given = bundle.resources();
    if cgroups::is_unified() {
        bundle::limit_swap(&mut resources);
        // libcontainer would take the container's devices away, where it is not told of them.
        resources.set_devices(given.and_then(|given| given.devices().clone()));
        in_systemd(&container, &resources)?;
    }
    // libcontainer gives the container the console again, which is to be gone before anybody can have it.
    let frozen = freeze(&cgroups, FreezerState::Frozen);
    let updated = frozen
        .and_then(|()| apply(&cgroups, &resources))
        .and(devices::deny_console(&cgroup, given));
    // One that has not frozen is not left half frozen.
    let thawed = match container.status() {
        ContainerStatus::Paused => Ok(()),
        _ => freeze(&cgroups, FreezerState::Thawed),
    };
    updated.and(thawed)
}

/// Tells systemd of a change, where cgroups are its own: it would take it back one day.
fn in_systemd(container: &Container, resources: &LinuxResources) -> Result<(), Failure> {
    let Some(scope) = scope_of(container) else {
        return Ok(());
    };
    let mut resources = resources.clone();
    if let Some(cpu) = resources.cpu_mut() {
        // To libcontainer who says nothing of a quota has none from now on.
        let own = cgroups::own(&config_of(container)?.cgroup_path);
        let now = own.first().and_then(|own| cgroups::quota(own));
        if let Some((quota, period)) = now.filter(|_| cpu.quota().is_none()) {
            cpu.set_quota(Some(quota));
            cpu.set_period(Some(cpu.period().unwrap_or(period)));
        }
    }
    apply(&manager_of(container, scope, true)?, &resources)
}

/// Gives cgroups what is said of their resources.
///
/// # Errors
///
/// If the kernel, or systemd, refuses it.
pub fn apply(cgroups: &AnyCgroupManager, resources: &LinuxResources) -> Result<(), Failure> {
    let change = ControllerOpt {
        resources,
        disable_oom_killer: false,
        oom_score_adj: None,
        freezer_state: None,
    };
    cgroups
        .apply(&change)
        .map_err(|error| Failure::library(&error))
}

fn read_to_end(mut from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What libcontainer has noted of a container.
///
/// # Errors
///
/// If it cannot be read.
pub fn config_of(container: &Container) -> Result<YoukiConfig, Failure> {
    container.spec().map_err(|error| Failure::library(&error))
}

/// The cgroups of a container. They are files, but of one that was not made to its end.
///
/// # Errors
///
/// If it is not known where they are.
pub fn manager(container: &Container) -> Result<AnyCgroupManager, Failure> {
    let config = config_of(container)?;
    manager_of(container, config.cgroup_path, container.systemd())
}

fn manager_of(
    container: &Container,
    cgroup_path: PathBuf,
    systemd_cgroup: bool,
) -> Result<AnyCgroupManager, Failure> {
    let config = CgroupConfig {
        cgroup_path,
        systemd_cgroup,
        container_name: container.id().to_owned(),
    };
    libcgroups::common::create_cgroup_manager(config).map_err(|error| Failure::library(&error))
}

fn freeze(cgroups: &AnyCgroupManager, state: FreezerState) -> Result<(), Failure> {
    cgroups
        .freeze(state)
        .map_err(|error| Failure::library(&error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// A container `a` whose state has a directory, in which nothing is.
    fn with_a_state_of_nothing() -> (tempfile::TempDir, Settings, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings {
            root: directory.path().to_owned(),
            systemd_cgroup: false,
        };
        let state = settings.state_of("a");
        fs::create_dir(&state).unwrap();
        (directory, settings, state)
    }

    #[test]
    fn who_has_the_number_of_an_init_that_has_ended_is_not_killed_with_it() {
        let (directory, settings, state) = with_a_state_of_nothing();
        let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(stranger.id()).ok();
        let running = ContainerStatus::Running;
        let container = Container::new("a", running, pid, directory.path(), &state).unwrap();
        container.save().unwrap();
        fs::write(state.join(START_TIME), "1").unwrap();
        let deleted = delete(&settings, "a", true);
        // SIGKILL, had it been sent, would have come before.
        sys::kill(pid.unwrap(), libc::SIGTERM).unwrap();
        let ended = stranger.wait().unwrap();
        deleted.unwrap();
        assert!(!state.exists());
        assert_eq!(ended.signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn what_was_cut_short_while_it_was_written_down_can_be_removed() {
        let (_directory, settings, state) = with_a_state_of_nothing();
        for text in ["", "{", "{}"] {
            fs::write(state.join("state.json"), text).unwrap();
            delete(&settings, "a", true).unwrap();
            assert!(!state.exists(), "{text}");
            fs::create_dir(&state).unwrap();
        }
    }

    #[test]
    fn signals_have_numbers_and_names() {
        for name in ["9", "KILL", "SIGKILL", "kill"] {
            assert_eq!(number_of(name).unwrap(), libc::SIGKILL);
        }
        for number in [0, 40] {
            assert_eq!(number_of(&number.to_string()).unwrap(), number);
        }
        for name in ["", "-1", "99", "NONE", "SIGSIGKILL"] {
            let error = number_of(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }
}
