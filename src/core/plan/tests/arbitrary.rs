//! Arbitrary annotations yield either a plan without contradictions or an error of one sentence.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use crate::plan::identity::{self, Identity};
use crate::plan::kubelet::KubeletFacts;
use crate::plan::word::Word;
use crate::plan::{
    ContainerSetting, Limits, Minimums, Plan, PlanError, PodSetting, Reading, Role, Rules, Stage,
    UnknownKeys,
};
use usher_fuzz::cost::assert_small;

fn name() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[a-e]", 1 => "[a-z0-9._-]{0,5}", 1 => any::<String>()]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(PodSetting::WORDS).prop_map(|setting| format!("usher/{setting}")),
        6 => (prop::sample::select(ContainerSetting::WORDS), name())
            .prop_map(|(setting, name)| format!("{setting}.usher/{name}")),
        1 => any::<String>().prop_map(|name| format!("usher/{name}")),
        1 => prop::sample::select(vec!["preStopHandler", "ports", "restartCount"])
            .prop_map(|fact| format!("io.kubernetes.container.{fact}")),
        1 => any::<String>(),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::collection::vec(name(), 0..4).prop_map(|names| names.join(", ")),
        3 => prop::sample::select(VALID).prop_map(str::to_owned),
        3 => near(prop::sample::select(VALID).prop_map(str::to_owned).boxed()),
        3 => near(json().boxed()),
        2 => r#"[\[\]{}:," a-f0-9.e-]{0,60}"#,
        1 => long(),
        1 => any::<String>(),
    ]
}

const VALID: &[&str] = &[
    "Auto",
    "Never",
    "Mask",
    "Off",
    "Reserve",
    "1h2m3.5s",
    "0",
    "INT",
    "RTMIN+3",
    "42, 43",
    "!0, 1",
    r#"{"probe": true}"#,
    r#"{"intervalSeconds": 3, "count": 2, "maxSeconds": 7}"#,
    r#"{"tcpSocket": {"port": 80}, "periodMilliseconds": 100, "failureThreshold": 3}"#,
    r#"{"exec": {"command": ["a"]}, "timeoutSeconds": 5}"#,
    r#"{"httpGet": {"port": "web", "path": "/x", "httpHeaders": [{"name": "a", "value": "b"}]}}"#,
    r#"{"grpc": {"port": 1, "service": "s"}, "initialDelaySeconds": 1}"#,
    r#"{"limits": {"cpu": "1", "memory": 5e-3}, "requests": {"cpu": "100m"}}"#,
    r#"{"sleep": {"seconds": 3}}"#,
    r#"[{"name": "web", "containerPort": 80}]"#,
];

/// The names of all known fields, and an unknown one.
const FIELDS: &[&str] = &[
    "exec",
    "command",
    "httpGet",
    "tcpSocket",
    "grpc",
    "sleep",
    "port",
    "host",
    "path",
    "scheme",
    "httpHeaders",
    "name",
    "value",
    "service",
    "seconds",
    "initialDelaySeconds",
    "periodSeconds",
    "periodMilliseconds",
    "timeoutSeconds",
    "successThreshold",
    "failureThreshold",
    "limits",
    "requests",
    "cpu",
    "memory",
    "probe",
    "intervalSeconds",
    "count",
    "maxSeconds",
    "containerPort",
    "other",
];

/// JSON with the field names of `FIELDS` in any place.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        2 => prop::sample::select(&["null", "true", "1", "80", "-1", "0.5", "1e400", "-0", "\"\""][..])
            .prop_map(str::to_owned),
        1 => (1usize..400).prop_map(|digits| "9".repeat(digits)),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        1 => name().prop_map(|name| format!("{name:?}")),
        1 => any::<String>().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        let field = (prop::sample::select(FIELDS), inner.clone())
            .prop_map(|(field, value)| format!("\"{field}\": {value}"));
        prop_oneof![
            1 => prop::collection::vec(inner, 0..6).prop_map(|list| format!("[{}]", list.join(","))),
            3 => prop::collection::vec(field, 0..6).prop_map(|list| format!("{{{}}}", list.join(","))),
        ]
    })
}

/// Texts from `text`, each with at most one random change.
fn near(text: BoxedStrategy<String>) -> impl Strategy<Value = String> {
    let place = any::<prop::sample::Index>();
    (text, place, 0..6, any::<char>()).prop_map(|(text, place, change, character)| {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        if places.is_empty() {
            return text;
        }
        let (head, tail) = text.split_at(*place.get(&places));
        match change {
            0 => text,
            1 => head.to_owned(),
            2 => format!("{head}{character}{tail}"),
            3 => format!("{head}{tail}{tail}"),
            4 => format!("{head}{}", tail.chars().skip(1).collect::<String>()),
            _ => format!("{head}{head}{tail}"),
        }
    })
}

