//! The start of a pod, until the pod is ready. The cases come from the test plans of KEP-753 and of
//! the draft KEP.

use crate::cluster::PATIENCE;
use crate::harness::poll;
use crate::pod::{Case, Pod, exit_code, ready_probe, restarts, script, status_of, with, witness};

/// Two sidecars that take a while to become ready, and an app.
fn pod() -> Pod {
    Pod::new("pod")
        .annotation("usher/sidecars", "logs, proxy")
        .annotation("usher/apps", "app")
        .probed("logs")
        .probed("proxy")
}

fn logs() -> serde_json::Value {
    witness("logs", &["--ready-after", "1s"])
}

fn proxy() -> serde_json::Value {
    witness("proxy", &["--ready-after", "2s"])
}

fn assert_in_order(case: &Case) {
    let pod = case.await_ready("pod");
    let record = case.await_event("app", "start");
    record.assert_before(("logs", "ready"), ("app", "start"));
    record.assert_before(("proxy", "ready"), ("app", "start"));
    for name in ["logs", "proxy", "app"] {
        assert_eq!(restarts(&pod, name), 0, "{}", case.diagnosis());
    }
}

/// KEP draft: "Pod with sidecars starts sidecars containers before non-sidecars".
pub fn sidecars_start_before_apps(case: &Case) {
    case.create(
        &pod()
            .container(logs())
            .container(proxy())
            .container(witness("app", &[])),
    );
    assert_in_order(case);
}

/// The app waits for its sidecars, although kubelet creates the sidecars only after the answer to
/// the app's Start.
pub fn an_app_listed_before_its_sidecar_waits(case: &Case) {
    case.create(
        &pod()
            .container(witness("app", &[]))
            .container(logs())
            .container(proxy()),
    );
    assert_in_order(case);
}

/// KEP draft: "Pod with init containers and sidecars starts sidecars after init phase, before
/// non-sidecars".
pub fn sidecars_start_after_the_init_phase(case: &Case) {
    let init = |name| witness(name, &["--run-for", "1s"]);
    let pod = pod()
        .annotation("usher/init", "first, second")
        .container(init("first"));
    let pod = pod
        .container(init("second"))
        .container(logs())
        .container(proxy());
    case.create(&pod.container(witness("app", &[])));
    assert_in_order(case);
    let record = case.record();
    record.assert_before(("first", "exit"), ("second", "start"));
    record.assert_before(("second", "exit"), ("logs", "start"));
    record.assert_before(("second", "exit"), ("proxy", "start"));
}

/// KEP-753: "Init containers should start after the previous restartable init container has
/// started", "Regular containers should start in parallel after all regular init containers have
/// completed and all restartable init containers have started".
pub fn sidecars_start_among_the_init_containers(case: &Case) {
    let init = |name| witness(name, &["--run-for", "1s"]);
    let pod = pod()
        .annotation("usher/init", "first, second")
        .annotation("usher/startup-order", "logs, first, proxy, second");
    let pod = pod
        .container(logs())
        .container(init("first"))
        .container(proxy());
    case.create(&pod.container(init("second")).container(witness("app", &[])));
    assert_in_order(case);
    let record = case.record();
    record.assert_before(("logs", "ready"), ("first", "start"));
    record.assert_before(("first", "exit"), ("proxy", "start"));
    record.assert_before(("proxy", "ready"), ("second", "start"));
    record.assert_before(("second", "exit"), ("app", "start"));
}

