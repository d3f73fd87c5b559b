//! Tests of calls that overlap with other calls for the same container.

use super::*;
use crate::calls::CheckpointCall;

/// A fault plan that chooses the fault of a call by the earlier calls, and records all calls.
#[derive(Clone)]
struct Script {
    begun: Arc<Mutex<Vec<(Instant, EngineCall, String)>>>,
    /// Returns the fault of a call, given the number of earlier calls of the same kind.
    fault: fn(EngineCall, usize) -> Fault,
    answers_after: fn(EngineCall) -> Duration,
}

impl Script {
    fn new(fault: fn(EngineCall, usize) -> Fault) -> Script {
        Script {
            begun: Arc::default(),
            fault,
            answers_after: |_| Duration::ZERO,
        }
    }

    fn when(&self, call: EngineCall) -> Vec<Instant> {
        let begun = self.begun.lock().unwrap();
        let its = begun.iter().filter(|(_, it, _)| *it == call);
        its.map(|(at, ..)| *at).collect()
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").finish_non_exhaustive()
    }
}

impl FaultPlan for Script {
    fn of(&mut self, call: EngineCall, id: &str) -> Fault {
        let before = self.when(call).len();
        let begun = (Instant::now(), call, id.to_owned());
        self.begun.lock().unwrap().push(begun);
        (self.fault)(call, before)
    }

    fn answers_after(&mut self, call: EngineCall, _: &str) -> Duration {
        (self.answers_after)(call)
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Runs a container, and adds an exec whose program ends when its stdin is closed.
async fn cat(node: &SimNode, pod: &Pod) {
    create(node, pod, "web", Program::default()).await;
    start(pod, "web").await;
    let key = ("web".to_owned(), "cat".to_owned());
    let program = Program {
        reads_stdin: true,
        ..Program::deaf()
    };
    node.engine.lock().execs.insert(key, program);
    exec(pod, "web", "cat").await.unwrap();
}

async fn close_stdin(pod: &Pod) {
    let closed = pod.ask(|actor, reply| actor.close_stdin("web", "cat", reply));
    closed.await.unwrap();
}

async fn start_cat(pod: &Pod) {
    let started = pod.ask(|actor, reply| actor.start_exec("web", "cat", reply));
    started.await.unwrap();
}

async fn end_of_cat(pod: &Pod) -> u32 {
    let ended = pod.ask(|actor, reply| actor.wait("web", "cat", reply));
    let ended = tokio::time::timeout(secs(60), ended).await;
    ended.expect("it ends").unwrap().code
}

#[test]
fn a_stdin_that_is_closed_before_the_start_of_an_exec_is_closed() {
    on_a_node(async |node, pod| {
        cat(&node, &pod).await;
        close_stdin(&pod).await;
        start_cat(&pod).await;
        assert_eq!(end_of_cat(&pod).await, 0);
    });
}

#[test]
fn a_stdin_that_is_closed_while_its_exec_starts_is_closed() {
    on_a_node_with(SimEngine::with_fault_plan(Slow), async |node, pod| {
        cat(&node, &pod).await;
        let closes = async {
            tokio::time::sleep(secs(1)).await;
            close_stdin(&pod).await;
        };
        tokio::join!(start_cat(&pod), closes);
        assert_eq!(end_of_cat(&pod).await, 0);
    });
}

/// Runs a container until it has exited. Its cgroup and runtime state stay until its deletion,
/// because it has poststop hooks.
async fn ended(node: &SimNode, pod: &Pod) {
    let mut bundle = bundle("web", Program::default());
    bundle.has_poststop_hooks = true;
    create_from(node, pod, "web", bundle).await;
    start(pod, "web").await;
    kill(pod, "web", 9).await;
    let ended = pod.ask(|actor, reply| actor.wait("web", "", reply));
    ended.await.unwrap();
}

#[test]
fn a_second_delete_joins_the_first() {
    let script = Script::new(|call, _| match call {
        EngineCall::Delete => Fault::delay(secs(5)),
        _ => Fault::none(),
    });
    on_a_node_with(
        SimEngine::with_fault_plan(script.clone()),
        async |node, pod| {
            ended(&node, &pod).await;
            let second = async {
                tokio::time::sleep(secs(1)).await;
                delete(&pod, "web", "").await
            };
            let (first, second) = tokio::join!(delete(&pod, "web", ""), second);
            assert_eq!(first.as_ref().map(|deleted| deleted.exit.code), Ok(137));
            assert_eq!(first, second);
            assert_eq!(script.when(EngineCall::Delete).len(), 1);
            let later = delete(&pod, "web", "").await;
            assert_eq!(later.unwrap_err().kind, Kind::NotFound);
        },
    );
}

#[test]
fn deletes_that_fail_together_can_be_tried_again() {
    let script = Script::new(|call, before| match (call, before) {
        (EngineCall::Delete, 0) => Fault::failure(secs(5), "out of order"),
        _ => Fault::none(),
    });
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        ended(&node, &pod).await;
        let both = tokio::join!(delete(&pod, "web", ""), delete(&pod, "web", ""));
        assert_eq!(both.0.as_ref().unwrap_err().message, "out of order");
        assert_eq!(both.0, both.1);
        assert!(delete(&pod, "web", "").await.is_ok());
        assert_eq!(node.engine.lock().left(), Left::default());
    });
}

