//! Texts about each line of the configuration, from which the reference pages are made.

/// A table of the configuration file, as TOML uses the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The table's name; empty for the keys at the top of the file, outside of any table.
    pub name: &'static str,
    pub about: &'static str,
    pub entries: &'static [Entry],
}

/// The description of one key of the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub key: &'static str,
    /// The form of the key's value.
    pub value: &'static str,
    /// The value that applies if the key is missing.
    pub default: &'static str,
    /// The effect of the key, in whole sentences.
    pub about: &'static str,
    /// An example of a value, in TOML.
    pub example: &'static str,
}

/// All tables except `[defaults]`. The keys of `[defaults]` are pod settings, which the reference
/// of annotations describes.
pub const TABLES: &[Table] = &[
    Table {
        name: "",
        about: "All keys are optional. The file applies to every pod that starts afterwards. While \
                it has a mistake, no pod can start, and `usher check` names the mistake. Times are \
                written as in annotations, in quotes: `\"300ms\"`, `\"90s\"`, `\"1h30m\"`.",
        entries: &[
            Entry {
                key: "enabled",
                value: "`true`, `false`",
                default: "`true`",
                about: "With `false` annotations have no effect: new pods run as under \
                        containerd's own shim.",
                example: "true",
            },
            Entry {
                key: "unknown-keys",
                value: "`\"Refuse\"`, `\"Warn\"`",
                default: "`\"Refuse\"`",
                about: "The treatment of an usher annotation that this version does not know. \
                        `\"Warn\"` ignores it with a warning, for the time in which nodes run \
                        different versions.",
                example: "\"Refuse\"",
            },
        ],
    },
    Table {
        name: "limits",
        about: "usher refuses a pod that asks for more than a limit. A key that is not given sets \
                no limit.",
        entries: &[
            Entry {
                key: "grace-period",
                value: "time",
                default: "none",
                about: "The grace period that an annotation gives a pod or a container. The \
                        grace period that kubelet sends is not limited.",
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
                about: "`count` of `usher/grace-extension`.",
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
                about: "The time that a termination hook sleeps.",
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
        about: "usher refuses a pod that asks for less than a minimum, and raises a default that \
                is lower.",
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
        about: "Roles of containers that the pod's author has not written, for example those that an \
                injector adds.",
        entries: &[
            Entry {
                key: "sidecars",
                value: "names, in which `*` stands for any characters",
                default: "none",
                about: "A container with such a name is a sidecar if no list of its pod names it.",
                example: "[\"istio-proxy\", \"*-exporter\"]",
            },
            Entry {
                key: "everywhere",
                value: "`true`, `false`",
                default: "`false`",
                about: "With `true`, `sidecars` also applies to pods without annotations. Needs \
                        `sidecars`.",
                example: "false",
            },
        ],
    },
];
