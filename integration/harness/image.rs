//! An image made on the spot: no test needs a registry.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{Containerd, run};

impl Containerd {
    /// Puts an image of the test's root file system into containerd's store; its reference.
    #[track_caller]
    pub fn import_image(&self) -> String {
        let reference = "localhost/usher-it/busybox:1";
        let dir = self.dir().join("image");
        fs::create_dir(&dir).expect("the image's directory");
        let rootfs = self.dir().join("rootfs");
        tar(&dir.join("layer.tar"), &rootfs, &["."]);
        // The layout of `docker save`, which needs no digest but the layer's.
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/true"] },
            "rootfs": { "type": "layers", "diff_ids": [sha256(&dir.join("layer.tar"))] },
        });
        let manifest = json!([{
            "Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"],
        }]);
        fs::write(dir.join("config.json"), config.to_string()).expect("write the config");
        fs::write(dir.join("manifest.json"), manifest.to_string()).expect("write the manifest");
        let archive = self.dir().join("image.tar");
        tar(
            &archive,
            &dir,
            &["manifest.json", "config.json", "layer.tar"],
        );
        self.must(&["images", "import", &archive.display().to_string()]);
        reference.to_owned()
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[track_caller]
fn tar(archive: &Path, dir: &Path, members: &[&str]) {
    let mut command = Command::new("tar");
    command
        .arg("--create")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(dir)
        .args(members);
    let finished = run(command, Duration::from_secs(20));
    assert!(finished.ok(), "tar: {}", finished.err());
}

#[track_caller]
fn sha256(file: &Path) -> String {
    let mut command = Command::new("sha256sum");
    command.arg(file);
    let finished = run(command, Duration::from_secs(20));
    let digest = finished
        .out()
        .split_whitespace()
        .next()
        .expect("a digest")
        .to_owned();
    format!("sha256:{digest}")
}
