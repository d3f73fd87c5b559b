//! Images made by the test, without a registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Containerd, run};

/// Timeout of `tar` and `sha256sum`, long enough for a large layer on a busy disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// An image in an archive: its reference, and its configuration in the format of the OCI image
/// specification.
pub struct Image<'a> {
    pub reference: &'a str,
    pub config: Value,
}

impl Containerd {
    /// Imports an image of the test's root file system into containerd, and returns its reference.
    #[track_caller]
    pub fn import_image(&self) -> String {
        let image = Image {
            reference: "localhost/usher-it/busybox:1",
            config: json!({ "Env": ["PATH=/bin"], "Cmd": ["/bin/true"] }),
        };
        let rootfs = self.dir().join("rootfs");
        let archive = make_archive(&self.dir().join("image"), &rootfs, &[image]);
        self.must(&["images", "import", &archive.display().to_string()]);
        "localhost/usher-it/busybox:1".to_owned()
    }
}

/// Makes an archive of images that have the same root file system, in the new directory `dir`. The
/// format is that of `docker save`, because it needs no digest except that of the layer.
#[track_caller]
pub fn make_archive(dir: &Path, rootfs: &Path, images: &[Image]) -> PathBuf {
    const LAYER: &str = "rootfs.tar";
    fs::create_dir(dir).expect("the images' directory");
    let layer = dir.join(LAYER);
    tar(&layer, rootfs, &["."]);
    let digest = sha256(&layer);
    let mut members = vec!["manifest.json".to_owned(), LAYER.to_owned()];
    let mut manifest = Vec::new();
    for (n, image) in images.iter().enumerate() {
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": image.config,
            "rootfs": { "type": "layers", "diff_ids": [digest] },
        });
        let name = format!("config-{n}.json");
        fs::write(dir.join(&name), config.to_string()).expect("write the config");
        manifest.push(json!({
            "Config": name, "RepoTags": [image.reference], "Layers": [LAYER],
        }));
        members.push(name);
    }
    let manifest = Value::Array(manifest).to_string();
    fs::write(dir.join("manifest.json"), manifest).expect("write the manifest");
    let archive = dir.join("images.tar");
    let words: Vec<&str> = members.iter().map(String::as_str).collect();
    tar(&archive, dir, &words);
    archive
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
        .arg("--numeric-owner")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(dir)
        .args(members);
    let finished = run(command, PATIENCE);
    assert!(finished.ok(), "tar: {}", finished.err());
}

#[track_caller]
fn sha256(file: &Path) -> String {
    let mut command = Command::new("sha256sum");
    command.arg(file);
    let finished = run(command, PATIENCE);
    let digest = finished
        .out()
        .split_whitespace()
        .next()
        .expect("a digest")
        .to_owned();
    format!("sha256:{digest}")
}
