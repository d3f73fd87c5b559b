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
use super::stop::LAST_CHANCE;
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
        let (since, deadline) = open.fold(
            (first.at.min(second.at), first.deadline.min(second.deadline)),
            |(since, deadline), request| (since.min(request.at), deadline.min(request.deadline)),
        );
        Some(Termination::new(Cause::Inferred, since, deadline, now))
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
            let due = container.is_parked()
                || container.is_between_lives() && self.termination.is_none()
                || container.role == Role::NativeInit
                || self.termination.is_none()
                    && self
                        .lone_stop_due(&id, container)
                        .is_some_and(|due| due <= now);
            if due {
                self.deliver_stop(&id, now);
            }
        }
    }

    /// When a lone request is delivered that has not been: until then a second one may come, which
    /// makes it a termination.
    pub(super) fn lone_stop_due(&self, id: &ContainerId, container: &Container) -> Option<Time> {
        let request = container.request.as_ref()?;
        if container.stopping.signalled || !matches!(container.state, State::Running(_)) {
            return None;
        }
        if container.role != Role::Sidecar {
            return Some(request.at);
        }
        let mut others = self.containers.iter().filter(|(other, _)| *other != id);
        if !others.any(|(_, other)| other.is_ordered() && other.is_running()) {
            return Some(request.at);
        }
        let window = self.termination_window();
        let apps = self.containers.values().filter(|other| {
            other.is_ordered()
                && other.role != Role::Sidecar
                && other.is_running()
                && other.request.is_none()
        });
        // A preStop handler that the shim cannot see hides the request that follows it.
        let hidden = apps.map(|app| match &app.facts.pre_stop {
            Some(PreStop::Sleep(pause)) => request
                .at
                .after(window.saturating_add(*pause))
                .min(request.deadline.before(LAST_CHANCE)),
            Some(PreStop::HttpGet | PreStop::TcpSocket | PreStop::Other) => {
                request.deadline.before(LAST_CHANCE)
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
