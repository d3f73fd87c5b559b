//! Reads the reason of a failure from the OCI runtime's log, a sequence of JSON objects.
//!
//! runc, and crun up to 1.21, write each object on one line. crun 1.28 writes an object on several
//! lines. youki uses other field names. Anything else in the log, such as text or an unfinished
//! object, is skipped.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde_json::Deserializer;

/// Maximum number of bytes that are read from the end of the log, where the reason is.
const AT_MOST: u64 = 64 * 1024;

/// Maximum number of braces at which parsing starts. If no log entry begins at a brace, the parser
/// reads the same text again from the next brace. The limit keeps this work small.
const FALSE_BEGINNINGS: usize = 256;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    level: String,
    #[serde(alias = "message")]
    msg: String,
}

/// Returns the last error in the log; `None` without one, or without a log.
pub(super) fn last_error(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    let begin = SeekFrom::Start(length.saturating_sub(AT_MOST));
    file.seek(begin).ok()?;
    let mut text = Vec::new();
    file.take(AT_MOST).read_to_end(&mut text).ok()?;
    last_error_of(&text)
}

pub(super) fn last_error_of(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let mut rest = &*text;
    let mut last = None;
    for _ in 0..FALSE_BEGINNINGS {
        let Some(object) = rest.find('{').and_then(|begin| rest.get(begin..)) else {
            break;
        };
        let mut entries = Deserializer::from_str(object).into_iter::<Entry>();
        let errors = entries.by_ref().map_while(Result::ok);
        let errors = errors.filter(|entry| entry.level.eq_ignore_ascii_case("error"));
        last = errors.last().map(|entry| entry.msg).or(last);
        // Go on where this parser has stopped. If the parser has stopped at the opening brace of
        // `object`, skip the brace.
        rest = object
            .get(entries.byte_offset().max(1)..)
            .unwrap_or_default();
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs of runc 1.1, crun 1.8, crun 1.28 and youki 0.7 for an unknown container.
    const RUNC: &str = r#"{"level":"error","msg":"container does not exist","time":"2026-11-22T20:38:09Z"}
"#;
    const CRUN: &str = r#"{"msg":"error opening file `/run/crun/a/status`: No such file or directory","level":"error","time":"2026-11-22T20:38:09.074364Z"}
"#;
    const CRUN_1_28: &str = r#"{
  "msg": "error opening file `/run/crun/a/status`: No such file or directory",
  "level": "error",
  "time": "2026-11-22T20:38:09.074364Z"
}
"#;
    const YOUKI: &str = r#"{"timestamp":"2026-11-22T20:38:09.074364Z","level":"ERROR","message":"error in executing command: container a does not exist.","target":"youki"}
"#;
    const OPENING: &str = "error opening file `/run/crun/a/status`: No such file or directory";

    fn error_of(log: &str) -> Option<String> {
        last_error_of(log.as_bytes())
    }

    #[test]
    fn the_last_error_in_the_log_is_the_reason() {
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

    #[test]
    fn an_object_may_take_one_line_or_several() {
        for (log, expected) in [
            (RUNC, "container does not exist"),
            (CRUN, OPENING),
            (CRUN_1_28, OPENING),
            (
                YOUKI,
                "error in executing command: container a does not exist.",
            ),
        ] {
            assert_eq!(error_of(log).as_deref(), Some(expected), "{log}");
            let others = log
                .replace(r#""error""#, r#""warning""#)
                .replace(r#""ERROR""#, r#""WARN""#);
            assert_eq!(error_of(&others), None, "{others}");
            let both = format!("{RUNC}{log}{others}");
            assert_eq!(error_of(&both).as_deref(), Some(expected), "{both}");
        }
    }

    #[test]
    fn text_and_unfinished_objects_are_skipped() {
        for log in [RUNC, CRUN, CRUN_1_28, YOUKI] {
            let expected = error_of(log);
            assert!(expected.is_some());
            for length in 0..log.trim_end().len() {
                let half = &log[..length];
                assert_eq!(error_of(half), None, "{half}");
                for between in ["", "\n", " a {brace} and \"quotes\n", "} ] null 7"] {
                    let text = format!("{half}{between}{log}");
                    assert_eq!(error_of(&text), expected, "{text}");
                    let text = format!("{log}{between}{half}");
                    assert_eq!(error_of(&text), expected, "{text}");
                }
            }
        }
        let others = r#"{"level":3,"msg":"a"}{"msg":"b"}{"level":"error"}{}[{"level":"error","msg":"c","d":[{}]}]"#;
        assert_eq!(error_of(others).as_deref(), Some("c"));
        let bytes = [
            b"{\"level\":\"error\",\"msg\":\"no \xff\"}\xff",
            RUNC.as_bytes(),
        ]
        .concat();
        assert_eq!(last_error_of(&bytes), error_of(RUNC));
    }

    #[test]
    fn only_the_end_of_a_long_log_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("create.log");
        let debug = r#"{"level":"debug","msg":"on and on"}"#;
        let text = debug.repeat(AT_MOST as usize / debug.len() + 100);
        std::fs::write(&log, format!("{RUNC}{text}")).unwrap();
        assert_eq!(last_error(&log), None);
        std::fs::write(&log, format!("{text}{CRUN_1_28}")).unwrap();
        assert_eq!(last_error(&log).as_deref(), Some(OPENING));
    }
}
