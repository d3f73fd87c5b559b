//! Pods in trouble, as many as there are numbers, and what holds for each of them.

mod by_hand;
mod case;
mod chance;
mod kubelet;
mod promises;
mod runs;
mod trace;
