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
        about: "All keys are optional. A change to the file applies to pods that start after the \
                change. While the file has a mistake, no pod with usher's runtime can start. \
                `usher check` and containerd's error message show the mistake. Write times as in \
                annotations, but in quotes: `\"300ms\"`, `\"90s\"`, `\"1h30m\"`.",
        entries: &[
            Entry {
                key: "enabled",
                value: "`true`, `false`",
                default: "`true`",
                about: "With `false`, usher ignores all annotations: new pods run as under \
                        containerd's own shim.",
                example: "true",
            },
            Entry {
                key: "unknown-keys",
                value: "`\"Refuse\"`, `\"Warn\"`",
                default: "`\"Refuse\"`",
                about: "Applies to annotations of usher that this version of usher does not know. \
                        `\"Refuse\"` refuses the container. `\"Warn\"` ignores the annotation and \
                        logs a warning: use it while nodes run different versions.",
                example: "\"Refuse\"",
            },
        ],
    },
    Table {
        name: "limits",
        about: "usher refuses a pod if a value in its annotations is above a limit. A setting \
                whose key is not in the file has no limit.",
        entries: &[
            Entry {
                key: "grace-period",
                value: "time",
                default: "none",
                about: "The longest grace period that an annotation may give a pod or a container. \
                        The limit does not apply to the grace period that kubelet sends.",
                example: "\"1h\"",
            },
            Entry {
                key: "startup-timeout",
                value: "time",
                default: "none",
                about: "The maximum that a pod may set as `usher/startup-timeout`.",
                example: "\"30m\"",
            },
            Entry {
                key: "termination-window",
                value: "time",
                default: "none",
                about: "The maximum that a pod may set as `usher/termination-window`.",
                example: "\"10s\"",
            },
            Entry {
                key: "grace-extension",
                value: "time",
                default: "none",
                about: "The maximum that a pod may set as `maxSeconds` of `usher/grace-extension`.",
                example: "\"5m\"",
            },
            Entry {
                key: "grace-extension-count",
                value: "number",
                default: "none",
                about: "The maximum that a pod may set as `count` of `usher/grace-extension`.",
                example: "10",
            },
            Entry {
                key: "probe-initial-delay",
                value: "time",
                default: "none",
                about: "The maximum that a pod may set as `initialDelaySeconds` of a probe.",
                example: "\"5m\"",
            },
            Entry {
                key: "probe-period",
                value: "time",
                default: "none",
                about: "The maximum that a pod may set as `periodSeconds` or \
                        `periodMilliseconds` of a probe.",
                example: "\"1m\"",
            },
            Entry {
                key: "probe-timeout",
                value: "time",
                default: "none",
                about: "The maximum that a pod may set as `timeoutSeconds` of a probe.",
                example: "\"10s\"",
            },
            Entry {
                key: "probe-failure-threshold",
                value: "number",
                default: "none",
                about: "The maximum that a pod may set as `failureThreshold` of a probe.",
                example: "1000",
            },
            Entry {
                key: "hook-sleep",
                value: "time",
                default: "none",
                about: "The longest time that a termination hook may sleep.",
                example: "\"1m\"",
            },
            Entry {
                key: "names",
                value: "number",
                default: "none",
                about: "The highest number of names in one list. Even without this key, a list has \
                        at most 256 names.",
                example: "32",
            },
        ],
    },
    Table {
        name: "minimums",
        about: "usher refuses a pod if a value in its annotations is below a minimum. usher raises \
                a default that is below a minimum.",
        entries: &[
            Entry {
                key: "grace-period",
                value: "time",
                default: "none",
                about: "The shortest grace period that an annotation may give a pod or a \
                        container.",
                example: "\"1s\"",
            },
            Entry {
                key: "startup-timeout",
                value: "time",
                default: "none",
                about: "The minimum that a pod may set as `usher/startup-timeout`.",
                example: "\"10s\"",
            },
            Entry {
                key: "termination-window",
                value: "time",
                default: "none",
                about: "The minimum that a pod may set as `usher/termination-window`.",
                example: "\"100ms\"",
            },
            Entry {
                key: "probe-period",
                value: "time",
                default: "none",
                about: "The minimum that a pod may set as `periodSeconds` or \
                        `periodMilliseconds` of a probe.",
                example: "\"100ms\"",
            },
        ],
    },
    Table {
        name: "roles",
        about: "This table gives roles to containers that an injector adds, and that the pod's \
                annotations do not list.",
        entries: &[
            Entry {
                key: "sidecars",
                value: "names, in which `*` stands for any characters",
                default: "none",
                about: "A container with one of these names is a sidecar, unless a list in its \
                        pod's annotations contains the container's name.",
                example: "[\"istio-proxy\", \"*-exporter\"]",
            },
            Entry {
                key: "everywhere",
                value: "`true`, `false`",
                default: "`false`",
                about: "With `true`, the key `sidecars` also applies to pods without annotations. \
                        `everywhere` needs the key `sidecars`.",
                example: "false",
            },
        ],
    },
];
