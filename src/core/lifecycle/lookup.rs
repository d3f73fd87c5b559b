//! Lookup of containers by id. An id that comes from the driver may be unknown, or its container
//! may have been removed. Functions that already have the container take the container itself.

use super::Pod;
use super::action::{ContainerId, Refusal};
use super::container::Container;
use super::effects::ContainerContext;
use super::report::Report;

impl Pod {
    /// The container with this id.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`].
    pub(super) fn known(&self, id: &ContainerId) -> Result<&Container, Refusal> {
        let found = self.containers.get(id);
        found.ok_or_else(|| Refusal::NotFound { id: id.clone() })
    }

    /// Handles a call about a container: `look` reads the pod and returns the meaning of the call,
    /// or refuses the call. `act` carries the call out.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], and the refusals of `look`.
    pub(super) fn on_call<T, R>(
        &mut self,
        id: &ContainerId,
        look: impl FnOnce(&Pod, &Container) -> Result<T, Refusal>,
        act: impl FnOnce(&mut ContainerContext<'_>, T) -> R,
    ) -> Result<R, Refusal> {
        let seen = look(self, self.known(id)?)?;
        let Some(container) = self.containers.get_mut(id) else {
            return Err(Refusal::NotFound { id: id.clone() });
        };
        let mut context = ContainerContext {
            id,
            container,
            plan: self.plan.as_ref(),
            now: self.now,
            termination: self.termination.as_mut(),
            history: &mut self.history,
            sizes: &mut self.sizes,
            allowance: &mut self.allowance,
            executions: &mut self.executions,
            has_released: &mut self.has_released,
            sandbox_is_gone: &mut self.sandbox_is_gone,
            out: &mut self.out,
        };
        Ok(act(&mut context, seen))
    }

    /// Handles an event of a container: `look` reads the pod and returns the meaning of the event,
    /// and `act` updates the container. An event of a removed container is logged, and the result
    /// is `None`.
    pub(super) fn on_event<T, R>(
        &mut self,
        id: &ContainerId,
        look: impl FnOnce(&Pod, &Container) -> T,
        act: impl FnOnce(&mut ContainerContext<'_>, T) -> R,
    ) -> Option<R> {
        let heard = self.on_call(id, |pod, container| Ok(look(pod, container)), act);
        heard
            .inspect_err(|_| self.out.report(Report::TooLate { id: id.clone() }))
            .ok()
    }

    /// Calls `act` on the container with this id. Used for the decisions of rules, and for events
    /// whose meaning does not depend on the rest of the pod. If the container was removed, logs
    /// this and returns `None`.
    pub(super) fn with_container<R>(
        &mut self,
        id: &ContainerId,
        act: impl FnOnce(&mut ContainerContext<'_>) -> R,
    ) -> Option<R> {
        self.on_event(id, |_, _| (), |context, ()| act(context))
    }
}
