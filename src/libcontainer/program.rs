//! From libcontainer's process to the container's program: the last steps, in the container.
//!
//! libcontainer calls [`Executor::validate`] when all is done but the program's execution, and
//! [`Executor::exec`] when it is told to go on. A container's own init is told at once, and waits here instead, behind
//! a FIFO, as runc's does: who opens it for reading releases it.

use std::convert::Infallible;
use std::error::Error;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{LinuxCapabilities, LinuxSeccomp, Process, Spec};
use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use nix::libc;
use nix::sys::prctl::get_no_new_privs;
use nix::sys::stat::{fstat, makedev};
use nix::unistd::{AccessFlags, access, dup2_stderr, dup2_stdin, dup2_stdout, execve};

use crate::error::Failure;
use crate::mounts::{self, Change};
use crate::{report, rights, sys};

/// What a process is called that waits for its release: runc's name, by which others know it.
const PARKED: &str = "runc:[2:INIT]";

/// The number of `/dev/null`.
const NULL: libc::dev_t = makedev(1, 3);

/// What is executed in a container, and what of it is not left to libcontainer.
#[derive(Clone)]
pub struct Program {
    args: Vec<String>,
    env: Vec<String>,
    uid: u32,
    no_new_privileges: bool,
    rights: LinuxCapabilities,
    seccomp: Option<LinuxSeccomp>,
    gate: Option<RawFd>,
    /// Of its terminal, if it has one: rows and columns.
    size: Option<(u16, u16)>,
    /// What is left to be done to its mounts.
    changes: Vec<Change>,
    /// What others than root are not to write, and may.
    directories: Vec<PathBuf>,
}

impl Program {
    /// The program of a process, which has `rights` when it is executed, and is under a filter of system calls.
    /// It is executed at once, or when `gate` is opened: a FIFO, as an `O_PATH` descriptor.
    pub fn new(
        process: &Process,
        rights: &LinuxCapabilities,
        seccomp: Option<LinuxSeccomp>,
        gate: Option<RawFd>,
    ) -> Program {
        Program {
            args: process.args().clone().unwrap_or_default(),
            env: process.env().clone().unwrap_or_default(),
            uid: process.user().uid(),
            no_new_privileges: process.no_new_privileges() == Some(true),
            rights: rights.clone(),
            seccomp,
            gate,
            size: size_of_terminal(process),
            changes: Vec::new(),
            directories: Vec::new(),
        }
    }

    /// The same, for one whose mounts and devices are made with it.
    ///
    /// # Errors
    ///
    /// If one of them cannot be.
    pub fn of_init(mut self, spec: &Spec) -> Result<Program, Failure> {
        self.changes = mounts::changes(spec)?;
        self.directories = mounts::directories_of_devices(spec);
        Ok(self)
    }

    /// What libcontainer is to leave the process, for what is done here before it waits.
    pub fn rights_until_then(&self) -> LinuxCapabilities {
        match self.has_to_finish() {
            true => rights::to_finish(&self.rights),
            false => self.rights.clone(),
        }
    }

    fn has_to_finish(&self) -> bool {
        self.is_filtered_early() || !self.changes.is_empty() || !self.directories.is_empty()
    }

    /// Whether it is put under its filter before it waits, for who may gain privileges needs a right
    /// to be put under one, and what waits has no more rights than its program. All others get theirs
    /// as late as can be, so that it needs not allow what is done here.
    fn is_filtered_early(&self) -> bool {
        self.seccomp.is_some() && !self.no_new_privileges
    }

    /// The file of the program, as Go's `exec.LookPath` finds it for runc, and in its words.
    fn file(&self) -> Result<PathBuf, String> {
        let name = self
            .args
            .first()
            .ok_or("process.args is empty, expected a program")?;
        let quoted = format!("exec: {name:?}");
        if name.contains('/') {
            return match unfit(Path::new(name)) {
                None => Ok(PathBuf::from(name)),
                Some(why) => Err(format!("{quoted}: {why}")),
            };
        }
        let path = value_of(&self.env, "PATH").unwrap_or_default();
        let found = path.split(':').map(|directory| match directory {
            // An empty one is where we are.
            "" => Path::new(".").join(name),
            directory => Path::new(directory).join(name),
        });
        let mut found = found.filter(|file| unfit(file).is_none());
        found
            .next()
            .ok_or_else(|| format!("{quoted}: executable file not found in $PATH"))
    }

