//! Clients that vanish during a call. The shim must leave nothing incomplete. A client that
//! connects again must find a consistent state.

use std::time::Duration;

use containerd_shim_protos::api::StartRequest;
use serde_json::{Value, json};
use ttrpc::Code;

use crate::harness::{BareShim, Containerd, Gates, PATIENCE, eventually, runtime_under_test};

const MS: Duration = Duration::from_millis(1);

fn annotate(annotations: &[(&str, &str)]) -> impl FnOnce(&mut Value) {
    let annotations: Vec<_> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    move |config| config["annotations"] = Value::Object(annotations.into_iter().collect())
}

const WAITS: [(&str, &str); 2] = [("usher/sidecars", "proxy"), ("usher/start-mode", "Block")];

/// Starts a shim and creates a container `web` with these annotations.
fn created<'host>(host: &'host Containerd, annotations: &[(&str, &str)]) -> BareShim<'host> {
    let args = ["/bin/witness", "web"];
    let edit = annotate(annotations);
    let shim = BareShim::start(host, &runtime_under_test(), "web", &args, edit);
    shim.api().create(&shim.create_request()).expect("create");
    shim
}

/// True if the container has no cgroup, runtime state or process left.
fn no_trace(host: &Containerd, id: &str) -> bool {
    let own = format!("/{id}");
    !host.remains().iter().any(|trace| trace.ends_with(&own))
}

#[test]
fn a_client_that_vanishes_during_create_leaves_nothing_half_made() {
    let host = Containerd::start();
    let runtime = runtime_under_test();
    // The client vanishes after this many milliseconds: before the OCI runtime runs, while the OCI
    // runtime runs, or shortly before the OCI runtime exits.
    for (number, after) in [1, 3, 6, 10, 20, 30, 40].into_iter().enumerate() {
        let id = format!("a{number}");
        let shim = BareShim::start(&host, &runtime, &id, &["/bin/witness", &id], |_| {});
        shim.api()
            .call_and_vanish("Create", &shim.create_request(), after * MS);
        let api = shim.api();
        // Either the task exists completely, or nothing of it is left.
        eventually("the creation is settled", PATIENCE, || {
            match api.state(&id, "") {
                Ok(state) => state.pid > 0,
                Err((code, _)) => code == Code::NOT_FOUND && no_trace(&host, &id),
            }
        });
        if api.state(&id, "").is_ok() {
            api.delete(&id, "").expect("delete what was created");
            assert!(no_trace(&host, &id), "{:?}", host.remains());
        }
        // The id can be used again as soon as the shim has cleaned up.
        eventually("the container can be created again", PATIENCE, || {
            api.create(&shim.create_request()).is_ok()
        });
        api.delete(&id, "").expect("delete again");
        api.shutdown(&id).expect("shutdown");
    }
}

/// If the caller of a Create vanishes, containerd calls Delete. When the shim has answered,
/// containerd removes the bundle.
#[test]
fn a_delete_during_create_is_answered_after_the_task_is_gone() {
    let host = Containerd::start();
    let runtime = runtime_under_test();
    let shim = BareShim::start(&host, &runtime, "a", &["/bin/witness", "a"], |_| {});
    let gates = Gates::new(&host);
    let create = gates.with(shim.create_request());
    for (verb, is_created) in [("create", true), ("after-create", true), ("create", false)] {
        gates.close(verb, "a");
        std::thread::scope(|scope| {
            let api = shim.api();
            if is_created {
                scope.spawn(|| shim.api().create(&create));
                gates.await_waiting(verb);
            } else {
                // In this case the client of the Create vanishes.
                let create = gates.with(shim.create_request());
                api.call_and_vanish("Create", &create, 300 * MS);
            }
            let deleting = scope.spawn(|| shim.api().delete("a", ""));
            std::thread::sleep(100 * MS);
            gates.open(verb);
            let deleted = deleting.join().expect("delete");
            let code = deleted.as_ref().err().map(|(code, _)| *code);
            assert!(matches!(code, None | Some(Code::NOT_FOUND)), "{deleted:?}");
            assert!(no_trace(&host, "a"), "{verb}: {:#?}", host.remains());
            let state = shim.api().state("a", "");
            assert!(state.is_err(), "{verb}: {state:?}");
        });
    }
}

#[test]
fn a_client_that_vanishes_during_a_blocked_start_leaves_the_container_created() {
    let host = Containerd::start();
    let shim = created(&host, &WAITS);
    let start = StartRequest {
        id: "web".to_owned(),
        ..StartRequest::new()
    };
    shim.api().call_and_vanish("Start", &start, 200 * MS);
    // The shim cancels a client's Start once it notices that the client has closed its connection.
    let mut error = None;
    eventually("the first Start is forgotten", PATIENCE, || {
        error = shim.api().deadline(3000 * MS).start("web", "").err();
        !error
            .as_ref()
            .is_some_and(|(_, message)| message.contains("an earlier Start"))
    });
    let error = error.expect("the container cannot have started");
    assert_eq!(error.0, Code::DEADLINE_EXCEEDED, "{error:?}");
    assert!(error.1.contains("proxy"), "{error:?}");
    assert!(!host.record().has("web", "start"));
    shim.api().delete("web", "").expect("delete");
    shim.api().shutdown("web").expect("shutdown");
}

