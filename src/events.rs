//! Events out: to containerd, in the order they happened.
//!
//! One task sends one event after another, and the next only when the one before has been
//! acknowledged. While containerd is away they wait; what happened comes in order when it is back.

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

use crate::packed::Pack;

/// A point in time as the messages have it.
pub fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
        ..Timestamp::new()
    }
}

/// How many events wait at most; then the oldest is dropped. Exits are not lost with it: containerd
/// asks for the state of every task when it is back.
const AT_MOST: usize = 2048;

/// How long containerd may take to acknowledge an event while the connection stands. One that hangs
/// for less finds what was sent when it goes on: sent again on another connection it would come
/// twice. One that dies takes the connection with it, which is seen at once.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(60);

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// What containerd is told of. Unlike [`Pack`] it can be a trait object: events of all kinds wait in one queue.
pub trait Event: containerd_shim::event::Event {
    /// Packs it.
    ///
    /// # Errors
    ///
    /// The library's, if it is too large to be encoded.
    fn pack(&self) -> protobuf::Result<Any>;
}

impl<E: containerd_shim::event::Event + Pack> Event for E {
    fn pack(&self) -> protobuf::Result<Any> {
        Pack::pack(self)
    }
}

/// Where events go.
pub trait Publish: fmt::Debug + Send + Sync {
    /// Publishes an event after all that were before it. It never waits.
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
    /// The first is the one under way.
    events: Mutex<VecDeque<Envelope>>,
    came: Notify,
    sent: Notify,
}

impl Publisher {
    /// A publisher to containerd's TTRPC `address`, for events of `namespace`.
    pub fn new(address: &str, namespace: &str) -> Publisher {
        let address = address.strip_prefix("unix://").unwrap_or(address);
        // Without an address there is nobody to tell, and nothing is to be kept for anybody.
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

    /// Waits until everything has been acknowledged, but not for longer than `within`.
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
            tracing::warn!(waiting, "events were not taken by containerd and are lost");
        }
    }
}

impl Publish for Publisher {
    fn publish(&self, event: Box<dyn Event>) {
        let Some(queue) = &self.queue else { return };
        let topic = event.topic();
        let packed = match event.pack() {
            Ok(packed) => packed,
            Err(error) => return tracing::error!(topic, %error, "an event could not be encoded"),
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
                "containerd takes no events: the oldest is dropped"
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
                    "containerd refuses an event, which is dropped"
                );
                queue.lock().pop_front();
                queue.sent.notify_waiters();
            }
            Err(error) => {
                tracing::debug!(
                    error = said(&error),
                    "containerd does not take an event, trying again"
                );
                containerd = None;
                sleep(retry).await;
                retry = retry.saturating_mul(2).min(LAST_RETRY);
            }
        }
    }
}

/// Its words. ttrpc would show the whole status, for which it needs the descriptors that [`Pack`] does without.
fn said(error: &ttrpc::Error) -> String {
    match error {
        ttrpc::Error::RpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}

/// Whether containerd will never take the event, however often it is asked.
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

/// Connects at once or not at all: one that hangs, and for whom as many wait as may, would keep the
/// shim's only thread waiting with them.
async fn connect(address: &Path) -> Result<Client, ttrpc::Error> {
    let stream = UnixStream::connect(address).await;
    let stream = stream.map_err(|error| ttrpc::Error::Socket(error.to_string()))?;
    Ok(Client::new(Socket::from(stream)))
}
