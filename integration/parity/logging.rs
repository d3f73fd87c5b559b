//! Output that goes to a file or a program instead of a client.
