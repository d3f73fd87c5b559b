//! Sizes a pod's cgroup: sets its memory limit, CPU quota and CPU weight, notes the original values
//! in a file, and collects the values to tell systemd.

mod own_cgroup;
mod setting;
mod told;

use std::io;
use std::path::PathBuf;

use usher_core::lifecycle::PodSize;
use usher_core::plan::Allotment;
use usher_core::sizing::{Bytes, Limit, Requests, Size};
use usher_engine::{Knob, PodCgroup, UNLIMITED};

use setting::{Outcome, Setting};

pub(crate) use own_cgroup::{OwnCgroup, SizeWork};

/// Bytes that are added to the memory limit for each container whose program is not executed yet. A
/// process of the OCI runtime waits in the container. A process of runc 1.5 was measured to need
/// 5 MB (`scripts/bench --charged`), a process of runc 1.1 2 MB.
const HELD_BYTES: u64 = 8 << 20;

/// The work that is left before a wanted size is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unsettled {
    /// True if the caller has to call [`Sizing::settle`] again later.
    pub is_due: bool,
    /// The caller has to lower the memory limit to this many bytes, and then call
    /// [`Sizing::finish_lowering`].
    pub memory: Option<u64>,
}

/// The values of a pod's cgroup, and the work on them.
#[derive(Debug)]
struct Sizing {
    settings: Vec<Setting>,
    /// Bytes of memory that were charged to the pod, but to none of its containers, when they were
    /// last measured. `None` if the next call of `settle` has to measure them.
    others: Option<u64>,
    telling: Telling,
    /// The bundle with the note of the original values. `None` if there is no note.
    notes: Option<PathBuf>,
}

/// Progress of telling systemd the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Idle,
    UnderWay,
    /// The last attempt failed. The next one follows a pause.
    Failed,
}

impl Sizing {
    /// Reads the values that the caller gave the pod, before the shim changes them. Computes the
    /// pod's overhead: these values minus the resources of the pod's containers (`allotment`).
    pub fn new(cgroup: &dyn PodCgroup, allotment: &Allotment) -> Sizing {
        let knobs = [Knob::Memory, Knob::CpuQuota, Knob::CpuWeight].into_iter();
        let settings = knobs.filter_map(|knob| Setting::found(knob, cgroup, allotment));
        Sizing {
            settings: settings.collect(),
            others: None,
            telling: Telling::Idle,
            notes: None,
        }
    }

    /// Puts the wanted size in force; `None` restores the original values. `charged` is the memory
    /// in bytes that is charged to the containers in `wanted`. The pod's other memory is added to
    /// the limit.
    ///
    /// Does not lower the memory limit itself, because the kernel may take long to free memory. If
    /// the limit has to be lowered, the result says so, and the caller lowers it. A value that the
    /// kernel refuses is only logged; the next call writes it again.
    pub fn settle(
        &mut self,
        cgroup: &dyn PodCgroup,
        wanted: Option<&PodSize>,
        charged: u64,
    ) -> Unsettled {
        let others = *self.others.get_or_insert_with(|| {
            let usage = cgroup.memory_usage().unwrap_or_default();
            usage.saturating_sub(charged)
        });
        let cpu = wanted.and_then(|wanted| {
            let size = &wanted.size;
            cgroup.cpu_values(&size.limits, &size.requests)
        });
        let asked = |asked: &Requests| Some(cgroup.cpu_values(&Size::UNLIMITED.limits, asked)?.1);
        let asked = wanted.and_then(|wanted| wanted.asked.as_ref().and_then(asked));
        let mut left = Unsettled {
            is_due: self.telling == Telling::Failed,
            ..Unsettled::default()
        };
        for setting in &mut self.settings {
            // The shim lowers the CPU weight only if the requests of all containers account for the
            // whole weight of the pod. The limits need no such check: in their sums, a container
            // without a limit counts with the pod's whole limit, so the sums are never too low.
            let is_weighed = setting.knob == Knob::CpuWeight && wanted.is_some();
            let accounted = is_weighed.then(|| asked.unwrap_or_default());
            let value = match (setting.knob, wanted) {
                (Knob::Memory, Some(wanted)) => memory_limit(wanted, others),
                (Knob::CpuQuota, Some(_)) => cpu.map_or(UNLIMITED, |(quota, _)| quota),
                (Knob::CpuWeight, Some(_)) => cpu.map_or(UNLIMITED, |(_, weight)| weight),
                // Without a wanted size, the cgroup gets back its original value. That value is the
                // ceiling, and `Setting::settle` sets no value above the ceiling.
                (_, None) => UNLIMITED,
            };
            match setting.settle(cgroup, value, accounted) {
                Outcome::Done => {}
                Outcome::Later => left.is_due = true,
                Outcome::Lowers(bytes) => left.memory = Some(bytes),
                Outcome::Refused(error) => report(setting, &error),
            }
        }
        left
    }

