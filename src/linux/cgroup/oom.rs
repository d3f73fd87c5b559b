//! Detects OOM kills in a container.
//!
//! The shim relies only on the kernel's counter of OOM kills. A notification of the kernel merely
//! tells when to read the counter. v1 notifies before it kills, and it notifies all cgroups below
//! the cgroup whose limit was reached. So when a pod reaches its own limit, v1 notifies all
//! containers of the pod. v2 notifies when any of several counters has changed. Both versions
//! increase the counter before the process dies. So when the shim learns of an exit, the counter
//! includes the OOM kill that caused the exit.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cgroups_rs::fs::Controllers;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::read;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::sys;

use super::{Cgroup, Version};

/// Delay between a v1 notification and the first read of the counter. Each further delay is twice
/// as long: before the kernel kills, it logs the state of the memory, sometimes to a slow console.
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(2);

/// Delay after which the shim reads the counter for the last time. The notification may have been
/// about another container.
const LAST_LOOK_AFTER: Duration = Duration::from_secs(2);

/// Delay between a v2 notification and the read of the counter, so that one read covers many
/// notifications. The kernel kills a group's processes one by one, and if a container fills its
/// memory with files, other counters change all the time.
const SETTLES_WITHIN: Duration = Duration::from_millis(50);

/// Pause before the shim tries again to watch a cgroup, after no file descriptor was free.
const TRIES_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Watches a cgroup for kills by the OOM killer, until this value is dropped. Uses no CPU time
/// while the kernel sends no notification.
#[derive(Debug)]
pub struct OomWatch {
    kills: Arc<Kills>,
    /// The task that waits for notifications; `None` if the kernel allowed no further watch.
    notices: Option<AbortHandle>,
}

struct Kills {
    cgroup: Arc<Cgroup>,
    /// Value of the counter at the last read.
    seen: AtomicU64,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl OomWatch {
    /// Calls `tell` after OOM kills in `cgroup`, once for all kills that are noticed together.
    /// `None` without memory accounting.
    pub fn begin(cgroup: Arc<Cgroup>, tell: impl Fn() + Send + Sync + 'static) -> Option<OomWatch> {
        let kills = Arc::new(Kills {
            seen: AtomicU64::new(cgroup.oom_kills()?),
            cgroup,
            tell: Box::new(tell),
        });
        let notices = watch(&kills).inspect_err(|error| {
            // The counter is still read at the container's exit.
            tracing::warn!(%error, "cannot watch for OOM kills: they will be noticed at the exit");
        });
        Some(OomWatch {
            kills,
            notices: notices.ok(),
        })
    }

    /// Reads the counter now, after an exit and before the exit is reported.
    pub fn look(&self) {
        self.kills.look();
    }
}

impl Drop for OomWatch {
    fn drop(&mut self) {
        if let Some(notices) = &self.notices {
            notices.abort();
        }
    }
}

impl Kills {
    fn look(&self) {
        if let Some(count) = self.cgroup.oom_kills()
            && count > self.seen.swap(count, Ordering::Relaxed)
        {
            (self.tell)();
        }
    }
}

impl fmt::Debug for Kills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kills")
            .field("cgroup", &self.cgroup)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

fn watch(kills: &Arc<Kills>) -> io::Result<AbortHandle> {
    let kills = Arc::clone(kills);
    let task = match &kills.cgroup.version {
        Version::V1(cgroup) => {
            let memory = cgroup.directory(&Controllers::Mem);
            let memory = memory.ok_or(io::ErrorKind::NotFound)?;
            let notices = sys::watch(register(&memory)?, Interest::READABLE)?;
            tokio::spawn(async move { follow_v1(&kills, &notices).await })
        }
        Version::V2(cgroup) => {
            let first = changes(&cgroup.file("memory.events"))?;
            tokio::spawn(async move { follow_v2(&kills, first).await })
        }
    };
    Ok(task.abort_handle())
}

/// Registers an eventfd for a v1 cgroup. The kernel signals it before an OOM kill in the cgroup,
/// and when a cgroup above reaches its limit. Closing the eventfd ends the registration.
fn register(memory: &Path) -> io::Result<OwnedFd> {
    let notices = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let control = File::open(memory.join("memory.oom_control"))?;
    let request = format!("{} {}", notices.as_raw_fd(), control.as_raw_fd());
    fs::write(memory.join("cgroup.event_control"), request)?;
    Ok(notices.into())
}

async fn follow_v1(kills: &Kills, notices: &AsyncFd<OwnedFd>) {
    while taken(notices).await.is_ok() {
        let mut delay = FIRST_LOOK_AFTER;
        sleep(delay).await;
        kills.look();
        while delay < LAST_LOOK_AFTER {
            // After a further notification the delays begin anew.
            match timeout(delay, taken(notices)).await {
                Ok(_) => {
                    delay = FIRST_LOOK_AFTER;
                    sleep(delay).await;
                }
                Err(_elapsed) => delay = delay.saturating_mul(2),
            }
            kills.look();
        }
    }
}

/// Waits for notifications, and consumes all of them.
async fn taken(notices: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut ready = notices.readable().await?;
        let mut count = [0; size_of::<u64>()];
        match ready.try_io(|notices| Ok(read(notices.get_ref(), &mut count)?)) {
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(outcome) => return outcome.map(drop),
            Err(_would_block) => {}
        }
    }
}

/// Opens and reads a v2 file, so that the kernel notifies of its next change.
fn changes(file: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let mut file = File::open(file)?;
    io::copy(&mut file, &mut io::sink())?;
    sys::watch(file.into(), Interest::PRIORITY)
}

async fn follow_v2(kills: &Kills, first: AsyncFd<OwnedFd>) {
    let Version::V2(cgroup) = &kills.cgroup.version else {
        return;
    };
    let file = cgroup.file("memory.events");
    let mut next = Ok(first);
    loop {
        let pause = match next {
            Ok(change) => match change.ready(Interest::PRIORITY).await {
                // This match has closed the file, so the kernel does not wake the shim until
                // `changes` opens the file again.
                Ok(_) => SETTLES_WITHIN,
                Err(_) => return,
            },
            Err(_) if !file.exists() => return,
            Err(_) => TRIES_AGAIN_AFTER,
        };
        sleep(pause).await;
        next = changes(&file);
        kills.look();
    }
}
