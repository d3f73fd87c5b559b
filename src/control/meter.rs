//! The CPU time that read-only clients cost the pod's shim, and the share of a core that it is held to.
//!
//! One thread serves the pod, and most of the work for a client is done by tasks of the ttrpc library and by
//! the pod's actor. So the meter does not time tasks: it reads the thread's CPU clock when work for a
//! read-only client begins, and again each time the thread has run out of tasks, until no more such work has
//! begun. Work for others that falls in between counts too: the share is an upper bound.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::clock::{Clock, Timebase};
use crate::lifecycle::Time;
use crate::share::Share;

/// Seconds in which one second of CPU time is paid off: a thirtieth of a core. The rest of the promised
/// twentieth is for what no task sees, as waking the thread up.
const PACE: u32 = 30;

/// CPU time that may be spent ahead: some dozen questions, so that a person waits for nothing.
const AHEAD: Duration = Duration::from_millis(50);

/// Work that waits begins at multiples of this time, all of it together: each time that the thread wakes up
/// costs CPU time that no task of it sees.
const ROUND: Duration = Duration::from_millis(50);

/// The meter of all read-only clients of a pod. Clones share it.
#[derive(Clone, Debug)]
pub struct Meter(Arc<Mutex<Reading>>);

/// The turn of one client, or of the socket that they call at.
///
/// A wait lasts until the CPU time that was owed at its beginning is paid off, however much others have spent
/// since. So all get their turns, and what is owed grows no further than what one turn of each costs.
#[derive(Debug, Default)]
pub struct Turn(Option<Pin<Box<Sleep>>>);

#[derive(Debug)]
struct Reading {
    share: Share,
    time: Timebase,
    clock: Arc<dyn Clock>,
    /// Up to where the thread's CPU time is charged, while work is under way.
    charged: Option<Duration>,
    /// Work has begun since the thread ran out of tasks.
    is_new: bool,
}

impl Meter {
    /// A meter that nothing is charged to, for the thread that calls it.
    pub fn new(clock: Arc<dyn Clock>) -> Meter {
        Meter(Arc::new(Mutex::new(Reading {
            share: Share::new(PACE, AHEAD),
            time: Timebase::begin(),
            clock,
            charged: None,
            is_new: false,
        })))
    }

    /// Notes that work for a read-only client begins.
    pub fn begin(&self) {
        let mut reading = self.reading();
        reading.is_new = true;
        if reading.charged.is_none() {
            reading.charged = Some(reading.clock.cpu());
            let meter = self.clone();
            tokio::spawn(async move {
                while meter.is_under_way() {
                    // Comes back when the thread has run out of tasks.
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// Ready when a piece of work may begin.
    pub fn poll_turn(&self, turn: &mut Turn, context: &mut Context<'_>) -> Poll<()> {
        if turn.0.is_none() {
            turn.0 = self.reading().pause().map(|pause| Box::pin(sleep(pause)));
        }
        if let Some(sleep) = &mut turn.0 {
            ready!(sleep.as_mut().poll(context));
            turn.0 = None;
            self.begin();
        }
        Poll::Ready(())
    }

    /// Waits until a piece of work may begin, and begins it.
    pub async fn turn(&self) {
        let mut turn = Turn::default();
        poll_fn(|context| self.poll_turn(&mut turn, context)).await;
        self.begin();
    }

    /// Charges what the work under way has taken; it is over if none has begun since the last time.
    fn is_under_way(&self) -> bool {
        let mut reading = self.reading();
        reading.charge();
        if !std::mem::take(&mut reading.is_new) {
            reading.charged = None;
        }
        reading.charged.is_some()
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    fn charge(&mut self) {
        if let Some(charged) = self.charged {
            let cpu = self.clock.cpu();
            let cost = cpu.saturating_sub(charged);
            self.share.spend(self.time.now(), cost);
            self.charged = Some(cpu);
        }
    }

    /// The wait before the next piece of work, if there is one.
    fn pause(&mut self) -> Option<Duration> {
        self.charge();
        let (now, free_at) = (self.time.now(), self.share.free_at(Duration::ZERO));
        (free_at > now).then(|| next_round(free_at).since(now))
    }
}

/// The beginning of the first round after `at`.
fn next_round(at: Time) -> Time {
    let into = at.since_origin().as_nanos().checked_rem(ROUND.as_nanos());
    let into = into.and_then(|into| u64::try_from(into).ok()).unwrap_or(0);
    at.after(ROUND.saturating_sub(Duration::from_nanos(into)))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::SystemTime;

    use tokio::time::Instant;

    use super::*;

    /// A thread's CPU clock that a test turns.
    #[derive(Debug, Default)]
    pub struct TurnedClock(Mutex<Duration>);

    impl TurnedClock {
        pub fn spend(&self, cost: Duration) {
            *self.0.lock().unwrap() += cost;
        }
    }

    impl Clock for TurnedClock {
        fn wall(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH
        }

        fn cpu(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    /// Runs a test in time that passes when everything waits.
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
    fn workers_that_never_rest_take_a_twentieth_of_a_core_and_each_gets_its_turns() {
        in_virtual_time(async {
            let clock = Arc::new(TurnedClock::default());
            let meter = Meter::new(clock.clone());
            let begun = Instant::now();
            let end = begun + Duration::from_secs(60);
            let workers = [1_u64, 1, 1, 5, 20].map(|cost| {
                let (meter, clock) = (meter.clone(), clock.clone());
                tokio::spawn(async move {
                    let mut turns = 0;
                    while Instant::now() < end {
                        meter.turn().await;
                        // Of the work of a turn a part is done by another task.
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
    fn work_that_is_rare_never_waits_and_nothing_is_charged_for_what_others_do() {
        in_virtual_time(async {
            let clock = Arc::new(TurnedClock::default());
            let meter = Meter::new(clock.clone());
            for _ in 0..100 {
                let before = Instant::now();
                meter.turn().await;
                assert_eq!(before.elapsed(), Duration::ZERO);
                clock.spend(Duration::from_millis(1));
                sleep(Duration::from_secs(1)).await;
                // No read-only client is served at that moment.
                clock.spend(Duration::from_secs(1));
            }
        });
    }
}
