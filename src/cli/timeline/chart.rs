//! The chart: rows of spans and marks, made from the events that the shim recorded.

use usher_api as api;

use super::super::choice::namespace;
use super::super::{time, words};
use super::axis::Axis;

/// The shortest bar that can be seen, as a share of the line. The legend leaves out a state if all
/// of its bars are shorter.
const SEEN_FROM: f64 = 0.002;

/// The timeline of a pod, ready to be drawn.
pub(super) struct Chart {
    pub title: String,
    pub status: String,
    pub rows: Vec<Row>,
    pub axis: Axis,
    /// True if the shim has dropped the pod's oldest events.
    pub is_cut: bool,
}

/// The row of a container, or of the pod itself.
pub(super) struct Row {
    pub name: String,
    pub role: String,
    pub spans: Vec<Span>,
    pub marks: Vec<Mark>,
    /// The final state or exit code.
    pub end: String,
    /// True if `end` is an error.
    pub is_bad: bool,
}

/// A bar: a state and its times, in seconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub from: f64,
    pub to: f64,
    pub state: State,
}

/// The state that a bar shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Held,
    Starting,
    Running,
    Stopping,
    BackOff,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub at: f64,
    pub kind: Kind,
    pub text: String,
}

/// The event that a mark shows. If two marks overlap, the mark with the later kind in this list
/// covers the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Asked,
    Ready,
    Again,
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
    pub(super) const ALL: [Kind; 9] = [
        Kind::Asked,
        Kind::Ready,
        Kind::Again,
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
            Kind::Again => "again",
            Kind::Released => "released",
            Kind::Signal => "signal",
            Kind::Exit => "exit 0",
            Kind::Failure => "failure",
            Kind::OutOfMemory => "out of memory",
            Kind::Kill => "kill",
        }
    }
}

impl Chart {
    /// The chart of a pod. If the pod runs, its bars end at the time of the shim's answer, or at
    /// `now` if the answer has no time.
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
        let sandbox_last = |container: &&api::Container| {
            container.role.enum_value() == Ok(api::Role::ROLE_SANDBOX)
        };
        let workload = pod.containers.iter().filter(|one| !sandbox_last(one));
        let sandboxes = pod.containers.iter().filter(sandbox_last);
        rows.extend(
            workload
                .chain(sandboxes)
                .map(|container| row(pod, container, begin, end)),
        );
        Chart {
            title: format!("{}/{}", namespace(pod), pod.name),
            status: words::status(&pod.status),
            rows,
            axis: Axis::new(begin, end, times.collect()),
            is_cut: pod.forgotten_events > 0,
        }
    }

    /// The states of the bars in the chart, for the legend.
    pub(super) fn states(&self) -> Vec<State> {
        let is_seen =
            |span: &Span| self.axis.place(span.to) - self.axis.place(span.from) > SEEN_FROM;
        let occurs = |state: &State| {
            let mut spans = self.rows.iter().flat_map(|row| &row.spans);
            spans.any(|span| span.state == *state && is_seen(span))
        };
        State::ALL.into_iter().filter(occurs).collect()
    }

    /// The container that a held container waited for last, and the event that released the held
    /// one: a sidecar became ready, or an init container ended. `None` for a defer container, which
    /// waits for the termination.
    pub(super) fn opener(&self, row: &Row, span: &Span) -> Option<(&str, &'static str)> {
        let waits_for_others = ["init", "sidecar", "app"].contains(&row.role.as_str());
        if span.state != State::Held || !waits_for_others {
            return None;
        }
        let moments = self.rows.iter().flat_map(|other| {
            let marks = other.marks.iter();
            marks.filter_map(move |mark| match (other.role.as_str(), mark.kind) {
                ("sidecar", Kind::Ready) => Some((mark.at, &*other.name, "is ready")),
                ("init", Kind::Exit) => Some((mark.at, &*other.name, "has ended")),
                _ => None,
            })
        });
        moments
            .filter(|(at, name, _)| (span.from..=span.to).contains(at) && *name != row.name)
            .max_by(|(one, ..), (other, ..)| one.total_cmp(other))
            .map(|(_, name, part)| (name, part))
    }

    pub(super) fn kinds(&self) -> Vec<Kind> {
        let occurs = |kind: &Kind| {
            let mut marks = self.rows.iter().flat_map(|row| &row.marks);
            marks.any(|mark| mark.kind == *kind)
        };
        Kind::ALL.into_iter().filter(occurs).collect()
    }
}

