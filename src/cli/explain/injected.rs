//! Tests with pods to which injectors have added containers (`integration/injected_pods`). The
//! tests complete and judge each pod, and compare the results as one table.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use usher_core::config;

use super::super::manifest::{Node, parse, pods};
use usher_core::judgement::{Entry, Held, Judgement, complete, entries};
use usher_core::manifest::Pod;
use usher_core::plan::Rules;

/// A node's configuration that applies to all pods, also to those without annotations.
const NODE: &str = "[roles]\nsidecars = ['datadog-agent-*']\neverywhere = true";

const COLUMNS: [&str; 6] = ["POD", "CONTAINER", "ROLE", "BY", "WAITS FOR", "HELD"];

fn read(path: &Path) -> Pod {
    let documents: Vec<Node> = parse(&fs::read_to_string(path).unwrap()).unwrap();
    let mut found: Vec<_> = documents.iter().flat_map(pods).collect();
    assert_eq!(found.len(), 1, "{}", path.display());
    let (owner, pod) = found.remove(0);
    Pod::read(&owner, &pod.json()).unwrap()
}

fn row(pod: &Pod, entry: &Entry) -> [String; 6] {
    let held = match entry.held {
        Held::No => "-",
        Held::Blocked => "its Start waits",
        Held::AtOnce => "it reads Running",
        Held::UntilTermination => "until the end",
        Held::InVain => "in vain",
    };
    let waits_for = match entry.waits_for.join(", ") {
        names if names.is_empty() => "-".to_owned(),
        names => names,
    };
    [
        pod.owner.name.clone(),
        entry.container.clone(),
        entry.role.clone(),
        format!("{:?}", entry.origin).to_lowercase(),
        waits_for,
        held.to_owned(),
    ]
}

/// The rows of all pods, and below them, for each pod, the added annotations, the removed probes
/// and the warnings.
fn table(rules: &Rules) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/injected_pods");
    let files = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    files.sort();
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    let mut more = String::new();
    for file in &files {
        let mut pod = read(file);
        let completion = complete(&pod, rules).unwrap().unwrap();
        completion.apply(&mut pod);
        assert!(complete(&pod, rules).unwrap().unwrap().is_empty());
        let judgement = Judgement::of(&pod, rules);
        assert_eq!(judgement.refused, None, "{}", file.display());
        let plan = judgement.plan.unwrap();
        rows.extend(entries(&plan, &pod).iter().map(|entry| row(&pod, entry)));
        writeln!(more, "\n{}", pod.owner.name).unwrap();
        for (key, value) in &completion.annotations {
            let value = value.as_deref().unwrap_or("(removed)");
            writeln!(more, "  writes   {key}: {value}").unwrap();
        }
        for name in &completion.without_liveness_probe {
            writeln!(more, "  takes    livenessProbe of {name}").unwrap();
        }
        for warning in completion.notes.iter().chain(&judgement.warnings) {
            writeln!(more, "  says     {warning}").unwrap();
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line: Vec<String> = cells.collect();
        writeln!(text, "{}", line.join("   ").trim_end()).unwrap();
    }
    text + &more
}

#[test]
fn injected_pods_have_the_expected_plans() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/injected_pods/plans.txt");
    let table = table(&config::parse(NODE).unwrap());
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(table == expected, "{} should be\n{table}", path.display());
}
