use super::*;
use crate::lifecycle::Budget;
use crate::plan::{GraceExtension, GracePolicy, Plan, Probe, Role, StartMode};

fn under(rules: &str, annotations: &[(&str, &str)]) -> Result<Plan, String> {
    let rules = parse(rules).unwrap();
    let annotations = annotations
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    Plan::parse_under(&annotations, &rules)
        .map(|reading| reading.plan)
        .map_err(|error| error.to_string())
}

#[test]
fn an_empty_file_changes_nothing() {
    assert_eq!(parse("").unwrap(), Rules::default());
    assert_eq!(
        parse("# nothing\n[defaults]\n[limits]\n[minimums]\n").unwrap(),
        Rules::default()
    );
}

#[test]
fn a_default_applies_to_settings_that_the_pod_leaves_out() {
    let rules = "[defaults]\nstart-mode = 'Hold'\nstartup-timeout = '1m'\ngrace-period = '45s'";
    let plan = under(rules, &[("usher/startup-timeout", "2m")]).unwrap();
    assert_eq!(plan.settings().start_mode, StartMode::Hold);
    assert_eq!(plan.settings().startup_timeout, Duration::from_secs(120));
    // The default only applies if kubelet gives no grace period.
    assert_eq!(plan.settings().grace_period, None);
    assert_eq!(plan.settings().usual_grace_period, Duration::from_secs(45));
}

#[test]
fn a_limit_lowers_ushers_own_defaults() {
    let rules = "[limits]\nstartup-timeout = '1m'\ntermination-window = '200ms'";
    let plan = under(rules, &[("usher/sidecars", "proxy")]).unwrap();
    assert_eq!(plan.settings().startup_timeout, Duration::from_secs(60));
    assert_eq!(
        plan.settings().termination_window,
        Duration::from_millis(200)
    );
}

