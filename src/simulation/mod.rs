//! A simulated node: the Task service, the actor and the core, as they are, between a containerd and an
//! engine that are models, under one scheduler and in a time of its own. All that happens follows from
//! one number.
//!
//! | file | what it is |
//! |---|---|
//! | `containerd` | a containerd: calls the Task service, listens to events, dies and comes back |
//! | `node` | what the kubelet of the simulated world calls: such a containerd, and the machine below |
//! | `faults` | what goes wrong, from a seed |
//! | `invariants` | what holds whatever goes wrong |
//! | `account` | what a node has to tell, for the promises of the core |
//! | `runs` | the runs |

mod account;
mod containerd;
mod faults;
mod invariants;
mod node;
mod runs;
