//! `usher inspect`: everything one asks when a pod hangs, first of all what it waits for.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;

use super::cgroups;
use super::choice::namespace;
use super::json::json_on;
use super::node::Node;
use super::output::{BAD, BOLD, FAINT, Failure, GOOD, Output, Stdout, Table, WARNING, styled};
use super::time::{self, span};
use super::{ps, words};
use crate::api;

/// Shows everything about a pod: first what it waits for, since when, and what ends the wait
///
/// Then its containers: role, and by what they have it (a list of the pod's annotations, or the roles of
/// the node's configuration), state, exit codes (as it was, and as containerd was told where that is
/// another), OOM score, why they were killed, and the limits of the cgroups as they are in the kernel.
/// Works for an hour after the pod has ended.
#[derive(Debug, Args)]
pub struct Inspect {
    /// The pod: its name, namespace/name, or the first characters of its id, four or more
    pod: String,
    #[command(flatten)]
    output: Output,
}

impl Inspect {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let pod = Node::new()?.find(&self.pod, true)?.pod;
        self.show(&pod, None, stdout)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Which pod is asked for.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Shows a pod, which is on `node` where that may be another than this one.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn show(
        &self,
        pod: &api::Pod,
        node: Option<&str>,
        stdout: &mut Stdout,
    ) -> Result<(), Failure> {
        match self.output.is_json() {
            true => stdout.json(&json_on(pod, node)?),
            false => stdout.text(text(pod, node, time::look(pod))),
        }
    }
}

pub(super) fn text(pod: &api::Pod, node: Option<&str>, now: f64) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", answer(pod));
    for line in waits(pod, now) {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text);
    facts(&mut text, pod, node, now);
    let _ = write!(text, "\n{}", containers(pod, now));
    kills(&mut text, pod);
    failed_probes(&mut text, pod, now);
    limits(&mut text, pod);
    text
}

/// In one line: how the pod is, and whether it waits for anything.
fn answer(pod: &api::Pod) -> String {
    let name = styled(BOLD, &pod.name);
    let waiting: Vec<_> = waiting(pod)
        .map(|(container, _)| container.name.as_str())
        .collect();
    match (pod.ended.as_ref(), waiting.as_slice()) {
        (None, []) if pod.late.is_some() => {
            format!(
                "{name} waits for apps that may still come: {}",
                ps::status(pod)
            )
        }
        (Some(_), _) => format!("{name} has ended: {}", ps::status(pod)),
        (None, []) if pod.kept.is_some() => {
            format!("{name} cannot end by itself: {}", ps::status(pod))
        }
        (None, []) => format!("{name} waits for nothing: {}", ps::status(pod)),
        (None, names) => format!("{name} waits: {} ({})", ps::status(pod), names.join(", ")),
    }
}

fn waiting(pod: &api::Pod) -> impl Iterator<Item = (&api::Container, &api::Wait)> {
    let containers = pod.containers.iter();
    // A defer container waits for the end of the pod: that is no trouble.
    containers.filter_map(|container| {
        let is_idle = words::is_defer(container.role) && !is_terminating(pod);
        let wait = container.wait.as_ref().filter(|_| !is_idle)?;
        Some((container, wait))
    })
}

fn is_terminating(pod: &api::Pod) -> bool {
    pod.phase.enum_value() == Ok(api::Phase::PHASE_TERMINATING)
}

