//! Is the pod terminating?
//!
//! A Kill does not say why it came. Kubelet stops the containers of a living pod one at a time and
//! waits for each; only at the end of the pod it asks all of them at once. So two requests that are
//! open at the same time are a termination, and a lone one is what it says, after a moment in which
//! the second one could still come.

use std::time::Duration;

use crate::plan::{PreStop, Role};

use super::Pod;
use super::action::{Cause, ContainerId, Report};
use super::container::{Container, State};
use super::grace::LEAST;
use super::termination::Termination;
use super::time::Time;

impl Pod {
    /// Whether the requests that are open at `now` are a termination.
    pub(super) fn infer_termination(&self, now: Time) -> Option<Termination> {
        let mut open = self.containers.values().filter_map(|container| {
            let proves = container.is_ordered() && container.has_open_request(now);
            container
                .request
                .as_ref()
                .filter(|request| proves && !request.disproved)
        });
        let (first, second) = (open.next()?, open.next()?);
        let all = || [first, second].into_iter().chain(open.clone());
        let since = all().map(|request| request.at).min().unwrap_or(now);
        let deadline = all().map(|request| request.deadline).min().unwrap_or(now);
        let forced = all().all(|request| request.forced);
        Some(Termination::new(Cause::Inferred, since, deadline, now).forced(forced))
    }

    /// The caller creates a container, and kubelet creates none in a pod that it ends.
    pub(super) fn disprove_termination(&mut self, by: &str) {
        self.start_over(by);
        if self
            .termination
            .as_ref()
            .is_none_or(|termination| termination.cause().is_decided())
        {
            return;
        }
        self.termination = None;
        for container in self.containers.values_mut() {
            if let Some(request) = &mut container.request {
                request.disproved = true;
            }
        }
        self.report(Report::NotTerminating {
            disproved_by: by.to_owned(),
        });
    }

    /// Requests that are not part of a termination, or not of one that is known of.
    pub(super) fn settle_lone_stops(&mut self, now: Time) {
        for id in self.ids() {
            let Some(container) = self.containers.get(&id) else {
                continue;
            };
            if !container.is_asked() || !container.is_ordered() || !container.is_alive() {
                continue;
            }
            let is_alone = self.termination.is_none();
            // A defer container is parked until its turn, and asked for as long as that takes.
            let due = container.is_parked() && container.defer_turn().is_none()
                || container.is_between_lives() && is_alone
                || container.role == Role::NativeInit
                || is_alone
                    && self
                        .lone_stop_due(&id, container)
                        .is_some_and(|due| due <= now);
            if due && !(is_alone && self.is_kept_by_lone_hook(&id, now)) {
                self.deliver_stop(&id, now);
            }
        }
    }

    /// When a lone request is delivered that has not been: until then a second one may come, which
    /// makes it a termination.
    pub(super) fn lone_stop_due(&self, id: &ContainerId, container: &Container) -> Option<Time> {
        let request = container.request.as_ref()?;
        let can_be_told = match container.defer_turn() {
            Some(_) => matches!(container.state, State::Running(_)) || container.is_parked(),
            None => matches!(container.state, State::Running(_)),
        };
        if container.stopping.signalled || container.ends_as.is_some() || !can_be_told {
            return None;
        }
        if container.is_hooked() {
            return Some(request.deadline.before(LEAST));
        }
        let window = self.termination_window();
        let mut others = self
            .containers
            .iter()
            .filter(|(other, container)| *other != id && container.is_ordered());
        match container.role {
            Role::Sidecar | Role::Defer(_) => {
                if !others.any(|(_, other)| other.is_running()) {
                    return Some(request.at);
                }
            }
            // What comes before an app's signal when the pod terminates could come too late.
            Role::App | Role::Init if self.has_defers() || self.has_termination_hooks() => {
                let is_last = !others.any(|(_, other)| other.is_alive());
                return Some(match is_last {
                    true => request.at,
                    false => request.at.after(window).min(request.deadline),
                });
            }
            _ => return Some(request.at),
        }
        let apps = self.containers.values().filter(|other| {
            other.is_ordered()
                && !matches!(other.role, Role::Sidecar | Role::Defer(_))
                && other.is_running()
                && other.request.is_none()
        });
        // A preStop handler that the shim cannot see hides the request that follows it.
        let hidden = apps.map(|app| match &app.facts.pre_stop {
            Some(PreStop::Sleep(pause)) => request
                .at
                .after(window.saturating_add(*pause))
                .min(request.deadline.before(LEAST)),
            Some(PreStop::HttpGet | PreStop::TcpSocket | PreStop::Other) => {
                request.deadline.before(LEAST)
            }
            Some(PreStop::Exec { .. }) | None => request.at,
        });
        Some(
            hidden
                .max()
                .unwrap_or(request.at)
                .max(request.at.after(window))
                .min(request.deadline),
        )
    }

    pub(super) fn termination_window(&self) -> Duration {
        self.plan
            .as_ref()
            .map_or(Duration::ZERO, |plan| plan.settings().termination_window)
    }
}
