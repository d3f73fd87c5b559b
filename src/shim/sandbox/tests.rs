//! Tests of the Sandbox service, with an actor on a simulated node.

use containerd_shim_protos::sandbox_api::UpdateSandboxRequest;

use super::*;
use crate::pod::Actor;
use crate::pod::sim::SimNode;
use usher_core::process::ExitStatus;
use usher_engine::sim::{EngineCall, Fault, FaultPlan, SimBundle, SimEngine};

/// A sandbox that was created on a simulated node.
struct World {
    sandboxes: Sandboxes,
    engine: SimEngine,
    shim: tokio::task::JoinHandle<()>,
}

impl World {
    fn has_ended(&self) -> bool {
        self.shim.is_finished()
    }

    /// True if the pod has a status to show.
    async fn is_listed(&self) -> bool {
        let pod = &self.sandboxes.pod;
        pod.ask(|actor, reply| actor.status(false, reply))
            .await
            .is_ok()
    }
}

fn on_a_node<F: Future>(test: impl FnOnce(World) -> F) -> F::Output {
    on_a_node_with(SimEngine::default(), test)
}

fn on_a_node_with<F: Future>(engine: SimEngine, test: impl FnOnce(World) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let node = SimNode::new(engine.clone());
        let annotations = [
            ("io.kubernetes.cri.container-type", "sandbox"),
            ("io.kubernetes.cri.sandbox-id", "s"),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let bundle = SimBundle {
            annotations: annotations.into(),
            ..SimBundle::default()
        };
        engine.put("/bundles/s", bundle);
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
        test(World {
            sandboxes,
            engine,
            shim,
        })
        .await
    })
}

macro_rules! ask {
    ($world:expr, $method:ident, $request:ident) => {{
        let request = $request {
            sandbox_id: "s".to_owned(),
            ..$request::new()
        };
        let sandboxes = &$world.sandboxes;
        sandboxes.$method(&TtrpcContext::default(), request).await
    }};
}

async fn state(world: &World) -> String {
    ask!(world, sandbox_status, SandboxStatusRequest)
        .unwrap()
        .state
}

async fn exit_code(world: &World) -> u32 {
    let exit = ask!(world, wait_sandbox, WaitSandboxRequest).unwrap();
    assert!(exit.exited_at.is_some());
    exit.exit_status
}

#[test]
fn a_sandbox_is_ready_from_its_start_to_its_stop() {
    on_a_node(async |world| {
        assert_eq!(state(&world).await, NOT_READY);
        let started = ask!(world, start_sandbox, StartSandboxRequest).unwrap();
        assert!(started.pid > 0 && started.created_at.is_some());
        assert_eq!(state(&world).await, READY);
        ask!(world, ping_sandbox, PingRequest).unwrap();
        assert!(world.is_listed().await);
        for _ in 0..2 {
            ask!(world, stop_sandbox, StopSandboxRequest).unwrap();
            // The sandbox's task is deleted, but its state is still reported.
            assert_eq!(state(&world).await, NOT_READY);
            assert!(!world.is_listed().await);
            assert!(world.engine.lock().left().containers.is_empty());
        }
        let status = ask!(world, sandbox_status, SandboxStatusRequest).unwrap();
        assert_eq!(status.created_at, started.created_at);
        assert!(status.exited_at.is_some() && status.pid == 0);
        ask!(world, ping_sandbox, PingRequest).unwrap();
        assert_eq!(exit_code(&world).await, 128 + KILL);
        ask!(world, shutdown_sandbox, ShutdownSandboxRequest).unwrap();
        // The caller has time to read the answer before the connection ends.
        tokio::time::sleep(READS_WITHIN / 2).await;
        assert!(!world.has_ended());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(world.has_ended());
    });
}

#[test]
fn a_second_sandbox_is_refused_even_when_the_first_has_ended() {
    on_a_node(async |world| {
        let create = async |id: &str| {
            let request = CreateSandboxRequest {
                sandbox_id: id.to_owned(),
                bundle_path: "/bundles/s".to_owned(),
                ..CreateSandboxRequest::new()
            };
            let context = TtrpcContext::default();
            let refused = world.sandboxes.create_sandbox(&context, request).await;
            code(refused.unwrap_err())
        };
        for ends in [false, true] {
            for id in ["s", "t"] {
                assert_eq!(create(id).await, ttrpc::Code::ALREADY_EXISTS, "{id} {ends}");
            }
            ask!(world, stop_sandbox, StopSandboxRequest).unwrap();
        }
    });
}

#[test]
fn a_sandbox_that_was_not_created_cannot_be_started() {
    on_a_node(async |world| {
        let request = StartSandboxRequest {
            sandbox_id: "t".to_owned(),
            ..StartSandboxRequest::new()
        };
        let context = TtrpcContext::default();
        let refused = world.sandboxes.start_sandbox(&context, request).await;
        let code = code(refused.unwrap_err());
        assert_eq!(code, ttrpc::Code::FAILED_PRECONDITION);
    });
}

