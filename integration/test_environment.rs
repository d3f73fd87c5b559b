//! Checks that the tests use the containerd, shim and OCI runtime that the environment variables
//! name. A test of other programs would prove nothing.

use std::fs;

use crate::harness::{
    ContainerSpec, Containerd, REFERENCE, Service, Settings, Shims, Version, oci_runtime,
    runtime_under_test,
};

fn start(shims: Shims) -> Containerd {
    Containerd::start_with(&Settings {
        shims,
        ..Settings::default()
    })
}

#[test]
fn containerd_is_the_chosen_one() {
    let host = Containerd::start();
    let program = fs::read_link(format!("/proc/{}/exe", host.pid().unwrap())).expect("its program");
    if let Ok(dir) = std::env::var("USHER_TEST_CONTAINERD") {
        assert!(program.starts_with(&dir), "{}", program.display());
    }
    let Version(major, minor) = Version::of_containerd();
    let said = host.must(&["version"]);
    let (_, server) = said.split_once("Server:").expect("the server's part");
    let family = format!("{major}.{minor}.");
    assert!(server.contains(&family), "not of {family}x: {said}");
    println!("containerd {major}.{minor} at {}", program.display());
}

#[test]
fn containerd_and_shim_agree_on_a_service_version() {
    let service = |shims, runtime: &str| {
        let host = start(shims);
        host.run(&ContainerSpec::new("a").runtime(runtime));
        let json = host.bundle_dir("a").join("bootstrap.json");
        assert_eq!(json.exists(), Version::of_containerd() >= Version(2, 0));
        host.endpoint("a").service
    };
    let ours = service(Shims::Ours, &runtime_under_test());
    let reference = service(Shims::Reference, REFERENCE);
    println!("ours: {ours:?}, the reference: {reference:?}");
    let expected = match Version::of_containerd() {
        Version(..2, _) => (Service::TaskV2, Service::TaskV2),
        // These versions of containerd send the shim the same parameters as version 1.7. Our shim
        // cannot tell them apart, so it answers in the only form that 1.7 can read.
        Version(2, ..3) => (Service::TaskV2, Service::TaskV3),
        _ => (Service::TaskV3, Service::TaskV3),
    };
    assert_eq!((ours, reference), expected);
}

#[test]
fn the_shim_under_test_is_ours_and_the_reference_is_not() {
    let program_of_shim = |shims: Shims, runtime: &str| {
        let host = start(shims);
        host.run(&ContainerSpec::new("a").runtime(runtime));
        let pid = host.shim("a").pid;
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("its words");
        let name = words
            .split('\0')
            .next()
            .unwrap()
            .rsplit('/')
            .next()
            .unwrap();
        let program = fs::read_link(format!("/proc/{pid}/exe")).expect("its program");
        // The harness copies the freshly built programs into this directory.
        let is_ours = program.starts_with(host.dir());
        (name.to_owned(), is_ours)
    };
    let ours = program_of_shim(Shims::Ours, &runtime_under_test());
    let reference = program_of_shim(Shims::Reference, REFERENCE);
    let name = if runtime_under_test() == REFERENCE {
        "runc"
    } else {
        "usher"
    };
    assert_eq!(ours, (format!("containerd-shim-{name}-v2"), true));
    assert_eq!(reference, ("containerd-shim-runc-v2".to_owned(), false));
}

#[test]
fn containers_are_made_by_the_chosen_oci_runtime() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("a"));
    let state = host.dir().join("run/runc").join(&host.namespace).join("a");
    let mark = match oci_runtime().as_str() {
        "runc" => "state.json",
        "crun" => "status",
        "youki" => "youki_config.json",
        other => panic!("a mark of {other} is not known"),
    };
    assert!(state.join(mark).exists(), "{mark} in {}", state.display());
}
