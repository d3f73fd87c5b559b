//! The shim's `start`, called as each generation of containerd calls it. The answer must have a
//! format that the calling containerd can read.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

use crate::harness::{
    BareShim, ContainerSpec, Containerd, Service, Version, runtime_under_test, shim_program,
    write_program,
};

fn answer(mut command: Command, stdin: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start of the shim");
    child.stdin.take().unwrap().write_all(stdin).expect("stdin");
    let output = child.wait_with_output().expect("the answer");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output.stdout
}

/// Checks that the shim serves a task from Create to Delete under each of these service names.
fn assert_serves(host: &Containerd, shim: &BareShim<'_>, services: &[Service]) {
    for service in services {
        let api = host.connect(&shim.address, *service);
        api.create(&shim.create_request()).expect("create");
        api.start(&shim.id, "").expect("start");
        assert_eq!(api.wait(&shim.id, "").expect("wait").exit_status, 0);
        api.delete(&shim.id, "").expect("delete");
    }
    let api = host.connect(&shim.address, Service::TaskV3);
    api.shutdown(&shim.id).expect("shutdown");
}

const BOTH: [Service; 2] = [Service::TaskV2, Service::TaskV3];

fn prepare<'host>(host: &'host Containerd) -> BareShim<'host> {
    BareShim::prepare(host, &runtime_under_test(), "a", &["/bin/true"], |_| {})
}

#[test]
fn containerd_1_6_gets_a_bare_address() {
    let host = Containerd::start();
    let mut shim = prepare(&host);
    let said = answer(shim.command("start"), &[]);
    shim.address = String::from_utf8(said).unwrap();
    assert!(shim.address.starts_with("unix:///"), "{}", shim.address);
    assert_serves(&host, &shim, &BOTH);
}

#[test]
fn containerd_1_7_gets_a_bare_address() {
    let host = Containerd::start();
    let mut shim = prepare(&host);
    let mut command = shim.command("start");
    command.env("MAX_SHIM_VERSION", "2");
    shim.address = String::from_utf8(answer(command, &[])).unwrap();
    assert!(shim.address.starts_with("unix:///"), "{}", shim.address);
    assert_serves(&host, &shim, &BOTH);
}

#[test]
fn containerd_2_0_gets_json_with_version_three() {
    let host = Containerd::start();
    let mut shim = prepare(&host);
    let mut command = shim.command("start");
    command.env("MAX_SHIM_VERSION", "3");
    let said: serde_json::Value = serde_json::from_slice(&answer(command, &[])).unwrap();
    assert_eq!(
        (&said["version"], &said["protocol"]),
        (&3.into(), &"ttrpc".into())
    );
    shim.address = said["address"].as_str().unwrap().to_owned();
    assert_serves(&host, &shim, &BOTH);
}

#[test]
fn containerd_2_3_gets_protobuf() {
    let host = Containerd::start();
    let mut shim = prepare(&host);
    let params = shim.bootstrap_params();
    let mut command = shim.command("start");
    command
        .env("MAX_SHIM_VERSION", "3")
        .env_remove("TTRPC_ADDRESS");
    let said = answer(command, &params.write_to_bytes().unwrap());
    let said = BootstrapResult::parse_from_bytes(&said).unwrap();
    assert_eq!((said.version, said.protocol.as_str()), (3, "ttrpc"));
    shim.address = said.address;
    assert_serves(&host, &shim, &BOTH);
    // The exit event arrives only if the shim sends its events to the address in the parameters.
    host.await_events("the task's exit", |events| {
        events
            .iter()
            .any(|event| event.topic == "/tasks/exit" && event.container() == "a")
    });
}

/// Replaces the shim by a script. The script records the input of `start`, written by containerd,
/// in the file `asked`, and the shim's output in the file `answered`. The real shim still runs as a
/// child of containerd.
fn record_start(host: &Containerd) {
    let dir = host.dir().display();
    let name = shim_program(&runtime_under_test());
    let place = host.dir().join("bin").join(&name);
    fs::create_dir(host.dir().join("bin/real")).expect("a directory");
    fs::rename(&place, host.dir().join("bin/real").join(&name)).expect("the shim");
    let script = format!(
        "#!/bin/sh\n\
         shim={dir}/bin/real/{name}\n\
         for action; do :; done\n\
         [ \"$action\" = start ] || exec $shim \"$@\"\n\
         cat > {dir}/asked\n\
         mkfifo {dir}/answer\n\
         tee {dir}/answered < {dir}/answer &\n\
         exec $shim \"$@\" < {dir}/asked > {dir}/answer\n"
    );
    write_program(&place, &script);
}

/// Uses a request that containerd itself makes. The other tests make up their requests.
#[test]
fn the_installed_containerd_gets_an_answer_in_its_own_format() {
    let host = Containerd::start();
    record_start(&host);
    host.run(&ContainerSpec::new("a").args(&["/bin/sleep", "1000"]));
    let [asked, answered] = ["asked", "answered"].map(|name| {
        let said = fs::read(host.dir().join(name));
        said.unwrap_or_else(|e| panic!("{name}: {e}"))
    });
    let shown = String::from_utf8_lossy(&answered);
    let containerd = Version::of_containerd();
    if containerd.speaks_protobuf() {
        let params = BootstrapParams::parse_from_bytes(&asked).expect("BootstrapParams");
        assert_eq!(
            (&*params.instance_id, &params.namespace),
            ("a", &host.namespace)
        );
        let result = BootstrapResult::parse_from_bytes(&answered);
        let result = result.unwrap_or_else(|e| panic!("{shown:?}: {e}"));
        assert_eq!((result.version, &*result.protocol), (3, "ttrpc"));
        assert_eq!(host.endpoint("a").address, result.address);
    } else {
        assert!(shown.starts_with("unix:///"), "{shown}");
        assert_eq!(host.endpoint("a").address, shown);
    }
}

#[test]
fn a_failed_start_prints_its_reason_in_one_line() {
    let host = Containerd::start();
    let shim = prepare(&host);
    std::fs::write(shim.bundle().join("config.json"), "{").expect("config.json");
    let output = shim.command("start").output().expect("the shim runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("config.json") && said.trim().lines().count() == 1,
        "{said}"
    );
}

/// `start` succeeds without config.json, because the bundle of a sandbox has no such file. Only
/// Create tells the shim that the bundle is that of a container.
#[test]
fn a_create_without_a_configuration_fails() {
    let host = Containerd::start();
    let mut shim = prepare(&host);
    std::fs::remove_file(shim.bundle().join("config.json")).expect("config.json");
    let started = shim.try_start(shim.command("start"), &Any::new());
    assert_eq!(started, Ok(()));
    let (code, said) = shim.api().create(&shim.create_request()).unwrap_err();
    assert_eq!(code, ttrpc::Code::INVALID_ARGUMENT, "{said}");
    assert!(said.contains("config.json"), "{said}");
}
