//! Fuzz targets that parse files from the OCI runtime and containerd, and change a bundle's
//! configuration.

use std::path::PathBuf;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use serde_json::{Map, Value};

use usher_core::sizing::Size;
use usher_engine::Resources;
use usher_fuzz::cost::{RESERVED_FOR_A_MESSAGE, assert_bounded};

use super::bundle::Bundle;
use super::config::{with_oom_score, with_shared};
use super::exec::lower;
use super::log::last_error_of;
use super::options::{self, Options};
use super::{sandbox as sandboxes, state};

/// Bytes that may be allocated at the same time for each byte of input.
const EACH: usize = 96;
/// Bytes that may be allocated at the same time even for an empty input. [`EACH`] is added for each
/// byte of input.
const ANYWAY: usize = 128 * 1024;

/// Bound like [`EACH`], for the JSON of a process. The bound is higher, because two bytes of JSON
/// (`0,` in a list) become a value of 32 bytes, and the capacity of a list exceeds its length.
const JSON_EACH: usize = 256;
const JSON_ANYWAY: usize = 16 * 1024;

/// An OOM score that occurs nowhere else.
const SCORE: i32 = -997;

/// Parses the JSON in calls of the Task service.
pub fn calls(input: &[u8]) {
    resources(input);
    assert_bounded(input.len(), JSON_EACH, JSON_ANYWAY, || {
        if let Ok(mut process) = serde_json::from_slice::<Map<String, Value>>(input) {
            lower(&mut process, 500);
        }
    });
}

/// Parses kubelet's configuration of a sandbox.
pub fn sandbox(input: &[u8]) {
    sandboxes::fuzz::config(input);
}

/// Parses files that the OCI runtime, or a shim that has died, has written.
pub fn state(input: &[u8]) {
    files(input);
    runtime_state(input);
}

/// Parses runc's state file.
fn runtime_state(input: &[u8]) {
    assert_bounded(input.len(), EACH, 16 * 1024, || state::noted(input));
}

/// Parses a bundle's `config.json`, and changes it in each way in which the shim does.
pub fn bundle(input: &[u8]) {
    let read = || serde_json::from_slice::<Bundle>(input);
    if let Ok(bundle) = assert_bounded(input.len(), EACH, ANYWAY, read) {
        let _ = (bundle.has_poststart_hooks(), bundle.has_poststop_hooks());
        let _ = (bundle.has_own_pid_namespace(), bundle.has_systemd_cgroup());
        let _ = bundle.mount_source("/dev/termination-log");
        let _ = bundle.resources().change(Size::UNLIMITED);
    }
    let Ok(config) = std::str::from_utf8(input) else {
        return;
    };
    assert_shared(config);
    let change = || with_oom_score(config, SCORE);
    let Ok(changed) = assert_bounded(input.len(), EACH, ANYWAY, change) else {
        return;
    };
    assert_one_place(config, &changed);
    let is_there = serde_json::from_str::<Bundle>(&changed).map(|bundle| bundle.oom_score());
    // The changed text may still be an invalid bundle for other reasons than its OOM score.
    assert!(
        is_there.is_err() || matches!(is_there, Ok(Some(SCORE))),
        "{changed}"
    );
    let again = with_oom_score(&changed, SCORE).expect("what was changed can be changed");
    assert_eq!(again, changed);
    let serde_json::Value::Object(mut before) = document(config) else {
        return;
    };
    let serde_json::Value::Object(mut after) = document(&changed) else {
        panic!("{changed}");
    };
    for document in [&mut before, &mut after] {
        if let Some(process) = document.get_mut("process") {
            let process = process.as_object_mut().expect("what has a score");
            process.remove("oomScoreAdj");
        }
    }
    assert_eq!(before, after);
}

/// Asserts that a container's configuration gets a mount of the pod's `/etc/hosts`, and that only
/// its mounts change.
fn assert_shared(config: &str) {
    let files = [("/etc/hosts", PathBuf::from("/b/hosts"))];
    let share = |config: &str| with_shared(config, &files);
    let Ok(changed) = assert_bounded(config.len(), EACH, ANYWAY, || share(config)) else {
        return;
    };
    let (mut before, mut after) = (document(config), document(&changed));
    let is_there = |mount: &serde_json::Value| mount["destination"] == "/etc/hosts";
    let mounts = after["mounts"].as_array().expect("mounts");
    assert!(mounts.iter().any(is_there), "{changed}");
    for document in [&mut before, &mut after] {
        if let Some(document) = document.as_object_mut() {
            document.remove("mounts");
        }
    }
    assert_eq!(before, after);
}