#[test]
fn a_second_delete_joins_one_that_waits_for_the_creation() {
    on_a_node_with(SimEngine::with_fault_plan(Slow), async |node, pod| {
        let deletion = async |after| {
            tokio::time::sleep(secs(after)).await;
            delete(&pod, "web", "").await
        };
        let creation = create(&node, &pod, "web", Program::default());
        let (created, one, two) = tokio::join!(creation, deletion(1), deletion(2));
        assert_eq!(one.as_ref().map(|deleted| deleted.pid), Ok(created));
        assert_eq!(one, two);
    });
}

#[test]
fn a_failed_checkpoint_does_not_hurry_the_next_life_of_a_container() {
    let script = Script::new(|call, _| match call {
        EngineCall::Checkpoint => Fault::failure(secs(3), "no criu"),
        EngineCall::Forget => Fault::delay(secs(10)),
        _ => Fault::none(),
    });
    on_a_node_with(
        SimEngine::with_fault_plan(script.clone()),
        async |node, pod| {
            create(&node, &pod, "proxy", Program::default()).await;
            start(&pod, "proxy").await;
            let crash = async {
                tokio::time::sleep(secs(1)).await;
                node.engine.init_dies("proxy", ExitStatus::Code(1));
            };
            let checkpoint = pod.ask(|actor, reply| {
                let call = CheckpointCall {
                    id: "proxy".to_owned(),
                    path: "/checkpoint".to_owned(),
                    options: None,
                };
                actor.checkpoint(call, reply);
            });
            let (written, ()) = tokio::join!(checkpoint, crash);
            assert!(written.is_err());
            tokio::time::sleep(secs(60)).await;
            assert!(node.engine.lock().is_running("proxy"));
            let (forgotten, again) = (
                script.when(EngineCall::Forget),
                script.when(EngineCall::CreateAgain),
            );
            assert_eq!((forgotten.len(), again.len()), (1, 1));
            assert!(again[0] >= forgotten[0] + secs(10));
        },
    );
}