#[test]
fn start_and_status_answer_with_the_spec() {
    on_a_node(async |world| {
        let started = ask!(world, start_sandbox, StartSandboxRequest).unwrap();
        let spec: serde_json::Value = serde_json::from_slice(&started.spec.value).unwrap();
        assert_eq!(started.spec.type_url, SPEC);
        assert!(spec["linux"]["namespaces"].is_array(), "{spec}");
        let request = SandboxStatusRequest {
            sandbox_id: "s".to_owned(),
            verbose: true,
            ..SandboxStatusRequest::new()
        };
        let context = TtrpcContext::default();
        let status = world.sandboxes.sandbox_status(&context, request).await;
        let info = status.unwrap().info;
        assert_eq!(info["pid"], started.pid.to_string());
        assert_eq!(info["state"], READY);
        let told: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
        assert_eq!(told["runtimeSpec"], spec);
        assert_eq!(told["pid"], started.pid);
    });
}

#[test]
fn an_update_succeeds_only_for_an_existing_sandbox() {
    on_a_node(async |world| {
        let services = services(world.sandboxes.pod.clone());
        let service = &services["containerd.runtime.sandbox.v1.Sandbox"];
        let update = async |id: &str| {
            let request = UpdateSandboxRequest {
                sandbox_id: id.to_owned(),
                ..UpdateSandboxRequest::new()
            };
            let request = ttrpc::Request {
                payload: request.write_to_bytes().unwrap(),
                ..ttrpc::Request::default()
            };
            let handler = &service.methods["UpdateSandbox"];
            let answer = handler.handler(TtrpcContext::default(), request).await;
            answer.unwrap().status.code.enum_value().unwrap()
        };
        assert_eq!(update("s").await, ttrpc::Code::OK);
        assert_eq!(update("t").await, ttrpc::Code::NOT_FOUND);
    });
}

fn code(error: ttrpc::Error) -> ttrpc::Code {
    match error {
        ttrpc::Error::RpcStatus(status) => status.code.enum_value().unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_sandbox_that_was_never_started_can_be_removed() {
    on_a_node(async |world| {
        ask!(world, shutdown_sandbox, ShutdownSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(world.has_ended());
    });
}

#[test]
fn a_sandbox_that_died_is_deleted_and_reported() {
    on_a_node(async |world| {
        ask!(world, start_sandbox, StartSandboxRequest).unwrap();
        let (waited, ()) = tokio::join!(exit_code(&world), async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            world.engine.init_dies("s", ExitStatus::Code(3));
        });
        assert_eq!(waited, 3);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!world.is_listed().await);
        // A restarted containerd asks for the exit again.
        assert_eq!(exit_code(&world).await, 3);
        assert_eq!(state(&world).await, NOT_READY);
        ask!(world, stop_sandbox, StopSandboxRequest).unwrap();
        ask!(world, shutdown_sandbox, ShutdownSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(world.has_ended());
    });
}

#[test]
fn the_shim_of_a_stopped_sandbox_ends_even_if_no_one_removes_it() {
    on_a_node(async |world| {
        ask!(world, start_sandbox, StartSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!world.has_ended());
        ask!(world, stop_sandbox, StopSandboxRequest).unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!world.has_ended());
        assert_eq!(state(&world).await, NOT_READY);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(world.has_ended());
        // Later calls find no shim, as containerd expects of a removed sandbox.
        ask!(world, shutdown_sandbox, ShutdownSandboxRequest).unwrap_err();
    });
}

/// An engine whose first deletions fail.
#[derive(Debug)]
struct Busy(u32);

impl FaultPlan for Busy {
    fn of(&mut self, call: EngineCall, _: &str) -> Fault {
        match call {
            EngineCall::Forget | EngineCall::Delete if self.0 > 0 => {
                self.0 -= 1;
                Fault::failure(Duration::from_millis(1), "busy")
            }
            _ => Fault::none(),
        }
    }
}

#[test]
fn each_stop_retries_a_deletion_that_failed() {
    on_a_node_with(SimEngine::with_fault_plan(Busy(3)), async |world| {
        ask!(world, start_sandbox, StartSandboxRequest).unwrap();
        let refused = ask!(world, stop_sandbox, StopSandboxRequest).unwrap_err();
        assert!(refused.to_string().contains("busy"), "{refused}");
        assert_eq!(state(&world).await, NOT_READY);
        let mut tries = 0;
        while ask!(world, shutdown_sandbox, ShutdownSandboxRequest).is_err() {
            tries += 1;
            assert!(tries < 3);
        }
        assert!(world.engine.lock().left().containers.is_empty());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(world.has_ended());
    });
}

#[test]
fn only_kubelets_options_of_a_sandbox_are_read() {
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
