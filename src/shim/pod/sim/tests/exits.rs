//! Tests that an exit is published only when the caller has read the output.

use containerd_shim_protos::events::task::TaskExit;
use containerd_shim_protos::protobuf::Message;

use super::*;

fn read_for(lasts: Duration, program: Program) -> Program {
    Program {
        is_read_for: Some(lasts),
        ..program
    }
}

fn exits(node: &SimNode) -> usize {
    let topics = node.topics().into_iter();
    topics.filter(|topic| topic == "/tasks/exit").count()
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn run_exec(node: &SimNode, pod: &Pod, exec_id: &'static str, program: Program) {
    let key = ("web".to_owned(), exec_id.to_owned());
    node.engine.lock().execs.insert(key, program);
    exec(pod, "web", exec_id).await.unwrap();
    let started = pod.ask(move |actor, reply| actor.start_exec("web", exec_id, reply));
    started.await.unwrap();
}

#[test]
fn a_container_reads_running_until_its_output_is_read_and_is_dead_to_all_else() {
    on_a_node(async |node, pod| {
        create(&node, &pod, "web", read_for(ms(150), Program::default())).await;
        start(&pod, "web").await;
        let waiting = pod.clone();
        let waiting = tokio::spawn(async move {
            let ended = waiting.ask(|actor, reply| actor.wait("web", "", reply));
            ended.await.unwrap().code
        });
        node.engine.init_dies("web", ExitStatus::Code(3));
        tokio::time::sleep(ms(140)).await;
        assert_eq!(status(&pod, "web", "").await, Status::Running);
        assert_eq!(exits(&node), 0);
        assert!(!waiting.is_finished());
        let refused = delete(&pod, "web", "").await.unwrap_err();
        assert_eq!(refused.kind, Kind::FailedPrecondition);
        assert!(refused.message.contains("it is running"), "{refused}");
        let refused = exec(&pod, "web", "late").await.unwrap_err();
        assert!(refused.message.contains("is stopped"), "{refused}");
        for signal in [0, 9, 15] {
            let call = KillCall {
                id: "web".to_owned(),
                exec_id: String::new(),
                signal,
                all: false,
                call_timeout: None,
            };
            let killed = pod.ask(move |actor, reply| actor.kill(call, reply));
            assert_eq!(killed.await.unwrap_err().kind, Kind::NotFound, "{signal}");
        }
        tokio::time::sleep(ms(20)).await;
        assert_eq!(exits(&node), 1);
        assert_eq!(waiting.await.unwrap(), 3);
        assert!(matches!(status(&pod, "web", "").await, Status::Stopped(_)));
        assert_eq!(delete(&pod, "web", "").await.unwrap().exit.code, 3);
    });
}

#[test]
fn an_exec_reads_running_until_its_output_is_read() {
    on_a_node(async |node, pod| {
        create(&node, &pod, "web", Program::default()).await;
        start(&pod, "web").await;
        run_exec(&node, &pod, "sh", read_for(ms(150), Program::exits(3))).await;
        tokio::time::sleep(ms(140)).await;
        assert_eq!(status(&pod, "web", "sh").await, Status::Running);
        assert_eq!(exits(&node), 0);
        let refused = delete(&pod, "web", "sh").await.unwrap_err();
        assert_eq!(refused.kind, Kind::FailedPrecondition);
        tokio::time::sleep(ms(20)).await;
        assert_eq!(exits(&node), 1);
        assert_eq!(delete(&pod, "web", "sh").await.unwrap().exit.code, 3);
    });
}

#[test]
fn an_init_and_its_execs_are_told_within_two_seconds_the_execs_first() {
    on_a_node(async |node, pod| {
        let hour = Duration::from_secs(3_600);
        create(&node, &pod, "web", read_for(hour, Program::default())).await;
        start(&pod, "web").await;
        run_exec(&node, &pod, "sh", read_for(hour, Program::default())).await;
        node.engine.exec_dies("web", "sh", ExitStatus::Code(5));
        tokio::time::sleep(ms(500)).await;
        let begun = Instant::now();
        node.engine.init_dies("web", ExitStatus::Code(3));
        let ended = pod.ask(|actor, reply| actor.wait("web", "", reply));
        assert_eq!(ended.await.unwrap().code, 3);
        assert_eq!(begun.elapsed().as_secs(), 2);
        let events = node.events.lock();
        let codes = events.iter().filter_map(|(_, event)| {
            let packed = event.pack().unwrap();
            let exit = TaskExit::parse_from_bytes(&packed.value).ok()?;
            (event.topic() == "/tasks/exit").then_some(exit.exit_status)
        });
        assert_eq!(codes.collect::<Vec<_>>(), [5, 3]);
    });
}

#[test]
fn order_goes_by_the_true_exit() {
    on_a_node(async |node, pod| {
        create(&node, &pod, "proxy", Program::default()).await;
        start(&pod, "proxy").await;
        let web = read_for(Duration::from_secs(1), Program::default());
        create(&node, &pod, "web", web).await;
        start(&pod, "web").await;
        node.engine.init_dies("web", ExitStatus::Code(0));
        tokio::time::sleep(ms(50)).await;
        // The run is complete, and the sidecar was asked to stop.
        assert!(!node.engine.lock().is_running("proxy"));
        assert!(matches!(
            status(&pod, "proxy", "").await,
            Status::Stopped(_)
        ));
        assert_eq!(status(&pod, "web", "").await, Status::Running);
    });
}

#[test]
fn what_never_started_is_deleted_though_nobody_reads_its_output() {
    on_a_node(async |node, pod| {
        let hour = Duration::from_secs(3_600);
        create(&node, &pod, "web", read_for(hour, Program::default())).await;
        let begun = Instant::now();
        delete(&pod, "web", "").await.unwrap();
        assert!(begun.elapsed() < ms(100));
        assert_eq!(node.engine.lock().left(), Left::default());
    });
}

/// Deletes a task as containerd does: first sends SIGKILL to all processes of the task, even if the
/// task has exited.
async fn delete_by_force(pod: &Pod, id: &'static str) {
    let call = KillCall {
        id: id.to_owned(),
        exec_id: String::new(),
        signal: 9,
        all: true,
        call_timeout: None,
    };
    let _ = pod.ask(move |actor, reply| actor.kill(call, reply)).await;
    delete(pod, id, "").await.unwrap();
}

/// Returns two numbers from the record of the pod: SIGKILLs that are counted for containers, and
/// events of SIGKILLs.
fn recorded_kills(node: &SimNode) -> (u32, usize) {
    let archive = node.archive.lock();
    let (_, record) = archive.last().unwrap();
    let containers = record.containers.iter();
    let kills = containers.flat_map(|container| &container.kills);
    let events = record.events.iter();
    let events = events.filter(|event| event.what.enum_value() == Ok(api::What::WHAT_KILLED));
    (kills.map(|kills| kills.count).sum(), events.count())
}

#[test]
fn a_sigkill_that_precedes_the_deletion_of_an_ended_task_is_no_kill_of_it() {
    for has_own_pid_namespace in [true, false] {
        on_a_node(async |node, pod| {
            let bundle = SimBundle {
                has_own_pid_namespace,
                ..bundle("web", Program::default())
            };
            create_from(&node, &pod, "web", bundle).await;
            start(&pod, "web").await;
            node.engine.init_dies("web", ExitStatus::Code(0));
            let ended = pod.ask(|actor, reply| actor.wait("web", "", reply));
            assert_eq!(ended.await.unwrap().code, 0);
            delete_by_force(&pod, "web").await;
            assert_eq!(recorded_kills(&node), (0, 0), "{has_own_pid_namespace}");
        });
    }
}

#[test]
fn a_sigkill_that_ends_a_task_is_recorded_once_whatever_precedes_its_deletion() {
    on_a_node(async |node, pod| {
        let bundle = SimBundle {
            has_own_pid_namespace: false,
            ..bundle("web", Program::default())
        };
        create_from(&node, &pod, "web", bundle).await;
        start(&pod, "web").await;
        kill(&pod, "web", 9).await;
        let ended = pod.ask(|actor, reply| actor.wait("web", "", reply));
        assert_eq!(ended.await.unwrap().code, 137);
        delete_by_force(&pod, "web").await;
        assert_eq!(recorded_kills(&node), (1, 1));
    });
}
