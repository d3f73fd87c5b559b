use std::collections::BTreeSet;

use super::annotations;
use crate::plan::Plan;
use crate::plan::reference::{Entry, entries};

/// The part of `text` between the back quotes at its beginning. `None` if `text` begins otherwise.
fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('`')?.split('`').next()
}

fn key_of_example(entry: &Entry) -> &'static str {
    entry.example.last().expect("an example").0
}

#[test]
fn every_example_is_valid_and_changes_the_plan() {
    for entry in entries() {
        let whole = Plan::parse(&annotations(entry.example));
        let whole = whole.unwrap_or_else(|error| panic!("{}: {error}", entry.key));
        let (_, others) = entry.example.split_last().expect("an example");
        let without = Plan::parse(&annotations(others)).expect("what it is an example beside");
        assert_ne!(whole, without, "{}", entry.key);
    }
}

#[test]
fn every_example_is_one_of_its_own_key() {
    let keys: BTreeSet<String> = entries().map(|entry| entry.key).collect();
    assert_eq!(keys.len(), entries().count());
    for entry in entries() {
        let (before, _) = entry
            .key
            .split_once("<container>")
            .unwrap_or((&entry.key, ""));
        let example = key_of_example(&entry);
        assert!(example.starts_with(before), "{example} for {}", entry.key);
    }
}

#[test]
fn setting_a_default_explicitly_changes_nothing() {
    let mut said = 0;
    for entry in entries().filter(|entry| entry.key.starts_with("usher/")) {
        let Some(default) = quoted(&entry.default) else {
            continue;
        };
        let (_, others) = entry.example.split_last().expect("an example");
        let with = [others, &[(key_of_example(&entry), default)]].concat();
        let with = Plan::parse(&annotations(&with)).expect("a default is taken");
        let without = Plan::parse(&annotations(others)).expect("what it is an example beside");
        assert_eq!(with, without, "{} = {default}", entry.key);
        said += 1;
    }
    assert!(said >= 10, "{said} defaults");
}

#[test]
fn every_word_that_a_value_may_be_is_taken() {
    for entry in entries() {
        // Skips a value whose text is not just a list of words.
        let words: Vec<&str> = entry.value.split('`').skip(1).step_by(2).collect();
        if quoted(&entry.value).is_none() {
            continue;
        }
        let (_, others) = entry.example.split_last().expect("an example");
        for word in words {
            let with = [others, &[(key_of_example(&entry), word)]].concat();
            let plan = Plan::parse(&annotations(&with));
            assert!(plan.is_ok(), "{} = {word}: {plan:?}", entry.key);
        }
    }
}
