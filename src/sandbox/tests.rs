//! The service in front of an actor on a simulated node.

use super::*;
use crate::engine::sim::{SimBundle, SimEngine};
use crate::pod::Actor;
use crate::pod::sim::SimNode;

/// Says whether the shim has ended.
type HasEnded = Box<dyn Fn() -> bool>;

/// A sandbox on a simulated node, which makes one of whatever bundle there is.
fn on_a_node<F: Future>(test: impl FnOnce(Sandboxes, HasEnded) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let node = SimNode::new(SimEngine::default());
        let annotations = [
            ("io.kubernetes.cri.container-type", "sandbox"),
            ("io.kubernetes.cri.sandbox-id", "s"),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let bundle = SimBundle {
            annotations: annotations.into(),
            ..SimBundle::default()
        };
        node.engine.put("/bundles/s", bundle);
        let (mut actor, pod) = Actor::new("sim", node.node());
        let shim = tokio::spawn(async move { actor.run().await });
        let sandboxes = Sandboxes::new(pod);
        let request = CreateSandboxRequest {
            sandbox_id: "s".to_owned(),
            bundle_path: "/bundles/s".to_owned(),
            ..CreateSandboxRequest::new()
        };
        let context = TtrpcContext::default();
        sandboxes.create_sandbox(&context, request).await.unwrap();
        test(sandboxes, Box::new(move || shim.is_finished())).await
    })
}

macro_rules! ask {
    ($sandboxes:expr, $method:ident, $request:ident) => {{
        let request = $request {
            sandbox_id: "s".to_owned(),
            ..$request::new()
        };
        $sandboxes.$method(&TtrpcContext::default(), request).await
    }};
}

async fn state(sandboxes: &Sandboxes) -> String {
    ask!(sandboxes, sandbox_status, SandboxStatusRequest)
        .unwrap()
        .state
}

#[test]
fn a_sandbox_is_ready_from_its_start_to_its_stop() {
    on_a_node(async |sandboxes, has_ended| {
        assert_eq!(state(&sandboxes).await, NOT_READY);
        let started = ask!(sandboxes, start_sandbox, StartSandboxRequest).unwrap();
        assert!(started.pid > 0 && started.created_at.is_some());
        assert_eq!(state(&sandboxes).await, READY);
        ask!(sandboxes, ping_sandbox, PingRequest).unwrap();
        for _ in 0..2 {
            ask!(sandboxes, stop_sandbox, StopSandboxRequest).unwrap();
            assert_eq!(state(&sandboxes).await, NOT_READY);
        }
        let exit = ask!(sandboxes, wait_sandbox, WaitSandboxRequest).unwrap();
        assert_eq!(exit.exit_status, 128 + KILL);
        ask!(sandboxes, shutdown_sandbox, ShutdownSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(has_ended());
    });
}

#[test]
fn one_that_was_never_started_can_be_removed() {
    on_a_node(async |sandboxes, has_ended| {
        ask!(sandboxes, shutdown_sandbox, ShutdownSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(has_ended());
    });
}

#[test]
fn the_shim_of_one_that_was_stopped_ends_though_nobody_removes_it() {
    on_a_node(async |sandboxes, has_ended| {
        ask!(sandboxes, start_sandbox, StartSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!has_ended());
        ask!(sandboxes, stop_sandbox, StopSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!has_ended());
        assert_eq!(state(&sandboxes).await, NOT_READY);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(has_ended());
        // Who comes then finds nobody, as containerd expects of what is gone.
        ask!(sandboxes, shutdown_sandbox, ShutdownSandboxRequest).unwrap_err();
    });
}

#[test]
fn only_what_kubelet_says_of_a_sandbox_is_read() {
    let any = |type_url: &str, value: Vec<u8>| Any {
        type_url: type_url.to_owned(),
        value,
        ..Any::new()
    };
    let written = PodSandboxConfig {
        hostname: "web-0".to_owned(),
        ..PodSandboxConfig::new()
    };
    let bytes = written.write_to_bytes().unwrap();
    let read = config(Some(&any(CONFIG, bytes.clone()))).unwrap();
    assert_eq!(read, written);
    let other = config(Some(&any("types.Other", bytes))).unwrap_err();
    assert!(other.message.contains("\"types.Other\""), "{other:?}");
    let broken = config(Some(&any(CONFIG, vec![0xff])));
    assert_eq!(broken.unwrap_err().kind, Kind::InvalidArgument);
    let options = config(None)
        .unwrap()
        .linux
        .security_context
        .namespace_options
        .clone();
    assert_eq!(options.network, NamespaceMode::NODE.into());
}
