//! The pod's cgroup, sized as the core wants it: raised at once, lowered when nobody can come to harm.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tokio::time::sleep;

use crate::caught::Panicked;
use crate::engine::{Knob, Place, PodCgroup, UNLIMITED};
use crate::lifecycle::{ContainerId, PodSize};
use crate::plan::Allotment;
use crate::sizing::{Bytes, Limit};

use super::Actor;
use super::process::Task;

/// What a parked process of the OCI runtime takes; two were measured.
const HELD_BYTES: u64 = 4 << 20;

/// Memory is lowered only while it is used by less than this many tenths of what it is lowered to.
const TENTHS_AT_MOST: u128 = 9;

/// When it is tried again after the first time; each time it takes twice as long.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRY_AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(60);

/// The cgroup of a pod that is the pod's alone: the shim's commands for the pod run there.
#[derive(Debug)]
pub(super) struct OwnCgroup {
    cgroup: Arc<dyn PodCgroup>,
    /// If it is ours to size.
    sizing: Option<Sizing>,
}

/// The pod's cgroup and what we have done to it.
#[derive(Debug)]
struct Sizing {
    cgroup: Arc<dyn PodCgroup>,
    settings: Vec<Setting>,
    /// What it was sized by last.
    last: Option<Option<PodSize>>,
    try_again_after: Duration,
    /// It will be tried again.
    is_due: bool,
    /// Whoever manages the cgroup is being told.
    is_telling: bool,
    /// It was reported that systemd does not take its values.
    is_untold: bool,
    /// The bundle with the note about it.
    notes: Option<PathBuf>,
}

#[derive(Debug)]
struct Setting {
    knob: Knob,
    /// What the caller has given the pod.
    ceiling: u64,
    /// What of it no container may use: it comes on top of what they may.
    overhead: u64,
    /// What was wanted last, and what the kernel made of it: it rounds.
    wanted: u64,
    written: u64,
    /// What systemd knows.
    told: u64,
    /// A refusal was reported.
    is_refused: bool,
}

enum Outcome {
    Done,
    /// To be tried again later.
    Later,
    Refused(io::Error),
}

// === impl Actor ===

impl Actor {
    /// Learns from the first container of a pod where the pod's cgroup is, and what it has.
    pub(super) fn find_pod_cgroup(&mut self, id: &ContainerId) {
        if self.pod_cgroup.is_some() || !self.core.has_orders() {
            return;
        }
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let init = task.life.init();
        let cgroup = init.and_then(|init| init.pod_cgroup(&self.who.identity().uid));
        let sizing = |cgroup| Sizing::new(cgroup, &task.facts.allotment);
        self.pod_cgroup = cgroup.map(|cgroup| OwnCgroup {
            sizing: self
                .core
                .may_be_sized()
                .then(|| sizing(Arc::clone(&cgroup))),
            cgroup,
        });
    }

    /// Sees to it that the pod's cgroup has the size that it is to have now.
    pub(super) fn settle_size(&mut self) {
        let wanted = self.pod_size();
        let is_settled = |sizing: &mut Sizing| sizing.last.as_ref() == Some(&wanted);
        if self.sizing().is_some_and(|sizing| !is_settled(sizing)) {
            self.settle_size_now(true);
        }
        if self.tasks.is_empty() {
            self.pod_cgroup = None;
        }
    }

    /// The same, also if nothing has changed as far as the core can know.
    pub(super) fn settle_size_now(&mut self, is_new: bool) {
        let wanted = self.pod_size();
        let charged = wanted.as_ref().map(|wanted| self.memory_of(wanted));
        let keeper = self.tasks.values().find(|task| !task.life.has_ended());
        let keeper = keeper.or(self.tasks.values().next());
        let keeper = keeper.map(|task| task.bundle.clone());
        let Some(sizing) = self.sizing() else {
            return;
        };
        let is_due = sizing.settle(wanted.as_ref(), charged.unwrap_or_default());
        sizing.last = Some(wanted);
        sizing.take_notes(keeper);
        if is_new {
            sizing.try_again_after = TRY_AGAIN_AFTER;
        }
        if is_due && !sizing.is_due {
            sizing.is_due = true;
            let after = sizing.try_again_after;
            sizing.try_again_after = after.saturating_mul(2).min(TRY_AGAIN_AFTER_AT_MOST);
            let wait = async move {
                sleep(after).await;
                Ok::<_, Panicked>(())
            };
            self.job(wait, |actor, _| {
                if let Some(sizing) = actor.sizing() {
                    sizing.is_due = false;
                }
                actor.settle_size_now(false);
            });
        }
        self.tell_manager();
    }