/// For each container that waits: for what, since when, and what would end the wait.
fn waits(pod: &api::Pod, now: f64) -> Vec<String> {
    let mut lines = Vec::new();
    // What helps several is said once.
    let helped = waiting(pod).filter(|(_, wait)| !wait.remedies.is_empty());
    let are_several = helped.count() > 1;
    let remedies: Vec<_> = waiting(pod).flat_map(|(_, wait)| &wait.remedies).collect();
    let cleanup = waiting(pod).find(|(container, _)| is_cleanup_under_way(container));
    if let Some((container, wait)) = cleanup {
        lines.push(cleanup_line(pod, container, wait, now));
    }
    let is_said = |container: &api::Container, wait: &api::Wait| {
        cleanup.is_some_and(|(cleanup, _)| {
            cleanup.name == container.name || waits_only_for(wait, &cleanup.name)
        })
    };
    for (container, wait) in waiting(pod).filter(|(container, wait)| !is_said(container, wait)) {
        let obstacles: Vec<_> = wait.obstacles.iter().map(words::obstacle).collect();
        let since = time::seconds(&wait.since).or(time::seconds(&container.since));
        let since = since.map_or(String::new(), |since| format!(" for {}", span(now - since)));
        lines.push(format!(
            "{} {} is {}{since}, waiting for {}",
            words::word(container.role),
            styled(BOLD, &container.name),
            words::state(container.state),
            match obstacles.is_empty() {
                true => "nothing any more".to_owned(),
                false => styled(WARNING, obstacles.join(", ")),
            }
        ));
        let until = time::seconds(&wait.until).map(|until| span(until - now));
        let then = match until {
            Some(until) => {
                let then = words::then(wait.then.unwrap_or_default());
                format!("otherwise in {until}: {then}")
            }
            None => "nothing else ends this wait".to_owned(),
        };
        let by_hand = match container.state.enum_value_or_default() {
            api::State::STATE_HELD | api::State::STATE_STARTING
                if !words::is_defer(container.role) =>
            {
                format!("; or: usher release {} {}", pod.name, container.name)
            }
            _ => String::new(),
        };
        lines.push(styled(FAINT, format!("  {then}{by_hand}")));
        if is_waiting_for_a_probe(wait) {
            let failed = failed_probe(container, now);
            lines.extend(failed.map(|failed| format!("  {failed}")));
        }
        if !are_several {
            let remedies = wait.remedies.iter().map(words::remedy);
            lines.extend(remedies.map(|remedy| format!("  {remedy}")));
        }
    }
    if are_several {
        lines.extend(words::remedies(&remedies));
    }
    lines.extend(never_created(pod));
    lines.extend(late(pod, now));
    lines.extend(kept(pod, now));
    let is_under_way = is_terminating(pod) && pod.ended.is_none();
    if let Some(termination) = pod.termination.as_ref().filter(|_| is_under_way) {
        let since = time::seconds(&termination.since).map_or(0.0, |since| now - since);
        let left = time::seconds(&termination.deadline).map_or(0.0, |deadline| deadline - now);
        lines.push(format!(
            "the pod has been terminating for {}: {}; step {}, {} of the grace period left",
            span(since),
            words::because(
                termination.cause,
                termination.failed.as_deref(),
                termination.exit_code.unwrap_or_default()
            ),
            words::word(termination.step),
            span(left)
        ));
    }
    lines
}

/// A defer container that runs in its turn, or that has its stop signal there.
fn is_cleanup_under_way(container: &api::Container) -> bool {
    let is_under_way =
        |wait: &api::Wait| waits_for(wait, api::Missing::MISSING_WORK) || is_told(wait);
    words::is_defer(container.role) && container.wait.as_ref().is_some_and(is_under_way)
}

fn is_told(wait: &api::Wait) -> bool {
    waits_for(wait, api::Missing::MISSING_EXIT)
}

fn waits_for(wait: &api::Wait, missing: api::Missing) -> bool {
    let mut obstacles = wait.obstacles.iter();
    obstacles.any(|obstacle| obstacle.missing.enum_value() == Ok(missing))
}

/// True if the turn to stop is all that is waited for, and the turn is that of the container of this name.
fn waits_only_for(wait: &api::Wait, name: &str) -> bool {
    let turn = Ok(api::Missing::MISSING_TURN_TO_STOP);
    let mut obstacles = wait.obstacles.iter();
    obstacles.all(|obstacle| obstacle.missing.enum_value() == turn && obstacle.container == name)
}