fn document(json: &str) -> serde_json::Value {
    serde_json::from_str(json).unwrap_or_default()
}

/// Asserts that the two texts differ in one place only, the OOM score.
fn assert_one_place(before: &str, after: &str) {
    let (before, after) = (before.as_bytes(), after.as_bytes());
    let same = |(one, other): &(&u8, &u8)| one == other;
    let start = before.iter().zip(after).take_while(same).count();
    let (before, after) = (&before[start..], &after[start..]);
    let pairs = before.iter().rev().zip(after.iter().rev());
    let end = pairs.take_while(same).count();
    let new = String::from_utf8_lossy(&after[..after.len() - end]);
    // The next field may begin with the same letters as the new field of the score. For example,
    // `{"old":1}` becomes `{"oomScoreAdj":5,"old":1}`. Then the difference begins at the second
    // `o`, and the inserted text is `omScoreAdj":5,"o`. To cover such cases, look for the inserted
    // text in two copies of the field, one after the other.
    let field = format!(r#""oomScoreAdj":{SCORE},"#).repeat(2);
    assert!(field.contains(&*new), "{new}");
}

/// Parses the input as runtime options: as a message, and as the text in a message.
pub fn options(input: &[u8]) {
    let read = |any: &Any| {
        let read = || options::from_any(Some(any));
        let anyway = ANYWAY + RESERVED_FOR_A_MESSAGE;
        let sentence = match assert_bounded(any.value.len(), 1024, anyway, read) {
            Ok(options) => return assert_kept(&options),
            Err(error) => error.to_string(),
        };
        assert!(!sentence.contains('\n'), "{sentence}");
    };
    if let Ok(any) = Any::parse_from_bytes(input) {
        read(&any);
    }
    for (type_url, value) in [
        ("containerd.runc.v1.Options", input.to_vec()),
        ("runtimeoptions.v1.Options", input.to_vec()),
        ("runtimeoptions.v1.Options", body(input)),
    ] {
        read(&Any {
            type_url: type_url.to_owned(),
            value,
            ..Any::new()
        });
    }
}

/// A `runtimeoptions.v1.Options` with a TOML table as text.
fn body(text: &[u8]) -> Vec<u8> {
    let mut body = vec![(3 << 3) | 2];
    let mut length = text.len();
    while length > 0x7f {
        body.push(0x80 | (length & 0x7f) as u8);
        length >>= 7;
    }
    body.push(length as u8);
    [&body, text].concat()
}

/// Asserts that the copy of the options in the bundle is read as the same options.
fn assert_kept(options: &Options) {
    let copy = serde_json::to_vec(options).expect("options are JSON");
    let copy: Options = serde_json::from_slice(&copy).expect("and are read as that");
    assert_eq!(*options, copy);
}

/// Parses the runtime's log, and the bundle's copy of the options.
fn files(input: &[u8]) {
    assert_bounded(input.len(), EACH, ANYWAY, || last_error_of(input));
    // If a text has too many braces that begin no object, the parser gives up before the end of the
    // text.
    if input.iter().filter(|byte| **byte == b'{').count() < 100 {
        let said = [input, br#"{"level":"error","msg":"last"}"#].concat();
        assert_eq!(last_error_of(&said).as_deref(), Some("last"));
    }
    if let Ok(options) = serde_json::from_slice::<Options>(input) {
        assert_kept(&options);
    }
}

/// Parses the resources of an Update.
fn resources(input: &[u8]) {
    let read = || Resources::parse(input).change(Size::UNLIMITED);
    let size = assert_bounded(input.len(), EACH, ANYWAY, read);
    let again = Resources::parse(input).change(size);
    assert_eq!(size, again);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_fails() {
        usher_fuzz::run_seeds(&[
            ("bundle", bundle),
            ("calls", calls),
            ("options", options),
            ("sandbox", sandbox),
            ("state", state),
        ]);
    }
}
