//! All errors of invalid annotations, collected in one pass.

use super::*;
use crate::plan::Rules;

fn refusals(pairs: &[(&str, &str)]) -> Vec<String> {
    let refused = Plan::parse_all(&annotations(pairs), &Rules::default());
    refused.map_or_else(|refusals| refusals.sentences().collect(), |_| Vec::new())
}

#[test]
fn all_refusals_are_reported_at_once_the_shims_first() {
    let pairs = [
        ("restart.usher/web", "Always"),
        ("startup-probe.usher/proxy", "{}"),
        ("usher/essential", "debug"),
        ("usher/apps", "web"),
        ("usher/grace-period", "soon"),
        ("usher/sidecars", "proxy"),
        ("usher/start-mode", "Later"),
    ];
    let all = refusals(&pairs);
    let keys = all
        .iter()
        .map(|sentence| sentence.split(':').next().unwrap());
    let expected = [
        "startup-probe.usher/proxy",
        "usher/grace-period",
        "usher/start-mode",
        "restart.usher/web",
        "usher/essential",
    ];
    assert_eq!(keys.collect::<Vec<_>>(), expected, "{all:#?}");
    assert_eq!(all[0], refusal(&pairs));
}

#[test]
fn a_refused_list_yields_no_warnings_about_roles() {
    for list in [
        ("usher/sidecars", "proxy,,logs"),
        ("usher/sidecar", "proxy"),
    ] {
        let pairs = [list, ("restart.usher/proxy", "Always")];
        assert_eq!(refusals(&pairs).len(), 1, "{list:?}");
    }
}

#[test]
fn refusals_are_bounded() {
    let pairs: Vec<_> = (0..1000)
        .map(|number| (format!("usher/x{number}"), "y"))
        .collect();
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| (key.as_str(), *value))
        .collect();
    assert_eq!(refusals(&pairs).len(), 64);
}
