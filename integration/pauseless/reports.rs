//! Reports about a pod: kubelet gets them through the CRI, and people through `usher`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{is_known, with_each, with_each_in_a_network};
use crate::control::usher;
use crate::harness::{Cri, Handler, PATIENCE, PodSpec, criu_works, eventually, poll, run};

#[test]
fn a_pod_can_be_stopped_and_removed_more_than_once() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("twice", handler));
        let app = pod.witness("app", &[]);
        assert!(pod.is_ready());
        pod.stop();
        assert!(!pod.is_ready());
        assert_eq!(app.await_exit(), 137, "containers end with their pod");
        pod.stop();
        pod.remove();
        pod.remove();
        pod.stop();
        assert!(node.pods().is_empty() && node.containers().is_empty());
    });
}

#[test]
fn a_pod_can_be_recreated_under_its_name() {
    with_each(|node, handler| {
        let spec = PodSpec::new("again", handler);
        for attempt in 0..2 {
            let spec = spec.clone().with(|config| {
                config.metadata.mut_or_insert_default().attempt = attempt;
            });
            let pod = node.run_pod(&spec);
            pod.run("app", &["/bin/true"]).await_exit();
            pod.end();
        }
    });
}

#[test]
fn a_pod_continues_without_any_container() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("empty", handler));
        for _ in 0..2 {
            let app = pod.run("app", &["/bin/true"]);
            assert_eq!(app.await_exit(), 0);
            app.remove();
            assert!(pod.is_ready());
        }
        assert_eq!(node.containers().len(), 0);
        pod.end();
    });
}

#[test]
fn the_verbose_status_names_the_process_that_holds_the_pod() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("told", handler));
        let status = pod.status();
        assert_eq!(status.runtime_handler, handler.name());
        assert_eq!(status.metadata.name, "told");
        let pid = pod.pid();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .expect("the sandbox's process exists");
        let expected = match handler {
            Handler::Pauseless => "usher-sandbox",
            _ => "pause",
        };
        assert_eq!(name.trim(), expected);
    });
}

/// NRI plugins and scripts that read `crictl inspectp` use these fields.
#[test]
fn the_verbose_status_has_the_spec_with_the_pods_network() {
    with_each_in_a_network(|node, spec| {
        let pod = node.run_pod(&spec);
        let info = pod.info();
        let told: Value = serde_json::from_str(&info["info"]).expect("JSON");
        let spec_told = &told["runtimeSpec"];
        let namespaces = spec_told["linux"]["namespaces"].as_array();
        let namespaces = namespaces.unwrap_or_else(|| panic!("namespaces in {told:#}"));
        let kinds: BTreeSet<_> = namespaces.iter().map(|one| one["type"].as_str()).collect();
        assert!(
            kinds.is_superset(&BTreeSet::from([Some("ipc"), Some("uts")])),
            "{told:#}"
        );
        let network = namespaces.iter().find(|one| one["type"] == "network");
        let path = network.and_then(|network| network["path"].as_str());
        let path = path.unwrap_or_else(|| panic!("a network in {told:#}"));
        assert!(path.contains("/netns/"), "{told:#}");
        let id = &spec_told["annotations"]["io.kubernetes.cri.sandbox-id"];
        assert_eq!(id, &pod.id, "{told:#}");
        if spec.handler == Handler::Pauseless {
            assert_eq!(info["pid"], pod.pid().to_string());
            assert_eq!(info["state"], "SANDBOX_READY");
        }
        let log = node.log_tail(usize::MAX);
        assert!(!log.contains("failed to unmarshal sandbox spec"), "{log}");
        assert_eq!(told["netNamespaceClosed"], false, "{told:#}");
        // An administrator removes the network namespace.
        let unmounted = run(node.umount(path), PATIENCE);
        assert!(unmounted.ok(), "{}", unmounted.err());
        let told: Value = serde_json::from_str(&pod.info()["info"]).expect("JSON");
        assert_eq!(told["netNamespaceClosed"], true, "{told:#}");
        pod.end();
    });
}

#[test]
fn only_the_programs_the_shim_and_the_holder_run_for_a_pod() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let pod = node.run_pod(&PodSpec::new("lean", Handler::Pauseless));
    let app = pod.witness("app", &[]);
    let mut expected = BTreeSet::from([app.pid(), pod.pid()]);
    expected.extend(node.shims());
    let others = || -> Vec<_> {
        let all = node.commands().into_iter();
        all.filter(|(pid, _)| !expected.contains(pid)).collect()
    };
    // Wait until commands of the OCI runtime have exited.
    let alone = poll(PATIENCE, || others().is_empty().then_some(()));
    assert!(alone.is_some(), "{:?}", others());
    assert_eq!(expected.len(), 3);
    pod.end();
}

