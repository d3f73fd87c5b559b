//! Checks the manual. Tests run each command line on its pages and compare each output, unless
//! `left_out.rs` gives a reason not to. Tests also check options, files, links, annotations,
//! metrics, manifests and configurations.

mod command;
mod left_out;
mod page;
mod same;
mod scenes;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use usher_core::plan::reference;

pub use self::command::sources;
use self::command::{commands, exists};
use self::left_out::{NOT_COMPARED, NOT_RUN};
pub use self::page::root;
use self::page::{Block, Page, Piece, Use, all};
use self::scenes::SCENES;
use crate::harness::{PATIENCE, run, shim_dir};

#[track_caller]
fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn blocks(pages: &[Page]) -> impl Iterator<Item = &Block> {
    pages.iter().flat_map(|page| &page.blocks)
}

fn spans(pages: &[Page]) -> impl Iterator<Item = &Piece> {
    pages.iter().flat_map(|page| &page.spans)
}

/// True if a test in `scenes.rs` runs the block's commands or compares its output.
fn is_shown(block: &Block) -> bool {
    let mut shown = SCENES.iter().flat_map(|(_, blocks)| blocks.iter());
    shown.any(|(file, title)| block.at.file == *file && block.title() == *title)
}

#[test]
fn every_command_is_run_or_listed() {
    let pages = all();
    let mut problems = Vec::new();
    let mut listed = BTreeSet::new();
    for block in blocks(&pages) {
        let commands = match block.is_for() {
            Use::Transcript(all) => {
                let lines = all.iter().flat_map(|(line, _)| commands(&block.at, line));
                lines.collect()
            }
            Use::Commands => commands(&block.at, &block.text),
            Use::Language(_) | Use::Output => continue,
        };
        for command in commands {
            let line = command.line();
            let list = NOT_RUN.iter().find(|(begin, _)| line.starts_with(begin));
            match list {
                Some((begin, _)) => {
                    listed.insert(*begin);
                }
                None if is_shown(block) => {}
                None => problems.push(format!(
                    "{}: no scene runs `{line}`, and no list names it",
                    command.at
                )),
            }
            let problem = command.problem();
            problems.extend(problem.map(|problem| format!("{}: `{line}`: {problem}", command.at)));
        }
    }
    let unused = NOT_RUN.iter().filter(|(begin, _)| !listed.contains(begin));
    problems.extend(unused.map(|(begin, _)| format!("NOT_RUN has {begin:?}, which is on no page")));
    assert_none(&problems);
}

#[test]
fn every_output_is_compared_or_listed() {
    let pages = all();
    let mut problems = Vec::new();
    for block in blocks(&pages) {
        let is_output = matches!(block.is_for(), Use::Transcript(_) | Use::Output);
        let is_listed = NOT_COMPARED
            .iter()
            .any(|(title, _)| block.title().starts_with(title));
        match (is_output, is_shown(block)) {
            (true, false) if !is_listed => {
                problems.push(format!(
                    "{}: no scene has {:?}, and no list",
                    block.at,
                    block.title()
                ));
            }
            (_, true) if is_listed => {
                problems.push(format!("{}: both a scene and a list have it", block.at))
            }
            _ => {}
        }
    }
    let titles: BTreeSet<&str> = blocks(&pages).map(Block::title).collect();
    let unused = NOT_COMPARED
        .iter()
        .filter(|(title, _)| !titles.iter().any(|it| it.starts_with(title)));
    problems.extend(
        unused.map(|(title, _)| format!("NOT_COMPARED has {title:?}, which is on no page")),
    );
    for (scene, shown) in SCENES {
        let is_there = |file: &str, title: &str| {
            blocks(&pages).any(|block| block.at.file == file && block.title() == title)
        };
        let gone = shown.iter().filter(|(file, title)| !is_there(file, title));
        problems.extend(
            gone.map(|(file, title)| format!("{scene} has {title:?}, which is not in {file}")),
        );
    }
    assert_none(&problems);
}

/// Texts that look like a command, but are a program's output.
const SENTENCES: [&str; 1] = ["run usher as root"];

