//! The input of `start`, and the form of its answer. Both depend on containerd's version:
//!
//! | containerd | input | answer |
//! |---|---|---|
//! | 1.6, 1.7 | flags, environment, options on stdin | a bare address, for `containerd.task.v2` |
//! | 2.0 to 2.2 | flags, environment, options on stdin | JSON with version, address and protocol |
//! | 2.3 | protobuf `BootstrapParams` on stdin | protobuf `BootstrapResult` |
//!
//! The crate containerd-shim supports only the last two forms.

use containerd_shim::Flags;
use containerd_shim_protos::TASK_API_VERSION;
use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult, LogLevel};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

use super::error::ShimError;
use usher_engine::{EngineKind, StartOptions};

/// Environment variable of `start` since containerd 1.7: the highest protocol version that
/// containerd speaks.
pub(super) const MAX_SHIM_VERSION: &str = "MAX_SHIM_VERSION";

/// Environment variable with containerd's address for events: the path of containerd's own socket
/// with `.ttrpc` appended.
pub(super) const TTRPC_ADDRESS: &str = "TTRPC_ADDRESS";

/// The form of the answer that containerd expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// A bare address.
    Address,
    Json,
    Protobuf,
}

/// The input of `start`, independent of its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bootstrap {
    pub dialect: Dialect,
    /// containerd's address for events; empty if there is none.
    pub ttrpc_address: String,
    /// containerd's own address.
    pub address: String,
    /// The directory for the socket; `None` for the default one.
    pub socket_dir: Option<String>,
    pub debug: bool,
    pub options: StartOptions,
}

/// The environment variables that `start` uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    pub ttrpc_address: String,
    pub max_shim_version: String,
}

impl Environment {
    pub fn read() -> Environment {
        let read = |name| std::env::var(name).unwrap_or_default();
        Environment {
            ttrpc_address: read(TTRPC_ADDRESS),
            max_shim_version: read(MAX_SHIM_VERSION),
        }
    }
}

impl Bootstrap {
    /// Reads containerd's input.
    ///
    /// # Errors
    ///
    /// If the parameters on stdin are for another container, or the options are invalid.
    pub fn understand(
        stdin: &[u8],
        flags: &Flags,
        environment: Environment,
        kind: &dyn EngineKind,
    ) -> Result<Bootstrap, ShimError> {
        if let Some(params) = bootstrap_params(stdin, flags)? {
            let extensions = params.extensions.iter();
            let mut options = extensions.filter_map(|extension| extension.value.as_ref());
            return Ok(Bootstrap {
                options: match options.find(|any| kind.are_options(any)) {
                    Some(any) => kind.start_options(any.clone())?,
                    None => StartOptions::default(),
                },
                dialect: Dialect::Protobuf,
                ttrpc_address: params.containerd_ttrpc_address,
                address: params.containerd_grpc_address,
                socket_dir: params.socket_dir.filter(|dir| !dir.is_empty()),
                debug: flags.debug || params.log_level.value() <= LogLevel::LOG_LEVEL_DEBUG as i32,
            });
        }
        // A containerd that does not set the variable speaks version 2 at most.
        let version = environment.max_shim_version.trim().parse().unwrap_or(2);
        Ok(Bootstrap {
            dialect: if version >= 3 {
                Dialect::Json
            } else {
                Dialect::Address
            },
            ttrpc_address: environment.ttrpc_address,
            address: flags.address.clone(),
            socket_dir: None,
            debug: flags.debug,
            options: options_on(stdin, kind)?,
        })
    }

    /// Encodes the answer: the address at which the shim listens.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded.
    pub fn answer(&self, address: &str) -> Result<Vec<u8>, ShimError> {
        match self.dialect {
            Dialect::Address => Ok(address.as_bytes().to_vec()),
            Dialect::Json => serde_json::to_vec(&serde_json::json!({
                "version": TASK_API_VERSION,
                "address": address,
                "protocol": "ttrpc",
            }))
            .map_err(ShimError::from),
            Dialect::Protobuf => {
                let mut result = BootstrapResult::new();
                result.version = TASK_API_VERSION;
                result.address = address.to_owned();
                result.protocol = "ttrpc".to_owned();
                Ok(result.write_to_bytes()?)
            }
        }
    }
}

/// Reads the runtime's options as an older containerd writes them, for `start` and `-info`. Empty
/// input stands for the default options.
///
/// # Errors
///
/// If the input is something else, or the options are invalid.
pub(super) fn options_on(stdin: &[u8], kind: &dyn EngineKind) -> Result<StartOptions, ShimError> {
    Any::parse_from_bytes(stdin)
        .map_err(ShimError::Stdin)
        .and_then(|any| Ok(kind.start_options(any)?))
}

