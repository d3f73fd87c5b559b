//! The DaemonSet that installs usher on a cluster's nodes, and its image.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::cluster::{Cluster, NODE, PATIENCE};
use crate::harness::{eventually, poll, run};
use crate::images::WITNESS;
use crate::own_images::{self, find};
use crate::pod::{Case, Pod, condition, restarts, witness};
use crate::settings::CONTAINERD_CONFIG;

const DAEMON_SET: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/daemonset.yaml"
);
const RUNTIME_CLASS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/runtimeclass.yaml"
);
/// The repository in the name of the installer's image. The image is imported, and not pulled from
/// there.
pub const REPOSITORY: &str = "registry.example.com/usher";
const SHIM: &str = "/usr/local/bin/containerd-shim-usher-v2";
/// The name of a second Node object. No machine exists for this node.
const OTHER: &str = "other";

pub fn usher_is_installed_on_a_node_and_removed_without_a_trace(case: &Case) {
    let before = files_of_node(case.cluster);
    // The RuntimeClass requires a node on which usher is installed. There is no such node yet, so
    // the pod waits.
    case.cluster.must(&["apply", "--filename", RUNTIME_CLASS]);
    await_account(case);
    case.create(&others_pod());
    case.await_ready("others");
    case.create(&pod("early"));
    case.await_pod("early", "found to have no node", |pod| {
        condition(pod, "PodScheduled")["status"] == "False"
    });

    install(case);
    assert_eq!(label(case.cluster, NODE).as_deref(), Some("true"));
    let config = case.cluster.read_on_node(CONTAINERD_CONFIG);
    let config = String::from_utf8(config.expect("containerd's configuration"));
    let config = config.expect("plain text");
    let is_known = |line: &str| config.contains(line);
    // With containerd 1, the configuration contains usher's runtime type. With containerd 2, it may
    // contain the path of the shim instead.
    assert!(
        is_known(r#"runtime_type = "io.containerd.usher.v2""#)
            || is_known(&format!("runtime_path = {SHIM:?}")),
        "{config}"
    );
    assert_eq!(left_in_run(case), "");
    runs_in_order(case, "early");

    uninstall(case);
    assert_eq!(label(case.cluster, NODE), None);
    let after = files_of_node(case.cluster);
    let changed: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(changed.is_empty(), "{changed:#?}");
    assert_eq!(left_in_run(case), "");
    let record = case.record();
    assert!(!record.has("others", "signal"), "{record}");
    assert_eq!(restarts(&case.await_ready("others"), "others"), 0);
}

pub fn pods_continue_when_the_daemon_set_is_applied_again_or_updated(case: &Case) {
    let image = install(case);
    await_account(case);
    start(case, "first");
    let service = case.cluster.containerd_process();
    let generation = |case: &Case| daemon_set(case)["metadata"]["generation"].clone();
    let applied = generation(case);
    apply(case, &image);
    assert_eq!(generation(case), applied);

    let program = || case.cluster.read_on_node(SHIM).expect("the shim");
    let old = program();
    apply(case, &import(case.cluster, b"next"));
    await_rollout(case);
    let new = program();
    assert!(new.starts_with(&old) && new.ends_with(b"next"));
    // containerd's configuration has not changed, so containerd was not restarted.
    assert_eq!(case.cluster.containerd_process(), service);
    assert_goes_on(case, "first");
    runs_in_order(case, "second");
    assert_goes_on(case, "first");
    ends_in_order(case, "first");
    uninstall(case);
}

pub fn the_runtime_is_not_removed_while_pods_use_it(case: &Case) {
    install(case);
    await_account(case);
    start(case, "needs-it");
    ask_for_uninstall(case);
    let said = "pods run under usher";
    let refused = poll(PATIENCE, || {
        installer_says(case).contains(said).then_some(())
    });
    assert!(refused.is_some(), "{}", installer_says(case));
    // The node has lost its label, so no other pod that needs usher is scheduled on this node.
    assert_eq!(label(case.cluster, NODE), None);
    assert!(case.cluster.read_on_node(SHIM).is_some());
    assert_goes_on(case, "needs-it");
    ends_in_order(case, "needs-it");
    await_rollout(case);
    assert!(case.cluster.read_on_node(SHIM).is_none());
    remove_objects(case);
}

pub fn the_container_that_stays_on_a_node_has_no_privileges(case: &Case) {
    install(case);
    let pod = installer_pod(case);
    let spec = &pod["spec"];
    for shared in ["hostPID", "hostNetwork", "hostIPC"] {
        assert_eq!(spec[shared], Value::Null, "{spec:#}");
    }
    // Only the installer mounts the node's /proc, and no container gets a token.
    let volumes = spec["volumes"].as_array().expect("volumes");
    let names: Vec<&Value> = volumes.iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["node"]);
    assert_eq!(spec["containers"][0]["volumeMounts"], Value::Null);

    // Neither the container's first process nor a process executed later has capabilities.
    for process in ["1", "self"] {
        let status = in_staying_container(case, &format!("cat /proc/{process}/status"));
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).unwrap_or_else(|| panic!("{status}"))
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{set} {status}");
        }
        assert_eq!(field("Uid:"), "65534\t65534\t65534\t65534");
        assert_eq!(field("Gid:"), "65534\t65534\t65534\t65534");
        assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1", "2"));
    }
    for kind in ["mnt", "net", "pid", "uts", "ipc"] {
        let link = format!("/proc/self/ns/{kind}");
        let of_node = run(case.cluster.on_node(&["readlink", &link]), PATIENCE).out();
        assert!(of_node.starts_with(kind), "{of_node}");
        assert_ne!(
            in_staying_container(case, &format!("readlink {link}")),
            of_node
        );
    }
    let writable = find("", "$file != /proc/* && ! -L $file && -w $file");
    let writable = in_staying_container(case, &writable);
    let outside = |path: &&str| !path.starts_with("/dev/");
    assert!(
        writable.lines().any(|path| path == "/dev/null"),
        "{writable}"
    );
    assert_eq!(writable.lines().find(outside), None, "{writable}");
    assert_eq!(in_staying_container(case, &find("/dev", "-b $file")), "");
    in_staying_container(case, "test ! -e /node && test ! -e /run/secrets");
    uninstall(case);
}

