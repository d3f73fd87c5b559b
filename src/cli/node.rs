//! The pods of this node, as their shims tell: found by their sockets, without containerd, which may
//! be down. One that does not answer does not keep the others.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use protobuf_json_mapping::PrintOptions;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use ttrpc::Code;
use ttrpc::r#async::Client;

use crate::control::{self, ControlClient, Ended, api};

use super::output::{Failure, warn};

/// How long a shim may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// How often it is looked for new pods by whoever watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many updates of watched pods may wait to be shown.
const UPDATES: usize = 64;

/// The node that this runs on.
pub(super) struct Node {
    directory: PathBuf,
    tokio: Runtime,
    has_silent: Cell<bool>,
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

/// Why a shim said nothing.
enum Silence {
    /// It looks after no pod any more, or is gone.
    Over,
    Because(String),
}

impl Node {
    pub(super) fn new() -> Result<Node, Failure> {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::because(format!("this process cannot wait: {error}")))?;
        let directory = control::directory();
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
        Ok(Node {
            directory,
            tokio,
            has_silent: Cell::new(false),
        })
    }

    /// The pods that are there, in the order of their names. Says which shims do not answer.
    pub(super) fn living(&self, events: bool) -> Vec<Found> {
        self.tokio.block_on(self.look(events))
    }

    /// The same for those who wait already.
    pub(super) async fn look(&self, events: bool) -> Vec<Found> {
        let mut asked = JoinSet::new();
        for socket in sockets(&self.directory) {
            asked.spawn(async move { (status(&socket, events).await, socket) });
        }
        let answers = asked.join_all().await;
        let mut living = Vec::new();
        for (answer, socket) in answers {
            match answer {
                Ok(pod) => living.push(Found {
                    socket: Some(socket),
                    pod,
                }),
                Err(Silence::Over) => {}
                Err(Silence::Because(why)) => {
                    self.has_silent.set(true);
                    warn(&format!("the shim at {} {why}", socket.display()));
                }
            }
        }
        living.sort_by_key(|found| key(&found.pod));
        living
    }

    /// Whether a shim was asked for its pod and has not answered.
    pub(super) fn has_silent(&self) -> bool {
        self.has_silent.get()
    }

    /// Those that ended within the last hour, in the order of their ends.
    pub(super) fn ended(&self) -> Vec<api::Pod> {
        Ended::in_directory(&self.directory).pods(SystemTime::now())
    }

    /// The pod that is called so: by its name, its namespace and name, its id, or how that begins.
    /// One that lives counts more than one that has ended, and of those the last.
    pub(super) fn find(&self, which: &str, events: bool) -> Result<Found, Failure> {
        let living = self.living(events);
        let ended = self.ended().into_iter().rev();
        let ended = ended.map(|pod| Found { socket: None, pod });
        if let Some(found) = only(which, living)? {
            return Ok(found);
        }
        let mut ended = ended.filter(|found| is_called(which, &found.pod) > 0);
        ended.next().ok_or_else(|| {
            Failure::because(format!(
                "there is no pod {which:?} on this node, nor was there in the last hour; see usher ps --all"
            ))
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
        let answer = self.tokio.block_on(async {
            let ask = async { question(connect(socket).await?, context()).await };
            tokio::time::timeout(ANSWERS_WITHIN, ask).await
        });
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ttrpc::Error::RpcStatus(status))) => Err(Failure::because(status.message)),
            Ok(Err(error)) => Err(Failure::because(format!(
                "the shim at {}: {error}",
                socket.display()
            ))),
            Err(_late) => Err(Failure::because(format!(
                "the shim at {} {}",
                socket.display(),
                late()
            ))),
        }
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

    /// The pod behind a socket; none if it is over, an error if its shim says nothing.
    pub(super) fn status(&self, socket: &Path) -> Result<Option<api::Pod>, ()> {
        match self.tokio.block_on(status(socket, false)) {
            Ok(pod) => Ok(Some(pod)),
            Err(Silence::Over) => Ok(None),
            Err(Silence::Because(_)) => Err(()),
        }
    }

    /// Waits: for an interval, say.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.tokio.block_on(work)
    }
}

/// Of those that are called so the one that is called so most exactly.
fn only(which: &str, living: Vec<Found>) -> Result<Option<Found>, Failure> {
    let best = living
        .iter()
        .map(|found| is_called(which, &found.pod))
        .max();
    let Some(best) = best.filter(|best| *best > 0) else {
        return Ok(None);
    };
    let mut candidates: Vec<_> = living
        .into_iter()
        .filter(|found| is_called(which, &found.pod) == best)
        .collect();
    match (candidates.pop(), candidates.is_empty()) {
        (found, true) => Ok(found),
        (last, false) => {
            let all = candidates.iter().chain(&last);
            let names: Vec<_> = all.map(|found| full_name(&found.pod)).collect();
            Err(Failure::because(format!(
                "{which:?} is the name of more than one pod, expected one of {}",
                names.join(", ")
            )))
        }
    }
}

/// How exactly a pod is called so; 0 if it is not.
fn is_called(which: &str, pod: &api::Pod) -> u8 {
    let full = format!("{}/{}", namespace(pod), pod.name);
    match which {
        _ if which == pod.id || which == full || which == full_name(pod) => 3,
        _ if which == pod.name => 2,
        _ if which.len() >= 4 && pod.id.starts_with(which) => 1,
        _ => 0,
    }
}