/// KEP-753, "Pod lifecycle scenarios without sidecar containers": "Init containers should start
/// after the previous init container has completed", "Regular containers should start in parallel
/// after all init containers have completed".
fn assert_apps_start_together(case: &Case, pod: Pod) {
    // Each app continues only when both apps run.
    let text = |own: &str, other: &str| {
        format!(
            "witness mark {own} start; touch /shared/{own}
            until test -e /shared/{other}; do sleep 0.1; done
            witness mark {own} together; exec sleep 1000"
        )
    };
    let pod = pod.container(script("one", &text("one", "two")));
    let pod = pod.container(script("two", &text("two", "one")));
    case.create(&pod.spec("terminationGracePeriodSeconds", 2));
    case.await_event("one", "together");
    let record = case.await_event("two", "together");
    record.assert_before(("first", "exit"), ("second", "start"));
    record.assert_before(("second", "exit"), ("one", "start"));
    record.assert_before(("second", "exit"), ("two", "start"));
    case.await_ready("pod");
}

pub fn apps_start_together_after_the_init_containers(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/init", "first, second")
        .annotation("usher/apps", "one, two");
    let init = |name| witness(name, &["--run-for", "1s"]);
    assert_apps_start_together(case, pod.container(init("first")).container(init("second")));
}

/// In a pod without annotations, only Kubernetes orders the containers.
pub fn a_pod_without_annotations_behaves_as_under_runc(case: &Case) {
    let init = |name| witness(name, &["--run-for", "1s"]);
    let pod = Pod::new("pod").init_container(init("first"));
    assert_apps_start_together(case, pod.init_container(init("second")));
}

/// The pod's events contain the error, and the corrected pod starts.
pub fn an_invalid_annotation_is_reported_in_the_pods_events(case: &Case) {
    let pod = pod().annotation("usher/sidecar-stop-order", "Random");
    let pod = pod.container(logs()).container(proxy());
    case.create(&pod.container(witness("app", &[])));
    let told = crate::harness::poll(crate::cluster::PATIENCE, || {
        let events = case.kubectl(&["get", "events", "--output", "json"]);
        let words = ["usher/sidecar-stop-order", "Random", "Reverse, Parallel"];
        words.iter().all(|word| events.contains(word)).then_some(())
    });
    assert!(told.is_some(), "{}", case.diagnosis());
    assert!(case.record().0.is_empty(), "{}", case.record());
    case.kubectl(&["annotate", "pod", "pod", "usher/sidecar-stop-order-"]);
    assert_in_order(case);
}

/// KEP-753: "Restart behavior of the init containers".
pub fn a_failed_init_container_runs_again(case: &Case) {
    let text = "witness mark init tries
        test -e /shared/tried && exec witness mark init succeeds
        touch /shared/tried; exit 3";
    let pod = Pod::new("pod")
        .annotation("usher/init", "init")
        .annotation("usher/apps", "app");
    case.create(
        &pod.container(script("init", text))
            .container(witness("app", &[])),
    );
    let record = case.await_event("app", "start");
    assert_eq!(record.all("init", "tries").count(), 2, "{record}");
    record.assert_before(("init", "succeeds"), ("app", "start"));
    let pod = case.await_pod("pod", "seen to have run it again", |pod| {
        restarts(pod, "init") == 1
    });
    assert_eq!(restarts(&pod, "app"), 0);
}

/// Kubernetes' own init containers run before all others; usher leaves them alone.
pub fn a_native_init_container_runs_beside_annotated_sidecars(case: &Case) {
    let pod = pod().annotation("usher/native-init", "prepare");
    let pod = pod.init_container(witness("prepare", &["--run-for", "1s"]));
    case.create(
        &pod.container(logs())
            .container(proxy())
            .container(witness("app", &[])),
    );
    assert_in_order(case);
    let record = case.record();
    record.assert_before(("prepare", "exit"), ("logs", "start"));
    let pod = case.await_ready("pod");
    assert_eq!(exit_code(&pod, "prepare"), Some(0));
}

