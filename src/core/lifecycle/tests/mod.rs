//! The rules, in the simulator.

mod allowance;
mod chaos;
mod circles;
mod completion;
mod corners;
mod defers;
mod exhaustive;
mod fixtures;
mod found;
mod inference;
mod init;
mod interleavings;
mod manual;
mod oom;
mod optional;
mod pods;
mod policies;
mod promises;
mod restarting;
mod signals;
mod sizes;
mod starting;
mod stopping;
mod trouble;
mod view;
