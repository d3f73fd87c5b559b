//! Tests against a real containerd; see `harness`.

#![allow(clippy::disallowed_methods, reason = "tests may wait")]

mod awkward_moments;
mod bootstrap;
mod cgroups;
mod charged_memory;
mod check;
mod child_processes;
mod containerd_down;
mod control;
mod defers;
mod degraded_pods;
mod demo_pod;
mod descriptor_exhaustion;
mod disturbed_releases;
mod docs;
mod engine;
mod first_hour;
mod grace_policies;
mod harness;
mod hostile;
mod install;
mod jobs;
mod leak_detection;
mod missing_annotations;
mod node_config;
mod old_kernels;
mod oom;
mod parity;
mod pauseless;
mod pod;
mod pod_sizing;
mod refused_annotations;
mod restarts_in_place;
mod shim_death;
mod shim_info;
mod slow_runtime;
mod source;
mod stalled_disks;
mod starting;
mod stopping;
mod streams;
mod test_environment;
mod upgrade;
mod upstream_outcomes;
mod vanishing_callers;
