use super::finding::Cure;
use super::*;

const SUBJECT: Subject = Subject::new(Group::Runtime, "runtime");

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn a_cure_stands_below_its_finding_and_names_the_file() {
    let finding = SUBJECT.problem(Code::RuntimePath, "it is missing");
    let lines = Cure::keys("/c.toml".into(), "a.b".to_owned(), "c = 1");
    assert_eq!(
        plain(&finding.clone().cure(lines).text()),
        "PROBLEM  runtime: it is missing\n           in /c.toml, in the table [a.b]:\n           c = 1\n           \
         see: docs/troubleshooting.md#runtime-path\n"
    );
    assert_eq!(
        plain(&finding.cure(Cure::run("usher install")).text()),
        "PROBLEM  runtime: it is missing\n           run: usher install\n           \
         see: docs/troubleshooting.md#runtime-path\n"
    );
}

#[test]
fn json_fields_have_the_documented_names() {
    let finding = SUBJECT.warning(Code::ShimVersion, "is old");
    let json = serde_json::to_value(&finding).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "group": "runtime", "about": "runtime", "level": "warning", "code": "shim-version",
            "says": "is old", "run": null, "file": null, "table": null, "add": null,
            "see": "docs/troubleshooting.md#shim-version",
        })
    );
    let json = serde_json::to_value(SUBJECT.ok("is there")).unwrap();
    assert_eq!(
        (&json["code"], &json["see"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
}

#[test]
fn the_headline_of_a_node_without_usher_is_the_install_command() {
    let dump = "[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'runc'\n\
        [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'";
    let mut node = Node::with("1.6.20", dump);
    node.path = "/usr/local/bin".to_owned();
    let report = Report::of(&node, &Cures::with(&node, &[], true));
    assert!(!report.ok);
    let text = plain(&report.text());
    let begin = "This node is not ready for usher. First run\n\n    usher install --restart\n\ncontainerd\n";
    assert!(text.starts_with(begin), "{text}");
    let names_runtime = text.contains("runtimes.usher]");
    assert!(
        !names_runtime,
        "these lines alone would have containerd 1 drop runc: {text}"
    );
}

#[test]
fn the_installer_comes_before_other_commands() {
    let restart = SUBJECT
        .problem(Code::ContainerdStale, "x")
        .cure(Cure::run("systemctl restart containerd"));
    let install = SUBJECT
        .problem(Code::ShimMissing, "x")
        .cure(Cure::run("usher install"));
    let warning = SUBJECT
        .warning(Code::ContainerdStopped, "x")
        .cure(Cure::run("systemctl start containerd"));
    let of = |findings: &[&Finding]| {
        let findings: Vec<Finding> = findings.iter().copied().cloned().collect();
        first(&findings)
    };
    assert_eq!(of(&[&warning]), None);
    assert_eq!(
        of(&[&warning, &restart]).as_deref(),
        Some("systemctl restart containerd")
    );
    assert_eq!(of(&[&restart, &install]).as_deref(), Some("usher install"));
}

#[test]
fn a_problem_that_no_command_solves_is_the_headline() {
    let report = |findings: Vec<Finding>| Report {
        containerd: Node::with("2.1.4", "").facts(),
        ok: !findings.iter().any(Finding::is_problem),
        first: first(&findings),
        findings,
    };
    let headline = |findings| {
        let text = plain(&report(findings).text());
        text.lines().take(3).collect::<Vec<_>>().join("\n")
    };
    let stale = SUBJECT.problem(Code::ContainerdStale, "restart containerd");
    let expected =
        "This node is not ready for usher. First fix containerd-stale:\n\n    restart containerd";
    assert_eq!(headline(vec![stale]), expected);
    let missing = SUBJECT.problem(Code::ConfigMissing, "x is not there");
    let install = SUBJECT
        .problem(Code::ShimMissing, "x")
        .cure(Cure::run("usher install --config x"));
    let expected =
        "This node is not ready for usher. First fix config-missing:\n\n    x is not there";
    assert_eq!(headline(vec![missing, install]), expected);
    let warning = SUBJECT.warning(Code::ContainerdStopped, "x");
    assert!(!headline(vec![warning]).contains("not ready"));
}

/// The installer refuses a containerd without the CRI plugin, such as Docker's.
#[test]
fn no_install_is_advised_while_the_cri_plugin_is_off() {
    let node = Node::with("1.7.24", "disabled_plugins = ['cri']");
    let report = Report::of(&node, &Cures::with(&node, &[], true));
    let text = plain(&report.text());
    let begin = "This node is not ready for usher. First fix cri-disabled:\n";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.contains("docs/docker.md"), "{text}");
    assert!(!text.contains("run: usher install"), "{text}");
}

#[test]
fn the_codes_are_exactly_the_headings_of_the_manual() {
    let page = include_str!("../../../docs/troubleshooting.md");
    let (_, part) = page.split_once("\n## What `usher check` finds\n").unwrap();
    let part = part.split("\n## ").next().unwrap();
    let headings: Vec<&str> = part
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    let codes: Vec<String> = Code::value_variants()
        .iter()
        .map(|code| code.word())
        .collect();
    assert_eq!(headings, codes);
}