/// Sets the memory limit of a container, and returns the outcome.
async fn update(pod: &Pod, mebibytes: u64) -> Result<(), CallError> {
    let limit = mebibytes << 20;
    let resources = format!(r#"{{"memory":{{"limit":{limit}}}}}"#).into_bytes();
    let updated = pod.ask(move |actor, reply| actor.update("web", resources, reply));
    updated.await
}

/// Starts a pod with one app of 100 MiB. The annotation `usher/cgroup-sizing` gives the pod's
/// cgroup the size that the pod's current phase needs. Checks the pod's memory limit.
async fn sized(node: &SimNode, pod: &Pod) {
    size(node, pod).await;
    assert_eq!(memory(node), 100);
}

/// Starts the same pod as `sized`, but does not check the limit, because the kernel may not have
/// lowered it yet.
async fn size(node: &SimNode, pod: &Pod) {
    set_memory(node, 1_000);
    let mut bundle = phased("web", 100, Program::default());
    bundle.annotations.remove("usher/sidecars");
    create_from(node, pod, "web", bundle).await;
    start(pod, "web").await;
    a_moment().await;
}

/// The memory limit in MiB that systemd was told; 0 if it was told none.
fn told(node: &SimNode) -> u64 {
    let told = node.engine.told_systemd(UID, Knob::Memory);
    told.unwrap_or_default() >> 20
}

#[test]
fn updates_that_overlap_follow_one_another_and_one_that_fails_undoes_itself_alone() {
    let script = Script::new(|call, before| match (call, before) {
        (EngineCall::Update, 0) => Fault::failure(secs(5), "no such cpu"),
        (EngineCall::Update, 1) => Fault::delay(secs(1)),
        (EngineCall::Update, 2) => Fault::failure(secs(1), "no such cpu"),
        _ => Fault::none(),
    });
    on_a_node_with(
        SimEngine::with_fault_plan(script.clone()),
        async |node, pod| {
            sized(&node, &pod).await;
            let fails = update(&pod, 300);
            let (one, two, three) = tokio::join!(fails, update(&pod, 200), update(&pod, 150));
            assert!(one.is_err() && two.is_ok() && three.is_err());
            assert_eq!(memory(&node), 200);
            let begun = script.when(EngineCall::Update);
            let apart: Vec<_> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert_eq!(apart, [secs(5), secs(1)]);
        },
    );
}

#[test]
fn a_pod_is_lowered_after_its_container_and_raised_before_it() {
    let script = Script::new(|call, _| match call {
        EngineCall::Update => Fault::delay(secs(5)),
        _ => Fault::none(),
    });
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        sized(&node, &pod).await;
        for (mebibytes, meanwhile) in [(300, 300), (150, 300)] {
            let at_work = async {
                tokio::time::sleep(secs(4)).await;
                memory(&node)
            };
            let (updated, seen) = tokio::join!(update(&pod, mebibytes), at_work);
            updated.unwrap();
            assert_eq!(seen, meanwhile);
            a_moment().await;
            assert_eq!(memory(&node), mebibytes);
        }
    });
}

/// systemd answers before it writes the values that it was told.
#[test]
fn a_pod_is_lowered_although_systemd_writes_a_former_limit_meanwhile() {
    let ms = Duration::from_millis;
    let mut script = Script::new(|call, _| match call {
        EngineCall::LowerMemory => Fault::delay(Duration::from_millis(10)),
        _ => Fault::none(),
    });
    script.answers_after = |call| match call {
        EngineCall::LowerMemory => Duration::from_millis(20),
        _ => Duration::ZERO,
    };
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        node.engine.lock().has_systemd = true;
        let told = || told(&node);
        size(&node, &pod).await;
        tokio::time::sleep(secs(1)).await;
        assert_eq!((memory(&node), told()), (100, 100));
        // The limit that was told before, a lower one, and one that kubelet interferes with.
        for (of_kubelet, wanted, again_after) in
            [(400, 100, None), (200, 50, None), (200, 60, Some(15))]
        {
            set_memory(&node, of_kubelet);
            update(&pod, wanted).await.unwrap();
            if let Some(after) = again_after {
                tokio::time::sleep(ms(after)).await;
                assert_eq!(memory(&node), wanted);
                set_memory(&node, of_kubelet);
            }
            tokio::time::sleep(secs(2)).await;
            assert_eq!((memory(&node), told()), (wanted, wanted));
        }
    });
}

