//! `usher stop`: runs the termination sequence of pods.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::choice::full_name;
use super::node::{NoAnswer, Node, StopAnswer, complaint};
use super::output::{BAD, BOLD, FAINT, Failure, GOOD, Stdout, styled, warn};
use super::{time, words};
use usher_api as api;
use usher_core::plan::parse_duration;

/// Stops pods in their order: hooks, pre-exit containers, apps, post-exit containers, sidecars
///
/// Waits until the pods have stopped, and prints their progress. The sandboxes stay. A caller such
/// as kubelet can create the containers again, which starts the pod again. Before a node's
/// shutdown, stop kubelet first.
#[derive(Debug, Args)]
pub(super) struct Stop {
    /// The pods: their names, namespace/name, or the first characters of their ids, four or more
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pods: Vec<String>,
    /// Stops all pods of this node
    #[arg(long)]
    all: bool,
    /// The grace period, such as 30s or 1m30s [default: each pod's own]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    grace_period: Option<Duration>,
    /// The time during which to retry shims that do not answer: a node that shuts down is busy
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1m")]
    answer_within: Duration,
    /// Does not wait until the pods have stopped
    #[arg(long)]
    no_wait: bool,
}

/// The time that a pod may take after the end of its grace period before it counts as stuck. Under
/// every grace policy a pod needs less, even on a busy machine.
const BEYOND_GRACE: Duration = Duration::from_secs(30);

/// A pod that is being stopped.
struct Stopping {
    title: String,
    began: Instant,
    gives_up: Instant,
    /// Numbers of SIGKILLs that each container had got before the stop began, by the container's
    /// name.
    kills: BTreeMap<String, Vec<api::Kills>>,
    /// The last printed state of each container.
    states: BTreeMap<String, String>,
}

/// Interval at which the pods' progress is polled.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The lines about the progress of the stops. If a line cannot be written, the command goes on
/// without further lines.
struct Progress<'a> {
    stdout: &'a mut Stdout,
    failure: Option<Failure>,
}

/// A run of the command.
struct Stops<'a> {
    node: &'a Node,
    request: api::StopRequest,
    began: Instant,
    answer_within: Duration,
    has_asked: bool,
    /// The sockets of shims that have not answered yet.
    unasked: Vec<PathBuf>,
    stopping: BTreeMap<PathBuf, Stopping>,
    is_well: bool,
}

impl Stop {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let node = Node::new()?;
        let (unasked, is_well) = match self.all {
            true => (node.sockets(), true),
            false => find(&node, &self.pods),
        };
        let mut progress = Progress {
            stdout,
            failure: None,
        };
        let mut stops = Stops {
            node: &node,
            request: api::StopRequest {
                grace_period: self.grace_period.map(time::message).into(),
                ..api::StopRequest::new()
            },
            began: Instant::now(),
            answer_within: self.answer_within,
            has_asked: false,
            unasked,
            stopping: BTreeMap::new(),
            is_well,
        };
        loop {
            stops.ask(&mut progress);
            if !self.no_wait {
                stops.follow(&mut progress);
            }
            let is_followed = self.no_wait || stops.stopping.is_empty();
            if stops.unasked.is_empty() && is_followed {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        match (progress.failure, stops.is_well) {
            (Some(failure), _) => Err(failure),
            (None, true) => Ok(ExitCode::SUCCESS),
            (None, false) => Ok(ExitCode::FAILURE),
        }
    }
}

/// Finds the running pods that the arguments `pods` name. Returns the sockets of their shims, and
/// true if each argument names a running pod. Prints an error for each other argument. A pod that
/// is named twice is returned once.
fn find(node: &Node, pods: &[String]) -> (Vec<PathBuf>, bool) {
    let mut sockets = Vec::new();
    for pod in pods {
        match node.find_living(pod) {
            Ok((socket, _)) => sockets.push(socket),
            Err(failure) => {
                failure.report();
            }
        }
    }
    let is_well = sockets.len() == pods.len();
    sockets.sort();
    sockets.dedup();
    (sockets, is_well)
}

fn title(pod: &api::Pod) -> String {
    styled(BOLD, &pod.name)
}

impl Stops<'_> {
    /// Asks all shims that have not answered yet to stop their pods.
    fn ask(&mut self, progress: &mut Progress<'_>) {
        let gives_up = self.began.elapsed() >= self.answer_within;
        let is_first = !std::mem::replace(&mut self.has_asked, true);
        let sockets = std::mem::take(&mut self.unasked);
        for (socket, answer) in self.node.stop(sockets, &self.request) {
            match answer {
                Ok(asked) => self.take_answer(socket, asked, progress),
                // The pod has ended, or its shim was killed, so no pod is left to stop.
                Err(NoAnswer::Ended | NoAnswer::Died) => {}
                Err(NoAnswer::Unresponsive(why)) if gives_up => {
                    self.is_well = false;
                    warn(&format!(
                        "{}; its pod is not stopped",
                        complaint(&socket, &why)
                    ));
                }
                Err(NoAnswer::Unresponsive(why)) => {
                    if is_first {
                        let long = time::span(self.answer_within.as_secs_f64());
                        let why = complaint(&socket, &why);
                        warn(&format!("{why}; retrying for {long}"));
                    }
                    self.unasked.push(socket);
                }
            }
        }
    }

