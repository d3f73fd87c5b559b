//! One value of a pod's cgroup.

use std::io;

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
}

/// What has become of a value that was wanted.
pub(super) enum Outcome {
    Done,
    /// To be tried again later.
    Later,
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
        let is_lowered = self.knob == Knob::Memory && value < now;
        if is_lowered && !leaves_room(cgroup, value) {
            return Outcome::Later;
        }
        match cgroup.write(self.knob, value) {
            Ok(()) => {}
            Err(error) if is_gone(&error) => return Outcome::Done,
            // Version 1 could not free enough.
            Err(error) if is_lowered && is(&error, Errno::EBUSY) => return Outcome::Later,
            Err(error) => return Outcome::Refused(error),
        }
        self.wanted = value;
        self.written = cgroup.read(self.knob).unwrap_or(value);
        if is_lowered && !leaves_room(cgroup, value) && cgroup.write(self.knob, now).is_ok() {
            // Its use has risen meanwhile.
            self.wanted = now;
            self.written = cgroup.read(self.knob).unwrap_or(now);
            return Outcome::Later;
        }
        tracing::debug!(knob = ?self.knob, value, "the pod's cgroup is sized");
        Outcome::Done
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
