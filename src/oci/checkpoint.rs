//! Checkpoints: criu writes a container to files and restores it from them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use usher_engine::Checkpoint;
use usher_linux::reaper::Child;
use usher_linux::stdio::ProcessStdio;

use super::OciRuntime;
use super::command::RuntimeCommand;
use super::error::{RuntimeError, Verb};

/// criu's log in its work directory.
const DUMP_LOG: &str = "dump.log";
/// Copy of criu's log in the bundle.
const COPIED_LOG: &str = "criu-dump.log";

/// Directory in the bundle in which criu works during a restore, unless the caller names another.
const WORK: &str = "work";

/// The checkpoint from which a container is restored, and criu's directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Directory with the files of the checkpoint.
    pub image: PathBuf,
    /// Directory for criu's own files; `None` for the default one in the bundle.
    pub work: Option<PathBuf>,
}

impl OciRuntime {
    /// Writes a checkpoint of a container.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message and the path of criu's log.
    #[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
    pub async fn checkpoint(&self, id: &str, checkpoint: &Checkpoint) -> Result<(), RuntimeError> {
        let own_work = self.scratch("criu-work");
        let work = checkpoint.work.as_deref().unwrap_or(&own_work.0);
        let mut command = self.command(Verb::Checkpoint);
        self.find_criu(&mut command);
        command.arg("--image-path").arg(&checkpoint.image);
        command.arg("--work-path").arg(work);
        for (flag, is_set) in [
            ("--tcp-established", checkpoint.open_tcp),
            ("--ext-unix-sk", checkpoint.external_unix_sockets),
            ("--shell-job", checkpoint.terminal),
            ("--file-locks", checkpoint.file_locks),
            ("--leave-running", !checkpoint.exit),
        ] {
            if is_set {
                command.arg(flag);
            }
        }
        if !checkpoint.cgroups_mode.is_empty() {
            command
                .arg("--manage-cgroups-mode")
                .arg(&checkpoint.cgroups_mode);
        }
        for namespace in &checkpoint.empty_namespaces {
            command.arg("--empty-ns").arg(namespace);
        }
        command.arg(id);
        let outcome = self.run(command, None).await;
        let outcome = match outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(self.with_log(error, work).await),
        };
        if checkpoint.work.is_none() {
            let own_work = own_work.0.clone();
            let removed = self.reaper.threads().run(|| fs::remove_dir_all(own_work));
            if let Err(error) = removed.await.and_then(|removed| removed) {
                tracing::debug!(%error, "cannot remove criu's work directory");
            }
        }
        outcome
    }

    /// Shortens an error to its first line. Copies criu's log, because the work directory will be
    /// removed, and adds the path of the copy to the error.
    #[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
    async fn with_log(&self, error: RuntimeError, work: &Path) -> RuntimeError {
        let RuntimeError::Failed { verb, message } = error else {
            return error;
        };
        let copy = self.bundle.join(COPIED_LOG);
        let (log, to) = (work.join(DUMP_LOG), copy.clone());
        let copied = self.reaper.threads().run(move || fs::copy(log, to));
        if let Err(error) = copied.await.and_then(|copied| copied) {
            tracing::debug!(%error, "cannot copy criu's log");
        }
        let complaint = message.lines().next().unwrap_or_default();
        RuntimeError::Failed {
            verb,
            message: format!("{complaint} path= {}", copy.display()),
        }
    }

    /// Restores a container from its checkpoint; returns its running init process.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], with the runtime's message.
    pub async fn restore(
        &self,
        id: &str,
        restore: &Restore,
        stdio: ProcessStdio,
    ) -> Result<Child, RuntimeError> {
        let expectation = self.reaper.expect();
        let pid_file = self.init_pid_file();
        let bundles = || self.bundle.join(WORK);
        let work = restore.work.clone().unwrap_or_else(bundles);
        let mut command = self.command(Verb::Restore);
        self.find_criu(&mut command);
        command.arg("--image-path").arg(&restore.image);
        command.arg("--work-path").arg(&work);
        command.arg("--detach").arg("--no-subreaper");
        command.arg("--pid-file").arg(&pid_file);
        command.arg("--bundle").arg(&self.bundle);
        command.console_socket(&stdio);
        if self.no_pivot_root {
            command.arg("--no-pivot");
        }
        command.arg(id);
        let outcome = self.run(command, Some(stdio)).await;
        self.new_init(Verb::Restore, outcome, expectation, &pid_file)
            .await
    }

    /// Puts criu's directory first on the PATH, because OCI runtimes no longer have an option for
    /// the path of criu.
    fn find_criu(&self, command: &mut RuntimeCommand) {
        let Some(directory) = self.criu.parent().filter(|_| self.criu.ends_with("criu")) else {
            return;
        };
        let mut path = OsString::from(directory);
        if let Some(usual) = std::env::var_os("PATH") {
            path.push(":");
            path.push(usual);
        }
        command.command.env("PATH", path);
    }
}
