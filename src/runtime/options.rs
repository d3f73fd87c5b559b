//! The options that containerd passes for a container, and the copy of them that the `delete`
//! command finds in the bundle.

use std::io;
use std::path::Path;

use containerd_shim::util::{JsonOptions, OPTIONS_FILE_NAME};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci;

use super::Bundle;

/// `containerd.runc.v1.Options`, of which usher takes the same notice as containerd's runc shim.
pub type Options = oci::Options;

/// The name of the message.
const RUNC: &str = "containerd.runc.v1.Options";

/// Where it is a directory systemd runs (sd_booted(3)).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Reads the options of a Create.
///
/// # Errors
///
/// One sentence if they are not `containerd.runc.v1.Options`.
pub fn from_any(options: Option<&Any>) -> Result<Options, String> {
    let Some(any) = options.filter(|any| !any.type_url.is_empty()) else {
        return Ok(Options::default());
    };
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    // The CRI plugin wraps the options of every runtime type that it does not know; up to 1.7 they
    // can hold nothing that is of use here.
    if name == "runtimeoptions.v1.Options" && any.value.is_empty() {
        return Ok(Options::default());
    }
    if name != RUNC {
        return Err(format!(
            "runtime options are of type {:?}, expected containerd.runc.v1.Options",
            any.type_url
        ));
    }
    Options::parse_from_bytes(&any.value)
        .map_err(|error| format!("runtime options cannot be decoded: {error}"))
}

/// Whether cgroups are systemd's to make, by what the caller has not said: who gives no options has
/// nothing but the form of the path to say so with. Where systemd does not run it means nothing.
pub fn implies_systemd_cgroup(options: Option<&Any>, bundle: &Bundle) -> bool {
    let is_given = options.is_some_and(|any| any.type_url.ends_with(RUNC) || !any.value.is_empty());
    !is_given && bundle.has_systemd_cgroup() && Path::new(SYSTEMD_RUNS).is_dir()
}

/// Leaves the options in the bundle.
///
/// # Errors
///
/// If the file cannot be written.
pub fn save(bundle: &Path, options: &Options) -> io::Result<()> {
    let json = serde_json::to_vec(&JsonOptions::from(options.clone()))?;
    std::fs::write(bundle.join(OPTIONS_FILE_NAME), json)
}

/// The options left in the bundle; the defaults if there are none, as when the shim died before
/// it had got that far.
pub fn load(bundle: &Path) -> Options {
    let json = std::fs::read(bundle.join(OPTIONS_FILE_NAME)).unwrap_or_default();
    serde_json::from_slice::<JsonOptions>(&json)
        .map(Options::from)
        .unwrap_or_default()
}
