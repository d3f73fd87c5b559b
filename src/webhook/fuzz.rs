//! Fuzz target: any bytes as a review cause no panic, and cost no more than their size justifies.
//!
//! `scripts/fuzz reviews` searches for failing inputs; the test here runs the stored seeds.

use crate::admission::{Admission, Webhook};
use usher_core::plan::Rules;
use usher_fuzz::cost::assert_cheap;

/// Answers `input` as a review to each webhook.
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
    use super::*;

    #[test]
    fn reviews_that_once_failed_are_answered() {
        usher_fuzz::run_seeds(&[("reviews", reviews)]);
    }
}
