//! What is JSON, or a message in a message, within a call.

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use serde_json::{Map, Value};

use crate::engine::oci::lower;
use crate::fuzz::cost::assert_bounded;

use super::{checkpoint, lives};

/// How many bytes may be allocated at once for each that is read, and in any case. A value of JSON
/// that is `0,` in a list becomes one of 32 bytes, and its list is larger than it need be.
const EACH: usize = 256;
const ANYWAY: usize = 16 * 1024;

pub(crate) fn calls(input: &[u8]) {
    assert_bounded(input.len(), EACH, ANYWAY, || {
        if let Ok(mut process) = serde_json::from_slice::<Map<String, Value>>(input) {
            lower(&mut process, 500);
        }
    });
    let mut changed = None;
    assert_bounded(input.len(), EACH, ANYWAY, || {
        lives::merge(&mut changed, input);
    });
    let before = changed.clone();
    lives::merge(&mut changed, input);
    assert_eq!(before, changed);
    let any = Any {
        type_url: "containerd.runc.v1.CheckpointOptions".to_owned(),
        value: input.to_vec(),
        ..Any::new()
    };
    if let Err(sentence) = checkpoint::options(Some(&any)) {
        assert!(!sentence.contains('\n'), "{sentence}");
    }
}
