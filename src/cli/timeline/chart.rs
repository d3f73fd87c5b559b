//! What is to be drawn: rows of spans and marks, made of what the shim has recorded.

use crate::control::api;

use super::super::node::namespace;
use super::super::time;
use super::axis::Axis;

/// The signals that a program takes for its end: TERM, INT, QUIT, PWR, RTMIN+3.
const STOPS: [u32; 5] = [15, 2, 3, 30, 37];

/// A bar that takes a smaller share of the line needs no explanation.
const SEEN_FROM: f64 = 0.002;

/// A whole timeline.
pub(super) struct Chart {
    pub title: String,
    pub status: String,
    pub rows: Vec<Row>,
    pub axis: Axis,
    /// Whether older events have been forgotten.
    pub is_cut: bool,
}

/// A container, or the pod itself.
pub(super) struct Row {
    pub name: String,
    pub role: String,
    pub spans: Vec<Span>,
    pub marks: Vec<Mark>,
    /// What has become of it.
    pub end: String,
    /// Whether that is bad.
    pub is_bad: bool,
}

/// From when to when it was what; in seconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub from: f64,
    pub to: f64,
    pub state: State,
}

/// What a bar stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Held,
    Starting,
    Running,
    Stopping,
    BackOff,
}

/// Something that happened at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub at: f64,
    pub kind: Kind,
    pub text: String,
}

/// What a mark stands for. Of those that fall together the later ones here are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Asked,
    Ready,
    Released,
    Signal,
    Exit,
    Failure,
    OutOfMemory,
    Kill,
}

impl State {
    pub(super) const ALL: [State; 5] = [
        State::Held,
        State::Starting,
        State::Running,
        State::Stopping,
        State::BackOff,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            State::Held => "held",
            State::Starting => "starting",
            State::Running => "running",
            State::Stopping => "stopping",
            State::BackOff => "back-off",
        }
    }
}

impl Kind {
    pub(super) const ALL: [Kind; 8] = [
        Kind::Asked,
        Kind::Ready,
        Kind::Released,
        Kind::Signal,
        Kind::Exit,
        Kind::Failure,
        Kind::OutOfMemory,
        Kind::Kill,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Asked => "asked to stop",
            Kind::Ready => "ready",
            Kind::Released => "released by hand",
            Kind::Signal => "signal",
            Kind::Exit => "exit 0",
            Kind::Failure => "failure",
            Kind::OutOfMemory => "out of memory",
            Kind::Kill => "kill",
        }
    }
}

impl Chart {
    /// What is known of a pod, which at `now` may still live.
    pub(super) fn of(pod: &api::Pod, now: f64) -> Chart {
        let end = time::seconds(&pod.ended)
            .or(time::seconds(&pod.now))
            .unwrap_or(now);
        let times = pod
            .events
            .iter()
            .filter_map(|event| time::seconds(&event.at));
        let begin = times.clone().fold(end, f64::min);
        let begin = time::seconds(&pod.created).map_or(begin, |created| created.min(begin));
        let mut rows = vec![pod_row(pod, begin, end)];
        let sandbox_last = |container: &&api::Container| container.role == "sandbox";
        let workload = pod.containers.iter().filter(|one| !sandbox_last(one));
        let sandboxes = pod.containers.iter().filter(sandbox_last);
        rows.extend(
            workload
                .chain(sandboxes)
                .map(|container| row(pod, container, begin, end)),
        );
        Chart {
            title: format!("{}/{}", namespace(pod), pod.name),
            status: pod.status.clone(),
            rows,
            axis: Axis::new(begin, end, times.collect()),
            is_cut: pod.forgotten_events > 0,
        }
    }

    /// The states and kinds of marks that occur, for the legend.
    pub(super) fn states(&self) -> Vec<State> {
        let is_seen =
            |span: &Span| self.axis.place(span.to) - self.axis.place(span.from) > SEEN_FROM;
        let occurs = |state: &State| {
            let mut spans = self.rows.iter().flat_map(|row| &row.spans);
            spans.any(|span| span.state == *state && is_seen(span))
        };
        State::ALL.into_iter().filter(occurs).collect()
    }

    pub(super) fn kinds(&self) -> Vec<Kind> {
        let occurs = |kind: &Kind| {
            let mut marks = self.rows.iter().flat_map(|row| &row.marks);
            marks.any(|mark| mark.kind == *kind)
        };
        Kind::ALL.into_iter().filter(occurs).collect()
    }
}

