//! Sorts a pod's containers by the roles that another API gives them.

use super::super::manifest::Node;
use super::Options;

/// A pod's containers by role, each list in the order of the manifest.
#[derive(Debug, Default)]
pub(super) struct RoleAssignment {
    /// Init containers that stay init containers: those before the first native sidecar.
    pub(super) native: Vec<Node>,
    /// Native sidecars, and all init containers after the first native sidecar. They start one
    /// after another.
    pub(super) serial: Vec<(Starting, Node)>,
    /// Sidecars that start in parallel.
    pub(super) sidecars: Vec<Node>,
    pub(super) apps: Vec<Node>,
    pub(super) defers: Vec<Node>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Starting {
    Init,
    Sidecar,
}

/// Fields of a pod's spec from the proposals for defer containers.
const DEFER_FIELDS: [&str; 5] = [
    "deferContainerGracePeriodExtension",
    "deferContainerGracePeriodExtensionInterval",
    "deferContainerGracePeriodExtensionIntervel",
    "deferContainerGracePeriodExtensionCount",
    "prePullDeferImages",
];

/// True if a pod's spec has anything to convert.
pub(super) fn has_foreign_fields(spec: &Node, options: &Options) -> bool {
    let containers = items(spec, "containers");
    let init = items(spec, "initContainers");
    spec.get("deferContainers").is_some()
        || DEFER_FIELDS.iter().any(|field| spec.get(field).is_some())
        || containers.iter().chain(init).any(|container| {
            container.at(&["lifecycle", "type"]).is_some()
                || ["terminationHook", "fatalToPod", "terminationFatalToPod"]
                    .iter()
                    .any(|field| container.get(field).is_some())
                || container.at(&["lifecycle", "terminationHook"]).is_some()
        })
        || (options.legacy && init.iter().any(is_native_sidecar))
}

/// True if the node's rules make sidecars of some of the containers, but not of all.
pub(super) fn has_sidecars_of_node(spec: &Node, options: &Options) -> bool {
    let containers = items(spec, "containers");
    let is_of_node = |container| is_sidecar_of_node(container, options);
    containers.iter().any(is_of_node) && !containers.iter().all(is_of_node)
}

fn is_sidecar_of_node(container: &Node, options: &Options) -> bool {
    let name = container.text_of("name").unwrap_or_default();
    options.rules.roles.is_sidecar(name)
}

/// True for a sidecar of KEP-753's draft (`lifecycle.type: Sidecar`).
fn is_sidecar(container: &Node) -> bool {
    let kind = container.at(&["lifecycle", "type"]).and_then(Node::as_text);
    kind == Some("Sidecar")
}

/// True for a sidecar of KEP-753 as Kubernetes implements it (`restartPolicy: Always`).
pub(super) fn is_native_sidecar(container: &Node) -> bool {
    container.text_of("restartPolicy") == Some("Always")
}

pub(super) fn items<'a>(spec: &'a Node, list: &str) -> &'a [Node] {
    spec.get(list).map_or(&[], Node::items)
}

impl RoleAssignment {
    pub(super) fn of(spec: &Node, options: &Options) -> RoleAssignment {
        let mut roles = RoleAssignment::default();
        for container in items(spec, "initContainers") {
            let container = container.clone();
            match (options.legacy, is_native_sidecar(&container)) {
                (true, true) => roles.serial.push((Starting::Sidecar, container)),
                (true, false) if !roles.serial.is_empty() => {
                    roles.serial.push((Starting::Init, container));
                }
                _ => roles.native.push(container),
            }
        }
        for container in items(spec, "containers") {
            match is_sidecar(container) || is_sidecar_of_node(container, options) {
                true => roles.sidecars.push(container.clone()),
                false => roles.apps.push(container.clone()),
            }
        }
        roles.defers = items(spec, "deferContainers").to_vec();
        roles
    }

    /// All containers, in the order of the converted pod.
    pub(super) fn all(&self) -> impl Iterator<Item = &Node> {
        let serial = self.serial.iter().map(|(_, container)| container);
        self.native
            .iter()
            .chain(serial)
            .chain(&self.sidecars)
            .chain(&self.apps)
            .chain(&self.defers)
    }
}

/// The names of these containers, for a list in an annotation.
pub(super) fn names<'a>(containers: impl IntoIterator<Item = &'a Node>) -> Vec<String> {
    let names = containers.into_iter().filter_map(|it| it.text_of("name"));
    names.map(str::to_owned).collect()
}
