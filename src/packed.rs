//! Messages within messages, which say what they are (`google.protobuf.Any`).
//!
//! containerd-shim's own function for it asks the message for its descriptor. With the first one the descriptors of
//! the whole protocol are parsed and indexed, and stay: that was 400 kB of every shim, for a name. So the packages
//! of those that are packed stand here.

use containerd_shim_protos::cgroups::metrics as v1;
use containerd_shim_protos::cgroups_v2::metrics as v2;
use containerd_shim_protos::events::task::{
    TaskCheckpointed, TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskOOM,
    TaskPaused, TaskResumed, TaskStart,
};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, Result};
use containerd_shim_protos::shim::oci::ProcessDetails;

/// A message that can be packed.
pub trait Pack: Message {
    /// The package that it is declared in.
    const PACKAGE: &'static str;

    /// What the packed one is called.
    fn type_url() -> String {
        format!("{}.{}", Self::PACKAGE, Self::NAME)
    }

    /// Packs it.
    ///
    /// # Errors
    ///
    /// The library's, if it is too large to be encoded.
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
    fn each_is_called_as_it_is_declared() {
        for (ours, declared) in TYPE_URLS {
            assert_eq!(ours(), declared());
        }
    }
}
