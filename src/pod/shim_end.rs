//! How the shim ends: when it is told to and has nothing left to look after, or when nobody has wanted
//! anything of it for long. A containerd that died after it had started the shim will never say so.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::lifecycle::ContainerId;

/// How long a shim lives that has nothing to look after and that nobody wants anything of, though somebody
/// is connected: containerd keeps the connection, and the bundle with it, where a Create has failed for
/// more than one reason at once. Its Create comes a moment after the shim's start, or never.
const ENDS_WHEN_EMPTY_FOR: Duration = Duration::from_secs(30);

/// How often such a shim looks whether the containerd that had it started is still there, whose Create
/// may come late. If it has died nothing will come.
const LOOKS_FOR_STARTER_EVERY: Duration = Duration::from_secs(10);

/// How soon a task comes after somebody was told of this shim: containerd's next call is its Create.
const COMES_WITHIN: Duration = Duration::from_secs(10);

/// How many such tasks are remembered.
const ANNOUNCED_AT_MOST: usize = 256;

/// When a shim that cannot end this moment looks again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Whether the shim is still wanted. It is empty when it has no task, which is the actor's to say.
pub(super) struct ShimEnd {
    /// It has come, unless something does before it is carried out.
    is_now: bool,
    /// It was asked for, and only creations that are being undone, or are announced, stand against it.
    is_due: bool,
    /// The tasks that will be created here, and until when that is believed.
    announced: BTreeMap<ContainerId, Instant>,
    /// When to look again whether it has come, where it is due.
    look_again: Option<Instant>,
    /// Whether the containerd that had this shim started is still there.
    starter_is_there: Option<Box<dyn Fn() -> bool + Send>>,
    /// When the shim was last of use to somebody.
    empty_since: Instant,
    /// When it last looked whether that is long ago.
    looked: Instant,
}

impl ShimEnd {
    /// That of a shim which begins now.
    pub fn new() -> ShimEnd {
        let now = Instant::now();
        ShimEnd {
            is_now: false,
            is_due: false,
            announced: BTreeMap::new(),
            look_again: None,
            starter_is_there: None,
            empty_since: now,
            looked: now,
        }
    }

    /// Who had the shim started `is_there` or not: without it nobody will end an empty shim.
    pub fn started_by(&mut self, is_there: impl Fn() -> bool + Send + 'static) {
        self.starter_is_there = Some(Box::new(is_there));
    }

    /// Whether it has come.
    pub fn is_now(&self) -> bool {
        self.is_now
    }

    /// When an empty shim is to look whether it has come.
    pub fn looks_at(&self) -> Option<Instant> {
        if self.is_due {
            return self.look_again;
        }
        let ends = self.empty_since.checked_add(ENDS_WHEN_EMPTY_FOR);
        let looks = self.starter_is_there.as_ref().and_then(|_| {
            let last = self.looked.max(self.empty_since);
            last.checked_add(LOOKS_FOR_STARTER_EVERY)
        });
        ends.into_iter().chain(looks).min()
    }

    // === what happens ===

    /// The actor begins to work, once more if the shim could not end.
    pub fn begins(&mut self) {
        let now = Instant::now();
        self.empty_since = now;
        self.looked = now;
    }

    /// Time has gone by.
    pub fn time_passes(&mut self, is_empty: bool) {
        self.looked = Instant::now();
        let is_empty_for = self.looked.duration_since(self.empty_since);
        self.is_now = self.may_come(is_empty)
            && (self.is_due || is_empty_for >= ENDS_WHEN_EMPTY_FOR || self.is_orphan());
    }

    /// Somebody has wanted something. Who only looks keeps nobody here; who was announced does.
    pub fn was_asked(&mut self, is_of_no_use: bool) {
        let now = Instant::now();
        if !is_of_no_use || self.announced.values().any(|until| *until > now) {
            self.empty_since = now;
        }
    }

    /// A task that does not exist yet will be created here: somebody has been told of this shim.
    pub fn announce(&mut self, id: ContainerId) {
        let until = Instant::now().checked_add(COMES_WITHIN);
        if let Some(until) = until
            && self.announced.len() < ANNOUNCED_AT_MOST
        {
            self.announced.insert(id, until);
        }
    }

    /// A task has come.
    pub fn comes(&mut self, id: &ContainerId) {
        self.is_due = false;
        self.announced.remove(id);
    }

    /// It is asked for, after the task with this id, which will not come any more. It is due if no caller
    /// knows of any task.
    pub fn ask(&mut self, id: &ContainerId, is_due: bool, is_empty: bool) {
        self.announced.remove(id);
        self.is_due = is_due;
        self.is_now = self.may_come(is_empty);
    }

    /// A creation has come to nothing: whoever is told may have asked for the end before, and does not
    /// ask again.
    pub fn creation_failed(&mut self, is_empty: bool) {
        self.is_now |= self.is_due && self.may_come(is_empty);
    }

    /// All that was asked has been heeded: whether it has still come.
    pub fn confirm(&mut self, is_empty: bool) -> bool {
        self.is_now = self.may_come(is_empty);
        self.is_now
    }

    /// Not yet: it is to be looked at again in a moment.
    pub fn delay(&mut self) {
        self.is_now = false;
        self.is_due = true;
        self.look_again = Instant::now().checked_add(LOOK_AGAIN_AFTER);
    }

    /// Whether there is nothing to look after and nothing will come; else looks again later.
    fn may_come(&mut self, is_empty: bool) -> bool {
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
    use crate::events::Publisher;
    use crate::pod::{Actor, Pod};
    use crate::reaper::Reaper;
    use crate::shim::serve::this_node;

    /// After how many seconds a shim without a task ends to which this is done.
    fn ends_after_this(this: impl FnOnce(&mut Actor, Pod)) -> u64 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let begun = Instant::now();
            let publisher = Publisher::new("/nowhere", "test");
            let node = this_node("test", publisher, Reaper::default());
            let (mut actor, pod) = Actor::new("test", node);
            this(&mut actor, pod);
            actor.run().await;
            begun.elapsed().as_secs()
        })
    }

    #[test]
    fn a_shim_that_nobody_wants_anything_of_ends_by_itself() {
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

    /// After how many seconds a shim ends that was started for a task which never comes, if the one
    /// who had it started dies after `dies`.
    fn ends_after(dies: u64, announced: impl Fn(&mut Actor)) -> u64 {
        ends_after_this(|actor, pod| {
            let begun = Instant::now();
            announced(actor);
            actor.started_by(move || begun.elapsed() < Duration::from_secs(dies));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(15)).await;
                // Who only looks changes nothing.
                let _ = pod
                    .ask(|actor, reply| drop(reply.send(Ok(actor.watch()))))
                    .await;
            });
        })
    }

    #[test]
    fn a_shim_without_a_task_ends_soon_after_the_containerd_that_had_it_started() {
        let for_one = |actor: &mut Actor| actor.announce("web");
        assert_eq!(ends_after(0, for_one), 10);
        assert_eq!(ends_after(12, for_one), 20);
        assert_eq!(ends_after(18, for_one), 20);
        assert_eq!(ends_after(1000, for_one), ENDS_WHEN_EMPTY_FOR.as_secs());
    }

    #[test]
    fn a_task_that_was_announced_is_awaited_though_the_first_containerd_has_died() {
        let late = |actor: &mut Actor| {
            let until = Instant::now() + Duration::from_secs(25);
            let announced = &mut actor.shim_end.announced;
            announced.insert(ContainerId::from("web"), until);
        };
        assert_eq!(ends_after(0, late), 25);
    }
}
