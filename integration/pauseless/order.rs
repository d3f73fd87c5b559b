//! The order of a pod's containers, given by annotations.

use super::{BOTH, is_known, with_each};
use crate::harness::{Container, Cri, CriSettings, Handler, Pod, PodSpec};

/// A sidecar that starts first and stops last, and a cleanup after the app.
const SHOP: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    ("usher/apps", "app"),
    ("usher/post-exit", "clean-up"),
    ("usher/grace-period", "30s"),
    ("usher/termination-window", "20s"),
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":200}"#,
    ),
];

struct Shop<'a> {
    node: &'a Cri,
    pod: Pod<'a>,
    app: Container<'a>,
    proxy: Container<'a>,
    clean_up: Container<'a>,
}

impl<'a> Shop<'a> {
    /// Creates the pod as kubelet does.
    fn open(node: &'a Cri, handler: Handler) -> Self {
        let pod = node.run_pod(&PodSpec::new("shop", handler).annotations(SHOP));
        let app = pod.run("app", &["/bin/witness", "app", "--stop-after", "200ms"]);
        let proxy = [
            "/bin/witness",
            "proxy",
            "--ready-after",
            "300ms",
            "--listen",
            "8080",
        ];
        let proxy = pod.run("proxy", &proxy);
        let clean_up = ["/bin/witness", "clean-up", "--run-for", "100ms"];
        let clean_up = pod.run("clean-up", &clean_up);
        let record = node.await_event("app", "start");
        record.assert_before(("proxy", "ready"), ("app", "start"));
        assert!(!record.has("clean-up", "start"), "{record}");
        Shop {
            node,
            pod,
            app,
            proxy,
            clean_up,
        }
    }

    /// Ends the pod as kubelet does: sends all stop requests at the same time.
    fn close(self) {
        std::thread::scope(|scope| {
            for container in [&self.proxy, &self.app, &self.clean_up] {
                scope.spawn(|| container.stop(30));
            }
        });
        let record = self.node.record();
        record.assert_before(("app", "exit"), ("clean-up", "start"));
        record.assert_before(("clean-up", "exit"), ("proxy", "signal"));
        for container in [&self.app, &self.proxy, &self.clean_up] {
            assert_eq!(container.await_exit(), 0, "{}", container.name);
        }
        self.pod.end();
    }
}

fn play(node: &Cri, handler: Handler) {
    Shop::open(node, handler).close();
}

#[test]
fn the_sidecar_starts_first_and_stops_last_and_the_cleanup_runs_before_that() {
    with_each(play);
}

#[test]
fn without_a_pause_container_annotations_need_not_be_passed_on() {
    if !is_known() {
        return;
    }
    let node = Cri::start_with(CriSettings {
        passes_annotations: false,
        ..CriSettings::default()
    });
    play(&node, Handler::Pauseless);
}

/// While pods run, an administrator gives each of usher's two runtime handlers the configuration of
/// the other handler.
#[test]
fn a_pod_keeps_its_sandbox_when_the_handlers_change() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    for handler in BOTH {
        let shop = Shop::open(&node, handler);
        node.stop();
        node.exchange_handlers();
        node.restart();
        assert!(shop.pod.is_ready());
        assert_eq!(shop.app.exec(&["/bin/echo", "here"]).out(), "here\n");
        let late = shop.pod.run("late", &["/bin/true"]);
        assert_eq!(late.await_exit(), 0);
        let new = node.run_pod(&PodSpec::new("new", handler));
        assert_eq!(new.run("app", &["/bin/true"]).await_exit(), 0);
        let holders = [&shop.pod, &new].map(|pod| {
            let comm = std::fs::read_to_string(format!("/proc/{}/comm", pod.pid()));
            comm.expect("the process exists").trim().to_owned()
        });
        let mut expected = ["pause", "usher-sandbox"];
        if handler == Handler::Pauseless {
            expected.reverse();
        }
        assert_eq!(holders, expected);
        new.stop();
        new.remove();
        shop.close();
        node.stop();
        node.exchange_handlers();
        node.restart();
        node.clear();
    }
}

/// The pod is refused before any of its programs runs.
#[test]
fn a_pod_with_an_invalid_annotation_is_refused_with_an_error_that_names_it() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let spec = PodSpec::new("wrong", Handler::Pauseless);
    let spec = spec.annotations(&[("usher/sidecars", "proxy"), ("usher/grace-period", "soon")]);
    let refused = node.try_run_pod(&spec).map(|pod: Pod| pod.id);
    let error = refused.expect_err("the pod is refused");
    assert!(error.contains("usher/grace-period"), "{error}");
    assert!(error.contains("soon"), "{error}");
    assert!(node.pods().is_empty());
    node.clear();
}

/// A stop request of kubelet has a deadline. A signal that a person sends has no deadline, so it is
/// no stop request.
#[test]
fn a_persons_signal_is_no_stop_and_kubelets_stop_delivers_the_annotated_signal() {
    const WEB: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("stop-signal.usher/web", "SIGINT"),
    ];
    with_each(|node, handler| {
        let name = format!("reload-{}", handler.name());
        let pod = node.run_pod(&PodSpec::new(&name, handler).annotations(WEB));
        let proxy = pod.witness("proxy", &[]);
        let (starts, count) = {
            let record = node.record();
            let of_web = |event| record.all("web", event).count();
            (of_web("start"), of_web("signal"))
        };
        let web = pod.run("web", &["/bin/witness", "web"]);
        node.await_record("web runs", |record| {
            record.all("web", "start").count() == starts + 1
        });
        web.kill("SIGUSR1");
        node.await_record("web has recorded the signal", |record| {
            record.all("web", "signal").count() == count + 1
        });
        web.stop(10);
        proxy.stop(10);
        assert_eq!(web.await_exit(), 0);
        let record = node.record();
        let signals = record.all("web", "signal").skip(count);
        let signals: Vec<_> = signals.map(|event| &*event.detail).collect();
        assert_eq!(signals, ["10", "2"], "{record}");
        pod.end();
    });
}