/// KEP-753: "API server is down: failure to update containers status during initialization".
pub fn a_pod_starts_while_the_api_server_is_down(case: &Case) {
    let mut pod = Pod::new("pod")
        .annotation("usher/sidecars", "one, two, three")
        .annotation("usher/startup-order", "one, two, three")
        .annotation("usher/apps", "app")
        .container(witness("app", &[]));
    for name in ["one", "two", "three"] {
        // The sidecar becomes ready when the test makes a file.
        let text = format!(
            "witness mark {name} start; until test -e /shared/go; do sleep 0.1; done
            witness mark {name} ready; touch /shared/ready-{name}; exec sleep 1000"
        );
        pod = pod.probed(name).container(script(name, &text));
    }
    case.create(&pod);
    case.await_event("one", "start");
    case.cluster.stop_part("kube-apiserver", "KILL");
    case.touch("go");
    let record = case.await_event("app", "start");
    for (earlier, later) in [("one", "two"), ("two", "three"), ("three", "app")] {
        record.assert_before((earlier, "ready"), (later, "start"));
    }
    case.cluster.start_part("kube-apiserver");
    case.cluster.await_api();
    let pod = case.await_ready("pod");
    assert_eq!(restarts(&pod, "app"), 0, "{}", case.diagnosis());
}

/// `kubectl debug` must work on a pod whose app is held (its program does not run yet).
pub fn a_debug_container_does_not_wait(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("startup-probe.usher/proxy", ready_probe("proxy"));
    case.create(
        &pod.container(witness("proxy", &[]))
            .container(witness("app", &[])),
    );
    case.await_event("proxy", "start");
    let image = format!("--image={}", crate::images::WITNESS);
    case.kubectl(&[
        "debug",
        "pod",
        &image,
        "--container=guest",
        "--",
        "/bin/true",
    ]);
    let pod = case.await_pod("pod", "seen to have run its guest", |pod| {
        exit_code(pod, "guest").is_some()
    });
    assert_eq!(
        exit_code(&pod, "guest"),
        Some(0),
        "{}",
        status_of(&pod, "guest")
    );
    assert!(!case.record().has("app", "start"), "{}", case.diagnosis());
    case.touch("ready-proxy");
    case.await_event("app", "start");
    let record = case.record();
    assert!(!record.has("proxy", "signal"), "{record}");
}

/// KEP-753: "Restartable init containers should restart always".
pub fn a_sidecar_that_ends_is_restarted(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app");
    let pod = pod.container(witness("proxy", &["--run-for", "2s"]));
    case.create(&pod.container(witness("app", &[])));
    let record = case.await_record("proxy has started three times", |record| {
        record.all("proxy", "start").count() >= 3
    });
    assert_eq!(record.all("app", "start").count(), 1, "{record}");
    assert!(!record.has("app", "signal"), "{record}");
}

/// usher leaves a pod without annotations alone, including its native sidecars.
pub fn native_sidecars_work_as_under_runc(case: &Case) {
    let sidecar = |name| {
        with(
            witness(name, &["--stop-after", "300ms"]),
            serde_json::json!({ "restartPolicy": "Always" }),
        )
    };
    let pod = Pod::new("pod")
        .init_container(sidecar("one"))
        .init_container(sidecar("two"));
    case.create(&pod.container(witness("app", &["--stop-after", "1s"])));
    case.await_event("app", "start");
    case.await_ready("pod");
    assert_eq!(case.record().order("start"), ["one", "two", "app"]);
    case.delete("pod", &[]);
    let record = case.await_event("one", "exit");
    record.assert_before(("app", "exit"), ("two", "signal"));
    record.assert_before(("two", "exit"), ("one", "signal"));
    case.await_gone("pod");
}

/// KEP-3857: kubelet refuses the pod unless containerd reports that the runtime supports recursive
/// read-only mounts.
pub fn recursive_read_only_mounts_work(case: &Case) {
    let volume = serde_json::json!({
        "name": "shared", "mountPath": "/shared-too", "readOnly": true, "recursiveReadOnly": "Enabled",
    });
    let mut app = witness("app", &[]);
    app["volumeMounts"]
        .as_array_mut()
        .expect("mounts")
        .push(volume);
    case.create(
        &Pod::new("pod")
            .annotation("usher/apps", "app")
            .container(app),
    );
    let pod = case.await_ready("pod");
    let mounts = &status_of(&pod, "app")["volumeMounts"];
    let mounts = mounts.as_array().expect("mounts in the status");
    let enabled = |mount: &serde_json::Value| mount["recursiveReadOnly"] == "Enabled";
    assert!(mounts.iter().any(enabled), "{mounts:?}");
}

