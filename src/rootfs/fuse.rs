//! File systems that a program mounts and then serves: `fuse.<name>`, `fuse3.<name>`.

use std::future::pending;
use std::io::{PipeReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use containerd_shim_protos::types::mount::Mount;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::process::ExitStatus;
use crate::reaper::{Reaper, Waited};

/// How long a helper may take; kubelet gives Create and Start two minutes together.
const MOUNTED_WITHIN: Duration = Duration::from_secs(60);

/// How much of a helper's complaint is passed on, in bytes.
const COMPLAINT_AT_MOST: u64 = 1024;

/// The program that mounts a type of file system, and what it calls the type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Helper {
    program: &'static str,
    kind: String,
}

impl Helper {
    /// The helper for a type of mount; none if the kernel does it by itself.
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

    /// Has it mount at `target`. The program that serves the file system becomes a child of ours,
    /// as an orphan does, and ends when it is unmounted.
    ///
    /// # Errors
    ///
    /// One sentence, with the helper's own words.
    pub async fn mount(&self, mount: &Mount, target: &Path, reaper: &Reaper) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.program);
        let (complaint, stderr) = std::io::pipe().map_err(failed)?;
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
        let mut child = reaper.spawn(command).await.map_err(failed)?;
        let waited = child.wait_within(reaper, MOUNTED_WITHIN, pending());
        match waited.await.map_err(failed)? {
            Waited::Ended(ExitStatus::Code(0)) => Ok(()),
            Waited::Ended(status) => Err(format!(
                "{} ended with {}: {}",
                self.program,
                status.code(),
                read(complaint).trim()
            )),
            Waited::Late | Waited::Halted => Err(format!(
                "{} did not end within {MOUNTED_WITHIN:?}, and was ended",
                self.program
            )),
        }
    }
}

/// What is there by now: whatever the helper has left running may never close the pipe.
fn read(pipe: PipeReader) -> String {
    let mut text = Vec::new();
    if fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
        // It ends with an error where nothing is left.
        let _ = pipe.take(COMPLAINT_AT_MOST).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
