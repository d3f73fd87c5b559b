//! `usher stop`: runs the whole termination sequence of a pod, or of all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::choice::full_name;
use super::node::{AskedToStop, Node, Silence, complaint};
use super::output::{BAD, BOLD, FAINT, Failure, GOOD, Stdout, styled, warn};
use super::{time, words};
use crate::api;
use crate::plan::parse_duration;

/// Stops pods in their order: hooks, pre-exit containers, apps, post-exit containers, sidecars
///
/// Waits until all is over, and says how it goes. The sandbox is left alone. Whoever looks after the
/// pod, as kubelet does, may create its containers again: that starts the pod over. Where a node goes
/// down, stop kubelet first.
#[derive(Debug, Args)]
pub(super) struct Stop {
    /// The pods: their names, namespace/name, or the first characters of their ids, four or more
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pods: Vec<String>,
    /// All pods of this node
    #[arg(long)]
    all: bool,
    /// How long they may take, as 30s or 1m30s; each pod's own grace period if none is given
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    grace_period: Option<Duration>,
    /// How long a shim that does not answer is asked again: of a node that goes down everything is busy
    #[arg(long, value_name = "DURATION", value_parser = grace, default_value = "1m")]
    answer_within: Duration,
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
    /// The SIGKILLs that its containers had got before.
    kills: BTreeMap<String, Vec<api::Kills>>,
    /// What was said of its containers last.
    states: BTreeMap<String, String>,
}

/// How often it is looked how far the pods are.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Pods on their way to their ends.
struct Stops<'a> {
    node: &'a Node,
    request: api::StopRequest,
    began: Instant,
    answer_within: Duration,
    has_asked: bool,
    /// The sockets of those whose shims are still to be asked.
    unasked: Vec<PathBuf>,
    stopping: BTreeMap<PathBuf, Stopping>,
    is_well: bool,
}

impl Stop {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let node = Node::new()?;
        let named = self.pods.iter().map(|pod| node.find_living(pod));
        let named = named.map(|found| found.map(|(socket, _)| socket));
        let unasked = match self.all {
            true => node.sockets(),
            false => named.collect::<Result<_, _>>()?,
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
            is_well: true,
        };
        loop {
            stops.ask(stdout)?;
            if !self.no_wait {
                stops.follow(stdout)?;
            }
            let is_followed = self.no_wait || stops.stopping.is_empty();
            if stops.unasked.is_empty() && is_followed {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(match stops.is_well {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn title(pod: &api::Pod) -> String {
    styled(BOLD, &pod.name)
}

impl Stops<'_> {
    /// Asks all shims that have not answered yet. One that is silent does not keep the others.
    fn ask(&mut self, stdout: &mut Stdout) -> Result<(), Failure> {
        let gives_up = self.began.elapsed() >= self.answer_within;
        let is_first = !std::mem::replace(&mut self.has_asked, true);
        let sockets = std::mem::take(&mut self.unasked);
        for (socket, answer) in self.node.stop(sockets, &self.request) {
            match answer {
                Ok(asked) => self.asked(socket, asked, stdout)?,
                // There is nothing any more that could be stopped.
                Err(Silence::Over | Silence::Died) => {}
                Err(Silence::Because(why)) if gives_up => {
                    self.is_well = false;
                    warn(&format!(
                        "{}: its pod is not stopped",
                        complaint(&socket, &why)
                    ));
                }
                Err(Silence::Because(why)) => {
                    if is_first {
                        let long = time::span(self.answer_within.as_secs_f64());
                        let why = complaint(&socket, &why);
                        warn(&format!("{why}: it is asked again for {long}"));
                    }
                    self.unasked.push(socket);
                }
            }
        }
        Ok(())
    }

    fn asked(
        &mut self,
        socket: PathBuf,
        AskedToStop { pod, answer }: AskedToStop,
        stdout: &mut Stdout,
    ) -> Result<(), Failure> {
        let response = match answer {
            Err(why) => {
                self.is_well = false;
                warn(&format!("{} is not stopped: {why}", full_name(&pod)));
                return Ok(());
            }
            Ok(response) if response.containers.is_empty() => {
                return stdout.text(format!("{}: nothing runs\n", title(&pod)));
            }
            Ok(response) => response,
        };
        let within = time::seconds(&response.deadline).map(|at| at - time::now());
        let within = within.unwrap_or_default().max(0.0);
        stdout.text(format!(
            "{}: {} to stop within {}\n",
            title(&pod),
            response.containers.join(", "),
            time::span(within)
        ))?;
        let limit = Duration::try_from_secs_f64(within).unwrap_or_default();
        self.stopping.insert(socket, Stopping::new(pod, limit));
        Ok(())
    }

    /// Says what has become of those that were asked, and forgets those that are over.
    fn follow(&mut self, stdout: &mut Stdout) -> Result<(), Failure> {
        let sockets: Vec<_> = self.stopping.keys().cloned().collect();
        for socket in sockets {
            let Some(one) = self.stopping.get_mut(&socket) else {
                continue;
            };
            let is_over = match self.node.status(&socket) {
                Ok(pod) => {
                    one.show(&pod, stdout)?;
                    pod.phase.enum_value() == Ok(api::Phase::PHASE_TERMINATED)
                }
                // With its last container the shim has nothing to tell any more.
                Err(Silence::Over) => true,
                Err(Silence::Died) => {
                    self.is_well = false;
                    warn(&format!("{}: its shim has died", one.title));
                    self.stopping.remove(&socket);
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
                self.stopping.remove(&socket);
            } else if Instant::now() > one.gives_up {
                self.is_well = false;
                warn(&format!("{} does not stop", one.title));
                self.stopping.remove(&socket);
            }
        }
        Ok(())
    }
}

impl Stopping {
    /// The stop of a pod as it is, within `limit` and what a busy machine takes.
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
        // Containers that ended before are no news.
        one.news(&pod);
        one
    }

    /// Why a container has got SIGKILL, if it has since this began.
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

    /// Writes a line for each container that has news.
    fn show(&mut self, pod: &api::Pod, stdout: &mut Stdout) -> Result<(), Failure> {
        for (name, news) in self.news(pod) {
            let after = time::span(self.began.elapsed().as_secs_f64());
            let after = styled(FAINT, format!("+{after}"));
            stdout.text(format!("{}: {name} {news} {after}\n", self.title))?;
        }
        Ok(())
    }

    /// The containers of which something is to be said that was not said before, each with that.
    fn news(&mut self, pod: &api::Pod) -> Vec<(String, String)> {
        use api::State::*;
        let sandbox = Ok(api::Role::ROLE_SANDBOX);
        let mut all = Vec::new();
        for container in &pod.containers {
            let state = container.state.enum_value_or_default();
            let news = match (state, container.exit_code) {
                (STATE_STOPPING, _) => match self.killed(container) {
                    Some(why) => format!("is killed: {why}"),
                    None => "is told to stop".to_owned(),
                },
                (STATE_STOPPED | STATE_GONE, Some(0)) => "has exited with 0".to_owned(),
                (STATE_STOPPED | STATE_GONE, Some(code)) => {
                    let code = styled(BAD, code);
                    match self.killed(container) {
                        Some(why) => format!("has exited with {code}, killed: {why}"),
                        None => format!("has exited with {code}"),
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
    fn containers_that_ended_before_the_stop_are_no_news() {
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
        assert_eq!(news(STATE_STOPPING, None), ["app is told to stop"]);
        assert_eq!(news(STATE_STOPPED, Some(0)), ["app has exited with 0"]);
        assert_eq!(news(STATE_STOPPED, Some(0)), Vec::<String>::new());
    }
}
