//! What kubelet is told of the runtimes by the containerd that runs.

use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use crate::cri::{StatusRequest, StatusResponse};
use crate::grpc::Call;

/// How long containerd may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is taken of its answer, in bytes. It has some hundred for each runtime.
const MAX_BODY: usize = 1024 * 1024;

/// A runtime, as kubelet is told of it: pods that want what it does not have are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Handler {
    pub(in crate::cli) name: String,
    pub(in crate::cli) user_namespaces: bool,
    pub(in crate::cli) recursive_read_only_mounts: bool,
}

/// Asks as kubelet does (`RuntimeService/Status` of the Container Runtime Interface). containerd 1 names no
/// runtime there.
///
/// # Errors
///
/// Why there is no answer, in words.
pub(in crate::cli) fn handlers(socket: &Path) -> Result<Vec<Handler>, String> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("this process cannot wait: {error}"))?;
    let answer = tokio.block_on(async {
        tokio::time::timeout(PATIENCE, ask(socket))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
    })?;
    let handlers = answer.runtime_handlers.into_iter().map(|handler| Handler {
        name: handler.name,
        user_namespaces: handler.features.user_namespaces,
        recursive_read_only_mounts: handler.features.recursive_read_only_mounts,
    });
    Ok(handlers.collect())
}

async fn ask(socket: &Path) -> Result<StatusResponse, String> {
    let connection = UnixStream::connect(socket).await;
    let connection = connection.map_err(|error| error.to_string())?;
    let call = Call {
        authority: "localhost",
        method: "runtime.v1.RuntimeService/Status",
        agent: concat!("usher/", env!("CARGO_PKG_VERSION")),
        max_body: MAX_BODY,
    };
    let answer = call.ask(connection, &StatusRequest::new()).await?;
    answer
        .succeeded()
        .map_err(|status| format!("it answers {status}; is its CRI plugin well?"))?;
    answer
        .message()
        .ok_or_else(|| "something else than a StatusResponse".to_owned())
}
