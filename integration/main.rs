//! Tests against a real containerd; see `harness`.

#![allow(clippy::disallowed_methods, reason = "tests may wait")]

mod away;
mod bootstrap;
mod callers;
mod cgroups;
mod check;
mod children;
mod config;
mod control;
mod defers;
mod demo_pod;
mod docs;
mod edges;
mod engine;
mod environment;
mod exhaustion;
mod harness;
mod hostile;
mod info;
mod install;
mod jobs;
mod leaks;
mod missing;
mod newcomer;
mod oom;
mod parity;
mod pauseless;
mod pod;
mod policies;
mod refusals;
mod releases;
mod restarting;
mod shimless;
mod sizes;
mod slow;
mod stalled_disks;
mod starting;
mod stopping;
mod streams;
mod trouble;
mod upgrade;
mod upstream;
