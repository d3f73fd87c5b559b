//! Pods in trouble, with a sandbox container and a caller that does what kubelet does: apps that are
//! down, sidecars that have gone, ends that are over while the pod lives on. Judged by what the
//! containers have recorded, and by the exits that their caller is told.

mod apps_down;
mod decided;
mod kubelet;
mod lone;
mod over;
mod sidecars;
mod time;
