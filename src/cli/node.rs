//! The pods of this node, as their shims tell: found by their sockets, without containerd, which may
//! be down. One that does not answer does not keep the others.

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

use crate::api::{self, ControlClient, Ended};

use super::choice::{BEGINNING, choose, namespace};
use super::output::{Failure, warn};

/// How long a shim may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// How often one is called again for whom as many wait as may.
const CALL_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// A shim tells whoever watches how its pod is every five seconds, though nothing happens.
const SPEAKS_WITHIN: Duration = Duration::from_secs(15);

/// How often it is looked for new pods by whoever watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many updates of watched pods may wait to be shown.
const UPDATES: usize = 64;

/// The node that this runs on.
pub(super) struct Node {
    directory: PathBuf,
    tokio: Runtime,
}

/// What a look at the node has shown.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The pods that are there, in the order of their names.
    pub pods: Vec<Found>,
    /// How many shims were asked for theirs and have not answered.
    pub silent: usize,
}

/// A pod and how to reach it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// None of one that has ended.
    pub socket: Option<PathBuf>,
    pub pod: api::Pod,
}

/// What a watcher hears of the pod behind a socket.
pub(super) struct Update {
    pub socket: PathBuf,
    /// None when it is over, or its shim has gone.
    pub pod: Option<api::Pod>,
}

/// What came of asking a shim to stop its pod.
pub(super) struct AskedToStop {
    /// As it was before.
    pub pod: api::Pod,
    /// Or why it is not stopped.
    pub answer: Result<api::StopResponse, String>,
}

/// Why a shim said nothing.
pub(super) enum Silence {
    /// It looks after no pod any more, or is gone.
    Over,
    /// It has died, and what it left will be cleared away: nobody listens there.
    Died,
    /// It is there, or seems to be. What it does, as the end of a sentence.
    Because(String),
}

impl Node {
    pub(super) fn new() -> Result<Node, Failure> {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::because(format!("this process cannot wait: {error}")))?;
        let directory = api::directory();
        if let Err(error) = std::fs::read_dir(&directory)
            // Where there is none no shim has ever run.
            && error.kind() != ErrorKind::NotFound
        {
            let place = directory.display();
            return Err(Failure::because(format!(
                "the sockets of the shims in {place} cannot be seen: {error}; usher is for root"
            )));
        }
        Ended::in_directory(&directory).clean(SystemTime::now());
        Ok(Node { directory, tokio })
    }

    /// The pods that are there; with all that is known of them, if `details`. Says which shims do not
    /// answer.
    pub(super) fn living(&self, details: bool) -> Seen {
        self.tokio.block_on(self.look(details))
    }

    /// The same for those who wait already.
    pub(super) async fn look(&self, details: bool) -> Seen {
        let ask = |socket: PathBuf| async move { status(&socket, details).await };
        let mut seen = Seen::default();
        for (socket, answer) in ask_all(self.sockets(), ask).await {
            match answer {
                Ok(pod) => seen.pods.push(Found {
                    socket: Some(socket),
                    pod,
                }),
                Err(Silence::Over | Silence::Died) => {}
                Err(Silence::Because(why)) => {
                    seen.silent = seen.silent.saturating_add(1);
                    warn(&complaint(&socket, &why));
                }
            }
        }
        seen.pods.sort_by_key(|found| key(&found.pod));
        seen
    }

    /// Those that ended within the last hour, in the order of their ends.
    pub(super) fn ended(&self) -> Vec<api::Pod> {
        Ended::in_directory(&self.directory).pods(SystemTime::now())
    }

    /// The pod that is [called so](choose).
    pub(super) fn find(&self, which: &str, details: bool) -> Result<Found, Failure> {
        let Seen { pods, silent } = self.living(details);
        let ended = self.ended().into_iter();
        let ended = ended.map(|pod| Found { socket: None, pod });
        let found = choose(which, pods.into_iter().chain(ended).collect(), |found| {
            &found.pod
        })?;
        found.ok_or_else(|| {
            Failure::because(match silent {
                0 if (1..BEGINNING).contains(&which.len()) => format!(
                    "there is no pod {which:?} on this node, nor was there in the last hour; of an id \
                     the first {BEGINNING} characters are the least; see usher ps --all"
                ),
                0 => format!(
                    "there is no pod {which:?} on this node, nor was there in the last hour; see usher ps --all"
                ),
                1 => format!("no shim that answers has a pod {which:?}; one does not answer"),
                _ => format!("no shim that answers has a pod {which:?}; {silent} do not answer"),
            })
        })
    }

    /// The pod that is called so, which must live.
    pub(super) fn find_living(&self, which: &str) -> Result<(PathBuf, api::Pod), Failure> {
        match self.find(which, false)? {
            Found {
                socket: Some(socket),
                pod,
            } => Ok((socket, pod)),
            Found { pod, .. } => Err(Failure::because(format!("pod {} has ended", pod.name))),
        }
    }

    /// Asks the shim behind a socket for something.
    pub(super) fn ask<T>(
        &self,
        socket: &Path,
        question: impl AsyncFnOnce(ControlClient, ttrpc::context::Context) -> ttrpc::Result<T>,
    ) -> Result<T, Failure> {
        let ask = async {
            match question(connect(socket).await?, context()).await {
                Ok(answer) => Ok(Ok(answer)),
                // That is an answer too.
                Err(ttrpc::Error::RpcStatus(status)) => Ok(Err(Failure::because(status.message))),
                Err(error) => Err(silence(socket, error)),
            }
        };
        let answer = self.tokio.block_on(within(ANSWERS_WITHIN, ask));
        answer.unwrap_or_else(|silence| {
            let why = match &silence {
                Silence::Over => "has ended",
                Silence::Died => "has died",
                Silence::Because(why) => why,
            };
            Err(Failure::because(complaint(socket, why)))
        })
    }

    /// The sockets of all shims that there are.
    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        sockets(&self.directory)
    }

    /// Asks these shims at the same time to stop their pods.
    pub(super) fn stop(
        &self,
        sockets: impl IntoIterator<Item = PathBuf>,
        request: &api::StopRequest,
    ) -> Vec<(PathBuf, Result<AskedToStop, Silence>)> {
        let ask = |socket: PathBuf| {
            let request = request.clone();
            async move { stop(&socket, &request).await }
        };
        self.tokio.block_on(ask_all(sockets, ask))
    }

    /// Hears of all pods, those that come later too, until `each` says that it is enough.
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

    /// The pod behind a socket, or why its shim says nothing.
    pub(super) fn status(&self, socket: &Path) -> Result<api::Pod, Silence> {
        self.tokio.block_on(status(socket, false))
    }

    /// Waits: for an interval, say.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.tokio.block_on(work)
    }
}

