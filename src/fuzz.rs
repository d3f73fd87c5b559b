//! Fuzz targets of the shim, the engine and the command.

/// Prints a shim's message to `usher` as each command does.
pub fn answers(input: &[u8]) {
    crate::cli::fuzz::answers(input);
}

/// Parses the standard input that containerd gives to the shim's command `start`.
pub fn bootstrap(input: &[u8]) {
    crate::shim::fuzz::bootstrap(input);
}

/// Parses the JSON and the messages inside calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::pod::fuzz::calls(input);
}

/// Sends the input to the control socket, as ttrpc.
pub fn control(input: &[u8]) {
    crate::shim::fuzz::ttrpc::control(input);
}

/// Converts a manifest as `usher convert` does.
pub fn convert(input: &[u8]) {
    crate::cli::fuzz::convert(input);
}

/// Explains a manifest as `usher explain` does.
pub fn explain(input: &[u8]) {
    crate::cli::fuzz::explain(input);
}

/// Sends the input to the shim's socket for containerd, as ttrpc.
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