    /// The environment, with HOME: runc takes it from the container's own list of users.
    fn environment(&self) -> Vec<String> {
        let mut env = self.env.clone();
        if value_of(&env, "HOME").is_none_or(str::is_empty) {
            let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
            env.retain(|variable| !variable.starts_with("HOME="));
            env.push(format!("HOME={}", home(&users, self.uid)));
        }
        env
    }

    /// What libcontainer does not look at, or in another way than runc.
    fn check(&self) -> Result<(), Failure> {
        if self.no_new_privileges && get_no_new_privs() != Ok(true) {
            return Err(Failure::Library(
                "privileges can be gained, which was to be impossible".into(),
            ));
        }
        // It opens the container's own to be read alone.
        let null = || OpenOptions::new().read(true).write(true).open("/dev/null");
        let is_null = |fd: BorrowedFd<'_>| {
            let stat = fstat(fd);
            stat.is_ok_and(|stat| {
                stat.st_rdev == NULL && stat.st_mode & libc::S_IFMT == libc::S_IFCHR
            })
        };
        if is_null(io::stdin().as_fd()) {
            dup2_stdin(null()?).map_err(io::Error::from)?;
        }
        if is_null(io::stdout().as_fd()) {
            dup2_stdout(null()?).map_err(io::Error::from)?;
        }
        if is_null(io::stderr().as_fd()) {
            dup2_stderr(null()?).map_err(io::Error::from)?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Failure> {
        for directory in &self.directories {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(directory, mode)
                .map_err(|source| Failure::io(directory, source))?;
        }
        self.changes.iter().try_for_each(Change::make)?;
        if let Some(rules) = self.seccomp.as_ref().filter(|_| self.is_filtered_early()) {
            rights::filter(rules)?;
        }
        rights::restrict(&self.rights)
    }

    fn execute(&self) -> Result<Infallible, String> {
        let file = self.file()?;
        let c = |text: &str| CString::new(text).map_err(|error| format!("{text:?}: {error}"));
        let args = self
            .args
            .iter()
            .map(|text| c(text))
            .collect::<Result<Vec<_>, _>>()?;
        let env = self.environment();
        let env = env
            .iter()
            .map(|text| c(text))
            .collect::<Result<Vec<_>, _>>()?;
        let path = c(&file.to_string_lossy())?;
        // Nobody but this process has looked at what else is open, and nobody is to.
        sys::close_all_but_pipes();
        if let Some(gate) = self.gate {
            wait(gate).map_err(|error| format!("exec FIFO: {error}"))?;
        }
        if let Some(rules) = self.seccomp.as_ref().filter(|_| !self.is_filtered_early()) {
            rights::filter(rules).map_err(|error| error.to_string())?;
        }
        execve(&path, &args, &env)
            .map_err(|error| format!("exec {}: {}", file.display(), go(error)))
    }
}

impl Executor for Program {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        let failed = |why: String| ExecutorValidationError::ArgValidationError(why);
        self.file().map_err(failed)?;
        if let Some((rows, columns)) = self.size {
            // As with runc, the program runs all the same.
            let _ = sys::set_size(io::stdin().as_fd(), rows, columns);
        }
        // Rust has this process ignore one, and who has called it may have ignored others: its program would.
        sys::leave_signals_to_the_kernel();
        self.check().map_err(|error| failed(error.to_string()))?;
        if self.has_to_finish() {
            self.finish().map_err(|error| failed(error.to_string()))?;
        }
        report::end();
        Ok(())
    }

    /// The program gets its environment when it is executed.
    fn setup_envs(
        &self,
        _: std::collections::HashMap<String, String>,
    ) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let error = match self.execute() {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if self.gate.is_some() {
            // Nobody waits for our answer any more; this is where runc says it.
            let _ = writeln!(io::stderr(), "{error}");
        }
        Err(ExecutorError::Execution(
            Box::<dyn Error + Send + Sync>::from(error),
        ))
    }
}

/// Waits until somebody opens the FIFO for reading, and tells by one byte that the program is executed.
fn wait(gate: RawFd) -> io::Result<()> {
    // It is only a name; without it we are waited for all the same.
    let _ = fs::write("/proc/self/comm", PARKED);
    let path = format!("/proc/self/fd/{gate}");
    let mut fifo = OpenOptions::new().write(true).open(path)?;
    fifo.write_all(b"0")
}