/// The pod as a whole: starting, running, stopping.
fn pod_row(pod: &api::Pod, begin: f64, end: f64) -> Row {
    let mut pen = Pen::new(begin, State::Starting);
    let ready = time::seconds(&pod.became_ready);
    let mut events: Vec<(f64, &api::Event)> = pod
        .events
        .iter()
        .filter(|event| event.container.is_empty())
        .filter_map(|event| Some((time::seconds(&event.at)?, event)))
        .collect();
    events.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let first = events.first().map_or(end, |(at, _)| *at);
    if let Some(ready) = ready.filter(|ready| *ready <= first) {
        pen.change(ready, State::Running);
        pen.mark(ready, Kind::Ready, "all is started".to_owned());
    }
    for (at, event) in events {
        match event.what.as_str() {
            "terminating" => {
                pen.change(at, State::Stopping);
                pen.mark(at, Kind::Asked, format!("terminates: {}", event.detail));
            }
            "not-terminating" => pen.change(at, State::Running),
            "grace-over" => pen.mark(at, Kind::Kill, "the grace period is over".to_owned()),
            _ => {}
        }
    }
    let (spans, marks) = pen.lift(end);
    Row {
        name: "pod".to_owned(),
        role: String::new(),
        spans,
        marks,
        end: pod.status.clone(),
        is_bad: pod.status.contains("Error") || pod.status == "Failed",
    }
}

fn row(pod: &api::Pod, container: &api::Container, begin: f64, end: f64) -> Row {
    let created = time::seconds(&container.created).unwrap_or(begin);
    // What was there before the oldest event that is known is known by its last state alone.
    let mut pen = Pen::nowhere();
    let is_probed = container.role == "sidecar";
    let mut has_events = false;
    for event in pod
        .events
        .iter()
        .filter(|event| event.container == container.name)
    {
        let Some(at) = time::seconds(&event.at) else {
            continue;
        };
        has_events = true;
        match event.what.as_str() {
            "created" => pen.change(at, State::Held),
            "executed" if is_probed => pen.change(at, State::Starting),
            "executed" => pen.change(at, State::Running),
            "ready" => {
                pen.change(at, State::Running);
                pen.mark(at, Kind::Ready, "ready".to_owned());
            }
            "released" => pen.mark(at, Kind::Released, "released by hand".to_owned()),
            "asked" if STOPS.contains(&event.number) => {
                pen.mark(at, Kind::Asked, format!("asked to stop: {}", event.detail));
            }
            "signalled" => {
                if STOPS.contains(&event.number) {
                    pen.change(at, State::Stopping);
                }
                pen.mark(at, Kind::Signal, format!("signal {}", event.detail));
            }
            "killed" => {
                pen.change(at, State::Stopping);
                pen.mark(at, Kind::Kill, format!("killed: {}", event.detail));
            }
            "oom-killed" => pen.mark(at, Kind::OutOfMemory, "memory ran out".to_owned()),
            "backing-off" => pen.change(at, State::BackOff),
            "exited" => {
                pen.stop(at);
                let kind = match event.number {
                    0 => Kind::Exit,
                    _ => Kind::Failure,
                };
                pen.mark(at, kind, format!("exited with {}", event.number));
            }
            _ => {}
        }
    }
    if !has_events {
        pen.change(created.max(begin), State::Running);
    }
    let (spans, marks) = pen.lift(end);
    let code = container.exit_code.filter(|_| !container.exited.is_none());
    let is_killed = !container.kills.is_empty();
    Row {
        name: container.name.clone(),
        role: container.role.clone(),
        spans,
        marks,
        end: match code {
            Some(code) => format!("exit {code}"),
            None => container.state.clone(),
        },
        is_bad: code.is_some_and(|code| code != 0) || is_killed && code.is_some(),
    }
}

/// Draws the spans of one row, from change to change.
struct Pen {
    open: Option<(f64, State)>,
    spans: Vec<Span>,
    marks: Vec<Mark>,
}

impl Pen {
    fn nowhere() -> Pen {
        Pen {
            open: None,
            spans: Vec::new(),
            marks: Vec::new(),
        }
    }

    fn new(from: f64, state: State) -> Pen {
        Pen {
            open: Some((from, state)),
            ..Pen::nowhere()
        }
    }

    fn change(&mut self, at: f64, state: State) {
        if self.open.is_some_and(|(_, open)| open == state) {
            return;
        }
        self.stop(at);
        self.open = Some((at, state));
    }