#[test]
fn commands_in_the_text_are_valid() {
    let pages = all();
    let mut problems = Vec::new();
    for span in spans(&pages) {
        let begins = ["usher ", "scripts/", "cargo ", "kubectl "];
        let is_command = begins.iter().any(|begin| span.text.starts_with(begin));
        // A code span without a space can only name a file, and the test `named_files_exist` checks
        // file names.
        let has_words = span.text.contains(' ') && !span.text.contains('$');
        for command in commands(&span.at, &span.text)
            .iter()
            .filter(|_| is_command && has_words)
        {
            let problem = command
                .problem_of_part()
                .filter(|_| !SENTENCES.contains(&span.text.as_str()));
            problems
                .extend(problem.map(|problem| format!("{}: `{}`: {problem}", span.at, span.text)));
        }
    }
    assert_none(&problems);
}

#[test]
fn named_files_exist() {
    let pages = all();
    let sources = sources(root());
    let is_source = |name: &str| sources.iter().any(|path| path.ends_with(name));
    let mut problems = Vec::new();
    for span in spans(&pages) {
        let word = span.text.split_whitespace().next().unwrap_or_default();
        let rooms = ["src/", "integration/", "scripts/", "docs/", "protos/"];
        let is_path = rooms.iter().any(|room| word.starts_with(room)) && !word.contains('*');
        let is_bare =
            !word.contains('/') && [".rs", ".proto"].iter().any(|end| word.ends_with(end));
        let is_gone = (is_path && !exists(word)) || (is_bare && !is_source(word));
        problems.extend(is_gone.then(|| format!("{}: there is no {word}", span.at)));
    }
    assert_none(&problems);
}

#[test]
fn links_have_targets() {
    let pages = all();
    let mut problems = Vec::new();
    for page in &pages {
        let directory = Path::new(&page.file).parent().expect("a directory");
        for link in page.links.iter().filter(|link| !link.text.contains("://")) {
            let (path, anchor) = link.text.split_once('#').unwrap_or((&link.text, ""));
            let target = match path {
                "" => root().join(&page.file),
                path => root().join(directory).join(path),
            };
            let target = fs::canonicalize(target).unwrap_or_default();
            let other = pages
                .iter()
                .find(|other| target == root().join(&other.file));
            let is_anchor = |page: &Page| page.anchors.iter().any(|name| name == anchor);
            let leads = target.exists() && (anchor.is_empty() || other.is_some_and(is_anchor));
            problems.extend((!leads).then(|| format!("{}: {} leads nowhere", link.at, link.text)));
        }
    }
    assert_none(&problems);
}

#[test]
fn named_annotations_and_metrics_exist() {
    // Names that look like annotations of pods, but are labels of nodes and namespaces, or patterns
    // with placeholders.
    const OTHERS: [&str; 5] = [
        "usher/installed",
        "usher/enabled",
        "usher/NAME",
        "NAME.usher/CONTAINER",
        "*.usher/*",
    ];
    let pages = all();
    let keys: Vec<String> = reference::entries().map(|entry| entry.key).collect();
    let is_known = |name: &str| match name.split_once(".usher/") {
        Some((setting, _)) => keys
            .iter()
            .any(|key| key.starts_with(&format!("{setting}.usher/"))),
        None => keys.iter().any(|key| key == name),
    };
    let mut makers = sources(&root().join("src/webhook"));
    makers.push(root().join("src/cli/metrics.rs"));
    let makers: String = makers
        .iter()
        .map(|path| fs::read_to_string(path).unwrap_or_default())
        .collect();
    let mut problems = Vec::new();
    for span in spans(&pages) {
        let name = span.text.split([':', ' ', '=']).next().unwrap_or_default();
        let is_pods = name.starts_with("usher/") && !name.contains('*') && !name.ends_with('/');
        let is_containers = name
            .split_once(".usher/")
            .is_some_and(|(key, _)| !key.contains(['/', ':']));
        let is_annotation = (is_pods || is_containers) && !OTHERS.contains(&name);
        if is_annotation && !is_known(name.trim_end_matches('…')) {
            problems.push(format!("{}: no annotation is called {name}", span.at));
        }
        if name.starts_with("usher_") && !makers.contains(&format!("\"{name}\"")) {
            problems.push(format!("{}: no metric is called {name}", span.at));
        }
    }
    let metric = regex::Regex::new("usher_[a-z_]+").expect("a regular expression");
    for block in blocks(&pages) {
        for name in metric.find_iter(&block.text).map(|found| found.as_str()) {
            let is_made = makers.contains(&format!("\"{name}\""));
            problems
                .extend((!is_made).then(|| format!("{}: no metric is called {name}", block.at)));
        }
    }
    assert_none(&problems);
}