pub fn the_installer_changes_no_other_node(case: &Case) {
    install(case);
    // The DaemonSet runs no pod on this second node, because its operating system is another one.
    let labels = json!({ "kubernetes.io/os": "another" });
    let metadata = json!({ "name": OTHER, "labels": labels });
    case.cluster
        .apply(&[json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })]);

    set_node_name(case, json!({ "value": OTHER, "valueFrom": null }));
    let refused = || {
        let said = installer_says(case);
        let refused = said.contains("forbidden") && said.contains("node other cannot be labeled");
        refused.then_some(())
    };
    let refused = poll(PATIENCE, refused);
    assert!(refused.is_some(), "{}", installer_says(case));
    assert_eq!(label(case.cluster, OTHER), None);
    let own = json!({ "fieldRef": { "fieldPath": "spec.nodeName" } });
    set_node_name(case, json!({ "value": null, "valueFrom": own }));
    await_rollout(case);

    // With the installer's credentials, these requests are refused.
    for words in [
        "label node other usher/installed=true",
        "annotate node other usher/note=text",
        "delete node other",
        "label node node node-restriction.kubernetes.io/trusted=true",
        "label node node kubernetes.io/role=trusted",
        "taint node node usher=text:NoSchedule",
        "delete node node",
        "get daemonsets --namespace kube-system",
        "create configmap theirs --namespace kube-system",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let finished = case.cluster.kubectl_as_node(&words);
        let said = finished.err().to_lowercase();
        let forbidden = !finished.ok() && said.contains("forbidden");
        assert!(forbidden, "{words:?}: {said}");
    }
    assert_eq!(label(case.cluster, OTHER), None);

    // No other account has these permissions.
    for account in ["default", "usher"] {
        let user = format!("--as=system:serviceaccount:kube-system:{account}");
        let may = case
            .cluster
            .kubectl(&["auth", "can-i", "patch", "nodes", &user]);
        assert_eq!(may.out().trim(), "no", "{}", may.err());
    }
    case.cluster.must(&["delete", "node", OTHER]);
    uninstall(case);
}

