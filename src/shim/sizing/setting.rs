//! A value of a pod's cgroup.

use std::{io, mem};

use nix::errno::Errno;

use usher_core::plan::Allotment;
use usher_engine::{Knob, PodCgroup};

use super::told::Told;

/// Lowers a memory limit only while the usage is below this many tenths of the new limit.
const TENTHS_AT_MOST: u128 = 9;

/// A value of the pod's cgroup: the value that the caller gave, and the values that the shim has
/// set.
#[derive(Debug)]
pub(super) struct Setting {
    pub knob: Knob,
    /// The value that the caller or another program last gave the pod, as [`PodCgroup::read`]
    /// returns it. The shim never sets a higher value.
    pub ceiling: u64,
    /// The part of the ceiling that is the pod's overhead. The shim adds the overhead to the size
    /// of the containers.
    pub overhead: u64,
    /// The value that the shim wrote last. If the shim has written none, or systemd or another
    /// program has written a value since, the value that was found then.
    pub written: u64,
    told: Told,
    /// True once a refusal was logged.
    pub is_refused: bool,
    lowering: Lowering,
}

/// Progress of lowering a memory limit.
#[derive(Debug, Default)]
enum Lowering {
    #[default]
    Idle,
    /// A lower value is being written. No other value is written meanwhile.
    UnderWay { from: u64, to: u64 },
    /// The last attempt to lower the limit failed. The next call of `settle` does not try again.
    Failed,
}

/// The outcome of putting a value in force.
pub(super) enum Outcome {
    /// The value is in force or already being lowered, or the cgroup is gone.
    Done,
    /// The value could not be set now. The caller has to call [`Setting::settle`] again later.
    Later,
    /// The caller has to lower the memory limit to this many bytes, which may take long, and then
    /// call [`Setting::finish_lowering`].
    Lowers(u64),
    Refused(io::Error),
}

impl Setting {
    /// Reads the original value of `knob`, before the shim writes it for the first time. Computes
    /// the pod's overhead: the original value minus the resources of the pod's containers
    /// (`allotment`). Returns `None` if the value cannot be read, for example because the kernel
    /// has no such value.
    pub fn found(knob: Knob, cgroup: &dyn PodCgroup, allotment: &Allotment) -> Option<Setting> {
        let found = cgroup.read(knob)?;
        Some(Setting {
            knob,
            ceiling: found,
            overhead: cgroup.overhead(knob, allotment),
            written: found,
            told: Told::new(found),
            is_refused: false,
            lowering: Lowering::Idle,
        })
    }

    /// Sets the cgroup's value to `value` plus the overhead, but at most to the ceiling. If another
    /// program has changed the cgroup's value, that program's value becomes the ceiling.
    ///
    /// `accounted` is the value that results from the requests of all containers. If the ceiling is
    /// higher than `accounted` plus the overhead, the pod as a whole has requests of its own. The
    /// current value is then never lowered. If `accounted` is `None`, it may always be lowered.
    pub fn settle(
        &mut self,
        cgroup: &dyn PodCgroup,
        value: u64,
        accounted: Option<u64>,
    ) -> Outcome {
        if let Lowering::UnderWay { .. } = self.lowering {
            // The caller calls `settle` again when the memory limit is no longer being lowered.
            return Outcome::Done;
        }
        let has_failed = matches!(mem::take(&mut self.lowering), Lowering::Failed);
        // The read fails once the cgroup is gone.
        let Some(now) = cgroup.read(self.knob) else {
            return Outcome::Done;
        };
        if now != self.written {
            if !self.told.includes(now) {
                // Another program has given the pod a new value, which is the new ceiling.
                let before = mem::replace(&mut self.ceiling, now);
                self.told.overrule(now, before);
            }
            self.written = now;
        }
        self.told.note_read(now);
        let value = value.saturating_add(self.overhead);
        let value = cgroup.rounded(self.knob, value).min(self.ceiling);
        let value = match accounted.is_some_and(|accounted| self.exceeds(accounted)) {
            true => value.max(now),
            false => value,
        };
        if value == now {
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
            Ok(()) => self.wrote(value),
            Err(error) if is_gone(&error) => Outcome::Done,
            Err(error) => Outcome::Refused(error),
        }
    }