#[test]
fn other_calls_are_answered_while_a_start_is_blocked() {
    let host = Containerd::start();
    let shim = created(&host, &WAITS);
    std::thread::scope(|scope| {
        let start = scope.spawn(|| shim.api().deadline(10_000 * MS).start("web", ""));
        // The container is held for far longer than this deadline.
        let api = shim.api().deadline(2000 * MS);
        for _ in 0..50 {
            api.state("web", "").expect("state");
            api.pids("web").expect("pids");
            api.stats("web").expect("stats");
        }
        api.kill("web", "", 15, false).expect("kill");
        assert!(
            start.join().unwrap().is_err(),
            "a container that was ended did not start"
        );
    });
    let exit = shim.api().wait("web", "").expect("wait");
    assert_eq!(exit.exit_status, 143);
    shim.api().delete("web", "").expect("delete");
    shim.api().shutdown("web").expect("shutdown");
}

#[test]
fn a_held_container_refuses_a_probes_exec_but_not_an_interactive_one() {
    let host = Containerd::start();
    let shim = created(
        &host,
        &[("usher/sidecars", "proxy"), ("usher/start-mode", "Hold")],
    );
    shim.api()
        .start("web", "")
        .expect("start is answered, and the container held");
    let probe = shim.api().exec(&shim.exec_request("probe", &["/bin/true"]));
    let (code, message) = probe.unwrap_err();
    assert_eq!(code, Code::FAILED_PRECONDITION, "{message}");
    assert!(message.contains("is held"), "{message}");
    let session = shim.api().deadline(Duration::ZERO);
    session
        .exec(&shim.exec_request("shell", &["/bin/true"]))
        .expect("an exec without a deadline");
    session.start("web", "shell").expect("start of the exec");
    let exit = session.wait("web", "shell").expect("wait");
    assert_eq!(exit.exit_status, 0);
    shim.api().kill("web", "", 9, false).expect("kill");
    let exit = shim.api().wait("web", "").expect("wait");
    assert_eq!(exit.exit_status, 137);
    shim.api().delete("web", "").expect("delete");
    shim.api().shutdown("web").expect("shutdown");
}

/// Runs the shim's `start` for another container of the pod, but does not create the container.
fn joined<'host>(host: &'host Containerd, id: &str) -> BareShim<'host> {
    let in_pod = annotate(&[("io.kubernetes.cri.sandbox-id", "pod1")]);
    BareShim::start(
        host,
        &runtime_under_test(),
        id,
        &["/bin/sleep", "1000"],
        in_pod,
    )
}

/// Kills and deletes the container and asks the shim to shut down, as containerd does.
fn end(shim: &BareShim<'_>) {
    let api = shim.api();
    api.kill(&shim.id, "", 9, false).expect("kill");
    api.wait(&shim.id, "").expect("wait");
    api.delete(&shim.id, "").expect("delete");
    // The shim may have exited already, because of an earlier Shutdown.
    let _ = api.shutdown(&shim.id);
}

#[test]
fn a_shim_stays_for_a_container_that_was_directed_to_it() {
    let host = Containerd::start();
    let a = joined(&host, "a");
    a.api().create(&a.create_request()).expect("create");
    a.api().start("a", "").expect("start");
    let b = joined(&host, "b");
    assert_eq!(a.address, b.address);
    end(&a);
    // The shim has no container any more, but `start` has already returned its address for `b`.
    b.api().create(&b.create_request()).expect("create");
    b.api().start("b", "").expect("start");
    end(&b);
    eventually("the shim ends", PATIENCE, || host.shims().is_empty());
}

#[test]
fn a_shim_exits_when_a_container_directed_to_it_never_arrives() {
    let host = Containerd::start();
    let a = joined(&host, "a");
    a.api().create(&a.create_request()).expect("create");
    let mut never = joined(&host, "never");
    let gone = joined(&host, "gone");
    // From now on, no call about `never` reaches the shim, neither a Create nor a Delete.
    never.address.clear();
    gone.api().shutdown("gone").expect("shutdown");
    a.api().delete("a", "").expect("delete");
    a.api().shutdown("a").expect("shutdown");
    assert_eq!(
        host.shims().len(),
        1,
        "the shim waits for another container"
    );
    eventually("the shim ends", PATIENCE, || host.shims().is_empty());
}

#[test]
fn a_pod_with_concurrent_creates_and_deletes_always_has_a_shim() {
    let host = Containerd::start();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let host = &host;
            scope.spawn(move || {
                for round in 0..8 {
                    let shim = joined(host, &format!("c{worker}-{round}"));
                    shim.api().create(&shim.create_request()).expect("create");
                    shim.api().start(&shim.id, "").expect("start");
                    end(&shim);
                }
            });
        }
    });
    eventually("the shim ends", PATIENCE, || host.shims().is_empty());
}
