//! Operations on containers, and which of their results still matter.
//!
//! An operation takes time, and its container may change in that time. The process may exit,
//! another process may take its place, or the container may be deleted and its id reused. Each
//! operation has a number, and the report of its completion carries this number. Only this table
//! tells if the result still matters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::action::ContainerId;

/// The number of an operation, unique in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId(u64);

/// The event after which the result of an operation no longer matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Wanted {
    /// The container's init process exits, or is replaced.
    UntilExit,
    /// A new init process is being created for the container.
    UntilReplaced,
    /// The container is deleted.
    UntilDeleted,
}

/// The operations under way in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operations {
    last: u64,
    under_way: BTreeMap<OperationId, (ContainerId, Wanted)>,
}

impl Operations {
    /// Begins an operation on `container`, and returns its number.
    pub fn begin(&mut self, container: &ContainerId, wanted: Wanted) -> OperationId {
        self.last = self.last.wrapping_add(1);
        let id = OperationId(self.last);
        self.under_way.insert(id, (container.clone(), wanted));
        id
    }

    /// Removes an operation that is complete. Returns false if its result no longer matters.
    #[must_use]
    pub fn complete(&mut self, id: OperationId) -> bool {
        self.under_way.remove(&id).is_some()
    }

    /// Records that the result of an operation no longer matters. Does not end the operation
    /// itself.
    pub fn cancel(&mut self, id: OperationId) {
        self.under_way.remove(&id);
    }

    /// Records that the results of all `UntilExit` operations on the container no longer matter,
    /// because its init process has exited.
    pub fn cancel_at_exit(&mut self, container: &ContainerId) {
        self.cancel_up_to(container, Wanted::UntilExit);
    }

    /// Records that the results of all `UntilExit` and `UntilReplaced` operations on the container
    /// no longer matter, because its init process is being replaced.
    pub fn cancel_at_replacement(&mut self, container: &ContainerId) {
        self.cancel_up_to(container, Wanted::UntilReplaced);
    }

    /// Records that the results of all operations on a deleted container no longer matter.
    pub fn cancel_all(&mut self, container: &ContainerId) {
        self.cancel_up_to(container, Wanted::UntilDeleted);
    }

    fn cancel_up_to(&mut self, container: &ContainerId, last: Wanted) {
        self.under_way
            .retain(|_, (of, wanted)| of != container || *wanted > last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Wanted; 3] = [
        Wanted::UntilExit,
        Wanted::UntilReplaced,
        Wanted::UntilDeleted,
    ];

    /// Begins an operation of each kind on `web`, and then calls `cancel`. Returns, in the order of
    /// [`ALL`], for which operations the result still matters.
    fn wanted_after(cancel: impl FnOnce(&mut Operations, &ContainerId)) -> [bool; 3] {
        let (web, other) = (ContainerId::from("web"), ContainerId::from("other"));
        let mut operations = Operations::default();
        let of_web = ALL.map(|wanted| operations.begin(&web, wanted));
        let of_other = ALL.map(|wanted| operations.begin(&other, wanted));
        cancel(&mut operations, &web);
        assert_eq!(of_other.map(|id| operations.complete(id)), [true; 3]);
        of_web.map(|id| operations.complete(id))
    }

    #[test]
    fn a_completion_is_stale_once_what_it_concerns_is_gone() {
        assert_eq!(wanted_after(|_, _| {}), [true, true, true]);
        let at_exit = wanted_after(Operations::cancel_at_exit);
        assert_eq!(at_exit, [false, true, true]);
        let at_replacement = wanted_after(Operations::cancel_at_replacement);
        assert_eq!(at_replacement, [false, false, true]);
        assert_eq!(wanted_after(Operations::cancel_all), [false, false, false]);
    }

    #[test]
    fn an_operation_completes_once() {
        let mut operations = Operations::default();
        let web = ContainerId::from("web");
        let id = operations.begin(&web, Wanted::UntilDeleted);
        assert!(operations.complete(id));
        assert!(!operations.complete(id));
    }

    #[test]
    fn a_later_container_of_the_same_id_gets_no_completion_of_the_first() {
        let mut operations = Operations::default();
        let web = ContainerId::from("web");
        let first = operations.begin(&web, Wanted::UntilDeleted);
        operations.cancel_all(&web);
        let second = operations.begin(&web, Wanted::UntilDeleted);
        assert!(!operations.complete(first));
        assert!(operations.complete(second));
    }
}
