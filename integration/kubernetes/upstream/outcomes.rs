//! Outcomes of Kubernetes' own tests, from ginkgo's report, and differences between two runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The outcome of a test, with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// The test failed, timed out or was interrupted.
    Failed(String),
    /// The test skipped itself, because it does not apply to this node.
    Inapplicable(String),
}

/// Outcomes by the full name of the test. Tests that were not selected are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(BTreeMap<String, Outcome>);

/// Names of tests, each with a reason. In the file, a name is on a line of its own, and its reason
/// on the indented lines below. `#` begins a comment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named(BTreeMap<String, String>);

/// A test whose outcomes differ between the runs.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub name: String,
    pub control: Option<Outcome>,
    pub ours: Option<Outcome>,
}

/// Numbers of tests by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub inapplicable: usize,
}

impl Outcome {
    /// Parses a test of the report. `None` if the test was not selected. A skipped test without a
    /// message was not selected, because ginkgo writes a message only for tests that ran.
    fn of(spec: &Value) -> Option<Self> {
        let words = spec["Failure"]["Message"].as_str().unwrap_or_default();
        match spec["State"].as_str()? {
            "passed" => Some(Self::Passed),
            "skipped" | "pending" if words.is_empty() => None,
            "skipped" | "pending" => Some(Self::Inapplicable(words.to_owned())),
            "" => None,
            other if words.is_empty() => Some(Self::Failed(other.to_owned())),
            _ => Some(Self::Failed(words.to_owned())),
        }
    }

    /// True if both outcomes are of the same kind. Messages contain times and names, so they may
    /// differ.
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// The outcome in one line.
    pub fn brief(&self) -> String {
        let (kind, words) = match self {
            Self::Passed => return "passed".to_owned(),
            Self::Failed(words) => ("failed", words),
            Self::Inapplicable(words) => ("not applicable", words),
        };
        let line: Vec<&str> = words.split_whitespace().collect();
        let line: String = line.join(" ").chars().take(160).collect();
        format!("{kind}: {line}")
    }
}

impl Outcomes {
    /// Parses ginkgo's `--json-report`, a list of suites.
    pub fn of_report(text: &str) -> Result<Self, String> {
        let report: Value =
            serde_json::from_str(text).map_err(|e| format!("ginkgo's report: {e}"))?;
        let suites = report.as_array().ok_or("ginkgo's report is no list")?;
        let mut all = BTreeMap::new();
        for suite in suites {
            let specs = suite["SpecReports"].as_array();
            for spec in specs.into_iter().flatten() {
                // The report also lists setup and teardown, which are no tests.
                if spec["LeafNodeType"] != "It" {
                    continue;
                }
                if let Some(outcome) = Outcome::of(spec) {
                    all.insert(full_name(spec), outcome);
                }
            }
        }
        Ok(Self(all))
    }

    pub fn count(&self) -> Count {
        let mut count = Count::default();
        for outcome in self.0.values() {
            *match outcome {
                Outcome::Passed => &mut count.passed,
                Outcome::Failed(_) => &mut count.failed,
                Outcome::Inapplicable(_) => &mut count.inapplicable,
            } += 1;
        }
        count
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Outcome)> {
        self.0.iter().map(|(name, outcome)| (&**name, outcome))
    }

    pub fn differences(&self, ours: &Self) -> Vec<Difference> {
        let names: BTreeSet<&String> = self.0.keys().chain(ours.0.keys()).collect();
        let difference = |name: &String| Difference {
            name: name.clone(),
            control: self.0.get(name).cloned(),
            ours: ours.0.get(name).cloned(),
        };
        let all = names.into_iter().map(difference);
        all.filter(Difference::is_one).collect()
    }

    /// Replaces the outcomes of tests that ran again by their later outcomes.
    pub fn replace_by(&mut self, later: &Self) {
        for (name, outcome) in &later.0 {
            self.0.insert(name.clone(), outcome.clone());
        }
    }
}

fn full_name(spec: &Value) -> String {
    let above = spec["ContainerHierarchyTexts"].as_array();
    let above = above.into_iter().flatten();
    let all = above.chain([&spec["LeafNodeText"]]);
    let words: Vec<&str> = all.filter_map(Value::as_str).collect();
    words.join(" ")
}

impl Difference {
    fn is_one(&self) -> bool {
        match (&self.control, &self.ours) {
            (Some(control), Some(ours)) => !control.is_like(ours),
            _ => true,
        }
    }
}

impl Named {
    pub fn of(text: &str) -> Result<Self, String> {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        let mut last: Option<String> = None;
        for line in text.lines() {
            let words = line.trim();
            if words.is_empty() || words.starts_with('#') {
                continue;
            }
            if !line.starts_with(' ') {
                all.insert(words.to_owned(), String::new());
                last = Some(words.to_owned());
                continue;
            }
            let name = last.as_ref().ok_or("a reason without a name above it")?;
            let reason = all.entry(name.clone()).or_default();
            if !reason.is_empty() {
                reason.push(' ');
            }
            reason.push_str(words);
        }
        match all.iter().find(|(_, reason)| reason.is_empty()) {
            Some((name, _)) => Err(format!("{name:?} has no reason")),
            None => Ok(Self(all)),
        }
    }

    pub fn reason(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|reason| &**reason)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }
}

/// A Go regular expression that matches texts containing this text.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars() {
        if !c.is_alphanumeric() && c.is_ascii() && !c.is_ascii_whitespace() {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}
