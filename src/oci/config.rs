//! Changes to a bundle's `config.json`. Only the bytes in question change. So fields that the shim
//! does not know survive, and no model of the document is ever in memory.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::sandbox::SHARED_MEMORY;
use usher_linux::files::{Replacement, replace};

use super::bundle::{BundleError, CONFIG};

#[derive(Deserialize)]
struct Config<'a> {
    #[serde(borrow)]
    process: Option<&'a RawValue>,
}

/// The fields that determine the container's mounts, and who owns the mounted files.
#[derive(Deserialize)]
struct Places<'a> {
    #[serde(borrow, default, deserialize_with = "given")]
    mounts: Option<&'a RawValue>,
    root: Option<Root>,
    linux: Option<Linux>,
}

#[derive(Deserialize)]
struct Root {
    #[serde(default)]
    readonly: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    uid_mappings: Option<Value>,
    gid_mappings: Option<Value>,
}

#[derive(Deserialize)]
struct Process<'a> {
    #[serde(borrow, default, rename = "oomScoreAdj", deserialize_with = "given")]
    oom_score_adj: Option<&'a RawValue>,
}

/// Reads the JSON text of a field, even if it is null. So `None` means that the field is missing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// Sets the `oom_score_adj` (`proc(5)`) with which the container in `bundle` will be created.
///
/// # Errors
///
/// If the configuration cannot be read or written, or has no process; the file then stays as it
/// was.
pub fn set_oom_score(bundle: &Path, score: i32) -> Result<(), BundleError> {
    let path = bundle.join(CONFIG);
    let written = fs::read_to_string(&path).and_then(|config| {
        let changed = with_oom_score(&config, score)?;
        replace_config(&path, changed.as_bytes())
    });
    written.map_err(|source| BundleError::Unwritten { path, source })
}