    /// Handles the outcome of lowering [memory](Unsettled::memory). The caller then calls
    /// [`Sizing::settle`] again.
    pub fn finish_lowering(&mut self, cgroup: &dyn PodCgroup, lowered: io::Result<()>) {
        let mut settings = self.settings.iter_mut();
        if let Some(setting) = settings.find(|setting| setting.is_being_lowered())
            && let Outcome::Refused(error) = setting.finish_lowering(cgroup, lowered)
        {
            report(setting, &error);
        }
    }

    /// True while the memory limit is being lowered.
    pub fn is_lowering(&self) -> bool {
        self.settings.iter().any(Setting::is_being_lowered)
    }

    /// True while systemd is being told values, and may write a memory limit that is too low for the
    /// containers in `wanted`.
    pub fn is_raising_memory(&self, wanted: Option<&PodSize>) -> bool {
        let needed = wanted.map_or(UNLIMITED, containers_limit);
        let mut settings = self.settings.iter();
        let memory = settings.find(|setting| setting.knob == Knob::Memory);
        let may_be_too_low = memory.is_some_and(|memory| memory.may_be_too_low(needed));
        self.telling == Telling::UnderWay && may_be_too_low
    }

    /// Writes a note with the original values of the changed settings into the bundle
    /// `note_bundle`, and removes the note from an earlier bundle. If no value is changed, or there
    /// is no bundle, only removes the note. If the shim dies, `delete` restores these values.
    pub fn take_notes(&mut self, cgroup: &dyn PodCgroup, note_bundle: Option<PathBuf>) {
        let changed = self.settings.iter();
        let changed = changed.filter(|setting| setting.written != setting.ceiling);
        let before: Vec<_> = changed
            .map(|setting| (setting.knob, setting.ceiling))
            .collect();
        let note_bundle = note_bundle.filter(|_| !before.is_empty());
        if let Some(old) = &self.notes
            && self.notes != note_bundle
        {
            cgroup.remove_note(old);
        }
        self.notes = note_bundle;
        if let Some(bundle) = &self.notes
            && let Err(error) = cgroup.leave_note(bundle, &before)
        {
            tracing::warn!(%error, "cannot note the original values of the pod's cgroup");
        }
    }

    /// Returns the values that the caller now has to pass to systemd. The caller then calls
    /// [`Sizing::note_told`]. Returns `None` if there are none, if earlier values are still being
    /// passed, if the last attempt failed, or if systemd does not manage the cgroup. Also returns
    /// `None` while the memory limit is being lowered: whatever systemd is told, it writes all
    /// values of the cgroup again, so it might write the former limit after the kernel has the new
    /// one. If `only_raised` is true, returns only values that are higher than before.
    pub fn news(&mut self, cgroup: &dyn PodCgroup, only_raised: bool) -> Option<Vec<(Knob, u64)>> {
        if !cgroup.is_managed() || self.telling != Telling::Idle || self.is_lowering() {
            return None;
        }
        let settings = self.settings.iter_mut();
        let news: Vec<_> = settings
            .filter_map(|setting| Some((setting.knob, setting.take_news(only_raised)?)))
            .collect();
        if news.is_empty() {
            return None;
        }
        self.telling = Telling::UnderWay;
        Some(news)
    }