/// The row of the pod itself.
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
        pen.mark(ready, Kind::Ready, "started".to_owned());
    }
    for (at, event) in events {
        match event.what.enum_value_or_default() {
            api::What::WHAT_TERMINATING => {
                pen.change(at, State::Stopping);
                let cause = event.cause.unwrap_or_default();
                let because = words::because(cause, event.failed.as_deref(), event.number);
                pen.mark(at, Kind::Asked, format!("terminates: {because}"));
            }
            api::What::WHAT_NOT_TERMINATING => {
                pen.change(at, State::Running);
                pen.mark(at, Kind::Again, "termination canceled".to_owned());
            }
            api::What::WHAT_STARTS_OVER => {
                pen.change(at, State::Running);
                pen.mark(at, Kind::Again, "starts again".to_owned());
            }
            api::What::WHAT_GRACE_OVER => {
                pen.mark(at, Kind::Kill, "the grace period is over".to_owned());
            }
            api::What::WHAT_SANDBOX_KILLED => {
                let text = "its sandbox is killed, so that the whole pod starts again";
                pen.mark(at, Kind::Kill, text.to_owned());
            }
            _ => {}
        }
    }
    let (spans, marks) = pen.lift(end);
    Row {
        name: "pod".to_owned(),
        role: String::new(),
        spans,
        marks,
        end: words::status(&pod.status),
        is_bad: words::is_bad(&pod.status),
    }
}

fn row(pod: &api::Pod, container: &api::Container, begin: f64, end: f64) -> Row {
    let created = time::seconds(&container.created).unwrap_or(begin);
    // A container without recorded events gets one bar, as a running container.
    let mut pen = Pen::nowhere();
    let is_probed = container.role.enum_value() == Ok(api::Role::ROLE_SIDECAR);
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
        draw(&mut pen, at, event, is_probed);
    }
    if !has_events {
        pen.change(created.max(begin), State::Running);
    }
    let (spans, mut marks) = pen.lift(end);
    let code = container.exit_code.filter(|_| !container.exited.is_none());
    let is_usual = is_sandbox_of_caller(container);
    if is_usual {
        marks.retain(|mark| !matches!(mark.kind, Kind::Kill | Kind::Failure));
    }
    let is_killed = !container.kills.is_empty();
    Row {
        name: container.name.clone(),
        role: words::word(container.role),
        spans,
        marks,
        end: match code {
            Some(_) => format!("exit {}", words::exit(container)),
            None => words::word(container.state),
        },
        is_bad: !is_usual && (code.is_some_and(|code| code != 0) || is_killed && code.is_some()),
    }
}

/// True for a sandbox that was killed only at containerd's request. containerd ends every sandbox
/// by a kill, so this kill is no error.
fn is_sandbox_of_caller(container: &api::Container) -> bool {
    let mut whys = container
        .kills
        .iter()
        .map(|kills| kills.why.enum_value_or_default());
    container.role.enum_value() == Ok(api::Role::ROLE_SANDBOX)
        && !container.kills.is_empty()
        && whys.all(|why| why == api::Why::WHY_CALLER)
}

