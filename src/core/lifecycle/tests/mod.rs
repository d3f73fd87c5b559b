//! The rules, in the simulator.

mod allowance;
mod chaos;
mod completion;
mod corners;
mod decided_ends;
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
mod post_start;
mod promises;
mod restarting;
mod signals;
mod sizes;
mod starting;
mod stopping;
mod trouble;
mod view;