    /// Notes whether systemd has confirmed the values that it was told.
    pub fn note_told(&mut self, is_confirmed: bool) {
        for setting in &mut self.settings {
            setting.note_told(is_confirmed);
        }
        self.telling = match is_confirmed {
            true => Telling::Idle,
            false => Telling::Failed,
        };
    }

    /// After a failure, lets [`Sizing::news`] return values again.
    pub fn retry_telling(&mut self) {
        if self.telling == Telling::Failed {
            self.telling = Telling::Idle;
        }
    }

    /// Lets the next call of [`Sizing::settle`] measure the pod's other memory again. Without this
    /// call, the memory counts as unchanged. Otherwise each change of a value would be followed by a
    /// further one, because the memory always changes a little.
    pub fn measure_again(&mut self) {
        self.others = None;
    }
}

/// Logs that a value was refused, once for each kind of value.
fn report(setting: &mut Setting, error: &io::Error) {
    if !std::mem::replace(&mut setting.is_refused, true) {
        let knob = setting.knob;
        tracing::warn!(?knob, %error, "cannot change a value of the pod's cgroup");
    }
}

/// The memory limit of the pod: the sum of the containers' limit, `others`, and [`HELD_BYTES`] for
/// each container in `wanted.held`. `others` is the memory that is charged to the pod, but to none
/// of the containers in `wanted`: for example files in memory, leftovers of deleted containers, the
/// sandbox.
fn memory_limit(wanted: &PodSize, others: u64) -> u64 {
    let held = u64::try_from(wanted.held.len()).unwrap_or(u64::MAX);
    let held = held.saturating_mul(HELD_BYTES);
    let limit = containers_limit(wanted);
    limit.saturating_add(others).saturating_add(held)
}

