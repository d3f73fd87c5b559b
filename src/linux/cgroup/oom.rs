//! Detects OOM kills in a container.
//!
//! The shim relies only on the kernel's counter of OOM kills. A notification of the kernel merely
//! tells when to read the counter. v1 notifies before it kills, and it notifies all cgroups below
//! the cgroup whose limit was reached. So when a pod reaches its own limit, v1 notifies all
//! containers of the pod. v2 notifies when any of several counters has changed. Both versions
//! increase the counter before the process dies. So when the shim learns of an exit, the counter
//! includes the OOM kill that caused the exit.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cgroups_rs::fs::Controllers;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::read;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::sys;

use super::read::{text, value};
use super::{Cgroup, Version, below};

/// Delay between a notification and the next read of the counter. Each further delay is twice as
/// long. The kill may come long after the notification, because the kernel first logs the state of
/// the memory, sometimes to a slow console.
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(2);

/// Time after a v1 notification at which the shim reads the counter for the last time. The wait is
/// limited, because the notification may have been about another container.
const LAST_LOOK_AFTER: Duration = Duration::from_secs(2);

/// Time after a v2 notification in which the shim reads the counter several times, before it waits
/// for the next notification. So a few reads cover many notifications. A container that fills its
/// memory with files causes many notifications, because it changes other counters all the time.
const SETTLES_WITHIN: Duration = Duration::from_millis(50);

/// Pause between two attempts to watch a cgroup. An attempt fails, for example, while no file
/// descriptor is free.
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
    /// The counts at the last read.
    seen: Mutex<Counts>,
    tell: Box<dyn Fn() + Send + Sync>,
}

/// Numbers of OOM kills by the directory of the cgroup that has counted them. Cgroups without kills
/// are left out.
#[derive(Debug, Default)]
struct Counts(BTreeMap<PathBuf, u64>);

impl OomWatch {
    /// Calls `tell` after OOM kills in `cgroup`, once for all kills that are noticed together.
    /// `None` without memory accounting.
    pub fn begin(cgroup: Arc<Cgroup>, tell: impl Fn() + Send + Sync + 'static) -> Option<OomWatch> {
        let kills = Arc::new(Kills {
            seen: Mutex::new(Counts::of(&cgroup)?),
            cgroup,
            tell: Box::new(tell),
        });
        let notices = watch(&kills).inspect_err(|error| {
            // The shim also reads the counter when the container exits, and so still finds most
            // kills.
            tracing::warn!(%error, "cannot watch for OOM kills: they will be noticed at the exit");
        });
        Some(OomWatch {
            kills,
            notices: notices.ok(),
        })
    }

    /// Reads the counter now. Call this after an exit, before the exit is reported.
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
    /// Reads the counter, and calls `tell` if there are new kills. Returns true if there are any.
    fn look(&self) -> bool {
        let Some(now) = Counts::of(&self.cgroup) else {
            return false;
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let has_new = now.exceeds(&seen);
        *seen = now;
        drop(seen);
        if has_new {
            (self.tell)();
        }
        has_new
    }

    /// Reads the counter after a v2 notification, at once and several times later. The kernel may
    /// have notified before it kills. After the kill, systemd removes the cgroup as soon as its
    /// last process has exited, perhaps before the shim learns of that exit.
    ///
    /// Stops reading after a kill, because the kernel may kill several processes of a cgroup one by
    /// one (`memory.oom.group`). The caller's next read covers the other kills.
    async fn look_until_settled(&self) {
        let (mut delay, mut left) = (FIRST_LOOK_AFTER, SETTLES_WITHIN);
        let mut has_told = false;
        while !left.is_zero() {
            has_told = has_told || self.look();
            sleep(delay.min(left)).await;
            left = left.saturating_sub(delay);
            delay = delay.saturating_mul(2);
        }
    }
}

impl Counts {
    /// Reads the counts of a cgroup and of the cgroups below it; `None` without memory accounting.
    fn of(cgroup: &Cgroup) -> Option<Counts> {
        match &cgroup.version {
            Version::V1(cgroup) => Counts::below(cgroup.directory(&Controllers::Mem)?),
            // A v2 cgroup also counts the kills in the cgroups below it.
            Version::V2(cgroup) => {
                let count = value(&text(&cgroup.file("memory.events"))?, "oom_kill")?;
                let one = (cgroup.directory().to_owned(), count);
                Some(Counts([one].into_iter().filter(is_kill).collect()))
            }
        }
    }

