//! One value of a pod's cgroup.

use std::{io, mem};

use nix::errno::Errno;

use crate::engine::{Knob, PodCgroup};
use crate::plan::Allotment;

/// Memory is lowered only while it is used by less than this many tenths of what it is lowered to.
const TENTHS_AT_MOST: u128 = 9;

/// A value, and what we and others have done to it.
#[derive(Debug)]
pub(super) struct Setting {
    pub knob: Knob,
    /// What the caller has given the pod.
    pub ceiling: u64,
    /// What of it no container may use: it comes on top of what they may.
    pub overhead: u64,
    /// What was wanted last, and what the kernel made of it: it rounds.
    wanted: u64,
    pub written: u64,
    /// What systemd knows.
    pub told: u64,
    /// A refusal was reported.
    pub is_refused: bool,
    lowering: Lowering,
}

/// How far it is that the kernel has lowered a limit of memory.
#[derive(Debug, Default)]
enum Lowering {
    #[default]
    Idle,
    /// A lower value is being written in place of another. Nothing else is written meanwhile.
    UnderWay { from: u64, to: u64 },
    /// It came to nothing, and is not tried again at once.
    Failed,
}

/// What has become of a value that was wanted.
pub(super) enum Outcome {
    Done,
    /// To be tried again later.
    Later,
    /// Memory is to be lowered to so many bytes, which may take long; [`Setting::lowered`] is to be told.
    Lowers(u64),
    Refused(io::Error),
}

impl Setting {
    /// Nobody has written it yet: what is found is what the caller gave the pod. None if there is no such
    /// value.
    pub fn found(knob: Knob, cgroup: &dyn PodCgroup, allotment: &Allotment) -> Option<Setting> {
        let found = cgroup.read(knob)?;
        Some(Setting {
            knob,
            ceiling: found,
            overhead: cgroup.overhead(knob, found, allotment),
            wanted: found,
            written: found,
            told: found,
            is_refused: false,
            lowering: Lowering::Idle,
        })
    }

    /// Puts a value and the overhead in force, or the ceiling if that is less. What is in force is not
    /// lowered if the caller has given the pod more than `accounted` and the overhead: it gives that to
    /// the pod as a whole.
    pub fn settle(
        &mut self,
        cgroup: &dyn PodCgroup,
        value: u64,
        accounted: Option<u64>,
    ) -> Outcome {
        if let Lowering::UnderWay { .. } = self.lowering {
            // The value is looked at again when that is over.
            return Outcome::Done;
        }
        let has_failed = matches!(mem::take(&mut self.lowering), Lowering::Failed);
        // Without a cgroup there is nothing to do.
        let Some(now) = cgroup.read(self.knob) else {
            return Outcome::Done;
        };
        if now != self.written && now != self.told {
            // Somebody else has given the pod another size.
            self.ceiling = now;
            self.wanted = now;
            self.written = now;
            if !cgroup.is_managed() {
                // Nobody puts what was there before in force again.
                self.told = now;
            }
        }
        let value = value.saturating_add(self.overhead).min(self.ceiling);
        let value = match accounted.is_some_and(|accounted| self.exceeds(accounted)) {
            true => value.max(now),
            false => value,
        };
        if value == now || (value == self.wanted && now == self.written) {
            return Outcome::Done;
        }
        if self.knob == Knob::Memory && value < now {
            if has_failed || !leaves_room(cgroup, value) {
                return Outcome::Later;
            }
            self.lowering = Lowering::UnderWay {
                from: now,
                to: value,
            };
            return Outcome::Lowers(value);
        }
        match cgroup.write(self.knob, value) {
            Ok(()) => self.wrote(cgroup, value),
            Err(error) if is_gone(&error) => Outcome::Done,
            Err(error) => Outcome::Refused(error),
        }
    }

    /// Takes what has become of a limit of memory that was to be [lowered](Outcome::Lowers).
    pub fn lowered(&mut self, cgroup: &dyn PodCgroup, lowered: io::Result<()>) -> Outcome {
        let Lowering::UnderWay { from, to } = mem::take(&mut self.lowering) else {
            return Outcome::Done;
        };
        match lowered {
            Ok(()) => {}
            Err(error) if is_gone(&error) => return Outcome::Done,
            // Version 1 could not free enough.
            Err(error) if is(&error, Errno::EBUSY) => return self.failed_to_lower(),
            Err(error) => return Outcome::Refused(error),
        }
        if !leaves_room(cgroup, to) && cgroup.write(self.knob, from).is_ok() {
            // Its use has risen meanwhile.
            self.wrote(cgroup, from);
            return self.failed_to_lower();
        }
        self.wrote(cgroup, to)
    }

    fn failed_to_lower(&mut self) -> Outcome {
        self.lowering = Lowering::Failed;
        Outcome::Later
    }

    fn wrote(&mut self, cgroup: &dyn PodCgroup, value: u64) -> Outcome {
        self.wanted = value;
        self.written = cgroup.read(self.knob).unwrap_or(value);
        tracing::debug!(knob = ?self.knob, value, "the pod's cgroup is sized");
        Outcome::Done
    }

    /// True while a limit of memory is being lowered.
    pub fn is_being_lowered(&self) -> bool {
        matches!(self.lowering, Lowering::UnderWay { .. })
    }

    /// True if the caller has given the pod more than this and the overhead, which is rounded.
    fn exceeds(&self, accounted: u64) -> bool {
        let rounding = u64::from(self.overhead > 0);
        let most = accounted.saturating_add(self.overhead);
        self.ceiling > most.saturating_add(rounding)
    }
}

/// Whether so little is used that a limit of this many bytes harms nobody.
fn leaves_room(cgroup: &dyn PodCgroup, bytes: u64) -> bool {
    cgroup.memory_usage().is_some_and(|usage| {
        u128::from(usage).saturating_mul(10) < u128::from(bytes).saturating_mul(TENTHS_AT_MOST)
    })
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || is(error, Errno::ENODEV)
}
