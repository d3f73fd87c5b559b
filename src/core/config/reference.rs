//! What each line of the configuration is for, in words: what the reference pages are made of.

/// What is to be known of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The table that it stands in; empty at the top of the file.
    pub table: &'static str,
    pub key: &'static str,
    /// An example, as TOML.
    pub example: &'static str,
    /// What it does, in whole sentences.
    pub about: &'static str,
}

/// What is to be known of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    pub name: &'static str,
    pub about: &'static str,
}

/// The tables, in the order of the pages.
pub const TABLES: &[Table] = &[
    Table {
        name: "defaults",
        about: "What a pod gets that says nothing itself. A key is an annotation's without `usher/`, its \
            value is written as the annotation's is. There is none for lists of containers, nor for the \
            restart policy.",
    },
    Table {
        name: "limits",
        about: "A pod that asks for more is refused. Where there is no limit, there is none.",
    },
    Table {
        name: "minimums",
        about: "A pod that asks for less is refused; a default that is less is raised.",
    },
    Table {
        name: "roles",
        about: "What containers are that others put into pods, and that no list of the pod has.",
    },
];

/// All keys but those of `[defaults]`, which are the annotations'.
pub const ENTRIES: &[Entry] = &[
    Entry {
        table: "",
        key: "enabled",
        example: "true",
        about: "`false`: annotations mean nothing, and pods run as under containerd's own shim.",
    },
    Entry {
        table: "",
        key: "unknown-keys",
        example: "\"Refuse\"",
        about: "What becomes of a pod with an annotation in usher's name space that this version does not \
            know: `\"Refuse\"`, or `\"Warn\"`, which ignores it while nodes run different versions.",
    },
    Entry {
        table: "limits",
        key: "grace-period",
        example: "\"1h\"",
        about: "Of a pod and of a container. Kubelet's own is not limited.",
    },
    Entry {
        table: "limits",
        key: "startup-timeout",
        example: "\"30m\"",
        about: "How long a container may wait for its turn.",
    },
    Entry {
        table: "limits",
        key: "termination-window",
        example: "\"10s\"",
        about: "How long a stop request may wait for a second one.",
    },
    Entry {
        table: "limits",
        key: "grace-extension",
        example: "\"5m\"",
        about: "What a grace extension may add in all: its `maxSeconds`.",
    },
    Entry {
        table: "limits",
        key: "grace-extension-count",
        example: "10",
        about: "How often a grace extension may be given.",
    },
    Entry {
        table: "limits",
        key: "probe-initial-delay",
        example: "\"5m\"",
        about: "A probe's `initialDelaySeconds`.",
    },
    Entry {
        table: "limits",
        key: "probe-period",
        example: "\"1m\"",
        about: "A probe's `periodSeconds` or `periodMilliseconds`.",
    },
    Entry {
        table: "limits",
        key: "probe-timeout",
        example: "\"10s\"",
        about: "A probe's `timeoutSeconds`.",
    },
    Entry {
        table: "limits",
        key: "probe-failure-threshold",
        example: "1000",
        about: "A probe's `failureThreshold`.",
    },
    Entry {
        table: "limits",
        key: "hook-sleep",
        example: "\"1m\"",
        about: "How long a termination hook may `sleep`.",
    },
    Entry {
        table: "limits",
        key: "names",
        example: "32",
        about: "How many names one list may have.",
    },
    Entry {
        table: "minimums",
        key: "grace-period",
        example: "\"1s\"",
        about: "Of a pod and of a container.",
    },
    Entry {
        table: "minimums",
        key: "startup-timeout",
        example: "\"10s\"",
        about: "How long a container has to be allowed to wait for its turn.",
    },
    Entry {
        table: "minimums",
        key: "termination-window",
        example: "\"100ms\"",
        about: "How long a stop request has to wait for a second one.",
    },
    Entry {
        table: "minimums",
        key: "probe-period",
        example: "\"100ms\"",
        about: "How often a probe may be made.",
    },
    Entry {
        table: "roles",
        key: "sidecars",
        example: "[\"istio-proxy\", \"*-exporter\"]",
        about: "Names of sidecars, in which `*` stands for any part: as `usher/sidecars: istio-proxy?` in \
            all pods of the node.",
    },
    Entry {
        table: "roles",
        key: "everywhere",
        example: "false",
        about: "`true`: in pods without annotations, too.",
    },
];
