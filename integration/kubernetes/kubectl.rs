//! `kubectl usher`, called by the real kubectl. It queries the node's `usher` through a real API
//! server.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cluster::{Cluster, NODE, PATIENCE};
use crate::harness::{Finished, poll, run, shim_dir};
use crate::installer::{REPOSITORY, apply_with_image};
use crate::own_images::{find, import};
use crate::pod::{Case, Pod, witness};

const MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/scripts/kubernetes/kubectl.yaml"
);

/// The name of a second Node object. No machine exists for this node.
const OTHER: &str = "other";

/// The `kubectl usher` plugin, and the pods by which it queries nodes. Dropping the value removes
/// the pods.
struct View<'a> {
    cluster: &'a Cluster,
}

impl<'a> View<'a> {
    fn install(cluster: &'a Cluster) -> Self {
        let plugin = shim_dir().join("kubectl-usher").display().to_string();
        let link = ["ln", "-sf", &plugin, "/usr/local/bin/kubectl-usher"];
        assert!(run(cluster.on_machine(&link), PATIENCE).ok(), "ln");
        let image = import(cluster, "usher", REPOSITORY, |_| {});
        apply_with_image(cluster, MANIFEST, &image);
        let view = Self { cluster };
        let ready = || {
            let pod = view.pod(NODE)?;
            let status = &pod["status"]["containerStatuses"][0];
            (status["ready"] == true).then_some(())
        };
        let describe = || view.must(&["describe", "pods"]);
        assert!(poll(PATIENCE, ready).is_some(), "{}", describe());
        view
    }

    /// Runs `kubectl` in the namespace of the pods that query nodes.
    #[track_caller]
    fn must(&self, words: &[&str]) -> String {
        self.cluster
            .must(&[&["--namespace", "usher"], words].concat())
    }

    /// The pod that queries this node.
    fn pod(&self, node: &str) -> Option<Value> {
        let pods = self.must(&["get", "pods", "--output=json"]);
        let pods: Value = serde_json::from_str(&pods).expect("a list");
        let pods = pods["items"].as_array()?.clone();
        let is_there = |pod: &Value| {
            let wanted = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                /nodeSelectorTerms/0/matchFields/0/values/0";
            pod.pointer(wanted).is_some_and(|name| name == node)
        };
        pods.into_iter().find(is_there)
    }

    /// Runs a script on the node, in the container in which `kubectl usher` executes users'
    /// commands.
    fn script(&self, script: &str) -> Finished {
        let pod = self.pod(NODE).expect("the pod on the node");
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let words = ["--namespace", "usher", "exec", name, "--", "sh", "-c"];
        self.cluster.kubectl(&[&words[..], &[script]].concat())
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let words = ["delete", "--ignore-not-found", "--filename", MANIFEST];
        self.cluster.kubectl(&words);
    }
}

/// Runs `kubectl usher`. Runs it again if a busy node did not answer within ten seconds.
fn usher(cluster: &Cluster, words: &[&str]) -> Finished {
    let ask = || ask_once(cluster, words);
    let in_time = || Some(ask()).filter(|finished| !finished.err().contains(LATE));
    poll(PATIENCE, in_time).unwrap_or_else(ask)
}

fn ask_once(cluster: &Cluster, words: &[&str]) -> Finished {
    cluster.kubectl(&[&["usher"], words].concat())
}

/// The message about a node that did not answer.
const LATE: &str = "does not answer: no answer within 10s";

#[track_caller]
fn says(cluster: &Cluster, words: &[&str]) -> String {
    let finished = usher(cluster, words);
    let said = format!("kubectl usher {words:?}: {}", finished.err());
    assert!(finished.ok(), "{said}");
    // `kubectl usher` names on standard error each node that did not answer. There must be none.
    assert_eq!(finished.err(), "", "{said}");
    finished.out()
}

/// The words of the first table row that begins with `begin`.
fn row<'a>(table: &'a str, begin: &[&str]) -> Option<Vec<&'a str>> {
    let mut rows = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|words| words.starts_with(begin))
}

/// A pod that lists its app before its sidecar.
fn pod(name: &str) -> Pod {
    Pod::new(name)
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .container(witness("app", &["--stop-after", "500ms"]))
        .container(witness("proxy", &[]))
}

fn start(case: &Case, name: &str) {
    case.create(&pod(name));
    case.await_event("proxy", "start");
}

fn go_on(case: &Case, name: &str) {
    case.touch("ready-proxy");
    case.await_ready(name);
}

