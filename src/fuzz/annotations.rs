//! Whatever is written into annotations: nothing panics, and it costs little.

use std::collections::BTreeMap;

use crate::plan::{ContainerSetting, Identity, KubeletFacts, Plan, Word, identity};

use super::cost;

/// The longest sentence with which annotations are refused, in characters.
const SENTENCE_AT_MOST: usize = 4_000;

/// An input is text: annotations that end with a form feed, each a key and a value with a tab
/// between them. Neither is of use in a key or in JSON, so nothing is out of reach.
pub(crate) fn annotations(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    read(
        text.split('\x0c')
            .filter_map(|annotation| annotation.split_once('\t'))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    );
}

/// The value of each setting of one container that is JSON, or a word.
pub(crate) fn handlers(input: &[u8]) {
    let Ok(value) = std::str::from_utf8(input) else {
        return;
    };
    for setting in ContainerSetting::WORDS {
        let key = format!("{setting}.usher/web");
        let sidecars = ("usher/sidecars".to_owned(), "web".to_owned());
        read(BTreeMap::from([sidecars, (key, value.to_owned())]));
    }
    for fact in ["preStopHandler", "ports"] {
        let key = format!("io.kubernetes.container.{fact}");
        read(BTreeMap::from([(key, value.to_owned())]));
    }
}

fn read(annotations: BTreeMap<String, String>) {
    cost::assert_small(&annotations, || {
        let _ = Plan::parse(&annotations);
        let _ = KubeletFacts::read(&annotations);
        let _ = Identity::read("id", &annotations);
        let _ = identity::group(&annotations);
    });
    if let Err(error) = Plan::parse(&annotations) {
        let sentence = error.to_string();
        assert!(
            !sentence.contains('\n') && sentence.chars().count() < SENTENCE_AT_MOST,
            "{sentence}"
        );
    }
}
