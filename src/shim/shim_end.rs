//! Decides when the shim ends: when containerd asks the shim to end and no task is left, or when no
//! caller has needed the shim for a while. The second case covers a containerd that died after it
//! had started the shim, and therefore never asks.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use usher_core::lifecycle::ContainerId;

/// Time after which an idle shim without a task ends, even if containerd is connected, because
/// containerd keeps the connection and the bundle after some failed Creates.
const ENDS_WHEN_EMPTY_FOR: Duration = Duration::from_secs(30);

/// Time after which a new shim ends if it has received no Create, although the containerd that
/// started the shim still runs. The time is long, because containerd 2.4 and later prepare the
/// container's mounts between the shim's start and the Create.
const FIRST_CREATE_WITHIN: Duration = Duration::from_secs(600);

/// Interval at which an idle shim checks if the containerd that started the shim still runs. While
/// that containerd runs, its Create may still come.
const LOOKS_FOR_STARTER_EVERY: Duration = Duration::from_secs(10);

/// Time for which the shim waits for a call that containerd makes next: the Create of an announced
/// task, or the ShutdownSandbox of an exited sandbox.
const COMES_WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of announced tasks that the shim remembers.
const ANNOUNCED_AT_MOST: usize = 256;

/// Interval at which a shim that cannot end yet checks again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Decides when the shim ends. A shim without a task is called empty; the actor passes this state
/// as `is_empty`.
pub(crate) struct ShimEnd {
    /// True if the shim ends as soon as it has handled the messages that are already in the
    /// mailbox. One of them, for example a Create, can still keep the shim alive.
    is_now: bool,
    /// True if the shim ends as soon as it has no task and expects no call (`announced`). Becomes
    /// true if containerd asks the shim to end while no caller knows of a task, but a creation is
    /// under way or being undone. Also becomes true if the shim [postpones](ShimEnd::postpone) its
    /// end.
    is_due: bool,
    /// Tasks whose Create is expected, and the exited sandbox whose ShutdownSandbox is expected.
    /// The value is the time at which the shim stops expecting the call.
    announced: BTreeMap<ContainerId, Instant>,
    /// Time at which the shim checks again whether it can end. Used only while `is_due` is true.
    look_again: Option<Instant>,
    /// Returns true while the containerd that started this shim runs. `None` if the shim does not
    /// check this.
    starter_is_there: Option<Box<dyn Fn() -> bool + Send>>,
    /// True once a Create has come, even if the shim has refused it.
    has_had_create: bool,
    /// Beginning of the idle time: the time at which a caller last needed the shim.
    empty_since: Instant,
    /// Time of the last check.
    looked: Instant,
}

impl ShimEnd {
    pub fn new() -> ShimEnd {
        let now = Instant::now();
        ShimEnd {
            is_now: false,
            is_due: false,
            announced: BTreeMap::new(),
            look_again: None,
            starter_is_there: None,
            has_had_create: false,
            empty_since: now,
            looked: now,
        }
    }

    /// Sets the check for the containerd that started the shim. Once `is_there` returns false, an
    /// empty shim ends at the next check, because that containerd cannot ask the shim to end.
    pub fn started_by(&mut self, is_there: impl Fn() -> bool + Send + 'static) {
        self.starter_is_there = Some(Box::new(is_there));
    }

    /// True if the shim ends now. The actor's loop then handles the last messages, and calls
    /// [`confirm`](ShimEnd::confirm).
    pub fn is_now(&self) -> bool {
        self.is_now
    }

    /// Time at which the actor calls [`check_time`](ShimEnd::check_time), provided that the shim
    /// has no task: the end of the idle time, the next look for the containerd that started the
    /// shim, or the next check of a shim that was asked to end, whichever comes first. `None` only
    /// if no such time can be represented.
    pub fn next_check(&self) -> Option<Instant> {
        // A shim that was asked to end may have got a task since then. After the deletion of this
        // task, containerd may have died, and then it does not ask again.
        let again = self.look_again.filter(|_| self.is_due);
        let ends = self.empty_since.checked_add(self.ends_when_empty_for());
        let looks = self.starter_is_there.as_ref().and_then(|_| {
            let last = self.looked.max(self.empty_since);
            last.checked_add(LOOKS_FOR_STARTER_EVERY)
        });
        again.into_iter().chain(ends).chain(looks).min()
    }