    fn take_answer(
        &mut self,
        socket: PathBuf,
        StopAnswer { pod, answer }: StopAnswer,
        progress: &mut Progress<'_>,
    ) {
        let response = match answer {
            Err(status) => {
                self.is_well = false;
                let (pod, why) = (full_name(&pod), status.message);
                warn(&format!("{pod} is not stopped: {why}"));
                return;
            }
            Ok(response) if response.containers.is_empty() => {
                return progress.line(&format!("{}: no container runs", title(&pod)));
            }
            Ok(response) => response,
        };
        let within = time::seconds(&response.deadline).map(|at| at - time::now());
        let within = within.unwrap_or_default().max(0.0);
        progress.line(&format!(
            "{}: {} to stop within {}",
            title(&pod),
            response.containers.join(", "),
            time::span(within)
        ));
        let limit = Duration::try_from_secs_f64(within).unwrap_or_default();
        self.stopping.insert(socket, Stopping::new(pod, limit));
    }

    /// Prints the progress of the stopping pods, and drops those that have stopped.
    fn follow(&mut self, progress: &mut Progress<'_>) {
        let sockets: Vec<_> = self.stopping.keys().cloned().collect();
        for socket in sockets {
            let Some(one) = self.stopping.get_mut(&socket) else {
                continue;
            };
            let is_over = match self.node.status(&socket) {
                Ok(pod) => {
                    one.show(&pod, progress);
                    pod.phase.enum_value() == Ok(api::Phase::PHASE_TERMINATED)
                }
                // The shim exits after its last container, so the pod has stopped.
                Err(NoAnswer::Ended) => true,
                Err(NoAnswer::Died) => {
                    self.is_well = false;
                    warn(&format!("{}: its shim has died", one.title));
                    self.stopping.remove(&socket);
                    continue;
                }
                Err(NoAnswer::Unresponsive(_)) => false,
            };
            if is_over {
                let took = time::span(one.began.elapsed().as_secs_f64());
                let stopped = styled(GOOD, "stopped");
                progress.line(&format!("{}: {stopped} after {took}", one.title));
                self.stopping.remove(&socket);
            } else if Instant::now() > one.gives_up {
                self.is_well = false;
                warn(&format!("{} does not stop", one.title));
                self.stopping.remove(&socket);
            }
        }
    }
}

impl Progress<'_> {
    fn line(&mut self, line: &str) {
        if self.failure.is_none() {
            self.failure = self.stdout.text(format!("{line}\n")).err();
        }
    }
}

impl Stopping {
    /// Records the state of a pod at the beginning of its stop. On an idle machine the pod stops
    /// within `limit`.
    fn new(pod: api::Pod, limit: Duration) -> Stopping {
        let began = Instant::now();
        let limit = limit.saturating_add(BEYOND_GRACE);
        let title = title(&pod);
        let kills = |it: &api::Container| (it.name.clone(), it.kills.clone());
        let mut one = Stopping {
            title,
            kills: pod.containers.iter().map(kills).collect(),
            began,
            gives_up: began.checked_add(limit).unwrap_or(began),
            states: BTreeMap::new(),
        };
        // Records the present states, so that only later changes are printed.
        one.news(&pod);
        one
    }

