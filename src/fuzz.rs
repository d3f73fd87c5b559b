//! Fuzz targets of the shim, the engine and the command.

/// Prints a shim's message to `usher` as each command does.
pub fn answers(input: &[u8]) {
    crate::cli::fuzz::answers(input);
}

/// Parses the standard input that containerd gives to the shim's command `start`.
pub fn bootstrap(input: &[u8]) {
    crate::shim::fuzz::bootstrap(input);
}

/// Reads a bundle's `config.json`, and makes all changes to it that the shim makes.
pub fn bundle(input: &[u8]) {
    crate::engine::oci::fuzz::bundle(input);
}

/// Parses the JSON and the messages inside calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::pod::fuzz::calls(input);
    crate::engine::oci::fuzz::resources(input);
}

/// Parses the node's configuration file.
pub fn config(input: &[u8]) {
    crate::config::fuzz(input);
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

/// Parses the options of the OCI runtime.
pub fn options(input: &[u8]) {
    crate::engine::oci::fuzz::options(input);
}

/// Reads kubelet's configuration of a sandbox.
pub fn sandbox(input: &[u8]) {
    crate::engine::sandbox::fuzz::config(input);
}

/// Parses files that the OCI runtime, or a shim that has died, has written.
pub fn state(input: &[u8]) {
    crate::engine::oci::fuzz::files(input);
    crate::engine::oci::fuzz::state(input);
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
            ("bundle", bundle),
            ("calls", calls),
            ("config", config),
            ("control", control),
            ("convert", convert),
            ("explain", explain),
            ("options", options),
            ("sandbox", sandbox),
            ("state", state),
            ("task", task),
        ]);
    }
}