pub(super) fn with_oom_score(config: &str, score: i32) -> io::Result<String> {
    let Config { process } = serde_json::from_str(config)?;
    // A JSON array is refused here, because serde would accept it as a struct without fields.
    let process = process.map(RawValue::get);
    let process = process.filter(|process| process.starts_with('{'));
    let process = process.ok_or_else(|| io::Error::other("it has no process"))?;
    let Process { oom_score_adj } = serde_json::from_str(process)?;
    let changed = match oom_score_adj {
        Some(old) => splice(config, place(config, old.get()), &score.to_string()),
        None => place(config, process).and_then(|Range { start, .. }| {
            // The new field is inserted after the opening brace.
            let start = start.checked_add(1)?;
            let is_empty = process.trim_start_matches('{').trim() == "}";
            let comma = if is_empty { "" } else { "," };
            let field = format!(r#""oomScoreAdj":{score}{comma}"#);
            splice(config, Some(start..start), &field)
        }),
    };
    changed.ok_or_else(|| io::Error::other("internal error: cannot locate a field in the text"))
}

/// Adds mounts of the pod's shared `files` to the configuration of the container in `bundle`. Each
/// file has a path in the container and a path on the node. If the container's owner has mounted
/// something else at the path in the container, that mount stays.
///
/// # Errors
///
/// If the configuration cannot be read or written; the file then stays as it was.
pub fn share(bundle: &Path, files: &[(&str, PathBuf)]) -> Result<(), BundleError> {
    let path = bundle.join(CONFIG);
    let written = fs::read_to_string(&path).and_then(|config| {
        let changed = with_shared(&config, files)?;
        replace_config(&path, changed.as_bytes())
    });
    written.map_err(|source| BundleError::Unwritten { path, source })
}

pub(super) fn with_shared(config: &str, files: &[(&str, PathBuf)]) -> io::Result<String> {
    let Places {
        mounts: written,
        root,
        linux,
    } = serde_json::from_str(config)?;
    let mut mounts: Vec<Value> = match written {
        Some(written) => serde_json::from_str::<Option<_>>(written.get())?.unwrap_or_default(),
        None => Vec::new(),
    };
    let is_readonly = root.is_some_and(|root| root.readonly);
    let (uids, gids) = linux.map_or((None, None), |linux| {
        (linux.uid_mappings, linux.gid_mappings)
    });
    for (place, path) in files {
        let is_there =
            |mount: &Value| mount.get("destination").and_then(Value::as_str) == Some(*place);
        let is_memory = *place == SHARED_MEMORY;
        // If there are several mounts at a path, the last one hides the others.
        let own = mounts.iter().rposition(is_there);
        if own
            .and_then(|own| mounts.get(own))
            .is_some_and(|own| !is_default_mount(own, is_memory))
        {
            continue;
        }
        mounts.retain(|mount| !is_there(mount));
        let access = if is_readonly && !is_memory {
            "ro"
        } else {
            "rw"
        };
        let mut mount = json!({"destination": place, "type": "bind", "source": path,
            "options": ["rbind", "rprivate", access]});
        // With these mappings the files belong to the container's root. Shared memory needs no
        // mappings, because all users may write to it.
        if let (false, Some(uids), Some(gids), Some(mount)) =
            (is_memory, &uids, &gids, mount.as_object_mut())
        {
            mount.insert("uidMappings".to_owned(), uids.clone());
            mount.insert("gidMappings".to_owned(), gids.clone());
        }
        mounts.push(mount);
    }
    let mounts = serde_json::to_string(&mounts)?;
    let changed = match written {
        Some(written) => splice(config, place(config, written.get()), &mounts),
        None => config.find('{').and_then(|brace| {
            let start = brace.checked_add(1)?;
            let is_empty = config.get(start..)?.trim_start().starts_with('}');
            let comma = if is_empty { "" } else { "," };
            splice(
                config,
                Some(start..start),
                &format!(r#""mounts":{mounts}{comma}"#),
            )
        }),
    };
    changed.ok_or_else(|| io::Error::other("internal error: cannot locate a field in the text"))
}

/// True if containerd has added this mount, and not the container's owner. containerd adds bind
/// mounts of files that exist only with a pause container, and a private tmpfs for shared memory.
fn is_default_mount(mount: &Value, is_memory: bool) -> bool {
    let word = |key| mount.get(key).and_then(Value::as_str).unwrap_or_default();
    match word("type") {
        "tmpfs" => is_memory,
        "bind" | "" => !Path::new(word("source")).exists(),
        _ => false,
    }
}

/// Returns the OCI process that executes `argv`, as JSON. The process has the user, capabilities,
/// limits, profiles, environment and directory of the container's own program, but no terminal.
///
/// # Errors
///
/// If the configuration cannot be read, or has no process.
pub(super) fn process(bundle: &Path, argv: &[String]) -> Result<Vec<u8>, BundleError> {
    let path = bundle.join(CONFIG);
    let process = fs::read_to_string(&path).and_then(|config| {
        let Config { process } = serde_json::from_str(&config)?;
        let process = process.ok_or_else(|| io::Error::other("it has no process"))?;
        let mut process: Map<String, Value> = serde_json::from_str(process.get())?;
        process.insert("args".to_owned(), json!(argv));
        without_terminal(&mut process);
        Ok(serde_json::to_vec(&process)?)
    });
    process.map_err(|source| BundleError::Unreadable { path, source })
}

/// Returns the OCI process of an earlier exec without its terminal, so that the shim can repeat the
/// exec.
///
/// # Errors
///
/// If the process is not a JSON object.
pub(super) fn unattended(process: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut process: Map<String, Value> = serde_json::from_slice(process)?;
    without_terminal(&mut process);
    serde_json::to_vec(&process)
}

fn without_terminal(process: &mut Map<String, Value>) {
    process.insert("terminal".to_owned(), json!(false));
    process.remove("consoleSize");
}

/// The byte range of `part`, a slice of `whole`.
fn place(whole: &str, part: &str) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    Some(start..start.checked_add(part.len())?)
}

fn splice(text: &str, range: Option<Range<usize>>, with: &str) -> Option<String> {
    let Range { start, end } = range?;
    Some([text.get(..start)?, with, text.get(end..)?].concat())
}

/// Replaces a file and keeps its mode.
fn replace_config(path: &Path, content: &[u8]) -> io::Result<()> {
    let mode = fs::metadata(path)?.mode();
    replace(path, content, Replacement::with_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn setting_an_oom_score_keeps_every_other_byte() {
        let config = r#"{"x": 1.0e2, "process" : {"new":{"oomScoreAdj":3}, "oomScoreAdj" : 985 ,"args":["\u00e9"]}}"#;
        let changed = with_oom_score(config, -997).unwrap();
        assert_eq!(changed, config.replace("985", "-997"));
    }

    #[test]
    fn a_missing_oom_score_is_added() {
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

    fn shared(config: &str, files: &[(&str, &str)]) -> Value {
        let files = files
            .iter()
            .map(|(place, path)| (*place, PathBuf::from(path)));
        let files: Vec<_> = files.collect();
        serde_json::from_str(&with_shared(config, &files).unwrap()).unwrap()
    }

    const FILES: [(&str, &str); 2] = [("/etc/hosts", "/b/hosts"), (SHARED_MEMORY, "/b/shm")];

    fn bind(place: &str, path: &str, access: &str) -> Value {
        json!({"destination": place, "type": "bind", "source": path,
            "options": ["rbind", "rprivate", access]})
    }

    #[test]
    fn a_container_gets_the_files_of_its_pod() {
        let expected = json!([
            bind("/etc/hosts", "/b/hosts", "rw"),
            bind(SHARED_MEMORY, "/b/shm", "rw")
        ]);
        for config in [
            "{}",
            r#"{"mounts":null}"#,
            r#"{"mounts":[]}"#,
            r#"{"x":{"mounts":[1]}}"#,
        ] {
            assert_eq!(shared(config, &FILES)["mounts"], expected, "{config}");
        }
        let memory = r#"{"mounts":[{"destination":"/dev/shm","type":"tmpfs","source":"shm"},
            {"destination":"/etc/hosts","type":"bind","source":"/no/such/file"}],"x":1.0e2}"#;
        let changed = shared(memory, &FILES);
        assert_eq!(changed["mounts"], expected);
        assert_eq!(changed["x"], json!(1.0e2));
    }

    #[test]
    fn mounts_of_the_containers_owner_stay() {
        let own = r#"{"mounts":[{"destination":"/etc/hosts","type":"bind","source":"/proc/version"},
            {"destination":"/dev/shm","type":"bind","source":"/dev"},{"destination":"/y"}]}"#;
        let expected: Value = serde_json::from_str(own).unwrap();
        assert_eq!(shared(own, &FILES), expected);
    }

    #[test]
    fn the_pods_files_are_read_only_if_the_root_is_and_owned_by_the_containers_root() {
        let config = r#"{"root":{"readonly":true},"linux":{"uidMappings":[{"hostID":7}],"gidMappings":[{"hostID":8}]}}"#;
        let mounts = &shared(config, &FILES)["mounts"];
        let mut hosts = bind("/etc/hosts", "/b/hosts", "ro");
        hosts["uidMappings"] = json!([{"hostID": 7}]);
        hosts["gidMappings"] = json!([{"hostID": 8}]);
        assert_eq!(*mounts, json!([hosts, bind(SHARED_MEMORY, "/b/shm", "rw")]));
    }

    #[test]
    fn a_command_has_the_settings_of_the_program_without_its_terminal() {
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
    fn a_malformed_configuration_is_not_changed() {
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
        fs::write(&path, br#"{"process":{}}"#).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        set_oom_score(dir.path(), 7).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read = super::super::Bundle::read(dir.path()).unwrap();
        assert_eq!(read.oom_score(), Some(7));
    }
}
