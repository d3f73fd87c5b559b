//! Texts about each line of the configuration, from which the reference pages are made.

/// A table of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Empty for the top of the file.
    pub name: &'static str,
    pub about: &'static str,
    pub entries: &'static [Entry],
}

/// The description of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub key: &'static str,
    /// The form of its value.
    pub value: &'static str,
    /// The value that applies if the key is missing.
    pub default: &'static str,
    /// The effect, in whole sentences.
    pub about: &'static str,
    /// A value, as TOML.
    pub example: &'static str,
}

/// All tables but `[defaults]`, whose keys are those of the pod's annotations.
pub const TABLES: &[Table] = &[
    Table {
        name: "",
        about: "All keys are optional. The file holds for every pod that begins from then on; one \
                    with a mistake lets no pod begin, and `usher check` says what it is. A time is \
                    written as in annotations, in quotes: `\"300ms\"`, `\"90s\"`, `\"1h30m\"`.",
        entries: &[
            Entry {
                key: "enabled",
                value: "`true`, `false`",
                default: "`true`",
                about: "With `false` annotations mean nothing: new pods run as under containerd's own shim.",
                example: "true",
            },
            Entry {
                key: "unknown-keys",
                value: "`\"Refuse\"`, `\"Warn\"`",
                default: "`\"Refuse\"`",
                about: "What becomes of a key of usher's that this version does not know. `\"Warn\"` ignores \
                    it, with a warning, while nodes run different versions.",
                example: "\"Refuse\"",
            },
        ],
    },
    Table {
        name: "limits",
        about: "A pod that asks for more is refused. Where there is no limit, there is none.",
        entries: &[
            Entry {
                key: "grace-period",
                value: "time",
                default: "none",
                about: "The grace period of a pod and of a container; kubelet's own is not limited.",
                example: "\"1h\"",
            },
            Entry {
                key: "startup-timeout",
                value: "time",
                default: "none",
                about: "`usher/startup-timeout`.",
                example: "\"30m\"",
            },
            Entry {
                key: "termination-window",
                value: "time",
                default: "none",
                about: "`usher/termination-window`.",
                example: "\"10s\"",
            },
            Entry {
                key: "grace-extension",
                value: "time",
                default: "none",
                about: "`maxSeconds` of `usher/grace-extension`.",
                example: "\"5m\"",
            },
            Entry {
                key: "grace-extension-count",
                value: "number",
                default: "none",
                about: "`count` of the same.",
                example: "10",
            },
            Entry {
                key: "probe-initial-delay",
                value: "time",
                default: "none",
                about: "`initialDelaySeconds`.",
                example: "\"5m\"",
            },
            Entry {
                key: "probe-period",
                value: "time",
                default: "none",
                about: "`periodSeconds`, `periodMilliseconds`.",
                example: "\"1m\"",
            },
            Entry {
                key: "probe-timeout",
                value: "time",
                default: "none",
                about: "`timeoutSeconds`.",
                example: "\"10s\"",
            },
            Entry {
                key: "probe-failure-threshold",
                value: "number",
                default: "none",
                about: "`failureThreshold`.",
                example: "1000",
            },
            Entry {
                key: "hook-sleep",
                value: "time",
                default: "none",
                about: "A termination hook that sleeps.",
                example: "\"1m\"",
            },
            Entry {
                key: "names",
                value: "number",
                default: "none (256 at most in any case)",
                about: "Names in one list.",
                example: "32",
            },
        ],
    },
    Table {
        name: "minimums",
        about: "A pod that asks for less is refused; a default that is less is raised.",
        entries: &[
            Entry {
                key: "grace-period",
                value: "time",
                default: "none",
                about: "The grace period of a pod and of a container.",
                example: "\"1s\"",
            },
            Entry {
                key: "startup-timeout",
                value: "time",
                default: "none",
                about: "`usher/startup-timeout`.",
                example: "\"10s\"",
            },
            Entry {
                key: "termination-window",
                value: "time",
                default: "none",
                about: "`usher/termination-window`.",
                example: "\"100ms\"",
            },
            Entry {
                key: "probe-period",
                value: "time",
                default: "none",
                about: "`periodSeconds`, `periodMilliseconds`.",
                example: "\"100ms\"",
            },
        ],
    },
    Table {
        name: "roles",
        about: "What others put into pods.",
        entries: &[
            Entry {
                key: "sidecars",
                value: "names, in which `*` stands for any part",
                default: "none",
                about: "A container of such a name that is in no list of its pod is a sidecar of it.",
                example: "[\"istio-proxy\", \"*-exporter\"]",
            },
            Entry {
                key: "everywhere",
                value: "`true`, `false`",
                default: "`false`",
                about: "In pods without annotations, too. Needs `sidecars`.",
                example: "false",
            },
        ],
    },
];