/// The line about a cleanup: how much of its time it has run, which containers wait for it, and what ends it.
fn cleanup_line(pod: &api::Pod, cleanup: &api::Container, wait: &api::Wait, now: f64) -> String {
    let since = time::seconds(&wait.since).or(time::seconds(&cleanup.executed));
    let since = since.unwrap_or(now);
    let until = time::seconds(&wait.until);
    let its_time = until.map_or(String::new(), |until| {
        format!(" of its {}", span(until - since))
    });
    let mut line = format!(
        "{} ({}) has run for {}{its_time}",
        styled(BOLD, &cleanup.name),
        words::word(cleanup.role),
        styled(WARNING, span(now - since)),
    );
    let obstacles = waiting(pod).filter(|(_, wait)| waits_only_for(wait, &cleanup.name));
    let names: Vec<_> = obstacles.map(|(it, _)| it.name.as_str()).collect();
    let (waits, names) = match names.as_slice() {
        [] => ("", String::new()),
        [name] => ("waits", (*name).to_owned()),
        [first @ .., last] => ("wait", format!("{} and {last}", first.join(", "))),
    };
    if !names.is_empty() {
        let _ = write!(line, "; {names} {waits} for it");
    }
    if is_told(wait) {
        line.push_str("; it has got its stop signal");
    }
    if let Some(until) = until {
        let _ = write!(line, "; killed in {}", span(until - now));
    }
    line
}

/// The names for whom others wait and of which no container was created: misspelt ones are among them.
fn never_created(pod: &api::Pod) -> Option<String> {
    let never = api::Missing::MISSING_NEVER_CREATED;
    let obstacles = waiting(pod).flat_map(|(_, wait)| &wait.obstacles);
    let never = obstacles.filter(|obstacle| obstacle.missing.enum_value() == Ok(never));
    let never: BTreeSet<_> = never.map(|obstacle| obstacle.container.as_str()).collect();
    let created: Vec<_> = pod.containers.iter().map(|it| it.name.as_str()).collect();
    let never = Vec::from_iter(never).join(", ");
    let created = created.join(", ");
    (!never.is_empty()).then(|| {
        format!("never created: {never}; created so far: {created}; are the names those of the pod's spec?")
    })
}

/// A run that is not complete though all its apps have ended: until when, and why.
fn late(pod: &api::Pod, now: f64) -> Option<String> {
    let late = pod.late.as_ref()?;
    let until = time::seconds(&late.until).unwrap_or(now);
    let remedy = late.remedy.as_ref().map(words::remedy).unwrap_or_default();
    Some(format!(
        "all apps have ended, and the run is complete in {}, unless another container is created: {remedy}",
        span(until - now)
    ))
}

/// The containers that keep the pod alive whose run is over, which usher does not stop.
fn kept(pod: &api::Pod, now: f64) -> Option<String> {
    let kept = pod.kept.as_ref().filter(|_| pod.ended.is_none())?;
    let since = time::seconds(&kept.since).unwrap_or(now);
    let names: Vec<String> = kept.by.iter().map(|name| styled(WARNING, name)).collect();
    Some(format!(
        "the run was over {} ago, and the pod is kept alive by {}, which usher does not stop; expected \
         in usher/sidecars what does not exit by itself",
        span(now - since),
        names.join(", ")
    ))
}