    fn sizing(&mut self) -> Option<&mut Sizing> {
        self.pod_cgroup.as_mut()?.sizing.as_mut()
    }

    fn pod_size(&self) -> Option<PodSize> {
        let is_busy = |id: &ContainerId| self.tasks.get(id).is_some_and(Task::has_live_execs);
        self.core.pod_size(is_busy)
    }

    /// How much memory is charged to containers that keep within the size.
    fn memory_of(&self, size: &PodSize) -> u64 {
        let ids = size.counted.iter().chain(&size.held);
        let usage = ids.filter_map(|id| self.tasks.get(id)?.life.cgroup()?.memory_usage());
        usage.fold(0, u64::saturating_add)
    }

    /// Has systemd know what is in force where the cgroup is its own: it would undo it at its next
    /// daemon-reload.
    fn tell_manager(&mut self) {
        let Some(sizing) = self.sizing() else {
            return;
        };
        let Some(news) = sizing.news() else {
            return;
        };
        let cgroup = Arc::clone(&sizing.cgroup);
        let told = async move { cgroup.tell_manager(news).await };
        self.job(told, |actor, outcome| {
            if let Some(sizing) = actor.sizing() {
                sizing.is_telling = false;
                if let Err(error) = outcome
                    && !std::mem::replace(&mut sizing.is_untold, true)
                {
                    tracing::warn!(%error, "systemd does not know the size of the pod's cgroup");
                }
            }
            // What it was told may be older than what is wanted by now.
            actor.settle_size_now(false);
        });
    }
}

impl OwnCgroup {
    /// Where the shim's commands for the pod run.
    pub fn place(&self) -> Option<Place> {
        self.cgroup.place()
    }
}

// === impl Sizing ===

impl Sizing {
    /// Nobody has sized the cgroup yet: what is found is what the caller gave the pod.
    fn new(cgroup: Arc<dyn PodCgroup>, allotment: &Allotment) -> Sizing {
        let knobs = [Knob::Memory, Knob::CpuQuota, Knob::CpuWeight];
        let setting = |knob| {
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
        };
        Sizing {
            settings: knobs.into_iter().filter_map(setting).collect(),
            cgroup,
            last: None,
            try_again_after: TRY_AGAIN_AFTER,
            is_due: false,
            is_telling: false,
            is_untold: false,
            notes: None,
        }
    }

    /// Whether something is to be tried again later.
    fn settle(&mut self, wanted: Option<&PodSize>, charged: u64) -> bool {
        let usage = self.cgroup.memory_usage().unwrap_or_default();
        let others = usage.saturating_sub(charged);
        let cpu = wanted.and_then(|wanted| {
            let size = &wanted.size;
            self.cgroup.cpu_values(&size.limits, &size.requests)
        });
        let mut is_due = false;
        for setting in &mut self.settings {
            let value = match (setting.knob, wanted) {
                (Knob::Memory, Some(wanted)) => memory_limit(wanted, others),
                (Knob::CpuQuota, Some(_)) => cpu.map_or(UNLIMITED, |(quota, _)| quota),
                (Knob::CpuWeight, Some(_)) => cpu.map_or(UNLIMITED, |(_, weight)| weight),
                // As it was.
                (_, None) => UNLIMITED,
            };
            match setting.settle(&*self.cgroup, value) {
                Outcome::Done => {}
                Outcome::Later => is_due = true,
                Outcome::Refused(error) => {
                    if !std::mem::replace(&mut setting.is_refused, true) {
                        let knob = setting.knob;
                        tracing::warn!(?knob, value, %error, "the pod's cgroup stays as it is");
                    }
                }
            }
        }
        is_due
    }

