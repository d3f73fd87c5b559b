//! Asks the shims of this node for their pods.
//!
//! Finds the shims by their sockets and not through containerd, which may be down. A shim that does
//! not answer does not delay the others.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use ttrpc::Code;
use ttrpc::r#async::Client;
use ttrpc::r#async::transport::Socket;

use usher_api::{self as api, ControlClient, Ended};

use super::choice::{LEAST_ID_PREFIX, choose, namespace};
use super::output::{Failure, warn};

/// Time limit for the answer of one shim.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// Interval between two attempts to connect to a shim's socket whose backlog is full.
const CALL_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Time limit between two updates of a watched pod. A shim sends an update at least every five
/// seconds.
const SPEAKS_WITHIN: Duration = Duration::from_secs(15);

/// Interval between searches for new pods while watching.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of updates that wait to be shown.
const UPDATES: usize = 64;

/// Access to the shims of this node.
pub(super) struct Node {
    directory: PathBuf,
    tokio: Runtime,
}

/// The running pods of the node.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The pods, sorted by name.
    pub pods: Vec<Found>,
    /// The number of shims that did not answer.
    pub silent: usize,
}

/// A pod and its shim's socket.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The socket of the pod's shim. None if the pod has ended.
    pub socket: Option<PathBuf>,
    pub pod: api::Pod,
}

/// An update of a watched pod, to be shown.
pub(super) struct Update {
    pub socket: PathBuf,
    /// The pod as it is now. None if the pod has ended or its shim is gone.
    pub pod: Option<api::Pod>,
}

/// A shim's answer to a request to stop its pod.
pub(super) struct StopAnswer {
    /// The pod before the request.
    pub pod: api::Pod,
    /// An error if the shim refused the request.
    pub answer: Result<api::StopResponse, ttrpc::Status>,
}

/// The reason why a shim gave no answer.
pub(super) enum NoAnswer {
    /// The pod has ended, or the shim has exited.
    Ended,
    /// The shim was killed, and nothing listens on its socket. containerd will clean up after the
    /// shim.
    Died,
    /// The shim seems to run, but does not answer. The text completes a sentence that begins with
    /// the shim, for example "does not answer within 500ms".
    Unresponsive(String),
}

impl Node {
    pub(super) fn new() -> Result<Node, Failure> {
        Node::in_directory(api::directory())
    }