/// KEP-1287's resize subresource: the container's cgroup changes, and no container restarts.
pub fn a_container_is_resized_in_place(case: &Case) {
    let of = |cpu: &str| serde_json::json!({ "cpu": cpu, "memory": "64Mi" });
    let resources =
        serde_json::json!({ "resources": { "requests": of("50m"), "limits": of("100m") } });
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app");
    let pod = pod.container(with(witness("proxy", &[]), resources.clone()));
    case.create(&pod.container(with(witness("app", &[]), resources)));
    case.await_event("app", "start");
    case.await_ready("pod");
    let resources = serde_json::json!({ "requests": of("60m"), "limits": of("200m") });
    case.resize("pod", "proxy", &resources);
    let pod = case.await_pod("pod", "resized", |pod| {
        status_of(pod, "proxy")["resources"]["limits"]["cpu"] == "200m"
    });
    for name in ["proxy", "app"] {
        assert_eq!(restarts(&pod, name), 0, "{}", case.diagnosis());
    }
    let record = case.record();
    assert!(
        !record.has("proxy", "signal") && !record.has("app", "signal"),
        "{record}"
    );
}

/// KEP-127: root in the pod is an unprivileged user of the node. The containers start in order.
pub fn a_pod_in_a_user_namespace_starts_in_order(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .container(witness("app", &[]))
        .container(witness("proxy", &["--ready-after", "500ms"]))
        .spec("hostUsers", false)
        .spec(
            "volumes",
            serde_json::json!([{ "name": "shared", "emptyDir": {} }]),
        );
    case.create(&pod);
    case.await_ready("pod");
    let in_app = |words: &[&str]| {
        let exec = ["exec", "pod", "--container=app", "--"];
        case.kubectl(&[&exec, words].concat())
    };
    let map = in_app(&["cat", "/proc/self/uid_map"]);
    let map: Vec<&str> = map.split_whitespace().collect();
    assert!(map[0] == "0" && map[1] != "0", "{map:?}");
    // The record is in a volume of the pod, so copy it to the case's shared directory. The API may
    // report the app as ready before the app's program runs. So wait for the app's start.
    let record = || {
        let text = in_app(&["cat", "/shared/record"]);
        std::fs::write(case.shared_dir().join("record"), text).expect("a record");
        Some(case.record()).filter(|record| record.has("app", "start"))
    };
    let record = poll(PATIENCE, record);
    let record = record.unwrap_or_else(|| panic!("{}", case.diagnosis()));
    record.assert_before(("proxy", "ready"), ("app", "start"));
    case.delete("pod", &[]);
    case.await_gone("pod");
}

/// KEP-4639: a volume contains the files of an image.
pub fn an_image_can_be_a_volume(case: &Case) {
    let volumes = serde_json::json!([
        { "name": "shared", "hostPath": { "path": case.shared_dir() } },
        { "name": "image", "image": { "reference": crate::images::WITNESS, "pullPolicy": "Never" } },
    ]);
    let text = "until test -e /image/bin/witness; do sleep 0.1; done
        witness mark app seen; exec witness app";
    let mounts = serde_json::json!({ "volumeMounts": [
        { "name": "shared", "mountPath": "/shared" }, { "name": "image", "mountPath": "/image" },
    ] });
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .container(with(script("app", text), mounts))
        .container(witness("proxy", &["--ready-after", "500ms"]))
        .spec("volumes", volumes);
    case.create(&pod);
    let record = case.await_event("app", "seen");
    record.assert_before(("proxy", "ready"), ("app", "seen"));
    case.await_ready("pod");
}
