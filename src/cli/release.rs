//! `usher release`: opens a gate by hand.

use std::process::ExitCode;

use clap::Args;

use super::json::json;
use super::node::Node;
use super::output::{Failure, Output, Stdout};
use super::words::obstacle;
use crate::api;

/// Lets a held container run though its turn has not come
///
/// Says what it waited for. The rest of the pod's order is as it was. A container that runs already,
/// one of a pod that terminates, and a defer container before that cannot be released.
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
            true => "nothing any more".to_owned(),
            false => overridden.join(", "),
        };
        stdout.text(format!(
            "{} of {} is released though it waited for {waited_for}\n",
            self.container, pod.name
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