#[test]
fn more_than_a_limit_is_refused_and_as_much_is_not() {
    let probe = |rest: &str| format!(r#"{{"tcpSocket": {{"port": 1}}, {rest}}}"#);
    for (limit, key, allowed, refused) in [
        (
            "grace-period = '1h'",
            "usher/grace-period",
            "1h".to_owned(),
            "61m".to_owned(),
        ),
        (
            "startup-timeout = '1h'",
            "usher/startup-timeout",
            "1h".into(),
            "2h".into(),
        ),
        (
            "termination-window = '5s'",
            "usher/termination-window",
            "5s".into(),
            "6s".into(),
        ),
        (
            "probe-period = '5s'",
            "startup-probe.usher/p",
            probe("\"periodSeconds\": 5"),
            probe("\"periodMilliseconds\": 5001"),
        ),
        (
            "probe-timeout = '5s'",
            "startup-probe.usher/p",
            probe("\"timeoutSeconds\": 5"),
            probe("\"timeoutSeconds\": 6"),
        ),
        (
            "probe-initial-delay = '5s'",
            "startup-probe.usher/p",
            probe("\"initialDelaySeconds\": 5"),
            probe("\"initialDelaySeconds\": 6"),
        ),
        (
            "probe-failure-threshold = 5",
            "startup-probe.usher/p",
            probe("\"failureThreshold\": 5"),
            probe("\"failureThreshold\": 6"),
        ),
        ("names = 2", "usher/apps", "a b".into(), "a b c".into()),
    ] {
        let rules = format!("[limits]\n{limit}");
        let pod = |value| under(&rules, &[("usher/sidecars", "p"), (key, value)]);
        assert!(pod(&allowed).is_ok(), "{limit}: {:?}", pod(&allowed));
        let sentence = pod(&refused).expect_err(limit);
        assert!(sentence.starts_with(key), "{sentence}");
        assert!(sentence.contains("for this node"), "{sentence}");
        assert!(sentence.contains("expected at most"), "{sentence}");
    }
}

#[test]
fn less_than_a_minimum_is_refused_and_as_much_is_not() {
    let probe = |period: &str| format!(r#"{{"tcpSocket": {{"port": 1}}, {period}}}"#);
    for (minimum, key, allowed, refused) in [
        (
            "grace-period = '5s'",
            "usher/grace-period",
            "5s".to_owned(),
            "4s".to_owned(),
        ),
        (
            "grace-period = '5s'",
            "grace-period.usher/p",
            "5s".into(),
            "4s".into(),
        ),
        (
            "startup-timeout = '10s'",
            "usher/startup-timeout",
            "10s".into(),
            "0s".into(),
        ),
        (
            "termination-window = '500ms'",
            "usher/termination-window",
            "500ms".into(),
            "499ms".into(),
        ),
        (
            "probe-period = '100ms'",
            "startup-probe.usher/p",
            probe("\"periodMilliseconds\": 100"),
            probe("\"periodMilliseconds\": 1"),
        ),
    ] {
        let rules = format!("[minimums]\n{minimum}");
        let pod = |value| under(&rules, &[("usher/sidecars", "p"), (key, value)]);
        assert!(pod(&allowed).is_ok(), "{minimum}: {:?}", pod(&allowed));
        let sentence = pod(&refused).expect_err(minimum);
        assert!(sentence.starts_with(key), "{sentence}");
        assert!(sentence.contains("for this node"), "{sentence}");
        assert!(sentence.contains("expected at least"), "{sentence}");
    }
    let rules = "[minimums]\nprobe-period = '100ms'";
    let probe = probe("\"periodMilliseconds\": 1");
    let annotations = [
        ("usher/pre-exit", "p"),
        ("usher/grace-extension", r#"{"probe": true}"#),
        ("liveness-probe.usher/p", probe.as_str()),
    ];
    let sentence = under(rules, &annotations).unwrap_err();
    assert!(sentence.starts_with("liveness-probe.usher/p"), "{sentence}");
}

#[test]
fn a_minimum_raises_the_default_of_a_setting_that_the_pod_leaves_out() {
    let rules = "[defaults]\ngrace-period = '2s'\n[minimums]\n\
        startup-timeout = '10m'\ntermination-window = '3s'\ngrace-period = '5s'";
    let plan = under(rules, &[("usher/sidecars", "proxy")]).unwrap();
    assert_eq!(plan.settings().startup_timeout, Duration::from_secs(600));
    assert_eq!(plan.settings().termination_window, Duration::from_secs(3));
    assert_eq!(plan.settings().usual_grace_period, Duration::from_secs(5));
}

/// Reads the startup probe of a sidecar under these rules. `more` is JSON that follows the probe's
/// handler, for example `, "periodSeconds": 10`.
fn probe(rules: &str, more: &str) -> Result<Probe, String> {
    let probe = format!(r#"{{"tcpSocket": {{"port": 1}}{more}}}"#);
    let annotations = [("usher/sidecars", "p"), ("startup-probe.usher/p", &probe)];
    let plan = under(rules, &annotations)?;
    Ok(plan.container("p").startup_probe.clone().unwrap())
}

#[test]
fn a_default_refuses_no_pod_that_does_not_ask_for_it() {
    let reserve = "[defaults]\ngrace-policy = 'Reserve'";
    let short = ("usher/grace-period", "4s");
    let plan = under(reserve, &[("usher/sidecars", "p"), short]).unwrap();
    let budget = Budget::new(plan.settings(), Duration::from_secs(4));
    assert_eq!(budget.policy, GracePolicy::Strict);
    let asked = under(reserve, &[("usher/grace-policy", "Reserve"), short]);
    assert!(asked.unwrap_err().contains("too short for"));
}

#[test]
fn a_limit_lowers_the_defaults_of_a_probe() {
    let rules = "[limits]\nprobe-period = '5s'\nprobe-timeout = '500ms'\n\
        probe-failure-threshold = 2";
    let lowered = probe(rules, "").unwrap();
    assert_eq!(lowered.period, Duration::from_secs(5));
    assert_eq!(lowered.timeout, Duration::from_millis(500));
    assert_eq!(lowered.failure_threshold, 2);
    for said in [
        r#", "periodSeconds": 10"#,
        r#", "timeoutSeconds": 1"#,
        r#", "failureThreshold": 3"#,
    ] {
        let sentence = probe(rules, said).expect_err(said);
        assert!(sentence.contains("for this node"), "{sentence}");
    }
    let high = probe("[limits]\nprobe-period = '1m'", "").unwrap();
    assert_eq!(high.period, Duration::from_secs(10));
}

#[test]
fn a_minimum_raises_the_default_period_of_a_probe() {
    let rules = "[minimums]\nprobe-period = '20s'";
    assert_eq!(probe(rules, "").unwrap().period, Duration::from_secs(20));
    assert!(probe(rules, r#", "periodSeconds": 10"#).is_err());
}

#[test]
fn a_limit_that_allows_no_probe_makes_none_that_never_rests() {
    for limit in [
        "probe-period = '0s'",
        "probe-period = '1ns'",
        "probe-timeout = '0s'",
        "probe-failure-threshold = 0",
    ] {
        let sentence = probe(&format!("[limits]\n{limit}"), "").expect_err(limit);
        assert!(sentence.contains("for this node"), "{sentence}");
    }
}

#[test]
fn a_limit_lowers_the_default_length_of_an_extension() {
    let max = |rules: &str, annotations: &[(&str, &str)]| match under(rules, annotations)?
        .settings()
        .grace_extension
    {
        Some(GraceExtension::Probe { max } | GraceExtension::Interval { max, .. }) => {
            Ok(max.as_secs())
        }
        None => Err("there is no extension".to_owned()),
    };
    let limit = "[limits]\ngrace-extension = '1m'";
    let extension = |json| [("usher/pre-exit", "d"), ("usher/grace-extension", json)];
    assert_eq!(max(limit, &extension(r#"{"probe": true}"#)), Ok(60));
    let intervals = r#"{"intervalSeconds": 9, "count": 9}"#;
    assert_eq!(max(limit, &extension(intervals)), Ok(60));
    let said = max(limit, &extension(r#"{"probe": true, "maxSeconds": 100}"#));
    assert!(said.unwrap_err().contains("expected at most 60s"));
    let default = format!("[defaults]\ngrace-extension = '{{\"probe\": true}}'\n{limit}");
    assert_eq!(max(&default, &[("usher/pre-exit", "d")]), Ok(60));
}

#[test]
fn an_unknown_key_can_be_a_warning() {
    let annotations = BTreeMap::from(
        [("usher/sidecars", "p"), ("usher/tomorrow", "x")]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let refusing = parse("unknown-keys = 'Refuse'").unwrap();
    assert!(Plan::parse_under(&annotations, &refusing).is_err());
    let warning = parse("unknown-keys = 'Warn'").unwrap();
    let reading = Plan::parse_under(&annotations, &warning).unwrap();
    assert_eq!(reading.plan.sidecars(), ["p"]);
    assert_eq!(reading.ignored.len(), 1);
    assert!(reading.ignored[0].to_string().contains("usher/tomorrow"));
}

#[test]
fn a_wrong_value_is_refused_however_unknown_keys_are_taken() {
    let sentence = under("unknown-keys = 'Warn'", &[("usher/start-mode", "Slow")]);
    assert!(sentence.unwrap_err().contains("Slow"));
}

#[test]
fn a_disabled_node_ignores_annotations() {
    let plan = under("enabled = false", &[("usher/start-mode", "Slow")]).unwrap();
    assert!(plan.is_empty());
}

#[test]
fn an_error_names_its_place() {
    for (text, words) in [
        ("\nenabeld = true", &["line 2", "enabeld"][..]),
        ("enabled = 1", &["line 1", "expected a boolean"]),
        ("unknown-keys = 'Ignore'", &["Ignore", "Refuse", "Warn"]),
        ("[limits]\nnames = -1", &["line 2", "-1"]),
        (
            "[limits]\nprobe-period = '5'",
            &["[limits]", "probe-period", "\"5\"", "duration"],
        ),
        (
            "[defaults]\nstart-mode = 'Slow'",
            &["[defaults]", "start-mode", "\"Slow\"", "Auto"],
        ),
        ("[defaults]\nnothing = 'x'", &["[defaults]", "nothing"]),
        (
            "[defaults]\nsidecars = 'x'",
            &["[defaults]", "sidecars", "no default"],
        ),
        (
            "[defaults]\nrestart-policy = 'Never'",
            &["[defaults]", "restart-policy", "no default"],
        ),
        (
            "[defaults]\nstartup-timeout = '2h'\n[limits]\nstartup-timeout = '1h'",
            &["[defaults]", "startup-timeout", "at most"],
        ),
        (
            "[minimums]\nprobe-period = '5'",
            &["[minimums]", "probe-period", "\"5\"", "duration"],
        ),
        (
            "[limits]\ngrace-period = '1m'\n[minimums]\ngrace-period = '2m'",
            &["[minimums]", "grace-period", "120s", "at most 60s"],
        ),
        ("[roles]\nsidecars = 'a'", &["line 2", "sequence"]),
        ("[roles]\napps = ['a']", &["line 2", "apps"]),
        (
            "[roles]\nsidecars = ['a b']",
            &["[roles]", "sidecars", "\"a b\"", "is no pattern"],
        ),
        (
            "[roles]\neverywhere = true",
            &["[roles]", "everywhere", "entry in sidecars"],
        ),
        ("[[[", &["line 1"]),
    ] {
        let sentence = parse(text).expect_err(text).to_string();
        for word in words {
            assert!(
                sentence.contains(word),
                "{word:?} is missing in: {sentence}"
            );
        }
        assert!(!sentence.contains('\n'), "{sentence}");
    }
}

#[test]
fn an_injected_container_gets_its_role_by_its_name() {
    let rules = "[roles]\nsidecars = ['istio-proxy', '*-exporter']";
    let plan = under(rules, &[("usher/apps", "web")]).unwrap();
    assert_eq!(plan.role("node-exporter"), Role::Sidecar);
    assert_eq!(plan.role("web"), Role::App);
    assert_eq!(plan.role("debugger"), Role::Guest);
    let nothing = under(rules, &[]).unwrap();
    assert_eq!(nothing.role("istio-proxy"), Role::Guest);
    let everywhere = format!("{rules}\neverywhere = true");
    assert_eq!(
        under(&everywhere, &[]).unwrap().role("istio-proxy"),
        Role::Sidecar
    );
    let off = format!("enabled = false\n{everywhere}");
    assert_eq!(under(&off, &[]).unwrap().role("istio-proxy"), Role::Guest);
}

/// The header line of a TOML table; empty for the keys at the top of the file.
fn head(table: &str) -> String {
    match table {
        "" => String::new(),
        table => format!("[{table}]\n"),
    }
}

/// The keys of a table, as the error for an unknown key lists them. For the top of the file (an
/// empty name), the list also has the names of the tables.
fn keys_of(table: &str) -> Vec<String> {
    let refused = parse(&format!("{}no-such-key = 1\n", head(table))).unwrap_err();
    let refused = refused.to_string();
    let known = refused.split('`').skip(3).step_by(2);
    known.map(str::to_owned).collect()
}

#[test]
fn the_reference_has_all_keys() {
    let mut tables = Vec::new();
    for table in reference::TABLES {
        let keys: Vec<&str> = table.entries.iter().map(|entry| entry.key).collect();
        let known = keys_of(table.name);
        match table.name {
            "" => tables.extend(
                known
                    .into_iter()
                    .filter(|key| !keys.contains(&key.as_str())),
            ),
            name => assert_eq!(known, keys, "{name}"),
        }
    }
    let named = reference::TABLES.iter().map(|table| table.name);
    let named: Vec<&str> = ["defaults"]
        .into_iter()
        .chain(named.filter(|name| !name.is_empty()))
        .collect();
    assert_eq!(tables, named);
}

#[test]
fn every_example_of_the_reference_is_taken() {
    for table in reference::TABLES {
        let head = head(table.name);
        for entry in table.entries {
            let text = format!("{head}{} = {}\n", entry.key, entry.example);
            let rules = parse(&text);
            assert!(rules.is_ok(), "{text}: {rules:?}");
        }
    }
}
