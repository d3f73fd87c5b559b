//! Tests against a real containerd; see `harness`.

mod away;
mod bootstrap;
mod callers;
mod check;
mod children;
mod config;
mod edges;
mod environment;
mod exhaustion;
mod harness;
mod info;
mod install;
mod jobs;
mod leaks;
mod oom;
mod parity;
mod pod;
mod refusals;
mod releases;
mod restarting;
mod shimless;
mod sizes;
mod slow;
mod starting;
mod stopping;
mod streams;
