//! The DaemonSet that installs usher to a cluster's nodes, with the image that its Dockerfile describes.
//!
//! There is no Docker and no registry: the image is put together by what the Dockerfile's last stage
//! says, on Debian 12 as `scripts/test-kubernetes` has made it, of the programs that cargo has built.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::{Cluster, NODE, PATIENCE};
use crate::harness::{Image, eventually, make_archive_of_layers, poll, run, shim_dir, tar};
use crate::images::WITNESS;
use crate::pod::{Case, Pod, restarts, witness};
use crate::settings::CONTAINERD_CONFIG;

const TOP: &str = env!("CARGO_MANIFEST_DIR");
const DAEMON_SET: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/daemonset.yaml"
);
const RUNTIME_CLASS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/runtimeclass.yaml"
);
/// As the DaemonSet names it.
const IMAGE: &str = "registry.example.com/usher:0.1.0";
const NEXT_IMAGE: &str = "registry.example.com/usher:next";
const SHIM: &str = "/usr/local/bin/containerd-shim-usher-v2";

pub fn a_node_gets_usher_and_is_left_as_it_was(case: &Case) {
    let before = files_of_node(case.cluster);
    // They wait for a node that has the runtime; it never does.
    case.cluster.must(&["apply", "--filename", RUNTIME_CLASS]);
    await_account(case);
    case.create(&others_pod());
    case.await_ready("others");
    case.create(&pod("early"));
    case.await_pod("early", "found to have no node", |pod| {
        condition(pod, "PodScheduled") == Some("False")
    });

    install(case);
    assert_eq!(label(case.cluster).as_deref(), Some("true"));
    let config = fs::read_to_string(case.cluster.path_on_machine(CONTAINERD_CONFIG));
    let config = config.expect("containerd's configuration");
    assert!(config.contains(r#"runtime_type = "io.containerd.usher.v2""#));
    assert_eq!(left_in_run(case), "");
    runs_in_order(case, "early");

    uninstall(case);
    assert_eq!(label(case.cluster), None);
    assert_eq!(files_of_node(case.cluster), before);
    assert_eq!(left_in_run(case), "");
    let record = case.record();
    assert!(!record.has("others", "signal"), "{record}");
    assert_eq!(restarts(&case.await_ready("others"), "others"), 0);
}

pub fn pods_go_on_when_it_is_applied_again_or_brings_other_programs(case: &Case) {
    install(case);
    await_account(case);
    start(case, "first");
    let service = containerd_service(case);
    let generation = |case: &Case| daemon_set(case)["metadata"]["generation"].clone();
    let applied = generation(case);
    case.cluster.must(&["apply", "--filename", DAEMON_SET]);
    assert_eq!(generation(case), applied);

    let program = || fs::read(case.cluster.path_on_machine(SHIM)).expect("the shim");
    let old = program();
    import(case.cluster, NEXT_IMAGE, b"next");
    let image = format!("install={NEXT_IMAGE}");
    system(case, &["set", "image", "daemonset/usher", &image]);
    await_rollout(case);
    let new = program();
    assert!(new.starts_with(&old) && new.ends_with(b"next"));
    // Its configuration is as it was.
    assert_eq!(containerd_service(case), service);
    assert_goes_on(case, "first");
    runs_in_order(case, "second");
    assert_goes_on(case, "first");
    ends_in_order(case, "first");
    uninstall(case);
}

pub fn it_stays_while_pods_need_it(case: &Case) {
    install(case);
    await_account(case);
    start(case, "needs-it");
    ask_for_uninstall(case);
    let said = "pods run under usher";
    let refused = poll(PATIENCE, || {
        installer_says(case).contains(said).then_some(())
    });
    assert!(refused.is_some(), "{}", installer_says(case));
    // Nothing comes that would need it.
    assert_eq!(label(case.cluster), None);
    assert!(case.cluster.path_on_machine(SHIM).exists());
    assert_goes_on(case, "needs-it");
    ends_in_order(case, "needs-it");
    await_rollout(case);
    assert!(!case.cluster.path_on_machine(SHIM).exists());
    remove_objects(case);
}

// === the DaemonSet ===

/// As the heads of the files tell people to do it.
fn install(case: &Case) {
    assert_first_process_is_the_nodes(case);
    import(case.cluster, IMAGE, b"");
    let words = ["--filename", RUNTIME_CLASS, "--filename", DAEMON_SET];
    case.cluster.must(&[&["apply"], &words[..]].concat());
    await_rollout(case);
}

fn uninstall(case: &Case) {
    ask_for_uninstall(case);
    await_rollout(case);
    remove_objects(case);
}

fn ask_for_uninstall(case: &Case) {
    system(case, &["set", "env", "daemonset/usher", "ACTION=uninstall"]);
}

fn remove_objects(case: &Case) {
    let words = ["--filename", DAEMON_SET, "--filename", RUNTIME_CLASS];
    case.cluster.must(&[&["delete"], &words[..]].concat());
    let gone = || system(case, &["get", "pods", "--output", "name"]).is_empty();
    eventually("the installer's pod is gone", PATIENCE, gone);
}

/// `kubectl` where the DaemonSet lives.
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

/// What its pods are and have written, those before the last start too.
fn installer_says(case: &Case) -> String {
    let say = |words: &[&str]| {
        let finished = case
            .cluster
            .kubectl(&[&["--namespace", "kube-system"], words].concat());
        finished.out() + &finished.err()
    };
    let log = ["logs", "--selector=app=usher", "--tail=-1"];
    let previous = [&log[..], &["--previous"]].concat();
    [say(&["describe", "pods"]), say(&log), say(&previous)].join("\n---\n")
}

/// Before anything enters the namespaces of process 1: is that the node, and not this machine?
#[track_caller]
fn assert_first_process_is_the_nodes(case: &Case) {
    await_account(case);
    let script = "cat /proc/1/root/run/node >/shared/first-process; sleep 600";
    let container = json!({
        "name": "look", "image": WITNESS, "command": ["/bin/sh", "-c", script],
        "securityContext": { "privileged": true },
        "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }],
    });
    let look = unmanaged(Pod::new("look").container(container).spec("hostPID", true));
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

// === its image ===

/// Puts the image into containerd's store; its shim has some more bytes at its end.
fn import(cluster: &Cluster, reference: &str, more: &[u8]) {
    let dir = tempfile::tempdir_in(cluster.path("tmp")).expect("a directory");
    let root = dir.path().join("root");
    let dockerfile = format!("{TOP}/scripts/kubernetes/Dockerfile");
    let dockerfile = fs::read_to_string(dockerfile).expect("the Dockerfile");
    let (_, last_stage) = dockerfile.rsplit_once("\nFROM ").expect("a last stage");
    let mut entrypoint = Value::Null;
    for line in last_stage.lines() {
        match line.split_once(' ') {
            Some(("COPY", words)) => copy(&root, words),
            Some(("ENTRYPOINT", words)) => {
                entrypoint = serde_json::from_str(words).expect("a list of words");
            }
            _ => {}
        }
    }
    let shim = root.join("usher/containerd-shim-usher-v2");
    let bytes = fs::read(&shim).expect("the shim is in the image");
    fs::write(&shim, [&bytes, more].concat()).expect("the shim");
    let files = dir.path().join("files.tar");
    tar(&files, &root, &["."]);
    let image = Image {
        reference,
        config: json!({ "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Entrypoint": entrypoint }),
    };
    let layers = [&*cluster.programs.installer_base, &*files];
    let archive = make_archive_of_layers(dir.path(), &layers, &[image]);
    let archive = archive.display().to_string();
    let words = cluster.ctr(&["images", "import", &archive]);
    let finished = run(cluster.on_machine(&words), PATIENCE);
    assert!(finished.ok(), "ctr images import: {}", finished.err());
}

/// The Dockerfile's `COPY`, which knows two sources: this repository, and what was built of it.
fn copy(root: &Path, words: &str) {
    const BUILT: &str = "/source/target/release/";
    let mut words: Vec<&str> = words.split_whitespace().collect();
    let directory = words.pop().expect("where to").trim_start_matches('/');
    assert!(
        directory.ends_with('/'),
        "{directory}: expected a directory"
    );
    let from_build = words.first() == Some(&"--from=build");
    let directory = root.join(directory);
    fs::create_dir_all(&directory).expect("a directory of the image");
    for word in words.iter().skip(usize::from(from_build)) {
        let name = Path::new(word).file_name().expect("a file's name");
        let to = directory.join(name);
        if !from_build {
            fs::copy(Path::new(TOP).join(word), &to).expect(word);
            continue;
        }
        let program = word.strip_prefix(BUILT).expect(BUILT);
        // As a release has them: without what debuggers read.
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(&to).arg(shim_dir().join(program));
        let finished = run(strip, PATIENCE);
        assert!(finished.ok(), "strip {program}: {}", finished.err());
    }
}

// === the node ===

/// All that is the node's own, and not the machine's, in `/etc` and `/usr/local`.
fn files_of_node(cluster: &Cluster) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for top in ["/etc", "/usr/local"] {
        collect(&cluster.path_on_machine(top), &mut files);
    }
    files
}

fn collect(path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let kind = fs::symlink_metadata(path).expect("a file of the node");
    let content = if kind.is_dir() {
        for entry in fs::read_dir(path).expect("a directory of the node") {
            collect(&entry.expect("an entry").path(), files);
        }
        Vec::new()
    } else if kind.is_symlink() {
        let target = fs::read_link(path).expect("a link");
        target.into_os_string().into_encoded_bytes()
    } else if kind.is_file() {
        fs::read(path).expect("a file of the node")
    } else {
        // What overlayfs takes for: not there any more.
        format!("{:?}", kind.file_type()).into_bytes()
    };
    files.insert(path.to_owned(), content);
}

/// Files of the installer that are still on the node.
fn left_in_run(case: &Case) -> String {
    let words = ["find", "/run", "-maxdepth", "1", "-name", "usher*"];
    run(case.cluster.on_machine(&words), PATIENCE).out()
}

/// The process that is containerd now.
fn containerd_service(case: &Case) -> String {
    let words = ["cat", "/run/containerd.service"];
    run(case.cluster.on_machine(&words), PATIENCE).out()
}

fn label(cluster: &Cluster) -> Option<String> {
    let node = cluster.get("node", NODE).expect("the node");
    let label = &node["metadata"]["labels"]["usher/installed"];
    label.as_str().map(str::to_owned)
}

// === pods ===

/// One that uses no token, which kubelet would wait for.
fn unmanaged(pod: Pod) -> Pod {
    pod.spec("automountServiceAccountToken", false)
        .spec("runtimeClassName", Value::Null)
}

fn others_pod() -> Pod {
    unmanaged(Pod::new("others").container(witness("others", &[])))
}

/// An app that comes before its sidecar in the list; their records have the pod's name in theirs.
fn pod(name: &str) -> Pod {
    let (app, proxy) = (format!("{name}-app"), format!("{name}-proxy"));
    Pod::new(name)
        .annotation("usher/sidecars", &*proxy)
        .probed(&proxy)
        .container(witness(&app, &["--stop-after", "500ms"]))
        .container(witness(&proxy, &[]))
        .spec("automountServiceAccountToken", false)
}

/// The service account that every pod of a namespace has is made after the namespace.
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

/// Creates it unless it waits already.
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

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a str> {
    let all = pod["status"]["conditions"].as_array()?;
    let found = all.iter().find(|condition| condition["type"] == kind)?;
    found["status"].as_str()
}
