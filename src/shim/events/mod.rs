//! Sends events to containerd, in the order in which they happened.
//!
//! One task sends the events one at a time: it sends the next event only when containerd has
//! acknowledged the previous one. While containerd is down, events wait in a queue.

pub(crate) mod task;

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use containerd_shim_protos::api::ForwardRequest;
use containerd_shim_protos::protobuf;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim_async::{Client, EventsClient};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use ttrpc::Code;
use ttrpc::r#async::transport::Socket;

use usher_linux::any::Pack;

/// Converts a point in time to the protobuf type of the messages.
pub fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
        ..Timestamp::new()
    }
}

/// Converts a process id to the type of the messages. A process id is never negative.
pub(crate) fn message_pid(pid: i32) -> u32 {
    u32::try_from(pid).unwrap_or_default()
}

/// Maximum number of events that wait; beyond it, the oldest is dropped, except the one that is
/// being sent. containerd learns of exits even if their events are dropped: it asks for the state
/// of every task when it restarts.
const AT_MOST: usize = 2048;

/// Deadline for containerd's acknowledgment while the connection is open. After the deadline, the
/// shim sends the event again on a new connection. The deadline is long, because a containerd that
/// hangs may still read the first copy later, and then gets the event twice. If containerd dies,
/// the connection closes, and the shim notices that at once.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(60);

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// An event for containerd. Unlike `Pack`, this trait can be a trait object, so that one queue
/// holds events of all kinds.
pub trait Event: containerd_shim::event::Event {
    /// Encodes the event as `Any`.
    ///
    /// # Errors
    ///
    /// The protobuf library's error if the event is too large to be encoded.
    fn pack(&self) -> protobuf::Result<Any>;
}

impl<E: containerd_shim::event::Event + Pack> Event for E {
    fn pack(&self) -> protobuf::Result<Any> {
        Pack::pack(self)
    }
}

/// A receiver of events.
pub trait Publish: fmt::Debug + Send + Sync {
    /// Passes an event on, after all earlier events. Never blocks: [`Publisher`] queues the event.
    fn publish(&self, event: Box<dyn Event>);
}

/// Publishes events to containerd. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Publisher {
    queue: Option<Arc<Queue>>,
    namespace: String,
}

#[derive(Debug, Default)]
struct Queue {
    /// The events that wait. The first of them is being sent.
    events: Mutex<VecDeque<Envelope>>,
    came: Notify,
    sent: Notify,
}

impl Publisher {
    /// Creates a publisher to containerd's TTRPC `address`, for events of `namespace`. With an
    /// empty address, the publisher drops all events.
    pub fn new(address: &str, namespace: &str) -> Publisher {
        let address = address.strip_prefix("unix://").unwrap_or(address);
        // Without an address no event can be sent, so none is queued.
        let queue = (!address.is_empty()).then(|| {
            let queue = Arc::new(Queue::default());
            tokio::spawn(send_all(Arc::clone(&queue), PathBuf::from(address)));
            queue
        });
        Publisher {
            queue,
            namespace: namespace.to_owned(),
        }
    }

    /// Waits until containerd has acknowledged or refused all events, for `within` at most. Called
    /// when the shim ends, so events that are left after that are lost.
    pub async fn flush(&self, within: Duration) {
        let Some(queue) = &self.queue else { return };
        let empty = async {
            loop {
                let sent = queue.sent.notified();
                if queue.lock().is_empty() {
                    return;
                }
                sent.await;
            }
        };
        if timeout(within, empty).await.is_err() {
            let waiting = queue.lock().len();
            tracing::warn!(
                waiting,
                "containerd did not take the last events; they are lost"
            );
        }
    }
}

impl Publish for Publisher {
    fn publish(&self, event: Box<dyn Event>) {
        let Some(queue) = &self.queue else { return };
        let topic = event.topic();
        let packed = match event.pack() {
            Ok(packed) => packed,
            Err(error) => return tracing::error!(topic, %error, "cannot encode an event"),
        };
        let mut envelope = Envelope::new();
        envelope.set_timestamp(timestamp(SystemTime::now()));
        envelope.set_namespace(self.namespace.clone());
        envelope.set_topic(topic);
        envelope.set_event(packed);
        let mut events = queue.lock();
        if events.len() >= AT_MOST && events.remove(1).is_some() {
            tracing::warn!(
                waiting = AT_MOST,
                "containerd takes no events; dropping the oldest"
            );
        }
        events.push_back(envelope);
        drop(events);
        queue.came.notify_one();
    }
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Envelope>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn send_all(queue: Arc<Queue>, address: PathBuf) {
    let mut containerd: Option<EventsClient> = None;
    let mut retry = FIRST_RETRY;
    loop {
        let Some(envelope) = queue.lock().front().cloned() else {
            queue.came.notified().await;
            continue;
        };
        match send(&mut containerd, &address, envelope).await {
            Ok(()) => {
                retry = FIRST_RETRY;
                queue.lock().pop_front();
                queue.sent.notify_waiters();
            }
            Err(error) if is_final(&error) => {
                tracing::warn!(
                    error = said(&error),
                    "containerd refused an event; dropping it"
                );
                queue.lock().pop_front();
                queue.sent.notify_waiters();
            }
            Err(error) => {
                tracing::debug!(
                    error = said(&error),
                    "containerd did not take an event; trying again"
                );
                containerd = None;
                sleep(retry).await;
                retry = retry.saturating_mul(2).min(LAST_RETRY);
            }
        }
    }
}

/// Returns the message of an error. The error's own `Display` is not used, because it prints the
/// whole ttrpc status, and loads the message descriptors that [`Pack`] avoids.
fn said(error: &ttrpc::Error) -> String {
    match error {
        ttrpc::Error::RpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}

/// True if containerd rejected the event in a way that a retry does not change.
fn is_final(error: &ttrpc::Error) -> bool {
    matches!(error, ttrpc::Error::RpcStatus(status)
        if [Code::INVALID_ARGUMENT, Code::UNIMPLEMENTED].contains(&status.code()))
}

async fn send(
    containerd: &mut Option<EventsClient>,
    address: &Path,
    envelope: Envelope,
) -> Result<(), ttrpc::Error> {
    let client = match containerd {
        Some(client) => client,
        None => containerd.insert(EventsClient::new(connect(address).await?)),
    };
    let mut request = ForwardRequest::new();
    request.set_envelope(envelope);
    client
        .forward(ttrpc::context::with_duration(ACKNOWLEDGE_WITHIN), &request)
        .await?;
    Ok(())
}

/// Connects without blocking, because connect(2) to a containerd that hangs and has a full backlog
/// would block the shim's only thread.
async fn connect(address: &Path) -> Result<Client, ttrpc::Error> {
    let stream = UnixStream::connect(address).await;
    let stream = stream.map_err(|error| ttrpc::Error::Socket(error.to_string()))?;
    Ok(Client::new(Socket::from(stream)))
}
