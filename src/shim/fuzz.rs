//! Fuzz targets for calls to the shim, and for the standard input of its `start` command.

/// Fuzzes the standard input that containerd writes to `start`.
pub fn bootstrap(input: &[u8]) {
    crate::process::fuzz::bootstrap(input);
}

/// Fuzzes the JSON and the nested messages in calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::calls::fuzz::calls(input);
}

/// Fuzzes the ttrpc server of the control socket.
pub fn control(input: &[u8]) {
    crate::process::fuzz::ttrpc::control(input);
}

/// Fuzzes the ttrpc server of the socket for containerd.
pub fn task(input: &[u8]) {
    crate::process::fuzz::ttrpc::task(input);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_fails() {
        usher_fuzz::run_seeds(&[
            ("bootstrap", bootstrap),
            ("calls", calls),
            ("control", control),
            ("task", task),
        ]);
    }
}