pub fn a_process_that_pretends_to_be_kubelet_is_not_trusted(case: &Case) {
    await_account(case);
    let stays = case.shared_dir().join("stays");
    fs::write(&stays, "").expect("a file");
    // Two other processes have the name `kubelet`. One runs as root in a container that sees the
    // node's processes, the other as an unprivileged user of the node. Their process ids are low,
    // so they come before the real kubelet in `/proc`.
    let script = r#"echo 100 >/proc/sys/kernel/ns_last_pid
        unshare --mount bash -c "$1" --kubeconfig=/theirs &
        setpriv --reuid 65534 --clear-groups bash -c "$1" --kubeconfig=/theirs &"#;
    let theirs = "echo kubelet >/proc/self/comm; while [ -e $STAYS ]; do sleep 1; done";
    let theirs = theirs.replace("$STAYS", &stays.display().to_string());
    let mut start = case
        .cluster
        .on_node(&["bash", "-c", script, "bash", &theirs]);
    start.stdout(Stdio::null()).stderr(Stdio::null());
    assert!(start.status().expect("nsenter").success());
    let look = r#"for process in /proc/[0-9]*; do
        read -r name <$process/comm || continue
        [ "$name" != kubelet ] || tr '\0' ' ' <$process/cmdline; done"#;
    let found = || {
        let words = ["bash", "-c", look];
        let found = run(case.cluster.on_node(&words), PATIENCE).out();
        let mut kubelets = found.split("--kubeconfig=").skip(1);
        let two = kubelets
            .by_ref()
            .take(2)
            .all(|rest| rest.starts_with("/theirs "));
        two && kubelets.next().is_some()
    };
    eventually(
        "the pretenders come before kubelet in /proc",
        PATIENCE,
        found,
    );
    install(case);
    uninstall(case);
    fs::remove_file(&stays).expect("a file");
}

/// Installs usher by the commands at the heads of the manifests. Returns the name of the image.
fn install(case: &Case) -> String {
    assert_first_process_is_the_nodes(case);
    case.cluster.must(&["apply", "--filename", RUNTIME_CLASS]);
    let image = import(case.cluster, b"");
    apply(case, &image);
    await_rollout(case);
    image
}

fn apply(case: &Case, image: &str) {
    apply_with_image(case.cluster, DAEMON_SET, image);
}

/// Applies a manifest with `image` in place of its placeholder.
pub fn apply_with_image(cluster: &Cluster, manifest: &str, image: &str) {
    let text = fs::read_to_string(manifest).expect("a manifest");
    let lines = text.lines().map(|line| match line.split_once("image: ") {
        Some((before, _)) => format!("{before}image: {image}\n"),
        None => format!("{line}\n"),
    });
    let file = cluster.path("tmp/with-image.yaml");
    fs::write(&file, lines.collect::<String>()).expect("the manifest");
    let file = file.display().to_string();
    cluster.must(&["apply", "--filename", &file]);
}

fn daemon_set_file() -> String {
    fs::read_to_string(DAEMON_SET).expect("the DaemonSet")
}

fn uninstall(case: &Case) {
    ask_for_uninstall(case);
    await_rollout(case);
    remove_objects(case);
}

/// Starts the removal of usher with the command at the head of the manifest.
fn ask_for_uninstall(case: &Case) {
    let text = daemon_set_file();
    let patch = text.split("--patch '").nth(1).expect("a patch");
    let patch = patch
        .split('\'')
        .next()
        .expect("the end of the patch")
        .replace("\n#", "");
    system(case, &["patch", "daemonset", "usher", "--patch", &patch]);
}

/// Changes the variable that tells the installer the name of its node.
fn set_node_name(case: &Case, mut variable: Value) {
    variable["name"] = "NODE_NAME".into();
    let container = json!({ "name": "install", "env": [variable] });
    let patch = json!({ "spec": { "template": { "spec": { "initContainers": [container] } } } });
    let patch = patch.to_string();
    system(case, &["patch", "daemonset", "usher", "--patch", &patch]);
}

