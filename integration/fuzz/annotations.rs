//! Whatever is written into annotations: nothing panics, and it costs little. `scripts/fuzz` runs it.
//!
//! An input is text: annotations that end with a form feed, each a key and a value with a tab
//! between them. Neither is of use in a key or in JSON, so nothing is out of reach.

#![no_main]

#[path = "../../src/plan/tests/cost.rs"]
mod cost;
#[allow(dead_code, unused_imports)]
#[path = "../../src/plan/mod.rs"]
mod plan;

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use plan::{Identity, KubeletFacts, Plan, identity};

fuzz_target!(|text: &str| {
    let annotations: BTreeMap<String, String> = text
        .split('\x0c')
        .filter_map(|annotation| annotation.split_once('\t'))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    cost::assert_small(&annotations, || {
        let _ = Plan::parse(&annotations);
        let _ = KubeletFacts::read(&annotations);
        let _ = Identity::read("id", &annotations);
        let _ = identity::group(&annotations);
    });
    if let Err(error) = Plan::parse(&annotations) {
        let sentence = error.to_string();
        assert!(
            !sentence.contains('\n') && sentence.chars().count() < 4_000,
            "{sentence}"
        );
    }
});
