//! The rules, in the simulator.

mod chaos;
mod corners;
mod inference;
mod promises;
mod record;
mod simulator;
mod starting;
mod stopping;
