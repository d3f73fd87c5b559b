//! Fuzzing of manifests and of shims' answers.

use protobuf::Message;

use usher_api as api;
use usher_core::judgement::{Judgement, complete};
use usher_core::manifest::Pod;
use usher_core::plan::Rules;
use usher_fuzz::cost::{assert_bounded, assert_cheap};

use super::convert::{Options, convert as convert_all};
use super::explain::explain as explain_one;
use super::manifest::{self, Node};
use super::output::{self, Failure};
use super::timeline::draw_all;
use super::{inspect, json, metrics, node, ps};

/// Memory that parsing may take, in bytes for each byte of the manifest. The number is high because
/// two bytes (`-` and a line break) are already a list item, which becomes a node.
const EACH: usize = 2048;
/// Memory that parsing may take in addition, in bytes. YAML aliases need this memory, because they
/// can repeat many values even in a small manifest.
const ANYWAY: usize = 1 << 24;

/// The present time for the commands, in seconds since 1970.
const NOW: f64 = 1.7e9;

pub fn explain(input: &[u8]) {
    let Some(documents) = documents(input) else {
        return;
    };
    for document in &documents {
        for explanation in explained(document).into_iter().flatten() {
            assert_plain(&output::printable(&explanation));
        }
        for (owner, pod) in manifest::pods(document) {
            let pod = pod.json();
            let rules = Rules::default();
            assert_cheap(input.len(), || {
                let pod = Pod::read(&owner, &pod).ok()?;
                let _ = complete(&pod, &rules);
                Some(Judgement::of(&pod, &rules))
            });
            if let Ok(pod) = Pod::read(&owner, &pod) {
                assert_completed(pod);
            }
        }
    }
}

/// Completes a pod's annotations. Checks that a second completion changes nothing, and that the
/// shim accepts the pod.
fn assert_completed(mut pod: Pod) {
    let rules = Rules::default();
    let Ok(Some(completion)) = complete(&pod, &rules) else {
        return;
    };
    completion.apply(&mut pod);
    let again = complete(&pod, &rules).map(|again| again.is_some_and(|it| it.is_empty()));
    assert_eq!(again, Ok(true), "{completion:?}");
    assert_eq!(Judgement::of(&pod, &rules).refused, None, "{completion:?}");
}

/// Checks that converted manifests are parsed back to the same text, and can be explained.
pub fn convert(input: &[u8]) {
    let Some(documents) = documents(input) else {
        return;
    };
    for legacy in [false, true] {
        let options = Options {
            legacy,
            runtime_class: "usher".to_owned(),
            rules: Rules::default(),
        };
        let mut converted = documents.clone();
        if convert_all(&mut converted, &options).is_err() {
            continue;
        }
        let text = manifest::print(&converted).expect("what was read can be printed");
        let again = match manifest::parse(&text) {
            Ok(again) => again,
            Err(error) => panic!("{error}:\n{text}"),
        };
        // The texts are compared instead of the values, since NaN differs from itself.
        assert_eq!(manifest::print(&again).expect("as before"), text);
        for document in &again {
            for explanation in explained(document) {
                assert!(explanation.is_ok(), "{explanation:?}");
            }
        }
    }
}

fn documents(input: &[u8]) -> Option<Vec<Node>> {
    let text = std::str::from_utf8(input).ok()?;
    let read = || manifest::parse(text);
    match assert_bounded(text.len(), EACH, ANYWAY, read) {
        Ok(documents) => Some(documents),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            None
        }
    }
}

/// The explanation of each pod in a document, or the error.
fn explained(document: &Node) -> Vec<Result<String, Failure>> {
    let pods = manifest::pods(document).into_iter();
    let explain = |(owner, pod)| {
        let explanation = explain_one("f.yaml", &owner, &pod, &Rules::default());
        let explanation = explanation?;
        serde_json::to_string(&explanation).expect("an explanation is JSON");
        let _ = explanation.text(Some(40));
        Ok(explanation.text(None))
    };
    pods.map(explain).collect()
}

/// Reads the input as a shim's answer about a pod, and checks the output of the commands for it.
pub fn answers(input: &[u8]) {
    let Ok(pod) = api::Pod::parse_from_bytes(input) else {
        return;
    };
    assert_plain(&output::printable(&inspect::text(&pod, None, NOW)));
    for cell in ps::row(&pod) {
        assert_plain(&output::printable(&cell));
    }
    let (texts, picture) = draw_all(&pod, NOW);
    for text in texts {
        assert_plain(&output::printable(&text));
    }
    assert_plain(&picture);
    let pods = [pod];
    let living = pods.iter().map(|pod| node::Found {
        socket: None,
        pod: pod.clone(),
    });
    let seen = node::Seen {
        pods: living.collect(),
        silent: 1,
    };
    assert!(metrics::text(&seen, &pods).is_ok(), "{pods:?}");
    let [pod] = pods;
    // Not every protobuf timestamp or duration has a form in JSON.
    if let Ok(printed) = json::json(&pod) {
        let _ = json::message::<api::Pod>(printed);
    }
}

/// Checks that a text has no control characters except line breaks and styles.
fn assert_plain(text: &str) {
    let mut rest = text.chars();
    while let Some(char) = rest.next() {
        if char == '\u{1b}' {
            assert_eq!(rest.next(), Some('['), "{text:?}");
            let end = rest.find(|char| !char.is_ascii_digit() && *char != ';');
            assert_eq!(end, Some('m'), "{text:?}");
        } else {
            assert!(char == '\n' || !char.is_control(), "{text:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_fails() {
        usher_fuzz::run_seeds(&[
            ("answers", answers),
            ("convert", convert),
            ("explain", explain),
        ]);
    }
}