    /// Leaves a note for whoever comes when we have died, in a bundle that there is.
    fn take_notes(&mut self, keeper: Option<PathBuf>) {
        let changed = self.settings.iter();
        let changed = changed.filter(|setting| setting.written != setting.ceiling);
        let before: Vec<_> = changed
            .map(|setting| (setting.knob, setting.ceiling))
            .collect();
        let keeper = keeper.filter(|_| !before.is_empty());
        if let Some(old) = &self.notes
            && self.notes != keeper
        {
            self.cgroup.remove_note(old);
        }
        self.notes = keeper;
        if let Some(bundle) = &self.notes
            && let Err(error) = self.cgroup.leave_note(bundle, &before)
        {
            tracing::warn!(%error, "what the pod's cgroup was before is not noted");
        }
    }

    /// What whoever manages the cgroup does not know yet, to be told now.
    fn news(&mut self) -> Option<Vec<(Knob, u64)>> {
        if !self.cgroup.is_managed() || self.is_telling {
            return None;
        }
        let news = self.settings.iter().filter(|s| s.told != s.written);
        let news: Vec<_> = news.map(|s| (s.knob, s.written)).collect();
        if news.is_empty() {
            return None;
        }
        for setting in &mut self.settings {
            setting.told = setting.written;
        }
        self.is_telling = true;
        Some(news)
    }
}

