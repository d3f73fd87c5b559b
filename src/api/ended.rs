//! Records of pods that have ended, in files that are kept for an hour.
//!
//! A pod's shim exits with the pod, so it cannot remove the pod's record an hour later. `usher`
//! removes old records, and so does the next shim that keeps a record.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protobuf::Message;

use super::{directory, make_directory};
use crate as api;
use usher_core::lifecycle::Report;
use usher_linux::files::{Replacement, replace};

/// Subdirectory of the sockets' directory.
const ENDED: &str = "ended";

/// Age up to which a record is kept.
const KEPT_FOR: Duration = Duration::from_secs(3600);

/// Maximum number of records kept on a node.
const MAX_RECORDS: usize = 256;

/// Maximum size of a file that is read. A record has a few kilobytes, at most a few dozen.
const MAX_BYTES: u64 = 1024 * 1024;

/// Records of the pods of this node that have ended.
#[derive(Debug)]
pub struct Ended {
    directory: PathBuf,
}

/// Storage for the record of a pod that has ended.
pub trait Archive: fmt::Debug + Send + Sync {
    /// Stores the record in the background, because a caller may be waiting for an answer. A
    /// failure is only logged.
    fn keep(&self, pod: api::Pod);

    /// Receives a decision about the pod, which the shim also logs. Does nothing by default.
    fn decided(&self, _: &Report) {}
}

/// Storage for the records of this node, in files.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeArchive;

impl Archive for NodeArchive {
    fn keep(&self, pod: api::Pod) {
        tokio::spawn(async move {
            if let Err(error) = Ended::in_directory(&directory()).keep(&pod, SystemTime::now()) {
                tracing::warn!(%error, "cannot record the ended pod for usher");
            }
        });
    }
}

impl Ended {
    /// The records below `sockets`, the directory of the control sockets.
    pub fn in_directory(sockets: &Path) -> Ended {
        Ended {
            directory: sockets.join(ENDED),
        }
    }

    fn keep(&self, pod: &api::Pod, now: SystemTime) -> io::Result<()> {
        make_directory(&self.directory)?;
        self.clean(now);
        let message = pod.write_to_bytes().map_err(io::Error::other)?;
        // The name begins with the time, so that names sort by age and tell which records are too
        // old.
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{:013}-{}", since.as_millis(), std::process::id());
        let file = self.directory.join(name);
        replace(&file, &message, Replacement::with_mode(0o600))
    }

    /// Removes the records that are older than an hour. If there are still more records than the
    /// limit permits, removes the oldest ones.
    pub fn clean(&self, now: SystemTime) {
        let files = self.files();
        let surplus = files.len().saturating_sub(MAX_RECORDS.saturating_sub(1));
        for (index, (at, path)) in files.into_iter().enumerate() {
            let is_old = now.duration_since(at).is_ok_and(|age| age > KEPT_FOR);
            if is_old || index < surplus {
                // The removal fails if another process has already removed the file.
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Returns the records, oldest first.
    pub fn pods(&self, now: SystemTime) -> Vec<api::Pod> {
        let files = self.files().into_iter();
        let recent =
            files.filter(|(at, _)| now.duration_since(*at).unwrap_or_default() <= KEPT_FOR);
        let pods = recent.filter_map(|(_, path)| {
            let size = std::fs::metadata(&path).ok()?.len();
            let bytes = (size <= MAX_BYTES).then(|| std::fs::read(&path).ok())??;
            api::Pod::parse_from_bytes(&bytes).ok()
        });
        pods.collect()
    }

    /// The files of the records, each with the time in its name. The oldest file comes first.
    fn files(&self) -> Vec<(SystemTime, PathBuf)> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten();
        let mut files: Vec<_> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let name = name.to_str()?;
                let millis = name
                    .trim_start_matches('.')
                    .split('-')
                    .next()?
                    .parse()
                    .ok()?;
                let at = UNIX_EPOCH.checked_add(Duration::from_millis(millis))?;
                Some((at, entry.path()))
            })
            .collect();
        files.sort();
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> api::Pod {
        api::Pod {
            name: name.to_owned(),
            ..api::Pod::new()
        }
    }

    fn names(ended: &Ended, now: SystemTime) -> Vec<String> {
        ended.pods(now).into_iter().map(|pod| pod.name).collect()
    }

    #[test]
    fn a_record_is_shown_for_an_hour_and_then_removed() {
        let directory = tempfile::tempdir().unwrap();
        let ended = Ended::in_directory(directory.path());
        let begin = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert!(ended.pods(begin).is_empty());
        ended.keep(&pod("first"), begin).unwrap();
        ended
            .keep(&pod("second"), begin + Duration::from_secs(1800))
            .unwrap();
        assert_eq!(names(&ended, begin + KEPT_FOR), ["first", "second"]);
        let later = begin + KEPT_FOR + Duration::from_secs(1);
        assert_eq!(names(&ended, later), ["second"]);
        ended.keep(&pod("third"), later).unwrap();
        assert_eq!(ended.files().len(), 2);
    }

    #[test]
    fn only_the_latest_records_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let ended = Ended::in_directory(directory.path());
        let begin = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for number in 0..300 {
            let at = begin + Duration::from_millis(number);
            ended.keep(&pod(&number.to_string()), at).unwrap();
        }
        let names = names(&ended, begin);
        assert_eq!(names.len(), MAX_RECORDS);
        assert_eq!(names.last().unwrap(), "299");
    }

    #[test]
    fn files_that_are_no_records_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let ended = Ended::in_directory(directory.path());
        let now = SystemTime::now();
        ended.keep(&pod("ours"), now).unwrap();
        let below = directory.path().join(ENDED);
        std::fs::write(below.join("notes"), "nothing").unwrap();
        let millis = now.duration_since(UNIX_EPOCH).unwrap().as_millis();
        std::fs::write(below.join(format!("{millis:013}-1")), [0xff; 100]).unwrap();
        assert_eq!(names(&ended, now), ["ours"]);
    }
}
