//! `usher stop`: runs the whole termination sequence of a pod, or of all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::node::{Found, Node, Silence, full_name};
use super::output::{BAD, BOLD, FAINT, Failure, GOOD, Stdout, styled, warn};
use super::time;
use crate::api;
use crate::plan::parse_duration;

/// Stops pods in their order: hooks, pre-exit containers, apps, post-exit containers, sidecars
///
/// Waits until all is over, and says how it goes. The sandbox is left alone. Whoever looks after the
/// pod, as kubelet does, may create its containers again: that starts the pod over. Where a node goes
/// down, stop kubelet first.
#[derive(Debug, Args)]
pub(super) struct Stop {
    /// The pods: their names, namespace/name, or the beginnings of their ids
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pods: Vec<String>,
    /// All pods of this node
    #[arg(long)]
    all: bool,
    /// How long they may take, as 30s or 1m30s; each pod's own grace period if none is given
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    grace_period: Option<Duration>,
    /// Does not wait for the end
    #[arg(long)]
    no_wait: bool,
}

/// What a pod that is asked to stop is given beyond its grace period before it is reported as stuck:
/// the longest of the grace policies, and what a busy machine takes.
const BEYOND_GRACE: Duration = Duration::from_secs(30);

fn grace(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// A pod that is being stopped.
struct Stopping {
    title: String,
    began: Instant,
    gives_up: Instant,
    /// What was said of its containers last.
    states: BTreeMap<String, String>,
}

impl Stop {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let node = Node::new()?;
        let mut stopping = BTreeMap::new();
        let (chosen, silent) = self.chosen(&node)?;
        // With --all a pod that could not be asked is one that was not stopped.
        let mut is_well = silent == 0;
        for (socket, pod) in chosen {
            match self.ask(&node, &socket) {
                Err(Failure::Because(why)) => {
                    is_well = false;
                    warn(&format!("{} is not stopped: {why}", full_name(&pod)));
                }
                Err(failure) => return Err(failure),
                Ok(response) if response.containers.is_empty() => {
                    stdout.text(format!("{}: nothing runs\n", title(&pod)))?;
                }
                Ok(response) => {
                    let within = time::seconds(&response.deadline).map(|at| at - time::now());
                    let within = within.unwrap_or_default().max(0.0);
                    stdout.text(format!(
                        "{}: {} to stop within {}\n",
                        title(&pod),
                        response.containers.join(", "),
                        time::span(within)
                    ))?;
                    let began = Instant::now();
                    let limit = Duration::try_from_secs_f64(within).unwrap_or_default();
                    let limit = limit.saturating_add(BEYOND_GRACE);
                    let one = Stopping {
                        title: title(&pod),
                        began,
                        gives_up: began.checked_add(limit).unwrap_or(began),
                        states: BTreeMap::new(),
                    };
                    stopping.insert(socket, one);
                }
            }
        }
        if !self.no_wait {
            is_well &= follow(&node, stopping, stdout)?;
        }
        Ok(match is_well {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// The pods, and how many shims should have been asked and did not answer.
    fn chosen(&self, node: &Node) -> Result<(Vec<(PathBuf, api::Pod)>, usize), Failure> {
        if self.all {
            let seen = node.living(false);
            let reachable = |found: Found| Some((found.socket?, found.pod));
            let pods = seen.pods.into_iter().filter_map(reachable);
            return Ok((pods.collect(), seen.silent));
        }
        let pods: Result<_, _> = self.pods.iter().map(|pod| node.find_living(pod)).collect();
        Ok((pods?, 0))
    }

    fn ask(&self, node: &Node, socket: &Path) -> Result<api::StopResponse, Failure> {
        let request = api::StopRequest {
            grace_period: self.grace_period.map(time::message).into(),
            ..api::StopRequest::new()
        };
        node.ask(socket, async |client, context| {
            client.stop(context, &request).await
        })
    }
}

fn title(pod: &api::Pod) -> String {
    styled(BOLD, &pod.name)
}

/// Says what becomes of pods until all of them are over; whether that has gone well.
fn follow(
    node: &Node,
    mut stopping: BTreeMap<PathBuf, Stopping>,
    stdout: &mut Stdout,
) -> Result<bool, Failure> {
    let mut is_well = true;
    while !stopping.is_empty() {
        let sockets: Vec<_> = stopping.keys().cloned().collect();
        for socket in sockets {
            let Some(one) = stopping.get_mut(&socket) else {
                continue;
            };
            let is_over = match node.status(&socket) {
                Ok(pod) => {
                    one.show(&pod, stdout)?;
                    pod.phase.enum_value() == Ok(api::Phase::PHASE_TERMINATED)
                }
                // With its last container the shim has nothing to tell any more.
                Err(Silence::Over) => true,
                Err(Silence::Died) => {
                    is_well = false;
                    warn(&format!("{}: its shim has died", one.title));
                    stopping.remove(&socket);
                    continue;
                }
                Err(Silence::Because(_)) => false,
            };
            if is_over {
                let took = time::span(one.began.elapsed().as_secs_f64());
                stdout.text(format!(
                    "{}: {} after {took}\n",
                    one.title,
                    styled(GOOD, "stopped")
                ))?;
                stopping.remove(&socket);
            } else if Instant::now() > one.gives_up {
                is_well = false;
                warn(&format!("{} does not stop", one.title));
                stopping.remove(&socket);
            }
        }
        if !stopping.is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(is_well)
}

/// How often it is looked how far the pods are.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Stopping {
    /// A line for each container of which there is something new to say.
    fn show(&mut self, pod: &api::Pod, stdout: &mut Stdout) -> Result<(), Failure> {
        use api::State::*;
        let sandbox = Ok(api::Role::ROLE_SANDBOX);
        for container in &pod.containers {
            let state = container.state.enum_value_or_default();
            let news = match (state, container.exit_code) {
                (STATE_STOPPING, _) => "is told to stop".to_owned(),
                (STATE_STOPPED | STATE_GONE, Some(0)) => "has exited with 0".to_owned(),
                (STATE_STOPPED | STATE_GONE, Some(code)) => {
                    format!("has exited with {}", styled(BAD, code))
                }
                _ => continue,
            };
            let before = self.states.insert(container.name.clone(), news.clone());
            if before.as_ref() != Some(&news) && container.role.enum_value() != sandbox {
                let after = time::span(self.began.elapsed().as_secs_f64());
                stdout.text(format!(
                    "{}: {} {news} {}\n",
                    self.title,
                    container.name,
                    styled(FAINT, format!("+{after}"))
                ))?;
            }
        }
        Ok(())
    }
}
