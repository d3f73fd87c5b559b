//! Hostile containers, an OCI runtime that hangs, and neighbors that do not answer. Each pod still
//! ends in time, and costs other pods nothing.

mod all_pods;
mod budget;
mod hung_neighbors;
mod pods;
mod probes;
mod read_only;
mod runner;
mod runtime;
mod sandbox;
mod stage;
