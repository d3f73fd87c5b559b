//! The one owner of all child processes.
//!
//! The shim is a subreaper: the processes of its containers are re-parented to it when the OCI
//! runtime's command ends. `waitpid(-1)` takes the exits of all children alike, so nothing else in
//! this process may wait for a child. As no process id is free for another process until it has
//! been collected here, this is also the one place that can signal a process without a doubt.

#[cfg(test)]
mod alone;
mod children;
mod ending;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::offload::Threads;
use crate::process::ExitStatus;
use crate::sys::{self, Exit};

use children::Search;

pub(crate) use children::LIST as LIST_OF_CHILDREN;
#[cfg(any(test, fuzzing))]
pub(crate) use children::fuzz;
pub use ending::Waited;

/// How many exits of processes that nobody has claimed are kept while somebody may claim one: the
/// last ones, twelve bytes each. A container without a PID namespace of its own can leave us
/// thousands of orphans a second.
const UNCLAIMED_AT_MOST: usize = 32_768;

/// What is told of a process whose exit was among those that were not kept; containerd's own word
/// for an exit that is not known.
const UNKNOWN: ExitStatus = ExitStatus::Code(255);

/// The time between two searches for orphans on a kernel without lists of children.
const SEARCHES_APART: Duration = Duration::from_secs(5);

/// Spawns commands, collects exits, delivers signals. Clones share one table.
#[derive(Clone, Debug, Default)]
pub struct Reaper {
    table: Arc<Mutex<Table>>,
    /// What is spawned here is counted there.
    meter: Option<Meter>,
    search: Search,
    threads: Threads,
}

/// Counts the CPU time of commands. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    nanos: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Table {
    /// Who waits for the exits of processes that have not been collected yet.
    waiting: HashMap<i32, Waiting>,
    /// How many commands are under way that will name a process of theirs.
    expected: usize,
    /// Exits of processes that one of those commands may name.
    unclaimed: VecDeque<(i32, ExitStatus)>,
    /// Some of them were not kept.
    is_incomplete: bool,
    /// Processes that are not collected when they end, and whether their ends are known.
    reserved: BTreeMap<i32, bool>,
    /// The earliest time of the next search for orphans, where searches are expensive.
    next_search: Option<Instant>,
    /// Orphans may have ended that only a search finds.
    is_search_due: bool,
    spawning: Spawning,
}

/// How many commands are being spawned on threads.
#[derive(Clone, Copy, Debug, Default)]
struct Spawning(usize);

/// A command that was spawned, and is killed if its caller does not take it.
struct Spawned {
    child: Option<Child>,
    reaper: Reaper,
}

#[derive(Debug)]
struct Waiting {
    exit: oneshot::Sender<ExitStatus>,
    meter: Option<Meter>,
}

/// A process whose exit nobody else will hear of.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    exit: oneshot::Receiver<ExitStatus>,
}

/// The right to claim a process that does not exist yet.
#[derive(Debug)]
pub struct Expectation {
    reaper: Reaper,
}

impl Child {
    /// Its process id; another process's once [`wait`](Child::wait) has answered.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How the process ends. May be called again after it was cancelled.
    ///
    /// # Errors
    ///
    /// If the reaper is gone, which it is only when the shim ends.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.exit)
            .await
            .map_err(|_| io::Error::other("the reaper is gone"))
    }
}

