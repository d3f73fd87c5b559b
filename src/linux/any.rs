//! Messages packed in `google.protobuf.Any`, with the name of their type.
//!
//! The crate containerd-shim has a function for this, which reads the type's name from the
//! message's descriptor. The first use of a descriptor parses and indexes the descriptors of the
//! whole protocol, and keeps them: 400 kB in every shim. So this module packs messages without
//! descriptors, and lists the package of each message itself.

use containerd_shim_protos::cgroups::metrics as v1;
use containerd_shim_protos::cgroups_v2::metrics as v2;
use containerd_shim_protos::events::task::{
    TaskCheckpointed, TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskOOM,
    TaskPaused, TaskResumed, TaskStart,
};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, Result};
use containerd_shim_protos::shim::oci::ProcessDetails;

/// Packs messages without their descriptors, which would stay in memory.
pub trait Pack: Message {
    /// The package that declares the message.
    const PACKAGE: &'static str;

    /// The type URL of the message.
    fn type_url() -> String {
        format!("{}.{}", Self::PACKAGE, Self::NAME)
    }

    /// Encodes the message as `Any`.
    ///
    /// # Errors
    ///
    /// The protobuf library's error if the message is too large to be encoded.
    fn pack(&self) -> Result<Any> {
        Ok(Any {
            type_url: Self::type_url(),
            value: self.write_to_bytes()?,
            ..Any::new()
        })
    }
}

macro_rules! packages {
    ($($package:literal: [$($message:ty),*]),*) => {
        $($(impl Pack for $message {
            const PACKAGE: &'static str = $package;
        })*)*

        #[cfg(test)]
        const TYPE_URLS: &[(fn() -> String, fn() -> String)] = &[$($((
            <$message>::type_url,
            || <$message as containerd_shim_protos::protobuf::MessageFull>::descriptor().full_name().to_owned(),
        )),*),*];
    };
}

packages! {
    "containerd.events": [
        TaskCheckpointed, TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskOOM, TaskPaused,
        TaskResumed, TaskStart
    ],
    "containerd.runc.v1": [ProcessDetails],
    "io.containerd.cgroups.v1": [v1::Metrics],
    "io.containerd.cgroups.v2": [v2::Metrics]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_urls_match_the_declared_names() {
        for (ours, declared) in TYPE_URLS {
            assert_eq!(ours(), declared());
        }
    }
}
