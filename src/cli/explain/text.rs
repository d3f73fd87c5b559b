//! An explanation for people.

use crate::judgement::{Amounts, Entry, Held, RunAgain, Termination, bytes, cpus, shown};
use crate::plan::Origin;

use super::super::output::{self, Table, styled};
use super::Explanation;

impl Explanation {
    pub(in super::super) fn text(&self) -> String {
        let name = match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        };
        let title = styled(output::BOLD, format!("{} {name}", self.kind));
        let mut text = format!("{title}  {}\n", styled(output::FAINT, &self.file));
        if let Some(sentence) = &self.refused {
            let word = styled(output::BAD, "refused");
            text.push_str(&format!("\n{word}: {sentence}\n"));
        }
        match &self.start {
            Some(entries) => text.push_str(&start(entries, self.added_later.as_ref())),
            None if self.refused.is_none() => {
                text.push_str("\nIt has no annotation of usher: kubelet's order counts.\n");
            }
            None => {}
        }
        if let Some(stop) = &self.stop {
            text.push_str(&self::stop(stop));
        }
        text.push_str(&self.sizes());
        if !self.warnings.is_empty() {
            text.push_str(&heading("Warnings", ""));
        }
        for warning in &self.warnings {
            let about = warning.container.as_deref().unwrap_or("pod");
            let about = styled(output::WARNING, about);
            text.push_str(&format!("{about}: {}\n", warning.says));
        }
        text
    }

    fn sizes(&self) -> String {
        let mut table = Table::new([
            "PHASE",
            "CPU REQUEST",
            "CPU LIMIT",
            "MEMORY REQUEST",
            "MEMORY LIMIT",
        ]);
        for phase in &self.resources.phases {
            let Amounts {
                cpu_millis: cpu,
                memory_bytes: memory,
            } = phase.requests;
            table.row([
                phase.phase.clone(),
                cpus(cpu),
                cpus(phase.limits.cpu_millis),
                bytes(memory),
                bytes(phase.limits.memory_bytes),
            ]);
        }
        let class = format!("QoS class {}", self.resources.qos_class);
        format!("{}{table}", heading("Size", &class))
    }
}

fn heading(what: &str, more: &str) -> String {
    let what = styled(output::BOLD, what);
    match more {
        "" => format!("\n{what}\n"),
        more => format!("\n{what}: {more}\n"),
    }
}

fn start(entries: &[Entry], added_later: Option<&Entry>) -> String {
    let mut table = Table::new(["STEP", "CONTAINER", "ROLE", "STARTS", "DONE"]);
    for entry in entries.iter().chain(added_later) {
        let names = entry.waits_for.join(", ");
        let mut starts = match entry.held {
            Held::No => "at once".to_owned(),
            Held::Blocked => format!("after {names}; its Start waits"),
            Held::AtOnce => format!("after {names}; it is held"),
            Held::UntilTermination => "when the pod terminates; it is held".to_owned(),
            Held::InVain if names.is_empty() => {
                "never: it is held until the pod terminates, and kubelet waits for it".to_owned()
            }
            Held::InVain => format!("never: it is held for {names}, and kubelet waits for it"),
        };
        if let Some(remedy) = &entry.remedy {
            starts.push_str(&format!(" (at once with {remedy})"));
        }
        table.row([
            entry.step.map_or("-".to_owned(), |step| step.to_string()),
            entry.container.clone(),
            role(entry),
            starts,
            entry.done.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let mut text = format!("{}{table}", heading("Start", ""));
    for entry in entries {
        if let Some(liveness) = &entry.liveness {
            text.push_str(&format!("{} {liveness}\n", entry.container));
        }
    }
    text
}

/// With what is special about how it comes to it.
fn role(entry: &Entry) -> String {
    let role = &entry.role;
    match entry.origin {
        Origin::Node => format!("{role} (by the node)"),
        Origin::List if entry.optional => format!("{role} (optional)"),
        Origin::List | Origin::Nobody => role.clone(),
    }
}

fn stop(stop: &Termination) -> String {
    let mut table = Table::new(["STEP", "CONTAINERS", "OVER AT WORST AFTER"]);
    for step in &stop.steps {
        let between = if step.in_turn { ", then " } else { ", " };
        table.row([
            step.step.clone(),
            step.containers.join(between),
            seconds(step.over_after_seconds),
        ]);
    }
    let about = format!(
        "grace period {}, policy {}, at worst {}",
        seconds(stop.grace_period_seconds),
        stop.policy,
        seconds(stop.worst_case_seconds)
    );
    let mut text = format!("{}{table}", heading("Stop", &about));
    for defer in &stop.run_again {
        text.push_str(&run_again(defer));
    }
    text
}

/// One line about a defer container that is run again while it fails.
fn run_again(defer: &RunAgain) -> String {
    let mut line = format!(
        "{} is run again while it fails, after 0, 1, 2, then every 4 s, until {} have gone",
        defer.container,
        seconds(defer.until_seconds)
    );
    if let Some(cap) = defer.cap_seconds {
        line.push_str(&format!(", and for {} at most", seconds(cap)));
    }
    if !defer.behind.is_empty() {
        let behind = defer.behind.join(", ");
        line.push_str(&format!(" (2s each are left for its last run, {behind})"));
    }
    line + "\n"
}

fn seconds(seconds: f64) -> String {
    std::time::Duration::try_from_secs_f64(seconds).map_or_else(|_| "ever".to_owned(), shown)
}
