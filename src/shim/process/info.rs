//! `-info`: describes this runtime and the features of its OCI runtime.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use serde::de::IgnoredAny;

use usher_api::runtime_options::DEFAULT_BINARY;
use usher_engine::EngineKind;

use super::error::ShimError;
use super::{bootstrap, start};

/// containerd's type for the features of an OCI runtime, as JSON
/// (<https://github.com/opencontainers/runtime-spec/blob/main/features.md>).
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// Returns an encoded `RuntimeInfo`, the answer to containerd 1.7 and later. Reads the runtime
/// options from standard input. The answer contains these options, the features of the OCI runtime
/// that they name, and usher's name and version. `program` is the file name of the shim.
///
/// # Errors
///
/// If the options cannot be read, or the OCI runtime does not exist.
pub(super) fn info(
    program: &str,
    kind: &dyn EngineKind,
    revision: &str,
) -> Result<Vec<u8>, ShimError> {
    let stdin = start::read_stdin()?;
    let options = bootstrap::options_on(&stdin, kind)?;
    let binary = match options.binary_name.as_str() {
        "" => DEFAULT_BINARY,
        name => name,
    };
    let mut info = RuntimeInfo::new();
    info.name = runtime_name(program);
    let mut version = RuntimeVersion::new();
    version.version = usher_api::VERSION.to_owned();
    version.revision = revision.to_owned();
    info.version = MessageField::some(version);
    // The options are passed on unchanged, so that unknown fields are kept.
    info.options = Any::parse_from_bytes(&stdin)
        .ok()
        .filter(|any| !any.type_url.is_empty())
        .into();
    info.features = features(binary)?
        .map(|json| Any {
            type_url: FEATURES.to_owned(),
            value: json,
            ..Any::new()
        })
        .into();
    Ok(info.write_to_bytes()?)
}

/// The output of the command `features` of the OCI runtime, unchanged. `None` if the command exits
/// with an error or prints no JSON. Returns an error if the runtime's binary cannot be executed.
fn features(binary: &str) -> Result<Option<Vec<u8>>, ShimError> {
    let said = Command::new(binary)
        .arg("features")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match said {
        Ok(output) => {
            let is_json = serde_json::from_slice::<IgnoredAny>(&output.stdout).is_ok();
            Ok((output.status.success() && is_json).then_some(output.stdout))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(ShimError::NoRuntime(binary.to_owned()))
        }
        Err(error) => Err(ShimError::RuntimeNotRun {
            binary: binary.to_owned(),
            error,
        }),
    }
}

/// The runtime's name: containerd runs the binary `containerd-shim-usher-v2` for the runtime
/// `io.containerd.usher.v2`. Returns a program name of another form unchanged.
fn runtime_name(program: &str) -> String {
    let parts = program
        .strip_prefix("containerd-shim-")
        .and_then(|rest| rest.rsplit_once('-'));
    match parts {
        Some((name, version)) => format!("io.containerd.{name}.{version}"),
        None => program.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_named_as_the_binary_is() {
        let names = [
            ("containerd-shim-usher-v2", "io.containerd.usher.v2"),
            ("containerd-shim-runc-v2", "io.containerd.runc.v2"),
            ("usher", "usher"),
        ];
        for (program, runtime) in names {
            assert_eq!(runtime_name(program), runtime);
        }
    }
}
