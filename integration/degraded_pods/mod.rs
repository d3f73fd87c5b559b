//! Degraded pods, with a sandbox container and a caller that behaves like kubelet: crashed apps,
//! absent sidecars, terminations that the pod survives. Judged by the records of the containers and
//! by the exit codes that the caller sees.

mod absent_sidecars;
mod after_termination;
mod crashed_apps;
mod grace_periods;
mod kubelet;
mod shim_terminations;
mod single_stops;