/// Draws an event of a container. If the container `is_probed`, its bar says Starting until the
/// container is ready. Otherwise the bar says Running as soon as the program is executed.
fn draw(pen: &mut Pen, at: f64, event: &api::Event, is_probed: bool) {
    use api::What::*;
    let is_stop = event.stops.unwrap_or_default();
    let why = words::why(event.why.unwrap_or_default());
    let reason = event.reason.as_deref().unwrap_or_default();
    let hook = event.hook.unwrap_or_default();
    let is_post_start = hook.enum_value() == Ok(api::Hook::HOOK_POST_START);
    match event.what.enum_value_or_default() {
        WHAT_CREATED => pen.change(at, State::Held),
        WHAT_EXECUTED if is_probed => pen.change(at, State::Starting),
        WHAT_EXECUTED => pen.change(at, State::Running),
        WHAT_READY => {
            pen.change(at, State::Running);
            pen.mark(at, Kind::Ready, "ready".to_owned());
        }
        WHAT_RELEASED => pen.mark(at, Kind::Released, "released".to_owned()),
        WHAT_ASKED if is_stop => {
            let signal = words::signal(event.number);
            pen.mark(at, Kind::Asked, format!("asked to stop: {signal}"));
        }
        WHAT_SIGNALLED => {
            if is_stop {
                pen.change(at, State::Stopping);
            }
            let signal = words::signal(event.number);
            pen.mark(at, Kind::Signal, format!("signal {signal}: {why}"));
        }
        WHAT_KILLED => {
            pen.change(at, State::Stopping);
            pen.mark(at, Kind::Kill, format!("killed: {why}"));
        }
        WHAT_OOM_KILLED => pen.mark(at, Kind::OutOfMemory, "out of memory".to_owned()),
        WHAT_BACKING_OFF => pen.change(at, State::BackOff),
        WHAT_NOT_RESTARTED => {
            let text = format!("could not be restarted: {reason}");
            pen.mark(at, Kind::Failure, text);
        }
        WHAT_PROBE_FAILED => {
            let probe = words::word(event.probe.unwrap_or_default());
            let (failures, threshold) = (event.number, event.threshold.unwrap_or_default());
            let mut text = format!("{probe} probe failed {failures} of {threshold} times");
            // Older shims send no reason with this event.
            if !reason.is_empty() {
                text = format!("{text}: {reason}");
            }
            pen.mark(at, Kind::Failure, text);
        }
        WHAT_HOOK_OVER if is_post_start => {
            let text = "postStart handler ran again";
            pen.mark(at, Kind::Again, text.to_owned());
        }
        WHAT_HOOK_FAILED => {
            let text = format!("{} failed: {reason}", words::hook(hook));
            pen.mark(at, Kind::Failure, text);
        }
        WHAT_EXITED => {
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

/// Draws the bars and marks of one row. A new bar ends the bar before it.
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
    use api::What::*;

    fn at(millis: i64) -> MessageField<Timestamp> {
        MessageField::some(Timestamp {
            seconds: 1_000_000 + millis / 1000,
            nanos: i32::try_from(millis % 1000).unwrap() * 1_000_000,
            ..Timestamp::new()
        })
    }

    fn event(millis: i64, container: &str, what: api::What) -> api::Event {
        api::Event {
            at: at(millis),
            container: container.to_owned(),
            what: what.into(),
            ..api::Event::new()
        }
    }

    fn exited(millis: i64, container: &str, code: u32) -> api::Event {
        api::Event {
            number: code,
            ..event(millis, container, WHAT_EXITED)
        }
    }

    fn signalled(millis: i64, container: &str, signal: u32, stops: bool) -> api::Event {
        api::Event {
            number: signal,
            stops: Some(stops),
            why: Some(api::Why::WHY_TURN.into()),
            ..event(millis, container, WHAT_SIGNALLED)
        }
    }

    fn terminating(millis: i64) -> api::Event {
        api::Event {
            cause: Some(api::Cause::CAUSE_STOPPED.into()),
            ..event(millis, "", WHAT_TERMINATING)
        }
    }

    fn killed(millis: i64, container: &str) -> api::Event {
        api::Event {
            number: 9,
            why: Some(api::Why::WHY_GRACE_OVER.into()),
            ..event(millis, container, WHAT_KILLED)
        }
    }

    fn container(name: &str, role: api::Role, code: u32) -> api::Container {
        api::Container {
            name: name.to_owned(),
            role: role.into(),
            state: api::State::STATE_GONE.into(),
            exit_code: Some(code),
            exited: at(9000),
            ..api::Container::new()
        }
    }

    /// The history of a pod with a probed sidecar, an app created before it, and an app that
    /// ignores its signal.
    pub(crate) fn pod() -> api::Pod {
        api::Pod {
            name: "shop".to_owned(),
            namespace: "default".to_owned(),
            status: MessageField::some(api::Status {
                doing: api::Doing::DOING_STOPPED.into(),
                ..api::Status::new()
            }),
            created: at(0),
            became_ready: at(2030),
            ended: at(9100),
            containers: vec![
                container("web", api::Role::ROLE_APP, 0),
                container("proxy", api::Role::ROLE_SIDECAR, 0),
                container("worker", api::Role::ROLE_APP, 137),
            ],
            events: vec![
                event(40, "web", WHAT_CREATED),
                event(45, "web", WHAT_HELD),
                event(200, "proxy", WHAT_CREATED),
                event(260, "proxy", WHAT_EXECUTED),
                event(420, "worker", WHAT_CREATED),
                event(1980, "proxy", WHAT_READY),
                event(2010, "web", WHAT_EXECUTED),
                event(2030, "worker", WHAT_EXECUTED),
                terminating(4000),
                signalled(4000, "web", 15, true),
                signalled(4000, "worker", 15, true),
                exited(5200, "web", 0),
                killed(7000, "worker"),
                exited(7010, "worker", 137),
                event(7010, "", WHAT_STEP_OVER),
                signalled(7015, "proxy", 15, true),
                exited(9000, "proxy", 0),
            ],
            ..api::Pod::new()
        }
    }

    #[test]
    fn a_held_bar_names_the_sidecar_that_it_waited_for() {
        let chart = Chart::of(&pod(), 0.0);
        let opener = |name: &str, state: State| {
            let row = chart.rows.iter().find(|row| row.name == name).unwrap();
            let span = row.spans.iter().find(|span| span.state == state).unwrap();
            chart.opener(row, span)
        };
        assert_eq!(opener("web", State::Held), Some(("proxy", "is ready")));
        assert_eq!(opener("worker", State::Held), Some(("proxy", "is ready")));
        assert_eq!(opener("proxy", State::Held), None);
        assert_eq!(opener("web", State::Running), None);
    }

    #[test]
    fn a_held_bar_names_the_last_container_waited_for_but_not_that_of_a_defer_container() {
        let mut pod = pod();
        pod.containers
            .push(container("migrate", api::Role::ROLE_INIT, 0));
        pod.containers
            .push(container("clean-up", api::Role::ROLE_POST_EXIT, 0));
        pod.events.extend([
            event(30, "clean-up", WHAT_CREATED),
            exited(1990, "migrate", 0),
            event(7010, "clean-up", WHAT_EXECUTED),
        ]);
        let chart = Chart::of(&pod, 0.0);
        let opener = |name: &str| {
            let row = chart.rows.iter().find(|row| row.name == name).unwrap();
            chart.opener(row, &row.spans[0])
        };
        assert_eq!(opener("web"), Some(("migrate", "has ended")));
        assert_eq!(opener("clean-up"), None);
    }

    /// The row of a running container with these events.
    fn row_with(events: Vec<api::Event>) -> Row {
        let first = [
            event(100, "web", WHAT_CREATED),
            event(200, "web", WHAT_EXECUTED),
        ];
        let pod = api::Pod {
            containers: vec![container("web", api::Role::ROLE_APP, 0)],
            events: first.into_iter().chain(events).collect(),
            ..pod()
        };
        let mut rows = Chart::of(&pod, 0.0).rows.into_iter();
        rows.find(|row| row.name == "web").unwrap()
    }

    fn states(row: &Row) -> Vec<State> {
        row.spans.iter().map(|span| span.state).collect()
    }

    fn marks(row: &Row) -> Vec<(Kind, &str)> {
        let marks = row.marks.iter();
        marks.map(|mark| (mark.kind, mark.text.as_str())).collect()
    }

    #[test]
    fn a_container_that_gets_its_own_stop_signal_is_drawn_as_stopping() {
        use State::{Held, Running, Stopping};
        let asked = api::Event {
            number: 28,
            stops: Some(true),
            ..event(300, "web", WHAT_ASKED)
        };
        let row = row_with(vec![asked, signalled(310, "web", 28, true)]);
        assert_eq!(states(&row), [Held, Running, Stopping]);
        assert_eq!(
            marks(&row),
            [
                (Kind::Asked, "asked to stop: SIGWINCH"),
                (Kind::Signal, "signal SIGWINCH: its turn has come")
            ]
        );
        // This event says that signal 28 is not the container's stop signal.
        let row = row_with(vec![signalled(310, "web", 28, false)]);
        assert_eq!(states(&row), [Held, Running]);
    }

    #[test]
    fn failed_probes_and_handlers_leave_marks() {
        let probe = api::Event {
            probe: Some(api::Probe::PROBE_LIVENESS.into()),
            number: 3,
            threshold: Some(3),
            ..event(300, "web", WHAT_PROBE_FAILED)
        };
        let for_a_reason = api::Event {
            reason: Some("connection refused".to_owned()),
            ..probe.clone()
        };
        let again = api::Event {
            hook: Some(api::Hook::HOOK_POST_START.into()),
            ..event(400, "web", WHAT_HOOK_OVER)
        };
        let failed = api::Event {
            reason: Some("it exited with 1".to_owned()),
            what: WHAT_HOOK_FAILED.into(),
            ..again.clone()
        };
        assert_eq!(
            marks(&row_with(vec![probe, for_a_reason, again, failed])),
            [
                (Kind::Failure, "liveness probe failed 3 of 3 times"),
                (
                    Kind::Failure,
                    "liveness probe failed 3 of 3 times: connection refused"
                ),
                (Kind::Again, "postStart handler ran again"),
                (Kind::Failure, "postStart handler failed: it exited with 1"),
            ]
        );
    }

    #[test]
    fn a_pod_that_starts_again_shows_the_events() {
        let pod = api::Pod {
            events: vec![
                terminating(4000),
                event(5000, "", WHAT_SANDBOX_KILLED),
                event(6000, "", WHAT_STARTS_OVER),
            ],
            ..pod()
        };
        let chart = Chart::of(&pod, 0.0);
        let row = &chart.rows[0];
        use State::{Running, Starting, Stopping};
        assert_eq!(states(row), [Starting, Running, Stopping, Running]);
        assert_eq!(
            marks(row)[1..],
            [
                (Kind::Asked, "terminates: usher stop requested it"),
                (
                    Kind::Kill,
                    "its sandbox is killed, so that the whole pod starts again"
                ),
                (Kind::Again, "starts again"),
            ]
        );
    }

    #[test]
    fn unknown_events_of_a_newer_shim_are_not_drawn() {
        use protobuf::EnumOrUnknown;
        let mut news = event(300, "web", WHAT_CREATED);
        news.what = EnumOrUnknown::from_i32(99);
        let row = row_with(vec![news]);
        assert_eq!(states(&row), [State::Held, State::Running]);
        assert!(row.marks.is_empty());
    }

    #[test]
    fn a_row_shows_the_recorded_states() {
        let chart = Chart::of(&pod(), 0.0);
        let states = |name: &str| states(chart.rows.iter().find(|row| row.name == name).unwrap());
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
    fn a_different_reported_exit_code_is_shown_as_well() {
        let mut pod = pod();
        pod.containers[1].exit_code = Some(137);
        pod.containers[1].reported_code = Some(0);
        pod.containers[2].reported_code = Some(137);
        let ends = Chart::of(&pod, 0.0).rows.into_iter().map(|row| row.end);
        let ends: Vec<_> = ends.skip(1).collect();
        assert_eq!(ends, ["exit 0", "exit 137, reported as 0", "exit 137"]);
    }

    #[test]
    fn spans_have_no_gaps_and_end_with_the_pod() {
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

    #[test]
    fn a_sandbox_killed_by_its_caller_is_no_error_but_one_that_died_is() {
        let kills = api::Kills {
            why: api::Why::WHY_CALLER.into(),
            count: 1,
            ..api::Kills::new()
        };
        let by_caller = api::Event {
            why: Some(api::Why::WHY_CALLER.into()),
            ..killed(9000, "(sandbox)")
        };
        let mut sandbox = container("(sandbox)", api::Role::ROLE_SANDBOX, 137);
        let row = |sandbox: &api::Container, events: &[api::Event]| {
            let mut pod = pod();
            pod.containers.push(sandbox.clone());
            pod.events.extend_from_slice(events);
            let row = Chart::of(&pod, 0.0).rows.pop().unwrap();
            let kinds: Vec<_> = row.marks.iter().map(|mark| mark.kind).collect();
            (row.is_bad, kinds, row.end)
        };
        let died = [
            event(10, "(sandbox)", WHAT_EXECUTED),
            exited(9000, "(sandbox)", 137),
        ];
        let end = "exit 137".to_owned();
        let expected = (true, vec![Kind::Failure], end.clone());
        assert_eq!(row(&sandbox, &died), expected);
        sandbox.kills = vec![kills];
        let [begun, over] = died;
        let events = [begun, by_caller, over];
        assert_eq!(row(&sandbox, &events), (false, Vec::new(), end));
    }
}