pub fn pods_are_listed_on_all_nodes(case: &Case) {
    let cluster = case.cluster;
    let _view = View::install(cluster);
    let here = &*case.namespace;
    let there = Case::new(cluster, "kubectl-there");
    start(case, "shop");
    start(&there, "bank");
    go_on(&there, "bank");

    // While the app waits, the output names the sidecar for which the app waits.
    let waits = poll(PATIENCE, || {
        let text = usher(cluster, &["inspect", "shop", "-n", here]).out();
        text.contains("waiting for sidecar proxy").then_some(text)
    });
    let waits = waits.unwrap_or_else(|| panic!("{}", case.diagnosis()));
    assert!(waits.starts_with("shop waits: Sidecar:0/1 (app"), "{waits}");
    go_on(case, "shop");

    // The API may report a pod as ready while its app is held (its program does not run yet). So
    // wait until both pods run.
    let pods = [(here, "shop"), (&*there.namespace, "bank")];
    let list = || says(cluster, &["ps", "-A"]);
    let all_run = |all: &String| {
        pods.iter().all(|(namespace, name)| {
            row(all, &[namespace, name])
                .is_some_and(|row| (row[2], row[3], row[6]) == ("2/2", "Running", NODE))
        })
    };
    let all = poll(PATIENCE, || Some(list()).filter(all_run));
    let all = all.unwrap_or_else(|| panic!("{}", list()));
    assert_eq!(
        row(&all, &["NAMESPACE"]).expect("a heading"),
        [
            "NAMESPACE",
            "NAME",
            "READY",
            "STATUS",
            "RESTARTS",
            "AGE",
            "NODE"
        ]
    );
    let one = says(cluster, &["ps", "-n", here]);
    assert!(row(&one, &[here, "shop"]).is_some(), "{one}");
    assert_eq!(row(&one, &[&there.namespace]), None, "{one}");
    let none = usher(cluster, &["ps", "-n", "kube-public"]);
    assert!(none.ok() && none.out().is_empty(), "{none:?}");
    assert_eq!(
        none.err(),
        "no pods run under usher in namespace kube-public\n"
    );

    // The output is that of `usher` on the node: it contains values that only the node's kernel
    // knows.
    let text = says(cluster, &["inspect", &format!("{here}/shop")]);
    assert!(
        text.starts_with("shop waits for nothing: Running"),
        "{text}"
    );
    let words = row(&text, &["Node"]).expect("a node");
    assert_eq!(words, ["Node", NODE], "{text}");
    let container = row(&text, &["app", "app", "list"]).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(container[3], "running", "{text}");
    // The OOM score that kubelet gives to a pod without requests.
    assert_eq!(container.last(), Some(&"1000"), "{text}");
    assert!(row(&text, &["(pod)"]).is_some(), "{text}");
    let facts = says(cluster, &["inspect", "-n", here, "shop", "-o", "json"]);
    let facts: Value = serde_json::from_str(&facts).expect("JSON");
    assert_eq!(
        (&facts["node"], &facts["phase"]),
        (&json!(NODE), &json!("Running"))
    );
    // A pod can be named by its id, from any namespace.
    let id = facts["id"].as_str().expect("an id");
    let by_id = says(cluster, &["inspect", "-n", "default", id, "-o", "json"]);
    assert!(by_id.contains(id), "{by_id}");
    let none = usher(cluster, &["inspect", "-n", here, "bank"]);
    assert!(!none.ok() && none.out().is_empty(), "{none:?}");
    let expected = format!("no pod {here}/bank runs under usher");
    assert!(none.err().contains(&expected), "{none:?}");

    let explained = says(cluster, &["explain", "-n", here, "shop"]);
    assert!(explained.contains("/shop  in the cluster"), "{explained}");
    assert!(
        row(&explained, &["1", "proxy", "sidecar"]).is_some(),
        "{explained}"
    );

    // When the pod has ended, `kubectl usher` still lists it with `--all`, and draws its timeline.
    case.delete("shop", &[]);
    case.await_gone("shop");
    let ended = poll(PATIENCE, || {
        let ended = says(cluster, &["ps", "-n", here, "--all"]);
        row(&ended, &[here, "shop"]).filter(|row| row[3] == "Terminated")?;
        Some(())
    });
    assert!(ended.is_some(), "{}", says(cluster, &["ps", "-A", "--all"]));
    let listed = usher(cluster, &["ps", "-n", here]).out();
    assert_eq!(row(&listed, &[here, "shop"]), None, "{listed}");
    let drawn = says(cluster, &["timeline", "-n", here, "shop", "--width", "100"]);
    for name in ["pod", "app", "proxy"] {
        assert!(row(&drawn, &[name]).is_some(), "{name}: {drawn}");
    }
    let facts = says(cluster, &["timeline", "-n", here, "shop", "-o", "json"]);
    assert_ended_in_order(&serde_json::from_str(&facts).expect("JSON"));
    let file = cluster.path("shop.svg").display().to_string();
    assert_eq!(
        says(cluster, &["timeline", "-n", here, "shop", "--svg", &file]),
        ""
    );
    let picture = fs::read_to_string(&file).expect("the picture");
    for part in [
        "<svg",
        "app: running",
        "app: stopping",
        "proxy: stopping",
        "/shop",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
}

/// Checks that the app's program started after the proxy was ready, and that the app exited before
/// the proxy got its signal.
fn assert_ended_in_order(pod: &Value) {
    let events = pod["events"].as_array().expect("events");
    let at = |name: &str, what: &str| {
        let is_it = |event: &&Value| event["container"] == name && event["what"] == what;
        let event = events.iter().find(is_it);
        let event = event.unwrap_or_else(|| panic!("{name} {what}: {pod:#}"));
        event["at"].as_str().expect("a time").to_owned()
    };
    assert!(at("proxy", "ready") <= at("app", "executed"), "{pod:#}");
    assert!(at("app", "exited") <= at("proxy", "signalled"), "{pod:#}");
}

/// A token for an account in the case's namespace. kubectl has no command for this before 1.24.
fn token_of(case: &Case, account: &str) -> String {
    let request = case.cluster.path(&format!("etc/{account}-token.json"));
    let text =
        json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    fs::write(&request, text.to_string()).expect("a request");
    let namespace = &case.namespace;
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let url = format!("{accounts}/{account}/token");
    let request = request.display().to_string();
    let answer = case.kubectl(&["create", "--raw", &url, "--filename", &request]);
    let answer: Value = serde_json::from_str(&answer).expect("a TokenRequest");
    answer["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned()
}

/// A kubeconfig for an account of the case's namespace.
fn account(case: &Case, name: &str) -> PathBuf {
    case.kubectl(&["create", "serviceaccount", name]);
    let token = token_of(case, name);
    let config = case.cluster.path(&format!("etc/{name}.conf"));
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "c", "cluster": {
            "server": "https://127.0.0.1", "insecure-skip-tls-verify": true,
        }}],
        "users": [{ "name": "u", "user": { "token": token } }],
        "contexts": [
            { "name": "x", "context": { "cluster": "c", "user": "u" } },
            { "name": "theirs", "context": {
                "cluster": "c", "user": "u", "namespace": case.namespace,
            } },
        ],
        "current-context": "x",
    });
    fs::write(&config, text.to_string()).expect("a setting");
    config
}

