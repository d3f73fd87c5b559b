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

/// The answer of a running containerd to kubelet's question for its status.
#[derive(Debug)]
pub(in crate::cli) struct Told {
    /// containerd 1 names no runtime.
    pub(in crate::cli) handlers: Vec<Handler>,
    /// The configuration that its CRI plugin has loaded, if it reports one.
    pub(in crate::cli) config: Option<serde_json::Value>,
}

/// Why a containerd has not answered kubelet's question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Untold {
    /// The CRI plugin is off, or has failed.
    NoCri,
    /// A clause.
    Because(String),
}

/// `UNIMPLEMENTED`, the answer of a gRPC server that does not have the service.
const UNIMPLEMENTED: &str = "12";
/// The entry of a verbose status that has the plugin's configuration.
const CONFIG: &str = "config";

/// Asks as kubelet does (`RuntimeService/Status` of the Container Runtime Interface), and for the plugin's
/// configuration besides.
///
/// # Errors
///
/// Why there is no answer.
pub(in crate::cli) fn status(socket: &Path) -> Result<Told, Untold> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Untold::Because(format!("this process cannot wait: {error}")))?;
    let answer = tokio.block_on(async {
        tokio::time::timeout(PATIENCE, ask(socket))
            .await
            .unwrap_or_else(|_| {
                let seconds = PATIENCE.as_secs();
                Err(Untold::Because(format!("no answer within {seconds} s")))
            })
    })?;
    let config = answer.info.get(CONFIG);
    let config = config.and_then(|text| serde_json::from_str(text).ok());
    let handlers = answer.runtime_handlers.into_iter().map(|handler| Handler {
        name: handler.name,
        user_namespaces: handler.features.user_namespaces,
        recursive_read_only_mounts: handler.features.recursive_read_only_mounts,
    });
    Ok(Told {
        handlers: handlers.collect(),
        config,
    })
}

async fn ask(socket: &Path) -> Result<StatusResponse, Untold> {
    let connection = UnixStream::connect(socket).await;
    let connection = connection.map_err(|error| Untold::Because(error.to_string()))?;
    let call = Call {
        authority: "localhost",
        method: "runtime.v1.RuntimeService/Status",
        agent: concat!("usher/", env!("CARGO_PKG_VERSION")),
        max_body: MAX_BODY,
    };
    let mut question = StatusRequest::new();
    question.verbose = true;
    let asked = call.ask(connection, &question).await;
    let answer = asked.map_err(Untold::Because)?;
    if answer.status() == Some(UNIMPLEMENTED) {
        return Err(Untold::NoCri);
    }
    answer.succeeded().map_err(|status| {
        let reason = answer.reason().map(|reason| format!(": {reason}"));
        Untold::Because(format!("it answers {status}{}", reason.unwrap_or_default()))
    })?;
    let message = answer.message();
    message.ok_or_else(|| Untold::Because("something else than a StatusResponse".to_owned()))
}
