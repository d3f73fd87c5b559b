//! Work that takes time: each piece runs in a tokio task beside the actor and sends its outcome to
//! the actor.
//!
//! Work on a container is a numbered [operation](usher_core::lifecycle::Operations). The number
//! comes back with the outcome, and shows if the outcome is stale, which means that the container
//! no longer needs it. Stale outcomes are dropped only in this file: a process that came with the
//! outcome is killed, and the caller is told that the process or the task is gone.

use std::pin::pin;

use crate::calls::{CallError, Caller, Reply};
use crate::task_table::outcome::Outcome;
use usher_core::lifecycle::{ContainerId, OperationId, Wanted};
use usher_engine::{CancelToken, Panicked, Work, catch_panic};

use super::Actor;
use super::actor::Message;

impl Actor {
    /// Runs `work` beside the actor. Then the actor calls `then` with the outcome, which is an
    /// error if `work` fails or panics. This outcome is never dropped as stale.
    pub(super) fn spawn<T: Send + 'static, E: From<Panicked> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, Result<T, E>) + Send + 'static,
    ) {
        let mailbox = self.mailbox.clone();
        let work = boxed(work);
        tokio::spawn(async move {
            let outcome = catch_panic(work).await;
            let message: Message = Box::new(move |actor| then(actor, outcome));
            // Sending fails only if the actor is gone, and then the pod is gone as well.
            let _ = mailbox.send(message).await;
        });
    }

    /// Runs `work` as an operation on container `id`, then calls `then` with the outcome. If the
    /// event that `wanted` names happens before the outcome arrives, the outcome is stale: it is
    /// discarded, and `then` is not called.
    pub(super) fn operate<T: Outcome, E: From<Panicked> + Send + 'static>(
        &mut self,
        id: &ContainerId,
        wanted: Wanted,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, &ContainerId, Result<T, E>) + Send + 'static,
    ) -> OperationId {
        self.operate_or(id, wanted, work, then, |_, _, outcome| {
            if let Ok(outcome) = outcome {
                outcome.discard();
            }
        })
    }

    /// Runs `work` as [`operate`](Actor::operate) does, on behalf of a caller. `then` also gets the
    /// [`Reply`] by which it answers the caller. If the outcome is stale, the caller gets an error:
    /// the process or the task is gone. If a caller with a cancellation token stops waiting, `work`
    /// is canceled. Without a token, `work` goes on.
    pub(super) fn operate_for<T, E, R>(
        &mut self,
        id: &ContainerId,
        wanted: Wanted,
        caller: Caller<R>,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, &ContainerId, Result<T, E>, Reply<R>) + Send + 'static,
    ) -> OperationId
    where
        T: Outcome,
        E: From<Panicked> + Send + 'static,
        R: Send + 'static,
    {
        let Caller { mut reply, cancels } = caller;
        let work = boxed(work);
        let work = async move {
            let outcome = match cancels {
                None => catch_panic(work).await,
                Some(token) => canceled_with(&mut reply, &token, work).await,
            };
            (outcome, reply)
        };
        let then = move |actor: &mut Actor, id: &ContainerId, done: Result<(_, _), Panicked>| {
            if let Ok((outcome, reply)) = done {
                then(actor, id, outcome, reply);
            }
        };
        self.operate_or(id, wanted, infallible(work), then, |actor, id, done| {
            if let Ok((outcome, reply)) = done {
                let gone = match actor.tasks.contains_key(id) {
                    true => CallError::finished(id.as_str()),
                    false => CallError::not_found(id.as_str(), ""),
                };
                let _ = reply.send(Err(gone));
                if let Ok(outcome) = outcome {
                    outcome.discard();
                }
            }
        })
    }

    /// Runs `work` as an operation, and then calls `then` with the outcome. If the outcome is
    /// stale, calls `stale` instead.
    pub(super) fn operate_or<T: Send + 'static, E: From<Panicked> + Send + 'static>(
        &mut self,
        id: &ContainerId,
        wanted: Wanted,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, &ContainerId, Result<T, E>) + Send + 'static,
        stale: impl FnOnce(&mut Actor, &ContainerId, Result<T, E>) + Send + 'static,
    ) -> OperationId {
        let operation = self.operations.begin(id, wanted);
        let id = id.clone();
        self.spawn(work, move |actor, outcome| {
            match actor.operations.complete(operation) {
                true => then(actor, &id, outcome),
                false => stale(actor, &id, outcome),
            }
        });
        operation
    }
}

/// Moves `work` to the heap. Each call that passes an unboxed future on copies it, and an async
/// function that awaits it takes twice its memory. Without the heap, a Create needed 80 kB of the
/// stack, and memory of the stack is never given back.
fn boxed<T>(work: impl Future<Output = T> + Send + 'static) -> Work<T> {
    Box::pin(work)
}

/// Wraps the output of `work` in a `Result`, as an operation needs. `work` has no error of its own,
/// so the only error of an operation with this work is a panic.
pub(super) async fn infallible<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    Ok(work.await)
}

/// Awaits `work`. If the caller stops waiting before, cancels the token, and goes on awaiting the
/// canceled `work`.
async fn canceled_with<T, E: From<Panicked>, R>(
    reply: &mut Reply<R>,
    token: &CancelToken,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut work = pin!(catch_panic(work));
    tokio::select! {
        biased;
        outcome = &mut work => outcome,
        () = reply.closed() => {
            token.cancel();
            work.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Publisher;
    use crate::process::serve::this_node;
    use usher_engine::EngineKind;
    use usher_linux::reaper::Reaper;
    use usher_oci::Oci;

    #[test]
    fn the_outcome_of_work_arrives_even_after_a_panic() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let outcome = runtime.block_on(async {
            let publisher = Publisher::new("", "test");
            let node = this_node(Oci.engine("test", Reaper::default()), publisher);
            let (mut actor, pod) = Actor::new("test", node);
            tokio::spawn(async move { actor.run().await });
            pod.ask(|actor, reply| {
                let work = async {
                    tokio::task::yield_now().await;
                    if reply_is_wanted() {
                        panic!("a mistake");
                    }
                    Ok::<_, CallError>(())
                };
                actor.spawn(work, |_, outcome| drop(reply.send(outcome)));
            })
            .await
        });
        assert_eq!(outcome, Err(Panicked.into()));
    }

    fn reply_is_wanted() -> bool {
        true
    }
}
