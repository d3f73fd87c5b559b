//! What takes time: a job of its own beside the actor, which sends it a message when it is done.

use std::pin::pin;

use crate::caught::{Panicked, caught};
use crate::engine::Halt;

use super::{Actor, Message, Reply};

impl Actor {
    /// Does `work` beside everything else, and `then` what follows from it, whatever comes of it.
    pub(super) fn job<T: Send + 'static, E: From<Panicked> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, Result<T, E>) + Send + 'static,
    ) {
        let mailbox = self.mailbox.clone();
        tokio::spawn(async move {
            let outcome = caught(work).await;
            let message: Message = Box::new(move |actor| then(actor, outcome));
            // If the actor is gone there is no pod any more.
            let _ = mailbox.send(message).await;
        });
    }

    /// The same for somebody who waits for the answer: `halt`, which `work` is under, is called when
    /// nobody does any more.
    pub(super) fn job_for<T, E, R>(
        &self,
        mut reply: Reply<R>,
        halt: Halt,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, Result<T, E>, Reply<R>) + Send + 'static,
    ) where
        T: Send + 'static,
        E: From<Panicked> + Send + 'static,
        R: Send + 'static,
    {
        let work = async move {
            let mut work = pin!(caught(work));
            let outcome = tokio::select! {
                biased;
                outcome = &mut work => outcome,
                () = reply.closed() => {
                    halt.call();
                    work.await
                }
            };
            Ok::<_, Panicked>((outcome, reply))
        };
        self.job(work, move |actor, done| {
            if let Ok((outcome, reply)) = done {
                then(actor, outcome, reply);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Publisher;
    use crate::pod::CallError;
    use crate::reaper::Reaper;
    use crate::shim::serve::this_node;

    #[test]
    fn what_follows_from_a_job_is_done_though_the_job_panics() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let outcome = runtime.block_on(async {
            let publisher = Publisher::new("", "test");
            let node = this_node("test", publisher, Reaper::default());
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
                actor.job(work, |_, outcome| drop(reply.send(outcome)));
            })
            .await
        });
        assert_eq!(outcome, Err(Panicked.into()));
    }

    fn reply_is_wanted() -> bool {
        true
    }
}
