//! Messages of the Container Runtime Interface, between kubelet and containerd, from
//! `protos/runtime/v1/cri.proto`.

#[allow(warnings, clippy::all, clippy::restriction)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/cri/mod.rs"));
}

pub use generated::cri::*;
