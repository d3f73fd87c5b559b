//! Fuzzes the parts of a call that contain JSON or a nested message.

use containerd_shim_protos::protobuf::well_known_types::any::Any;

use usher_fuzz::cost::assert_bounded;

use crate::task_table::carryover;

use super::CheckpointCall;

/// Maximum number of bytes allocated at the same time: `EACH` for every byte of input, plus
/// `ANYWAY`. `EACH` is large, because the JSON text `0,` in a list becomes 32 bytes, and a list's
/// capacity exceeds its length.
const EACH: usize = 256;
const ANYWAY: usize = 16 * 1024;

pub(crate) fn calls(input: &[u8]) {
    let mut changed = None;
    assert_bounded(input.len(), EACH, ANYWAY, || {
        carryover::merge(&mut changed, input);
    });
    let before = changed.clone();
    carryover::merge(&mut changed, input);
    assert_eq!(before, changed);
    let call = CheckpointCall {
        id: String::new(),
        path: String::new(),
        options: Some(Any {
            type_url: "containerd.runc.v1.CheckpointOptions".to_owned(),
            value: input.to_vec(),
            ..Any::new()
        }),
    };
    if let Err(error) = call.checkpoint() {
        assert!(!error.message.contains('\n'), "{error:?}");
    }
}
