//! A node that is simulated: nothing of it is the machine's that the test runs on, its time included.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use containerd_shim::event::Event;
use tokio::time::Instant;

use crate::api;
use crate::clock::Clock;
use crate::engine::sim::SimEngine;
use crate::events::Publish;
use crate::plan::Rules;
use crate::pod::Node;

/// When it is that a simulated node begins, in seconds.
const BEGINS_AT: u64 = 1_000_000_000;

/// A simulated node. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SimNode {
    pub engine: SimEngine,
    pub events: Recorder<Box<dyn Event>>,
    pub archive: Recorder<api::Pod>,
    pub origin: Instant,
}

/// What was given away, and when: since the node began.
#[derive(Debug)]
pub struct Recorder<T> {
    origin: Instant,
    given: Arc<Mutex<Vec<(Duration, T)>>>,
}

/// tokio's time, on the wall.
#[derive(Debug)]
struct SimClock {
    origin: Instant,
    /// Each look costs the thread a microsecond.
    looks: AtomicU64,
}

impl SimNode {
    /// A node with this engine, on which nothing has happened yet.
    pub fn new(engine: SimEngine) -> SimNode {
        let origin = Instant::now();
        SimNode {
            engine,
            events: Recorder::new(origin),
            archive: Recorder::new(origin),
            origin,
        }
    }

    /// What an actor wants of it.
    pub fn node(&self) -> Node {
        Node {
            engine: Arc::new(self.engine.clone()),
            publisher: Arc::new(self.events.clone()),
            clock: Arc::new(SimClock {
                origin: self.origin,
                looks: AtomicU64::new(0),
            }),
            archive: Arc::new(self.archive.clone()),
            rules: Rules::default(),
        }
    }

    /// What was published about a container, by topic.
    pub fn topics(&self) -> Vec<String> {
        let events = self.events.lock();
        events.iter().map(|(_, event)| event.topic()).collect()
    }
}

impl<T> Recorder<T> {
    fn new(origin: Instant) -> Recorder<T> {
        Recorder {
            origin,
            given: Arc::default(),
        }
    }

    fn give(&self, what: T) {
        self.lock().push((self.origin.elapsed(), what));
    }

    /// All of it, in order.
    pub fn lock(&self) -> MutexGuard<'_, Vec<(Duration, T)>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Recorder<T> {
    fn clone(&self) -> Recorder<T> {
        Recorder {
            origin: self.origin,
            given: Arc::clone(&self.given),
        }
    }
}

impl Publish for Recorder<Box<dyn Event>> {
    fn publish(&self, event: Box<dyn Event>) {
        self.give(event);
    }
}

impl api::Archive for Recorder<api::Pod> {
    fn keep(&self, pod: api::Pod) {
        self.give(pod);
    }
}