/// As none other on this node.
pub(super) fn full_name(pod: &api::Pod) -> String {
    let id: String = pod.id.chars().take(12).collect();
    match pod.name == pod.id {
        true => format!("{}/{}", namespace(pod), pod.name),
        false => format!("{}/{} ({id})", namespace(pod), pod.name),
    }
}

/// Kubernetes' namespace of a pod; without Kubernetes containerd's.
pub(super) fn namespace(pod: &api::Pod) -> &str {
    match pod.namespace.as_str() {
        "" => &pod.containerd_namespace,
        namespace => namespace,
    }
}

fn key(pod: &api::Pod) -> (String, String, String) {
    (namespace(pod).to_owned(), pod.name.clone(), pod.id.clone())
}

/// A message as JSON.
pub(super) fn json(message: &dyn protobuf::MessageDyn) -> Result<Value, Failure> {
    let options = PrintOptions {
        always_output_default_values: true,
        ..PrintOptions::default()
    };
    let text = protobuf_json_mapping::print_to_string_with_options(message, &options);
    let value = text
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    value.map_err(|error| Failure::because(format!("the answer cannot be encoded: {error}")))
}

// === sockets ===

fn sockets(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|entry| entry.path()).collect()
}

async fn connect(socket: &Path) -> ttrpc::Result<ControlClient> {
    let address = format!("unix://{}", socket.display());
    Client::connect(&address).await.map(ControlClient::new)
}

/// The shim need not answer either when nobody waits any more; until then it is our own clock that
/// counts.
fn context() -> ttrpc::context::Context {
    ttrpc::context::with_duration(ANSWERS_WITHIN.saturating_mul(2))
}

fn late() -> String {
    format!("does not answer within {ANSWERS_WITHIN:?}")
}

async fn status(socket: &Path, events: bool) -> Result<api::Pod, Silence> {
    let ask = async {
        let request = api::StatusRequest {
            events,
            ..api::StatusRequest::new()
        };
        connect(socket).await?.status(context(), &request).await
    };
    match tokio::time::timeout(ANSWERS_WITHIN, ask).await {
        Ok(Ok(response)) => response.pod.into_option().ok_or(Silence::Over),
        Ok(Err(error)) => Err(silence(socket, error)),
        Err(_late) => Err(Silence::Because(late())),
    }
}

fn silence(socket: &Path, error: ttrpc::Error) -> Silence {
    if !socket.exists() {
        return Silence::Over;
    }
    match &error {
        ttrpc::Error::RpcStatus(status) if status.code() == Code::NOT_FOUND => Silence::Over,
        // Nobody listens there any more: it has died, and what it left will be cleared away.
        _ if error.to_string().contains("ECONNREFUSED")
            || error.to_string().contains("Connection refused") =>
        {
            Silence::Over
        }
        _ => Silence::Because(format!("says: {error}")),
    }
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
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn watch_one(socket: PathBuf, tell: mpsc::Sender<Update>) {
    let open = async {
        let client = connect(&socket).await?;
        let request = api::StatusRequest::new();
        client
            .watch(ttrpc::context::Context::default(), &request)
            .await
    };
    let Ok(Ok(mut updates)) = tokio::time::timeout(ANSWERS_WITHIN, open).await else {
        // It is tried again as long as the socket is there, but not at once.
        return tokio::time::sleep(LOOK_EVERY).await;
    };
    let mut was_there = false;
    while let Ok(Some(update)) = updates.recv().await {
        let Some(pod) = update.pod.into_option() else {
            break;
        };
        was_there = true;
        let socket = socket.clone();
        let update = Update {
            socket,
            pod: Some(pod),
        };
        if tell.send(update).await.is_err() {
            return;
        }
    }
    if was_there {
        let _ = tell.send(Update { socket, pod: None }).await;
    }
    tokio::time::sleep(LOOK_EVERY).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(namespace: &str, name: &str, id: &str) -> Found {
        let pod = api::Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            id: id.to_owned(),
            ..api::Pod::new()
        };
        Found { socket: None, pod }
    }

    #[test]
    fn a_pod_is_called_by_what_is_unique_about_it() {
        let pods = vec![
            found("shop", "web", "aaaa1"),
            found("test", "web", "aaaa2"),
            found("test", "db", "bbbb3"),
        ];
        let named = |which| only(which, pods.clone());
        assert_eq!(named("db").unwrap().unwrap().pod.id, "bbbb3");
        assert_eq!(named("shop/web").unwrap().unwrap().pod.id, "aaaa1");
        assert_eq!(named("bbbb").unwrap().unwrap().pod.id, "bbbb3");
        assert_eq!(named("aaaa2").unwrap().unwrap().pod.id, "aaaa2");
        for ambiguous in ["web", "aaaa"] {
            let Err(Failure::Because(why)) = named(ambiguous) else {
                panic!("{ambiguous} is one of two")
            };
            assert!(why.contains("shop/web (aaaa1)"), "{why}");
        }
        assert!(named("api").unwrap().is_none());
        assert!(named("b").unwrap().is_none());
    }
}