/// kubelet may write the pod's own values after it has updated a container.
#[test]
fn a_pod_has_its_size_although_kubelet_writes_its_own_afterwards() {
    on_a_node_with(SimEngine::default(), async |node, pod| {
        sized(&node, &pod).await;
        for (after, of_kubelet) in [(0, 800), (2, 600), (5, 400)] {
            update(&pod, 150).await.unwrap();
            assert_eq!(memory(&node), 150);
            tokio::time::sleep(secs(after)).await;
            set_memory(&node, of_kubelet);
            tokio::time::sleep(secs(5)).await;
            assert_eq!(memory(&node), 150);
        }
    });
}

/// systemctl fails, so systemd still has the former limit and writes it at a daemon-reload.
#[test]
fn systemd_is_told_a_size_again_after_a_failure() {
    let script = Script::new(|call, before| match (call, before) {
        (EngineCall::TellManager, 2..=4) => Fault::failure(secs(1), "connection refused"),
        _ => Fault::none(),
    });
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        node.engine.lock().has_systemd = true;
        let told = || told(&node);
        size(&node, &pod).await;
        tokio::time::sleep(secs(1)).await;
        update(&pod, 200).await.unwrap();
        tokio::time::sleep(secs(2)).await;
        assert_eq!((memory(&node), told()), (200, 100));
        node.engine.reload_systemd(UID);
        update(&pod, 300).await.unwrap();
        assert_eq!(memory(&node), 300);
        tokio::time::sleep(secs(30)).await;
        assert_eq!((memory(&node), told()), (300, 300));
    });
}

/// kubelet updates the containers of a pod that shrinks, and then tells systemd the pod's values.
#[test]
fn kubelets_values_are_not_lost_while_systemd_is_told_the_shims() {
    let mut script = Script::new(|call, _| match call {
        EngineCall::TellManager => Fault::delay(Duration::from_millis(100)),
        _ => Fault::none(),
    });
    script.answers_after = |call| match call {
        EngineCall::TellManager => Duration::from_millis(100),
        _ => Duration::ZERO,
    };
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        node.engine.lock().has_systemd = true;
        size(&node, &pod).await;
        tokio::time::sleep(secs(1)).await;
        update(&pod, 90).await.unwrap();
        set_memory(&node, 80);
        tokio::time::sleep(secs(10)).await;
        assert_eq!((memory(&node), told(&node)), (80, 80));
    });
}

/// At the end of a container's scope, systemd writes the values of its slice again. systemd confirms
/// a new value before it writes the value.
#[test]
fn a_value_that_systemd_writes_at_the_same_time_does_not_stay() {
    on_a_node_with(SimEngine::default(), async |node, pod| {
        node.engine.lock().has_systemd = true;
        size(&node, &pod).await;
        let quotas = || {
            let told = node.engine.told_systemd(UID, Knob::CpuQuota);
            (node.engine.pod_size(UID, Knob::CpuQuota), told)
        };
        tokio::time::sleep(secs(1)).await;
        assert_eq!(quotas(), (10_000, Some(10_000)));
        node.engine.lock().systemd_interferes = true;
        let resources = br#"{"cpu":{"quota":20000,"period":100000}}"#.to_vec();
        let updated = pod.ask(move |actor, reply| actor.update("web", resources, reply));
        updated.await.unwrap();
        assert!(!node.engine.lock().systemd_interferes, "it did not write");
        tokio::time::sleep(secs(1)).await;
        assert_eq!(quotas(), (20_000, Some(20_000)));
    });
}

/// Runs an init container of 100 MiB in a pod whose cgroup systemd manages. An app of 200 MiB waits
/// for the init container. Returns when systemd has the limit of this phase.
async fn initializing(node: &SimNode, pod: &Pod) {
    node.engine.lock().has_systemd = true;
    set_memory(node, 1_000);
    for (name, mebibytes) in [("setup", 100), ("web", 200)] {
        let mut bundle = phased(name, mebibytes, Program::default());
        bundle.annotations.remove("usher/sidecars");
        let init = ("usher/init".to_owned(), "setup".to_owned());
        bundle.annotations.extend([init]);
        create_from(node, pod, name, bundle).await;
        start(pod, name).await;
    }
    tokio::time::sleep(secs(10)).await;
    assert_eq!((memory(node), told(node)), (108, 108));
}