#[test]
fn pod_metrics_are_reported() {
    with_each_in_a_network(|node, spec| {
        let pod = node.run_pod(&spec);
        let app = pod.witness("app", &[]);
        let told = || {
            let stats = pod.stats();
            let used = stats.memory.usage_bytes.value > 0
                && stats.cpu.usage_core_nano_seconds.value > 0
                && stats.process.process_count.value >= 1;
            let named = stats.network.default_interface.name == "eth0";
            let [of_app] = &stats.containers[..] else {
                return false;
            };
            let is_app = of_app.attributes.id == app.id;
            used && named && is_app && of_app.memory.usage_bytes.value > 0
        };
        let seen = poll(PATIENCE, || told().then_some(()));
        assert!(seen.is_some(), "{:?}", pod.stats());
    });
}

#[test]
fn usher_lists_a_pod_by_name() {
    with_each(|node, handler| {
        let spec = PodSpec::new("shop", handler);
        let spec = spec.annotations(&[("usher/sidecars", "proxy"), ("usher/apps", "app")]);
        let pod = node.run_pod(&spec);
        pod.witness("proxy", &[]);
        pod.witness("app", &[]);
        let shop = || {
            let said = run(usher(node, &["ps", "-o", "json"]), PATIENCE).out();
            let said: Value = serde_json::from_str(&said).ok()?;
            let pods = said["pods"].as_array()?.clone();
            pods.into_iter().find(|pod| pod["name"] == "shop")
        };
        eventually("usher ps says that both run", PATIENCE, || {
            shop().is_some_and(|pod| pod["ready"] == 2 && pod["total"] == 2)
        });
        let told = shop().expect("the pod");
        assert_eq!(told["status"], "Running", "{told:#}");
        assert_eq!(told["namespace"], "default", "{told:#}");
        let inspected = run(usher(node, &["inspect", "shop"]), PATIENCE);
        assert!(inspected.ok(), "{}", inspected.err());
        for name in ["proxy", "app"] {
            assert!(inspected.out().contains(name), "{}", inspected.out());
        }
        let metrics = run(usher(node, &["metrics"]), PATIENCE).out();
        assert!(metrics.contains(r#"pod="shop""#), "{metrics}");
        pod.end();
    });
}

/// The shim makes the sandbox of a pod without a pause container. So the shim knows the pod before
/// the pod has a container.
#[test]
fn usher_lists_a_pod_without_containers() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let pod = node.run_pod(&PodSpec::new("early", Handler::Pauseless));
    let said = run(usher(&node, &["ps"]), PATIENCE).out();
    assert!(said.contains("early"), "{said}");
    pod.end();
}

/// Makes the same call as kubelet's endpoint `/checkpoint`.
#[test]
fn a_container_continues_after_its_checkpoint() {
    if !criu_works() {
        return;
    }
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("kept", handler));
        let count = "i=0; while :; do i=$((i+1)); echo $i > /shared/count; sleep 0.05; done";
        let app = pod.run("app", &["/bin/sh", "-c", count]);
        let counted = || {
            let count = fs::read_to_string(node.shared_dir().join("count")).unwrap_or_default();
            count.trim().parse::<u64>().unwrap_or_default()
        };
        eventually("the program counts", PATIENCE, || counted() > 3);
        let archive = node.dir().join("checkpoint.tar");
        app.checkpoint(&archive);
        let before = counted();
        eventually("the program continues to count", PATIENCE, || {
            counted() > before + 3
        });
        let mut list = Command::new("tar");
        list.arg("--list").arg("--file").arg(&archive);
        let list = run(list, PATIENCE).out();
        assert!(list.contains("checkpoint/pages-1.img"), "{list}");
        fs::remove_file(&archive).expect("an archive");
        pod.end();
    });
}

/// Before containerd deletes a task that has ended, it sends SIGKILL to the task. `usher` must not
/// report this SIGKILL.
#[test]
fn a_container_that_ended_by_itself_was_not_killed_by_its_caller() {
    with_each(|node, handler| {
        let plan = [("usher/sidecars", "proxy"), ("usher/apps", "done")];
        let pod = node.run_pod(&PodSpec::new("ended", handler).annotations(&plan));
        let proxy = pod.witness("proxy", &["--ignore-term"]);
        let done = pod.run("done", &["/bin/true"]);
        assert_eq!(done.await_exit(), 0);
        // The caller kills this container, so `usher` has to report the SIGKILL.
        proxy.stop(1);
        let mut said = String::new();
        let is_named = poll(PATIENCE, || {
            said = run(usher(node, &["inspect", "ended"]), PATIENCE).out();
            said.contains("proxy was killed").then_some(())
        });
        assert!(is_named.is_some(), "{said}");
        assert!(!said.contains("done was killed"), "{said}");
        let metrics = run(usher(node, &["metrics"]), PATIENCE).out();
        let kills = metrics
            .lines()
            .filter(|line| line.starts_with("usher_container_kills"));
        let kills: Vec<_> = kills.collect();
        assert!(
            kills.iter().any(|line| line.contains("\"proxy\"")),
            "{metrics}"
        );
        assert!(
            !kills.iter().any(|line| line.contains("\"done\"")),
            "{kills:?}"
        );
        pod.end();
    });
}
