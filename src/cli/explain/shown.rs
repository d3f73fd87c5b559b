//! Tests of an explanation's text, its files and its exit status.

use super::tests::{BOTH, REVERSED, explained, pod, warnings};
use super::*;

/// The text of an explanation without colors.
fn text(manifest: &str, width: Option<usize>) -> String {
    let text = explained(manifest).text(width);
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn all_refusals_are_shown_at_once_and_without_a_size() {
    let refused = pod(
        ", usher/grace-period: soon, usher/start-mode: Later",
        "",
        BOTH,
    );
    let text = text(&refused, None);
    assert_eq!(text.matches("refused: usher/").count(), 2, "{text}");
    assert!(text.contains("refused: usher/grace-period"), "{text}");
    assert!(text.contains("refused: usher/start-mode"), "{text}");
    assert!(!text.contains("Size"), "{text}");
    let said = explained(&refused);
    assert_eq!(said.also_refused.len(), 1);
}

#[test]
fn a_pod_without_requests_and_limits_has_no_table_of_zeros() {
    let text = text(&pod("", "", BOTH), None);
    let expected = "\nSize: QoS class BestEffort, without requests and limits\n";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("CPU REQUEST"), "{text}");
    let sized = "  - {name: proxy, resources: {requests: {cpu: 100m}}}\n  - {name: app}\n";
    let sized = self::text(&pod("", "", sized), None);
    assert!(sized.contains("CPU REQUEST"), "{sized}");
}

#[test]
fn an_explanation_fits_the_terminal() {
    let containers =
        "  - {name: app, lifecycle: {postStart: {exec: {command: [sh]}}}}\n  - {name: proxy}\n";
    let annotations = ", usher/post-exit: report, usher/native-init: fetch, usher/start-mode: Hold, \
        startup-probe.usher/proxy: '{\"tcpSocket\":{\"port\":1}}'";
    let manifest = pod(annotations, "", containers);
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    let wide = text(&manifest, None);
    assert!(widest(&wide) > Some(100), "{wide}");
    for width in [80, 100] {
        let narrow = text(&manifest, Some(width));
        assert!(widest(&narrow) <= Some(width), "{narrow}");
    }
}

#[test]
fn a_name_without_a_container_is_a_warning_and_is_marked_in_the_plan() {
    let containers = "  - {name: proxi}\n  - {name: app}\n";
    let misspelled = pod(", usher/post-exit: clean-up", "", containers);
    let plan = text(&misspelled, None);
    for line in [
        "1      proxy (missing)",
        "after proxy (missing); it is held",
        "clean-up (missing)",
    ] {
        assert!(plan.contains(line), "{plan}");
    }
    assert!(plan.contains("sidecars    proxy (missing)"), "{plan}");
    let said = "proxy: usher/sidecars lists it, but the pod has no such container: containers that wait for it \
        never run, unless an injector adds it; did you mean proxi?";
    assert!(plan.contains(said), "{plan}");
    let refused = text(&pod(", usher/grace-period: soon", "", containers), None);
    assert!(refused.contains("refused: usher/grace-period"), "{refused}");
    assert!(refused.contains(said), "{refused}");
}

#[test]
fn strict_names_the_pods_with_warnings() {
    let pods = |manifests: &[String]| {
        let explained = manifests.iter().map(|it| explained(it));
        explained.collect::<Vec<_>>()
    };
    let good = pod("", "", BOTH);
    let warned = pod("", "", REVERSED);
    assert_eq!(super::warned(&pods(std::slice::from_ref(&good))), None);
    let expected = "1 warning (Pod shop); --strict fails on warnings";
    let said = super::warned(&pods(&[good, warned.clone()]));
    assert_eq!(said.as_deref(), Some(expected));
    let many = super::warned(&pods(&vec![warned; 6]));
    assert!(
        many.unwrap()
            .starts_with("6 warnings (Pod shop, Pod shop, Pod shop, Pod shop, and 2 more)")
    );
}

/// The exit status of `usher explain` with these arguments.
fn status(words: &[&str]) -> Result<ExitCode, Failure> {
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        explain: Explain,
    }

    let words = ["explain", "-o", "json"]
        .into_iter()
        .chain(words.iter().copied());
    let arguments = Arguments::try_parse_from(words);
    let arguments = arguments.map_err(|error| Failure::Usage(error.to_string()))?;
    arguments.explain.run(&mut Stdout::new())
}

#[test]
fn a_directory_stands_for_its_manifests_and_strict_fails_on_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let empty = format!("{:?}", status(&["-f", place]).unwrap_err());
    assert!(empty.contains("has no manifest"), "{empty}");
    let put = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    put("a.yaml", &pod("", "", BOTH));
    put("b.txt", "kind: [");
    assert_eq!(
        status(&["-f", place, "--strict"]).unwrap(),
        ExitCode::SUCCESS
    );
    put("c.yml", &pod("", "", REVERSED));
    let is_warned = !warnings(&pod(", usher/start-mode: Hold", "", REVERSED)).is_empty();
    assert!(is_warned);
    put("d.json", &pod(", usher/start-mode: Hold", "", REVERSED));
    assert_eq!(status(&["-f", place]).unwrap(), ExitCode::SUCCESS);
    assert_eq!(
        status(&["-f", place, "--strict"]).unwrap(),
        ExitCode::FAILURE
    );
    put("e.yaml", &pod(", usher/grace-period: soon", "", BOTH));
    assert_eq!(status(&["-f", place]).unwrap(), ExitCode::FAILURE);
    let usage = status(&[]).unwrap_err();
    assert!(matches!(usage, Failure::Usage(why) if why.contains("required")));
}
