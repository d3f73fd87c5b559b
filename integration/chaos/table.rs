//! The results of all rounds, as Markdown.

use std::collections::BTreeMap;

use crate::plan::{During, Kind};
use crate::round::{Done, Finding, Wrong};

#[derive(Default)]
pub struct Table {
    rows: BTreeMap<Kind, Row>,
    pub rounds: usize,
    pub pods: usize,
    pub codes: usize,
    pub killed_by_cleanup: usize,
    /// The number of rounds that left something behind until the next container was created.
    pub late: usize,
    /// The number of bundles that a killed containerd had not finished removing.
    pub containerds: usize,
    pub findings: usize,
}

#[derive(Clone, Default)]
struct Row {
    during: BTreeMap<During, usize>,
    lived: usize,
    cleaned: usize,
    leftovers: usize,
    codes: usize,
    other: usize,
}

impl Table {
    pub fn faults(&self) -> usize {
        self.rows.values().map(Row::faults).sum()
    }

    /// Counts a round's faults and findings. Attributes each finding to the last fault that was
    /// injected into the finding's pod.
    pub fn add(&mut self, faults: &[Done], findings: &[Finding]) {
        self.findings += findings.len();
        let has_leftovers = |pod: &str| {
            let mut of_pod = findings.iter().filter(|f| f.pod.as_deref() == Some(pod));
            of_pod.any(|finding| finding.what == Wrong::Leftover)
        };
        for done in faults {
            let row = self.rows.entry(done.kind).or_default();
            *row.during.entry(done.during).or_default() += 1;
            match done.lived {
                true => row.lived += 1,
                false if !has_leftovers(&done.pod) => row.cleaned += 1,
                false => {}
            }
        }
        for finding in findings {
            let is_of = |done: &&Done| finding.pod.as_ref().is_none_or(|pod| *pod == done.pod);
            let last = faults.iter().rev().find(is_of);
            let Some(row) = last.and_then(|done| self.rows.get_mut(&done.kind)) else {
                continue;
            };
            match finding.what {
                Wrong::Leftover => row.leftovers += 1,
                Wrong::Code => row.codes += 1,
                Wrong::Other => row.other += 1,
            }
        }
    }

    pub fn print(&self) {
        let heads: Vec<&str> = During::ALL.iter().map(|(_, name)| *name).collect();
        println!(
            "| fault, while this was under way: | {} | all | pods that lived on | cleaned | leftovers | wrong codes | else |",
            heads.join(" | ")
        );
        println!("|---|{}", "--:|".repeat(heads.len() + 6));
        let mut total = Row::default();
        for (kind, name) in Kind::ALL {
            let row = self.rows.get(&kind).cloned().unwrap_or_default();
            row.print(name);
            total.take_in(&row);
        }
        total.print("all");
        println!(
            "\n{} faults in {} pods of {} rounds; {} exit codes compared, {} of them 137 for what had \
             ended by itself, told after its shim was killed; after {} rounds something was left until an \
             empty shim had ended or the next container had come; {} bundles were left that containerd was removing when it \
             was killed; {} findings.",
            self.faults(),
            self.pods,
            self.rounds,
            self.codes,
            self.killed_by_cleanup,
            self.late,
            self.containerds,
            self.findings
        );
    }
}

impl Row {
    fn faults(&self) -> usize {
        self.during.values().sum()
    }

    fn take_in(&mut self, other: &Row) {
        for (during, times) in &other.during {
            *self.during.entry(*during).or_default() += times;
        }
        self.lived += other.lived;
        self.cleaned += other.cleaned;
        self.leftovers += other.leftovers;
        self.codes += other.codes;
        self.other += other.other;
    }

    fn print(&self, name: &str) {
        let of = |(during, _): &(During, &str)| {
            let times = self.during.get(during).copied().unwrap_or_default();
            times.to_string()
        };
        let during: Vec<String> = During::ALL.iter().map(of).collect();
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            during.join(" | "),
            self.faults(),
            self.lived,
            self.cleaned,
            self.leftovers,
            self.codes,
            self.other
        );
    }
}