/// The exit status of a command that has shown all there is, but for these.
pub(super) fn status_of(silent: usize) -> ExitCode {
    match silent {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn key(pod: &api::Pod) -> (String, String, String) {
    (namespace(pod).to_owned(), pod.name.clone(), pod.id.clone())
}

// === sockets ===

fn sockets(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|entry| entry.path()).collect()
}

/// Connects to a shim. Never waits in the kernel, where no limit holds.
async fn connect(socket: &Path) -> Result<ControlClient, Silence> {
    loop {
        // Read-only clients may not connect to root's socket, and older shims have none.
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
            ErrorKind::NotFound => return Err(Silence::Over),
            ErrorKind::ConnectionRefused => return Err(Silence::Died),
            // As many wait for it as may.
            ErrorKind::WouldBlock => sleep(CALL_AGAIN_AFTER).await,
            _ => return Err(Silence::Because(format!("cannot be asked: {error}"))),
        }
    }
}

/// The shim need not answer either when nobody waits any more; until then it is our own clock that
/// counts.
fn context() -> ttrpc::context::Context {
    ttrpc::context::with_duration(ANSWERS_WITHIN.saturating_mul(2))
}

async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Silence>>,
) -> Result<T, Silence> {
    timeout(limit, answer).await.unwrap_or_else(|_late| {
        let why = format!("does not answer within {limit:?}");
        Err(Silence::Because(why))
    })
}

/// Asks all of them at the same time: none waits for another.
async fn ask_all<T, F>(
    sockets: impl IntoIterator<Item = PathBuf>,
    question: impl Fn(PathBuf) -> F,
) -> Vec<(PathBuf, Result<T, Silence>)>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Silence>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for socket in sockets {
        let answer = question(socket.clone());
        asked.spawn(async move { (socket, answer.await) });
    }
    asked.join_all().await
}

async fn status(socket: &Path, details: bool) -> Result<api::Pod, Silence> {
    let request = api::StatusRequest {
        events: details,
        kernel: details,
        ..api::StatusRequest::new()
    };
    let ask = async {
        let client = connect(socket).await?;
        let answer = client.status(context(), &request).await;
        let response = answer.map_err(|error| silence(socket, error))?;
        response.pod.into_option().ok_or(Silence::Over)
    };
    within(ANSWERS_WITHIN, ask).await
}

