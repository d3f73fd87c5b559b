//! The text of an explanation.

use std::collections::BTreeSet;

use anstyle::Style;

use usher_core::judgement::{Amounts, Entry, Held, RunAgain, Termination, bytes, cpus, shown};
use usher_core::plan::Origin;

use super::super::output::{self, Table, styled, wrapped};
use super::Explanation;

impl Explanation {
    /// The explanation, wrapped to `width` columns if given.
    pub(in super::super) fn text(&self, width: Option<usize>) -> String {
        let name = match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        };
        let title = styled(output::BOLD, format!("{} {name}", self.kind));
        let mut text = format!("{title}  {}\n", styled(output::FAINT, &self.file));
        for (index, sentence) in self.refused.iter().chain(&self.also_refused).enumerate() {
            let gap = if index == 0 { "\n" } else { "" };
            text.push_str(gap);
            text.push_str(&about("refused", output::BAD, sentence, width));
        }
        match &self.start {
            Some(entries) => {
                let missing = Missing::of(entries);
                text.push_str(&start(entries, self.added_later.as_ref(), &missing, width));
                if let Some(stop) = &self.stop {
                    text.push_str(&self::stop(stop, &missing, width));
                }
            }
            None if self.refused.is_none() => {
                text.push_str("\nThe pod has no annotations of usher: kubelet's order applies.\n");
                // Authors often put the annotations on the controller instead of its pod template.
                if self.kind != "Pod" {
                    let place = format!(
                        "usher reads the annotations in the {}'s pod template.\n",
                        self.kind
                    );
                    text.push_str(&place);
                }
            }
            None => {}
        }
        // A refused pod is never created, so the text shows no size for it.
        if self.refused.is_none() {
            text.push_str(&self.sizes(width));
        }
        if !self.warnings.is_empty() {
            text.push_str(&heading("Warnings", ""));
        }
        for warning in &self.warnings {
            let whom = warning.container.as_deref().unwrap_or("pod");
            text.push_str(&about(whom, output::WARNING, &warning.says, width));
        }
        text
    }

    fn sizes(&self, width: Option<usize>) -> String {
        let class = format!("QoS class {}", self.resources.qos_class);
        let is_unsized = |amounts: &Amounts| {
            let none = |amount: Option<u64>| amount.is_none_or(|amount| amount == 0);
            none(amounts.cpu_millis) && none(amounts.memory_bytes)
        };
        let mut phases = self.resources.phases.iter();
        if phases.all(|phase| is_unsized(&phase.requests) && is_unsized(&phase.limits)) {
            return heading("Size", &format!("{class}, without requests and limits"));
        }
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
        format!("{}{}", heading("Size", &class), table.within(width))
    }
}

/// A line about a subject, such as a container: its name, and a sentence. Wrapped lines are
/// indented.
fn about(what: &str, style: Style, sentence: &str, width: Option<usize>) -> String {
    let lines = wrapped(&format!("{what}: {sentence}"), width, "  ");
    lines.replacen(what, &styled(style, what), 1) + "\n"
}

fn heading(what: &str, more: &str) -> String {
    let what = styled(output::BOLD, what);
    match more {
        "" => format!("\n{what}\n"),
        more => format!("\n{what}: {more}\n"),
    }
}

/// The names in the plan that no container of the manifest has.
struct Missing<'a>(BTreeSet<&'a str>);

impl<'a> Missing<'a> {
    fn of(entries: &'a [Entry]) -> Missing<'a> {
        let missing = entries.iter().filter(|entry| entry.missing);
        Missing(missing.map(|entry| entry.container.as_str()).collect())
    }

    /// The name, with a mark if no container has it.
    fn mark(&self, name: &str) -> String {
        match self.0.contains(name) {
            true => format!("{name} (missing)"),
            false => name.to_owned(),
        }
    }

    fn mark_all(&self, names: &[String], between: &str) -> String {
        let marked: Vec<_> = names.iter().map(|name| self.mark(name)).collect();
        marked.join(between)
    }
}

fn start(
    entries: &[Entry],
    added_later: Option<&Entry>,
    missing: &Missing<'_>,
    width: Option<usize>,
) -> String {
    let mut table = Table::new(["STEP", "CONTAINER", "ROLE", "STARTS", "DONE"]);
    for entry in entries.iter().chain(added_later) {
        let names = missing.mark_all(&entry.waits_for, ", ");
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
            starts.push_str(&format!(
                " (starts at once if the pod has the annotation {remedy})"
            ));
        }
        table.row([
            entry.step.map_or("-".to_owned(), |step| step.to_string()),
            missing.mark(&entry.container),
            role(entry),
            starts,
            entry.done.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    let mut text = format!("{}{}", heading("Start", ""), table.within(width));
    for entry in entries {
        if let Some(liveness) = &entry.liveness {
            let sentence = format!("{} {liveness}", entry.container);
            text.push_str(&wrapped(&sentence, width, "  "));
            text.push('\n');
        }
    }
    text
}

/// The container's role, with a note if the role comes from the node or if the container is
/// optional.
fn role(entry: &Entry) -> String {
    let role = &entry.role;
    match entry.origin {
        Origin::Node => format!("{role} (by the node)"),
        Origin::List if entry.optional => format!("{role} (optional)"),
        Origin::List | Origin::Default => role.clone(),
    }
}

fn stop(stop: &Termination, missing: &Missing<'_>, width: Option<usize>) -> String {
    let mut table = Table::new(["STEP", "CONTAINERS", "OVER AT WORST AFTER"]);
    for step in &stop.steps {
        let between = if step.in_turn { ", then " } else { ", " };
        table.row([
            step.step.clone(),
            missing.mark_all(&step.containers, between),
            seconds(step.over_after_seconds),
        ]);
    }
    let about = format!(
        "grace period {}, policy {}, at worst {}",
        seconds(stop.grace_period_seconds),
        stop.policy,
        seconds(stop.worst_case_seconds)
    );
    let mut text = format!("{}{}", heading("Stop", &about), table.within(width));
    for defer in &stop.run_again {
        text.push_str(&wrapped(&run_again(defer), width, "  "));
        text.push('\n');
    }
    text
}

/// The line about a defer container that is run again while it fails.
fn run_again(defer: &RunAgain) -> String {
    let mut line = format!(
        "{} is run again while it fails, after 0, 1, 2, then every 4 s, until {} have passed",
        defer.container,
        seconds(defer.until_seconds)
    );
    if let Some(cap) = defer.cap_seconds {
        line.push_str(&format!(", and for {} at most", seconds(cap)));
    }
    if !defer.behind.is_empty() {
        let behind = defer.behind.join(", ");
        line.push_str(&format!(" (reserving 2s each for its last run, {behind})"));
    }
    line
}

fn seconds(seconds: f64) -> String {
    std::time::Duration::try_from_secs_f64(seconds).map_or_else(|_| "ever".to_owned(), shown)
}
