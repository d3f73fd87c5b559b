//! The CPU meter of read-only clients. It limits the CPU time that the shim spends on them to a
//! share of a core.
//!
//! One thread serves the pod, and tasks of the ttrpc library and the pod's actor do most of the
//! work for a client. So the meter does not time tasks. It reads the thread's CPU clock when work
//! for a read-only client begins, and again each time the thread has run all ready tasks. If no
//! work for a read-only client has begun between two readings, the meter stops. While it runs, the
//! meter also charges all other work of the thread, so read-only clients get at most their share.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::clock::{Clock, Timebase};
use usher_core::lifecycle::Time;
use usher_core::share::Share;

/// Seconds until a debt of one second of CPU time is paid off: clients get a thirtieth of a core.
/// The documented limit is a twentieth. The difference covers costs that no task sees, such as
/// waking the thread.
const SECONDS_PER_CPU_SECOND: u32 = 30;

/// CPU time that clients may use without a wait, if they have used none for a while. This time is
/// enough for a few dozen requests, so a person does not have to wait.
const BURST: Duration = Duration::from_millis(50);

/// Work that has to wait begins only at multiples of this time. So the work of several clients
/// shares one wake-up of the thread. Each wake-up costs CPU time that no task sees.
const TICK: Duration = Duration::from_millis(50);

/// The meter of all read-only clients of a pod; clones share it.
#[derive(Clone, Debug)]
pub struct Meter(Arc<Mutex<MeterState>>);

/// The wait of a client, or of the socket for new connections.
///
/// A wait lasts until the debt of CPU time that existed at its beginning is paid off. CPU time that
/// other clients use during the wait does not prolong it. So each client is served in the end, and
/// the debt never exceeds the cost of one piece of work for each client.
#[derive(Debug, Default)]
pub struct Wait(Option<Pin<Box<Sleep>>>);

#[derive(Debug)]
struct MeterState {
    share: Share,
    time: Timebase,
    clock: Arc<dyn Clock>,
    /// Reading of the thread's CPU clock at the last charge, or at the beginning of the work.
    /// `None` while no work for a read-only client is in progress.
    charged: Option<Duration>,
    /// True if work for a read-only client has begun since the thread last ran out of tasks.
    is_new: bool,
}

impl Meter {
    /// Makes a meter for the current thread.
    pub fn new(clock: Arc<dyn Clock>) -> Meter {
        Meter(Arc::new(Mutex::new(MeterState {
            share: Share::new(SECONDS_PER_CPU_SECOND, BURST),
            time: Timebase::begin(),
            clock,
            charged: None,
            is_new: false,
        })))
    }

