//! The roles of containers in their pods.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// A container that runs to completion before later containers start.
    Init,
    /// A container in the pod's own `initContainers`, which kubelet runs in order.
    NativeInit,
    /// A container that is started before the apps and stopped after them.
    Sidecar,
    /// A container that does the pod's work.
    App,
    /// A container that runs to completion when the pod terminates.
    Defer(DeferTurn),
    /// A container that usher leaves alone.
    Guest,
}

/// The time at which a defer container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeferTurn {
    /// The defer container runs before the apps are stopped.
    PreExit,
    /// The defer container runs after the apps have stopped.
    PostExit,
}

/// Containers that are started side by side once the previous stage is done: an init container is
/// done when it has exited with 0, a sidecar when it has started.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stage(pub Vec<String>);

impl Role {
    /// The word of each role in the annotation contract. Defer containers share the word `defer`,
    /// whether they run before or after the apps are stopped.
    pub(super) const WORDS: [(Role, &'static str); 6] = [
        (Role::Init, "init"),
        (Role::NativeInit, "native-init"),
        (Role::Sidecar, "sidecar"),
        (Role::App, "app"),
        (Role::Defer(DeferTurn::PostExit), "defer"),
        (Role::Guest, "guest"),
    ];
}

/// Writes the role as in docs/annotations.md, for example `native-init`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Role::WORDS.iter().find(|(role, _)| role == self);
        f.pad(word.map_or("defer", |(_, word)| word))
    }
}

/// Writes the name of the setting that lists these defer containers: `pre-exit` or `post-exit`.
impl fmt::Display for DeferTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeferTurn::PreExit => "pre-exit",
            DeferTurn::PostExit => "post-exit",
        })
    }
}

/// The reason why a container has its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A list of the pod's annotations gives the role.
    List,
    /// The node's rules give the role, because no list of the pod names the container.
    Node,
    /// The default role, because neither the pod nor the node names the container.
    Default,
}
