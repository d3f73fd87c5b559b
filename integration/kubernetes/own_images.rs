//! Images of this project, made as for a release (`scripts/lib/image`) from the static programs
//! built for the tests.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::run;

use super::cluster::{Cluster, PATIENCE};

const TOP: &str = env!("CARGO_MANIFEST_DIR");

const PROGRAMS: [&str; 3] = ["containerd-shim-usher-v2", "usher", "usher-webhook"];

/// Makes the image `usher` or `usher-webhook`, imports it into containerd as if it were pulled by
/// its digest, and returns its name. `change` can modify the programs before they are put into the
/// image.
pub fn import(
    cluster: &Cluster,
    kind: &str,
    repository: &str,
    change: impl FnOnce(&Path),
) -> String {
    let dir = tempfile::tempdir_in(cluster.path("tmp")).expect("a directory");
    let parts = dir.path().join("parts");
    collect(cluster, &parts);
    change(&parts);
    let archive = dir.path().join("image.tar");
    let reference = format!("{repository}:imported");
    let mut make = Command::new("bash");
    make.current_dir(TOP).args([
        "-euc",
        r#"source scripts/lib/image; make_image "$@""#,
        "make",
    ]);
    make.args([kind, &reference]).arg(&archive);
    make.arg(format!("{}={}", architecture(), parts.display()));
    let made = run(make, PATIENCE);
    assert!(made.ok(), "make_image: {}", made.err());
    let ctr = |words: &[&str]| {
        let finished = run(cluster.on_node(&cluster.ctr(words)), PATIENCE);
        assert!(finished.ok(), "ctr {words:?}: {}", finished.err());
        finished.out()
    };
    ctr(&["images", "import", &archive.display().to_string()]);
    let listed = ctr(&["images", "list", &format!("name=={reference}")]);
    let digest = made.out().trim().to_owned();
    assert!(listed.contains(&digest), "{digest} is not in {listed}");
    let by_digest = format!("{repository}@{digest}");
    ctr(&["images", "tag", "--force", &reference, &by_digest]);
    by_digest
}

/// Collects all parts of the images in one directory.
fn collect(cluster: &Cluster, parts: &Path) {
    fs::create_dir(parts).expect("a directory");
    for program in PROGRAMS {
        // The programs are stripped of debug information, as for a release.
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(parts.join(program));
        strip.arg(cluster.programs.statically_linked.join(program));
        let finished = run(strip, PATIENCE);
        assert!(finished.ok(), "strip {program}: {}", finished.err());
    }
    let kubectl = cluster.programs.kubernetes.join("bin/kubectl");
    fs::copy(kubectl, parts.join("kubectl")).expect("kubectl");
    for tool in ["bash", "busybox"] {
        let from = cluster.programs.image_tools.join(tool);
        fs::copy(from, parts.join(tool)).expect(tool);
    }
}

/// A script that prints each file below `top` for which `test` is true. It replaces find(1), which
/// our image does not have.
pub fn find(top: &str, test: &str) -> String {
    format!(
        "shopt -s globstar dotglob nullglob
        for file in {top}/**; do if [[ {test} ]]; then echo \"$file\"; fi; done"
    )
}

/// The architecture, as Go names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