/// Texts around the length limit of a value, and others of any length up to about 100 kB.
fn long() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(
            &[
                "[",
                "{\"exec\":",
                "a,",
                "9",
                "0.1s",
                "\\",
                "ä",
                "\u{0}",
                " ",
                "🚢"
            ][..]
        )
        .prop_map(str::to_owned),
        json(),
    ];
    let length = prop_oneof![16_000usize..16_400, 16_380usize..16_390, 0usize..100_000];
    (name(), part, length).prop_map(|(begin, part, length)| {
        let times = length / part.len().max(1);
        format!("{begin}{}", part.repeat(times))
    })
}

fn sane(plan: &Plan, annotations: &BTreeMap<String, String>) {
    let mut staged: Vec<&String> = plan
        .stages()
        .iter()
        .flat_map(|Stage(names)| names)
        .collect();
    let mut listed: Vec<&String> = plan.init().iter().chain(plan.sidecars()).collect();
    for name in &staged {
        assert!(matches!(plan.role(name), Role::Init | Role::Sidecar));
        assert!(plan.position(name).is_some());
    }
    staged.sort();
    listed.sort();
    assert_eq!(staged, listed, "{annotations:?}");
    assert!(plan.apps().is_none_or(|apps| !apps.is_empty()));
    assert!(plan.stages().iter().all(|Stage(names)| !names.is_empty()));
}

/// Calls every function that reads annotations. Each result is dropped before the next call.
pub(super) fn read_all(annotations: &BTreeMap<String, String>) {
    let _ = Plan::parse(annotations);
    let _ = KubeletFacts::read(annotations);
    let _ = Identity::read("id", annotations);
    let _ = identity::group(annotations);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_annotations_make_a_sane_plan_or_one_short_sentence(
        annotations in prop::collection::btree_map(key(), value(), 0..6)
    ) {
        match Plan::parse(&annotations) {
            Ok(plan) => sane(&plan, &annotations),
            Err(error) => {
                let sentence = error.to_string();
                prop_assert!(!sentence.contains('\n'), "{}", sentence);
                prop_assert!(sentence.chars().count() < 4_000, "{}", sentence);
            }
        }
        assert_small(&annotations, || read_all(&annotations));
    }

    #[test]
    fn a_nodes_rules_only_take_away(
        annotations in prop::collection::btree_map(key(), value(), 0..6)
    ) {
        let little = Some(Duration::from_secs(3));
        let limits = Limits {
            grace_period: little,
            startup_timeout: little,
            probe_period: little,
            names: Some(2),
            ..Limits::default()
        };
        let mut rules = Rules::new(&BTreeMap::new(), limits, Minimums::default()).unwrap();
        rules.unknown_keys = UnknownKeys::Warn;
        match (Plan::parse_under(&annotations, &rules), Plan::parse(&annotations)) {
            (Ok(reading), Ok(plan)) => {
                prop_assert!(reading.ignored.is_empty());
                prop_assert_eq!(reading.plan.stages(), plan.stages());
                prop_assert_eq!(reading.plan.apps(), plan.apps());
                prop_assert!(reading.plan.settings().grace_period <= little);
                prop_assert!(Some(reading.plan.settings().startup_timeout) <= little);
                prop_assert!(reading.plan.sidecars().len() <= 2);
            }
            (Ok(reading), Err(error)) => {
                let is_unknown = matches!(error, PlanError::UnknownSetting { .. });
                prop_assert!(is_unknown, "{}", error);
                prop_assert!((1..=8).contains(&reading.ignored.len()));
            }
            (Err(error), _) => {
                let sentence = error.to_string();
                prop_assert!(!sentence.contains('\n'), "{}", sentence);
                prop_assert!(sentence.chars().count() < 4_000, "{}", sentence);
            }
        }
    }

    #[test]
    fn annotations_of_later_containers_count_as_if_they_came_first(
        mut annotations in prop::collection::btree_map(key(), value(), 0..3),
        setting in prop::sample::select(ContainerSetting::WORDS),
        name in name(),
        value in value(),
    ) {
        let limits = Limits { probe_period: Some(Duration::from_secs(3)), ..Limits::default() };
        let mut rules = Rules::new(&BTreeMap::new(), limits, Minimums::default()).unwrap();
        rules.unknown_keys = UnknownKeys::Warn;
        let reading = Plan::parse_under(&annotations, &rules);
        let setting = ContainerSetting::from_word(setting).unwrap();
        let Ok(Reading { mut plan, bytes, .. }) = reading else { return Ok(()) };
        if annotations.contains_key(&setting.key(&name)) {
            return Ok(());
        }
        let before = plan.clone();
        let said = plan.say(setting, &name, &value, bytes, &rules);
        annotations.insert(setting.key(&name), value);
        match Plan::parse_under(&annotations, &rules) {
            Ok(reading) => {
                prop_assert_eq!(said, Ok(()));
                prop_assert_eq!(plan, reading.plan);
            }
            Err(_) => {
                prop_assert!(said.is_err());
                prop_assert_eq!(plan, before);
            }
        }
    }
}
