//! The running containerd's answer to kubelet's `Status` request, with the features of its
//! runtimes.

use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use usher_api::cri::{StatusRequest, StatusResponse};
use usher_linux::grpc::Call;

/// Time limit for containerd's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Size limit of the answer, in bytes. Each runtime takes a few hundred bytes of it.
const MAX_BODY: usize = 1024 * 1024;

/// A runtime and its features. kubelet refuses pods that need a feature their runtime lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handler {
    pub(crate) name: String,
    pub(crate) user_namespaces: bool,
    pub(crate) recursive_read_only_mounts: bool,
}

/// The runtimes and the configuration that a running containerd reports.
#[derive(Debug)]
pub(crate) struct CriStatus {
    /// The runtimes that containerd reports. Empty with containerd 1, which reports none.
    pub(crate) handlers: Vec<Handler>,
    /// The configuration that the CRI plugin has loaded, if it reports one.
    pub(crate) config: Option<serde_json::Value>,
}

/// The reason why containerd reported no status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StatusError {
    /// The CRI plugin is off, or has failed.
    NoPlugin,
    /// Any other reason, as a clause such as "no answer within 5 s".
    Failed(String),
}

/// gRPC's status `UNIMPLEMENTED`: the server does not have the service.
const UNIMPLEMENTED: &str = "12";
/// The key of the plugin's configuration in a verbose status.
const CONFIG: &str = "config";

/// Calls `RuntimeService/Status` of the Container Runtime Interface, as kubelet does, and asks for
/// the plugin's configuration as well.
pub(crate) fn status(socket: &Path) -> Result<CriStatus, StatusError> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StatusError::Failed(format!("tokio does not start: {error}")))?;
    let answer = tokio.block_on(async {
        tokio::time::timeout(PATIENCE, ask(socket))
            .await
            .unwrap_or_else(|_| {
                let seconds = PATIENCE.as_secs();
                Err(StatusError::Failed(format!("no answer within {seconds} s")))
            })
    })?;
    let config = answer.info.get(CONFIG);
    let config = config.and_then(|text| serde_json::from_str(text).ok());
    let handlers = answer.runtime_handlers.into_iter().map(|handler| Handler {
        name: handler.name,
        user_namespaces: handler.features.user_namespaces,
        recursive_read_only_mounts: handler.features.recursive_read_only_mounts,
    });
    Ok(CriStatus {
        handlers: handlers.collect(),
        config,
    })
}

async fn ask(socket: &Path) -> Result<StatusResponse, StatusError> {
    let connection = UnixStream::connect(socket).await;
    let connection = connection.map_err(|error| StatusError::Failed(error.to_string()))?;
    let call = Call {
        authority: "localhost",
        method: "runtime.v1.RuntimeService/Status",
        agent: concat!("usher/", env!("CARGO_PKG_VERSION")),
        max_body: MAX_BODY,
    };
    let mut question = StatusRequest::new();
    question.verbose = true;
    let asked = call.ask(connection, &question).await;
    let answer = asked.map_err(|error| StatusError::Failed(error.to_string()))?;
    if answer.status() == Some(UNIMPLEMENTED) {
        return Err(StatusError::NoPlugin);
    }
    answer.succeeded().map_err(|status| {
        let reason = answer.reason().map(|reason| format!(": {reason}"));
        StatusError::Failed(format!("it answers {status}{}", reason.unwrap_or_default()))
    })?;
    let message = answer.message();
    message.ok_or_else(|| StatusError::Failed("its answer is not a StatusResponse".to_owned()))
}