    /// Handles the result of [lowering](Outcome::Lowers) a memory limit. The outcome is one of:
    ///
    /// - [`Outcome::Done`]: the new limit is in force, another program has written a value, or the
    ///   cgroup is gone.
    /// - [`Outcome::Later`]: the kernel could not free the memory. Or the memory usage has risen too
    ///   close to the new limit meanwhile, and the former limit was restored.
    /// - [`Outcome::Refused`]: another error. The next call of `settle` does not lower the limit.
    pub fn finish_lowering(&mut self, cgroup: &dyn PodCgroup, lowered: io::Result<()>) -> Outcome {
        let Lowering::UnderWay { from, to } = mem::take(&mut self.lowering) else {
            return Outcome::Done;
        };
        match lowered {
            Ok(()) => {}
            Err(error) if is_gone(&error) => return Outcome::Done,
            // cgroup v1 could not free enough memory.
            Err(error) if is(&error, Errno::EBUSY) => return self.failed_to_lower(),
            Err(error) => {
                self.lowering = Lowering::Failed;
                return Outcome::Refused(error);
            }
        }
        if cgroup.read(self.knob).is_some_and(|now| now != to) {
            // Another program has written a value since. The next call of `settle` deals with that
            // value.
            return Outcome::Done;
        }
        if !leaves_room(cgroup, to) && cgroup.write(self.knob, from).is_ok() {
            // Memory usage has risen during the lowering, so the former limit was restored.
            self.wrote(from);
            return self.failed_to_lower();
        }
        self.wrote(to)
    }

    fn failed_to_lower(&mut self) -> Outcome {
        self.lowering = Lowering::Failed;
        Outcome::Later
    }

    /// Notes that the shim has written `value`. The value is not read back: systemd or another
    /// program may have written a value meanwhile, with which the next call of `settle` deals.
    fn wrote(&mut self, value: u64) -> Outcome {
        self.written = value;
        tracing::debug!(knob = ?self.knob, value, "changed a value of the pod's cgroup");
        Outcome::Done
    }

    pub fn is_being_lowered(&self) -> bool {
        matches!(self.lowering, Lowering::UnderWay { .. })
    }

    /// Returns the value that systemd has to be told, and notes that it is being told. The caller
    /// then calls [`Setting::note_told`]. `None` if there is no such value. If `only_raised` is
    /// true, a value that is not higher than the one before is left for later.
    pub fn take_news(&mut self, only_raised: bool) -> Option<u64> {
        let begins = self.told.begin(self.written, only_raised);
        begins.then_some(self.written)
    }

    /// Notes whether systemd has confirmed the value that it was told, if it was told one.
    pub fn note_told(&mut self, is_confirmed: bool) {
        self.told.note_answer(is_confirmed);
    }

    /// True if systemd may write less than the pod can have: `needed` plus the overhead, but at most
    /// the ceiling.
    pub fn may_be_too_low(&self, needed: u64) -> bool {
        let needed = needed.saturating_add(self.overhead).min(self.ceiling);
        self.told.may_be_below(needed)
    }

    /// True if the ceiling is higher than `accounted` plus the overhead. If there is an overhead, a
    /// difference of one does not count, because the overhead is rounded.
    fn exceeds(&self, accounted: u64) -> bool {
        let rounding = u64::from(self.overhead > 0);
        let most = accounted.saturating_add(self.overhead);
        self.ceiling > most.saturating_add(rounding)
    }
}

/// True if so little memory is used that a limit of `bytes` harms no process. False if the usage is
/// unknown.
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
