//! containerd on this node: the program, its configuration files and its runtimes.
//!
//! `usher check` reads the configuration, `usher install` writes it, and both use this module.

mod effective;
mod files;
mod flavor;
mod kubelet;
mod loaded;
mod node;
mod program;

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

pub(super) use effective::{DumpError, Effective};
pub(super) use files::{ConfigFile, configuration_files};
pub(super) use flavor::{FlavorArgument, Source, SourceForm};
pub(super) use kubelet::{CriStatus, Handler, StatusError};
pub(super) use loaded::is_ours;
pub(super) use node::{Facts, Node, dump, text};
pub(super) use program::{ProgramError, find, find_file, is_program, output};

/// The runtime's name: the handler of a RuntimeClass.
pub(super) const NAME: &str = "usher";
/// The shim's program.
pub(super) const PROGRAM: &str = "containerd-shim-usher-v2";
/// The runtime's own type, from which containerd derives the shim's file name.
pub(super) const TYPE: &str = "io.containerd.usher.v2";
/// The type of runc's shim. containerd offers some features for this type alone. A runtime
/// of this type may name any program as its shim.
pub(super) const RUNC_TYPE: &str = "io.containerd.runc.v2";
/// The key in a runtime's table that names the component which makes the sandboxes. Its value
/// [`BY_THE_SHIM`] means the shim.
pub(super) const SANDBOXER: &str = "sandboxer";
pub(super) const BY_THE_SHIM: &str = "shim";
/// The first release of containerd in which the shim can make the sandboxes of all pods. Earlier
/// releases panic for pods in the node's network (`NewBundle` in containerd's
/// `core/runtime/v2/bundle.go`).
const PAUSELESS_SINCE: (u32, u32) = (2, 3);
/// The key that keeps containerd from pulling the pause image for pods without a pause container.
pub(super) const NO_IMAGE: &str = "disable_pause_image_pull";
/// Patterns of the pod annotations that containerd passes on.
pub(super) const POD_ANNOTATIONS: &str = r#"["usher/*", "*.usher/*"]"#;
/// Patterns of the container annotations that containerd passes on, kubelet's among them.
pub(super) const CONTAINER_ANNOTATIONS: &str = r#"["usher/*", "*.usher/*", "io.kubernetes.*"]"#;

/// containerd's default configuration file.
const CONFIG: &str = "/etc/containerd/config.toml";
/// The plugin whose table has the runtimes, in configurations of layout 3 and later.
pub(super) const CRI: &str = "io.containerd.cri.v1.runtime";
/// The plugin's name in layout 2.
pub(super) const CRI_2: &str = "io.containerd.grpc.v1.cri";
/// The plugin's name in layout 1.
const CRI_1: &str = "cri";

/// Returns the name of the plugin whose table lists the runtimes, in a configuration with layout
/// `version`.
pub(super) fn cri_of_layout(version: i64) -> &'static str {
    match version {
        ..=1 => CRI_1,
        2 => CRI_2,
        _ => CRI,
    }
}

/// The way in which containerd's configuration names the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Registration {
    /// The configuration names usher's own runtime type, from which containerd derives the
    /// program's name.
    OwnType,
    /// The configuration names runc's runtime type and the path of usher's program. containerd 2.0
    /// to 2.2 reports user namespaces and recursive read-only mounts to kubelet only for runc's
    /// type. For a pod with a user namespace, every containerd reads a runtime's options only if
    /// the type is runc's. containerd 1 does not need the path, and 1.6 ignores it.
    Path(PathBuf),
    /// The configuration names usher's own runtime type. In addition, the key `sandboxer` says that
    /// the shim makes the pod's sandbox. containerd 2.3 and 2.4 ignore the path of such a runtime:
    /// they start the sandbox by the type alone (`Create` in containerd's
    /// `plugins/sandbox/controller.go`).
    Pauseless {
        /// True if containerd knows the key [`NO_IMAGE`] (2.4 and later).
        has_no_image_key: bool,
    },
}

/// The whole table of a runtime, without a newline at its end.
pub(super) fn entry(cri: &str, name: &str, registration: &Registration) -> String {
    format!(
        "[{}]\n{registration}\n  pod_annotations = {POD_ANNOTATIONS}\n  \
         container_annotations = {CONTAINER_ANNOTATIONS}",
        runtime_table(cri, name)
    )
}

/// The name of a runtime's table.
pub(super) fn runtime_table(cri: &str, name: &str) -> String {
    let (cri, name) = (toml_edit::Key::new(cri), toml_edit::Key::new(name));
    format!(
        "plugins.{}.containerd.runtimes.{}",
        cri.display_repr(),
        name.display_repr()
    )
}

/// The error for a containerd that is too old for sandboxes made by the shim.
#[derive(Debug, thiserror::Error)]
#[error(
    "containerd {version} makes all sandboxes itself, or panics when the shim makes one in the node's network; \
     expected containerd {}.{} or later for pods without a pause container",
    PAUSELESS_SINCE.0, PAUSELESS_SINCE.1
)]
pub(super) struct TooOld {
    version: String,
}

impl Registration {
    /// The best way to name the shim in the configuration of this version of containerd.
    pub(super) fn best_for(node: &Node, shim: &Path) -> Registration {
        match node.is_1() {
            true => Registration::OwnType,
            false => Registration::Path(shim.to_owned()),
        }
    }

    /// The registration for pods without a pause container. The shim makes the sandboxes of these
    /// pods.
    ///
    /// # Errors
    ///
    /// If this containerd is too old for pods without a pause container.
    pub(super) fn pauseless(node: &Node) -> Result<Registration, TooOld> {
        match &node.version {
            Some(version) if version.release < PAUSELESS_SINCE => Err(TooOld {
                version: version.text.clone(),
            }),
            _ => Ok(Registration::Pauseless {
                has_no_image_key: node
                    .runtimes()
                    .any(|(_, runtime)| runtime.contains_key(NO_IMAGE)),
            }),
        }
    }
}

/// Formats the lines of the runtime's table.
impl Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Registration::OwnType => write!(f, "  runtime_type = \"{TYPE}\""),
            Registration::Path(path) => {
                let path = toml_edit::Value::from(path.to_string_lossy().as_ref());
                write!(
                    f,
                    "  runtime_type = \"{RUNC_TYPE}\"\n  runtime_path = {path}"
                )
            }
            Registration::Pauseless { has_no_image_key } => {
                let own = Registration::OwnType;
                write!(f, "{own}\n  {SANDBOXER} = \"{BY_THE_SHIM}\"")?;
                match has_no_image_key {
                    true => write!(f, "\n  {NO_IMAGE} = true"),
                    false => Ok(()),
                }
            }
        }
    }
}
