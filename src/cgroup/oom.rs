//! Notices when the kernel kills a process of a container because memory ran out.
//!
//! The kernel's counter of a cgroup decides. Version 1 notifies every cgroup below the one whose
//! limit was reached, so each container of a pod whose own limit it was, and before it kills
//! anything; version 2 says that one of several counters has changed. In both the counter is
//! increased before the process dies: when its end is known, so is the reason.

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

/// After a notice of version 1 the counter is looked at this soon, and then after twice the time,
/// again and again: before it kills, the kernel logs the state of the memory, at times to a slow
/// console.
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(2);

/// The last look comes about twice as long after the notice. The notice may have been about another
/// container's process.
const LAST_LOOK_AFTER: Duration = Duration::from_secs(2);

/// How long after a notice of version 2 the counter is looked at. A group is killed one by one; and
/// a container that fills its memory with files has a counter change all the time.
const SETTLES_WITHIN: Duration = Duration::from_millis(50);

/// When no descriptor was left to watch with.
const TRIES_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Watches a cgroup until it is dropped. Nothing runs while nothing happens.
#[derive(Debug)]
pub struct OomWatch {
    kills: Arc<Kills>,
    /// None if the kernel had no room for one more.
    notices: Option<AbortHandle>,
}

struct Kills {
    cgroup: Arc<Cgroup>,
    /// How many there were at the last look.
    seen: AtomicU64,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl OomWatch {
    /// Has `tell` called when the kernel has killed a process in `cgroup`: once for all kills that
    /// are noticed together. None where memory is not accounted for.
    pub fn begin(cgroup: Arc<Cgroup>, tell: impl Fn() + Send + Sync + 'static) -> Option<OomWatch> {
        let kills = Arc::new(Kills {
            seen: AtomicU64::new(cgroup.oom_kills()?),
            cgroup,
            tell: Box::new(tell),
        });
        let notices = watch(&kills).inspect_err(|error| {
            // At the container's end the counter is looked at all the same.
            tracing::warn!(%error, "kills for want of memory will be noticed late");
        });
        Some(OomWatch {
            kills,
            notices: notices.ok(),
        })
    }

    /// Looks at the counter now: a process has ended, and why is to be known before its end is told.
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

/// An eventfd that the kernel signals before it kills in a cgroup of version 1, or in one above it.
/// When it is closed the kernel forgets it.
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
            // Notices that come faster than we look are one.
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

/// Waits for notices, and takes all there are.
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

/// A file of version 2, read, so that the kernel tells of its next change.
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
                // Closed by now: nothing wakes the shim until the file is watched again.
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