impl Meter {
    /// How much has been counted: the commands that have ended.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn count(&self, cpu: Duration) {
        let nanos = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Reaper {
    /// The same, for commands whose CPU time is to be counted by `meter`.
    pub fn metered(&self, meter: &Meter) -> Reaper {
        Reaper {
            table: Arc::clone(&self.table),
            meter: Some(meter.clone()),
            search: self.search,
            threads: self.threads.clone(),
        }
    }

    /// The same, with threads of its own for what can stall: those of a container.
    pub fn with_own_threads(&self) -> Reaper {
        Reaper {
            threads: Threads::default(),
            ..self.clone()
        }
    }

    /// The threads for what can stall.
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

    /// Waits for the time of a search that was put off; for ever if none was.
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

    /// Spawns a command on a thread, since the disk of its program may stall. A command whose caller is gone
    /// by then is killed.
    ///
    /// # Errors
    ///
    /// If it cannot be spawned.
    pub async fn spawn(&self, command: Command) -> io::Result<Child> {
        let reaper = self.clone();
        let spawned = self.threads.run(move || reaper.spawn_here(command)).await;
        spawned??.keep()
    }

    /// Spawns the shim's own program once more. It runs already, so that no disk can stall its start. And it
    /// may ask for a signal when its parent ends, which is the thread that spawns it
    /// (`PR_SET_PDEATHSIG(2const)`): so it is the serving thread.
    ///
    /// # Errors
    ///
    /// If it cannot be spawned.
    pub fn spawn_self(&self, command: &mut Command) -> io::Result<Child> {
        // The lock is held from before the child exists until it is in the table: its exit cannot
        // be collected in between. std's own Child neither waits nor kills when it is dropped.
        let mut table = self.lock();
        let pid = pid_of(&sys::spawn(command)?)?;
        Ok(table.wait_for(pid, self.meter.clone()))
    }

    /// Spawns a command on the calling thread, for as long as the disk of its program stalls. Meanwhile no
    /// child of this thread is collected: its number is not known yet, and std itself waits for one whose
    /// program cannot be executed.
    fn spawn_here(&self, mut command: Command) -> io::Result<Spawned> {
        self.lock().spawning.begin();
        let spawned = sys::spawn(&mut command).and_then(|child| pid_of(&child));
        // The copies of its streams have to go, or their readers never see the end.
        drop(command);
        let child = {
            let mut table = self.lock();
            table.spawning.end();
            spawned.map(|pid| table.wait_for(pid, self.meter.clone()))
        };
        // What was not collected meanwhile has told of its end already.
        self.reap();
        Ok(Spawned {
            child: Some(child?),
            reaper: self.clone(),
        })
    }

    /// Announces a command whose process is to be claimed when the command is over; the process
    /// may have ended by then.
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
    /// `ESRCH` if it has ended, `EINVAL` if there is no such signal.
    pub fn kill(&self, pid: i32, signal: i32) -> io::Result<()> {
        // With the lock held it cannot be collected, so the number is still its own.
        match self.lock().waiting.contains_key(&pid) {
            true => sys::kill(pid, signal),
            false => Err(io::Error::from_raw_os_error(Errno::ESRCH as i32)),
        }
    }

    /// Whether a process is a child of ours, or its exit is kept for whoever claims it.
    pub fn may_claim(&self, pid: i32) -> bool {
        let table = self.lock();
        is_child(pid)
            || table
                .unclaimed
                .iter()
                .any(|(unclaimed, _)| *unclaimed == pid)
    }

    /// Whether the process has not been collected yet: what `/proc` says of its number is about it.
    pub fn owns(&self, pid: i32) -> bool {
        self.lock().waiting.contains_key(&pid)
    }

    /// Has a process stay a zombie when it has ended, so that its number is no other's, until
    /// [`free`](Reaper::free).
    pub fn reserve(&self, pid: i32) {
        self.lock().reserved.insert(pid, false);
    }

    /// Collects a process that was reserved, or will when it ends.
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
    /// Claims the process that the command has named.
    pub fn claim(self, pid: i32) -> Child {
        let mut table = self.reaper.lock();
        // The number may have been another process's before: the last one is meant.
        let found = table
            .unclaimed
            .iter()
            .rposition(|(unclaimed, _)| *unclaimed == pid);
        let found = match found.and_then(|position| table.unclaimed.remove(position)) {
            Some((_, status)) => Some(status),
            None if table.is_incomplete && !is_child(pid) => {
                tracing::warn!(
                    pid,
                    "too many processes have ended to know how this one did"
                );
                Some(UNKNOWN)
            }
            None => None,
        };
        match found {
            None => {
                // Not counted: it is a process of the container.
                let child = table.wait_for(pid, None);
                // It may have ended long ago, behind a process that is reserved.
                table.collect_if_ended(pid);
                child
            }
            Some(status) => {
                let (sender, exit) = oneshot::channel();
                // The receiver is right here.
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
            // It may have ended by itself.
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

    /// wait(2) for any child finds a reserved zombie again and again. So processes that somebody waits
    /// for are asked for one by one, and orphans are taken as long as no such zombie is in front of them.
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
                // It is not collected, and hides others.
                Ok(first) if first.is_some_and(|pid| self.reserved.contains_key(&pid)) => break,
                // Nor is one that the kernel does not give away.
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
        // A search would find what is being spawned; exits are collected again when that is over.
        if !is_own_only {
            self.reap_hidden(search);
        }
    }

    /// Collects orphans behind a zombie that is reserved.
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

    /// Collects a process if it has ended; the end of a reserved one is only noted.
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
            // With a runtime that has machines of its own an init process is no child of ours.
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
                // Whoever waited may be gone; the process is collected all the same.
                let _ = waiting.exit.send(status);
            }
            None if self.expected > 0 => {
                if self.unclaimed.len() >= UNCLAIMED_AT_MOST {
                    self.unclaimed.pop_front();
                    self.is_incomplete = true;
                }
                self.unclaimed.push_back((pid, status));
            }
            // An orphan of some container, re-parented to us.
            None => {}
        }
    }
}

