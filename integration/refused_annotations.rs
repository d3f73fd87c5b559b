//! Create refuses invalid annotations with one clear sentence and leaves nothing behind.

use crate::harness::Containerd;
use crate::pod::{MESH, Pod};

fn refused(pod: &Pod) -> String {
    let host = Containerd::start();
    let run = host.try_run(&pod.witness("web", &[]));
    assert!(!run.ok(), "the pod was not refused");
    assert!(!host.record().has("web", "start"));
    assert!(host.shims().is_empty(), "a shim is left");
    assert_eq!(host.remains(), Vec::<String>::new());
    run.err()
}

#[test]
fn the_error_names_the_key_the_value_and_the_expectation() {
    for (pod, expected) in [
        (
            Pod(&[("usher/start-mode", "Slow")]),
            &["usher/start-mode", "\"Slow\"", "Auto, Block"][..],
        ),
        (Pod(&[("usher/sidecar", "proxy")]), &["usher/sidecar"]),
        (
            Pod(&[("usher/sidecars", "proxy proxy")]),
            &["usher/sidecars", "proxy"],
        ),
        (
            Pod(&[("usher/grace-period", "-1s")]),
            &["usher/grace-period", "-1s"],
        ),
        (
            Pod(&[
                ("usher/sidecars", "proxy"),
                ("startup-probe.usher/proxy", "{\"port\":1}"),
            ]),
            &["startup-probe.usher/proxy", "port"],
        ),
        (
            Pod(&[
                ("usher/sidecars", "proxy"),
                ("startup-probe.usher/web", "{}"),
            ]),
            &["startup-probe.usher/web", "web"],
        ),
        (
            Pod(&[
                ("usher/grace-policy", "Reserve"),
                ("usher/grace-period", "5s"),
            ]),
            &["usher/grace-period", "6s or more"],
        ),
    ] {
        let error = refused(&pod);
        for word in expected {
            assert!(error.contains(word), "{word:?} is missing in: {error}");
        }
    }
}

#[test]
fn a_container_with_other_annotations_than_its_pod_is_refused_and_the_pod_continues() {
    let host = Containerd::start();
    let first = MESH;
    host.run(&first.witness("web", &[]));
    let run = host.try_run(&Pod(&[("usher/sidecars", "logs")]).witness("proxy", &[]));
    assert!(!run.ok());
    assert!(
        run.err().contains("other usher annotations"),
        "{}",
        run.err()
    );
    host.ctr(&["containers", "rm", "proxy"]);
    first.run_proxy(&host, &[]);
    let record = host.await_event("web", "start");
    record.assert_before(("proxy", "start"), ("web", "start"));
}
