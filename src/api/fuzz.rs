//! Fuzz target: the node's configuration file.

use std::collections::BTreeMap;

use usher_core::config::parse;
use usher_core::plan::Plan;
use usher_fuzz::cost::assert_bounded;

/// Any content of the file yields either rules or a one-line error.
pub fn config(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let read = || parse(text);
    match assert_bounded(text.len(), 1024, 128 * 1024, read) {
        Ok(rules) => {
            let _ = Plan::parse_under(&BTreeMap::new(), &rules);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_fails() {
        usher_fuzz::run_seeds(&[("config", config)]);
    }
}
