//! A container that waits because an annotation is missing says so in its log: in a file, on a
//! terminal, and through a logging program. `usher inspect` says so too.

use std::fs;
use std::process::Command;

use containerd_shim_protos::api::CreateTaskRequest;
use serde_json::{Value, json};

use crate::harness::{
    BareShim, ContainerSpec, Containerd, PATIENCE, eventually, poll, run, runtime_under_test,
    shim_dir, write_program,
};
use crate::pod::Pod;

/// A pod without a list of apps, whose sidecar runs but never becomes ready.
const NEVER_READY: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("usher/start-mode", "Hold"),
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":9},"periodMilliseconds":200,"failureThreshold":10000}"#,
    ),
]);

/// Runs a container with its output in a file. Returns a function that reads the file.
fn logged(host: &Containerd, spec: ContainerSpec) -> impl Fn() -> String {
    let log = host.dir().join(format!("{}.log", spec.id));
    let uri = format!("file://{}", log.display());
    host.run(&spec.option(&["--log-uri", &uri]));
    move || fs::read_to_string(&log).unwrap_or_default()
}

/// The text and the JSON that `usher inspect` prints, once the text contains `what`.
#[track_caller]
fn inspect(host: &Containerd, what: &str) -> (String, Value) {
    let ask = |more: &[&str]| {
        let mut command = Command::new(shim_dir().join("usher"));
        command.args([&["inspect", "pod1"], more].concat());
        host.enter(&mut command);
        run(command, PATIENCE).out()
    };
    let said = poll(PATIENCE, || {
        Some(ask(&[])).filter(|text| text.contains(what))
    });
    let text = said.unwrap_or_else(|| panic!("{what:?} is not in {}", ask(&[])));
    let json = serde_json::from_str(&ask(&["-o", "json"]));
    (text, json.expect("JSON"))
}

#[test]
fn an_unlisted_init_container_names_the_missing_annotation() {
    let host = Containerd::start();
    let pod = Pod(&[("usher/sidecars", "proxy"), ("usher/native-init", "fetch")]);
    // kubelet creates the next container only when this one has exited.
    let log = logged(&host, pod.witness("migrate", &[]));
    let advice = "if migrate is one of the pod's own initContainers, the annotation \
        usher/native-init: fetch, migrate lets it run at once";
    let (text, json) = inspect(&host, advice);
    assert!(text.contains("app migrate is held for"), "{text}");
    let remedy = json!({
        "for": "native-init", "container": "migrate",
        "annotation": "usher/native-init", "value": "fetch, migrate",
    });
    assert_eq!(json["containers"][0]["wait"]["remedies"], json!([remedy]));
    assert_eq!(log(), "", "the log has the advice too early");
    eventually("the log of the container has the advice", PATIENCE, || {
        log().contains(advice)
    });
    let held = "usher: migrate has been held for 5";
    let waits = "s: it waits for sidecar proxy (never created); ";
    assert!(
        log().starts_with(held) && log().contains(waits),
        "{}",
        log()
    );
    assert!(!host.record().has("migrate", "start"));
    // In the second pod, `usher/native-init` lists the container, so it runs at once.
    let other = ContainerSpec::new("listed").in_pod("pod2", "migrate");
    let other = other.annotations(&[
        ("usher/sidecars", "proxy"),
        ("usher/native-init", "migrate"),
    ]);
    host.run(&other.witness(&[]));
    host.await_event("migrate", "start");
}

#[test]
fn a_debug_container_added_to_a_waiting_pod_names_the_annotation_that_releases_it() {
    let host = Containerd::start();
    host.run(&NEVER_READY.witness("proxy", &[]));
    let app = logged(&host, NEVER_READY.witness("web", &[]));
    let debugger = logged(&host, NEVER_READY.witness("debugger", &[]));
    eventually("the debugger says so", PATIENCE, || {
        debugger().contains("debugger has been held for")
    });
    let advice = "; if debugger was added to the pod (kubectl debug), the annotation usher/apps: web \
        lets it run at once\n";
    assert!(debugger().ends_with(advice), "{}", debugger());
    let (text, _) = inspect(&host, advice.trim_start_matches("; ").trim_end());
    assert!(!text.contains("if web was added"), "{text}");
    // The app waits for its sidecar, and the log advises no annotation.
    let waits = "it waits for sidecar proxy (not started yet)\n";
    assert!(app().ends_with(waits), "{}", app());
}

