//! Commands of the manual that no test runs, each with the reason. Other tests still check the
//! options of these commands, and that the named files exist.

/// The beginning of each command, and the reason why no test runs it.
pub const NOT_RUN: &[(&str, &str)] = &[
    (
        "scripts/test-kubernetes",
        "builds a cluster, and takes hours",
    ),
    ("scripts/test", "runs this test"),
    (
        "scripts/demo",
        "makes a release build; `docs::the_demo` runs the same pod",
    ),
    (
        "scripts/install",
        "changes the machine; `install::` does the same in directories of its own",
    ),
    (
        "usher install",
        "changes the machine; `install::` does the same in directories of its own",
    ),
    (
        "scripts/simulate",
        "takes minutes, and is a test of `usher-core` and of `simulation` with fewer pods",
    ),
    ("scripts/bench", "measures for minutes on an idle machine"),
    (
        "scripts/hostile",
        "takes half an hour; `hostile::` runs each of its pods once",
    ),
    ("scripts/chaos", "takes minutes"),
    ("scripts/attack", "attacks for minutes"),
    (
        "cargo test",
        "would run tests in a test; the tests that it names exist",
    ),
    ("cargo build", "would build in a test"),
    ("cargo bench", "measures for a minute"),
    (
        "install target/release/kubectl-usher",
        "changes the machine",
    ),
    ("scripts/release", "compiles for more than ten minutes"),
    (
        "git clone --branch v",
        "is for two releases, which compile for more than ten minutes each",
    ),
    ("/tmp/one/scripts/release", "is the first of the two"),
    ("/tmp/two-elsewhere/scripts/release", "is the second"),
    ("diff --recursive /tmp/out-1", "compares the two"),
    (
        "install target/release/containerd-shim-usher-v2",
        "changes the machine",
    ),
    ("install target/release/usher", "changes the machine"),
    (
        "mv /usr/local/bin/containerd-shim-usher-v2",
        "changes the machine",
    ),
    (
        "rm /usr/local/bin/containerd-shim-usher-v2",
        "changes the machine",
    ),
    ("docker", "needs Docker"),
    ("xargs docker", "needs Docker"),
    ("usher timeline shop", "is about containers of Docker"),
    ("nerdctl", "needs nerdctl"),
    ("systemctl reload docker", "needs Docker"),
    (
        "skopeo",
        "needs a registry; `scripts/test-kubernetes` makes images by the same function",
    ),
    ("sed s,image:", "is for an image in a registry"),
    ("sed -n s/^usher", "reads a file of a release"),
    ("tar --extract --file usher-VERSION", "unpacks a release"),
    ("sha256sum --check", "checks the files of a release"),
    (
        "usher-VERSION-linux-amd64/bin/usher install",
        "changes the machine; `install::` does the same in directories of its own",
    ),
    ("apt", "changes the machine"),
    (
        "kubectl",
        "needs a cluster; `scripts/test-kubernetes` applies the same files and checks the output",
    ),
];

/// Blocks of output that no test compares. Each is named by its first line and comes with the
/// reason.
pub const NOT_COMPARED: &[(&str, &str)] = &[
    (
        "kubectl usher ps -A",
        "needs a cluster; `scripts/test-kubernetes` checks the output (`kubectl::`)",
    ),
    ("kubelet, Docker, ctr", "a drawing"),
    ("containerd ─────ttrpc", "a drawing"),
    ("containerd ── task service", "a drawing"),
];
