//! The only owner of all child processes.
//!
//! The shim is a subreaper: when the OCI runtime's command exits, the kernel makes the container's
//! processes children of the shim. `waitpid(-1)` collects the exits of all children, so no other
//! code in this process may wait for a child. The kernel does not reuse a process id before the
//! reaper has collected the process. So only the reaper can signal a process without the risk of
//! hitting another process.

#[cfg(test)]
mod alone;
mod children;
mod ending;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::offload::{self, Threads};
use crate::sys::{self, Exit};
use usher_core::process::ExitStatus;

use children::Search;

pub use children::LIST as LIST_OF_CHILDREN;
#[cfg(any(test, fuzzing))]
pub(crate) use children::fuzz;
pub use ending::Waited;

/// Maximum number of unclaimed exits, of twelve bytes each, that are kept while a command may still
/// claim one. Beyond it, the oldest is dropped. A container that shares a PID namespace with others
/// can leave thousands of orphans a second.
const UNCLAIMED_AT_MOST: usize = 32_768;

/// Exit status of a process whose exit was dropped. containerd uses the same status for unknown
/// exits.
const UNKNOWN: ExitStatus = ExitStatus::Code(255);

/// Minimum time between two searches for orphans, if the kernel has no lists of children.
const SEARCHES_APART: Duration = Duration::from_secs(5);

/// Spawns commands, collects exits, delivers signals. Clones share one table.
#[derive(Clone, Debug, Default)]
pub struct Reaper {
    table: Arc<Mutex<Table>>,
    /// Counts the CPU time of the commands that this reaper spawns.
    meter: Option<Meter>,
    search: Search,
    threads: Threads,
}

/// Counts the CPU time of commands. Clones share one counter.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    nanos: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Table {
    /// Waiters for the exits of processes that are not collected yet, by process id.
    waiting: HashMap<i32, Waiting>,
    /// Number of running commands that have not yet reported the id of the process that they start.
    expected: usize,
    /// Exits of processes without a waiter. A running command may still report one of them as the
    /// process that it has started.
    unclaimed: VecDeque<(i32, ExitStatus)>,
    /// True if exits were dropped from `unclaimed`.
    is_incomplete: bool,
    /// Processes to leave as zombies when they exit. The value is true if the reaper has already
    /// read the exit.
    reserved: BTreeMap<i32, bool>,
    /// Earliest time of the next search for orphans, if the kernel has no lists of children.
    next_search: Option<Instant>,
    /// True if a search is needed, because orphans may have exited that wait(2) does not return.
    is_search_due: bool,
    spawning: Spawning,
}

/// Number of commands that threads are spawning now.
#[derive(Clone, Copy, Debug, Default)]
struct Spawning(usize);

/// A command that was just spawned. On drop, the command is killed unless its caller has taken it.
struct Spawned {
    child: Option<Child>,
    reaper: Reaper,
}

#[derive(Debug)]
struct Waiting {
    exit: oneshot::Sender<ExitStatus>,
    meter: Option<Meter>,
}

/// A child process. Only the owner of this value can wait for the exit of the process.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    exit: oneshot::Receiver<ExitStatus>,
}

/// A thread that has spawned a command and does nothing more. It ends when this value is dropped.
#[derive(Debug)]
pub struct ParentThread {
    _end: mpsc::Sender<()>,
}

/// Makes the reaper keep the exits of unknown processes until this value is dropped. So the caller
/// can [claim](Expectation::claim) a process that a command has started, even if the process has
/// already exited.
#[derive(Debug)]
pub struct Expectation {
    reaper: Reaper,
}

impl Child {
    /// The process id; the kernel may reuse it once [`wait`](Child::wait) has returned.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the exit. May be called again after it was canceled.
    ///
    /// # Errors
    ///
    /// If the reaper is gone, which happens only when the shim ends.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.exit)
            .await
            .map_err(|_| io::Error::other("the reaper is gone"))
    }
}