/// Reads the parameters on stdin. Returns `None` if stdin has something else: nothing, or the
/// runtime's options, which an older containerd writes as an `Any`. The bytes of an `Any` parse as
/// parameters, too, but do not match `flags`, and have no address of containerd.
///
/// # Errors
///
/// If the parameters are for another container or namespace than `flags`.
fn bootstrap_params(stdin: &[u8], flags: &Flags) -> Result<Option<BootstrapParams>, ShimError> {
    let Ok(params) = BootstrapParams::parse_from_bytes(stdin) else {
        return Ok(None);
    };
    if params.instance_id == flags.id && params.namespace == flags.namespace {
        return Ok((!stdin.is_empty()).then_some(params));
    }
    // The input may be an `Any`. Its two fields, a type and a value, parse as the id and the
    // namespace of the parameters. All other parameters are then empty.
    if params.containerd_grpc_address.is_empty() && params.containerd_ttrpc_address.is_empty() {
        return Ok(None);
    }
    Err(ShimError::OtherContainer {
        id: params.instance_id,
        namespace: params.namespace,
        expected_id: flags.id.clone(),
        expected_namespace: flags.namespace.clone(),
    })
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::bootstrap_api::Extension;
    use containerd_shim_protos::protobuf::{EnumOrUnknown, MessageField};

    use usher_oci::Oci;

    use super::*;

    fn flags() -> Flags {
        Flags {
            id: "c1".to_owned(),
            namespace: "k8s.io".to_owned(),
            address: "/run/c.sock".to_owned(),
            ..Flags::default()
        }
    }

    fn environment(version: &str) -> Environment {
        Environment {
            ttrpc_address: "/run/c.sock.ttrpc".to_owned(),
            max_shim_version: version.to_owned(),
        }
    }

    fn crun() -> Any {
        Any {
            type_url: "containerd.runc.v1.Options".to_owned(),
            value: vec![0x32, 4, b'c', b'r', b'u', b'n'],
            ..Any::new()
        }
    }

    fn params() -> BootstrapParams {
        let mut params = BootstrapParams::new();
        params.instance_id = "c1".to_owned();
        params.namespace = "k8s.io".to_owned();
        params.containerd_ttrpc_address = "/run/new.sock.ttrpc".to_owned();
        params.containerd_grpc_address = "/run/new.sock".to_owned();
        params
    }

    #[test]
    fn a_containerd_without_versions_gets_a_bare_address() {
        for version in ["", "2", "nonsense"] {
            let said = Bootstrap::understand(&[], &flags(), environment(version), &Oci).unwrap();
            assert_eq!(said.dialect, Dialect::Address, "{version:?}");
            assert_eq!(said.answer("unix:///s").unwrap(), b"unix:///s");
            assert_eq!(said.ttrpc_address, "/run/c.sock.ttrpc");
        }
    }

    #[test]
    fn a_containerd_of_version_three_gets_json() {
        let said = Bootstrap::understand(&[], &flags(), environment("3"), &Oci).unwrap();
        let answer: serde_json::Value =
            serde_json::from_slice(&said.answer("unix:///s").unwrap()).unwrap();
        assert_eq!(
            answer,
            serde_json::json!({"version": 3, "address": "unix:///s", "protocol": "ttrpc"})
        );
    }

    #[test]
    fn bootstrap_parameters_are_answered_in_kind_and_taken_before_the_environment() {
        let stdin = params().write_to_bytes().unwrap();
        let said = Bootstrap::understand(&stdin, &flags(), environment("3"), &Oci).unwrap();
        assert_eq!(said.ttrpc_address, "/run/new.sock.ttrpc");
        let answer = BootstrapResult::parse_from_bytes(&said.answer("unix:///s").unwrap()).unwrap();
        assert_eq!((answer.version, answer.address.as_str()), (3, "unix:///s"));
        assert_eq!(answer.protocol, "ttrpc");
    }

    #[test]
    fn runtime_options_on_stdin_are_not_taken_for_bootstrap_parameters() {
        let stdin = crun().write_to_bytes().unwrap();
        let said = Bootstrap::understand(&stdin, &flags(), environment(""), &Oci).unwrap();
        assert_eq!(said.dialect, Dialect::Address);
        assert_eq!(said.options.binary_name, "crun");
    }

    #[test]
    fn runtime_options_come_among_the_extensions_of_bootstrap_parameters() {
        let extension = |any| Extension {
            value: MessageField::some(any),
            ..Extension::new()
        };
        let other = Any {
            type_url: "containerd.io/nri.v1.PluginConfig".to_owned(),
            ..Any::new()
        };
        let mut params = params();
        params.extensions = vec![extension(other), extension(crun())];
        let stdin = params.write_to_bytes().unwrap();
        let said = Bootstrap::understand(&stdin, &flags(), environment("3"), &Oci).unwrap();
        assert_eq!(said.options.binary_name, "crun");
    }

    #[test]
    fn a_shim_logs_as_much_as_containerd_asks_for() {
        for (level, debug) in [
            (-8, true),
            (-4, true),
            (0, false),
            (4, false),
            (1000, false),
        ] {
            let mut params = params();
            params.log_level = EnumOrUnknown::from_i32(level);
            let stdin = params.write_to_bytes().unwrap();
            let said = Bootstrap::understand(&stdin, &flags(), environment("3"), &Oci).unwrap();
            assert_eq!(said.debug, debug, "{level}");
        }
    }

    #[test]
    fn parameters_for_another_container_are_refused_with_both_names() {
        let mut params = params();
        params.instance_id = "other".to_owned();
        let stdin = params.write_to_bytes().unwrap();
        let error = Bootstrap::understand(&stdin, &flags(), environment("3"), &Oci).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("\"other\"") && error.contains("\"c1\""),
            "{error}"
        );
    }
}
