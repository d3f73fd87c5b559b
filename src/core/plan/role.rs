//! What containers are to their pods.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a container is to its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Runs to completion before what comes after it.
    Init,
    /// An init container of the caller's own: it knows when to start it.
    NativeInit,
    /// Started before the apps, stopped after them.
    Sidecar,
    /// What the pod is there for.
    App,
    /// Runs to completion when the pod terminates.
    Defer(DeferTurn),
    /// None of our business.
    Guest,
}

/// When a defer container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeferTurn {
    /// Before the apps are stopped.
    PreExit,
    /// After the apps have stopped.
    PostExit,
}

/// Containers that are started side by side, once those of the stage before have done their part.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stage(pub Vec<String>);

// === impl Role ===

impl Role {
    /// The words of the annotation contract; both turns of defers have one.
    pub(super) const WORDS: [(Role, &'static str); 6] = [
        (Role::Init, "init"),
        (Role::NativeInit, "native-init"),
        (Role::Sidecar, "sidecar"),
        (Role::App, "app"),
        (Role::Defer(DeferTurn::PostExit), "defer"),
        (Role::Guest, "guest"),
    ];
}

/// The word of the annotation contract; `defer` for both turns.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Role::WORDS.iter().find(|(role, _)| role == self);
        f.pad(word.map_or("defer", |(_, word)| word))
    }
}

/// The setting that lists such containers.
impl fmt::Display for DeferTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeferTurn::PreExit => "pre-exit",
            DeferTurn::PostExit => "post-exit",
        })
    }
}

/// By what a container has its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A list of its pod.
    List,
    /// The roles of its node: no list of its pod has it.
    Node,
    /// Nobody names it.
    Nobody,
}
