//! Fuzz targets of the shim, the engine and the command.

/// A shim's message to `usher`, as each command prints it.
pub fn answers(input: &[u8]) {
    crate::cli::fuzz::answers(input);
}

/// containerd's standard input to `start`.
pub fn bootstrap(input: &[u8]) {
    crate::shim::fuzz::bootstrap(input);
}

/// JSON and messages inside calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::pod::fuzz::calls(input);
}

/// ttrpc on the control socket.
pub fn control(input: &[u8]) {
    crate::shim::fuzz::ttrpc::control(input);
}

/// A manifest for `usher convert`.
pub fn convert(input: &[u8]) {
    crate::cli::fuzz::convert(input);
}

/// A manifest for `usher explain`.
pub fn explain(input: &[u8]) {
    crate::cli::fuzz::explain(input);
}

/// ttrpc on the socket for containerd.
pub fn task(input: &[u8]) {
    crate::shim::fuzz::ttrpc::task(input);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_fails() {
        usher_fuzz::run_seeds(&[
            ("answers", answers),
            ("bootstrap", bootstrap),
            ("calls", calls),
            ("control", control),
            ("convert", convert),
            ("explain", explain),
            ("task", task),
        ]);
    }
}
