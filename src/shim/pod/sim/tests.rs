//! The actor on a simulated node with faults.

mod exits;
mod liveness;
mod overlaps;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tokio::sync::oneshot;

use super::*;
use crate::calls::{CallError, CreateCall, Deleted, ExecCall, KillCall, Kind, Status};
use crate::pod::{Actor, Pod};
use usher_core::process::ExitStatus;
use usher_core::sizing::{Bytes, Millicores, Size};
use usher_engine::sim::{EngineCall, Fault, FaultPlan, Left, OnStop, Program, SimBundle};
use usher_engine::{Knob, Order};
use usher_linux::stdio::Paths;

fn on_a_node<F: Future>(test: impl FnOnce(SimNode, Pod) -> F) -> F::Output {
    on_a_node_with(SimEngine::default(), test)
}

fn on_a_node_with<F: Future>(engine: SimEngine, test: impl FnOnce(SimNode, Pod) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let node = SimNode::new(engine);
        let (mut actor, pod) = Actor::new("sim", node.node());
        tokio::spawn(async move { actor.run().await });
        test(node, pod).await
    })
}

/// A fault plan: every creation fails after five seconds.
#[derive(Debug)]
struct SlowFailure;

impl FaultPlan for SlowFailure {
    fn of(&mut self, call: EngineCall, _: &str) -> Fault {
        match call {
            EngineCall::Create => Fault::failure(Duration::from_secs(5), "out of order"),
            _ => Fault::none(),
        }
    }
}

#[test]
fn a_shim_that_was_shut_down_while_its_only_task_could_not_be_created_ends() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let node = SimNode::new(SimEngine::with_fault_plan(SlowFailure));
        let (mut actor, pod) = Actor::new("sim", node.node());
        let shim = tokio::spawn(async move { actor.run().await });
        let directory = PathBuf::from("/bundles/web");
        node.engine
            .put(&directory, bundle("web", Program::default()));
        let call = CreateCall {
            order: Order {
                id: "web".to_owned(),
                bundle: directory,
                ..Order::default()
            },
            call_timeout: None,
        };
        let creating = pod.clone();
        let created = tokio::spawn(async move {
            let created = creating.ask(move |actor, reply| actor.create(call, reply));
            created.await
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = pod.ask(|actor, reply| actor.shutdown("web", reply)).await;
        assert_eq!(asked, Ok(()));
        assert!(!shim.is_finished());
        assert!(created.await.unwrap().is_err());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(shim.is_finished());
    });
}

/// A fault plan: a creation takes five seconds, every answer comes five seconds late, and each
/// deletion panics.
#[derive(Debug)]
struct PanicsInDeletions;

impl FaultPlan for PanicsInDeletions {
    fn of(&mut self, call: EngineCall, _: &str) -> Fault {
        match call {
            EngineCall::Create => Fault::delay(Duration::from_secs(5)),
            EngineCall::Delete => panic!("simulated: a mistake"),
            _ => Fault::none(),
        }
    }

    fn answers_after(&mut self, _: EngineCall, _: &str) -> Duration {
        Duration::from_secs(5)
    }
}

#[test]
fn nothing_runs_nor_stays_mounted_of_a_creation_whose_undoing_panics() {
    let engine = SimEngine::with_fault_plan(PanicsInDeletions);
    on_a_node_with(engine, async |node, pod| {
        let gives_up = Duration::from_secs(6);
        let created = create(&node, &pod, "web", Program::default());
        assert!(tokio::time::timeout(gives_up, created).await.is_err());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let left = node.engine.lock().left();
        assert_eq!((left.processes, left.mounts), Default::default());
    });
}

/// A fault plan: a creation takes five seconds, and the engine reports the start of an exec five
/// seconds late.
#[derive(Debug)]
struct Slow;

impl FaultPlan for Slow {
    fn of(&mut self, call: EngineCall, _: &str) -> Fault {
        match call {
            EngineCall::Create => Fault::delay(Duration::from_secs(5)),
            _ => Fault::none(),
        }
    }

    fn answers_after(&mut self, call: EngineCall, _: &str) -> Duration {
        match call {
            EngineCall::Exec => Duration::from_secs(5),
            _ => Duration::ZERO,
        }
    }
}

#[test]
fn a_delete_that_comes_while_its_task_is_created_waits_for_that() {
    on_a_node_with(SimEngine::with_fault_plan(Slow), async |node, pod| {
        let deletion = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            pod.ask(|actor, reply| actor.delete("web", "", reply)).await
        };
        let creation = create(&node, &pod, "web", Program::default());
        let (created, deleted) = tokio::join!(creation, deletion);
        assert_eq!(deleted.map(|deleted| deleted.pid), Ok(created));
        assert_eq!(node.engine.lock().left(), Left::default());
    });
}

