//! Images of the pods, made by the test without a registry.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::harness::{Image, make_archive, populate, run};

use super::cluster::{Cluster, PATIENCE};

/// The pause container's image.
pub const PAUSE: &str = "localhost/usher-it/pause:1";
/// The image with busybox and the witness.
pub const WITNESS: &str = "localhost/usher-it/witness:1";
/// The same image as `WITNESS`, with USR1 as its stop signal.
pub const STOPPED_BY_USR1: &str = "localhost/usher-it/witness-usr1:1";
/// The image that the example manifests name.
const BUSYBOX: &str = "docker.io/library/busybox:1.36";

const PAUSE_SOURCE: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) { (void)signal; _exit(0); }
static void fetch(int signal) { (void)signal; while (waitpid(-1, NULL, WNOHANG) > 0) {} }

int main(void) {
    signal(SIGINT, leave);
    signal(SIGTERM, leave);
    signal(SIGCHLD, fetch);
    for (;;) pause();
}
"#;

pub fn import(cluster: &Cluster) {
    let rootfs = cluster.path("tmp/rootfs");
    fs::create_dir(&rootfs).expect("a directory");
    populate(&rootfs);
    link_applets(&rootfs);
    compile_pause(cluster, &rootfs.join("pause"));
    let path = json!(["PATH=/bin"]);
    let image = |reference, config| Image { reference, config };
    let images = [
        image(PAUSE, json!({ "Env": path, "Entrypoint": ["/pause"] })),
        image(WITNESS, json!({ "Env": path, "Cmd": ["/bin/true"] })),
        image(BUSYBOX, json!({ "Env": path, "Cmd": ["/bin/sh"] })),
        image(
            STOPPED_BY_USR1,
            json!({ "Env": path, "StopSignal": "SIGUSR1" }),
        ),
    ];
    import_rootfs(cluster, "images", &rootfs, &images);
}

/// Imports images with the root file system `rootfs`. `name` is the name of a new directory for the
/// archive.
pub fn import_rootfs(cluster: &Cluster, name: &str, rootfs: &Path, images: &[Image]) {
    let archive = make_archive(&cluster.path("tmp").join(name), rootfs, images);
    let archive = archive.display().to_string();
    let words = cluster.ctr(&["images", "import", &archive]);
    let finished = run(cluster.on_node(&words), PATIENCE);
    assert!(finished.ok(), "ctr images import: {}", finished.err());
}

/// Links all applets of busybox, because the examples use more of them than the other tests.
pub fn link_applets(rootfs: &Path) {
    let mut command = Command::new(rootfs.join("bin/busybox"));
    command.arg("--list");
    for applet in run(command, PATIENCE).out().lines() {
        let link = rootfs.join("bin").join(applet);
        if !link.exists() {
            symlink("busybox", link).expect("link an applet");
        }
    }
}

fn compile_pause(cluster: &Cluster, program: &Path) {
    let source = cluster.path("tmp/pause.c");
    fs::write(&source, PAUSE_SOURCE).expect("the source");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-static", "-o"]).arg(program).arg(source);
    let finished = run(cc, PATIENCE);
    assert!(finished.ok(), "cc: {}", finished.err());
}