    /// Reads the counts of a v1 cgroup and of the cgroups below it, because a v1 cgroup counts only
    /// its own kills.
    fn below(memory: PathBuf) -> Option<Counts> {
        let count = |directory: PathBuf| {
            let text = text(&directory.join("memory.oom_control"))?;
            Some((directory, value(&text, "oom_kill")?))
        };
        let mut counts = below(Some(memory)).filter_map(count).peekable();
        counts.peek()?;
        Some(Counts(counts.filter(is_kill).collect()))
    }

    /// True if a cgroup has counted a kill since the earlier counts. A sum of the counts would hide
    /// a kill if a cgroup with earlier kills has been removed.
    fn exceeds(&self, earlier: &Counts) -> bool {
        let mut counts = self.0.iter();
        counts.any(|(cgroup, count)| earlier.0.get(cgroup).is_none_or(|earlier| count > earlier))
    }
}

fn is_kill((_, count): &(PathBuf, u64)) -> bool {
    *count > 0
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
            // After another notification, start again with the shortest delay.
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
        match next {
            Ok(change) => {
                if change.ready(Interest::PRIORITY).await.is_err() {
                    return;
                }
                // Close the file, so that further changes do not wake up the shim while it reads
                // the counter. Then `changes` opens and reads the file again, so the next wait ends
                // only at a later change.
                drop(change);
                kills.look_until_settled().await;
            }
            Err(_) if !file.exists() => return,
            Err(_) => sleep(TRIES_AGAIN_AFTER).await,
        }
        next = changes(&file);
        kills.look();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::v2::V2;
    use super::*;

    fn write(directory: &Path, file: &str, kills: u64) {
        let text = format!("oom 1\noom_kill {kills}\n");
        fs::write(directory.join(file), text).unwrap();
    }

    /// Returns a [`Kills`] for the v2 cgroup in `directory`. Also returns a counter, to which each
    /// call of its function `tell` adds one.
    fn kills_in(directory: &Path) -> (Kills, Arc<AtomicU32>) {
        // The path is relative to `/sys/fs/cgroup`.
        let path = format!("../../..{}", directory.display());
        let cgroup = Cgroup {
            version: Version::V2(V2::new(&path)),
        };
        let told = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&told);
        let kills = Kills {
            seen: Mutex::new(Counts::of(&cgroup).unwrap()),
            cgroup: Arc::new(cgroup),
            tell: Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            }),
        };
        (kills, told)
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_is_noticed_even_if_the_cgroup_is_removed_milliseconds_later() {
        for (killed_after, removed_after) in [(0, 10), (15, 20)] {
            let directory = tempfile::tempdir().unwrap();
            let write = |kills| write(directory.path(), "memory.events", kills);
            write(0);
            let (kills, told) = kills_in(directory.path());
            let removal = async {
                sleep(Duration::from_millis(killed_after)).await;
                write(1);
                sleep(Duration::from_millis(removed_after)).await;
                fs::remove_dir_all(directory.path()).unwrap();
            };
            tokio::join!(removal, kills.look_until_settled());
            kills.look();
            assert_eq!(told.load(Ordering::Relaxed), 1, "{killed_after} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn kills_of_a_group_are_told_at_most_twice() {
        let directory = tempfile::tempdir().unwrap();
        let write = |kills| write(directory.path(), "memory.events", kills);
        write(0);
        let (kills, told) = kills_in(directory.path());
        let group = async {
            for number in 1..40 {
                write(number);
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::join!(group, kills.look_until_settled());
        kills.look();
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_removed_cgroup_with_kills_hides_no_kill_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let (own, nested) = (directory.path(), directory.path().join("nested"));
        fs::create_dir(&nested).unwrap();
        let counts = || Counts::below(own.to_owned()).unwrap();
        write(own, "memory.oom_control", 0);
        write(&nested, "memory.oom_control", 0);
        let none = counts();
        write(&nested, "memory.oom_control", 3);
        let three = counts();
        assert!(three.exceeds(&none) && !counts().exceeds(&three));
        fs::remove_dir_all(&nested).unwrap();
        let removed = counts();
        assert!(!removed.exceeds(&three));
        write(own, "memory.oom_control", 1);
        assert!(counts().exceeds(&three) && counts().exceeds(&removed));
        fs::remove_file(own.join("memory.oom_control")).unwrap();
        assert!(Counts::below(own.to_owned()).is_none());
    }
}