/// The size that a terminal is to have from the beginning.
fn size_of_terminal(process: &Process) -> Option<(u16, u16)> {
    let size = process
        .console_size()
        .filter(|_| process.terminal() == Some(true))?;
    Some((
        u16::try_from(size.height()).ok()?,
        u16::try_from(size.width()).ok()?,
    ))
}

/// Why a file is no program, in Go's words.
fn unfit(file: &Path) -> Option<String> {
    let stat = match fs::metadata(file) {
        Ok(stat) => stat,
        Err(error) => return Some(format!("stat {}: {}", file.display(), go_io(&error))),
    };
    if stat.is_dir() {
        return Some("is a directory".to_owned());
    }
    // What nobody may execute root may not either, but is told so by access(2) only of some file systems.
    let is_executable = stat.permissions().mode() & 0o111 != 0;
    match is_executable && access(file, AccessFlags::X_OK).is_ok() {
        true => None,
        false => Some("permission denied".to_owned()),
    }
}

/// An error as Go says it: in small letters, without its number.
fn go(error: nix::Error) -> String {
    let words = error.desc();
    let mut letters = words.chars();
    letters
        .next()
        .map(|first| first.to_lowercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}

fn go_io(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => go(nix::Error::from_raw(number)),
        None if error.kind() == ErrorKind::NotFound => "no such file or directory".to_owned(),
        None => error.to_string(),
    }
}

/// The last value of a variable, which is the one that counts.
fn value_of<'a>(env: &'a [String], name: &str) -> Option<&'a str> {
    let values = env
        .iter()
        .rev()
        .filter_map(|variable| variable.split_once('='));
    values
        .into_iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// The home of a user in a list of users (`passwd(5)`); the root for who has none.
fn home(users: &str, uid: u32) -> &str {
    let homes = users.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_theirs = fields.next()?.parse() == Ok(uid);
        is_theirs.then(|| fields.nth(2)).flatten()
    });
    homes
        .into_iter()
        .find(|home| !home.is_empty())
        .unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use libcontainer::oci_spec::runtime::{LinuxCapabilitiesBuilder, ProcessBuilder};

    use super::*;

    fn program(args: &[&str], env: &[&str]) -> Program {
        let owned = |texts: &[&str]| {
            texts
                .iter()
                .map(|&text| text.to_owned())
                .collect::<Vec<_>>()
        };
        let process = ProcessBuilder::default()
            .args(owned(args))
            .env(owned(env))
            .build()
            .unwrap();
        let rights = LinuxCapabilitiesBuilder::default().build().unwrap();
        Program::new(&process, &rights, None, None)
    }

    #[test]
    fn a_program_is_found_and_missed_in_the_words_of_runc() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        fs::write(at("plain"), "").unwrap();
        fs::write(at("tool"), "").unwrap();
        fs::set_permissions(at("tool"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("PATH=/no/such:{}", directory.path().display());
        let found = |name: &str| program(&[name], &["PATH=/other", &path]).file();
        assert_eq!(found("tool"), Ok(directory.path().join("tool")));
        assert_eq!(found(&at("tool")), Ok(directory.path().join("tool")));
        let missed = [
            (
                "plain",
                r#"exec: "plain": executable file not found in $PATH"#.to_owned(),
            ),
            (
                "/no/such",
                r#"exec: "/no/such": stat /no/such: no such file or directory"#.to_owned(),
            ),
            (
                &at("plain"),
                format!("exec: {:?}: permission denied", at("plain")),
            ),
            ("/", r#"exec: "/": is a directory"#.to_owned()),
        ];
        for (name, words) in missed {
            assert_eq!(found(name), Err(words));
        }
    }

    #[test]
    fn home_is_that_of_the_list_of_users_if_it_is_not_given() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nb:x:7:7::/home/b:/bin/sh\nn:x:8:8:::\n";
        for (uid, expected) in [(0, "/root"), (7, "/home/b"), (8, "/"), (9, "/")] {
            assert_eq!(home(users, uid), expected);
        }
        assert_eq!(home("", 0), "/");
        let given = program(&["a"], &["HOME=/x", "A=1", "HOME=/given"]).environment();
        assert_eq!(given, ["HOME=/x", "A=1", "HOME=/given"]);
        let none = program(&["a"], &["A=1", "HOME="]).environment();
        assert!(
            none.len() == 2 && none.iter().any(|variable| variable.starts_with("HOME=/")),
            "{none:?}"
        );
    }
}
