//! `usher inspect`: shows everything about a pod, first what its containers wait for.

#[cfg(test)]
mod tests;
mod waits;

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
use usher_api as api;
use waits::{answer, failed_probe, is_shown_with_a_wait, waits};

/// Shows everything about a pod: first what it waits for, since when, and what ends the wait
///
/// Then its containers: role, state, exit code, OOM score, reasons for kills, and the limits of the
/// cgroups in the kernel. The origin of a role is a list in the pod's annotations, or the node's
/// configuration. If containerd was told another exit code, that is shown as well. Works for an
/// hour after the end of the pod.
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

    /// The pod's name or id on the command line.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Shows a pod, and its node if given.
    ///
    /// # Errors
    ///
    /// If the output cannot be written.
    pub fn show(
        &self,
        pod: &api::Pod,
        node: Option<&str>,
        stdout: &mut Stdout,
    ) -> Result<(), Failure> {
        match self.output.is_json() {
            true => stdout.json(&json_on(pod, node)?),
            false => stdout.text(text(pod, node, time::observed(pod))),
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

/// The origin of the container's role.
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

/// Writes the last failed probes. Leaves out a probe that a line about a wait already shows, and a
/// startup probe that has succeeded since.
fn failed_probes(text: &mut String, pod: &api::Pod, now: f64) {
    for container in &pod.containers {
        let is_said = is_shown_with_a_wait(pod, container);
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
