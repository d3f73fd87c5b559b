//! An OCI runtime that hangs at one of its verbs, and what it must never hand on.
