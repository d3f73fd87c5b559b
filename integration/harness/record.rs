//! The record of events, written by the containers of a test. It tells tests in which order things
//! happened.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::{Containerd, PATIENCE, poll};

/// A line of the record.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Nanoseconds since 1970 by the machine's clock, which all containers share.
    pub at_ns: u64,
    pub name: String,
    /// The kind of event: `start`, `ready`, `accepted`, `signal`, `beat`, `exit`, or a word of the
    /// test's choice.
    pub what: String,
    pub detail: String,
}

/// All events so far, in order.
#[derive(Clone, Debug, Default)]
pub struct Record(pub Vec<Event>);

impl Event {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(4, ' ');
        Some(Self {
            at_ns: fields.next()?.parse().ok()?,
            name: fields.next()?.to_owned(),
            what: fields.next()?.to_owned(),
            detail: fields.next().unwrap_or_default().to_owned(),
        })
    }
}

impl Record {
    /// Reads the record in a directory shared by containers.
    pub fn read(shared_dir: &Path) -> Self {
        let text = std::fs::read_to_string(shared_dir.join("record")).unwrap_or_default();
        let mut events: Vec<Event> = text.lines().filter_map(Event::parse).collect();
        // A witness reads the clock, and then appends the line. So if two events have nearly the
        // same time, their lines may be in the wrong order.
        events.sort_by_key(|e| e.at_ns);
        Self(events)
    }

    pub fn all<'a>(&'a self, name: &'a str, what: &'a str) -> impl Iterator<Item = &'a Event> {
        self.0
            .iter()
            .filter(move |e| e.name == name && e.what == what)
    }

    pub fn first(&self, name: &str, what: &str) -> Option<&Event> {
        self.0.iter().find(|e| e.name == name && e.what == what)
    }

    pub fn has(&self, name: &str, what: &str) -> bool {
        self.first(name, what).is_some()
    }

    /// The time of the first event of this kind by this container, in nanoseconds since 1970.
    #[track_caller]
    pub fn at(&self, name: &str, what: &str) -> u64 {
        let event = self.first(name, what);
        event
            .unwrap_or_else(|| panic!("{name} recorded no {what}:\n{self}"))
            .at_ns
    }

    /// The time between two events. Fails the test if the event `later` happened first.
    #[track_caller]
    pub fn between(&self, earlier: (&str, &str), later: (&str, &str)) -> Duration {
        let (from, to) = (self.at(earlier.0, earlier.1), self.at(later.0, later.1));
        assert!(from <= to, "{later:?} came before {earlier:?}:\n{self}");
        Duration::from_nanos(to - from)
    }

    /// True if the event `earlier` happened before the event `later`. Fails the test if one of them
    /// has not happened.
    #[track_caller]
    pub fn before(&self, earlier: (&str, &str), later: (&str, &str)) -> bool {
        self.at(earlier.0, earlier.1) < self.at(later.0, later.1)
    }

    /// Checks that the event `earlier` happened before the event `later`. Otherwise fails the test
    /// and prints the record.
    #[track_caller]
    pub fn assert_before(&self, earlier: (&str, &str), later: (&str, &str)) {
        assert!(self.before(earlier, later), "{self}");
    }

    /// The names of the containers, in the order of their first event of the kind `what`.
    pub fn order(&self, what: &str) -> Vec<&str> {
        let mut names = Vec::new();
        for event in self.0.iter().filter(|e| e.what == what) {
            if !names.contains(&event.name.as_str()) {
                names.push(&event.name);
            }
        }
        names
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.0.first().map_or(0, |e| e.at_ns);
        for Event {
            at_ns,
            name,
            what,
            detail,
        } in &self.0
        {
            let ms = (at_ns - first) as f64 / 1e6;
            writeln!(f, "{ms:10.3} ms  {name} {what} {detail}")?;
        }
        Ok(())
    }
}

impl Containerd {
    pub fn record(&self) -> Record {
        Record::read(&self.shared_dir())
    }

    /// Waits until the record meets a condition, and returns it.
    #[track_caller]
    pub fn await_record(&self, what: &str, condition: impl Fn(&Record) -> bool) -> Record {
        let probe = || Some(self.record()).filter(|record| condition(record));
        match poll(PATIENCE, probe) {
            Some(record) => record,
            None => panic!(
                "within {PATIENCE:?} it never came true that {what}:\n{}",
                self.record()
            ),
        }
    }

    /// Waits until a container has recorded an event.
    #[track_caller]
    pub fn await_event(&self, name: &str, what: &str) -> Record {
        self.await_record(&format!("{name} recorded {what}"), |record| {
            record.has(name, what)
        })
    }
}
