//! Fuzz targets for annotations: no value causes a panic or costs much.

use std::collections::BTreeMap;

use crate::plan::{ContainerSetting, Identity, KubeletFacts, Plan, Word, identity};

use usher_fuzz::cost;

const MAX_MESSAGE_CHARS: usize = 4_000;

/// Parses the input as annotations. In the input, a form feed ends each annotation, and a tab
/// separates key and value. No valid key or JSON needs either character, so the fuzzer can reach
/// all cases.
pub fn annotations(input: &[u8]) {
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

/// Parses the input as the value of each setting of one container.
pub fn handlers(input: &[u8]) {
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
            !sentence.contains('\n') && sentence.chars().count() < MAX_MESSAGE_CHARS,
            "{sentence}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_fails() {
        usher_fuzz::run_seeds(&[("annotations", annotations), ("handlers", handlers)]);
    }
}
