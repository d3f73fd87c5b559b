//! The first lines of `usher inspect`: waits of the pod's containers.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::super::output::{BOLD, FAINT, WARNING, styled};
use super::super::time::{self, span};
use super::super::{ps, words};
use usher_api as api;

/// The first line: the pod's status, and whether it waits for anything.
pub(super) fn answer(pod: &api::Pod) -> String {
    let name = styled(BOLD, &pod.name);
    let waiting: Vec<_> = waiting(pod)
        .map(|(container, _)| container.name.as_str())
        .collect();
    match (pod.ended.as_ref(), waiting.as_slice()) {
        (None, []) if pod.late.is_some() => {
            format!(
                "{name} waits for apps that may still be created: {}",
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
    // A defer container always waits for the pod's termination, so its wait is not shown as a
    // problem.
    containers.filter_map(|container| {
        let is_idle = words::is_defer(container.role) && !is_terminating(pod);
        let wait = container.wait.as_ref().filter(|_| !is_idle)?;
        Some((container, wait))
    })
}

fn is_terminating(pod: &api::Pod) -> bool {
    pod.phase.enum_value() == Ok(api::Phase::PHASE_TERMINATING)
}

/// True if the shim holds the container's program until other containers have started or exited.
fn is_held(container: &api::Container) -> bool {
    let state = container.state.enum_value_or_default();
    matches!(state, api::State::STATE_HELD | api::State::STATE_STARTING)
        && !words::is_defer(container.role)
}

fn awaited(wait: &api::Wait) -> String {
    let obstacles: Vec<_> = wait.obstacles.iter().map(words::obstacle).collect();
    match obstacles.is_empty() {
        true => "nothing".to_owned(),
        false => styled(WARNING, obstacles.join(", ")),
    }
}

/// Says what ends a wait: the time limit and its effect, and for a held container the command that
/// releases it now.
fn end(pod: &api::Pod, container: &api::Container, wait: &api::Wait, now: f64) -> String {
    let until = time::seconds(&wait.until).map(|until| span(until - now));
    let then = match until {
        Some(until) => {
            let then = words::then(wait.then.unwrap_or_default());
            format!("in {until} at the latest {then}")
        }
        None => "nothing else ends this wait".to_owned(),
    };
    match is_held(container) {
        true => format!(
            "{then}; to run it now: usher release {} {}",
            pod.name, container.name
        ),
        false => then,
    }
}

/// The lines about waits. For each waiting container they say what it waits for, how long it has
/// waited, and what ends the wait.
pub(super) fn waits(pod: &api::Pod, now: f64) -> Vec<String> {
    let mut lines = Vec::new();
    // Advice that applies to several containers is printed once, after their lines.
    let helped = waiting(pod).filter(|(_, wait)| !wait.remedies.is_empty());
    let are_several = helped.count() > 1;
    let remedies: Vec<_> = waiting(pod).flat_map(|(_, wait)| &wait.remedies).collect();
    let cleanup = waiting(pod).find(|(container, _)| is_cleanup_under_way(container));
    if let Some((container, wait)) = cleanup {
        lines.push(cleanup_line(pod, container, wait, now));
    }
    let mut told = BTreeSet::new();
    let is_said = |container: &api::Container, wait: &api::Wait| {
        cleanup.is_some_and(|(cleanup, _)| {
            cleanup.name == container.name || waits_only_for(wait, &cleanup.name)
        })
    };
    for (container, wait) in waiting(pod).filter(|(container, wait)| !is_said(container, wait)) {
        let since = time::seconds(&wait.since).or(time::seconds(&container.since));
        let since = since.map_or(String::new(), |since| format!(" for {}", span(now - since)));
        let (awaited, end) = match is_held(container) && is_terminating(pod) {
            // While a pod terminates, the shim releases only defer containers, and stops all other
            // held containers.
            true => (
                "its turn to stop".to_owned(),
                "it ends when its turn comes".to_owned(),
            ),
            false => (awaited(wait), end(pod, container, wait, now)),
        };
        lines.push(format!(
            "{} {} is {}{since}, waiting for {awaited}",
            words::word(container.role),
            styled(BOLD, &container.name),
            words::state(container.state),
        ));
        lines.push(styled(FAINT, format!("  {end}")));
        if has_failed_to_start(container) {
            let failed = failed_probe(container, now);
            lines.extend(failed.map(|failed| format!("  {failed}")));
        }
        for culprit in culprits(pod, wait).filter(|it| told.insert(it.name.as_str())) {
            let failed = failed_probe(culprit, now);
            lines.extend(failed.map(|failed| format!("  {}: {failed}", culprit.name)));
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

/// True for a defer container whose program runs. It may already have got its stop signal.
fn is_cleanup_under_way(container: &api::Container) -> bool {
    let is_under_way =
        |wait: &api::Wait| waits_for(wait, api::Missing::MISSING_WORK) || is_signaled(wait);
    words::is_defer(container.role) && container.wait.as_ref().is_some_and(is_under_way)
}

fn is_signaled(wait: &api::Wait) -> bool {
    waits_for(wait, api::Missing::MISSING_EXIT)
}

fn waits_for(wait: &api::Wait, missing: api::Missing) -> bool {
    let mut obstacles = wait.obstacles.iter();
    obstacles.any(|obstacle| obstacle.missing.enum_value() == Ok(missing))
}

/// True if the container waits only for its turn, which comes when the container named `name` is
/// done.
fn waits_only_for(wait: &api::Wait, name: &str) -> bool {
    use api::Missing::{MISSING_TURN_AT_THE_END, MISSING_TURN_TO_STOP};
    let turns = [MISSING_TURN_TO_STOP, MISSING_TURN_AT_THE_END].map(Ok);
    let mut obstacles = wait.obstacles.iter();
    obstacles.all(|obstacle| {
        turns.contains(&obstacle.missing.enum_value()) && obstacle.container == name
    })
}

/// The line about a running cleanup. Says how long the cleanup has run, when it is killed, and
/// which containers wait for it.
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
    if is_signaled(wait) {
        line.push_str("; it got its stop signal");
    }
    if let Some(until) = until {
        let _ = write!(line, "; killed in {}", span(until - now));
    }
    line
}

/// The line about names of containers that were never created, although other containers wait for
/// them. Such a name may be misspelled.
fn never_created(pod: &api::Pod) -> Option<String> {
    let never = api::Missing::MISSING_NEVER_CREATED;
    let obstacles = waiting(pod).flat_map(|(_, wait)| &wait.obstacles);
    let never = obstacles.filter(|obstacle| obstacle.missing.enum_value() == Ok(never));
    let never: BTreeSet<_> = never.map(|obstacle| obstacle.container.as_str()).collect();
    let created: Vec<_> = pod.containers.iter().map(|it| it.name.as_str()).collect();
    let never = Vec::from_iter(never).join(", ");
    let created = created.join(", ");
    (!never.is_empty()).then(|| {
        format!(
            "never created: {never}; created so far: {created}; compare the names with the pod's spec"
        )
    })
}

/// The line about a pod whose run is not complete yet, although all its apps have ended.
fn late(pod: &api::Pod, now: f64) -> Option<String> {
    let late = pod.late.as_ref()?;
    let until = time::seconds(&late.until).unwrap_or(now);
    let remedy = late.remedy.as_ref().map(words::remedy).unwrap_or_default();
    Some(format!(
        "all apps have ended; the run is complete in {} unless another container is created; {remedy}",
        span(until - now)
    ))
}

/// The line about containers that still run after the pod's run has ended, and that usher does not
/// stop.
fn kept(pod: &api::Pod, now: f64) -> Option<String> {
    let kept = pod.kept.as_ref().filter(|_| pod.ended.is_none())?;
    let since = time::seconds(&kept.since).unwrap_or(now);
    let names: Vec<String> = kept.by.iter().map(|name| styled(WARNING, name)).collect();
    Some(format!(
        "the run ended {} ago, but the pod still runs because of {}, which usher does not stop; list containers \
         that do not exit by themselves in usher/sidecars",
        span(now - since),
        names.join(", ")
    ))
}

/// True if the container waits for its startup probe, or is being stopped because the probe failed.
fn has_failed_to_start(container: &api::Container) -> bool {
    let is_probed = |wait: &api::Wait| {
        waits_for(wait, api::Missing::MISSING_STARTUP_PROBE)
            || is_signaled(wait) && is_not_up(container)
    };
    container.wait.as_ref().is_some_and(is_probed)
}

/// True if the container's startup probe failed and the container never became ready.
fn is_not_up(container: &api::Container) -> bool {
    let failed = container.failed_probe.as_ref();
    let is_startup =
        failed.is_some_and(|it| it.probe.enum_value() == Ok(api::Probe::PROBE_STARTUP));
    is_startup && !container.ready
}

/// The containers that the waiting container waits for, and that were stopped because their startup
/// probe failed.
fn culprits<'a>(
    pod: &'a api::Pod,
    wait: &'a api::Wait,
) -> impl Iterator<Item = &'a api::Container> {
    let containers = pod.containers.iter();
    containers.filter(|it| {
        let mut obstacles = wait.obstacles.iter();
        let is_waited_for = obstacles.any(|obstacle| obstacle.container == it.name);
        is_waited_for && it.wait.is_none() && is_not_up(it)
    })
}

/// True if a line about a wait gives the reason why the container's probe failed.
pub(super) fn is_shown_with_a_wait(pod: &api::Pod, container: &api::Container) -> bool {
    let is_culprit = |wait| culprits(pod, wait).any(|it| it.name == container.name);
    has_failed_to_start(container) || waiting(pod).any(|(_, wait)| is_culprit(wait))
}

/// The sentence about the container's last failed probe, with the reason.
pub(super) fn failed_probe(container: &api::Container, now: f64) -> Option<String> {
    let failed = container.failed_probe.as_ref()?;
    let ago = time::seconds(&failed.at).map_or(0.0, |at| now - at);
    let probe = words::word(failed.probe);
    Some(format!(
        "its {probe} probe last failed {} ago: {}",
        span(ago),
        styled(WARNING, &failed.reason)
    ))
}
