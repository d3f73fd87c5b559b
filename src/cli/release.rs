//! `usher release`: lets the program of a held container run before the container's turn.

use std::process::ExitCode;

use clap::Args;

use super::json::json;
use super::node::Node;
use super::output::{Failure, Output, Stdout};
use super::words::obstacle;
use usher_api as api;

/// Starts a held container before its turn
///
/// Prints the containers that it waited for. The order of all other containers stays. Containers
/// that already run, containers of a terminating pod, and defer containers before the termination
/// cannot be released.
#[derive(Debug, Args)]
pub(super) struct Release {
    /// The pod: its name, namespace/name, or the first characters of its id, four or more
    pod: String,
    /// The container: its name in the pod, or its id
    container: String,
    #[command(flatten)]
    output: Output,
}

impl Release {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let node = Node::new()?;
        let (socket, pod) = node.find_living(&self.pod)?;
        let request = api::ReleaseRequest {
            container: self.container.clone(),
            ..api::ReleaseRequest::new()
        };
        let response = node.ask(&socket, async |client, context| {
            client.release(context, &request).await
        })?;
        if self.output.is_json() {
            stdout.json(&json(&response)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let overridden: Vec<_> = response.overridden.iter().map(obstacle).collect();
        let waited_for = match overridden.is_empty() {
            true => "nothing".to_owned(),
            false => overridden.join(", "),
        };
        stdout.text(format!(
            "released {} of {}, which waited for {waited_for}\n",
            self.container, pod.name
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