/// Until systemd has been told the limit of a new phase, it may write the former one: at the end of
/// an init container's scope, or at a daemon-reload.
#[test]
fn an_app_is_executed_when_systemd_holds_no_lower_limit() {
    let script = Script::new(|call, _| match call {
        EngineCall::TellManager => Fault::delay(Duration::from_millis(500)),
        _ => Fault::none(),
    });
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        initializing(&node, &pod).await;
        node.engine.init_dies("setup", ExitStatus::Code(0));
        let executed = async {
            while !node.engine.lock().is_running("web") {
                node.engine.reload_systemd(UID);
                a_moment().await;
            }
        };
        let executed = tokio::time::timeout(secs(10), executed).await;
        executed.expect("it is executed");
        node.engine.reload_systemd(UID);
        assert!(memory(&node) >= 200, "it has {}", memory(&node));
    });
}

#[test]
fn an_app_waits_for_systemd_for_five_seconds_at_most() {
    let script = Script::new(|call, before| match (call, before) {
        (EngineCall::TellManager, 4..) => Fault::failure(secs(30), "no answer"),
        _ => Fault::none(),
    });
    for is_killed in [false, true] {
        script.begun.lock().unwrap().clear();
        let engine = SimEngine::with_fault_plan(script.clone());
        on_a_node_with(engine, async |node, pod| {
            initializing(&node, &pod).await;
            node.engine.init_dies("setup", ExitStatus::Code(0));
            tokio::time::sleep(secs(4)).await;
            assert!(!node.engine.lock().is_running("web"));
            if is_killed {
                kill(&pod, "web", 9).await;
                let ended = pod.ask(|actor, reply| actor.wait("web", "", reply));
                let ended = tokio::time::timeout(Duration::from_millis(500), ended).await;
                assert_eq!(ended.expect("it ends").unwrap().code, 137);
            } else {
                tokio::time::sleep(secs(2)).await;
                assert!(node.engine.lock().is_running("web"));
            }
        });
    }
}

#[test]
fn an_app_does_not_wait_for_systemd_after_systemctl_has_failed() {
    let script = Script::new(|call, before| match (call, before) {
        (EngineCall::TellManager, 4..) => Fault::failure(secs(2), "connection refused"),
        _ => Fault::none(),
    });
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        initializing(&node, &pod).await;
        node.engine.init_dies("setup", ExitStatus::Code(0));
        for expected in [false, true] {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            assert_eq!(node.engine.lock().is_running("web"), expected);
        }
    });
}

/// An exec whose start is reported after the exit of its container was published.
#[test]
fn each_exec_that_was_started_has_an_exit_before_its_task_is_deleted() {
    let mut script = Script::new(|call, _| match call {
        EngineCall::Delete => Fault::delay(secs(2)),
        _ => Fault::none(),
    });
    script.answers_after = |call| match call {
        EngineCall::Exec => secs(5),
        _ => Duration::ZERO,
    };
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        create(&node, &pod, "proxy", Program::default()).await;
        start(&pod, "proxy").await;
        let key = ("proxy".to_owned(), "sh".to_owned());
        // The output is read for longer than the task exists.
        let program = Program {
            is_read_for: Some(secs(3_600)),
            ..Program::default()
        };
        node.engine.lock().execs.insert(key, program);
        assert_eq!(exec(&pod, "proxy", "sh").await, Ok(()));
        let started = pod.ask(|actor, reply| actor.start_exec("proxy", "sh", reply));
        let ends = async {
            tokio::time::sleep(secs(1)).await;
            kill(&pod, "proxy", 9).await;
            tokio::time::sleep(secs(3)).await;
            delete(&pod, "proxy", "").await
        };
        let (started, deleted) = tokio::join!(started, ends);
        assert!(deleted.is_ok(), "{deleted:?}");
        let topics = node.topics();
        let count = |topic| topics.iter().filter(|it| *it == topic).count();
        let started_events = count("/tasks/exec-started");
        assert_eq!(usize::from(started.is_ok()), started_events, "{topics:?}");
        assert_eq!(count("/tasks/exit"), 1 + started_events, "{topics:?}");
    });
}

