//! Checks that containerd passes annotations on to the shim.

use glob::{MatchOptions, Pattern};
use toml::{Table, Value};

use usher_core::plan::{ContainerSetting, PodSetting};

use super::super::containerd::{CONTAINER_ANNOTATIONS, Node, POD_ANNOTATIONS};
use super::cures::Cures;
use super::finding::{Code, Finding, Group, Subject};
use super::runtime::{is_pauseless, ours};

const ANNOTATIONS: Subject = Subject::new(Group::Runtime, "annotations");

/// kubelet's annotations that the shim reads if containerd passes them on.
const KUBELETS: [&str; 5] = [
    "io.kubernetes.pod.terminationGracePeriod",
    "io.kubernetes.container.preStopHandler",
    "io.kubernetes.container.restartCount",
    "io.kubernetes.container.ports",
    "io.kubernetes.container.terminationMessagePath",
];

pub(super) fn findings(node: &Node, cures: &Cures) -> Vec<Finding> {
    ours(node)
        .flat_map(|(name, runtime)| of_runtime(cures, name, runtime))
        .collect()
}

fn of_runtime(cures: &Cures, name: &str, runtime: &Table) -> Vec<Finding> {
    let with = |key: &str, patterns: &str| {
        let line = format!("{key} = {patterns}");
        cures.runtime(name, &line, is_pauseless(runtime))
    };
    let mut findings = Vec::new();
    // A shim that makes the sandbox reads the annotations from the pod's whole configuration, which
    // containerd passes to it.
    if !is_pauseless(runtime)
        && let Some(key) = not_passed(runtime, "pod_annotations", &ushers())
    {
        findings.push(
            ANNOTATIONS
                .problem(
                    Code::PodAnnotations,
                    format!("containerd does not pass {key:?} of a pod on to {name}"),
                )
                .cure(with("pod_annotations", POD_ANNOTATIONS)),
        );
    }
    let kubelets = KUBELETS.map(str::to_owned);
    if let Some(key) = not_passed(runtime, "container_annotations", &kubelets) {
        findings.push(
            ANNOTATIONS
                .warning(
                    Code::ContainerAnnotations,
                    format!(
                        "containerd does not pass kubelet's {key:?} on to {name}, so usher does not know grace \
                         periods, preStop handlers and named ports"
                    ),
                )
                .cure(with("container_annotations", CONTAINER_ANNOTATIONS)),
        );
    }
    if findings.is_empty() {
        findings.push(ANNOTATIONS.ok(format!(
            "containerd passes those of usher and kubelet on to {name}"
        )));
    }
    findings
}

/// An example key for each setting of usher.
fn ushers() -> Vec<String> {
    let pod = PodSetting::words().map(|word| format!("usher/{word}"));
    let container = ContainerSetting::words().map(|word| format!("{word}.usher/proxy"));
    pod.chain(container).collect()
}

/// The first of the `keys` that no pattern of the list matches.
fn not_passed<'a>(runtime: &Table, list: &str, keys: &'a [String]) -> Option<&'a str> {
    let patterns = runtime.get(list).and_then(Value::as_array);
    let patterns: Vec<Pattern> = patterns
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter_map(|pattern| Pattern::new(pattern).ok())
        .collect();
    // containerd uses Go's path.Match, in which no wildcard matches a slash.
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: false,
    };
    keys.iter()
        .find(|key| !patterns.iter().any(|it| it.matches_with(key, options)))
        .map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::super::super::containerd::TYPE;
    use super::super::finding::Level;
    use super::*;

    fn levels(lines: &str) -> Vec<Level> {
        let dump = format!(
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.usher]\n\
             runtime_type = '{TYPE}'\n{lines}"
        );
        let node = Node::with("1.7.24", &dump);
        let findings = findings(&node, &Cures::with(&node, &[], true));
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn the_installers_patterns_and_wider_ones_pass_all_annotations() {
        let lines = format!(
            "pod_annotations = {POD_ANNOTATIONS}\ncontainer_annotations = {CONTAINER_ANNOTATIONS}"
        );
        assert_eq!(levels(&lines), [Level::Ok]);
        let wide = "pod_annotations = ['*', '*/*']\ncontainer_annotations = ['*']";
        assert_eq!(levels(wide), [Level::Ok]);
    }

    #[test]
    fn a_missing_pattern_for_usher_is_a_problem_and_one_for_kubelet_a_warning() {
        assert_eq!(levels(""), [Level::Problem, Level::Warning]);
        // The star in the pattern `*` does not match the slash in `usher/init`.
        let lines = "pod_annotations = ['*']\ncontainer_annotations = ['io.kubernetes.*']";
        assert_eq!(levels(lines), [Level::Problem]);
        // The pattern `usher/*` does not match the settings of a single container, such as
        // `startup-probe.usher/proxy`.
        let lines = "pod_annotations = ['usher/*']\ncontainer_annotations = ['io.kubernetes.*']";
        assert_eq!(levels(lines), [Level::Problem]);
    }
}