fn facts(text: &mut String, pod: &api::Pod, node: Option<&str>, now: f64) {
    let created = time::seconds(&pod.created);
    let ago =
        |at: Option<f64>| at.map_or("-".to_owned(), |at| format!("{} ago", time::age(now - at)));
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(text, "{} {value}", styled(BOLD, format!("{name:<12}")));
    };
    fact("Pod", format!("{}/{}", namespace(pod), pod.name));
    if let Some(node) = node {
        fact("Node", node.to_owned());
    }
    fact(
        "Id",
        format!(
            "{} in containerd's namespace {}",
            pod.id, pod.containerd_namespace
        ),
    );
    if !pod.uid.is_empty() {
        fact("UID", pod.uid.clone());
    }
    fact(
        "Status",
        format!(
            "{}, ready {}/{}, restarts {}",
            ps::status(pod),
            pod.ready,
            pod.total,
            pod.restarts
        ),
    );
    fact("Created", ago(created));
    if let Some((created, ready)) = created.zip(time::seconds(&pod.became_ready)) {
        fact(
            "Ready",
            format!("{} after its creation", span(ready - created)),
        );
    }
    if pod.ended.is_some() {
        fact("Ended", ago(time::seconds(&pod.ended)));
    } else {
        let version = format!("version {}", words::shim_version(pod));
        let version = styled(ps::shim_style(pod), version);
        fact("Shim", format!("process {}, {version}", pod.shim_pid));
    }
    let stages: Vec<_> = pod
        .stages
        .iter()
        .map(|stage| stage_text(stage, created))
        .collect();
    if !stages.is_empty() {
        fact(
            "Start order",
            format!("{}, then the apps", stages.join(", then ")),
        );
    }
    if let Some(termination) = pod.termination.as_ref() {
        let over = termination.over.iter().map(|step| {
            let took = time::duration(&step.took).unwrap_or_default();
            format!("{} in {}", words::word(step.name), span(took))
        });
        let over: Vec<_> = over.collect();
        if !over.is_empty() {
            fact("Stopped", over.join(", "));
        }
    }
}

fn stage_text(stage: &api::Stage, created: Option<f64>) -> String {
    let names = stage.containers.join(" and ");
    match time::seconds(&stage.done).zip(created) {
        Some((done, created)) => format!("{names} (done at +{})", span(done - created)),
        None => names,
    }
}

fn containers(pod: &api::Pod, now: f64) -> Table {
    let mut table = Table::new([
        "CONTAINER",
        "ROLE",
        "BY",
        "STATE",
        "FOR",
        "HELD",
        "EXIT",
        "RESTARTS",
        "PID",
        "OOM SCORE",
    ]);
    for container in &pod.containers {
        let since = time::seconds(&container.since).map_or(0.0, |since| now - since);
        let held = time::duration(&container.held);
        table.row([
            container.name.clone(),
            words::word(container.role),
            by(container),
            state(container),
            time::age(since),
            held.map_or("-".to_owned(), span),
            words::exit(container),
            restarts(container),
            number_or_dash(container.pid),
            container
                .oom_score
                .map_or_else(|| "-".to_owned(), |score| score.to_string()),
        ]);
    }
    table
}

/// By what it has its role.
fn by(container: &api::Container) -> String {
    let by = match container.role_origin.enum_value_or_default() {
        api::RoleOrigin::ROLE_ORIGIN_LIST if container.optional => "list, optional",
        api::RoleOrigin::ROLE_ORIGIN_LIST => "list",
        api::RoleOrigin::ROLE_ORIGIN_NODE => "node",
        _ => "-",
    };
    by.to_owned()
}

fn state(container: &api::Container) -> String {
    use api::State::*;
    let style = match container.state.enum_value_or_default() {
        STATE_RUNNING | STATE_COMPLETED if container.ready => GOOD,
        STATE_STOPPED | STATE_GONE if container.exit_code.unwrap_or(0) != 0 => BAD,
        STATE_STOPPED | STATE_GONE => FAINT,
        _ => WARNING,
    };
    styled(style, words::word(container.state))
}

fn restarts(container: &api::Container) -> String {
    match container.oom_kills {
        0 => container.restarts.to_string(),
        kills => format!(
            "{} ({})",
            container.restarts,
            styled(BAD, format!("{kills} OOM kills"))
        ),
    }
}

fn number_or_dash(number: u32) -> String {
    match number {
        0 => "-".to_owned(),
        number => number.to_string(),
    }
}