impl Setting {
    /// Puts a value and the overhead in force, or the ceiling if that is less.
    fn settle(&mut self, cgroup: &dyn PodCgroup, value: u64) -> Outcome {
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
}

/// What the pod's memory is limited to. `others` is what is charged to the pod and to none of the
/// containers that are counted: files in memory, what those have left that are gone, the sandbox.
fn memory_limit(wanted: &PodSize, others: u64) -> u64 {
    let Limit::Of(Bytes(limit)) = wanted.size.limits.memory else {
        return UNLIMITED;
    };
    if limit == 0 {
        // Nobody is there to be limited.
        return UNLIMITED;
    }
    let held = u64::try_from(wanted.held.len()).unwrap_or(u64::MAX);
    let held = held.saturating_mul(HELD_BYTES);
    limit.saturating_add(others).saturating_add(held)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cgroup;
    use crate::engine::oci::{OciPodCgroup, restore_pod_cgroup};
    use crate::reaper::Reaper;
    use crate::sizing::{Millicores, Size};

    fn of(bytes: Limit<Bytes>, held: usize) -> PodSize {
        let mut size = Size::exactly(Millicores(1), Bytes(1));
        size.limits.memory = bytes;
        PodSize {
            size,
            counted: Vec::new(),
            held: vec![ContainerId::from("a"); held],
        }
    }

    fn in_directory(directory: &std::path::Path) -> Arc<dyn PodCgroup> {
        let cgroup = cgroup::PodCgroup::in_directory(directory);
        Arc::new(OciPodCgroup::new(cgroup, Reaper::default()))
    }

    const CEILING: u64 = 1000 << 20;

    /// Files of a cgroup of version 1, and what there is to do with them.
    struct Fake {
        directory: tempfile::TempDir,
        sizing: Sizing,
    }

    impl Fake {
        fn new() -> Fake {
            let directory = tempfile::tempdir().unwrap();
            let cgroup = in_directory(directory.path());
            let limit = directory.path().join("memory.limit_in_bytes");
            fs::write(limit, CEILING.to_string()).unwrap();
            let sizing = Sizing::new(cgroup, &Allotment::default());
            Fake { directory, sizing }
        }

        fn set(&self, file: &str, bytes: u64) {
            fs::write(self.directory.path().join(file), bytes.to_string()).unwrap();
        }

        fn limit(&self) -> u64 {
            self.sizing.cgroup.read(Knob::Memory).unwrap()
        }

        /// With nothing charged to the pod but to its containers.
        fn settle(&mut self, bytes: Option<u64>) -> bool {
            let wanted = bytes.map(|bytes| of(Limit::Of(Bytes(bytes)), 0));
            let usage = self.sizing.cgroup.memory_usage().unwrap_or_default();
            self.sizing.settle(wanted.as_ref(), usage)
        }
    }

    #[test]
    fn memory_is_lowered_only_while_nine_tenths_of_it_are_not_used() {
        let mut fake = Fake::new();
        fake.set("memory.usage_in_bytes", 90);
        assert!(fake.settle(Some(100)), "it is to be tried again");
        assert_eq!(fake.limit(), CEILING);
        fake.set("memory.usage_in_bytes", 89);
        assert!(!fake.settle(Some(100)));
        assert_eq!(fake.limit(), 100);
        // What is raised is so at once.
        fake.set("memory.usage_in_bytes", 100);
        assert!(!fake.settle(Some(101)));
        assert_eq!(fake.limit(), 101);
    }

    #[test]
    fn nothing_is_lowered_where_it_is_not_known_what_is_used() {
        let mut fake = Fake::new();
        assert!(fake.settle(Some(100)));
        assert_eq!(fake.limit(), CEILING);
    }

    #[test]
    fn what_somebody_else_has_written_bounds_and_is_restored() {
        let mut fake = Fake::new();
        fake.set("memory.usage_in_bytes", 1);
        fake.settle(Some(100));
        fake.set("memory.limit_in_bytes", 50);
        fake.settle(Some(70));
        assert_eq!(fake.limit(), 50);
        fake.settle(Some(30));
        assert_eq!(fake.limit(), 30);
        fake.settle(None);
        assert_eq!(fake.limit(), 50);
        fake.set("memory.limit_in_bytes", 2 * CEILING);
        fake.settle(Some(100));
        assert_eq!(fake.limit(), 100);
        fake.settle(None);
        assert_eq!(fake.limit(), 2 * CEILING);
    }

    #[test]
    fn what_systemd_was_told_is_nobody_elses() {
        let mut fake = Fake::new();
        fake.set("memory.usage_in_bytes", 1);
        fake.settle(Some(100));
        fake.sizing.settings[0].told = 100;
        fake.settle(Some(200));
        // It puts in force what it was told last.
        fake.set("memory.limit_in_bytes", 100);
        fake.settle(Some(300));
        assert_eq!(fake.limit(), 300);
        fake.settle(None);
        assert_eq!(fake.limit(), CEILING);
    }

    #[test]
    fn what_is_noted_is_restored_unless_somebody_else_has_written_since() {
        let bundle = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let mut fake = Fake::new();
        fake.set("memory.usage_in_bytes", 1);
        fake.settle(Some(100));
        fake.sizing.take_notes(Some(bundle.path().to_owned()));
        fake.sizing.take_notes(Some(other.path().to_owned()));
        restore_pod_cgroup(bundle.path());
        assert_eq!(fake.limit(), 100, "the note is in another bundle by now");
        restore_pod_cgroup(other.path());
        assert_eq!(fake.limit(), CEILING);
        fake.set("memory.limit_in_bytes", 7);
        restore_pod_cgroup(other.path());
        assert_eq!(fake.limit(), 7);
        // When all is as it was, nothing is noted.
        fake.settle(None);
        fake.sizing.take_notes(Some(other.path().to_owned()));
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_overhead_comes_on_top_within_the_ceiling() {
        let mut fake = Fake::new();
        fake.set("memory.usage_in_bytes", 1);
        fake.set("cpu.cfs_quota_us", 50_000);
        fake.set("cpu.cfs_period_us", 100_000);
        fake.set("cpu.shares", 358);
        let cgroup = in_directory(fake.directory.path());
        let allotment = Allotment {
            memory: Some(CEILING - 30),
            quota: Some((20_000, 50_000)),
            shares: Some(102),
        };
        fake.sizing = Sizing::new(cgroup, &allotment);
        let overheads: Vec<u64> = fake.sizing.settings.iter().map(|s| s.overhead).collect();
        assert_eq!(overheads, [30, 10_000, 256]);
        fake.settle(Some(100));
        assert_eq!(fake.limit(), 130);
        fake.settle(Some(CEILING));
        assert_eq!(fake.limit(), CEILING);
        fake.settle(None);
        assert_eq!(fake.limit(), CEILING);
    }

    #[test]
    fn what_belongs_to_nobody_and_what_is_held_come_on_top() {
        let size = of(Limit::Of(Bytes(100)), 2);
        assert_eq!(memory_limit(&size, 30), 100 + 30 + (8 << 20));
        assert_eq!(memory_limit(&of(Limit::Unlimited, 2), 30), UNLIMITED);
        assert_eq!(memory_limit(&of(Limit::Of(Bytes(0)), 1), 30), UNLIMITED);
    }
}