pub fn the_role_suffices_and_without_it_the_error_names_the_missing_permission(case: &Case) {
    let view = View::install(case.cluster);
    start(case, "shop");
    let config = account(case, "developer").display().to_string();
    let ask = |words: &[&str]| {
        let words = [words, &["--kubeconfig", &config, "--context", "theirs"]].concat();
        usher(case.cluster, &words)
    };
    let refuses = |words: &[&str], right: &str| {
        let refused = ask(words);
        let said = refused.err();
        assert!(!refused.ok() && refused.out().is_empty(), "{refused:?}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(right), "{said}");
        assert!(said.contains("scripts/kubernetes/kubectl.yaml"), "{said}");
        assert!(said.contains(":developer\" cannot"), "{said}");
    };
    let list = "the right to list the pods of namespace usher is missing";
    refuses(&["ps"], list);
    refuses(&["timeline", "shop"], list);

    // The account gets one of the two permissions that the command needs.
    let user = format!("{}:developer", case.namespace);
    let rules = ["create", "role", "lists", "--verb=list", "--resource=pods"];
    view.must(&rules);
    let bind = |role: &str| {
        let (role, account) = (format!("--role={role}"), format!("--serviceaccount={user}"));
        let name = role.replace("--role=", "");
        view.must(&["create", "rolebinding", &name, &role, &account]);
    };
    bind("lists");
    let execute = "the right to execute commands in the pods of namespace usher is missing";
    refuses(&["ps"], execute);
    refuses(&["inspect", "shop"], execute);

    bind("usher-view");
    let listed = ask(&["ps"]);
    assert!(listed.ok(), "{listed:?}");
    let row = row(&listed.out(), &[&case.namespace, "shop"]).map(|row| row[3].to_owned());
    assert_eq!(row.as_deref(), Some("Sidecar:0/1"), "{listed:?}");
    let inspected = ask(&["inspect", "shop"]);
    assert!(inspected.ok(), "{inspected:?}");
    assert!(inspected.out().starts_with("shop waits"), "{inspected:?}");
    // The role does not permit reading the pod itself.
    let explained = ask(&["explain", "shop"]);
    let said = explained.err();
    let missing = format!(
        "the right to get pods of namespace {} is missing",
        case.namespace
    );
    assert!(!explained.ok() && said.contains(&missing), "{said}");
}

pub fn a_silent_node_does_not_hide_the_others(case: &Case) {
    let cluster = case.cluster;
    let view = View::install(cluster);
    start(case, "shop");
    // No kubelet runs for this node, so no pod on this node ever starts.
    let labels = json!({ "kubernetes.io/os": "linux", "usher/installed": "true" });
    let metadata = json!({ "name": OTHER, "labels": labels });
    cluster.apply(&[json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })]);
    let waits = poll(PATIENCE, || view.pod(OTHER));
    assert!(waits.is_some(), "{}", view.must(&["describe", "daemonset"]));

    let silent = format!("node {OTHER} does not answer: its pod usher-view-");
    for words in [&["ps", "-A"][..], &["ps", "-A", "-o", "json"]] {
        let listed = usher(cluster, words);
        assert!(!listed.ok(), "{listed:?}");
        assert!(listed.out().contains("shop"), "{listed:?}");
        assert!(listed.err().contains(&silent), "{listed:?}");
        assert_eq!(listed.err().lines().count(), 1, "{listed:?}");
    }
    // `kubectl usher inspect` knows on which node the pod is, so it queries no other node.
    let words = ["inspect", "--namespace", &case.namespace, "shop"];
    assert!(says(cluster, &words).starts_with("shop waits"));
    let elsewhere = usher(
        cluster,
        &["inspect", "--namespace", &case.namespace, "none"],
    );
    let said = elsewhere.err();
    assert!(
        !elsewhere.ok() && said.contains("one does not answer"),
        "{said}"
    );
    cluster.must(&["delete", "node", OTHER]);

    // The node's kubelet is stopped with SIGSTOP. Connections to it succeed, but no answer comes.
    let paused = cluster.pause_part("kubelet");
    let listed = ask_once(cluster, &["ps", "-A"]);
    drop(paused);
    assert!(!listed.ok() && listed.out().is_empty(), "{listed:?}");
    let silent = format!("node {NODE} {LATE}");
    assert!(listed.err().contains(&silent), "{listed:?}");
    cluster.await_node();
}