    /// Starts charging, because work for a read-only client begins now. Charging stops when the
    /// thread has run all ready tasks, and no further work has begun.
    pub fn begin_work(&self) {
        let mut state = self.state();
        state.is_new = true;
        if state.charged.is_none() {
            state.charged = Some(state.clock.cpu());
            let meter = self.clone();
            tokio::spawn(async move {
                while meter.charge_and_check() {
                    // Resumes when all other ready tasks have run.
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// Ready when work for a read-only client may begin. The caller then calls
    /// [`begin_work`](Meter::begin_work), which starts charging CPU time. If `poll_ready` had to
    /// wait, it has already started charging, and this call changes nothing. `wait` keeps the timer
    /// between two polls.
    pub fn poll_ready(&self, wait: &mut Wait, context: &mut Context<'_>) -> Poll<()> {
        if wait.0.is_none() {
            wait.0 = self.state().pause().map(|pause| Box::pin(sleep(pause)));
        }
        if let Some(sleep) = &mut wait.0 {
            ready!(sleep.as_mut().poll(context));
            wait.0 = None;
            self.begin_work();
        }
        Poll::Ready(())
    }

    /// Waits until work for a read-only client may begin, and then starts charging.
    pub async fn wait(&self) {
        let mut wait = Wait::default();
        poll_fn(|context| self.poll_ready(&mut wait, context)).await;
        self.begin_work();
    }

    /// Charges the CPU time since the last charge. Returns false, and stops charging, if no work
    /// for a read-only client has begun since the last call.
    fn charge_and_check(&self) -> bool {
        let mut state = self.state();
        state.charge();
        if !std::mem::take(&mut state.is_new) {
            state.charged = None;
        }
        state.charged.is_some()
    }

    fn state(&self) -> MutexGuard<'_, MeterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MeterState {
    fn charge(&mut self) {
        if let Some(charged) = self.charged {
            let cpu = self.clock.cpu();
            let cost = cpu.saturating_sub(charged);
            self.share.spend(self.time.now(), cost);
            self.charged = Some(cpu);
        }
    }

    /// Time to wait before the next work may begin, or `None` if it may begin now.
    fn pause(&mut self) -> Option<Duration> {
        self.charge();
        let (now, free_at) = (self.time.now(), self.share.free_at(Duration::ZERO));
        (free_at > now).then(|| next_tick(free_at).since(now))
    }
}

/// The first multiple of `TICK` after `at`.
fn next_tick(at: Time) -> Time {
    let into = at.since_origin().as_nanos().checked_rem(TICK.as_nanos());
    let into = into.and_then(|into| u64::try_from(into).ok()).unwrap_or(0);
    at.after(TICK.saturating_sub(Duration::from_nanos(into)))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::SystemTime;

    use tokio::time::Instant;

    use super::*;

    /// A CPU clock that a test advances.
    #[derive(Debug, Default)]
    pub struct ManualClock(Mutex<Duration>);

    impl ManualClock {
        pub fn spend(&self, cost: Duration) {
            *self.0.lock().unwrap() += cost;
        }
    }

    impl Clock for ManualClock {
        fn wall(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH
        }

        fn cpu(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    /// Runs a test in virtual time, which passes while all tasks wait.
    pub fn in_virtual_time(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(test);
    }

    pub const TWENTIETH: u32 = 20;

    #[test]
    fn busy_workers_together_take_at_most_a_twentieth_of_a_core_and_each_gets_turns() {
        in_virtual_time(async {
            let clock = Arc::new(ManualClock::default());
            let meter = Meter::new(clock.clone());
            let begun = Instant::now();
            let end = begun + Duration::from_secs(60);
            let workers = [1_u64, 1, 1, 5, 20].map(|cost| {
                let (meter, clock) = (meter.clone(), clock.clone());
                tokio::spawn(async move {
                    let mut turns = 0;
                    while Instant::now() < end {
                        meter.wait().await;
                        // Another task does half of the work.
                        let part = Duration::from_micros(50 * cost);
                        clock.spend(part);
                        let other = clock.clone();
                        tokio::spawn(async move { other.spend(part) });
                        tokio::task::yield_now().await;
                        turns += 1;
                    }
                    turns
                })
            });
            let mut turns = Vec::new();
            for worker in workers {
                turns.push(worker.await.unwrap());
            }
            let (used, allowed) = (clock.cpu(), begun.elapsed() / TWENTIETH);
            assert!(used <= allowed, "{used:?} of {allowed:?}");
            assert!(used >= allowed / 2, "only {used:?} of {allowed:?}");
            assert!(turns.iter().all(|turns| *turns > 100), "{turns:?}");
        });
    }

    #[test]
    fn rare_work_never_waits_and_other_work_is_not_charged() {
        in_virtual_time(async {
            let clock = Arc::new(ManualClock::default());
            let meter = Meter::new(clock.clone());
            for _ in 0..100 {
                let before = Instant::now();
                meter.wait().await;
                assert_eq!(before.elapsed(), Duration::ZERO);
                clock.spend(Duration::from_millis(1));
                sleep(Duration::from_secs(1)).await;
                // The shim serves no read-only client here, so this CPU time is not charged.
                clock.spend(Duration::from_secs(1));
            }
        });
    }
}
