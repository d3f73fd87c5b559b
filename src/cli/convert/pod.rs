//! One pod: its containers in their new order, and the annotations.

use serde_json::json;

use crate::plan::{DeferTurn, RestartPolicy, Role, Word};

use super::super::manifest::Node;
use super::Wish;
use super::cast::{Cast, Starting, is_for_us, is_native_sidecar, items, names};
use super::containers::{Rewrite, Started};
use super::unknown;

/// Lists of roles; a pod that has some of them is a pod for usher already.
const LISTS: [&str; 6] = [
    "usher/init",
    "usher/sidecars",
    "usher/apps",
    "usher/pre-exit",
    "usher/post-exit",
    "usher/startup-order",
];

/// Converts a pod in its place, if there is anything to convert in it; tells what should be known.
///
/// # Errors
///
/// One sentence if it makes no sense, or says two things at once.
pub(super) fn convert(pod: &mut Node, wish: &Wish) -> Result<Vec<String>, String> {
    let Some(spec) = pod.get("spec") else {
        return Ok(Vec::new());
    };
    if let Some(sentence) = unknown::in_spec(spec) {
        return Err(sentence);
    }
    let has_native_sidecars = items(spec, "initContainers").iter().any(is_native_sidecar);
    if !is_for_us(spec, wish) {
        let hint = match has_native_sidecars {
            true => "; --legacy converts its native sidecars",
            false => "",
        };
        return Ok(vec![format!("there is nothing to convert in it{hint}")]);
    }
    let annotation = |key| pod.at(&["metadata", "annotations", key]);
    if let Some(list) = LISTS.iter().find(|list| annotation(list).is_some()) {
        return Err(format!(
            "it has the annotation {list} and fields to be converted; expected one of the two"
        ));
    }
    let mut cast = Cast::of(spec, wish);
    if cast.apps.is_empty() {
        return Err("none of its containers is an app; expected one that is no sidecar".to_owned());
    }
    check_names(&cast)?;

    let mut rewrite = Rewrite::default();
    let lists = lists(&cast);
    if has_native_sidecars && !wish.legacy {
        rewrite.notes.push(
            "its native sidecars are left to kubelet, which stops them; --legacy converts them too"
                .to_owned(),
        );
    }
    // The API server refuses any other word.
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
        write_spec(spec, cast, wish, &mut rewrite);
    }
    Ok(rewrite.notes)
}

/// Lists name containers, so that each needs a name of its own.
fn check_names(cast: &Cast) -> Result<(), String> {
    let all: Vec<_> = cast.all().map(|it| it.text_of("name")).collect();
    if all.contains(&None) {
        return Err("one of its containers has no name".to_owned());
    }
    let mut seen = std::collections::BTreeSet::new();
    match all.into_iter().flatten().find(|name| !seen.insert(*name)) {
        Some(name) => Err(format!("it has two containers named {name}; expected one")),
        None => Ok(()),
    }
}

fn lists(cast: &Cast) -> Vec<(&'static str, Vec<String>)> {
    let serial = |wanted: Starting| {
        let those = cast.serial.iter().filter(move |(kind, _)| *kind == wanted);
        those.map(|(_, container)| container)
    };
    let order = match cast.serial.is_empty() {
        true => Vec::new(),
        // As kubelet starts them, one after another; those of the draft come last.
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

/// As the API server fills it in.
fn policy(spec: &Node) -> &str {
    spec.text_of("restartPolicy").unwrap_or("Always")
}

/// `of_pod` is the pod's policy.
fn rewrite_containers(cast: &mut Cast, of_pod: RestartPolicy, rewrite: &mut Rewrite) {
    // kubelet starts again what it has stopped.
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

/// Pod-wide settings that are no lists.
fn settings(spec: &Node, cast: &Cast, rewrite: &mut Rewrite) -> Vec<(&'static str, String)> {
    let mut settings = vec![("restart-policy", policy(spec).to_owned())];
    if cast.serial.is_empty() && cast.sidecars.len() > 1 {
        // The draft asks all of them at once; KEP-753 as built, one after another.
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
                    "grace extensions by interval are dropped: it has them by probe already"
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

/// Writes annotations behind those that are there.
fn annotate(
    pod: &mut Node,
    annotations: Vec<(String, String)>,
    rewrite: &mut Rewrite,
) -> Result<(), String> {
    if pod.get("metadata").is_none() {
        pod.take("metadata");
        pod.set_before("spec", "metadata", Node::Map(Vec::new()));
    }
    let wrong = "metadata is no map of fields";
    let metadata = pod.get_mut("metadata").ok_or(wrong)?;
    if metadata.get("annotations").is_none() {
        metadata.set("annotations", Node::Map(Vec::new()));
    }
    let written = metadata.get_mut("annotations").ok_or(wrong)?;
    for (key, value) in annotations {
        match written.get(&key) {
            Some(old) if *old != Node::text(&value) => rewrite.notes.push(format!(
                "the annotation {key} was there already and is left as it was; from its fields it \
                 would be {value}"
            )),
            Some(_) => {}
            None => written.set(&key, Node::Text(value)),
        }
    }
    Ok(())
}

fn write_spec(spec: &mut Node, cast: Cast, wish: &Wish, rewrite: &mut Rewrite) {
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
        // As the defer proposal's examples call it.
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
    if let Some(other) = class.filter(|class| *class != wish.runtime_class) {
        rewrite.notes.push(format!(
            "its runtimeClassName {other} is replaced by {}",
            wish.runtime_class
        ));
    }
    let first = spec
        .fields()
        .first()
        .map_or("", |(name, _)| name)
        .to_owned();
    spec.set_before(&first, "runtimeClassName", Node::text(&wish.runtime_class));
}