pub fn commands_executed_on_a_node_are_read_only(case: &Case) {
    let view = View::install(case.cluster);
    start(case, "shop");
    go_on(case, "shop");
    let ok = |script: &str| {
        let finished = view.script(script);
        assert!(finished.ok(), "{script}: {}", finished.err());
        finished.out()
    };
    for process in ["1", "self"] {
        let status = ok(&format!("cat /proc/{process}/status"));
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).unwrap_or_else(|| panic!("{status}"))
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{set} {status}");
        }
        assert_eq!(field("Uid:"), "0\t0\t0\t0");
        assert_eq!(field("Gid:"), "65534\t65534\t65534\t65534");
        assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1", "2"));
    }
    for kind in ["mnt", "net", "pid", "uts", "ipc"] {
        let link = format!("/proc/self/ns/{kind}");
        let of_node = run(case.cluster.on_node(&["readlink", &link]), PATIENCE).out();
        assert!(of_node.starts_with(kind), "{of_node}");
        assert_ne!(ok(&format!("readlink {link}")), of_node);
    }
    // The container sees only two directories of the node: the shims' control sockets, and the
    // history of ended pods. It can write no file.
    assert_eq!(ok("ls /run/containerd"), "usher\n");
    let writable = "$file != /proc/* && $file != /dev && $file != /dev/* && ! -L $file && ! -S $file && -w $file";
    // The container can write to `/etc/hosts`, which belongs to the pod and not to the node. With
    // cgroup v1 and runc 1.5 or later, it can also write to its own tmpfs on which cgroups are
    // mounted.
    let found = ok(&find("", writable));
    let elsewhere = found.lines().filter(|path| *path != "/sys/fs/cgroup");
    assert_eq!(elsewhere.collect::<Vec<_>>(), ["/etc/hosts"], "{found}");
    assert_eq!(ok(&find("/dev", "-b $file")), "");
    ok("test ! -e /run/secrets && test ! -e /node");

    // A client in this container can read pods' states, but its commands are refused.
    assert!(ok("/usher/usher ps").contains("shop"));
    for command in ["stop shop", "stop --all", "release shop app"] {
        let refused = view.script(&format!("/usher/usher {command}"));
        let said = refused.err();
        assert!(
            !refused.ok() && said.contains("may only look"),
            "{command}: {said}"
        );
    }
    let record = case.record();
    assert!(
        !record.has("app", "signal") && !record.has("proxy", "signal"),
        "{record}"
    );
    assert_eq!(case.await_ready("shop")["status"]["phase"], "Running");
}
