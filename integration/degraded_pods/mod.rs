//! Degraded pods, with a sandbox container and a caller that behaves like kubelet: crashed apps,
//! absent sidecars, terminations after which the pod goes on. The tests judge by what the
//! containers recorded, and by the exit codes that the caller gets.

mod absent_sidecars;
mod after_termination;
mod crashed_apps;
mod grace_periods;
mod kubelet;
mod shim_terminations;
mod single_stops;
