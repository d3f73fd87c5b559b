//! Changes to a bundle's `config.json`: only the bytes that are meant are changed, so that nothing is
//! lost that the shim does not know, and no model of the document is ever in memory.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::bundle::{BundleError, CONFIG};

#[derive(Deserialize)]
struct Config<'a> {
    #[serde(borrow)]
    process: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Process<'a> {
    #[serde(borrow, default, rename = "oomScoreAdj", deserialize_with = "given")]
    oom_score_adj: Option<&'a RawValue>,
}

/// A value that is there, null or not.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// Has the container in `bundle` created with this `oom_score_adj` from now on (`proc(5)`).
///
/// # Errors
///
/// If the configuration cannot be read or written, or has no process. It is whole in any case.
pub fn set_oom_score(bundle: &Path, score: i32) -> Result<(), BundleError> {
    let path = bundle.join(CONFIG);
    let written = fs::read_to_string(&path).and_then(|config| {
        let changed = with_oom_score(&config, score)?;
        replace(&path, changed.as_bytes(), fs::metadata(&path)?.mode())
    });
    written.map_err(|source| BundleError::Unwritten { path, source })
}

pub(super) fn with_oom_score(config: &str, score: i32) -> io::Result<String> {
    let Config { process } = serde_json::from_str(config)?;
    // An array would be taken for a struct without its fields.
    let process = process.map(RawValue::get);
    let process = process.filter(|process| process.starts_with('{'));
    let process = process.ok_or_else(|| io::Error::other("there is no process in it"))?;
    let Process { oom_score_adj } = serde_json::from_str(process)?;
    let changed = match oom_score_adj {
        Some(old) => splice(config, place(config, old.get()), &score.to_string()),
        None => place(config, process).and_then(|Range { start, .. }| {
            // Behind the brace.
            let start = start.checked_add(1)?;
            let is_empty = process.trim_start_matches('{').trim() == "}";
            let comma = if is_empty { "" } else { "," };
            let field = format!(r#""oomScoreAdj":{score}{comma}"#);
            splice(config, Some(start..start), &field)
        }),
    };
    changed.ok_or_else(|| io::Error::other("a part of it is not where it was"))
}

/// The OCI specification's process, as JSON, that executes `argv` as the container's own program is
/// executed, but without a terminal: with its user, capabilities, limits, profiles, environment and
/// directory.
///
/// # Errors
///
/// If the configuration cannot be read, or has no process.
pub(super) fn process(bundle: &Path, argv: &[String]) -> Result<Vec<u8>, BundleError> {
    let path = bundle.join(CONFIG);
    let process = fs::read_to_string(&path).and_then(|config| {
        let Config { process } = serde_json::from_str(&config)?;
        let process = process.ok_or_else(|| io::Error::other("there is no process in it"))?;
        let mut process: Map<String, Value> = serde_json::from_str(process.get())?;
        process.insert("args".to_owned(), json!(argv));
        without_terminal(&mut process);
        Ok(serde_json::to_vec(&process)?)
    });
    process.map_err(|source| BundleError::Unreadable { path, source })
}

/// The process that a caller has had executed, for nobody to look at.
///
/// # Errors
///
/// If it is not a JSON object.
pub(super) fn unattended(process: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut process: Map<String, Value> = serde_json::from_slice(process)?;
    without_terminal(&mut process);
    serde_json::to_vec(&process)
}

fn without_terminal(process: &mut Map<String, Value>) {
    process.insert("terminal".to_owned(), json!(false));
    process.remove("consoleSize");
}

/// Where a part of a text is in it.
fn place(whole: &str, part: &str) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    Some(start..start.checked_add(part.len())?)
}

fn splice(text: &str, range: Option<Range<usize>>, with: &str) -> Option<String> {
    let Range { start, end } = range?;
    Some([text.get(..start)?, with, text.get(end..)?].concat())
}

/// Writes a file of which nobody ever sees half.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let unfinished = path.with_extension("json.usher");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let written = options
        .open(&unfinished)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_score_is_changed_and_every_other_byte_stays() {
        let config = r#"{"x": 1.0e2, "process" : {"new":{"oomScoreAdj":3}, "oomScoreAdj" : 985 ,"args":["\u00e9"]}}"#;
        let changed = with_oom_score(config, -997).unwrap();
        assert_eq!(changed, config.replace("985", "-997"));
    }

    #[test]
    fn a_score_is_added_where_there_is_none() {
        for (process, expected) in [
            (
                r#"{"args":["a"]}"#,
                json!({"args": ["a"], "oomScoreAdj": 5}),
            ),
            (r#"{ }"#, json!({"oomScoreAdj": 5})),
            (r#"{"oomScoreAdj":null}"#, json!({"oomScoreAdj": 5})),
        ] {
            let config = format!(r#"{{"ociVersion":"1.0.2","process":{process},"hooks":null}}"#);
            let changed = with_oom_score(&config, 5).unwrap();
            let changed: Value = serde_json::from_str(&changed).unwrap();
            assert_eq!(
                changed,
                json!({"ociVersion": "1.0.2", "process": expected, "hooks": null})
            );
        }
    }

    #[test]
    fn a_command_is_executed_as_the_program_is_but_without_its_terminal() {
        let dir = tempfile::tempdir().unwrap();
        let config = r#"{"process":{"user":{"uid":7},"args":["a"],"terminal":true,"new":[1],
            "consoleSize":{"height":1,"width":2},"noNewPrivileges":true}}"#;
        std::fs::write(dir.path().join(CONFIG), config).unwrap();
        let process = process(dir.path(), &["true".to_owned(), "-x".to_owned()]).unwrap();
        let process: Value = serde_json::from_slice(&process).unwrap();
        let expected = json!({"user": {"uid": 7}, "args": ["true", "-x"], "terminal": false,
            "new": [1], "noNewPrivileges": true});
        assert_eq!(process, expected);
    }

    #[test]
    fn what_is_no_configuration_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        for config in [
            "{",
            "{}",
            r#"{"process":null}"#,
            r#"{"process":[]}"#,
            "\u{e9}",
        ] {
            std::fs::write(dir.path().join(CONFIG), config).unwrap();
            let error = set_oom_score(dir.path(), 1).unwrap_err().to_string();
            assert!(error.contains("config.json"), "{error}");
            let error = process(dir.path(), &[]).unwrap_err().to_string();
            assert!(error.contains("config.json"), "{error}");
            let left = std::fs::read_to_string(dir.path().join(CONFIG)).unwrap();
            assert_eq!(left, config);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_file_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONFIG);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).mode(0o600).open(&path);
        file.unwrap().write_all(br#"{"process":{}}"#).unwrap();
        set_oom_score(dir.path(), 7).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read = super::super::Bundle::read(dir.path()).unwrap();
        assert_eq!(read.oom_score(), Some(7));
    }
}