/// The memory limit of the containers together. [`UNLIMITED`] if this limit is unlimited or 0.
fn containers_limit(wanted: &PodSize) -> u64 {
    match wanted.size.limits.memory {
        // The size includes no container, so there is nothing to limit.
        Limit::Of(Bytes(0)) | Limit::Unlimited => UNLIMITED,
        Limit::Of(Bytes(limit)) => limit,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use usher_core::lifecycle::ContainerId;
    use usher_core::sizing::Millicores;
    use usher_linux::cgroup;
    use usher_linux::reaper::Reaper;
    use usher_oci::{OciPodCgroup, restore_pod_cgroup};

    fn of(bytes: Limit<Bytes>, held: usize) -> PodSize {
        let mut size = Size::exactly(Millicores(1), Bytes(1));
        size.limits.memory = bytes;
        PodSize {
            asked: Some(size.requests),
            size,
            counted: Vec::new(),
            held: vec![ContainerId::from("a"); held],
        }
    }

    fn in_directory(directory: &Path) -> Arc<dyn PodCgroup> {
        let cgroup = cgroup::PodCgroup::in_directory(directory);
        Arc::new(OciPodCgroup::new(cgroup, Reaper::default()))
    }

    const MI: u64 = 1 << 20;

    /// Original memory limit of a [`Fake`], in MiB.
    const CEILING: u64 = 1000;

    /// A size with this memory limit in MiB.
    fn limited(mebibytes: u64) -> PodSize {
        of(Limit::Of(Bytes(mebibytes * MI)), 0)
    }

    /// A directory with the files of a cgroup v1, and the [`Sizing`] of this cgroup. The pod uses
    /// 1 MiB of memory. The methods take and return memory in MiB.
    struct Fake {
        directory: tempfile::TempDir,
        cgroup: Arc<dyn PodCgroup>,
        sizing: Sizing,
    }

    impl Fake {
        fn new() -> Fake {
            Fake::in_directory(tempfile::tempdir().unwrap())
        }

        /// With the name of a cgroup that systemd has made.
        fn managed() -> Fake {
            let directory = tempfile::Builder::new().suffix(".slice").tempdir();
            Fake::in_directory(directory.unwrap())
        }

        fn in_directory(directory: tempfile::TempDir) -> Fake {
            let cgroup = in_directory(directory.path());
            let limit = directory.path().join("memory.limit_in_bytes");
            fs::write(limit, (CEILING * MI).to_string()).unwrap();
            let sizing = Sizing::new(&*cgroup, &Allotment::default());
            let fake = Fake {
                directory,
                cgroup,
                sizing,
            };
            fake.set_usage(1);
            fake
        }

        fn set(&self, file: &str, value: u64) {
            fs::write(self.directory.path().join(file), value.to_string()).unwrap();
        }

        fn set_limit(&self, mebibytes: u64) {
            self.set("memory.limit_in_bytes", mebibytes * MI);
        }

        fn set_usage(&self, mebibytes: u64) {
            self.set("memory.usage_in_bytes", mebibytes * MI);
        }

        fn limit(&self) -> u64 {
            self.cgroup.read(Knob::Memory).unwrap() / MI
        }

        /// Puts a memory limit in force; `None` restores the original limit. All memory of the pod
        /// counts as charged to its containers, so nothing is added to the limit. Returns true if
        /// the limit has to be set again later.
        fn settle(&mut self, mebibytes: Option<u64>) -> bool {
            let wanted = mebibytes.map(limited);
            let usage = self.cgroup.memory_usage().unwrap_or_default();
            let left = self.sizing.settle(&*self.cgroup, wanted.as_ref(), usage);
            let Some(bytes) = left.memory else {
                return left.is_due;
            };
            let lowered = self.cgroup.write(Knob::Memory, bytes);
            self.sizing.finish_lowering(&*self.cgroup, lowered);
            let left = self.sizing.settle(&*self.cgroup, wanted.as_ref(), usage);
            assert_eq!(left.memory, None, "it is not tried again at once");
            left.is_due
        }

        /// Begins to lower the memory limit. Returns the wanted size.
        fn begin_lowering(&mut self, mebibytes: u64) -> PodSize {
            let wanted = limited(mebibytes);
            let left = self.sizing.settle(&*self.cgroup, Some(&wanted), MI);
            assert_eq!(left.memory, Some(mebibytes * MI));
            wanted
        }

        /// Tells systemd the values, if there are news. Returns them.
        fn tell_systemd(&mut self, is_confirmed: bool) -> Option<Vec<(Knob, u64)>> {
            let news = self.sizing.news(&*self.cgroup, false)?;
            self.sizing.note_told(is_confirmed);
            let news = news.into_iter().map(|(knob, value)| match knob {
                Knob::Memory => (knob, value / MI),
                Knob::CpuQuota | Knob::CpuWeight => (knob, value),
            });
            Some(news.collect())
        }

        fn take_notes(&mut self, note_bundle: &Path) {
            let note_bundle = Some(note_bundle.to_owned());
            self.sizing.take_notes(&*self.cgroup, note_bundle);
        }
    }

    #[test]
    fn memory_is_lowered_only_while_less_than_nine_tenths_are_used() {
        let mut fake = Fake::new();
        fake.set_usage(90);
        assert!(fake.settle(Some(100)), "it is to be tried again");
        assert_eq!(fake.limit(), CEILING);
        fake.set_usage(89);
        assert!(!fake.settle(Some(100)));
        assert_eq!(fake.limit(), 100);
        // A higher limit applies at once.
        fake.set_usage(100);
        assert!(!fake.settle(Some(101)));
        assert_eq!(fake.limit(), 101);
    }

    #[test]
    fn no_limit_is_lowered_while_the_memory_usage_is_unknown() {
        let mut fake = Fake::new();
        fs::remove_file(fake.directory.path().join("memory.usage_in_bytes")).unwrap();
        assert!(fake.settle(Some(100)));
        assert_eq!(fake.limit(), CEILING);
    }

    #[test]
    fn a_value_written_by_another_program_is_the_ceiling_and_is_restored() {
        let mut fake = Fake::new();
        fake.settle(Some(100));
        fake.set_limit(50);
        fake.settle(Some(70));
        assert_eq!(fake.limit(), 50);
        fake.settle(Some(30));
        assert_eq!(fake.limit(), 30);
        fake.settle(None);
        assert_eq!(fake.limit(), 50);
        fake.set_limit(2 * CEILING);
        fake.settle(Some(100));
        assert_eq!(fake.limit(), 100);
        fake.settle(None);
        assert_eq!(fake.limit(), 2 * CEILING);
    }

    #[test]
    fn a_limit_that_another_program_writes_while_it_is_lowered_stays() {
        let mut fake = Fake::new();
        fake.begin_lowering(100);
        // The limit is lowered, then the usage rises, and kubelet writes a higher limit.
        fake.set_usage(95);
        fake.set_limit(2 * CEILING);
        fake.sizing.finish_lowering(&*fake.cgroup, Ok(()));
        assert_eq!(fake.limit(), 2 * CEILING);
        fake.settle(None);
        assert_eq!(fake.limit(), 2 * CEILING);
    }

    #[test]
    fn a_limit_that_cannot_be_lowered_is_tried_again_later() {
        let mut fake = Fake::new();
        let wanted = fake.begin_lowering(100);
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        fake.sizing.finish_lowering(&*fake.cgroup, Err(refused));
        let left = fake.sizing.settle(&*fake.cgroup, Some(&wanted), MI);
        assert_eq!((left.memory, left.is_due), (None, true));
    }

    #[test]
    fn a_change_of_the_pods_other_memory_counts_when_it_is_measured_again() {
        let mut fake = Fake::new();
        let mut with_others = |others: u64, is_measured: bool| {
            if is_measured {
                fake.sizing.measure_again();
            }
            fake.set_usage(others);
            let wanted = limited(100);
            let left = fake.sizing.settle(&*fake.cgroup, Some(&wanted), 0);
            if let Some(bytes) = left.memory {
                let lowered = fake.cgroup.write(Knob::Memory, bytes);
                fake.sizing.finish_lowering(&*fake.cgroup, lowered);
            }
            fake.limit()
        };
        assert_eq!(with_others(20, false), 120);
        assert_eq!(with_others(50, false), 120);
        assert_eq!(with_others(50, true), 150);
    }

    #[test]
    fn a_value_that_systemd_was_told_is_not_taken_for_another_programs() {
        let mut fake = Fake::managed();
        fake.settle(Some(100));
        assert_eq!(fake.tell_systemd(true), Some(vec![(Knob::Memory, 100)]));
        fake.settle(Some(200));
        // At a daemon-reload systemd writes the values that it was last told.
        fake.set_limit(100);
        fake.settle(Some(300));
        assert_eq!(fake.limit(), 300);
        // systemd may know this value or the former one.
        assert_eq!(fake.tell_systemd(false), Some(vec![(Knob::Memory, 300)]));
        for written in [100, 300] {
            fake.set_limit(written);
            assert!(fake.settle(Some(400)), "systemd is to be told later");
            assert_eq!(fake.limit(), 400);
        }
        assert_eq!(fake.tell_systemd(true), None);
        fake.sizing.retry_telling();
        assert_eq!(fake.tell_systemd(true), Some(vec![(Knob::Memory, 400)]));
        assert!(!fake.settle(None));
        assert_eq!(fake.limit(), CEILING);
    }

    #[test]
    fn systemd_is_told_the_value_in_force() {
        let mut fake = Fake::managed();
        fake.settle(Some(100));
        assert_eq!(fake.tell_systemd(false), Some(vec![(Knob::Memory, 100)]));
        // systemd, which was not told, writes the original value.
        fake.set_limit(CEILING);
        fake.settle(None);
        fake.sizing.retry_telling();
        let told = fake.tell_systemd(true);
        assert_eq!(told, Some(vec![(Knob::Memory, CEILING)]));
    }

    #[test]
    fn a_former_value_is_a_new_ceiling_if_another_program_wrote_in_between() {
        let mut fake = Fake::managed();
        fake.settle(Some(100));
        fake.tell_systemd(false);
        fake.set_limit(50);
        fake.settle(Some(70));
        fake.set_limit(CEILING);
        fake.settle(Some(200));
        assert_eq!(fake.limit(), 200);
    }

    /// Another program writes into the cgroup, but does not tell systemd.
    #[test]
    fn a_value_that_systemd_was_told_before_another_programs_is_no_ceiling() {
        let mut fake = Fake::managed();
        fake.settle(Some(100));
        fake.tell_systemd(true);
        fake.set_limit(2 * CEILING);
        fake.settle(Some(200));
        for is_confirmed in [false, true] {
            fake.set_limit(100);
            fake.settle(Some(200));
            assert_eq!(fake.limit(), 200);
            fake.sizing.retry_telling();
            let told = fake.tell_systemd(is_confirmed);
            assert_eq!(told, Some(vec![(Knob::Memory, 200)]));
        }
        fake.set_limit(100);
        fake.settle(None);
        assert_eq!(fake.limit(), 2 * CEILING);
    }

    #[test]
    fn a_limit_is_rounded_before_it_is_set() {
        let mut fake = Fake::new();
        let wanted = of(Limit::Of(Bytes(100 * MI + 1)), 0);
        let left = fake.sizing.settle(&*fake.cgroup, Some(&wanted), MI);
        assert_eq!(left.memory, Some(100 * MI + (64 << 10)));
    }

    #[test]
    fn systemd_is_told_nothing_while_the_memory_limit_is_lowered() {
        let mut fake = Fake::managed();
        fake.set("cpu.cfs_period_us", 100_000);
        fake.set("cpu.cfs_quota_us", 50_000);
        fake.sizing = Sizing::new(&*fake.cgroup, &Allotment::default());
        let mut wanted = limited(100);
        wanted.size.limits.cpu = Limit::Of(Millicores(200));
        let left = fake.sizing.settle(&*fake.cgroup, Some(&wanted), MI);
        assert_eq!(left.memory, Some(100 * MI));
        assert_eq!(fake.tell_systemd(true), None);
        let lowered = fake.cgroup.write(Knob::Memory, 100 * MI);
        fake.sizing.finish_lowering(&*fake.cgroup, lowered);
        let both = vec![(Knob::Memory, 100), (Knob::CpuQuota, 20_000)];
        assert_eq!(fake.tell_systemd(true), Some(both));
    }

    /// systemd keeps a quota in hundredths of a CPU, and writes it when it wants.
    #[test]
    fn a_quota_that_systemd_has_rounded_is_not_taken_for_another_programs() {
        let mut fake = Fake::managed();
        fake.set("cpu.cfs_period_us", 100_000);
        fake.set("cpu.cfs_quota_us", 42_500);
        let allotment = Allotment {
            quota: Some((42_000, 100_000)),
            ..Allotment::default()
        };
        fake.sizing = Sizing::new(&*fake.cgroup, &allotment);
        fake.set("cpu.cfs_quota_us", 43_000);
        for (millis, expected) in [(Some(353), 36_000), (Some(20), 3000), (None, 43_000)] {
            let wanted = millis.map(|millis| {
                let mut wanted = of(Limit::Unlimited, 0);
                wanted.size.limits.cpu = Limit::Of(Millicores(millis));
                wanted
            });
            for is_news in [true, false] {
                fake.sizing.settle(&*fake.cgroup, wanted.as_ref(), 0);
                assert_eq!(fake.cgroup.read(Knob::CpuQuota), Some(expected));
                let news = fake.tell_systemd(true);
                let quota = news.map(|news| news[0].1);
                assert_eq!(quota, is_news.then_some(expected));
                fake.set("cpu.cfs_quota_us", expected);
            }
        }
    }

    #[test]
    fn a_noted_value_is_restored_unless_another_program_wrote_since() {
        let bundle = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let mut fake = Fake::new();
        fake.settle(Some(100));
        fake.take_notes(bundle.path());
        fake.take_notes(other.path());
        restore_pod_cgroup(bundle.path());
        assert_eq!(fake.limit(), 100, "the note is in another bundle by now");
        restore_pod_cgroup(other.path());
        assert_eq!(fake.limit(), CEILING);
        fake.set_limit(7);
        restore_pod_cgroup(other.path());
        assert_eq!(fake.limit(), 7);
        // Once the shim has restored the original values, it removes the note that contains them.
        fake.settle(None);
        fake.take_notes(other.path());
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_overhead_is_added_up_to_the_ceiling() {
        let mut fake = Fake::new();
        fake.set("cpu.cfs_quota_us", 50_000);
        fake.set("cpu.cfs_period_us", 100_000);
        fake.set("cpu.shares", 358);
        let cgroup = in_directory(fake.directory.path());
        let allotment = Allotment {
            memory: Some((CEILING - 30) * MI),
            quota: Some((20_000, 50_000)),
            shares: Some(102),
        };
        fake.sizing = Sizing::new(&*cgroup, &allotment);
        let overheads: Vec<u64> = fake.sizing.settings.iter().map(|s| s.overhead).collect();
        assert_eq!(overheads, [30 * MI, 10_000, 256]);
        fake.settle(Some(100));
        assert_eq!(fake.limit(), 130);
        fake.settle(Some(CEILING));
        assert_eq!(fake.limit(), CEILING);
        fake.settle(None);
        assert_eq!(fake.limit(), CEILING);
    }

    /// A size with two CPU requests, in thousandths of a CPU: `now` for the current phase, and
    /// `together` for all containers of the pod.
    fn asking(now: u64, together: Option<u64>) -> PodSize {
        let requests = |cpu| Requests {
            cpu: Millicores(cpu),
            memory: Bytes(0),
        };
        PodSize {
            size: Size {
                requests: requests(now),
                ..Size::UNLIMITED
            },
            asked: together.map(requests),
            counted: Vec::new(),
            held: Vec::new(),
        }
    }

    #[test]
    fn the_weight_of_pod_level_requests_is_kept() {
        let fake = Fake::new();
        fake.set("cpu.shares", 102);
        let cgroup = in_directory(fake.directory.path());
        let mut sizing = Sizing::new(&*cgroup, &Allotment::default());
        let mut weight = |now, together| {
            sizing.settle(&*cgroup, Some(&asking(now, together)), 0);
            cgroup.read(Knob::CpuWeight).unwrap()
        };
        // The pod requests 100m for all containers together, so the shim assumes 100m for each of
        // the two containers.
        assert_eq!(weight(200, Some(200)), 102);
        // kubelet doubles the pod's request, then lowers both containers' requests to zero.
        fake.set("cpu.shares", 204);
        assert_eq!(weight(100, Some(100)), 204);
        assert_eq!(weight(0, Some(0)), 204);
        // kubelet lowers the pod's request to the first value.
        fake.set("cpu.shares", 102);
        assert_eq!(weight(0, Some(0)), 102);
    }

    #[test]
    fn a_weight_is_lowered_once_all_requests_are_known() {
        let fake = Fake::new();
        // kubelet's shares for containers that request 300m and 200m, with an overhead of 100m.
        fake.set("cpu.shares", 614);
        let cgroup = in_directory(fake.directory.path());
        let allotment = Allotment {
            shares: Some(512),
            ..Allotment::default()
        };
        let mut sizing = Sizing::new(&*cgroup, &allotment);
        let mut weight = |wanted: Option<PodSize>| {
            sizing.settle(&*cgroup, wanted.as_ref(), 0);
            cgroup.read(Knob::CpuWeight).unwrap()
        };
        assert_eq!(weight(Some(asking(200, None))), 614);
        assert_eq!(weight(Some(asking(200, Some(500)))), 204 + 102);
        assert_eq!(weight(Some(asking(300, Some(500)))), 307 + 102);
        // A container's request was lowered, but kubelet has not written the pod's new value yet.
        // So the weight stays.
        assert_eq!(weight(Some(asking(300, Some(400)))), 307 + 102);
        fake.set("cpu.shares", 512);
        assert_eq!(weight(Some(asking(200, Some(400)))), 204 + 102);
        assert_eq!(weight(None), 512);
    }

    #[test]
    fn unowned_memory_and_held_processes_are_added_to_the_limit() {
        let size = of(Limit::Of(Bytes(100)), 2);
        assert_eq!(memory_limit(&size, 30), 100 + 30 + (16 << 20));
        assert_eq!(memory_limit(&of(Limit::Unlimited, 2), 30), UNLIMITED);
        assert_eq!(memory_limit(&of(Limit::Of(Bytes(0)), 1), 30), UNLIMITED);
    }
}
