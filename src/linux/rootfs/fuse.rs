//! FUSE file systems (`fuse.<name>`, `fuse3.<name>`), each of which a helper program mounts.

use std::convert::Infallible;
use std::future::pending;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use containerd_shim_protos::types::mount::Mount;
use tokio::net::unix::pipe;

use super::{HelperError, MountFailure};
use crate::reaper::{Reaper, Waited};
use usher_core::process::ExitStatus;

/// Time limit of a helper; kubelet allows two minutes for Create and Start together.
const MOUNTED_WITHIN: Duration = Duration::from_secs(60);

/// Maximum number of bytes of a helper's error message that the shim passes on.
const MAX_ERROR_BYTES: usize = 1024;

/// The program that mounts a type of file system, and that program's name for the type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Helper {
    program: &'static str,
    kind: String,
}

impl Helper {
    /// Returns the helper for a type of file system; `None` if the kernel mounts this type itself.
    pub fn of(kind: &str) -> Option<Helper> {
        let (family, kind) = kind.split_once('.')?;
        let program = match family {
            "fuse" => "mount.fuse",
            "fuse3" => "mount.fuse3",
            _ => return None,
        };
        let kind = kind.to_owned();
        Some(Helper { program, kind })
    }

    /// Has the helper mount the file system at `target`. The helper leaves a program running that
    /// serves the file system. This program becomes a child of the shim, the subreaper, and exits
    /// after the unmount.
    ///
    /// # Errors
    ///
    /// If the helper fails.
    pub async fn mount(
        &self,
        mount: &Mount,
        target: &Path,
        reaper: &Reaper,
    ) -> Result<(), MountFailure> {
        let mounted = self.run(mount, target, reaper).await;
        mounted.map_err(|error| MountFailure::Helper {
            program: self.program,
            error,
        })
    }

    async fn run(&self, mount: &Mount, target: &Path, reaper: &Reaper) -> Result<(), HelperError> {
        let (stderr, said) = pipe::pipe()?;
        let stderr = stderr.into_blocking_fd()?;
        let mut command = Command::new(self.program);
        command.arg(&mount.source).arg(target);
        for option in &mount.options {
            command.args(["-o", option]);
        }
        command.args(["-t", &self.kind]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let mut child = reaper.spawn(command).await?;
        let mut error_output = ErrorOutput::of(said);
        let waited = tokio::select! {
            biased;
            waited = child.wait_within(reaper, MOUNTED_WITHIN, pending()) => waited,
            never = error_output.listen() => match never {},
        };
        match waited? {
            Waited::Ended(ExitStatus::Code(0)) => Ok(()),
            Waited::Ended(status) => Err(HelperError::Failed {
                code: status.code(),
                said: error_output.text().trim().to_owned(),
            }),
            Waited::Late | Waited::Canceled => Err(HelperError::Late {
                limit: MOUNTED_WITHIN,
            }),
        }
    }
}

/// A helper's standard error. The shim reads all of it, so that the helper never blocks, and keeps
/// the beginning.
struct ErrorOutput {
    said: pipe::Receiver,
    kept: Vec<u8>,
}

impl ErrorOutput {
    fn of(said: pipe::Receiver) -> ErrorOutput {
        let kept = Vec::new();
        ErrorOutput { said, kept }
    }

    /// Reads the message and never returns, because the end of standard error does not mean that
    /// the helper has exited. The helper may close standard error earlier, and the program that the
    /// helper leaves running may never close it.
    async fn listen(&mut self) -> Infallible {
        while self.said.readable().await.is_ok() && self.take() {}
        pending().await
    }

    /// Reads what is available; false at the end of the stream.
    fn take(&mut self) -> bool {
        let mut piece = [0; MAX_ERROR_BYTES];
        match self.said.try_read(&mut piece) {
            Ok(0) => false,
            Ok(length) => {
                let room = MAX_ERROR_BYTES.saturating_sub(self.kept.len());
                self.kept.extend(piece.iter().take(length.min(room)));
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// Returns the beginning of the message.
    fn text(mut self) -> String {
        // The helper may have written more before it exited.
        self.take();
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_long_message_of_a_helper_is_read_and_its_beginning_kept() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (stderr, said) = pipe::pipe().unwrap();
            let stderr = stderr.into_blocking_fd().unwrap();
            let mut error_output = ErrorOutput::of(said);
            let much = "no such device\n".repeat(10_000);
            let writer = tokio::task::spawn_blocking(move || {
                std::fs::File::from(stderr).write_all(much.as_bytes())
            });
            tokio::select! {
                written = writer => written.unwrap().unwrap(),
                never = error_output.listen() => match never {},
            }
            let text = error_output.text();
            assert!(text.starts_with("no such device\n"));
            assert_eq!(text.len(), MAX_ERROR_BYTES);
        });
    }

    #[test]
    fn only_types_of_fuse_have_a_helper() {
        let helper = |program, kind: &str| {
            let kind = kind.to_owned();
            Some(Helper { program, kind })
        };
        assert_eq!(
            Helper::of("fuse3.fuse-overlayfs"),
            helper("mount.fuse3", "fuse-overlayfs")
        );
        assert_eq!(Helper::of("fuse.a.b"), helper("mount.fuse", "a.b"));
        for kind in ["overlay", "fuse", "fuseblk.x", "ext4.fuse", ""] {
            assert_eq!(Helper::of(kind), None);
        }
    }
}