/// Who was killed, and why.
fn kills(text: &mut String, pod: &api::Pod) {
    for container in &pod.containers {
        for kills in &container.kills {
            let times = match kills.count {
                1 => String::new(),
                count => format!(" {count} times"),
            };
            let (name, why) = (styled(BOLD, &container.name), words::why(kills.why));
            let _ = writeln!(text, "{name} was killed{times}: {why}");
        }
    }
}

fn is_waiting_for_a_probe(wait: &api::Wait) -> bool {
    let mut obstacles = wait.obstacles.iter();
    let probe = Ok(api::Missing::MISSING_STARTUP_PROBE);
    obstacles.any(|obstacle| obstacle.missing.enum_value() == probe)
}

/// Why a probe of it failed when one did for the last time.
fn failed_probe(container: &api::Container, now: f64) -> Option<String> {
    let failed = container.failed_probe.as_ref()?;
    let ago = time::seconds(&failed.at).map_or(0.0, |at| now - at);
    let probe = words::word(failed.probe);
    Some(format!(
        "its {probe} probe failed last {} ago: {}",
        span(ago),
        styled(WARNING, &failed.reason)
    ))
}

/// Whose probes have failed, but for what is said above, and what is past: a startup probe fails until it
/// succeeds.
fn failed_probes(text: &mut String, pod: &api::Pod, now: f64) {
    for container in &pod.containers {
        let is_said = container.wait.as_ref().is_some_and(is_waiting_for_a_probe);
        let failed = container.failed_probe.as_ref();
        let is_startup =
            failed.is_some_and(|it| it.probe.enum_value() == Ok(api::Probe::PROBE_STARTUP));
        if let Some(failed) = failed_probe(container, now)
            && !is_said
            && !(is_startup && container.ready)
        {
            let _ = writeln!(text, "{}: {failed}", styled(BOLD, &container.name));
        }
    }
}

/// The limits of the cgroups, as the kernel has them.
fn limits(text: &mut String, pod: &api::Pod) {
    let mut table = Table::new(["CGROUP", "MEMORY", "MEMORY LIMIT", "CPU LIMIT"]);
    let of_containers = pod.containers.iter();
    let of_containers = of_containers.map(|container| (container.name.as_str(), &container.cgroup));
    let all = std::iter::once(("(pod)", &pod.cgroup)).chain(of_containers);
    let mut has_rows = false;
    for (name, cgroup) in all {
        if let Some(cgroup) = cgroup.as_ref() {
            let [used, memory, cpu] = cgroups::cells(cgroup);
            table.row([name.to_owned(), used, memory, cpu]);
            has_rows = true;
        }
    }
    if has_rows {
        let _ = write!(text, "\n{table}");
    }
}

#[cfg(test)]
mod tests {
    use protobuf::MessageField;
    use protobuf::well_known_types::timestamp::Timestamp;

    use super::*;
    use crate::lifecycle::Remedy;

