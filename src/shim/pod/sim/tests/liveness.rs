//! Tests that the actor answers even if the core has a faulty rule.

use super::*;

/// Runs a pod with a core that has a faulty rule, from the first Create to a Delete.
fn a_pod_lives_with_a_faulty_rule(is_due: bool) {
    on_a_node(async |node, pod| {
        let broken = pod.ask(move |actor, reply| {
            actor.core.break_a_rule(is_due);
            let _ = reply.send(Ok(()));
        });
        broken.await.unwrap();
        for id in ["proxy", "web"] {
            create(&node, &pod, id, Program::default()).await;
            start(&pod, id).await;
        }
        assert!(node.engine.lock().is_running("web"));
        tokio::time::sleep(Duration::from_secs(300)).await;
        let state = pod.ask(|actor, reply| actor.state("web", "", reply)).await;
        assert_eq!(state.unwrap().status, Status::Running);
        kill(&pod, "web", 9).await;
        let ended = pod.ask(|actor, reply| actor.wait("web", "", reply));
        assert_eq!(ended.await.unwrap().code, 137);
        let deleted = pod.ask(|actor, reply| actor.delete("web", "", reply));
        assert!(deleted.await.is_ok());
    });
}

#[test]
fn a_pod_lives_though_a_rule_goes_round_in_circles() {
    a_pod_lives_with_a_faulty_rule(true);
}

#[test]
fn a_pod_lives_though_a_timer_is_always_due() {
    a_pod_lives_with_a_faulty_rule(false);
}
