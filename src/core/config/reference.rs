//! Texts about the tables and keys of the configuration file, from which the reference pages are
//! made.

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
        about: "All keys are optional. A changed file applies to new pods, without a restart of \
                any program. While the file has a mistake, no new pod with usher's runtime can \
                start. `usher check` and containerd's error message show the mistake. Write times \
                as in annotations, but in quotes, for example `\"90s\"`.",
        entries: &[
            Entry {
                key: "enabled",
                value: "`true`, `false`",
                default: "`true`",
                about: "With `false`, usher ignores the annotations of new pods. These pods run as \
                        under containerd's own shim.",
                example: "true",
            },
            Entry {
                key: "unknown-keys",
                value: "`\"Refuse\"`, `\"Warn\"`",
                default: "`\"Refuse\"`",
                about: "If a container has an annotation of usher that this version does not know, \
                        `\"Refuse\"` refuses the container, and `\"Warn\"` only logs a warning. \
                        Use `\"Warn\"` while nodes run different versions of usher.",
                example: "\"Refuse\"",
            },
        ],
    },
    Table {
        name: "limits",
        about: "usher refuses a pod if the value of an annotation is above the limit.",
        entries: &[
            Entry {
                key: "grace-period",
                value: "time",
                default: "none",
                about: "The longest grace period that an annotation may give a pod or a container. \
                        The limit does not apply to the grace period that kubelet itself gives a \
                        pod.",
                example: "\"1h\"",
            },
            Entry {
                key: "startup-timeout",
                value: "time",
                default: "none",
                about: "The maximum of `usher/startup-timeout`.",
                example: "\"30m\"",
            },
            Entry {
                key: "termination-window",
                value: "time",
                default: "none",
                about: "The maximum of `usher/termination-window`.",
                example: "\"10s\"",
            },
            Entry {
                key: "grace-extension",
                value: "time",
                default: "none",
                about: "The maximum of `maxSeconds` in `usher/grace-extension`.",
                example: "\"5m\"",
            },
            Entry {
                key: "grace-extension-count",
                value: "number",
                default: "none",
                about: "The maximum of `count` in `usher/grace-extension`.",
                example: "10",
            },
            Entry {
                key: "probe-initial-delay",
                value: "time",
                default: "none",
                about: "The maximum of a probe's `initialDelaySeconds`.",
                example: "\"5m\"",
            },
            Entry {
                key: "probe-period",
                value: "time",
                default: "none",
                about: "The maximum of a probe's `periodSeconds` or `periodMilliseconds`.",
                example: "\"1m\"",
            },
            Entry {
                key: "probe-timeout",
                value: "time",
                default: "none",
                about: "The maximum of a probe's `timeoutSeconds`.",
                example: "\"10s\"",
            },
            Entry {
                key: "probe-failure-threshold",
                value: "number",
                default: "none",
                about: "The maximum of a probe's `failureThreshold`.",
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
                default: "256",
                about: "The maximum number of names in a list. A number above 256 has no effect.",
                example: "32",
            },
        ],
    },
    Table {
        name: "minimums",
        about: "usher refuses a pod if the value of an annotation is below the minimum.",
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
                about: "The minimum of `usher/startup-timeout`.",
                example: "\"10s\"",
            },
            Entry {
                key: "termination-window",
                value: "time",
                default: "none",
                about: "The minimum of `usher/termination-window`.",
                example: "\"100ms\"",
            },
            Entry {
                key: "probe-period",
                value: "time",
                default: "none",
                about: "The minimum of a probe's `periodSeconds` or `periodMilliseconds`.",
                example: "\"100ms\"",
            },
        ],
    },
    Table {
        name: "roles",
        about: "`[roles]` gives roles to containers, such as injected proxies, that the pod's \
                annotations do not list.",
        entries: &[
            Entry {
                key: "sidecars",
                value: "names, in which `*` stands for any characters",
                default: "none",
                about: "A container with one of these names is a sidecar, unless the pod's \
                        annotations list the container.",
                example: "[\"istio-proxy\", \"*-exporter\"]",
            },
            Entry {
                key: "everywhere",
                value: "`true`, `false`",
                default: "`false`",
                about: "With `true`, the names in `sidecars` also apply to pods without \
                        annotations of usher. `true` is invalid without names in `sidecars`.",
                example: "false",
            },
        ],
    },
];