fn pid_of(child: &std::process::Child) -> io::Result<i32> {
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// Whether `pid` is a child of ours that has not been collected.
fn is_child(pid: i32) -> bool {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // Any other answer, also another error, is about a child that is there.
    waitid(Id::Pid(Pid::from_raw(pid)), look) != Err(Errno::ECHILD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_runtime<F: Future>(test: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(test)
    }

    /// A process has ended.
    fn collect(reaper: &Reaper, pid: i32, status: ExitStatus) {
        let cpu = Duration::from_millis(5);
        reaper.lock().collect(Exit { pid, status, cpu });
    }

    #[test]
    fn what_a_command_takes_of_the_cpu_is_counted_where_it_is_wanted() {
        let reaper = Reaper::default();
        let meter = Meter::default();
        reaper.lock().wait_for(4242, Some(meter.clone()));
        reaper.lock().wait_for(4243, None);
        for pid in [4242, 4243, 4244] {
            collect(&reaper, pid, ExitStatus::Code(0));
        }
        assert_eq!(meter.total(), Duration::from_millis(5));
    }

    #[test]
    fn an_exit_that_comes_before_its_claim_is_not_lost() {
        let reaper = Reaper::default();
        let expectation = reaper.expect();
        collect(&reaper, 4242, ExitStatus::Code(7));
        let status = on_runtime(async { expectation.claim(4242).wait().await.unwrap() });
        assert_eq!(status, ExitStatus::Code(7));
        assert!(reaper.lock().unclaimed.is_empty());
    }

    #[test]
    fn exits_of_orphans_are_kept_only_while_somebody_may_claim_one() {
        let reaper = Reaper::default();
        collect(&reaper, 4242, ExitStatus::Code(0));
        assert!(reaper.lock().unclaimed.is_empty());
        let expectation = reaper.expect();
        collect(&reaper, 4243, ExitStatus::Signal(9));
        assert_eq!(reaper.lock().unclaimed.len(), 1);
        drop(expectation);
        assert!(reaper.lock().unclaimed.is_empty());
    }

    #[test]
    fn an_exit_that_was_not_kept_is_unknown_and_not_waited_for() {
        let reaper = Reaper::default();
        let expectation = reaper.expect();
        // Numbers that no process has.
        let first = i32::MAX - 40_000;
        for pid in first..first + 40_000 {
            collect(&reaper, pid, ExitStatus::Code(0));
        }
        assert!(reaper.lock().unclaimed.len() <= UNCLAIMED_AT_MOST);
        let status = on_runtime(async { expectation.claim(first).wait().await.unwrap() });
        assert_eq!(status, UNKNOWN);
    }

    #[test]
    fn of_two_processes_with_one_number_the_last_is_meant() {
        let reaper = Reaper::default();
        let expectation = reaper.expect();
        for code in [1, 2] {
            collect(&reaper, 4242, ExitStatus::Code(code));
        }
        let status = on_runtime(async { expectation.claim(4242).wait().await.unwrap() });
        assert_eq!(status, ExitStatus::Code(2));
    }

    #[test]
    fn a_process_that_was_collected_is_never_signalled() {
        let reaper = Reaper::default();
        let own = i32::try_from(std::process::id()).unwrap();
        let error = reaper.kill(own, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ESRCH as i32));
    }
}
