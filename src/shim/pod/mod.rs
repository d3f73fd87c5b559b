//! The actor that owns one pod.
//!
//! The actor alone holds the [lifecycle core](usher_core::lifecycle) and the table of tasks and
//! their processes. A handler of the Task service sends the actor a message and awaits the answer.
//! If ttrpc drops the handler, the actor's work goes on. The actor itself never waits: work that
//! takes time is a numbered operation (`operations`), which sends the actor a message at its end.

mod actor;
mod attempts;
mod cgroup;
mod checkpoint;
mod create;
mod delete;
mod exec;
mod manual;
mod messages;
mod operations;
mod post_start;
mod restart;
mod sandbox;
mod scores;
mod signals;
#[cfg(test)]
pub(crate) mod sim;
mod sizes;
mod start;
mod status;
mod stop;
mod updates;

pub use actor::{Actor, Pod};