    /// Access to the shims whose sockets are in `directory`.
    pub(super) fn in_directory(directory: PathBuf) -> Result<Node, Failure> {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| {
                Failure::because(format!("cannot start the async runtime: {error}"))
            })?;
        if let Err(error) = std::fs::read_dir(&directory)
            // If the directory does not exist, no shim has ever run on the node.
            && error.kind() != ErrorKind::NotFound
        {
            let place = directory.display();
            return Err(Failure::because(format!(
                "cannot read the shims' sockets in {place}: {error}; run usher as root"
            )));
        }
        Ended::in_directory(&directory).clean(SystemTime::now());
        Ok(Node { directory, tokio })
    }

    /// The running pods. With `details`, a pod contains everything that its shim knows. Warns of
    /// each shim that does not answer.
    pub(super) fn living(&self, details: bool) -> Seen {
        self.tokio.block_on(self.ask_for_pods(details))
    }

    /// As [`living`](Node::living), for async callers.
    pub(super) async fn ask_for_pods(&self, details: bool) -> Seen {
        let ask = |socket: PathBuf| async move { status(&socket, details).await };
        let mut seen = Seen::default();
        for (socket, answer) in ask_all(self.sockets(), ask).await {
            match answer {
                Ok(pod) => seen.pods.push(Found {
                    socket: Some(socket),
                    pod,
                }),
                Err(NoAnswer::Ended | NoAnswer::Died) => {}
                Err(NoAnswer::Unresponsive(why)) => {
                    seen.silent = seen.silent.saturating_add(1);
                    warn(&complaint(&socket, &why));
                }
            }
        }
        seen.pods.sort_by_key(|found| key(&found.pod));
        seen
    }

    /// The pods that ended within the last hour, in the order in which they ended.
    pub(super) fn ended(&self) -> Vec<api::Pod> {
        Ended::in_directory(&self.directory).pods(SystemTime::now())
    }

    /// Finds a pod by [its name or id](choose).
    pub(super) fn find(&self, which: &str, details: bool) -> Result<Found, Failure> {
        let Seen { pods, silent } = self.living(details);
        let ended = self.ended().into_iter();
        let ended = ended.map(|pod| Found { socket: None, pod });
        let found = choose(which, pods.into_iter().chain(ended).collect(), |found| {
            &found.pod
        })?;
        found.ok_or_else(|| {
            Failure::because(match silent {
                0 if (1..LEAST_ID_PREFIX).contains(&which.len()) => format!(
                    "no pod {which:?} runs under usher on this node, and none has run in the last hour; expected a \
                     name, or at least {LEAST_ID_PREFIX} characters of an id; see usher ps --all"
                ),
                0 => format!(
                    "no pod {which:?} runs under usher on this node, and none has run in the last hour; see usher \
                     ps --all"
                ),
                1 => format!("no shim that answers has a pod {which:?}; one does not answer"),
                _ => format!("no shim that answers has a pod {which:?}; {silent} do not answer"),
            })
        })
    }

    /// Finds a running pod by its name or id.
    pub(super) fn find_living(&self, which: &str) -> Result<(PathBuf, api::Pod), Failure> {
        match self.find(which, false)? {
            Found {
                socket: Some(socket),
                pod,
            } => Ok((socket, pod)),
            Found { pod, .. } => Err(Failure::because(format!("pod {} has ended", pod.name))),
        }
    }

    pub(super) fn ask<T>(
        &self,
        socket: &Path,
        question: impl AsyncFnOnce(ControlClient, ttrpc::context::Context) -> ttrpc::Result<T>,
    ) -> Result<T, Failure> {
        let ask = async {
            match question(connect(socket).await?, context()).await {
                Ok(answer) => Ok(Ok(answer)),
                Err(ttrpc::Error::RpcStatus(status)) => Ok(Err(Failure::because(status.message))),
                Err(error) => Err(no_answer(socket, error)),
            }
        };
        let answer = self.tokio.block_on(within(ANSWERS_WITHIN, ask));
        answer.unwrap_or_else(|reason| {
            let why = match &reason {
                NoAnswer::Ended => "has ended",
                NoAnswer::Died => "has died",
                NoAnswer::Unresponsive(why) => why,
            };
            Err(Failure::because(complaint(socket, why)))
        })
    }

    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        sockets(&self.directory)
    }

    /// Asks several shims at the same time to stop their pods.
    pub(super) fn stop(
        &self,
        sockets: impl IntoIterator<Item = PathBuf>,
        request: &api::StopRequest,
    ) -> Vec<(PathBuf, Result<StopAnswer, NoAnswer>)> {
        let ask = |socket: PathBuf| {
            let request = request.clone();
            async move { stop(&socket, &request).await }
        };
        self.tokio.block_on(ask_all(sockets, ask))
    }

    /// Passes updates of all pods to `each` until `each` returns false. Includes pods that start
    /// later.
    pub(super) fn watch(
        &self,
        mut each: impl FnMut(Update) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        self.tokio.block_on(async {
            let (tell, mut updates) = mpsc::channel(UPDATES);
            let directory = self.directory.clone();
            tokio::spawn(async move { watch_all(&directory, tell).await });
            while let Some(update) = updates.recv().await {
                if !each(update)? {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The pod of the shim that listens on a socket, or the reason why that shim gave no answer.
    pub(super) fn status(&self, socket: &Path) -> Result<api::Pod, NoAnswer> {
        self.tokio.block_on(status(socket, false))
    }

    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.tokio.block_on(work)
    }
}

/// The exit status of a command that lists pods. `silent` is the number of shims that did not
/// answer, and whose pods the list therefore lacks.
pub(super) fn status_of(silent: usize) -> ExitCode {
    match silent {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn key(pod: &api::Pod) -> (String, String, String) {
    (namespace(pod).to_owned(), pod.name.clone(), pod.id.clone())
}

fn sockets(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|entry| entry.path()).collect()
}

/// Connects to a shim. The socket is non-blocking, so that the caller's time limit also applies
/// while the backlog is full.
async fn connect(socket: &Path) -> Result<ControlClient, NoAnswer> {
    loop {
        // The socket for root has its own backlog, which other users cannot fill. Older shims do
        // not have that socket.
        let stream = match UnixStream::connect(api::roots_socket(socket)).await {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                UnixStream::connect(socket).await
            }
            stream => stream,
        };
        let error = match stream {
            Ok(stream) => return Ok(ControlClient::new(Client::new(Socket::from(stream)))),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::NotFound => return Err(NoAnswer::Ended),
            ErrorKind::ConnectionRefused => return Err(NoAnswer::Died),
            // The socket's backlog is full.
            ErrorKind::WouldBlock => sleep(CALL_AGAIN_AFTER).await,
            _ => {
                return Err(NoAnswer::Unresponsive(format!(
                    "does not accept a connection: {error}"
                )));
            }
        }
    }
}

/// Tells the shim after which time it may drop the request. This time is longer than the command's
/// own limit, so that the command's limit ends first.
fn context() -> ttrpc::context::Context {
    ttrpc::context::with_duration(ANSWERS_WITHIN.saturating_mul(2))
}

async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, NoAnswer>>,
) -> Result<T, NoAnswer> {
    timeout(limit, answer).await.unwrap_or_else(|_late| {
        let why = format!("does not answer within {limit:?}");
        Err(NoAnswer::Unresponsive(why))
    })
}

/// Calls `question` for all sockets at the same time. Returns each socket with its answer.
async fn ask_all<T, F>(
    sockets: impl IntoIterator<Item = PathBuf>,
    question: impl Fn(PathBuf) -> F,
) -> Vec<(PathBuf, Result<T, NoAnswer>)>
where
    T: Send + 'static,
    F: Future<Output = Result<T, NoAnswer>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for socket in sockets {
        let answer = question(socket.clone());
        asked.spawn(async move { (socket, answer.await) });
    }
    asked.join_all().await
}

async fn status(socket: &Path, details: bool) -> Result<api::Pod, NoAnswer> {
    let request = api::StatusRequest {
        events: details,
        kernel: details,
        ..api::StatusRequest::new()
    };
    let ask = async {
        let client = connect(socket).await?;
        let answer = client.status(context(), &request).await;
        let response = answer.map_err(|error| no_answer(socket, error))?;
        response.pod.into_option().ok_or(NoAnswer::Ended)
    };
    within(ANSWERS_WITHIN, ask).await
}

async fn stop(socket: &Path, request: &api::StopRequest) -> Result<StopAnswer, NoAnswer> {
    let pod = status(socket, false).await?;
    let ask = async {
        match connect(socket).await?.stop(context(), request).await {
            Ok(answer) => Ok(Ok(answer)),
            Err(ttrpc::Error::RpcStatus(status)) => Ok(Err(status)),
            Err(error) => Err(no_answer(socket, error)),
        }
    };
    let answer = within(ANSWERS_WITHIN, ask).await?;
    Ok(StopAnswer { pod, answer })
}

/// Finds the reason why a call to a connected shim failed with `error`.
fn no_answer(socket: &Path, error: ttrpc::Error) -> NoAnswer {
    // An exiting shim removes its socket before it closes its connections.
    if !socket.exists() {
        return NoAnswer::Ended;
    }
    match error {
        ttrpc::Error::RpcStatus(status) if status.code() == Code::NOT_FOUND => NoAnswer::Ended,
        ttrpc::Error::RpcStatus(status) => {
            NoAnswer::Unresponsive(format!("answers: {}", status.message))
        }
        _ => NoAnswer::Unresponsive(
            "closed the connection without an answer; it may have too many clients".to_owned(),
        ),
    }
}

/// A sentence that names the shim of this socket and says `why` the shim gave no answer.
pub(super) fn complaint(socket: &Path, why: &str) -> String {
    format!("the shim at {} {why}", socket.display())
}

async fn watch_all(directory: &Path, tell: mpsc::Sender<Update>) {
    let mut watched: BTreeMap<PathBuf, tokio::task::JoinHandle<()>> = BTreeMap::new();
    loop {
        watched.retain(|_, task| !task.is_finished());
        for socket in sockets(directory) {
            let tell = tell.clone();
            watched
                .entry(socket.clone())
                .or_insert_with(|| tokio::spawn(async move { watch_one(socket, tell).await }));
        }
        if tell.is_closed() {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Facts about the shim of a watched pod.
#[derive(Default)]
struct Watched {
    has_answered: bool,
    /// The shim does not answer, and this command has already warned of that.
    is_silent: bool,
}

/// Watches a pod until the pod ends. If its shim does not answer, warns once and goes on asking the
/// shim.
async fn watch_one(socket: PathBuf, tell: mpsc::Sender<Update>) {
    let mut watched = Watched::default();
    while let NoAnswer::Unresponsive(why) = listen(&socket, &tell, &mut watched).await {
        if !std::mem::replace(&mut watched.is_silent, true) {
            warn(&complaint(&socket, &why));
        }
        sleep(LOOK_EVERY).await;
    }
    if watched.has_answered {
        let _ = tell.send(Update { socket, pod: None }).await;
    }
    sleep(LOOK_EVERY).await;
}

/// Passes on the updates of a pod until an error occurs, and returns the error.
async fn listen(socket: &Path, tell: &mpsc::Sender<Update>, watched: &mut Watched) -> NoAnswer {
    let request = api::StatusRequest::new();
    let open = async {
        let client = connect(socket).await?;
        let opened = client.watch(ttrpc::context::Context::default(), &request);
        opened.await.map_err(|error| no_answer(socket, error))
    };
    let mut updates = match within(ANSWERS_WITHIN, open).await {
        Ok(updates) => updates,
        Err(reason) => return reason,
    };
    let mut limit = ANSWERS_WITHIN;
    loop {
        let next = async {
            let update = updates.recv().await;
            let update = update.map_err(|error| no_answer(socket, error))?;
            update
                .and_then(|update| update.pod.into_option())
                .ok_or(NoAnswer::Ended)
        };
        let pod = match within(limit, next).await {
            Ok(pod) => pod,
            Err(reason) => return reason,
        };
        limit = SPEAKS_WITHIN;
        *watched = Watched {
            has_answered: true,
            is_silent: false,
        };
        let update = Update {
            socket: socket.to_owned(),
            pod: Some(pod),
        };
        if tell.send(update).await.is_err() {
            return NoAnswer::Ended;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_shim_and_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let node = Node::in_directory(directory.path().to_owned()).unwrap();
        let ask = || {
            let request = api::StopRequest::new();
            let asked = node.ask(&socket, async |client, context| {
                client.stop(context, &request).await
            });
            let Err(Failure::Because(why)) = asked else {
                panic!("no shim listens")
            };
            why.replace(&socket.display().to_string(), "SOCKET")
        };
        assert_eq!(ask(), "the shim at SOCKET has ended");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(ask(), "the shim at SOCKET does not answer within 500ms");
        let hangs_up = std::thread::spawn(move || {
            // The listener first accepts the connection of the earlier call, which timed out, and
            // then that of the next call.
            for _ in 0..2 {
                drop(listener.accept().unwrap());
            }
        });
        assert_eq!(
            ask(),
            "the shim at SOCKET closed the connection without an answer; it may have too many clients"
        );
        hangs_up.join().unwrap();
        assert_eq!(ask(), "the shim at SOCKET has died");
    }
}
