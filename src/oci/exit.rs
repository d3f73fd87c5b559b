//! File in the bundle that records the exit of a container's init, as reported to containerd. If
//! the shim dies before the container is deleted, the `delete` command reads the file.
//!
//! containerd's runc shim uses the same file from 2.4 on; each shim can read the other's file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use usher_engine::RecordedExit;
use usher_linux::files::{Replacement, replace};

const EXIT: &str = "exit.json";

/// Maximum number of bytes that are read; the file has about 100.
const AT_MOST: u64 = 1024;

/// Mode of the file, as containerd writes it.
const MODE: u32 = 0o600;

/// Content of the file, with the field names of containerd's Go struct.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    timestamp: String,
    pid: NonZeroU32,
    status: u32,
}

/// Records the exit of the init of container or sandbox `id`. Records nothing if `pid` is 0. A
/// failure is only logged, so that it does not delay the exit.
pub(crate) fn record(bundle: &Path, id: &str, pid: i32, code: u32, at: SystemTime) {
    // Without a process there is no exit to record.
    let Some(pid) = u32::try_from(pid).ok().and_then(NonZeroU32::new) else {
        return;
    };
    if let Err(error) = save(bundle, RecordedExit { pid, code, at }) {
        tracing::warn!(id, %error, "cannot record the exit status: it is lost if this shim dies");
    }
}

/// Writes the file.
///
/// # Errors
///
/// If the file cannot be written. An earlier file may remain.
fn save(bundle: &Path, exit: RecordedExit) -> io::Result<()> {
    let since = exit.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(io::Error::other)?;
    let document = Document {
        timestamp: at.format(&Rfc3339).map_err(io::Error::other)?,
        pid: exit.pid,
        status: exit.code,
    };
    replace(
        &bundle.join(EXIT),
        &serde_json::to_vec(&document)?,
        Replacement::with_mode(MODE),
    )
}

/// Reads the exit that usher's or containerd's shim has recorded; `None` without a valid file.
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

/// Removes the record, because a new process is about to be made from the bundle.
pub(crate) fn forget(bundle: &Path) {
    // Usually the file does not exist, and the removal fails.
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

    /// An exit at 2026-11-22 20:38:09.074364123 UTC.
    fn exited() -> RecordedExit {
        RecordedExit {
            at: UNIX_EPOCH + Duration::new(1_795_379_889, 74_364_123),
            ..EXITED
        }
    }

    #[test]
    fn the_file_has_the_format_of_containerds_own_shim() {
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
    fn a_file_of_containerds_own_shim_is_read() {
        let bundle = tempfile::tempdir().unwrap();
        // In Go's format the time is local, and the fraction of a second has no trailing zeros.
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
    fn a_malformed_file_counts_as_none() {
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
    fn a_failed_write_leaves_no_file() {
        let bundle = tempfile::tempdir().unwrap();
        let missing = bundle.path().join("missing");
        assert!(save(&missing, exited()).is_err());
        fs::create_dir(bundle.path().join(EXIT)).unwrap();
        assert!(save(bundle.path(), exited()).is_err());
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 1);
        assert_eq!(recorded(bundle.path()), None);
    }
}