impl Meter {
    /// The CPU time of all counted commands that have exited.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn count(&self, cpu: Duration) {
        let nanos = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Reaper {
    /// Returns the same reaper, with `meter` for the CPU time of the commands it spawns.
    pub fn metered(&self, meter: &Meter) -> Reaper {
        Reaper {
            table: Arc::clone(&self.table),
            meter: Some(meter.clone()),
            search: self.search,
            threads: self.threads.clone(),
        }
    }

    /// Returns a handle of this reaper for one container. The handle has its own limit on the
    /// threads for work that can stall.
    pub fn with_own_threads(&self) -> Reaper {
        Reaper {
            threads: Threads::default(),
            ..self.clone()
        }
    }

    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Collects exits for as long as the runtime lives.
    ///
    /// # Errors
    ///
    /// If the handler for SIGCHLD cannot be installed.
    pub fn start(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        let reaper = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    signal = children.recv() => if signal.is_none() { return },
                    () = reaper.search_is_due() => {}
                }
                reaper.reap();
            }
        });
        Ok(())
    }

    /// Waits until a postponed search is due; forever if no search was postponed.
    async fn search_is_due(&self) {
        let due = {
            let table = self.lock();
            table.next_search.filter(|_| table.is_search_due)
        };
        match due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Spawns a command on a further thread, because the disk with the program may stall. Kills the
    /// command if the caller no longer waits when the command has started.
    ///
    /// # Errors
    ///
    /// If the command cannot be spawned.
    pub async fn spawn(&self, command: Command) -> io::Result<Child> {
        let reaper = self.clone();
        let spawned = self.threads.run(move || reaper.spawn_here(command)).await;
        spawned??.keep()
    }

    /// Spawns a command like [`spawn`](Reaper::spawn). The command's parent thread lives until the
    /// returned [`ParentThread`] is dropped, because the command may ask for a signal when its
    /// parent thread ends (`PR_SET_PDEATHSIG(2const)`).
    ///
    /// # Errors
    ///
    /// If the command cannot be spawned.
    pub async fn spawn_with_parent(&self, command: Command) -> io::Result<(Child, ParentThread)> {
        let reaper = self.clone();
        let spawned = self.threads.run(move || {
            let (parent, its_end) = mpsc::channel();
            let (sender, spawned) = mpsc::channel();
            offload::start(move || {
                let _ = sender.send(reaper.spawn_here(command));
                // Wait until the caller drops the `ParentThread`.
                let _ = its_end.recv();
            })?;
            let spawned = spawned.recv().map_err(io::Error::other)??;
            Ok::<_, io::Error>((spawned, ParentThread { _end: parent }))
        });
        let (spawned, parent) = spawned.await??;
        Ok((spawned.keep()?, parent))
    }

    /// Spawns the shim's own program again. Since that program runs already, no disk can stall its
    /// start. The serving thread itself spawns the program, because the program may ask for a
    /// signal when its parent thread ends.
    ///
    /// # Errors
    ///
    /// If the program cannot be spawned.
    pub fn spawn_self(&self, command: &mut Command) -> io::Result<Child> {
        // Hold the lock until the child is in the table, because nothing may collect its exit
        // before that. Dropping std's `Child` neither kills the process nor waits for it.
        let mut table = self.lock();
        let pid = pid_of(&sys::spawn(command)?)?;
        Ok(table.wait_for(pid, self.meter.clone()))
    }

    /// Spawns a command on the calling thread, which stalls if the disk with the program stalls.
    /// During the call the reaper collects no child of this thread, because the new child is not in
    /// the table yet. Also, if the program cannot be executed, std itself waits for the child.
    fn spawn_here(&self, mut command: Command) -> io::Result<Spawned> {
        self.lock().spawning.begin();
        let spawned = sys::spawn(&mut command).and_then(|child| pid_of(&child));
        // Close this process's copies of the command's streams. Otherwise the readers of the
        // streams never see the end.
        drop(command);
        let child = {
            let mut table = self.lock();
            table.spawning.end();
            spawned.map(|pid| table.wait_for(pid, self.meter.clone()))
        };
        // Collect the exits that were left out during the spawn: no further SIGCHLD comes for them.
        self.reap();
        Ok(Spawned {
            child: Some(child?),
            reaper: self.clone(),
        })
    }

    /// Prepares the reaper for a command that starts a process and then reports the process id.
    /// With the returned value the caller claims the process after the command, even if the process
    /// has exited.
    pub fn expect(&self) -> Expectation {
        let mut table = self.lock();
        table.expected = table.expected.saturating_add(1);
        Expectation {
            reaper: self.clone(),
        }
    }

    /// Sends signal number `signal` to a process that was spawned or claimed here.
    ///
    /// # Errors
    ///
    /// `ESRCH` if the process has exited, `EINVAL` if there is no such signal.
    pub fn kill(&self, pid: i32, signal: i32) -> io::Result<()> {
        // While this thread holds the lock, the process cannot be collected, so its id is not
        // reused.
        match self.lock().waiting.contains_key(&pid) {
            true => sys::kill(pid, signal),
            false => Err(io::Error::from_raw_os_error(Errno::ESRCH as i32)),
        }
    }

    /// True if a process is a child of the shim, or if its exit status is stored because a command
    /// may still claim the process.
    pub fn may_claim(&self, pid: i32) -> bool {
        let table = self.lock();
        is_child(pid)
            || table
                .unclaimed
                .iter()
                .any(|(unclaimed, _)| *unclaimed == pid)
    }

    /// True if a process that was spawned or claimed here is not collected yet. Then the files in
    /// `/proc/<pid>` are about this process, and not about a later one with the same id.
    pub fn owns(&self, pid: i32) -> bool {
        self.lock().waiting.contains_key(&pid)
    }

    /// Marks a process that stays a zombie from its exit until [`free`](Reaper::free), so that its
    /// process id is not reused.
    pub fn reserve(&self, pid: i32) {
        self.lock().reserved.insert(pid, false);
    }

    /// Lets the reaper collect a [reserved](Reaper::reserve) process: now if the process has exited
    /// already, otherwise when it exits.
    pub fn free(&self, pid: i32) {
        let was_reserved = self.lock().reserved.remove(&pid).is_some();
        if was_reserved {
            self.reap();
        }
    }

    fn reap(&self) {
        let mut table = self.lock();
        table.is_search_due = false;
        match table.reserved.is_empty() {
            true => table.reap_all(),
            false => table.reap_all_but_reserved(self.search),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expectation {
    /// Claims the process that the command has reported.
    pub fn claim(self, pid: i32) -> Child {
        let mut table = self.reaper.lock();
        // Take the latest exit, because the process id may have been reused.
        let found = table
            .unclaimed
            .iter()
            .rposition(|(unclaimed, _)| *unclaimed == pid);
        let found = match found.and_then(|position| table.unclaimed.remove(position)) {
            Some((_, status)) => Some(status),
            None if table.is_incomplete && !is_child(pid) => {
                tracing::warn!(pid, "exit status unknown: too many processes have exited");
                Some(UNKNOWN)
            }
            None => None,
        };
        match found {
            None => {
                // The meter does not count this process, because it belongs to the container.
                let child = table.wait_for(pid, None);
                // The process may have exited, and the reaper may have missed it: wait(2) for any
                // child returns a reserved zombie again and again, and no other process. So ask for
                // this process by its id.
                table.collect_if_ended(pid);
                child
            }
            Some(status) => {
                let (sender, exit) = oneshot::channel();
                // The receiver exists, so this succeeds.
                let _ = sender.send(status);
                Child { pid, exit }
            }
        }
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        let mut table = self.reaper.lock();
        table.expected = table.expected.saturating_sub(1);
        if table.expected == 0 {
            table.unclaimed = VecDeque::new();
            table.is_incomplete = false;
        }
    }
}

impl Spawning {
    fn begin(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    fn end(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    fn is_under_way(self) -> bool {
        self.0 > 0
    }
}

impl Spawned {
    fn keep(mut self) -> io::Result<Child> {
        let child = self.child.take();
        child.ok_or_else(|| io::Error::other("internal error: a command was taken twice"))
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some(child) = &self.child {
            // This fails if the command has exited already.
            let _ = self.reaper.kill(child.pid(), nix::libc::SIGKILL);
        }
    }
}

impl Table {
    fn wait_for(&mut self, pid: i32, meter: Option<Meter>) -> Child {
        let (sender, exit) = oneshot::channel();
        let waiting = Waiting {
            exit: sender,
            meter,
        };
        self.waiting.insert(pid, waiting);
        Child { pid, exit }
    }

    fn reap_all(&mut self) {
        let is_own_only = self.spawning.is_under_way();
        if is_own_only {
            let known: Vec<_> = self.waiting.keys().copied().collect();
            known.into_iter().for_each(|pid| self.collect_if_ended(pid));
        }
        loop {
            match sys::wait_any(is_own_only) {
                Ok(Some(exit)) => self.collect(exit),
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::ECHILD as i32) => return,
                Err(error) => return tracing::error!(%error, "exits cannot be collected"),
            }
        }
    }

    /// Collects exits while processes are reserved. wait(2) for any child would return the same
    /// reserved zombie again and again. So this function first asks for each awaited process by its
    /// id. Then it collects orphans, in the kernel's order, and stops at the first reserved zombie.
    fn reap_all_but_reserved(&mut self, search: Search) {
        let waiting = self.waiting.keys().copied();
        let unknown = self.reserved.iter().filter(|(_, is_known)| !**is_known);
        let known: BTreeSet<i32> = waiting.chain(unknown.map(|(pid, _)| *pid)).collect();
        for pid in known {
            self.collect_if_ended(pid);
        }
        let is_own_only = self.spawning.is_under_way();
        let mut last = None;
        loop {
            match sys::first_ended(is_own_only) {
                // This zombie is reserved, so it stays. Each further call would return the same
                // zombie, and no orphan after it.
                Ok(first) if first.is_some_and(|pid| self.reserved.contains_key(&pid)) => break,
                // The kernel returns the same process again, so it cannot be collected.
                Ok(Some(pid)) if last == Some(pid) => break,
                Ok(Some(pid)) => {
                    self.collect_if_ended(pid);
                    last = Some(pid);
                }
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::ECHILD as i32) => return,
                Err(error) => return tracing::error!(%error, "exits cannot be collected"),
            }
        }
        // A search would also find children that are being spawned, so there is no search during a
        // spawn. `spawn_here` collects exits after the spawn.
        if !is_own_only {
            self.reap_hidden(search);
        }
    }

    /// Collects the orphans that come after a [reserved](Reaper::reserve) zombie in the kernel's
    /// list. wait(2) for any child never returns these orphans, because it returns the zombie each
    /// time.
    fn reap_hidden(&mut self, search: Search) {
        if search == Search::Parents {
            let now = Instant::now();
            if self.next_search.is_some_and(|next| now < next) {
                self.is_search_due = true;
                return;
            }
            self.next_search = now.checked_add(SEARCHES_APART);
        }
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        for pid in search.look().children_of(own) {
            self.collect_if_ended(pid);
        }
    }

    /// Collects a process if it has exited. If the process is reserved, reads its exit once, and
    /// leaves it as a zombie.
    fn collect_if_ended(&mut self, pid: i32) {
        let is_kept = match self.reserved.get(&pid) {
            Some(true) => return,
            Some(false) => true,
            None => false,
        };
        match sys::wait_for(pid, is_kept) {
            Ok(None) => {}
            Ok(Some(exit)) => {
                if let Some(known) = self.reserved.get_mut(&pid) {
                    *known = true;
                }
                self.collect(exit);
            }
            // Under a runtime that uses virtual machines, an init process is no child of the shim.
            Err(error) => tracing::debug!(pid, %error, "an exit cannot be collected"),
        }
    }

    fn collect(&mut self, exit: Exit) {
        let Exit { pid, status, cpu } = exit;
        match self.waiting.remove(&pid) {
            Some(waiting) => {
                if let Some(meter) = waiting.meter {
                    meter.count(cpu);
                }
                // This fails if no caller waits anymore.
                let _ = waiting.exit.send(status);
            }
            None if self.expected > 0 => {
                if self.unclaimed.len() >= UNCLAIMED_AT_MOST {
                    self.unclaimed.pop_front();
                    self.is_incomplete = true;
                }
                self.unclaimed.push_back((pid, status));
            }
            // The process is an orphan of some container. The kernel has made it a child of the
            // shim.
            None => {}
        }
    }
}

fn pid_of(child: &std::process::Child) -> io::Result<i32> {
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// True if `pid` is a child of this process and is not collected yet.
fn is_child(pid: i32) -> bool {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // Any other result, even another error, means that the child exists.
    waitid(Id::Pid(Pid::from_raw(pid)), look) != Err(Errno::ECHILD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(reaper: &Reaper, pid: i32, status: ExitStatus) {
        let cpu = Duration::from_millis(5);
        reaper.lock().collect(Exit { pid, status, cpu });
    }

    #[test]
    fn the_cpu_time_of_a_command_is_counted_by_its_meter() {
        let reaper = Reaper::default();
        let meter = Meter::default();
        reaper.lock().wait_for(4242, Some(meter.clone()));
        reaper.lock().wait_for(4243, None);
        for pid in [4242, 4243, 4244] {
            collect(&reaper, pid, ExitStatus::Code(0));
        }
        assert_eq!(meter.total(), Duration::from_millis(5));
    }

    #[tokio::test]
    async fn an_exit_that_comes_before_its_claim_is_not_lost() {
        let reaper = Reaper::default();
        let expectation = reaper.expect();
        collect(&reaper, 4242, ExitStatus::Code(7));
        let status = expectation.claim(4242).wait().await.unwrap();
        assert_eq!(status, ExitStatus::Code(7));
        assert!(reaper.lock().unclaimed.is_empty());
    }

    #[test]
    fn exits_of_orphans_are_kept_only_while_a_command_may_claim_one() {
        let reaper = Reaper::default();
        collect(&reaper, 4242, ExitStatus::Code(0));
        assert!(reaper.lock().unclaimed.is_empty());
        let expectation = reaper.expect();
        collect(&reaper, 4243, ExitStatus::Signal(9));
        assert_eq!(reaper.lock().unclaimed.len(), 1);
        drop(expectation);
        assert!(reaper.lock().unclaimed.is_empty());
    }

    #[tokio::test]
    async fn a_dropped_exit_is_unknown_and_its_claim_does_not_wait() {
        let reaper = Reaper::default();
        let expectation = reaper.expect();
        // Process ids that no process has.
        let first = i32::MAX - 40_000;
        for pid in first..first + 40_000 {
            collect(&reaper, pid, ExitStatus::Code(0));
        }
        assert!(reaper.lock().unclaimed.len() <= UNCLAIMED_AT_MOST);
        let status = expectation.claim(first).wait().await.unwrap();
        assert_eq!(status, UNKNOWN);
    }

    #[tokio::test]
    async fn a_reused_pid_yields_the_latest_exit() {
        let reaper = Reaper::default();
        let expectation = reaper.expect();
        for code in [1, 2] {
            collect(&reaper, 4242, ExitStatus::Code(code));
        }
        let status = expectation.claim(4242).wait().await.unwrap();
        assert_eq!(status, ExitStatus::Code(2));
    }

    #[test]
    fn a_collected_process_is_never_signaled() {
        let reaper = Reaper::default();
        let own = i32::try_from(std::process::id()).unwrap();
        let error = reaper.kill(own, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ESRCH as i32));
    }
}
