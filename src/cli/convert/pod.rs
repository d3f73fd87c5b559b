//! Conversion of a pod: orders its containers and writes its annotations.

use anyhow::{Context, bail, ensure};
use serde_json::json;

use usher_core::plan::{DeferTurn, RestartPolicy, Role, Word};

use super::super::manifest::Node;
use super::Options;
use super::cast::{
    RoleAssignment, Starting, has_foreign_fields, has_sidecars_of_node, is_native_sidecar, items,
    names,
};
use super::containers::{Rewrite, Started};
use super::unknown;

/// Annotations that list the containers of a role. A pod with any of them is already written for
/// usher.
const LISTS: [&str; 6] = [
    "usher/init",
    "usher/sidecars",
    "usher/apps",
    "usher/pre-exit",
    "usher/post-exit",
    "usher/startup-order",
];

/// Converts a pod in place, if it has anything to convert, and returns notes.
///
/// # Errors
///
/// If the pod is invalid or contradicts itself.
pub(super) fn convert(pod: &mut Node, options: &Options) -> anyhow::Result<Vec<String>> {
    let Some(spec) = pod.get("spec") else {
        return Ok(Vec::new());
    };
    if let Some(sentence) = unknown::in_spec(spec) {
        bail!(sentence);
    }
    let has_native_sidecars = items(spec, "initContainers").iter().any(is_native_sidecar);
    let annotation = |key| pod.at(&["metadata", "annotations", key]);
    let list = LISTS.iter().find(|list| annotation(list).is_some());
    let has_foreign_fields = has_foreign_fields(spec, options);
    if !has_foreign_fields && (list.is_some() || !has_sidecars_of_node(spec, options)) {
        let hint = match has_native_sidecars {
            true => "; --legacy converts its native sidecars",
            false => "",
        };
        return Ok(vec![format!("it has nothing to convert{hint}")]);
    }
    if let Some(list) = list {
        bail!("it has both the annotation {list} and fields to convert; expected only one of them");
    }
    let mut cast = RoleAssignment::of(spec, options);
    ensure!(
        !cast.apps.is_empty(),
        "it has no app; expected a container that is not a sidecar"
    );
    check_names(&cast)?;

    let existing = pod.at(&["metadata", "annotations"]).map(Node::fields);
    let existing = existing.unwrap_or_default().iter();
    let mut rewrite = Rewrite {
        existing: existing.map(|(key, _)| key.clone()).collect(),
        ..Rewrite::default()
    };
    let lists = lists(&cast);
    if has_native_sidecars && !options.legacy {
        rewrite.notes.push(
            "its native sidecars stay, and kubelet starts and stops them; --legacy converts them as well"
                .to_owned(),
        );
    }
    // An unknown policy becomes the default here; the API server refuses such a pod anyway.
    let of_pod = RestartPolicy::from_word(policy(spec)).unwrap_or_default();
    rewrite_containers(&mut cast, of_pod, &mut rewrite);
    let settings = settings(spec, &cast, &mut rewrite);
    let essential = rewrite.essential.join(",");
    let mut annotations: Vec<(String, String)> = lists
        .into_iter()
        .map(|(setting, names)| (setting, names.join(",")))
        .chain(settings)
        .chain([("essential", essential)])
        .filter(|(_, value)| !value.is_empty())
        .map(|(setting, value)| (format!("usher/{setting}"), value))
        .collect();
    annotations.append(&mut rewrite.annotations);
    annotate(pod, annotations, &mut rewrite)?;
    if let Some(spec) = pod.get_mut("spec") {
        write_spec(spec, cast, options, &mut rewrite);
    }
    Ok(rewrite.notes)
}

/// Fails unless each container has a unique name, since the annotations list containers by name.
fn check_names(cast: &RoleAssignment) -> anyhow::Result<()> {
    let all: Vec<_> = cast.all().map(|it| it.text_of("name")).collect();
    ensure!(!all.contains(&None), "one of its containers has no name");
    let mut seen = std::collections::BTreeSet::new();
    match all.into_iter().flatten().find(|name| !seen.insert(*name)) {
        Some(name) => bail!("it has two containers named {name}; expected one"),
        None => Ok(()),
    }
}

fn lists(cast: &RoleAssignment) -> Vec<(&'static str, Vec<String>)> {
    let serial = |wanted: Starting| {
        let those = cast.serial.iter().filter(move |(kind, _)| *kind == wanted);
        those.map(|(_, container)| container)
    };
    let order = match cast.serial.is_empty() {
        true => Vec::new(),
        // kubelet starts native sidecars one after another. The other sidecars start after them.
        false => names(cast.serial.iter().map(|(_, it)| it).chain(&cast.sidecars)),
    };
    vec![
        ("native-init", names(&cast.native)),
        ("init", names(serial(Starting::Init))),
        (
            "sidecars",
            names(serial(Starting::Sidecar).chain(&cast.sidecars)),
        ),
        ("startup-order", order),
        ("apps", names(&cast.apps)),
        ("pre-exit", names(&cast.defers)),
    ]
}

/// The pod's restart policy. If the spec has none, the default of the API server.
fn policy(spec: &Node) -> &str {
    spec.text_of("restartPolicy").unwrap_or("Always")
}

