//! Fuzz targets of the shim, the engine and the command.

/// A shim's message to `usher`, as each command prints it.
pub fn answers(input: &[u8]) {
    crate::cli::fuzz::answers(input);
}

/// containerd's standard input to `start`.
pub fn bootstrap(input: &[u8]) {
    crate::shim::fuzz::bootstrap(input);
}

/// A bundle's `config.json`, and all changes that the shim makes to it.
pub fn bundle(input: &[u8]) {
    crate::engine::oci::fuzz::bundle(input);
}

/// JSON and messages inside calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::pod::fuzz::calls(input);
    crate::engine::oci::fuzz::resources(input);
}

/// The node's configuration file.
pub fn config(input: &[u8]) {
    crate::config::fuzz(input);
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

/// The options of the OCI runtime.
pub fn options(input: &[u8]) {
    crate::engine::oci::fuzz::options(input);
}

/// kubelet's configuration of a sandbox.
pub fn sandbox(input: &[u8]) {
    crate::engine::sandbox::fuzz::config(input);
}

/// Files written by the OCI runtime, and by a shim that has died.
pub fn state(input: &[u8]) {
    crate::engine::oci::fuzz::files(input);
    crate::engine::oci::fuzz::state(input);
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