    /// Restarts the idle time. Called when the actor's loop begins, and when it goes on because the
    /// shim could not end.
    pub fn resume(&mut self) {
        let now = Instant::now();
        self.empty_since = now;
        self.looked = now;
    }

    /// Decides if the shim ends now. An empty shim that expects no task ends if it was asked to,
    /// has been idle long enough, or has lost the containerd that started it. Called at each
    /// timeout of the actor's loop.
    pub fn check_time(&mut self, is_empty: bool) {
        self.looked = Instant::now();
        let is_empty_for = self.looked.duration_since(self.empty_since);
        self.is_now = self.check(is_empty)
            && (self.is_due || is_empty_for >= self.ends_when_empty_for() || self.is_orphan());
    }

    fn ends_when_empty_for(&self) -> Duration {
        match (&self.starter_is_there, self.has_had_create) {
            (Some(_), false) => FIRST_CREATE_WITHIN,
            _ => ENDS_WHEN_EMPTY_FOR,
        }
    }

    /// Restarts the idle time after a message to the actor. `is_of_no_use` is true if the shim was
    /// empty before and after the message. Such a message restarts the idle time only while an
    /// announced task is expected.
    pub fn note_call(&mut self, is_of_no_use: bool) {
        let now = Instant::now();
        if !is_of_no_use || self.announced.values().any(|until| *until > now) {
            self.empty_since = now;
        }
    }

    /// Notes that containerd will make a call soon: the Create of task `id`, after `start` has
    /// returned the address of this shim, or the ShutdownSandbox of the exited sandbox `id`. The
    /// shim waits for this call.
    pub fn announce(&mut self, id: ContainerId) {
        let until = Instant::now().checked_add(COMES_WITHIN);
        if let Some(until) = until
            && self.announced.len() < ANNOUNCED_AT_MOST
        {
            self.announced.insert(id, until);
        }
    }

    pub fn note_create(&mut self) {
        self.has_had_create = true;
    }

    /// Notes that the Create of a task was accepted. This cancels an earlier request to end.
    pub fn mark_created(&mut self, id: &ContainerId) {
        self.is_due = false;
        self.announced.remove(id);
    }

    /// Handles a Shutdown, which containerd sends after the deletion or failed creation of task
    /// `id`. The shim no longer expects a call for this task. It ends now if it has no task and
    /// expects no call for another task. Otherwise `is_due` decides, which is true if no caller
    /// knows of a task. If `is_due` is true, the shim remembers the request and ends later. If not,
    /// the shim ignores the request.
    pub fn request(&mut self, id: &ContainerId, is_due: bool, is_empty: bool) {
        self.announced.remove(id);
        self.is_due = is_due;
        self.is_now = self.check(is_empty);
    }

    /// Handles a failed creation, after the task was removed. If the caller has already asked the
    /// shim to end, decides again, because the caller does not ask a second time.
    pub fn note_failed_creation(&mut self, is_empty: bool) {
        self.is_now |= self.is_due && self.check(is_empty);
    }

    /// Checks again, after the last messages were handled, that the shim can end. Returns true if
    /// the shim ends.
    pub fn confirm(&mut self, is_empty: bool) -> bool {
        self.is_now = self.check(is_empty);
        self.is_now
    }

    /// Postpones the end by a few milliseconds. Then the shim checks again.
    pub fn postpone(&mut self) {
        self.is_now = false;
        self.is_due = true;
        self.look_again = Instant::now().checked_add(LOOK_AGAIN_AFTER);
    }

    /// True if no task exists or is expected. While tasks are expected, also schedules the next
    /// check.
    fn check(&mut self, is_empty: bool) -> bool {
        let now = Instant::now();
        self.announced.retain(|_, until| *until > now);
        self.look_again = self.announced.values().max().copied();
        is_empty && self.announced.is_empty()
    }