    fn stop(&mut self, at: f64) {
        if let Some((from, state)) = self.open.take() {
            self.spans.push(Span {
                from,
                to: at,
                state,
            });
        }
    }

    fn mark(&mut self, at: f64, kind: Kind, text: String) {
        self.marks.push(Mark { at, kind, text });
    }

    fn lift(mut self, end: f64) -> (Vec<Span>, Vec<Mark>) {
        self.stop(end);
        (self.spans, self.marks)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use protobuf::MessageField;
    use protobuf::well_known_types::timestamp::Timestamp;

    use super::*;

    fn at(millis: i64) -> MessageField<Timestamp> {
        MessageField::some(Timestamp {
            seconds: 1_000_000 + millis / 1000,
            nanos: i32::try_from(millis % 1000).unwrap() * 1_000_000,
            ..Timestamp::new()
        })
    }

    fn event(millis: i64, container: &str, what: &str, number: u32, detail: &str) -> api::Event {
        api::Event {
            at: at(millis),
            container: container.to_owned(),
            what: what.to_owned(),
            number,
            detail: detail.to_owned(),
            ..api::Event::new()
        }
    }

    fn container(name: &str, role: &str, code: u32) -> api::Container {
        api::Container {
            name: name.to_owned(),
            role: role.to_owned(),
            state: "gone".to_owned(),
            exit_code: Some(code),
            exited: at(9000),
            ..api::Container::new()
        }
    }

    /// The life of a pod with a probed sidecar, an app created before it, and an app that does not
    /// heed its signal.
    pub(crate) fn pod() -> api::Pod {
        api::Pod {
            name: "shop".to_owned(),
            namespace: "default".to_owned(),
            status: "Stopped".to_owned(),
            created: at(0),
            became_ready: at(2030),
            ended: at(9100),
            containers: vec![
                container("web", "app", 0),
                container("proxy", "sidecar", 0),
                container("worker", "app", 137),
            ],
            events: vec![
                event(40, "web", "created", 0, ""),
                event(45, "web", "held", 0, ""),
                event(200, "proxy", "created", 0, ""),
                event(260, "proxy", "executed", 0, ""),
                event(420, "worker", "created", 0, ""),
                event(1980, "proxy", "ready", 0, ""),
                event(2010, "web", "executed", 0, ""),
                event(2030, "worker", "executed", 0, ""),
                event(4000, "", "terminating", 0, "it was asked for by hand"),
                event(4000, "web", "signalled", 15, "SIGTERM"),
                event(4000, "worker", "signalled", 15, "SIGTERM"),
                event(5200, "web", "exited", 0, ""),
                event(7000, "worker", "killed", 9, "the grace period was over"),
                event(7010, "worker", "exited", 137, ""),
                event(7010, "", "step-over", 0, "apps"),
                event(7015, "proxy", "signalled", 15, "SIGTERM"),
                event(9000, "proxy", "exited", 0, ""),
            ],
            ..api::Pod::new()
        }
    }

    #[test]
    fn a_row_goes_through_the_states_that_were_recorded() {
        let chart = Chart::of(&pod(), 0.0);
        let states = |name: &str| {
            let row = chart.rows.iter().find(|row| row.name == name).unwrap();
            let states: Vec<_> = row.spans.iter().map(|span| span.state).collect();
            states
        };
        use State::{Held, Running, Starting, Stopping};
        assert_eq!(states("web"), [Held, Running, Stopping]);
        assert_eq!(states("proxy"), [Held, Starting, Running, Stopping]);
        assert_eq!(states("worker"), [Held, Running, Stopping]);
        assert_eq!(states("pod"), [Starting, Running, Stopping]);
        let worker = chart.rows.iter().find(|row| row.name == "worker").unwrap();
        let kinds: Vec<_> = worker.marks.iter().map(|mark| mark.kind).collect();
        assert_eq!(kinds, [Kind::Signal, Kind::Kill, Kind::Failure]);
        assert!(worker.is_bad);
        assert_eq!(worker.end, "exit 137");
    }

    #[test]
    fn spans_follow_each_other_without_gaps_and_end_with_the_pod() {
        let chart = Chart::of(&pod(), 0.0);
        for row in &chart.rows {
            for pair in row.spans.windows(2) {
                assert_eq!(pair[0].to, pair[1].from, "{}", row.name);
            }
            assert!(row.spans.iter().all(|span| span.from <= span.to));
        }
        let last = chart.rows[0].spans.last().unwrap();
        assert_eq!(last.to, 1_000_009.1);
    }
}
