//! Servers and commands that are probed, and do their worst.