fn remove_objects(case: &Case) {
    let words = ["--filename", DAEMON_SET, "--filename", RUNTIME_CLASS];
    case.cluster.must(&[&["delete"], &words[..]].concat());
    let gone = || system(case, &["get", "pods", "--output", "name"]).is_empty();
    eventually("the installer's pod is gone", PATIENCE, gone);
}

/// Runs `kubectl` in the DaemonSet's namespace.
#[track_caller]
fn system(case: &Case, words: &[&str]) -> String {
    case.cluster
        .must(&[&["--namespace", "kube-system"], words].concat())
}

#[track_caller]
fn await_rollout(case: &Case) {
    let done = || {
        let set = daemon_set(case);
        let status = |name: &str| set["status"][name].as_i64().unwrap_or(0);
        let seen = status("observedGeneration") == set["metadata"]["generation"].as_i64()?;
        let all = ["updatedNumberScheduled", "numberReady", "numberAvailable"];
        let done = seen && all.iter().all(|name| status(name) == 1);
        done.then_some(())
    };
    let done = poll(2 * PATIENCE, done);
    assert!(done.is_some(), "{}", installer_says(case));
}

fn daemon_set(case: &Case) -> Value {
    let words = ["get", "daemonset", "usher", "--output", "json"];
    serde_json::from_str(&system(case, &words)).expect("an object")
}

fn installer_pod(case: &Case) -> Value {
    let words = ["get", "pods", "--selector=app=usher", "--output=json"];
    let pods: Value = serde_json::from_str(&system(case, &words)).expect("a list");
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "{pods:#}");
    pods["items"][0].clone()
}

/// Runs a script in the container that goes on running after the installation.
#[track_caller]
fn in_staying_container(case: &Case, script: &str) -> String {
    let pod = installer_pod(case);
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let words = ["exec", name, "--container=stay", "--", "sh", "-c", script];
    system(case, &words)
}

/// The status of the installer's pods, and the logs of their containers, before and after their
/// last restart.
fn installer_says(case: &Case) -> String {
    let say = |words: &[&str]| {
        let finished = case
            .cluster
            .kubectl(&[&["--namespace", "kube-system"], words].concat());
        finished.out() + &finished.err()
    };
    let log = [
        "logs",
        "--selector=app=usher",
        "--container=install",
        "--tail=-1",
    ];
    let previous = [&log[..], &["--previous"]].concat();
    [say(&["describe", "pods"]), say(&log), say(&previous)].join("\n---\n")
}

/// Checks that process 1 is a process of the test's node, and not of this computer. Otherwise the
/// installer would enter the namespaces of this computer.
#[track_caller]
fn assert_first_process_is_the_nodes(case: &Case) {
    await_account(case);
    let script = "cat /node/proc/1/root/run/node >/shared/first-process; sleep 600";
    let container = json!({
        "name": "look", "image": WITNESS, "command": ["/bin/sh", "-c", script],
        "securityContext": { "privileged": true },
        "volumeMounts": [
            { "name": "shared", "mountPath": "/shared" },
            { "name": "node", "mountPath": "/node/proc", "readOnly": true },
        ],
    });
    let volumes = json!([
        { "name": "shared", "hostPath": { "path": case.shared_dir() } },
        { "name": "node", "hostPath": { "path": "/proc" } },
    ]);
    let look = unmanaged(
        Pod::new("look")
            .container(container)
            .spec("volumes", volumes),
    );
    case.create(&look);
    case.await_ready("look");
    let found = case.shared_dir().join("first-process");
    let name = poll(PATIENCE, || {
        fs::read_to_string(&found)
            .ok()
            .filter(|text| !text.is_empty())
    });
    assert_eq!(
        name.as_deref().map(str::trim),
        Some(&*case.cluster.name()),
        "{}",
        case.diagnosis()
    );
    case.delete("look", &["--grace-period=1"]);
    case.await_gone("look");
}

