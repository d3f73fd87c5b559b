//! Any bytes at all as a review: nothing panics, and it costs no more than its size explains.
//!
//! `scripts/fuzz reviews` looks for bytes that break it; the tests run its seeds.

use crate::admission::{Admission, Webhook};
use crate::cost::assert_cheap;
use usher_core::plan::Rules;

/// A review, for each webhook.
pub fn reviews(input: &[u8]) {
    let admission = Admission {
        rules: Rules::default(),
        runtime_class: "usher".to_owned(),
    };
    for webhook in [Webhook::Mutate, Webhook::MutateNamespace, Webhook::Validate] {
        let answer = assert_cheap(input.len(), || admission.answer(webhook, input));
        if let Err(malformed) = answer {
            let sentence = malformed.to_string();
            assert!(!sentence.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn what_once_broke_a_review_does_so_no_more() {
        let seeds =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/fuzz/seeds/reviews");
        let inputs: Vec<_> = fs::read_dir(seeds).unwrap().collect();
        assert!(!inputs.is_empty());
        for input in inputs {
            super::reviews(&fs::read(input.unwrap().path()).unwrap());
        }
    }
}
