//! What the OCI runtime says about a failure: its log in JSON, one object a line.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

/// How much of the log is read; a runtime that says more is cut.
const AT_MOST: u64 = 64 * 1024;

#[derive(Deserialize)]
struct Line {
    level: String,
    msg: String,
}

/// The last error in the log; none if there is none, or no log.
pub(super) fn last_error(log: &Path) -> Option<String> {
    let file = File::open(log).ok()?;
    let mut text = Vec::new();
    file.take(AT_MOST).read_to_end(&mut text).ok()?;
    last_error_of(&text)
}

pub(super) fn last_error_of(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let mut lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines
        .rfind(|line| line.level == "error")
        .map(|line| line.msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_why_the_command_failed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("create.log");
        assert_eq!(last_error(&log), None);
        let lines = [
            r#"{"level":"error","msg":"earlier"}"#,
            "not JSON at all",
            r#"{"level":"error","msg":"no such file","time":"2020-01-01T00:00:00Z"}"#,
            r#"{"level":"info","msg":"bye"}"#,
        ];
        std::fs::write(&log, lines.join("\n")).unwrap();
        assert_eq!(last_error(&log).as_deref(), Some("no such file"));
    }
}
