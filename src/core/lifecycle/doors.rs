//! The doors: whoever is outside knows a container by its id, and it may be gone by then, or may never
//! have been. In here that is found out, and only here: whoever is further in has the container.

use super::Pod;
use super::action::{ContainerId, Refusal};
use super::container::Container;
use super::deeds::Hand;
use super::report::Report;

impl Pod {
    /// The container that somebody outside asks about.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`].
    pub(super) fn known(&self, id: &ContainerId) -> Result<&Container, Refusal> {
        let found = self.containers.get(id);
        found.ok_or_else(|| Refusal::NotFound { id: id.clone() })
    }

    /// A call about a container: `look` says what it means, with the pod as it is, or why it is refused;
    /// `act` does what follows.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], and what `look` refuses.
    pub(super) fn called<T, R>(
        &mut self,
        id: &ContainerId,
        look: impl FnOnce(&Pod, &Container) -> Result<T, Refusal>,
        act: impl FnOnce(&mut Hand<'_>, T) -> R,
    ) -> Result<R, Refusal> {
        let seen = look(self, self.known(id)?)?;
        let Some(container) = self.containers.get_mut(id) else {
            return Err(Refusal::NotFound { id: id.clone() });
        };
        let mut hand = Hand {
            id,
            container,
            plan: self.plan.as_ref(),
            now: self.now,
            termination: self.termination.as_mut(),
            history: &mut self.history,
            allowance: &mut self.allowance,
            executions: &mut self.executions,
            has_released: &mut self.has_released,
            sandbox_is_gone: &mut self.sandbox_is_gone,
            out: &mut self.out,
        };
        Ok(act(&mut hand, seen))
    }

    /// News of a container: `look` says what they mean, with the pod as it is, and `act` does what
    /// follows. Those of one that is gone mean nothing any more, and that is said in the log.
    pub(super) fn heard<T, R>(
        &mut self,
        id: &ContainerId,
        look: impl FnOnce(&Pod, &Container) -> T,
        act: impl FnOnce(&mut Hand<'_>, T) -> R,
    ) -> Option<R> {
        let heard = self.called(id, |pod, container| Ok(look(pod, container)), act);
        heard
            .inspect_err(|_| self.out.report(Report::TooLate { id: id.clone() }))
            .ok()
    }

    /// The same where it is all one what the pod is like.
    pub(super) fn reach<R>(
        &mut self,
        id: &ContainerId,
        act: impl FnOnce(&mut Hand<'_>) -> R,
    ) -> Option<R> {
        self.heard(id, |_, _| (), |hand, ()| act(hand))
    }
}
