//! What a process in a container has around it is what runc gives it, whichever OCI runtime has made the container:
//! mounts, devices, rights, limits, filter of system calls, groups, environment. Of those that are asked, the processes
//! themselves say it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{
    BareShim, Containerd, OciRuntime, PATIENCE, default_config, eventually, oci_runtime,
    runtime_under_test,
};

/// Everything that a program can see of what it may do.
const SAYS: &str = r"
    sed -E 's/^[0-9]+ [0-9]+ [0-9]+:[0-9]+ //' /proc/self/mountinfo
    grep -E '^(Umask|Uid|Gid|Groups|Cap.*|NoNewPrivs|Seccomp.*|Sig(Blk|Ign)|CoreDumping):' /proc/self/status
    cat /proc/self/limits /proc/self/oom_score_adj /proc/self/cgroup /proc/self/attr/current
    ls -l /proc/self/fd | wc -l
    stat -c '%n %F %a %u %g %t %T %N' /dev /dev/*
    env; id; pwd; hostname
    for file in /proc/keys /proc/kcore /proc/timer_list; do wc -c < $file; done
    ls /proc/acpi /sys/firmware
    stat -c '%F %a %u %g' /proc/self/fd/1 /proc/self/fd/2; echo words > /dev/null && echo null is written
    for file in /proc/sys/vm/overcommit_memory /proc/sysrq-trigger /sys/fs/cgroup/memory/memory.limit_in_bytes /new; do
        (echo 1 > $file) && echo $file is written
    done
    chmod 4700 /shared/file
    chmod 700 /shared/file
    stat -c %a /shared/file
    mknod /dev/disk b 254 0 && dd if=/dev/disk of=/dev/null count=1
    mknod /dev/node c 5 1 && (: < /dev/node) && echo the console of the node is open
    echo end
";

/// What is different, and no weaker: paths that are read-only have fewer rights besides, what hides a directory has
/// another size, and the directory of all cgroups is read-only where they are. Of sysfs the mount is read-only, and
/// with runc its file system, which is mounted nowhere else. The link to /proc/kcore, where there is one, has its name.
fn without_named(line: &str) -> String {
    let line = line
        .replace(",nosuid,nodev,noexec", "")
        .replace(",size=0k", "");
    let line = line.replace("/ /sys/fs/cgroup ro,", "/ /sys/fs/cgroup rw,");
    let line = line.replace("/dev/kcore", "/dev/core");
    line.replace("sysfs sysfs ro", "sysfs sysfs rw")
}

#[track_caller]
fn run(runtime: &OciRuntime, arguments: &[&str], into: &Path) {
    let file = || {
        File::options()
            .append(true)
            .create(true)
            .open(into)
            .expect("a file")
    };
    let mut command = runtime.command(arguments);
    let status = command.stdout(file()).stderr(file()).status();
    let said = fs::read_to_string(into).unwrap_or_default();
    assert!(
        status.expect("the OCI runtime").success(),
        "{arguments:?}: {said}"
    );
}

/// What the first process of a container of this says, and what one that is executed in it does.
fn said(
    host: &Containerd,
    runtime: &OciRuntime,
    id: &str,
    change: &dyn Fn(&mut Value),
) -> [Vec<String>; 2] {
    let mut config = default_config(
        host,
        "same",
        &["/bin/sh", "-c", &format!("{SAYS}\nsleep 1000")],
    );
    config["hostname"] = json!("same");
    change(&mut config);
    let bundle = runtime.bundle(id, &config);
    let mut process = config["process"].clone();
    process["args"] = json!(["/bin/sh", "-c", SAYS]);
    // runc 1.1 does not ask for it.
    process["user"]
        .as_object_mut()
        .expect("a user")
        .remove("umask");
    fs::write(bundle.join("process.json"), process.to_string()).expect("process.json");
    let at = |name: &str| bundle.join(name);
    let text = |path: PathBuf| path.display().to_string();
    let [first, second] = ["first", "second"].map(at);
    run(
        runtime,
        &[
            "create",
            "--bundle",
            &text(bundle.clone()),
            "--pid-file",
            &text(at("pid")),
            id,
        ],
        &first,
    );
    run(runtime, &["start", id], &at("started"));
    let ended = |file: &Path| {
        fs::read_to_string(file)
            .unwrap_or_default()
            .lines()
            .any(|line| line == "end")
    };
    eventually("the first says all", PATIENCE, || ended(&first));
    let exec = [
        "exec",
        "--detach",
        "--pid-file",
        &text(at("pid")),
        "--process",
        &text(at("process.json")),
        id,
    ];
    run(runtime, &exec, &second);
    eventually("the second says all", PATIENCE, || ended(&second));
    run(runtime, &["delete", "--force", id], &at("deleted"));
    [first, second].map(|file| {
        let said = fs::read_to_string(file)
            .expect("what it has said")
            .replace(&format!("/{id}"), "/same");
        let mut lines: Vec<String> = said.lines().map(without_named).collect();
        lines.sort();
        lines
    })
}

#[track_caller]
fn same(change: impl Fn(&mut Value)) {
    let host = Containerd::start();
    let shared = host.shared_dir().join("file");
    fs::write(shared, "").expect("a file");
    // Also where both are runc: then what they say is found to be the same each time.
    let [runc, own] = [
        ("made-by-runc", "runc"),
        ("made-by-the-other", &*oci_runtime()),
    ]
    .map(|(id, name)| {
        let runtime = OciRuntime::new(&host, name);
        let said = said(&host, &runtime, id, &change);
        // Empty now.
        fs::remove_dir(&runtime.root).expect("nothing is left");
        said
    });
    for ((runc, own), which) in runc.iter().zip(&own).zip(["its init", "an exec"]) {
        let only = |these: &[String], those: &[String]| -> Vec<String> {
            these
                .iter()
                .filter(|line| !those.contains(line))
                .cloned()
                .collect()
        };
        let (missing, more) = (only(runc, own), only(own, runc));
        assert_eq!(
            (missing, more),
            (vec![], vec![]),
            "left: {which} under runc, right: under {}",
            oci_runtime()
        );
    }
}

/// A filter that has nobody be given a file's owner's rights, and nothing of the kernel's crypto.
fn filter() -> Value {
    let sets_owner = |index: u32| json!([{ "index": index, "value": 0o7000, "valueTwo": 0o4000, "op": "SCMP_CMP_MASKED_EQ" }]);
    let is_crypto = json!([{ "index": 0, "value": 38, "op": "SCMP_CMP_EQ" }]);
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            { "names": ["chmod", "fchmod"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": sets_owner(1) },
            { "names": ["fchmodat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": sets_owner(2) },
            { "names": ["socket"], "action": "SCMP_ACT_ERRNO", "args": is_crypto },
        ],
    })
}

/// What runs is nobody in particular.
fn nobody(config: &mut Value) {
    config["process"]["user"] =
        json!({ "uid": 7, "gid": 8, "additionalGids": [9, 10], "umask": 0o27 });
    config["process"]["cwd"] = json!("/new/directory");
}

/// The signal masks of a shim reach its containers through every program between them.
#[test]
fn no_signal_is_ignored_or_blocked_in_a_container() {
    let host = Containerd::start();
    let says =
        "grep -E '^Sig(Blk|Ign):' /proc/self/status > /shared/$0.new; mv /shared/$0.new /shared/$0";
    let first = format!("{says}; exec sleep 1000");
    let args = ["/bin/sh", "-c", &first, "first"];
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, |_| ());
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    let second = ["/bin/sh", "-c", says, "second"];
    api.exec(&shim.exec_request("e", &second)).expect("Exec");
    api.start("a", "e").expect("Start of an exec");
    for name in ["first", "second"] {
        let file = host.shared_dir().join(name);
        eventually(&format!("the {name} says all"), PATIENCE, || file.exists());
        let said = fs::read_to_string(file).expect("what it has said");
        let none = "0000000000000000";
        assert_eq!(
            said,
            format!("SigBlk:\t{none}\nSigIgn:\t{none}\n"),
            "{name}"
        );
    }
}

#[test]
fn they_are_those_that_runc_makes() {
    same(|_| {});
}

#[test]
fn who_may_gain_privileges_is_under_the_filter_too() {
    same(|config| {
        config["process"]["noNewPrivileges"] = json!(false);
        config["linux"]["seccomp"] = filter();
    });
    same(|config| {
        nobody(config);
        config["process"]["noNewPrivileges"] = json!(false);
        config["linux"]["seccomp"] = filter();
    });
}

#[test]
fn who_may_not_is_under_it_as_well() {
    same(|config| {
        config["process"]["noNewPrivileges"] = json!(true);
        config["linux"]["seccomp"] = filter();
    });
    same(|config| {
        nobody(config);
        config["process"]["noNewPrivileges"] = json!(true);
        config["linux"]["seccomp"] = filter();
    });
}

#[test]
fn who_has_no_capabilities_gets_none() {
    same(|config| {
        config["process"]
            .as_object_mut()
            .expect("a process")
            .remove("capabilities");
    });
    same(|config| {
        nobody(config);
        let all = config["process"]["capabilities"]["bounding"].clone();
        config["process"]["capabilities"] = json!({
            "bounding": all, "permitted": all, "effective": [], "inheritable": all, "ambient": ["CAP_KILL"],
        });
    });
}

#[test]
fn mounts_have_the_options_that_they_are_given() {
    same(|config| {
        config["root"]["readonly"] = json!(true);
        config["linux"]["rootfsPropagation"] = json!("rslave");
        let source = config["mounts"]
            .as_array()
            .and_then(|mounts| mounts.last())
            .expect("a mount")["source"]
            .clone();
        for (at, options) in [
            ("/dev/a", json!(["rbind", "rprivate", "ro"])),
            ("/dev/b", json!(["bind", "rslave", "nosuid", "nodev"])),
            ("/dev/c", json!(["rbind", "rshared", "noexec", "noatime"])),
            ("/dev/d", json!(["rbind", "rro"])),
        ] {
            // Where each container has files of its own.
            let mount =
                json!({ "destination": at, "type": "bind", "source": source, "options": options });
            config["mounts"].as_array_mut().expect("mounts").push(mount);
        }
        let cgroup = json!({
            "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
            "options": ["ro", "nosuid", "noexec", "nodev"],
        });
        let tmpfs = json!({
            "destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=64k", "mode=750"],
        });
        config["mounts"]
            .as_array_mut()
            .expect("mounts")
            .extend([cgroup, tmpfs]);
    });
}

#[test]
fn devices_and_limits_are_those_that_are_asked_for() {
    same(|config| {
        config["linux"]["devices"] = json!([
            { "path": "/dev/own", "type": "c", "major": 1, "minor": 3, "fileMode": 0o640, "uid": 7, "gid": 8 },
            { "path": "/dev/below/own", "type": "c", "major": 1, "minor": 5, "fileMode": 0o600 },
        ]);
        config["process"]["rlimits"] = json!([
            { "type": "RLIMIT_NOFILE", "hard": 400, "soft": 400 }, { "type": "RLIMIT_CORE", "hard": 0, "soft": 0 },
        ]);
        config["process"]["oomScoreAdj"] = json!(700);
        config["linux"]["sysctl"] =
            json!({ "net.ipv4.ip_unprivileged_port_start": "7", "kernel.msgmax": "9000" });
        let limits = json!({ "memory": { "limit": 100 << 20 }, "pids": { "limit": 50 }, "cpu": { "shares": 7 } });
        config["linux"]["resources"]
            .as_object_mut()
            .expect("resources")
            .extend(limits.as_object().cloned().expect("limits"));
    });
}

#[test]
fn who_is_given_no_devices_has_none_of_the_nodes() {
    same(|config| {
        config["linux"]
            .as_object_mut()
            .expect("linux")
            .remove("resources");
    });
    same(|config| {
        // A rule for one alone.
        let rules =
            json!([{ "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm" }]);
        config["linux"]["resources"] = json!({ "devices": rules });
    });
}