    /// The reason for a SIGKILL that the container got after the stop began. None without SIGKILL.
    fn killed(&self, container: &api::Container) -> Option<&'static str> {
        let before = self.kills.get(&container.name);
        let before = |why| {
            let mut kills = before.into_iter().flatten();
            kills
                .find(|kills| kills.why == why)
                .map_or(0, |it| it.count)
        };
        let mut kills = container.kills.iter();
        let since = kills.find(|kills| kills.count > before(kills.why))?;
        Some(words::why(since.why))
    }

    /// Prints a line for each container whose state has changed.
    fn show(&mut self, pod: &api::Pod, progress: &mut Progress<'_>) {
        for (name, news) in self.news(pod) {
            let after = time::span(self.began.elapsed().as_secs_f64());
            let after = styled(FAINT, format!("+{after}"));
            progress.line(&format!("{}: {name} {news} {after}", self.title));
        }
    }

    /// The containers whose state has changed since the last call, with the new state.
    fn news(&mut self, pod: &api::Pod) -> Vec<(String, String)> {
        use api::State::*;
        let sandbox = Ok(api::Role::ROLE_SANDBOX);
        let mut all = Vec::new();
        for container in &pod.containers {
            let state = container.state.enum_value_or_default();
            let news = match (state, container.exit_code) {
                (STATE_STOPPING, _) => match self.killed(container) {
                    Some(why) => format!("is killed: {why}"),
                    None => "is stopping".to_owned(),
                },
                (STATE_STOPPED | STATE_GONE, Some(0)) => "exited with 0".to_owned(),
                (STATE_STOPPED | STATE_GONE, Some(code)) => {
                    let code = styled(BAD, code);
                    match self.killed(container) {
                        Some(why) => format!("exited with {code}, killed: {why}"),
                        None => format!("exited with {code}"),
                    }
                }
                _ => continue,
            };
            let before = self.states.insert(container.name.clone(), news.clone());
            if before.as_ref() != Some(&news) && container.role.enum_value() != sandbox {
                all.push((container.name.clone(), news));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, state: api::State, exit_code: Option<u32>) -> api::Container {
        api::Container {
            name: name.to_owned(),
            state: state.into(),
            exit_code,
            ..api::Container::new()
        }
    }

    #[test]
    fn containers_that_ended_before_the_stop_are_not_printed() {
        use api::State::{STATE_RUNNING, STATE_STOPPED, STATE_STOPPING};
        let pod = |state, code| api::Pod {
            name: "shop".to_owned(),
            containers: vec![
                container("proxy", STATE_STOPPED, Some(137)),
                container("app", state, code),
            ],
            ..api::Pod::new()
        };
        let mut one = Stopping::new(pod(STATE_RUNNING, None), Duration::ZERO);
        let mut news = |state, code| {
            let news = one.news(&pod(state, code)).into_iter();
            let news = news.map(|(name, news)| format!("{name} {news}"));
            news.collect::<Vec<_>>()
        };
        assert_eq!(news(STATE_RUNNING, None), Vec::<String>::new());
        assert_eq!(news(STATE_STOPPING, None), ["app is stopping"]);
        assert_eq!(news(STATE_STOPPED, Some(0)), ["app exited with 0"]);
        assert_eq!(news(STATE_STOPPED, Some(0)), Vec::<String>::new());
    }

    #[test]
    fn a_stop_goes_on_without_its_output() {
        let directory = tempfile::tempdir().unwrap();
        let node = Node::in_directory(directory.path().to_owned()).unwrap();
        let mut stops = Stops {
            node: &node,
            request: api::StopRequest::new(),
            began: Instant::now(),
            answer_within: Duration::ZERO,
            has_asked: false,
            unasked: Vec::new(),
            stopping: BTreeMap::new(),
            is_well: true,
        };
        let mut progress = Progress {
            stdout: &mut Stdout::closed(),
            failure: None,
        };
        for name in ["one", "other"] {
            let answer = StopAnswer {
                pod: api::Pod::new(),
                answer: Ok(api::StopResponse {
                    containers: vec![name.to_owned()],
                    ..api::StopResponse::new()
                }),
            };
            stops.take_answer(directory.path().join(name), answer, &mut progress);
        }
        assert_eq!(stops.stopping.len(), 2);
        // The sockets do not exist, so the pods have stopped.
        stops.follow(&mut progress);
        assert!(stops.stopping.is_empty() && stops.is_well);
        assert!(matches!(progress.failure, Some(Failure::OutputClosed)));
    }
}
