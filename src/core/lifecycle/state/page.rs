//! Comparison of docs/lifecycle.md with the code.

use std::collections::BTreeSet;

use crate::lifecycle::action::{RequestId, Step};
use crate::lifecycle::exec::PostStart;
use crate::lifecycle::probe::Watch;
use crate::lifecycle::rules;
use crate::lifecycle::time::Time;
use crate::process::ExitStatus;

use super::{Blocked, ContainerState, FinalExit, Inner};

const PAGE: &str = include_str!("../../../../docs/lifecycle.md");

/// Function that applies an event to a container's state. Returns true if the state allows the
/// event.
type Transition = fn(&mut ContainerState) -> bool;

const NOW: Time = Time::from_origin(std::time::Duration::from_secs(1));
const FAILED: ExitStatus = ExitStatus::Code(1);

const EXIT: FinalExit = FinalExit {
    code: 1,
    until: NOW,
};

const TRANSITIONS: [(&str, Transition); 16] = [
    ("created", |state| state.created().is_ok()),
    ("abandon", |state| state.abandon().is_ok()),
    ("start", |state| {
        let blocked = Blocked {
            request: RequestId(1),
            since: NOW,
            deadline: None,
            is_wait_noted: false,
        };
        state.start(blocked).is_ok()
    }),
    ("not started", |state| state.take_back_start().is_ok()),
    ("hold", |state| state.hold(NOW, PostStart::Over).is_ok()),
    ("end", |state| state.end(1, None).is_ok()),
    ("release", |state| state.release().is_ok()),
    ("released", |state| {
        state
            .complete_release(NOW, 1, Watch::Nothing, PostStart::Over)
            .is_ok()
    }),
    ("not released", |state| state.take_back_release(NOW).is_ok()),
    ("back off", |state| {
        state.back_off(FAILED, NOW, false).is_ok()
    }),
    ("restart", |state| state.restart().is_ok()),
    ("restarted", |state| {
        state.complete_restart(NOW, 2, Watch::Nothing).is_ok()
    }),
    ("withhold", |state| state.withhold(NOW).is_ok()),
    ("report hidden exit", |state| {
        state.report_hidden_exit(EXIT).is_ok()
    }),
    // An exit that arrives while the program is being executed is kept until the report of this
    // execution.
    ("exit", |state| {
        state.record_early_exit(FAILED).is_err() && state.exit(EXIT).is_ok()
    }),
    ("publish", |state| state.publish().is_ok()),
];

fn name(state: &ContainerState) -> String {
    let name = format!("{:?}", state.inner);
    name.chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect()
}

/// All reachable states, with each transition and its target.
fn drawn() -> BTreeSet<(String, String, String)> {
    let mut drawn = BTreeSet::new();
    let (mut seen, mut roads) = (BTreeSet::new(), vec![ContainerState::creating()]);
    while let Some(from) = roads.pop() {
        if !seen.insert(format!("{from:?}")) {
            continue;
        }
        for (what, happen) in TRANSITIONS {
            let mut state = from.clone();
            if happen(&mut state) {
                drawn.insert((name(&from), what.to_owned(), name(&state)));
                roads.push(state);
            } else if !from.is_mid_execution() {
                assert_eq!(name(&state), name(&from), "{what} changes what it must not");
            }
        }
    }
    drawn
}

impl ContainerState {
    fn is_mid_execution(&self) -> bool {
        matches!(self.inner, Inner::Releasing(..) | Inner::Restarting(..))
    }
}

/// Returns the rows of the page's table below `heading`, without the table's header.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let part = PAGE.split(heading).nth(1).unwrap_or_default();
    let part = part.split("\n## ").next().unwrap_or_default();
    let lines = part.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect()
    };
    lines.skip(2).map(cells).collect()
}

#[test]
fn the_page_has_exactly_the_transitions_of_a_container() {
    let names = |cell: &str| {
        let names = cell.split(',').map(|name| name.trim().trim_matches('`'));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut page = BTreeSet::new();
    for row in rows("\n## Container states") {
        for from in names(&row[0]) {
            for to in names(&row[2]) {
                page.insert((from.clone(), row[1].clone(), to));
            }
        }
    }
    assert_eq!(page, drawn());
}

#[test]
fn the_page_has_the_steps_in_their_order() {
    let page = rows("\n## Termination");
    let page: Vec<_> = page.into_iter().map(|row| row[0].clone()).collect();
    let steps = std::iter::successors(Some(Step::Hooks), |step| {
        Some(step.next()).filter(|next| next != step)
    });
    let words = steps.map(|step| match step {
        Step::Hooks => "hooks",
        Step::PreExit => "pre-exit",
        Step::Apps => "apps",
        Step::PostExit => "post-exit",
        Step::Sidecars => "sidecars",
        Step::Over => "over",
    });
    assert_eq!(page, words.collect::<Vec<_>>());
}

#[test]
fn the_page_has_the_rules_in_their_order() {
    let page: Vec<_> = rows("\n## The rules")
        .into_iter()
        .map(|row| row[0].clone())
        .collect();
    assert_eq!(page, rules::names());
}
