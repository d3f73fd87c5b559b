//! What `usher` is told of a pod, and what it may tell the pod to do.

/// Messages and service of `protos/usher/v1/control.proto`.
#[allow(warnings, clippy::all, clippy::restriction)]
pub mod api {
    include!(concat!(env!("OUT_DIR"), "/protos/mod.rs"));
}