/// Imports the image, with the bytes `more` appended to the shim, and returns the image's name.
fn import(cluster: &Cluster, more: &[u8]) -> String {
    own_images::import(cluster, "usher", REPOSITORY, |parts| {
        let shim = parts.join("containerd-shim-usher-v2");
        let bytes = fs::read(&shim).expect("the shim is in the image");
        fs::write(&shim, [&bytes, more].concat()).expect("the shim");
    })
}

/// A line for each file in `/etc` and `/usr/local` of the node, with mode and checksum.
fn files_of_node(cluster: &Cluster) -> BTreeSet<String> {
    let script = r"find /etc /usr/local -printf '%y %#m %p %l\n'
        find /etc /usr/local -type f -exec sha256sum {} +";
    let finished = run(cluster.on_node(&["bash", "-c", script]), PATIENCE);
    assert!(finished.ok(), "find: {}", finished.err());
    finished.out().lines().map(str::to_owned).collect()
}

/// Files of the installer that are left in the node's `/run`.
fn left_in_run(case: &Case) -> String {
    let words = ["find", "/run", "-maxdepth", "1", "-name", "usher*"];
    run(case.cluster.on_node(&words), PATIENCE).out()
}

fn label(cluster: &Cluster, node: &str) -> Option<String> {
    let node = cluster.get("node", node).expect("the node");
    let label = &node["metadata"]["labels"]["usher/installed"];
    label.as_str().map(str::to_owned)
}

/// Makes the pod run under containerd's own shim and without a token, for which kubelet would wait.
fn unmanaged(pod: Pod) -> Pod {
    pod.spec("automountServiceAccountToken", false)
        .spec("runtimeClassName", Value::Null)
}

fn others_pod() -> Pod {
    unmanaged(Pod::new("others").container(witness("others", &[])))
}

/// A pod whose spec lists the app before its sidecar. The containers record their events under
/// names that contain the pod's name.
fn pod(name: &str) -> Pod {
    let (app, proxy) = (format!("{name}-app"), format!("{name}-proxy"));
    Pod::new(name)
        .annotation("usher/sidecars", &*proxy)
        .probed(&proxy)
        .container(witness(&app, &["--stop-after", "500ms"]))
        .container(witness(&proxy, &[]))
        .spec("automountServiceAccountToken", false)
}

/// Waits for the service account, which a new namespace gets only after a moment.
fn await_account(case: &Case) {
    let words = [
        "--namespace",
        &case.namespace,
        "get",
        "serviceaccount",
        "default",
    ];
    let there = || case.cluster.kubectl(&words).ok();
    eventually("there is a service account", PATIENCE, there);
}

fn start(case: &Case, name: &str) {
    case.create(&pod(name));
    await_start(case, name);
}

fn await_start(case: &Case, name: &str) {
    let (app, proxy) = (format!("{name}-app"), format!("{name}-proxy"));
    let record = case.await_event(&proxy, "start");
    assert!(!record.has(&app, "start"), "{record}");
    case.touch(&format!("ready-{proxy}"));
    case.await_event(&app, "start");
    case.await_ready(name);
}

fn ends_in_order(case: &Case, name: &str) {
    let (app, proxy) = (format!("{name}-app"), format!("{name}-proxy"));
    case.delete(name, &[]);
    let record = case.await_event(&proxy, "exit");
    record.assert_before((&app, "exit"), (&proxy, "signal"));
    case.await_gone(name);
}

/// Creates the pod, unless it exists already and is waiting. Checks that its containers run in
/// order.
fn runs_in_order(case: &Case, name: &str) {
    if case.pod(name).is_none() {
        case.create(&pod(name));
    }
    await_start(case, name);
    ends_in_order(case, name);
}

fn assert_goes_on(case: &Case, name: &str) {
    let pod = case.await_ready(name);
    let record = case.record();
    for container in [format!("{name}-app"), format!("{name}-proxy")] {
        assert_eq!(record.all(&container, "start").count(), 1, "{record}");
        assert!(!record.has(&container, "signal"), "{record}");
        assert_eq!(restarts(&pod, &container), 0, "{}", case.diagnosis());
    }
}
