//! Serves a pod, from its first container to its last.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use containerd_shim::Flags;
use containerd_shim_protos::shim_async::create_task;
use nix::sys::prctl::set_child_subreaper;
use nix::unistd::dup2_stdin;
use tokio::signal::unix::{SignalKind, signal};
use ttrpc::r#async::Server;
use ttrpc::r#async::transport::Listener;

use crate::clock::SystemClock;
use crate::connections::Connections;
use crate::events::Publisher;
use crate::node::Node;
use crate::pod::Actor;
use crate::sandbox;
use crate::task::Service;
use usher_api::NodeArchive;
use usher_api::config;
use usher_core::plan::Rules;
use usher_engine::{Engine, EngineKind};
use usher_linux::reaper::Reaper;

use super::bootstrap::TTRPC_ADDRESS;
use super::callers::Callers;
use super::control::ControlSocket;
use super::error::ShimError;
use super::starter::Starter;
use super::{address, kernel, log};

/// Time for containerd to take the last events before the shim exits.
const LAST_EVENTS_WITHIN: Duration = Duration::from_secs(2);

/// Time for the last answers to be written before the shim exits.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// The Task service before containerd 2.0; its messages are those of version 3.
const TASK_V2: &str = "containerd.task.v2.Task";
const TASK_V3: &str = "containerd.task.v3.Task";

/// Serves the pod on the socket that `start` has left as standard input, until the shim ends.
///
/// # Errors
///
/// If the shim cannot begin.
pub(super) fn serve(flags: &Flags, kind: &dyn EngineKind) -> Result<(), ShimError> {
    let listener = take_socket()?;
    log::begin(flags.debug);
    // `start` has just read this file successfully, so an error here is unlikely.
    let rules = config::read().inspect_err(|error| tracing::error!("{error}"))?;
    if !rules.enabled {
        tracing::info!("usher is off on this node: annotations are ignored");
    }
    // Standard error leads nowhere, so without this hook a panic would be invisible.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    set_child_subreaper(true).map_err(ShimError::cannot("become a subreaper"))?;
    // The shim has only one thread, because it waits nearly always, and each further thread would
    // cost memory in every pod.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ShimError::cannot("start the async runtime"))?;
    runtime.block_on(serve_on(listener, flags, rules, kind))
}

/// Builds the dependencies of an actor on this machine, with this engine and default rules.
pub(crate) fn this_node(engine: Arc<dyn Engine>, publisher: Publisher) -> Node {
    Node {
        engine,
        publisher: Arc::new(publisher),
        clock: Arc::new(SystemClock),
        archive: Arc::new(NodeArchive),
        rules: Rules::default(),
        connections: Connections::default(),
    }
}

#[expect(clippy::disallowed_methods, reason = "before the shim serves")]
fn take_socket() -> Result<UnixListener, ShimError> {
    let socket: OwnedFd = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(ShimError::NoSocket)?;
    let listener = UnixListener::from(socket);
    listener.local_addr().map_err(ShimError::NoSocket)?;
    listener
        .set_nonblocking(true)
        .map_err(ShimError::NoSocket)?;
    let null = File::open("/dev/null").map_err(ShimError::cannot("open /dev/null"))?;
    dup2_stdin(&null).map_err(ShimError::cannot("replace standard input"))?;
    Ok(listener)
}

/// Makes SIGUSR1 harmless. Shims in Go write their stacks to the log at this signal, and
/// administrators send it to all shims of a node. The shim must not ignore the signal instead: the
/// OCI runtime and the containers would inherit that.
fn survive_sigusr1() -> io::Result<()> {
    // tokio installs a signal handler, which stays even after the stream of signals is dropped.
    signal(SignalKind::user_defined1()).map(drop)
}

async fn serve_on(
    listener: UnixListener,
    flags: &Flags,
    rules: Rules,
    kind: &dyn EngineKind,
) -> Result<(), ShimError> {
    let path = listener
        .local_addr()
        .ok()
        .and_then(|at| Some(at.as_pathname()?.to_owned()));
    let listener = tokio::net::UnixListener::from_std(listener);
    let callers = Callers::new(listener.map_err(ShimError::cannot("use the socket"))?);
    let publisher = Publisher::new(
        &std::env::var(TTRPC_ADDRESS).unwrap_or_default(),
        &flags.namespace,
    );
    survive_sigusr1().map_err(ShimError::cannot("handle SIGUSR1"))?;
    let reaper = Reaper::default();
    reaper
        .start()
        .map_err(ShimError::cannot("handle SIGCHLD"))?;
    let node = Node {
        rules,
        ..this_node(kind.engine(&flags.namespace, reaper), publisher.clone())
    };
    let callers = callers.counted(node.connections.clone());
    let (mut actor, pod) = Actor::new(&flags.namespace, node);
    // The shim was started for this container, whose Create follows.
    actor.announce(&flags.id);
    // As soon as containerd has the shim's address, it connects, and stays connected. If
    // containerd's client cancels its call meanwhile, containerd forgets the container: it kills
    // the `start` process, or closes the connection. So if the shim has no connection, containerd
    // may have forgotten the shim, even if containerd still runs.
    let socket = path.clone();
    let is_talked_to = move || socket.as_deref().is_none_or(kernel::is_talked_to);
    let starter = Starter::of_this_shim();
    actor.started_by(move || is_talked_to() && starter.is_none_or(Starter::is_there));
    let mut control = ControlSocket::open(path.as_deref(), pod.clone()).await;
    let sandboxes = sandbox::services(pod.clone());
    let service = Arc::new(Service::new(pod));
    let mut services = create_task(Arc::clone(&service) as _);
    if let Some(v2) = create_task(service as _).remove(TASK_V3) {
        services.insert(TASK_V2.to_owned(), v2);
    }
    let mut server = Server::new()
        .add_listener(Listener::new(callers))
        .register_service(services)
        .register_service(sandboxes);
    server.start().await.map_err(ShimError::NotServed)?;
    tracing::info!(namespace = flags.namespace, id = flags.id, "serving");

    loop {
        actor.run().await;
        // Between this check and the removal of the socket there is no await. Otherwise `start`
        // could give a caller the address of this shim, and the caller would not find the shim.
        if actor.confirm_end() {
            break;
        }
        actor.postpone_end();
    }
    control.remove();
    if let Some(path) = &path {
        address::give_up(path);
    }
    // From now on callers are refused, because the actor is gone.
    drop(actor);
    publisher.flush(LAST_EVENTS_WITHIN).await;
    let _ = tokio::time::timeout(LAST_ANSWERS_WITHIN, async {
        tokio::join!(server.shutdown(), control.shutdown())
    })
    .await;
    tracing::info!("over");
    Ok(())
}