#[test]
fn an_exec_whose_caller_has_gone_before_it_was_told_of_it_does_not_run_on() {
    on_a_node_with(SimEngine::with_fault_plan(Slow), async |node, pod| {
        let init = create(&node, &pod, "proxy", Program::default()).await;
        start(&pod, "proxy").await;
        let key = ("proxy".to_owned(), "sh".to_owned());
        node.engine.lock().execs.insert(key, Program::default());
        assert_eq!(exec(&pod, "proxy", "sh").await, Ok(()));
        let started = pod.ask(|actor, reply| actor.start_exec("proxy", "sh", reply));
        let gives_up = Duration::from_secs(1);
        assert!(tokio::time::timeout(gives_up, started).await.is_err());
        assert_eq!(node.engine.lock().left().processes.len(), 2);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let left = node.engine.lock().left();
        assert_eq!(left.processes, [("proxy".to_owned(), init)]);
    });
}

fn bundle(name: &str, program: Program) -> SimBundle {
    let annotations = [
        ("usher/sidecars", "proxy"),
        ("usher/apps", "web"),
        ("usher/restart-policy", "Never"),
        ("io.kubernetes.cri.sandbox-id", "pod"),
        ("io.kubernetes.cri.container-type", "container"),
        ("io.kubernetes.cri.container-name", name),
    ];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
    SimBundle {
        annotations: BTreeMap::from(annotations),
        programs: vec![program],
        ..SimBundle::default()
    }
}

async fn create(node: &SimNode, pod: &Pod, id: &str, program: Program) -> i32 {
    create_from(node, pod, id, bundle(id, program)).await
}

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000002";

/// A container with a memory limit in MiB, in a pod that has the size of its current phase.
fn phased(name: &str, mebibytes: u64, program: Program) -> SimBundle {
    let mut bundle = bundle(name, program);
    for (key, value) in [
        ("usher/cgroup-sizing", "Phase"),
        ("io.kubernetes.cri.sandbox-uid", UID),
    ] {
        bundle.annotations.insert(key.to_owned(), value.to_owned());
    }
    bundle.size = Size::exactly(Millicores(100), Bytes(mebibytes << 20));
    bundle.pod_uid = Some(UID.to_owned());
    bundle
}

/// The pod's memory limit in MiB.
fn memory(node: &SimNode) -> u64 {
    node.engine.pod_size(UID, Knob::Memory) >> 20
}

/// Sets the pod's memory limit in MiB, as kubelet does.
fn set_memory(node: &SimNode, mebibytes: u64) {
    node.engine.size_pod(UID, Knob::Memory, mebibytes << 20);
}

async fn create_from(node: &SimNode, pod: &Pod, id: &str, bundle: SimBundle) -> i32 {
    let directory = PathBuf::from(format!("/bundles/{id}"));
    node.engine.put(&directory, bundle);
    let call = CreateCall {
        order: Order {
            id: id.to_owned(),
            bundle: directory,
            ..Order::default()
        },
        call_timeout: None,
    };
    let created = pod.ask(move |actor, reply| actor.create(call, reply));
    created.await.unwrap()
}

async fn start(pod: &Pod, id: &'static str) -> i32 {
    let (_here, gone) = oneshot::channel();
    let started = pod.ask(move |actor, reply| actor.start(id, None, gone, reply));
    started.await.unwrap()
}

async fn exec(pod: &Pod, id: &str, exec_id: &str) -> Result<(), CallError> {
    let call = ExecCall {
        id: id.to_owned(),
        exec_id: exec_id.to_owned(),
        paths: Paths::default(),
        spec: b"{}".to_vec(),
        has_deadline: false,
    };
    pod.ask(move |actor, reply| actor.exec(call, reply)).await
}

async fn delete(pod: &Pod, id: &'static str, exec_id: &'static str) -> Result<Deleted, CallError> {
    let deleted = pod.ask(move |actor, reply| actor.delete(id, exec_id, reply));
    deleted.await
}

async fn status(pod: &Pod, id: &'static str, exec_id: &'static str) -> Status {
    let state = pod.ask(move |actor, reply| actor.state(id, exec_id, reply));
    state.await.unwrap().status
}

async fn kill(pod: &Pod, id: &str, signal: u32) {
    let call = KillCall {
        id: id.to_owned(),
        exec_id: String::new(),
        signal,
        all: false,
        call_timeout: None,
    };
    let killed = pod.ask(move |actor, reply| actor.kill(call, reply));
    killed.await.unwrap();
}

#[test]
fn a_pod_on_a_simulated_node_comes_and_goes_like_any_other() {
    on_a_node(async |node, pod| {
        for id in ["proxy", "web"] {
            let created = create(&node, &pod, id, Program::default()).await;
            assert_eq!(start(&pod, id).await, created);
            assert!(node.engine.lock().is_running(id));
        }
        for id in ["web", "proxy"] {
            kill(&pod, id, 15).await;
        }
        for id in ["web", "proxy"] {
            let ended = pod.ask(move |actor, reply| actor.wait(id, "", reply));
            assert_eq!(ended.await.unwrap().code, 0);
            let deleted = pod.ask(move |actor, reply| actor.delete(id, "", reply));
            deleted.await.unwrap();
        }
        assert_eq!(node.engine.lock().left(), Left::default());
        let topics = node.topics();
        let ends = [
            "/tasks/exit",
            "/tasks/exit",
            "/tasks/delete",
            "/tasks/delete",
        ];
        assert!(topics.ends_with(&ends.map(str::to_owned)), "{topics:?}");
        assert_eq!(node.archive.lock().len(), 1);
    });
}