/// Rewrites all containers; `of_pod` is the pod's restart policy.
fn rewrite_containers(cast: &mut RoleAssignment, of_pod: RestartPolicy, rewrite: &mut Rewrite) {
    // Under Always, kubelet restarts a container after a failed liveness probe.
    let restarts = of_pod == RestartPolicy::Always;
    for container in &mut cast.native {
        rewrite.common(container, Role::NativeInit);
        if !is_native_sidecar(container) {
            rewrite.restarts(container, of_pod);
        }
    }
    for (kind, container) in &mut cast.serial {
        match kind {
            Starting::Init => {
                rewrite.common(container, Role::Init);
                rewrite.init(container);
                rewrite.restarts(container, of_pod);
            }
            Starting::Sidecar => {
                rewrite.common(container, Role::Sidecar);
                rewrite.sidecar(container, Started::ByStartupProbe, restarts);
            }
        }
    }
    for container in &mut cast.sidecars {
        rewrite.common(container, Role::Sidecar);
        rewrite.sidecar(container, Started::ByReadiness, restarts);
    }
    for container in &mut cast.apps {
        rewrite.common(container, Role::App);
        rewrite.restarts(container, of_pod);
    }
    for container in &mut cast.defers {
        rewrite.common(container, Role::Defer(DeferTurn::PreExit));
        rewrite.defer(container);
    }
}

/// Pod-wide settings other than lists.
fn settings(
    spec: &Node,
    cast: &RoleAssignment,
    rewrite: &mut Rewrite,
) -> Vec<(&'static str, String)> {
    let mut settings = vec![("restart-policy", policy(spec).to_owned())];
    if cast.serial.is_empty() && cast.sidecars.len() > 1 {
        // The draft of KEP-753 stops the sidecars in parallel. Kubernetes, as KEP-753 was
        // implemented, stops them one after another.
        settings.push(("sidecar-stop-order", "Parallel".to_owned()));
    }
    let field = |names: &[&str]| {
        let found = names.iter().find_map(|name| spec.get(name))?;
        Some(found.json())
    };
    let interval = field(&[
        "deferContainerGracePeriodExtensionInterval",
        "deferContainerGracePeriodExtensionIntervel",
    ]);
    let count = field(&["deferContainerGracePeriodExtensionCount"]);
    let by_probe = field(&["deferContainerGracePeriodExtension"]) == Some(json!(true));
    match (by_probe, interval, count) {
        (true, interval, count) => {
            settings.push(("grace-extension", json!({"probe": true}).to_string()));
            if interval.is_some() || count.is_some() {
                rewrite.notes.push(
                    "grace extensions by interval are dropped: the pod has them by probe"
                        .to_owned(),
                );
            }
        }
        (false, Some(interval), Some(count)) => {
            let extension = json!({"intervalSeconds": interval, "count": count});
            settings.push(("grace-extension", extension.to_string()));
        }
        (false, None, None) => {}
        (false, _, _) => rewrite
            .notes
            .push("its grace extension is dropped; expected an interval and a count".to_owned()),
    }
    if spec.get("prePullDeferImages").is_some() {
        rewrite.notes.push(
            "prePullDeferImages is dropped: all images are pulled when the pod starts".to_owned(),
        );
    }
    settings
}

/// Adds annotations after the existing ones.
fn annotate(
    pod: &mut Node,
    annotations: Vec<(String, String)>,
    rewrite: &mut Rewrite,
) -> anyhow::Result<()> {
    if pod.get("metadata").is_none() {
        pod.take("metadata");
        pod.set_before("spec", "metadata", Node::Map(Vec::new()));
    }
    let wrong = "metadata is not a map";
    let metadata = pod.get_mut("metadata").context(wrong)?;
    if metadata.get("annotations").is_none() {
        metadata.set("annotations", Node::Map(Vec::new()));
    }
    let written = metadata.get_mut("annotations").context(wrong)?;
    for (key, value) in annotations {
        match written.get(&key) {
            Some(old) if *old != Node::text(&value) => rewrite.notes.push(format!(
                "the existing annotation {key} stays; the pod's fields would make it {value}"
            )),
            Some(_) => {}
            None => written.set(&key, Node::Text(value)),
        }
    }
    Ok(())
}

fn write_spec(spec: &mut Node, cast: RoleAssignment, options: &Options, rewrite: &mut Rewrite) {
    for field in [
        "deferContainers",
        "deferContainerGracePeriodExtension",
        "deferContainerGracePeriodExtensionInterval",
        "deferContainerGracePeriodExtensionIntervel",
        "deferContainerGracePeriodExtensionCount",
        "prePullDeferImages",
    ] {
        spec.take(field);
    }
    if let Some(period) = spec.take("terminationGracePeriod")
        && spec.get("terminationGracePeriodSeconds").is_none()
    {
        // The examples in the defer proposal use the name `terminationGracePeriod`.
        spec.set("terminationGracePeriodSeconds", period);
    }
    match cast.native.is_empty() {
        true => drop(spec.take("initContainers")),
        false => spec.set("initContainers", Node::List(cast.native)),
    }
    let serial = cast.serial.into_iter().map(|(_, container)| container);
    let containers = serial
        .chain(cast.sidecars)
        .chain(cast.apps)
        .chain(cast.defers)
        .collect();
    spec.set("containers", Node::List(containers));
    let class = spec.text_of("runtimeClassName").map(str::to_owned);
    if let Some(other) = class.filter(|class| *class != options.runtime_class) {
        rewrite.notes.push(format!(
            "its runtimeClassName {other} is replaced by {}",
            options.runtime_class
        ));
    }
    let first = spec
        .fields()
        .first()
        .map_or("", |(name, _)| name)
        .to_owned();
    spec.set_before(
        &first,
        "runtimeClassName",
        Node::text(&options.runtime_class),
    );
}