#[test]
fn a_start_that_blocks_says_so_in_the_containers_log() {
    let host = Containerd::start();
    let blocked = |name: &str| {
        let spec = NEVER_READY.witness(name, &[]);
        let spec = spec.annotation("usher/start-mode", "Block");
        spec.annotation("usher/startup-timeout", "8s")
    };
    host.run(&blocked("proxy"));
    let log = host.dir().join("web.log");
    let uri = format!("file://{}", log.display());
    let failed = host.try_run(&blocked("web").option(&["--log-uri", &uri]));
    assert!(!failed.ok());
    let said = fs::read_to_string(&log).expect("a log");
    let expected = "usher: web has not been started for 5";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_job_that_waits_for_further_apps_says_so() {
    let host = Containerd::start();
    let job = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/restart-policy", "Never"),
    ]);
    let log = logged(&host, job.witness("proxy", &[]));
    host.run(&job.witness("work", &["--run-for", "100ms"]));
    assert_eq!(host.wait_exit("work"), 0);
    let advice = "the annotation usher/apps: work completes it at once";
    let (text, json) = inspect(&host, advice);
    assert!(
        text.starts_with("pod1 waits for apps that may still be created"),
        "{text}"
    );
    assert_eq!(json["late"]["remedy"]["value"], "work", "{json:#}");
    eventually("the sidecar's log says so", PATIENCE, || {
        log().contains("usher: all apps have ended") && log().contains(advice)
    });
}

/// A shim with a container that is held for a sidecar that never starts. The container's output
/// goes to `uri`.
fn held<'a>(host: &'a Containerd, terminal: bool, uri: &str) -> BareShim<'a> {
    let runtime = runtime_under_test();
    let shim = BareShim::start(host, &runtime, "a", &["/bin/sleep", "1000"], |config| {
        config["process"]["terminal"] = json!(terminal);
        config["annotations"]["usher/sidecars"] = json!("proxy");
    });
    let request = CreateTaskRequest {
        terminal,
        stdout: uri.to_owned(),
        stderr: if terminal {
            String::new()
        } else {
            uri.to_owned()
        },
        ..shim.create_request()
    };
    let api = shim.api();
    api.create(&request).expect("Create");
    api.start("a", "").expect("Start");
    shim
}

#[test]
fn a_held_container_says_so_on_its_terminal() {
    let host = Containerd::start();
    let log = host.dir().join("terminal");
    let _shim = held(&host, true, &format!("file://{}", log.display()));
    let said = || fs::read_to_string(&log).unwrap_or_default();
    eventually("the output has the advice", PATIENCE, || {
        said().contains("with the same value")
    });
    assert!(said().ends_with("with the same value\r\n"), "{:?}", said());
}

#[test]
fn a_held_container_says_so_to_its_logging_program() {
    for terminal in [false, true] {
        let host = Containerd::start();
        let (program, log) = (host.dir().join("logger"), host.dir().join("said"));
        let (own, other) = if terminal { (3, 4) } else { (4, 3) };
        write_program(
            &program,
            &format!(
                "#!/bin/busybox sh\nexec 5>&-\n/bin/busybox cat <&{other} >/dev/null &\n\
                 exec /bin/busybox cat <&{own} >{}\n",
                log.display()
            ),
        );
        let shim = held(&host, terminal, &format!("binary://{}", program.display()));
        let said = || fs::read_to_string(&log).unwrap_or_default();
        eventually("the output has the advice", PATIENCE, || {
            said().contains("with the same value")
        });
        let end = if terminal { "\r\n" } else { "\n" };
        assert!(
            said().ends_with(&format!("with the same value{end}")),
            "{:?}",
            said()
        );
        // The logging program exits when its container does.
        let api = shim.api();
        api.kill("a", "", 9, false).expect("Kill");
        api.wait("a", "").expect("Wait");
        api.delete("a", "").expect("Delete");
    }
}
