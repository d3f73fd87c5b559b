//! The tests run on what the environment chose: on another containerd than meant they would prove
//! nothing.

use std::fs;

use crate::harness::{
    Bootstrap, ContainerSpec, Containerd, REFERENCE, Service, Settings, Shims, Version,
    oci_runtime, runtime_under_test,
};

#[test]
fn the_daemon_is_the_chosen_one() {
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
fn each_containerd_starts_the_shim_in_its_own_way() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("a"));
    let bundle = host.bundle_dir("a");
    let json = fs::read_to_string(bundle.join("bootstrap.json")).ok();
    let json: Option<serde_json::Value> = json.map(|text| serde_json::from_str(&text).unwrap());
    let endpoint = host.endpoint("a");
    let version = Version::of_containerd();
    println!("{version:?}: {json:?}, {endpoint:?}");
    let service = match version.bootstrap() {
        Bootstrap::Address => Service::TaskV2,
        Bootstrap::Json | Bootstrap::Protobuf => Service::TaskV3,
    };
    assert_eq!(endpoint.service, service);
    match version {
        Version(..2, ..7) => assert_eq!(json, None),
        _ => assert_eq!(json.expect("bootstrap.json")["protocol"], "ttrpc"),
    }
}

#[test]
fn the_shim_under_test_is_ours_and_the_reference_is_not() {
    let program_of_shim = |shims: Shims, runtime: &str| {
        let host = Containerd::start_with(&Settings {
            shims,
            ..Settings::default()
        });
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
        let program = fs::read(format!("/proc/{pid}/exe")).expect("its program");
        let is_ours = program.windows(12).any(|text| text == b"usher::shim:");
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
        other => panic!("a mark of {other} is not known"),
    };
    assert!(state.join(mark).exists(), "{mark} in {}", state.display());
}
