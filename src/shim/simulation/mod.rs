//! A simulated node: the real Task service, actor and core, between a simulated containerd and a
//! simulated engine. One scheduler runs all of them in simulated time, so that one number
//! determines all events.
//!
//! | file | what it is |
//! |---|---|
//! | `containerd` | a simulated containerd: calls the shim, receives events, dies and comes back |
//! | `node` | the node that the simulated kubelet uses: that containerd, shims, and the machine |
//! | `faults` | the faults of a node, drawn from a seed |
//! | `invariants` | the invariants of every node, with any faults |
//! | `account` | the record of a node, for the core's promises |
//! | `runs` | the tests that run nodes |

mod account;
mod containerd;
mod faults;
mod invariants;
mod node;
mod runs;