    fn at(seconds: i64) -> MessageField<Timestamp> {
        MessageField::some(Timestamp {
            seconds,
            ..Timestamp::new()
        })
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn held() -> api::Pod {
        let obstacle = api::Obstacle {
            container: "proxy".to_owned(),
            role: Some(api::Role::ROLE_SIDECAR.into()),
            missing: api::Missing::MISSING_NOT_STARTED.into(),
            ..api::Obstacle::new()
        };
        let wait = api::Wait {
            obstacles: vec![obstacle],
            since: at(1000),
            until: at(1300),
            then: Some(api::Then::THEN_ENDED.into()),
            ..api::Wait::new()
        };
        let web = api::Container {
            name: "web".to_owned(),
            role: api::Role::ROLE_APP.into(),
            state: api::State::STATE_HELD.into(),
            wait: MessageField::some(wait),
            ..api::Container::new()
        };
        api::Pod {
            name: "shop".to_owned(),
            status: MessageField::some(api::Status {
                doing: api::Doing::DOING_SIDECAR.into(),
                total: 1,
                ..api::Status::new()
            }),
            containers: vec![web],
            created: at(998),
            ..api::Pod::new()
        }
    }

    #[test]
    fn the_first_lines_say_what_it_waits_for_since_when_and_what_ends_the_wait() {
        let text = plain(&text(&held(), None, 1012.0));
        let lines: Vec<&str> = text.lines().take(3).collect();
        let expected = [
            "shop waits: Sidecar:0/1 (web)",
            "  app web is held for 12.0s, waiting for sidecar proxy (not started yet)",
            "    otherwise in 4m48s: it is ended with exit code 1 (usher/startup-timeout); or: usher release shop web",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_may_be_missing_so_that_a_container_need_not_wait_comes_with_its_wait() {
        let mut pod = held();
        if let Some(wait) = pod.containers[0].wait.as_mut() {
            let remedy = Remedy::NativeInit {
                container: "web".to_owned(),
                list: vec!["fetch".to_owned(), "web".to_owned()],
            };
            wait.remedies = vec![api::Remedy::from(&remedy)];
        }
        let expected = "    if web is one of the pod's own initContainers, it runs at once where the pod \
            has the annotation usher/native-init: fetch, web";
        let text = plain(&text(&pod, None, 1012.0));
        assert_eq!(text.lines().nth(3), Some(expected), "{text}");
    }

    #[test]
    fn what_helps_several_and_whose_name_may_be_misspelt_is_said_once() {
        let mut pod = held();
        pod.containers.push(pod.containers[0].clone());
        pod.containers[1].name = "proxi".to_owned();
        for container in &mut pod.containers {
            let name = container.name.clone();
            let wait = container.wait.as_mut().unwrap();
            wait.obstacles[0].missing = api::Missing::MISSING_NEVER_CREATED.into();
            let list = vec![name.clone()];
            wait.remedies = vec![api::Remedy::from(&Remedy::NativeInit {
                container: name.clone(),
                list: list.clone(),
            })];
            if name == "proxi" {
                let guest = Remedy::Guest {
                    container: name,
                    list,
                };
                wait.remedies.push(api::Remedy::from(&guest));
            }
        }
        let text = plain(&text(&pod, None, 1012.0));
        let expected = "  those of web, proxi that are the pod's own initContainers run at once where the \
            annotation usher/native-init names them\n  \
            what was added to the pod (kubectl debug) runs at once where the annotation usher/apps names \
            the pod's apps, and nothing else\n  \
            never created: proxy; created so far: web, proxi; are the names those of the pod's spec?\n";
        assert!(text.contains(expected), "{text}");
        assert_eq!(text.matches("initContainers").count(), 1, "{text}");
    }

    #[test]
    fn a_run_that_is_late_says_so_first() {
        let list = vec!["web".to_owned()];
        let mut pod = held();
        pod.containers.clear();
        pod.late = MessageField::some(api::Late {
            until: at(1020),
            remedy: MessageField::some(api::Remedy::from(&Remedy::Complete { list })),
            ..api::Late::new()
        });
        let text = plain(&text(&pod, None, 1012.0));
        let lines: Vec<&str> = text.lines().take(2).collect();
        let expected = [
            "shop waits for apps that may still come: Sidecar:0/1",
            "  all apps have ended, and the run is complete in 8.00s, unless another container is \
             created: it is complete at once where the pod has the annotation usher/apps: web",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_pod_that_a_guest_keeps_alive_says_so_first() {
        let mut pod = held();
        pod.containers.clear();
        pod.kept = MessageField::some(api::Kept {
            since: at(1000),
            by: vec!["agent".to_owned(), "debug".to_owned()],
            ..api::Kept::new()
        });
        let text = plain(&text(&pod, None, 1012.0));
        let lines: Vec<&str> = text.lines().take(2).collect();
        let expected = [
            "shop cannot end by itself: Sidecar:0/1",
            "  the run was over 12.0s ago, and the pod is kept alive by agent, debug, which usher does \
             not stop; expected in usher/sidecars what does not exit by itself",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_pod_that_terminates_says_why_and_how_far_it_is() {
        let termination = api::Termination {
            cause: api::Cause::CAUSE_SIDECAR_FAILED.into(),
            failed: Some("proxy".to_owned()),
            exit_code: Some(3),
            since: at(1000),
            deadline: at(1030),
            step: api::StepName::STEP_APPS.into(),
            ..api::Termination::new()
        };
        let mut pod = held();
        pod.phase = api::Phase::PHASE_TERMINATING.into();
        pod.termination = MessageField::some(termination);
        let text = plain(&text(&pod, None, 1012.0));
        let expected = "the pod has been terminating for 12.0s: its sidecar proxy ended with 3 before \
            it was started, and is never restarted; step apps, 18.0s of the grace period left";
        assert!(text.contains(expected), "{text}");
    }

    /// A pod whose cleanup hangs, with these sidecars.
    fn cleaning_up(sidecars: &[&str]) -> api::Pod {
        let waiting = |name: &str, role: api::Role, missing: api::Missing, since| {
            let turn = missing == api::Missing::MISSING_TURN_TO_STOP;
            let obstacle = api::Obstacle {
                missing: missing.into(),
                container: if turn { "clean-up" } else { "" }.to_owned(),
                role: turn.then(|| api::Role::ROLE_POST_EXIT.into()),
                step: turn.then(|| api::StepName::STEP_POST_EXIT.into()),
                ..api::Obstacle::new()
            };
            let wait = api::Wait {
                obstacles: vec![obstacle],
                since: at(since),
                until: at(1020),
                then: Some(api::Then::THEN_KILLED.into()),
                ..api::Wait::new()
            };
            api::Container {
                name: name.to_owned(),
                role: role.into(),
                state: api::State::STATE_RUNNING.into(),
                wait: MessageField::some(wait),
                ..api::Container::new()
            }
        };
        use api::Missing::{MISSING_TURN_TO_STOP, MISSING_WORK};
        use api::Role::{ROLE_POST_EXIT, ROLE_SIDECAR};
        let sidecars = sidecars.iter();
        let sidecars = sidecars.map(|name| waiting(name, ROLE_SIDECAR, MISSING_TURN_TO_STOP, 1000));
        let cleanup = waiting("clean-up", ROLE_POST_EXIT, MISSING_WORK, 1004);
        let mut pod = held();
        pod.phase = api::Phase::PHASE_TERMINATING.into();
        pod.containers = sidecars.chain([cleanup]).collect();
        pod
    }

    #[test]
    fn a_cleanup_that_hangs_is_named_once_with_its_own_time_and_those_that_wait_for_it() {
        let lines = |pod: &api::Pod| {
            let text = plain(&text(pod, None, 1008.2));
            let lines = text.lines().skip(1).take_while(|line| !line.is_empty());
            Vec::from_iter(lines.map(str::to_owned))
        };
        let mut pod = cleaning_up(&["proxy", "logs"]);
        let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; proxy and logs wait for it; \
            killed in 11.8s";
        assert_eq!(lines(&pod), [expected]);
        let wait = pod.containers[2].wait.as_mut().unwrap();
        wait.obstacles[0].missing = api::Missing::MISSING_EXIT.into();
        let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; proxy and logs wait for it; \
            it has got its stop signal; killed in 11.8s";
        assert_eq!(lines(&pod), [expected]);
        let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; proxy waits for it; \
            killed in 11.8s";
        assert_eq!(lines(&cleaning_up(&["proxy"])), [expected]);
        let expected = "  clean-up (post-exit) has run for 4.20s of its 16.0s; killed in 11.8s";
        assert_eq!(lines(&cleaning_up(&[])), [expected]);
    }

    #[test]
    fn the_version_of_a_pods_shim_is_shown() {
        let shim = |version: &str| {
            let pod = api::Pod {
                shim_pid: 7,
                shim_version: version.to_owned(),
                ..held()
            };
            let text = text(&pod, None, 1012.0);
            let line = text.lines().find(|line| line.contains("process 7"));
            line.unwrap_or_default().to_owned()
        };
        assert!(plain(&shim("0.0.9")).ends_with("process 7, version 0.0.9"));
        assert!(shim("0.0.9").contains(&WARNING.to_string()));
        assert!(!shim(crate::VERSION).contains(&WARNING.to_string()));
        // That of a shim from before the field.
        assert!(plain(&shim("")).ends_with("process 7, version unknown"));
    }

    #[test]
    fn who_was_killed_is_named_with_the_reason() {
        let kills = |why: api::Why, count| api::Kills {
            why: why.into(),
            count,
            ..api::Kills::new()
        };
        let mut pod = held();
        pod.containers[0].kills = vec![
            kills(api::Why::WHY_GRACE_OVER, 1),
            kills(api::Why::WHY_LIVENESS_PROBE_FAILED, 3),
        ];
        let text = plain(&text(&pod, None, 1012.0));
        let expected = "web was killed: the grace period was over\n\
            web was killed 3 times: its liveness probe has failed\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn why_a_probe_fails_is_said_where_it_is_waited_for_and_else_at_the_end() {
        let mut pod = held();
        let web = &mut pod.containers[0];
        web.failed_probe = MessageField::some(api::FailedProbe {
            probe: api::Probe::PROBE_STARTUP.into(),
            at: at(1010),
            reason: "connection refused".to_owned(),
            ..api::FailedProbe::new()
        });
        let said = "its startup probe failed last 2.00s ago: connection refused";
        let lines = |pod: &api::Pod| {
            let text = plain(&text(pod, None, 1012.0));
            let lines = text.lines().enumerate();
            let lines = lines.filter(|(_, line)| line.contains("probe failed"));
            Vec::from_iter(lines.map(|(number, line)| (number, line.to_owned())))
        };
        // Stopped for it, say.
        let expected = format!("web: {said}");
        assert_eq!(lines(&pod), [(12, expected)]);
        let wait = pod.containers[0].wait.as_mut().unwrap();
        wait.obstacles[0].missing = api::Missing::MISSING_STARTUP_PROBE.into();
        assert_eq!(lines(&pod), [(3, format!("    {said}"))]);
        // It has succeeded since.
        pod.containers[0].wait = MessageField::none();
        pod.containers[0].ready = true;
        assert_eq!(lines(&pod), []);
        let failed = pod.containers[0].failed_probe.as_mut().unwrap();
        failed.probe = api::Probe::PROBE_LIVENESS.into();
        assert_eq!(lines(&pod).len(), 1);
    }

    #[test]
    fn a_role_comes_with_who_has_given_it() {
        let mut pod = held();
        let row = |pod: &api::Pod| {
            let text = plain(&text(pod, None, 1012.0));
            let row = text.lines().find(|line| line.starts_with("web"));
            let row = row.unwrap_or_default().split("  ").map(str::trim);
            let cells: Vec<_> = row.filter(|cell| !cell.is_empty()).take(3).collect();
            cells.join("|")
        };
        assert_eq!(row(&pod), "web|app|-");
        pod.containers[0].role_origin = api::RoleOrigin::ROLE_ORIGIN_NODE.into();
        assert_eq!(row(&pod), "web|app|node");
        pod.containers[0].role_origin = api::RoleOrigin::ROLE_ORIGIN_LIST.into();
        pod.containers[0].optional = true;
        assert_eq!(row(&pod), "web|app|list, optional");
    }

    #[test]
    fn an_exit_code_that_was_told_as_another_shows_both() {
        let mut container = api::Container::new();
        assert_eq!(words::exit(&container), "-");
        container.exit_code = Some(143);
        container.reported_code = Some(0);
        assert_eq!(words::exit(&container), "143, told as 0");
        container.reported_code = Some(143);
        assert_eq!(words::exit(&container), "143");
    }
}