#[test]
fn the_fuzzers_dictionary_has_every_annotation_and_its_words() {
    let dictionary = root().join("integration/fuzz/dictionaries/annotations");
    let dictionary = fs::read_to_string(dictionary).expect("a dictionary");
    let mut problems = Vec::new();
    for entry in reference::entries() {
        let key = entry.key.replace("<container>", "p");
        let line = format!("\"\\x0c{key}\\x09\"");
        problems.extend((!dictionary.contains(&line)).then_some(line));
        // If the documentation of a setting lists the words that the setting accepts, the fuzzer's
        // dictionary must contain each of these words.
        let is_word = |word: &&str| {
            let letters = word
                .strip_prefix('`')
                .and_then(|word| word.strip_suffix('`'));
            letters.is_some_and(|letters| letters.chars().all(|c| c.is_ascii_alphabetic()))
        };
        let words: Vec<&str> = entry.value.split(", ").collect();
        let words = words.iter().filter(|_| words.iter().all(&is_word));
        let lines = words.map(|word| word.replace('`', "\""));
        problems.extend(lines.filter(|line| !dictionary.contains(line)));
    }
    assert_none(&problems);
}

#[test]
fn manifests_and_configurations_are_valid() {
    let pages = all();
    let mut problems = Vec::new();
    for block in blocks(&pages) {
        let Use::Language(language) = block.is_for() else {
            continue;
        };
        let problem = match language {
            "yaml" => yaml(&block.text),
            "toml" => toml(&block.text),
            "json" => serde_json::from_str::<Value>(&block.text)
                .err()
                .map(|error| error.to_string()),
            // Blocks in these languages belong to the worked example. Another test checks this
            // example.
            "rust" | "diff" => None,
            other => Some(format!("no test checks the language {other}")),
        };
        problems.extend(problem.map(|problem| format!("{}: {problem}", block.at)));
    }
    assert_none(&problems);
}

/// Checks that the worked example matches the sources. The last source file that the page names
/// before a diff must contain the unchanged lines of the diff, in the same order. Each name in the
/// example's text must exist.
#[test]
fn the_worked_example_matches_the_sources() {
    let pages = all();
    let page = pages
        .iter()
        .find(|page| page.file == "CONTRIBUTING.md")
        .expect("the page");
    let mut problems = Vec::new();
    let differences: Vec<_> = page
        .blocks
        .iter()
        .filter(|it| it.language.as_deref() == Some("diff"))
        .collect();
    assert!(!differences.is_empty(), "the page shows no change");
    for block in &differences {
        let mut before = page
            .spans
            .iter()
            .filter(|span| span.at.line < block.at.line);
        let file = before
            .rfind(|span| span.text.starts_with("src/"))
            .expect("a file is named");
        let source = fs::read_to_string(root().join(&file.text)).expect("a source");
        let mut lines = source.lines().map(str::trim);
        for line in block
            .text
            .lines()
            .filter(|line| !line.starts_with('+'))
            .map(str::trim)
        {
            let is_there = line.is_empty() || lines.any(|other| other == line);
            problems.extend(
                (!is_there).then(|| format!("{}: {} has no `{line}` there", block.at, file.text)),
            );
        }
    }
    let first = differences[0].at.line;
    let sources: String = ["src/core", "integration"]
        .iter()
        .flat_map(|room| sources(&root().join(room)))
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .map(|path| fs::read_to_string(path).expect("a source"))
        .collect();
    for span in page.spans.iter().filter(|span| span.at.line >= first) {
        let name = span.text.trim_end_matches("()");
        let is_name = name.contains('_') && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if is_name && !sources.contains(name) {
            problems.push(format!("{}: nothing is called {name}", span.at));
        }
    }
    assert_none(&problems);
}

