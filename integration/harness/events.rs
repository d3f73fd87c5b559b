//! containerd's events, as `ctr events` prints them.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::{Containerd, PATIENCE, poll};

/// An event in the test's namespace.
#[derive(Clone, Debug)]
pub struct CtrEvent {
    /// Time of publication by the shim or containerd, in nanoseconds since 1970.
    pub at_ns: u64,
    pub topic: String,
    pub data: Value,
}

/// Collects the events, also across restarts of containerd.
#[derive(Default)]
pub struct Recorder {
    seen: Arc<Mutex<Vec<CtrEvent>>>,
    child: Mutex<Option<Child>>,
}

impl CtrEvent {
    /// The id of the container that the event is about.
    pub fn container(&self) -> &str {
        let field = if self.topic.starts_with("/tasks/") {
            "container_id"
        } else {
            "id"
        };
        self.data[field].as_str().unwrap_or_default()
    }

    /// True if the event is about the container or its first process, and not about an exec.
    pub fn is_init(&self) -> bool {
        self.data.get("exec_id").is_none()
            && self.data.get("id").is_none_or(|id| id == self.container())
    }

    /// The exit status in an exit or delete event. The JSON text leaves out a status of 0.
    pub fn exit_status(&self) -> u32 {
        self.data["exit_status"].as_u64().unwrap_or(0) as u32
    }

    /// Parses `2026-11-20 14:01:50.532738489 +0000 UTC <namespace> <topic> <JSON>`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(7, ' ');
        let (date, time) = (fields.next()?, fields.next()?);
        let topic = fields.nth(3)?;
        let data = serde_json::from_str(fields.next()?).ok()?;
        Some(Self {
            at_ns: unix_ns(date, time)?,
            topic: topic.to_owned(),
            data,
        })
    }
}

impl fmt::Display for CtrEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.at_ns, self.topic, self.data)
    }
}

fn unix_ns(date: &str, time: &str) -> Option<u64> {
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    // Computes the days since 1970. In this calculation a year begins in March, so that a leap day
    // is the last day of its year.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let days = days - 719_469;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut clock = clock.split(':').map(|part| part.parse::<u64>().ok());
    let seconds = clock.next()?? * 3600 + clock.next()?? * 60 + clock.next()??;
    let nanoseconds: u64 = format!("{fraction:0<9}").parse().ok()?;
    Some((days * 86_400 + seconds) * 1_000_000_000 + nanoseconds)
}

impl Recorder {
    /// Starts to collect events. Returns when `ctr events` has subscribed, so that no later event
    /// is missed.
    #[track_caller]
    pub fn follow(&self, host: &Containerd) {
        let mut child = host.ctr_command(&["events"]);
        child
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = child.spawn().expect("ctr events");
        let output = child.stdout.take().expect("a pipe");
        let seen = Arc::clone(&self.seen);
        std::thread::spawn(move || collect(output, &seen));
        *self.child.lock().unwrap() = Some(child);

        // `ctr events` does not say when it has subscribed. So the test changes a label repeatedly,
        // until `ctr events` prints a change.
        let mut attempt = 0;
        let subscribed = poll(PATIENCE, || {
            attempt += 1;
            let label = format!("sync={attempt}");
            host.must(&["namespaces", "label", &host.namespace, &label]);
            let marker = |e: &CtrEvent| e.topic == "/namespaces/update";
            let mut seen = self.seen.lock().unwrap();
            let found = seen.iter().any(marker);
            seen.retain(|e| !marker(e));
            found.then_some(())
        });
        assert!(
            subscribed.is_some(),
            "ctr events printed nothing for {PATIENCE:?}"
        );
    }

    pub fn stop(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn collect(output: ChildStdout, seen: &Mutex<Vec<CtrEvent>>) {
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { return };
        if let Some(event) = CtrEvent::parse(&line) {
            seen.lock().unwrap().push(event);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Containerd {
    /// All events so far, in the order of their arrival.
    pub fn events(&self) -> Vec<CtrEvent> {
        let seen = self.events.seen.lock().unwrap();
        seen.iter()
            .filter(|e| !e.topic.starts_with("/namespaces/"))
            .cloned()
            .collect()
    }

    /// The topics of a container's events in order. If an event has an exit status, the status
    /// follows its topic.
    pub fn topics(&self, id: &str) -> Vec<String> {
        let concerned = self.events().into_iter().filter(|e| e.container() == id);
        let text = |e: CtrEvent| match e.topic.as_str() {
            "/tasks/exit" | "/tasks/delete" => format!("{} {}", e.topic, e.exit_status()),
            _ => e.topic,
        };
        concerned.map(text).collect()
    }

    /// Waits until the events so far meet a condition.
    #[track_caller]
    pub fn await_events(&self, what: &str, condition: impl Fn(&[CtrEvent]) -> bool) {
        if poll(PATIENCE, || condition(&self.events()).then_some(())).is_none() {
            panic!("within {PATIENCE:?} the events never showed that {what}");
        }
    }

    /// The number of times that a task of this container was created, according to the events so
    /// far.
    pub fn creations(&self, id: &str) -> usize {
        let topics = self.topics(id);
        topics.iter().filter(|t| *t == "/tasks/create").count()
    }

    /// Waits until the container has more than `before` create events. An event may arrive after
    /// the answer to the call. Without the wait, the test might take the events of an earlier task
    /// for those of this one.
    ///
    /// Returns at once if `before` is 0, because then there is no earlier task.
    #[track_caller]
    pub(super) fn await_creation(&self, id: &str, before: usize) {
        if before > 0 {
            self.await_events(&format!("{id} was created again"), |_| {
                self.creations(id) > before
            });
        }
    }

    /// Waits for the exit event of a container's first process, and returns the exit status.
    #[track_caller]
    pub fn wait_exit(&self, id: &str) -> u32 {
        self.wait_exit_event(id).exit_status()
    }

    /// Waits for the exit event of a container's first process. Ignores events before the latest
    /// create event.
    #[track_caller]
    pub fn wait_exit_event(&self, id: &str) -> CtrEvent {
        let find = || {
            let events = self.events();
            let ours = |e: &&CtrEvent| e.container() == id && e.is_init();
            let latest = events.iter().rev().filter(ours);
            let mut since_create = latest.take_while(|e| e.topic != "/tasks/create");
            since_create.find(|e| e.topic == "/tasks/exit").cloned()
        };
        let found = poll(PATIENCE, find);
        found.unwrap_or_else(|| panic!("no exit event of {id} within {PATIENCE:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_line_is_parsed() {
        let line = "2026-11-20 14:01:50.53 +0000 UTC ns /tasks/exit \
                    {\"container_id\":\"a\",\"id\":\"a\",\"exit_status\":137}";
        let event = CtrEvent::parse(line).expect("an event");
        assert_eq!(event.at_ns, 1_795_183_310_530_000_000);
        assert_eq!(
            (event.topic.as_str(), event.container()),
            ("/tasks/exit", "a")
        );
        assert!(event.is_init());
        assert_eq!(event.exit_status(), 137);
    }
}
