//! Tests of the annotation contract, sentence by sentence.

use std::collections::BTreeMap;

use super::Plan;

mod arbitrary;
mod bounds;
mod containers;
mod durations;
mod facts;
mod handlers;
mod keys;
mod lists;
mod of_node;
mod quantities;
mod reference;
mod refusals;
mod roles;
mod scalars;
mod signals;
mod supported;

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn plan(pairs: &[(&str, &str)]) -> Plan {
    Plan::parse(&annotations(pairs)).unwrap_or_else(|error| panic!("refused: {error}"))
}

fn refusal(pairs: &[(&str, &str)]) -> String {
    match Plan::parse(&annotations(pairs)) {
        Ok(plan) => panic!("accepted as {plan:?}"),
        Err(error) => error.to_string(),
    }
}
