//! What a pod can do to its node, and what a hung part can do to a pod: hostile containers, an OCI
//! runtime that hangs, neighbours that do not answer. Each of them ends in time, and costs nobody else
//! anything.

mod budget;
mod gallery;
mod neighbours;
mod pods;
mod probes;
mod read_only;
mod runner;
mod runtime;
mod sandbox;
mod stage;