impl Clock for SimClock {
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(BEGINS_AT) + self.origin.elapsed()
    }

    fn cpu(&self) -> Duration {
        Duration::from_micros(self.looks.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::Order;
    use crate::engine::sim::{Deed, Fate, Fates, Left, Program, SimBundle};
    use crate::pod::{Actor, CreateCall, ExecCall, KillCall, Pod};
    use crate::stdio::Paths;

    fn on_a_node<F: Future>(test: impl FnOnce(SimNode, Pod) -> F) -> F::Output {
        on_a_node_with(SimEngine::default(), test)
    }

    fn on_a_node_with<F: Future>(
        engine: SimEngine,
        test: impl FnOnce(SimNode, Pod) -> F,
    ) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let node = SimNode::new(engine);
            let (mut actor, pod) = Actor::new("sim", node.node());
            tokio::spawn(async move { actor.run().await });
            test(node, pod).await
        })
    }

    /// The runtime is out of order.
    #[derive(Debug)]
    struct SlowFailure;

    impl Fates for SlowFailure {
        fn of(&mut self, deed: Deed, _: &str) -> Fate {
            match deed {
                Deed::Create => Fate::fails_after(Duration::from_secs(5), "out of order"),
                _ => Fate::well(),
            }
        }
    }

    #[test]
    fn a_shim_that_was_shut_down_while_its_only_task_could_not_be_created_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let node = SimNode::new(SimEngine::with_fates(SlowFailure));
            let (mut actor, pod) = Actor::new("sim", node.node());
            let shim = tokio::spawn(async move { actor.run().await });
            let directory = PathBuf::from("/bundles/web");
            node.engine
                .put(&directory, bundle("web", Program::default()));
            let call = CreateCall {
                order: Order {
                    id: "web".to_owned(),
                    bundle: directory,
                    ..Order::default()
                },
                patience: None,
            };
            let creating = pod.clone();
            let created = tokio::spawn(async move {
                let created = creating.ask(move |actor, reply| actor.create(call, reply));
                created.await
            });
            tokio::time::sleep(Duration::from_secs(1)).await;
            let asked = pod.ask(|actor, reply| actor.shutdown("web", reply)).await;
            assert_eq!(asked, Ok(()));
            assert!(!shim.is_finished());
            assert!(created.await.unwrap().is_err());
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(shim.is_finished());
        });
    }

    /// A creation takes its time, and the shim makes a mistake in each deletion.
    #[derive(Debug)]
    struct PanicsInDeletions;

    impl Fates for PanicsInDeletions {
        fn of(&mut self, deed: Deed, _: &str) -> Fate {
            match deed {
                Deed::Create => Fate::well_after(Duration::from_secs(5)),
                Deed::Delete => panic!("simulated: a mistake"),
                _ => Fate::well(),
            }
        }

        fn answers_after(&mut self, _: Deed, _: &str) -> Duration {
            Duration::from_secs(5)
        }
    }

    #[test]
    fn nothing_runs_nor_stays_mounted_of_a_creation_whose_undoing_panics() {
        let engine = SimEngine::with_fates(PanicsInDeletions);
        on_a_node_with(engine, async |node, pod| {
            let gives_up = Duration::from_secs(6);
            let created = create(&node, &pod, "web", Program::default());
            assert!(tokio::time::timeout(gives_up, created).await.is_err());
            tokio::time::sleep(Duration::from_secs(60)).await;
            let left = node.engine.lock().left();
            assert_eq!((left.processes, left.mounts), Default::default());
        });
    }

    /// A creation takes its time, and what is executed is told of late.
    #[derive(Debug)]
    struct Slow;

    impl Fates for Slow {
        fn of(&mut self, deed: Deed, _: &str) -> Fate {
            match deed {
                Deed::Create => Fate::well_after(Duration::from_secs(5)),
                _ => Fate::well(),
            }
        }

        fn answers_after(&mut self, deed: Deed, _: &str) -> Duration {
            match deed {
                Deed::Exec => Duration::from_secs(5),
                _ => Duration::ZERO,
            }
        }
    }

    #[test]
    fn a_delete_that_comes_while_its_task_is_created_waits_for_that() {
        on_a_node_with(SimEngine::with_fates(Slow), async |node, pod| {
            let deletion = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                pod.ask(|actor, reply| actor.delete("web", "", reply)).await
            };
            let creation = create(&node, &pod, "web", Program::default());
            let (created, deleted) = tokio::join!(creation, deletion);
            assert_eq!(deleted.map(|deleted| deleted.pid), Ok(created));
            assert_eq!(node.engine.lock().left(), Left::default());
        });
    }

    #[test]
    fn an_exec_whose_caller_has_gone_before_it_was_told_of_it_does_not_run_on() {
        on_a_node_with(SimEngine::with_fates(Slow), async |node, pod| {
            let init = create(&node, &pod, "proxy", Program::default()).await;
            start(&pod, "proxy").await;
            let key = ("proxy".to_owned(), "sh".to_owned());
            node.engine.lock().execs.insert(key, Program::default());
            let call = ExecCall {
                id: "proxy".to_owned(),
                exec_id: "sh".to_owned(),
                paths: Paths::default(),
                spec: b"{}".to_vec(),
                has_deadline: false,
            };
            let added = pod.ask(move |actor, reply| actor.exec(call, reply)).await;
            assert_eq!(added, Ok(()));
            let started = pod.ask(|actor, reply| actor.start_exec("proxy", "sh", reply));
            let gives_up = Duration::from_secs(1);
            assert!(tokio::time::timeout(gives_up, started).await.is_err());
            assert_eq!(node.engine.lock().left().processes.len(), 2);
            tokio::time::sleep(Duration::from_secs(10)).await;
            let left = node.engine.lock().left();
            assert_eq!(left.processes, [("proxy".to_owned(), init)]);
        });
    }

    fn bundle(name: &str, program: Program) -> SimBundle {
        let annotations = [
            ("usher/sidecars", "proxy"),
            ("usher/apps", "web"),
            ("usher/restart-policy", "Never"),
            ("io.kubernetes.cri.sandbox-id", "pod"),
            ("io.kubernetes.cri.container-type", "container"),
            ("io.kubernetes.cri.container-name", name),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        SimBundle {
            annotations: BTreeMap::from(annotations),
            lives: vec![program],
            ..SimBundle::default()
        }
    }

    async fn create(node: &SimNode, pod: &Pod, id: &str, program: Program) -> i32 {
        let directory = PathBuf::from(format!("/bundles/{id}"));
        node.engine.put(&directory, bundle(id, program));
        let call = CreateCall {
            order: Order {
                id: id.to_owned(),
                bundle: directory,
                ..Order::default()
            },
            patience: None,
        };
        let created = pod.ask(move |actor, reply| actor.create(call, reply));
        created.await.unwrap()
    }

    async fn start(pod: &Pod, id: &'static str) -> i32 {
        let (_here, gone) = oneshot::channel();
        let started = pod.ask(move |actor, reply| actor.start(id, None, gone, reply));
        started.await.unwrap()
    }

    async fn kill(pod: &Pod, id: &str, signal: u32) {
        let call = KillCall {
            id: id.to_owned(),
            exec_id: String::new(),
            signal,
            all: false,
            patience: None,
        };
        let killed = pod.ask(move |actor, reply| actor.kill(call, reply));
        killed.await.unwrap();
    }

    #[test]
    fn a_pod_on_a_simulated_node_comes_and_goes_like_any_other() {
        on_a_node(async |node, pod| {
            for id in ["proxy", "web"] {
                let created = create(&node, &pod, id, Program::default()).await;
                assert_eq!(start(&pod, id).await, created);
                assert!(node.engine.lock().is_running(id));
            }
            for id in ["web", "proxy"] {
                kill(&pod, id, 15).await;
            }
            for id in ["web", "proxy"] {
                let ended = pod.ask(move |actor, reply| actor.wait(id, "", reply));
                assert_eq!(ended.await.unwrap().code, 0);
                let deleted = pod.ask(move |actor, reply| actor.delete(id, "", reply));
                deleted.await.unwrap();
            }
            assert_eq!(node.engine.lock().left(), Left::default());
            let topics = node.topics();
            let ends = [
                "/tasks/exit",
                "/tasks/exit",
                "/tasks/delete",
                "/tasks/delete",
            ];
            assert!(topics.ends_with(&ends.map(str::to_owned)), "{topics:?}");
            assert_eq!(node.archive.lock().len(), 1);
        });
    }
}
