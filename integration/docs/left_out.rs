//! The commands of the pages that no test runs, each with the reason. They are looked at all the same: that
//! the program has such options, and that files which they name are there.

/// What a command begins with, and why it is not run.
pub const NOT_RUN: &[(&str, &str)] = &[
    (
        "scripts/test-kubernetes",
        "builds a cluster, and takes hours",
    ),
    ("scripts/test", "runs this test"),
    (
        "scripts/demo",
        "builds for a release; the pod that it runs is run by `docs::the_demo`",
    ),
    (
        "scripts/install",
        "changes the machine; `install::` does so with directories of its own",
    ),
    (
        "usher install",
        "changes the machine; `install::` does so with directories of its own",
    ),
    (
        "scripts/simulate",
        "takes minutes, and is a test of `usher-core` and of `simulation` with fewer pods",
    ),
    (
        "scripts/bench",
        "measures for minutes, on a machine that does nothing else",
    ),
    (
        "scripts/hostile",
        "takes half an hour; `hostile::` runs each of its pods once",
    ),
    ("scripts/chaos", "takes minutes"),
    ("scripts/attack", "attacks for minutes"),
    (
        "cargo test",
        "would run tests in a test; those which it names are there",
    ),
    ("cargo build", "would build in a test"),
    ("cargo bench", "measures for a minute"),
    (
        "install target/release/kubectl-usher",
        "changes the machine",
    ),
    ("scripts/release", "compiles for ten minutes and more"),
    (
        "git clone --branch v",
        "is for two releases, each of which compiles for ten minutes and more",
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
    (
        "sed -n s/^usher",
        "reads what a release has beside its images",
    ),
    ("tar --extract --file usher-VERSION", "unpacks a release"),
    ("sha256sum --check", "looks at the files of a release"),
    (
        "usher-VERSION-linux-amd64/bin/usher install",
        "changes the machine; `install::` does so with directories of its own",
    ),
    ("apt", "changes the machine"),
    (
        "kubectl",
        "needs a cluster; `scripts/test-kubernetes` applies the same files, and looks at what is shown",
    ),
];

/// Blocks of output that no test compares, by their first line, and why.
pub const NOT_COMPARED: &[(&str, &str)] = &[
    (
        "kubectl usher ps -A",
        "needs a cluster; `scripts/test-kubernetes` looks at what it shows (`kubectl::`)",
    ),
    ("kubelet, Docker, ctr", "a drawing"),
    ("containerd ─────ttrpc", "a drawing"),
    ("containerd ── task service", "a drawing"),
];
