//! Tests that even the most expensive annotations cost a shim little CPU time and memory.

use std::collections::BTreeMap;

use super::arbitrary::read_all;
use super::{annotations, plan, refusal};
use crate::plan::word::Word;
use crate::plan::{ContainerSetting, PodSetting};
use usher_fuzz::cost::assert_small;

/// Maximum length of a value, in bytes.
const LONGEST: usize = 16 * 1024;

/// Makes a value of maximum length: `begin`, as many copies of `item` as fit, and `end`.
fn full(begin: &str, item: &str, end: &str) -> String {
    let room = LONGEST - begin.len() - end.len();
    // If the items end in a comma, the last comma is left out.
    let items = item.repeat(room / item.len());
    format!("{begin}{}{end}", items.trim_end_matches(','))
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("c{n:x}")).collect()
}

fn assert_cheap(annotations: &BTreeMap<String, String>) {
    assert_small(annotations, || read_all(annotations));
}

#[test]
fn the_longest_values_are_read_at_little_cost() {
    let probes = [
        full(r#"{"exec":{"command":["#, r#""","#, "]}}"),
        full(r#"{"exec":{"command":["#, r#""a","#, "]}}"),
        full(r#"{"exec":{"command":[""#, "a", r#""]}}"#),
        full(r#"{"exec":{"command":[""#, "\\u00e4", r#""]}}"#),
        full(
            r#"{"httpGet":{"port":1,"httpHeaders":["#,
            r#"{"name":"a"},"#,
            "]}}",
        ),
        full(r#"{"httpGet":{"port":1,"path":""#, "/", r#""}}"#),
        full(r#"{"grpc":{"port":1,"service":""#, "s", r#""}}"#),
        full(r#"{"tcpSocket":{"port":1},"periodSeconds":"#, "9", "}"),
        full(r#"{"tcpSocket":{"port":1},"#, r#""periodSeconds":1,"#, "}"),
        full(r#"{"tcpSocket":{"port":1},"exec":"#, "[", ""),
        full(r#"{"tcpSocket":{"port":1},"other":"#, r#"{"a":"#, ""),
        full(r#"{"tcpSocket":{"port":1},"#, r#""\u0000":1,"#, "}"),
        full("", "{\"exec\":", ""),
        full("", " ", ""),
    ];
    for probe in &probes {
        for key in [
            "startup-probe.usher/p",
            "liveness-probe.usher/p",
            "termination-hook.usher/p",
        ] {
            let role = if key.starts_with("live") {
                "usher/pre-exit"
            } else {
                "usher/sidecars"
            };
            assert_cheap(&annotations(&[(role, "p"), (key, probe)]));
        }
        assert_cheap(&annotations(&[(
            "io.kubernetes.container.preStopHandler",
            probe,
        )]));
    }
    let others = [
        (
            "resources.usher/p",
            full(r#"{"limits":{"#, r#""cpu":1,"#, "}}"),
        ),
        (
            "resources.usher/p",
            full(r#"{"limits":{"cpu":""#, "9", r#""}}"#),
        ),
        (
            "resources.usher/p",
            full(r#"{"limits":{"cpu":"0."#, "0", r#"1"}}"#),
        ),
        (
            "resources.usher/p",
            full(r#"{"limits":{"cpu":"1e"#, "9", r#""}}"#),
        ),
        ("grace-period.usher/p", full("", "9", "s")),
        ("grace-period.usher/p", full("", "1ns", "")),
        ("grace-period.usher/p", full("0.", "0", "1h")),
        ("stop-signal.usher/p", full("RTMIN+", "9", "")),
        ("caller-restarts.usher/p", full("!", "0", "")),
        ("caller-restarts.usher/p", full("!", "1,", "")),
        ("caller-restarts.usher/p", full("", "9", "")),
        ("usher/grace-extension", full(r#"{"count":"#, "9", "}")),
        ("usher/start-mode", full("", "ä", "")),
        ("usher/sidecars", full("", "a", "")),
        ("usher/sidecars", full("", ",", "")),
        ("usher/sidecars", full("", " ", "")),
        ("usher/sidecars", full("", "a ", "")),
        (
            "io.kubernetes.container.ports",
            full("[", r#"{"name":"a","containerPort":1},"#, "]"),
        ),
        ("io.kubernetes.container.ports", full("[", "{},", "]")),
    ];
    for (key, value) in &others {
        assert_cheap(&annotations(&[("usher/pre-exit", "p"), (key, value)]));
    }
}

#[test]
fn as_many_names_as_there_may_be_are_read_at_little_cost() {
    let all = names(1000);
    for (count, chunk) in [(256, 0..256), (1000, 0..1000)] {
        let text = all[chunk].join(",");
        let mut given = BTreeMap::new();
        for setting in PodSetting::WORDS {
            given.insert(format!("usher/{setting}"), text.clone());
            assert_cheap(&annotations(&[(&format!("usher/{setting}"), &text)]));
        }
        assert_cheap(&given);
        let order = [
            ("usher/sidecars", text.as_str()),
            ("usher/startup-order", &text),
        ];
        assert_cheap(&annotations(&order));
        for setting in ContainerSetting::WORDS {
            for value in [
                "1s",
                "{}",
                "INT",
                "Never",
                "!",
                r#"{"exec":{"command":["a"]}}"#,
            ] {
                let keys = all[..count].iter();
                let keys = keys.map(|name| (format!("{setting}.usher/{name}"), value.to_owned()));
                assert_cheap(&keys.collect());
            }
        }
    }
    let apart: Vec<String> = all.chunks(200).map(|names| names.join(" ")).collect();
    let lists = [
        "usher/init",
        "usher/sidecars",
        "usher/apps",
        "usher/pre-exit",
        "usher/post-exit",
    ];
    let lists: Vec<_> = lists
        .into_iter()
        .zip(apart.iter().map(String::as_str))
        .collect();
    assert_cheap(&annotations(&lists));
}

#[test]
fn a_pod_may_have_256_containers_of_a_kind_and_no_more() {
    let most = names(256);
    let parsed = plan(&[("usher/sidecars", &most.join(" "))]);
    assert_eq!(parsed.sidecars().len(), 256);
    let sentence = refusal(&[("usher/sidecars", &names(257).join(" "))]);
    assert!(
        sentence.ends_with("lists more than 256 names; expected at most 256"),
        "{sentence}"
    );

    let settings = |count| -> Vec<(String, &str)> {
        let names = names(count).into_iter();
        names
            .map(|name| (format!("stop-signal.usher/{name}"), "INT"))
            .collect()
    };
    let pairs = settings(256);
    let pairs: Vec<(&str, &str)> = pairs
        .iter()
        .map(|(key, value)| (key.as_str(), *value))
        .collect();
    plan(&pairs);
    let pairs = settings(257);
    let pairs: Vec<(&str, &str)> = pairs
        .iter()
        .map(|(key, value)| (key.as_str(), *value))
        .collect();
    let sentence = refusal(&pairs);
    assert!(
        sentence.ends_with("is for one container more than 256; expected settings of at most 256"),
        "{sentence}"
    );
}

#[test]
fn all_warnings_about_a_pod_fit_into_32_kib() {
    let probe = |length: usize| format!(r#"{{"exec":{{"command":["{}"]}}}}"#, "a".repeat(length));
    let (first, second) = (probe(16_000), probe(16_000));
    let good = [
        ("usher/sidecars", "p q"),
        ("startup-probe.usher/p", &first),
        ("startup-probe.usher/q", &second),
    ];
    plan(&good);
    let third = probe(700);
    let sentence = refusal(&[
        good[0],
        good[1],
        good[2],
        ("termination-hook.usher/q", &third),
    ]);
    assert!(sentence.contains("is one of"), "{sentence}");
    assert!(
        sentence.ends_with("bytes of usher annotations; expected at most 32768 in all"),
        "{sentence}"
    );
    // Annotations of other programs are not counted.
    plan(&[
        good[0],
        good[1],
        good[2],
        ("example.com/other", &third.repeat(20)),
    ]);
}
