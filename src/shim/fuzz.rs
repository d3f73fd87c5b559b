//! Fuzz targets: calls to the shim, and the input of its program.

/// containerd's standard input to `start`.
pub fn bootstrap(input: &[u8]) {
    crate::process::fuzz::bootstrap(input);
}

/// JSON and messages inside calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::calls::fuzz::calls(input);
}

/// ttrpc on the control socket.
pub fn control(input: &[u8]) {
    crate::process::fuzz::ttrpc::control(input);
}

/// ttrpc on the socket for containerd.
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
