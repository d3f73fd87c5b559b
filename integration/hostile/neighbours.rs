//! A neighbour that hangs: another shim, a client that says nothing more.