    fn is_orphan(&self) -> bool {
        let is_there = self.starter_is_there.as_ref();
        is_there.is_some_and(|is_there| !is_there())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::CreateCall;
    use crate::events::Publisher;
    use crate::pod::{Actor, Pod};
    use crate::process::serve::this_node;
    use tokio::sync::oneshot;
    use usher_engine::{EngineKind, Order};
    use usher_linux::reaper::Reaper;
    use usher_oci::Oci;

    /// Runs `this` on a shim without a task, and returns the number of seconds after which the shim
    /// ends.
    fn ends_after_this(this: impl FnOnce(&mut Actor, Pod)) -> u64 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let begun = Instant::now();
            let publisher = Publisher::new("/nowhere", "test");
            let node = this_node(Oci.engine("test", Reaper::default()), publisher);
            let (mut actor, pod) = Actor::new("test", node);
            this(&mut actor, pod);
            actor.run().await;
            begun.elapsed().as_secs()
        })
    }

    #[test]
    fn an_idle_shim_without_a_task_ends() {
        let asked = Duration::from_secs(20);
        let ends = ends_after_this(|_, pod| {
            tokio::spawn(async move {
                tokio::time::sleep(asked).await;
                let pid = pod.ask(|actor, reply| actor.connect("web", reply)).await;
                assert_eq!(pid, Ok(0));
            });
        });
        assert_eq!(ends, (asked + ENDS_WHEN_EMPTY_FOR).as_secs());
    }

    /// Runs a shim whose task never comes. The process that started the shim dies after `dies`
    /// seconds. Returns the number of seconds after which the shim ends.
    fn ends_after(dies: u64, announced: impl Fn(&mut Actor)) -> u64 {
        ends_after_this(|actor, pod| {
            let begun = Instant::now();
            announced(actor);
            actor.started_by(move || begun.elapsed() < Duration::from_secs(dies));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(15)).await;
                // A read-only call does not postpone the shim's end.
                let _ = pod
                    .ask(|actor, reply| drop(reply.send(Ok(actor.watch()))))
                    .await;
            });
        })
    }

    #[test]
    fn a_shim_without_a_task_ends_soon_after_the_containerd_that_started_it() {
        let for_one = |actor: &mut Actor| actor.announce("web");
        assert_eq!(ends_after(0, for_one), 10);
        assert_eq!(ends_after(12, for_one), 20);
        assert_eq!(ends_after(18, for_one), 20);
        assert_eq!(ends_after(1000, for_one), FIRST_CREATE_WITHIN.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_shim_that_was_asked_to_end_during_a_creation_ends_when_the_task_is_gone() {
        let mut end = ShimEnd::new();
        end.request(&ContainerId::from("other"), true, false);
        assert!(!end.is_now());
        tokio::time::sleep(Duration::from_secs(100)).await;
        // containerd has died after it had deleted the task, so it does not ask again.
        end.note_call(false);
        let next = end.next_check().expect("no check is scheduled");
        assert_eq!(next.duration_since(Instant::now()), ENDS_WHEN_EMPTY_FOR);
        tokio::time::sleep_until(next).await;
        end.check_time(true);
        assert!(end.is_now());
    }

    #[test]
    fn a_shim_whose_create_was_refused_ends_although_containerd_runs() {
        let refused = |actor: &mut Actor| {
            let nothing_there = CreateCall {
                order: Order::default(),
                call_timeout: None,
            };
            actor.create(nothing_there, oneshot::channel().0);
        };
        assert_eq!(ends_after(1000, refused), ENDS_WHEN_EMPTY_FOR.as_secs());
    }

    #[test]
    fn an_announced_task_is_awaited_even_if_the_first_containerd_has_died() {
        let ends = ends_after_this(|actor, pod| {
            actor.started_by(|| false);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(9)).await;
                let _ = pod
                    .ask(|actor, reply| {
                        actor.announce("web");
                        drop(reply.send(Ok(())));
                    })
                    .await;
            });
        });
        // Without the announcement the shim would end after 10 s.
        assert_eq!(ends, 19);
    }
}
