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
                `usher check` and containerd's error message show the mistake. Write times in the \
                format of annotations, but in quotes, for example `\"300ms\"`, `\"90s\"` or \
                `\"1h30m\"`.",
        entries: &[
            Entry {
                key: "enabled",
                value: "`true`, `false`",
                default: "`true`",
                about: "With `false`, usher ignores the annotations of all new pods, and new pods \
                        run as under containerd's own shim.",
                example: "true",
            },
            Entry {
                key: "unknown-keys",
                value: "`\"Refuse\"`, `\"Warn\"`",
                default: "`\"Refuse\"`",
                about: "Applies to annotations of usher that this version of usher does not know. \
                        With `\"Refuse\"`, usher refuses the container. With `\"Warn\"`, usher \
                        ignores the annotation and logs a warning. Use `\"Warn\"` while nodes run \
                        different versions of usher.",
                example: "\"Refuse\"",
            },
        ],
    },
    Table {
        name: "limits",
        about: "usher refuses a pod if a value in the pod's annotations is above a limit. If the \
                file does not contain a key, the setting of this key has no limit.",
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
        about: "usher refuses a pod with a value below its minimum. If a default is below its minimum, \
                usher uses the minimum instead.",
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
        about: "This table gives roles to containers that the pod's annotations do not list, for \
                example because an injector adds the containers.",
        entries: &[
            Entry {
                key: "sidecars",
                value: "names, in which `*` stands for any characters",
                default: "none",
                about: "If a container has one of these names, and the pod's annotations do not \
                        list the container, the container is a sidecar.",
                example: "[\"istio-proxy\", \"*-exporter\"]",
            },
            Entry {
                key: "everywhere",
                value: "`true`, `false`",
                default: "`false`",
                about: "With `true`, the key `sidecars` also applies to pods without annotations \
                        of usher. Without names in `sidecars`, usher refuses `everywhere = true`.",
                example: "false",
            },
        ],
    },
];
