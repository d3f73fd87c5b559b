//! The rules, in the simulator.

mod chaos;
mod corners;
mod fixtures;
mod inference;
mod promises;
mod record;
mod simulator;
mod starting;
mod stopping;
