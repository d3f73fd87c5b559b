//! Images that a Dockerfile of ours describes.
//!
//! There is no Docker and no registry: an image is put together by what the Dockerfile's last stage says,
//! on Debian 12 as `scripts/test-kubernetes` has made it, of the programs that cargo has built.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Image, make_archive_of_layers, run, shim_dir, tar};

use super::cluster::{Cluster, PATIENCE};

const TOP: &str = env!("CARGO_MANIFEST_DIR");

/// Puts the image that a file in `scripts/kubernetes` describes into containerd's store, as if it had been
/// pulled by its digest, and says what it is called there. What is in it can be changed before.
pub fn import(
    cluster: &Cluster,
    name: &str,
    repository: &str,
    change: impl FnOnce(&Path),
) -> String {
    let dir = tempfile::tempdir_in(cluster.path("tmp")).expect("a directory");
    let root = dir.path().join("root");
    let config = read(cluster, &format!("{TOP}/scripts/kubernetes/{name}"), &root);
    change(&root);
    let files = dir.path().join("files.tar");
    tar(&files, &root, &["."]);
    let reference = format!("{repository}:imported");
    let image = Image {
        reference: &reference,
        config,
    };
    let layers = [&*cluster.programs.installer_base, &*files];
    let archive = make_archive_of_layers(dir.path(), &layers, &[image]);
    let ctr = |words: &[&str]| {
        let finished = run(cluster.on_machine(&cluster.ctr(words)), PATIENCE);
        assert!(finished.ok(), "ctr {words:?}: {}", finished.err());
        finished.out()
    };
    ctr(&["images", "import", &archive.display().to_string()]);
    let listed = ctr(&["images", "list", &format!("name=={reference}")]);
    let digest = listed
        .split_whitespace()
        .find(|word| word.starts_with("sha256:"));
    let by_digest = format!("{repository}@{}", digest.expect("a digest"));
    ctr(&["images", "tag", "--force", &reference, &by_digest]);
    by_digest
}

/// Puts the files of the last stage below `root`, and says how the image is run.
fn read(cluster: &Cluster, file: &str, root: &Path) -> Value {
    let text = fs::read_to_string(file).expect("the Dockerfile");
    for line in text.lines().filter(|line| line.starts_with("FROM ")) {
        assert!(line.contains("@sha256:"), "{line}: expected a digest");
    }
    let mut config = json!({ "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] });
    let (_, last_stage) = text.rsplit_once("\nFROM ").expect("a last stage");
    for line in last_stage.lines() {
        match line.split_once(' ') {
            Some(("COPY", words)) => copy(cluster, root, words),
            Some(("USER", user)) => config["User"] = user.into(),
            Some(("ENTRYPOINT", words)) => {
                config["Entrypoint"] = serde_json::from_str(words).expect("a list of words");
            }
            Some(("RUN", _)) => panic!("{line}: nothing runs that here"),
            _ => {}
        }
    }
    config
}

/// The Dockerfile's `COPY`, which knows three sources: this repository, what was built of it, and the
/// image that has kubectl.
fn copy(cluster: &Cluster, root: &Path, words: &str) {
    const BUILT: &str = "/source/target/release/";
    let mut words: Vec<&str> = words.split_whitespace().collect();
    let directory = words.pop().expect("where to").trim_start_matches('/');
    assert!(
        directory.ends_with('/'),
        "{directory}: expected a directory"
    );
    let stage = words.first().and_then(|word| word.strip_prefix("--from="));
    let directory = root.join(directory);
    fs::create_dir_all(&directory).expect("a directory of the image");
    for word in words.iter().skip(usize::from(stage.is_some())) {
        let name = Path::new(word).file_name().expect("a file's name");
        let to = directory.join(name);
        let from = match stage {
            None => Path::new(TOP).join(word),
            Some("kubectl") => cluster.programs.kubernetes.join("bin").join(name),
            Some(_) => {
                let program = word.strip_prefix(BUILT).expect(BUILT);
                // As a release has them: without what debuggers read.
                let mut strip = Command::new("strip");
                strip.arg("-o").arg(&to).arg(shim_dir().join(program));
                let finished = run(strip, PATIENCE);
                assert!(finished.ok(), "strip {program}: {}", finished.err());
                continue;
            }
        };
        fs::copy(from, &to).expect(word);
    }
}