#[test]
fn an_update_that_waits_ends_with_its_task() {
    let script = Script::new(|call, _| match call {
        EngineCall::Update => Fault::delay(secs(10)),
        _ => Fault::none(),
    });
    on_a_node_with(SimEngine::with_fault_plan(script), async |node, pod| {
        sized(&node, &pod).await;
        let deletion = async {
            tokio::time::sleep(secs(1)).await;
            kill(&pod, "web", 9).await;
            let ended = pod.ask(|actor, reply| actor.wait("web", "", reply));
            ended.await.unwrap();
            delete(&pod, "web", "").await
        };
        let (one, two, deleted) = tokio::join!(update(&pod, 300), update(&pod, 200), deletion);
        assert!(deleted.is_ok());
        assert!(one.is_err() && two.is_err(), "{one:?} {two:?}");
    });
}

#[test]
fn a_container_is_raised_when_the_kernel_has_lowered_its_pod_and_lowered_at_once() {
    let script = Script::new(|call, before| match (call, before) {
        (EngineCall::LowerMemory, 0) => Fault::delay(secs(30)),
        _ => Fault::none(),
    });
    on_a_node_with(
        SimEngine::with_fault_plan(script.clone()),
        async |node, pod| {
            let begun = Instant::now();
            size(&node, &pod).await;
            assert_eq!(memory(&node), 1_000);
            update(&pod, 50).await.unwrap();
            assert!(begun.elapsed() < secs(1));
            let served = async {
                tokio::time::sleep(secs(1)).await;
                assert_eq!(status(&pod, "web", "").await, Status::Running);
                assert_eq!(memory(&node), 1_000, "nothing is written meanwhile");
                begun.elapsed()
            };
            let (raised, lowered, served) =
                tokio::join!(update(&pod, 300), update(&pod, 200), served);
            assert!(raised.is_ok() && lowered.is_ok());
            assert!(served < secs(2));
            assert!(begun.elapsed() >= secs(30) && begun.elapsed() < secs(31));
            a_moment().await;
            assert_eq!(memory(&node), 200);
        },
    );
}

/// A program ends while its release is under way. At the same moment another container is due to
/// get a signal.
#[test]
fn what_is_being_released_is_not_cleared_away_by_a_timer() {
    let mut script = Script::new(|_, _| Fault::none());
    script.answers_after = |call| match call {
        EngineCall::Release => Duration::from_millis(30),
        _ => Duration::ZERO,
    };
    on_a_node_with(
        SimEngine::with_fault_plan(script.clone()),
        async |node, pod| {
            let of = |id, program| {
                let mut bundle = bundle(id, program);
                let annotations = [
                    ("usher/sidecars", "logs"),
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
            let asked = Instant::now();
            tokio::time::sleep(Duration::from_millis(990)).await;
            create_from(&node, &pod, "web", of("web", Program::deaf())).await;
            let begun = pod.clone();
            let started = tokio::spawn(async move {
                start(&begun, "web").await;
                Instant::now()
            });
            tokio::time::sleep_until(asked + Duration::from_millis(998)).await;
            assert!(node.engine.lock().is_running("web"));
            node.engine.init_dies("web", ExitStatus::Code(1));
            // The actor learns of the exit before its timer fires.
            tokio::time::advance(Duration::from_millis(2)).await;
            let told = started.await.unwrap();
            tokio::time::sleep(secs(1)).await;
            let begun = script.begun.lock().unwrap();
            let is_early =
                |(at, call, id): &_| *call == EngineCall::Forget && id == "web" && *at < told;
            assert!(!begun.iter().any(is_early), "{begun:?} {told:?}");
        },
    );
}
