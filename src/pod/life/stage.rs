//! The stages of a task's life, and what there is in each of them.

use std::sync::Arc;
use std::time::SystemTime;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use tokio::sync::oneshot;

use crate::engine::{Cgroup, Init, OomWatch, Restoration};
use crate::pod::process::Exit;
use crate::pod::signals::SignalOrder;

#[derive(Debug)]
pub(super) enum Stage {
    Making,
    ToRestore(Box<dyn Restoration>),
    /// With what it is to be sent when it is there.
    Restoring(Vec<SignalOrder>),
    /// It could not be restored, and is not to be tried again.
    Lost,
    Alive(Alive),
    Ended(Dead, SystemTime),
    Reported {
        dead: Dead,
        exit: Exit,
        /// The time that its telling may take has begun.
        is_timed: bool,
        /// Its caller has still to read output.
        awaits_reader: bool,
    },
    Exited(Dead, Exit),
}

/// An init process, and where it and all that it has begotten are.
#[derive(Debug)]
pub(super) struct Body {
    pub init: Arc<dyn Init>,
    /// None if that could not be found out.
    pub cgroup: Option<Arc<dyn Cgroup>>,
}

/// What there is while its init process lives.
#[derive(Debug)]
pub(super) struct Alive {
    pub body: Body,
    pub freezer: Freezer,
    /// While its program is being released; dropped, it says that the init process has ended.
    pub releasing: Option<oneshot::Sender<()>>,
    /// Where memory is accounted for.
    pub oom_watch: Option<Box<dyn OomWatch>>,
}

/// What is left of a life.
#[derive(Debug, Default)]
pub(super) struct Dead {
    /// None if it never had a process.
    pub body: Option<Body>,
    /// The last figures of its cgroup.
    pub figures: Option<Any>,
}

/// How far a task is frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Freezer {
    #[default]
    Thawed,
    Freezing,
    /// Until its thawing is over.
    Frozen,
}

impl Stage {
    pub fn alive(&self) -> Option<&Alive> {
        match self {
            Stage::Alive(alive) => Some(alive),
            _ => None,
        }
    }

    pub fn dead(&self) -> Option<&Dead> {
        match self {
            Stage::Ended(dead, _) | Stage::Reported { dead, .. } | Stage::Exited(dead, _) => {
                Some(dead)
            }
            _ => None,
        }
    }

    pub fn dead_mut(&mut self) -> Option<&mut Dead> {
        match self {
            Stage::Ended(dead, _) | Stage::Reported { dead, .. } | Stage::Exited(dead, _) => {
                Some(dead)
            }
            _ => None,
        }
    }

    /// That of the process that lives, or lived last.
    pub fn body(&self) -> Option<&Body> {
        let alive = self.alive().map(|alive| &alive.body);
        alive.or_else(|| self.dead()?.body.as_ref())
    }

    pub fn body_mut(&mut self) -> Option<&mut Body> {
        match self {
            Stage::Alive(alive) => Some(&mut alive.body),
            dead => dead.dead_mut()?.body.as_mut(),
        }
    }

    pub fn freezer(&self) -> Option<Freezer> {
        Some(self.alive()?.freezer)
    }

    /// Says now if memory has run out.
    pub fn looks_at_memory(&self) {
        if let Some(watch) = self.alive().and_then(|alive| alive.oom_watch.as_ref()) {
            watch.look();
        }
    }

    /// Takes what is left of this stage for one in which it is dead. If memory ran out, that is said before
    /// the end is.
    pub fn dies(&mut self) -> Dead {
        self.looks_at_memory();
        match std::mem::replace(self, Stage::Lost) {
            Stage::Alive(Alive { body, .. }) => Dead {
                body: Some(body),
                figures: None,
            },
            Stage::Ended(dead, _) | Stage::Reported { dead, .. } | Stage::Exited(dead, _) => dead,
            Stage::Making | Stage::ToRestore(_) | Stage::Restoring(_) | Stage::Lost => {
                Dead::default()
            }
        }
    }
}
