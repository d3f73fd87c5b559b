//! How the init of a container has ended, as containerd was told: a file in the bundle, which `delete`
//! finds when the shim has died before the container was deleted.
//!
//! containerd's runc shim has the same file from 2.4 on, and reads what is written here.

use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::config::replace;

const EXIT: &str = "exit.json";

/// How much of the file is read; it has a tenth of that.
const AT_MOST: u64 = 1024;

/// Like containerd's own: its owner's alone.
const MODE: u32 = 0o600;

/// How an init has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedExit {
    pub pid: NonZeroU32,
    pub code: u32,
    pub at: SystemTime,
}

/// The file, with the names that Go gives to the fields of a struct.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    timestamp: String,
    pid: NonZeroU32,
    status: u32,
}

/// Writes down how the init of the container, or sandbox, `id` has ended; zero is no process. What cannot be
/// written down is no reason to keep the exit.
pub(in crate::engine) fn record(bundle: &Path, id: &str, pid: i32, code: u32, at: SystemTime) {
    // What has had no process leaves nothing to be read.
    let Some(pid) = u32::try_from(pid).ok().and_then(NonZeroU32::new) else {
        return;
    };
    if let Err(error) = save(bundle, RecordedExit { pid, code, at }) {
        tracing::warn!(id, %error, "its exit is lost if this shim dies");
    }
}

/// Writes it down.
///
/// # Errors
///
/// If the file cannot be written. There is none then, or that of before.
fn save(bundle: &Path, exit: RecordedExit) -> io::Result<()> {
    let since = exit.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(io::Error::other)?;
    let document = Document {
        timestamp: at.format(&Rfc3339).map_err(io::Error::other)?,
        pid: exit.pid,
        status: exit.code,
    };
    replace(&bundle.join(EXIT), &serde_json::to_vec(&document)?, MODE)
}

/// What was written down, by whichever shim; none if there is no such file, or something else in it.
pub fn recorded(bundle: &Path) -> Option<RecordedExit> {
    let mut json = Vec::new();
    let file = File::open(bundle.join(EXIT)).ok()?;
    file.take(AT_MOST).read_to_end(&mut json).ok()?;
    let document: Document = serde_json::from_slice(&json).ok()?;
    let at = OffsetDateTime::parse(&document.timestamp, &Rfc3339).ok()?;
    Some(RecordedExit {
        pid: document.pid,
        code: document.status,
        at: (at >= OffsetDateTime::UNIX_EPOCH).then(|| at.into())?,
    })
}

/// What is made of the bundle now has not ended.
pub(in crate::engine) fn forget(bundle: &Path) {
    // As a rule there is none.
    let _ = fs::remove_file(bundle.join(EXIT));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::*;

    const EXITED: RecordedExit = RecordedExit {
        pid: NonZeroU32::new(4242).unwrap(),
        code: 3,
        at: UNIX_EPOCH,
    };

    /// 2026-11-22 20:38:09.074364123 UTC.
    fn exited() -> RecordedExit {
        RecordedExit {
            at: UNIX_EPOCH + Duration::new(1_795_379_889, 74_364_123),
            ..EXITED
        }
    }

    #[test]
    fn what_is_written_down_is_what_containerds_own_shim_reads() {
        let bundle = tempfile::tempdir().unwrap();
        let file = bundle.path().join(EXIT);
        assert_eq!(recorded(bundle.path()), None);
        save(bundle.path(), EXITED).unwrap();
        save(bundle.path(), exited()).unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            r#"{"Timestamp":"2026-11-22T20:38:09.074364123Z","Pid":4242,"Status":3}"#
        );
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 1);
        assert_eq!(recorded(bundle.path()), Some(exited()));
        forget(bundle.path());
        assert_eq!(recorded(bundle.path()), None);
    }

    #[test]
    fn what_containerds_own_shim_has_written_is_read() {
        let bundle = tempfile::tempdir().unwrap();
        // Go writes the time of the place, and leaves out zeros at the end.
        let theirs = r#"{"Timestamp":"2026-11-22T22:08:09.5+01:30","Pid":4242,"Status":0}"#;
        fs::write(bundle.path().join(EXIT), theirs).unwrap();
        let expected = RecordedExit {
            code: 0,
            at: UNIX_EPOCH + Duration::from_millis(1_795_379_889_500),
            ..EXITED
        };
        assert_eq!(recorded(bundle.path()), Some(expected));
    }

    #[test]
    fn what_is_no_exit_counts_as_none() {
        let bundle = tempfile::tempdir().unwrap();
        let file = bundle.path().join(EXIT);
        let good = r#"{"Timestamp":"2026-11-22T20:38:09Z","Pid":1,"Status":0}"#;
        fs::write(&file, good).unwrap();
        assert!(recorded(bundle.path()).is_some());
        for bad in [
            String::new(),
            "{oops:...}".to_owned(),
            good[..good.len() - 1].to_owned(),
            good.replace("1,", "0,"),
            good.replace("1,", "-1,"),
            good.replace(":0}", ":-1}"),
            good.replace(":0}", ":4294967296}"),
            good.replace(":0}", ":null}"),
            good.replace("2026-11-22T20:38:09Z", "0001-01-01T00:00:00Z"),
            good.replace("2026-11-22T20:38:09Z", "now"),
            good.replace("2026-11-22T20:38:09Z", &"9".repeat(2000)),
            format!("{}{good}", " ".repeat(2000)),
        ] {
            assert_ne!(bad, good);
            fs::write(&file, &bad).unwrap();
            assert_eq!(recorded(bundle.path()), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let bundle = tempfile::tempdir().unwrap();
        let missing = bundle.path().join("missing");
        assert!(save(&missing, exited()).is_err());
        fs::create_dir(bundle.path().join(EXIT)).unwrap();
        assert!(save(bundle.path(), exited()).is_err());
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 1);
        assert_eq!(recorded(bundle.path()), None);
    }
}