async fn stop(socket: &Path, request: &api::StopRequest) -> Result<AskedToStop, Silence> {
    let pod = status(socket, false).await?;
    let ask = async {
        match connect(socket).await?.stop(context(), request).await {
            Ok(answer) => Ok(Ok(answer)),
            // That is an answer too.
            Err(ttrpc::Error::RpcStatus(status)) => Ok(Err(status.message)),
            Err(error) => Err(silence(socket, error)),
        }
    };
    let answer = within(ANSWERS_WITHIN, ask).await?;
    Ok(AskedToStop { pod, answer })
}

/// What an error says of the shim that we were connected to.
fn silence(socket: &Path, error: ttrpc::Error) -> Silence {
    // It lets go of it before it hangs up.
    if !socket.exists() {
        return Silence::Over;
    }
    match error {
        ttrpc::Error::RpcStatus(status) if status.code() == Code::NOT_FOUND => Silence::Over,
        ttrpc::Error::RpcStatus(status) => Silence::Because(format!("says: {}", status.message)),
        _ => Silence::Because("hangs up without an answer; many may be asking it".to_owned()),
    }
}

/// A shim, and what it does, as a sentence.
pub(super) fn complaint(socket: &Path, why: &str) -> String {
    format!("the shim at {} {why}", socket.display())
}

// === watching ===

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

/// What is known of a pod that is watched.
#[derive(Default)]
struct Watched {
    was_there: bool,
    /// Its shim says nothing, and that was said.
    is_silent: bool,
}

/// Follows a pod to its end. A shim that says nothing, or no more, is named once, and asked again.
async fn watch_one(socket: PathBuf, tell: mpsc::Sender<Update>) {
    let mut watched = Watched::default();
    while let Silence::Because(why) = listen(&socket, &tell, &mut watched).await {
        if !std::mem::replace(&mut watched.is_silent, true) {
            warn(&complaint(&socket, &why));
        }
        sleep(LOOK_EVERY).await;
    }
    if watched.was_there {
        let _ = tell.send(Update { socket, pod: None }).await;
    }
    sleep(LOOK_EVERY).await;
}

/// Hears of a pod until nothing more is said.
async fn listen(socket: &Path, tell: &mpsc::Sender<Update>, watched: &mut Watched) -> Silence {
    let request = api::StatusRequest::new();
    let open = async {
        let client = connect(socket).await?;
        let opened = client.watch(ttrpc::context::Context::default(), &request);
        opened.await.map_err(|error| silence(socket, error))
    };
    let mut updates = match within(ANSWERS_WITHIN, open).await {
        Ok(updates) => updates,
        Err(silence) => return silence,
    };
    let mut limit = ANSWERS_WITHIN;
    loop {
        let next = async {
            let update = updates.recv().await;
            let update = update.map_err(|error| silence(socket, error))?;
            update
                .and_then(|update| update.pod.into_option())
                .ok_or(Silence::Over)
        };
        let pod = match within(limit, next).await {
            Ok(pod) => pod,
            Err(silence) => return silence,
        };
        limit = SPEAKS_WITHIN;
        *watched = Watched {
            was_there: true,
            is_silent: false,
        };
        let update = Update {
            socket: socket.to_owned(),
            pod: Some(pod),
        };
        if tell.send(update).await.is_err() {
            return Silence::Over;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_that_does_not_do_what_it_is_asked_for_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let socket = directory.path().join("socket");
        let node = Node {
            directory: directory.path().to_owned(),
            tokio,
        };
        let ask = || {
            let request = api::StopRequest::new();
            let asked = node.ask(&socket, async |client, context| {
                client.stop(context, &request).await
            });
            let Err(Failure::Because(why)) = asked else {
                panic!("nobody is there")
            };
            why.replace(&socket.display().to_string(), "SOCKET")
        };
        assert_eq!(ask(), "the shim at SOCKET has ended");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(ask(), "the shim at SOCKET does not answer within 500ms");
        let hangs_up = std::thread::spawn(move || {
            // The first is the one that was not answered.
            for _ in 0..2 {
                drop(listener.accept().unwrap());
            }
        });
        assert_eq!(
            ask(),
            "the shim at SOCKET hangs up without an answer; many may be asking it"
        );
        hangs_up.join().unwrap();
        assert_eq!(ask(), "the shim at SOCKET has died");
    }
}