/// Creates and starts a sidecar with the first OOM score, and then an app with the second.
async fn create_with_scores(node: &SimNode, pod: &Pod, [proxy, web]: [i32; 2]) {
    for (id, oom_score) in [("proxy", proxy), ("web", web)] {
        let bundle = SimBundle {
            oom_score,
            ..bundle(id, Program::default())
        };
        create_from(node, pod, id, bundle).await;
        start(pod, id).await;
    }
    a_moment().await;
}

/// Waits long enough for all work that takes no simulated time.
async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

fn scores(node: &SimNode, id: &str) -> Vec<i32> {
    node.engine.lock().scores_of(id)
}

#[test]
fn a_sidecar_is_as_safe_from_the_oom_killer_as_its_app() {
    on_a_node(async |node, pod| {
        create_with_scores(&node, &pod, [900, 100]).await;
        assert_eq!(scores(&node, "proxy"), [100]);
        assert_eq!(scores(&node, "web"), [100]);
    });
}

#[test]
fn a_sidecar_whose_score_may_not_be_lowered_lives_with_it_and_its_next_life_has_the_right_one() {
    on_a_node(async |node, pod| {
        node.engine.lock().may_lower_scores = false;
        create_with_scores(&node, &pod, [900, 100]).await;
        assert_eq!(scores(&node, "proxy"), [900]);
        node.engine.init_dies("proxy", ExitStatus::Code(1));
        a_moment().await;
        assert!(node.engine.lock().is_running("proxy"));
        assert_eq!(scores(&node, "proxy"), [100]);
    });
}

#[test]
fn a_pod_keeps_its_memory_as_long_as_somebody_uses_that() {
    on_a_node(async |node, pod| {
        let slow = Program {
            on_stop: OnStop::Ends(Duration::from_secs(20), ExitStatus::Code(0)),
            ..Program::default()
        };
        let uses = |id, mebibytes: u64| node.engine.lock().uses_memory(id, mebibytes << 20);
        set_memory(&node, 1_000);
        create_from(&node, &pod, "proxy", phased("proxy", 100, slow)).await;
        start(&pod, "proxy").await;
        create_from(&node, &pod, "web", phased("web", 800, Program::default())).await;
        start(&pod, "web").await;
        a_moment().await;
        assert_eq!(memory(&node), 900);
        // When the app has exited, the run is complete, and the sidecar takes some time to exit.
        uses("proxy", 95);
        node.engine.init_dies("web", ExitStatus::Code(0));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(memory(&node), 900);
        uses("proxy", 50);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(memory(&node), 100);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(memory(&node), 1_000);
    });
}

/// A fault plan: the engine reports a release late, and a restart in place takes some time. The
/// plan records the engine's calls for the sidecar.
#[derive(Clone, Debug, Default)]
struct LateNews(Arc<Mutex<Vec<EngineCall>>>);

impl FaultPlan for LateNews {
    fn of(&mut self, call: EngineCall, id: &str) -> Fault {
        if id == "proxy" {
            self.0.lock().unwrap().push(call);
        }
        match call {
            EngineCall::CreateAgain => Fault::delay(Duration::from_millis(20)),
            _ => Fault::none(),
        }
    }

    fn answers_after(&mut self, call: EngineCall, _: &str) -> Duration {
        match call {
            EngineCall::Release => Duration::from_millis(3),
            _ => Duration::ZERO,
        }
    }
}

/// A sidecar exits before the actor learns that it was released. At the same moment another
/// container is due to be killed. The cleanup of the sidecar is put off, and when the cleanup is
/// due, the sidecar is already being restarted in place.
#[test]
fn what_is_to_live_again_is_not_cleared_away_by_a_timer_that_was_set_before() {
    let news = LateNews::default();
    on_a_node_with(
        SimEngine::with_fault_plan(news.clone()),
        async |node, pod| {
            let of = |id, program| {
                let mut bundle = bundle(id, program);
                let annotations = [
                    ("usher/sidecars", "logs proxy"),
                    ("grace-period.usher/logs", "1s"),
                ];
                let annotations =
                    annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
                bundle.annotations.extend(annotations);
                bundle
            };
            create_from(&node, &pod, "logs", of("logs", Program::deaf())).await;
            start(&pod, "logs").await;
            kill(&pod, "logs", 15).await;
            tokio::time::sleep(Duration::from_millis(998)).await;
            create_from(&node, &pod, "proxy", of("proxy", Program::default())).await;
            let begun = pod.clone();
            let started = tokio::spawn(async move { start(&begun, "proxy").await });
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(node.engine.lock().is_running("proxy"));
            node.engine.init_dies("proxy", ExitStatus::Code(1));
            // The actor learns of the exit before its timer fires.
            tokio::time::advance(Duration::from_millis(2)).await;
            started.await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(node.engine.lock().is_running("proxy"));
            let done = news.0.lock().unwrap();
            assert!(done.contains(&EngineCall::CreateAgain) && !done.contains(&EngineCall::Forget));
        },
    );
}