/// Checks a block of TOML. A configuration of usher must be valid, and any other TOML must parse.
fn toml(text: &str) -> Option<String> {
    let table = match toml::from_str::<toml::Table>(text) {
        Ok(table) => table,
        Err(error) => return Some(error.to_string()),
    };
    let of_others = ["plugins", "runtime_type", "worker"];
    match of_others.iter().any(|key| table.contains_key(*key)) {
        true => None,
        false => usher_core::config::parse(text)
            .err()
            .map(|error| error.to_string()),
    }
}

/// Checks a manifest, or the annotations of a pod. Returns the error with which `usher explain`
/// refuses them.
fn yaml(text: &str) -> Option<String> {
    let value: Value = match serde_saphyr::from_str(text) {
        Ok(value) => value,
        Err(error) => return Some(error.to_string()),
    };
    if value["kind"] == "Pod" {
        return explain(text);
    }
    if value["groups"].is_array() {
        // The block contains Prometheus rules. Another test checks the names of the metrics in
        // these rules.
        return None;
    }
    if let Some(services) = value["services"].as_object() {
        return compose(services);
    }
    let annotations = match &value["metadata"]["annotations"] {
        Value::Null => &value,
        annotations => annotations,
    };
    let lists = ["sidecars", "init", "apps", "pre-exit", "post-exit"];
    let names = lists
        .iter()
        .filter_map(|list| annotations[format!("usher/{list}")].as_str());
    let names = names.flat_map(|names| names.split([',', ' ']));
    let names: BTreeSet<&str> = names
        .filter(|name| !name.is_empty())
        .chain(["app"])
        .collect();
    let containers: Vec<Value> = names
        .iter()
        .map(|name| serde_json::json!({"name": name, "image": "it"}))
        .collect();
    let policy = annotations["usher/restart-policy"]
        .as_str()
        .unwrap_or("Always");
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "page", "annotations": annotations},
        "spec": {"runtimeClassName": "usher", "restartPolicy": policy, "containers": containers},
    });
    explain(&pod.to_string())
}

/// Checks a Compose file. Each service must have its name as an annotation, and all services must
/// have the same usher annotations. A pod of these containers must be valid.
fn compose(services: &serde_json::Map<String, Value>) -> Option<String> {
    let ushers = |service: &Value| -> BTreeMap<String, Value> {
        let all = service["annotations"].as_object().into_iter().flatten();
        all.filter(|(key, _)| key.contains("usher/"))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let all: BTreeSet<String> = services
        .values()
        .map(|service| serde_json::json!(ushers(service)).to_string())
        .collect();
    if all.len() != 1 {
        return Some(format!("its services have different annotations: {all:?}"));
    }
    let unnamed = services.iter().find(|(name, service)| {
        service["annotations"]["io.kubernetes.cri.container-name"] != name.as_str()
    });
    if let Some((name, _)) = unnamed {
        return Some(format!("service {name} has no annotation with its name"));
    }
    let containers: Vec<Value> = services
        .keys()
        .map(|name| serde_json::json!({"name": name, "image": "it"}))
        .collect();
    let annotations = services.values().next().map(ushers);
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "page", "annotations": annotations},
        "spec": {"runtimeClassName": "usher", "containers": containers},
    });
    explain(&pod.to_string())
}

fn explain(manifest: &str) -> Option<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("pod.yaml");
    fs::write(&file, manifest).expect("the manifest");
    let mut command = std::process::Command::new(shim_dir().join("usher"));
    command.arg("explain").arg(file);
    let said = run(command, PATIENCE);
    (!said.ok()).then(|| said.err())
}
