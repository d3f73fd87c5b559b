//! containerd on this node: the program, its configuration, and what stands there of runtimes.
//!
//! `usher check` reads it and `usher install` writes it; what either knows of containerd is here.

mod effective;
mod files;
mod flavor;
mod kubelet;
mod loaded;
mod node;
mod program;

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

pub(super) use effective::Effective;
pub(super) use files::{ConfigFile, configuration_files};
pub(super) use flavor::{Source, SourceForm, Wanted};
pub(super) use kubelet::{Handler, Told, Untold};
pub(super) use loaded::is_ours;
pub(super) use node::{Facts, Node, dump, text};
pub(super) use program::{find, find_file, is_program, output};

/// The runtime's name: the handler of a RuntimeClass.
pub(super) const NAME: &str = "usher";
/// The shim's program.
pub(super) const PROGRAM: &str = "containerd-shim-usher-v2";
/// What containerd knows the runtime as, by its own name.
pub(super) const TYPE: &str = "io.containerd.usher.v2";
/// What it knows its own runtime as. It treats nothing else so well, and lets its program be any.
pub(super) const RUNC_TYPE: &str = "io.containerd.runc.v2";
/// The key of a runtime that says who makes its sandboxes, and its value for the shim.
pub(super) const SANDBOXER: &str = "sandboxer";
pub(super) const BY_THE_SHIM: &str = "shim";
/// The first release that has the shim make sandboxes in the node's network, too: before, it ends with a panic
/// (`NewBundle` in its `core/runtime/v2/bundle.go`).
const PAUSELESS_SINCE: (u32, u32) = (2, 3);
/// The key by which no image is pulled for a pause container that there is not.
pub(super) const NO_IMAGE: &str = "disable_pause_image_pull";
/// Patterns of the annotations that containerd is to pass on: of pods.
pub(super) const POD_ANNOTATIONS: &str = r#"["usher/*", "*.usher/*"]"#;
/// Of containers: kubelet's own, too.
pub(super) const CONTAINER_ANNOTATIONS: &str = r#"["usher/*", "*.usher/*", "io.kubernetes.*"]"#;

/// containerd's configuration file unless another one is named.
const CONFIG: &str = "/etc/containerd/config.toml";
/// The CRI plugin's part of the configuration that has the runtimes, in layout 3 and later.
pub(super) const CRI: &str = "io.containerd.cri.v1.runtime";
/// The same in layout 2.
pub(super) const CRI_2: &str = "io.containerd.grpc.v1.cri";
/// The same in layout 1.
const CRI_1: &str = "cri";

/// The CRI plugin's part that has the runtimes in a configuration of this layout, its `version`.
pub(super) fn cri_of_layout(version: i64) -> &'static str {
    match version {
        ..=1 => CRI_1,
        2 => CRI_2,
        _ => CRI,
    }
}

/// How containerd is told of the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KnownAs {
    /// By a name of its own, which containerd makes the program's name of.
    OwnType,
    /// As the program, at this path, of a runtime of runc's type. containerd 2.0 to 2.2 tells kubelet of user
    /// namespaces and recursive read-only mounts for no other type, and no containerd reads options for
    /// another one where a pod has a user namespace. containerd 1 has no use for it: 1.6 does not even look
    /// at the path.
    Path(PathBuf),
    /// By its own name, and as the one that makes the sandboxes of its pods. For such a runtime containerd
    /// (2.3 and 2.4) looks at no path: it starts the sandbox with the type alone (`Create` in its
    /// `plugins/sandbox/controller.go`).
    Pauseless {
        /// It can be told that there is no image to be pulled for a sandbox, as from 2.4 on.
        may_do_without_image: bool,
    },
}

/// All that containerd has to be told of a runtime: a table, without a line's end after its last line.
pub(super) fn entry(cri: &str, name: &str, known_as: &KnownAs) -> String {
    format!(
        "[{}]\n{known_as}\n  pod_annotations = {POD_ANNOTATIONS}\n  \
         container_annotations = {CONTAINER_ANNOTATIONS}",
        runtime_table(cri, name)
    )
}

/// What the table of a runtime is called.
pub(super) fn runtime_table(cri: &str, name: &str) -> String {
    let (cri, name) = (toml_edit::Key::new(cri), toml_edit::Key::new(name));
    format!(
        "plugins.{}.containerd.runtimes.{}",
        cri.display_repr(),
        name.display_repr()
    )
}

// === impl KnownAs ===

impl KnownAs {
    /// What suits this containerd best.
    pub(super) fn to(node: &Node, shim: &Path) -> KnownAs {
        match node.is_1() {
            true => KnownAs::OwnType,
            false => KnownAs::Path(shim.to_owned()),
        }
    }

    /// What has this containerd leave the sandboxes to the shim.
    ///
    /// # Errors
    ///
    /// One sentence, if it leaves them to nobody.
    pub(super) fn pauseless(node: &Node) -> Result<KnownAs, String> {
        match &node.version {
            Some(version) if version.release < PAUSELESS_SINCE => Err(format!(
                "containerd {} makes all sandboxes itself, or ends when the shim makes one in the node's \
                 network; expected containerd {}.{} or later for pods without a pause container",
                version.text, PAUSELESS_SINCE.0, PAUSELESS_SINCE.1
            )),
            _ => Ok(KnownAs::Pauseless {
                may_do_without_image: node
                    .runtimes()
                    .any(|(_, runtime)| runtime.contains_key(NO_IMAGE)),
            }),
        }
    }
}

/// Lines of the runtime's table.
impl Display for KnownAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KnownAs::OwnType => write!(f, "  runtime_type = \"{TYPE}\""),
            KnownAs::Path(path) => {
                let path = toml_edit::Value::from(path.to_string_lossy().as_ref());
                write!(
                    f,
                    "  runtime_type = \"{RUNC_TYPE}\"\n  runtime_path = {path}"
                )
            }
            KnownAs::Pauseless {
                may_do_without_image,
            } => {
                let own = KnownAs::OwnType;
                write!(f, "{own}\n  {SANDBOXER} = \"{BY_THE_SHIM}\"")?;
                match may_do_without_image {
                    true => write!(f, "\n  {NO_IMAGE} = true"),
                    false => Ok(()),
                }
            }
        }
    }
}
