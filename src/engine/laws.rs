//! Conformance tests: the laws of engines, which `docs/engine.md` lists. They run on the simulated
//! engine as a unit test, and on OCI runtimes as integration tests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::{
    CancelToken, Container, CreateOptions, Deletion, Engine, EngineError, ExecOrder, ExitFuture,
    Facts, Init, InitialState, NewExec, NewInit, Order, PreviousInit, SignalProgress,
};
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;
use usher_linux::stdio::Streams;

/// Generous time limit for anything that has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time to wait before a test concludes that an event does not happen. Programs also get this time
/// to install their signal handlers.
const A_WHILE: Duration = Duration::from_millis(300);

/// The environment in which an engine is tested.
pub trait Testbed {
    fn engine(&self) -> Arc<dyn Engine>;

    /// The request to create a container with this ID. The container's program behaves as `runs`
    /// says, and the programs of its execs behave as `execs` says.
    fn order(&self, id: &str, has_own_pid_namespace: bool, runs: Runs, execs: Runs) -> Order;

    /// The request to create a container that cannot be created.
    fn broken_order(&self, id: &str) -> Order;

    /// The request to execute a program in a container. The program behaves as `execs` says.
    fn exec(&self, exec_id: &str, execs: Runs) -> ExecOrder;

    /// True if the container's program was executed at any time.
    fn was_executed(&self, id: &str) -> bool;

    /// True if a process has this PID, even a zombie, or if the PID is held.
    fn is_there(&self, pid: i32) -> bool;

    /// Description of all leftovers of the container, except its bundle; empty if there are none.
    fn left_of(&self, id: &str) -> String;
}

/// The behavior of a test's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// Runs until SIGTERM, and then exits with code 7.
    UntilTold,
    /// Runs until it is killed.
    UntilKilled,
    /// Exits with this code at once.
    AndExits(u8),
}

struct Trial<'a> {
    testbed: &'a dyn Testbed,
    id: String,
    order: Order,
    container: Arc<dyn Container>,
    facts: Facts,
    cancel_token: CancelToken,
    streams: Streams,
}

/// Tests all laws.
pub async fn check_all(testbed: &dyn Testbed) {
    a_created_container_is_parked_until_it_is_released(testbed).await;
    an_exit_status_is_reported_unchanged(testbed).await;
    a_signal_after_the_exit_yields_gone(testbed).await;
    a_signal_reaches_the_program(testbed).await;
    a_parked_container_can_be_killed_and_is_then_not_released(testbed).await;
    a_frozen_container_reacts_to_no_signal_until_it_is_thawed(testbed).await;
    a_frozen_container_can_be_killed(testbed).await;
    the_program_of_a_frozen_container_is_not_executed(testbed).await;
    a_held_pid_is_not_reused(testbed).await;
    an_exec_runs_and_its_exit_is_reported(testbed).await;
    everything_in_a_pid_namespace_ends_with_its_init(testbed).await;
    processes_left_by_an_init_are_killed(testbed).await;
    canceled_work_does_not_begin_but_kills_and_deletions_do(testbed).await;
    a_container_restarts_in_place_without_earlier_processes(testbed).await;
    a_creation_that_fails_leaves_nothing(testbed).await;
    a_deletion_by_force_kills_all_processes(testbed).await;
    deletions_and_forgetting_are_idempotent(testbed).await;
    a_missing_bundle_is_invalid(testbed).await;
    a_running_container_is_only_deleted_by_force(testbed).await;
}

async fn a_created_container_is_parked_until_it_is_released(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::create(testbed, "parked", Runs::AndExits(3)).await;
    let NewInit { init, exit_future } = new_init;
    assert!(testbed.is_there(init.pid()));
    let mut exit_future = exit_of(exit_future);
    assert!(
        timeout(A_WHILE, &mut exit_future).await.is_err(),
        "it has exited"
    );
    assert!(!testbed.was_executed("parked"));
    release(&*init).await.expect("a release");
    assert_eq!(soon(exit_future).await, ExitStatus::Code(3));
    assert!(testbed.was_executed("parked"));
    trial.delete(Deletion::Usual).await;
}

async fn an_exit_status_is_reported_unchanged(testbed: &dyn Testbed) {
    for (runs, signal, expected) in [
        (Runs::AndExits(0), None, ExitStatus::Code(0)),
        (Runs::AndExits(42), None, ExitStatus::Code(42)),
        (Runs::UntilTold, Some(Signal::KILL), ExitStatus::Signal(9)),
        (Runs::UntilTold, Some(Signal::TERM), ExitStatus::Code(7)),
    ] {
        let (mut trial, new_init) = Trial::run(testbed, "exits", runs).await;
        if let Some(signal) = signal {
            kill(&*new_init.init, signal, false)
                .await
                .expect("a signal");
        }
        assert_eq!(soon(exit_of(new_init.exit_future)).await, expected);
        trial.delete(Deletion::Usual).await;
    }
}

async fn a_signal_after_the_exit_yields_gone(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "gone", Runs::AndExits(0)).await;
    soon(exit_of(new_init.exit_future)).await;
    for signal in [Signal::TERM, Signal::KILL] {
        let killed = kill(&*new_init.init, signal, false).await;
        assert!(matches!(killed, Err(EngineError::Gone(_))), "{killed:?}");
    }
    assert!(matches!(new_init.init.end(), Err(EngineError::Gone(_))));
    trial.delete(Deletion::Usual).await;
}

async fn a_signal_reaches_the_program(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "deaf", Runs::UntilKilled).await;
    let mut exit_future = exit_of(new_init.exit_future);
    kill(&*new_init.init, Signal::TERM, false)
        .await
        .expect("TERM");
    assert!(
        timeout(A_WHILE, &mut exit_future).await.is_err(),
        "it has exited"
    );
    kill(&*new_init.init, Signal::KILL, false)
        .await
        .expect("KILL");
    assert_eq!(soon(exit_future).await, ExitStatus::Signal(9));
    trial.delete(Deletion::Usual).await;
}

async fn a_parked_container_can_be_killed_and_is_then_not_released(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::create(testbed, "unborn", Runs::UntilTold).await;
    kill(&*new_init.init, Signal::KILL, false)
        .await
        .expect("KILL");
    assert_eq!(
        soon(exit_of(new_init.exit_future)).await,
        ExitStatus::Signal(9)
    );
    // Dropping the sender tells the release that the init's exit was reported.
    let (told_of_it, gone) = oneshot::channel();
    drop(told_of_it);
    let released = soon(new_init.init.release(gone, &CancelToken::default())).await;
    assert!(released.is_err());
    assert!(!testbed.was_executed("unborn"));
    trial.delete(Deletion::Usual).await;
}

async fn a_frozen_container_reacts_to_no_signal_until_it_is_thawed(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "frozen", Runs::UntilTold).await;
    let token = CancelToken::default();
    soon(new_init.init.pause(&token)).await.expect("a pause");
    let mut exit_future = exit_of(new_init.exit_future);
    kill(&*new_init.init, Signal::TERM, false)
        .await
        .expect("TERM");
    assert!(
        timeout(A_WHILE, &mut exit_future).await.is_err(),
        "it has exited"
    );
    soon(new_init.init.resume(&token))
        .await
        .expect("a resumption");
    assert_eq!(soon(exit_future).await, ExitStatus::Code(7));
    trial.delete(Deletion::Usual).await;
}

async fn a_frozen_container_can_be_killed(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "icicle", Runs::UntilTold).await;
    soon(new_init.init.pause(&CancelToken::default()))
        .await
        .expect("a pause");
    kill(&*new_init.init, Signal::KILL, false)
        .await
        .expect("KILL");
    assert_eq!(
        soon(exit_of(new_init.exit_future)).await,
        ExitStatus::Signal(9)
    );
    trial.delete(Deletion::Usual).await;
}

async fn the_program_of_a_frozen_container_is_not_executed(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::create(testbed, "waits", Runs::AndExits(0)).await;
    let token = CancelToken::default();
    soon(new_init.init.pause(&token)).await.expect("a pause");
    let init = Arc::clone(&new_init.init);
    let released = tokio::spawn(async move { release(&*init).await });
    sleep(A_WHILE).await;
    // Some engines report the release before the container is thawed. The program must not run
    // before the thaw.
    assert!(!testbed.was_executed("waits"));
    soon(new_init.init.resume(&token))
        .await
        .expect("a resumption");
    let released = soon(released).await.expect("no panic");
    assert_eq!(released, Ok(()));
    soon(exit_of(new_init.exit_future)).await;
    trial.delete(Deletion::Usual).await;
}

async fn a_held_pid_is_not_reused(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::create(testbed, "held", Runs::AndExits(0)).await;
    let hold = new_init.init.hold_pid();
    let pid = hold.pid();
    assert_eq!(pid, new_init.init.pid());
    release(&*new_init.init).await.expect("a release");
    soon(exit_of(new_init.exit_future)).await;
    trial.delete(Deletion::Usual).await;
    let (mut other, next) = Trial::run(testbed, "next", Runs::UntilTold).await;
    assert_ne!(next.init.pid(), pid);
    assert!(testbed.is_there(pid), "the PID is held");
    let killed = kill(&*new_init.init, Signal::KILL, false).await;
    assert!(matches!(killed, Err(EngineError::Gone(_))), "{killed:?}");
    drop(hold);
    assert!(!testbed.is_there(pid), "the PID is free");
    other.delete(Deletion::Forced).await;
    soon(exit_of(next.exit_future)).await;
}

async fn an_exec_runs_and_its_exit_is_reported(testbed: &dyn Testbed) {
    for (execs, signal, expected) in [
        (Runs::AndExits(5), None, ExitStatus::Code(5)),
        (Runs::UntilTold, Some(Signal::TERM), ExitStatus::Code(7)),
        (Runs::UntilTold, Some(Signal::KILL), ExitStatus::Signal(9)),
    ] {
        let (mut trial, new_init) = Trial::run_with(testbed, "execs", Runs::UntilTold, execs).await;
        let order = testbed.exec("e", execs);
        let executed = soon(new_init.init.exec(order, &CancelToken::default())).await;
        let NewExec {
            process,
            exit_future,
            ..
        } = executed.expect("an exec");
        assert_ne!(process.pid(), new_init.init.pid());
        if let Some(signal) = signal {
            // The program needs time to install its signal handler.
            sleep(A_WHILE).await;
            signalled(process.kill(signal)).await.expect("a signal");
        }
        assert_eq!(soon(exit_of(exit_future)).await, expected);
        let killed = signalled(process.kill(Signal::KILL)).await;
        assert!(matches!(killed, Err(EngineError::Gone(_))), "{killed:?}");
        trial.end(new_init).await;
    }
}

async fn everything_in_a_pid_namespace_ends_with_its_init(testbed: &dyn Testbed) {
    let execs = Runs::UntilKilled;
    let (mut trial, new_init) = Trial::run_with(testbed, "together", Runs::UntilTold, execs).await;
    let order = testbed.exec("e", execs);
    let executed = soon(new_init.init.exec(order, &CancelToken::default())).await;
    let executed = executed.expect("an exec");
    trial.end(new_init).await;
    assert_eq!(
        soon(exit_of(executed.exit_future)).await,
        ExitStatus::Signal(9)
    );
}

async fn processes_left_by_an_init_are_killed(testbed: &dyn Testbed) {
    let execs = Runs::UntilKilled;
    let order = testbed.order("shared", false, Runs::UntilTold, execs);
    let (mut trial, new_init) = Trial::created(testbed, "shared", order).await;
    assert!(!trial.facts.has_own_pid_namespace);
    release(&*new_init.init).await.expect("a release");
    let order = testbed.exec("e", execs);
    let executed = soon(new_init.init.exec(order, &CancelToken::default())).await;
    let executed = executed.expect("an exec");
    let NewInit { init, exit_future } = new_init;
    init.end().expect("KILL");
    soon(exit_of(exit_future)).await;
    let mut rest = exit_of(executed.exit_future);
    assert!(timeout(A_WHILE, &mut rest).await.is_err(), "it has exited");
    soon(init.end_the_rest()).await;
    assert_eq!(soon(rest).await, ExitStatus::Signal(9));
    trial.delete(Deletion::Usual).await;
}

async fn canceled_work_does_not_begin_but_kills_and_deletions_do(testbed: &dyn Testbed) {
    let execs = Runs::UntilTold;
    let (mut trial, new_init) = Trial::run_with(testbed, "canceled", Runs::UntilTold, execs).await;
    let all = CancelToken::default();
    let child = all.child();
    all.cancel();
    for token in [&all, &child] {
        let executed = soon(new_init.init.exec(testbed.exec("e", execs), token)).await;
        let error = executed.expect_err("nothing is executed");
        assert!(error.is_cut_short(), "{error:?}");
        let paused = soon(new_init.init.pause(token)).await;
        assert!(paused.is_err_and(|error| error.is_cut_short()));
    }
    trial.cancel_token.cancel();
    trial.end(new_init).await;
}

async fn a_container_restarts_in_place_without_earlier_processes(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "again", Runs::UntilTold).await;
    for is_forgotten in [false, true] {
        let _ = new_init.init.end();
        let gone = async {
            while testbed.left_of("again").contains("process") {
                sleep(Duration::from_millis(10)).await;
            }
        };
        soon(gone).await;
        if is_forgotten {
            soon(trial.container.forget()).await.expect("forgotten");
        }
        let last = PreviousInit {
            cgroup: new_init.init.cgroup(),
            is_forgotten,
            ..PreviousInit::default()
        };
        let created = trial
            .container
            .create_again(last, &mut trial.streams, &trial.cancel_token);
        let next = soon(created).await.expect("another life");
        release(&*next.init).await.expect("a release");
        kill(&*next.init, Signal::KILL, false).await.expect("KILL");
        assert_eq!(soon(exit_of(next.exit_future)).await, ExitStatus::Signal(9));
    }
    trial.delete(Deletion::Usual).await;
}

async fn a_creation_that_fails_leaves_nothing(testbed: &dyn Testbed) {
    let order = testbed.broken_order("broken");
    let (container, _) = testbed.engine().read(&order, None).expect("a bundle");
    let token = CancelToken::default();
    let options = CreateOptions {
        may_restart: true,
        ..CreateOptions::default()
    };
    let created = soon(container.create(&order, options, &token)).await;
    assert!(created.is_err());
    assert_eq!(testbed.left_of("broken"), "");
    // A creation that is canceled before it begins leaves nothing behind.
    let order = testbed.order("broken", true, Runs::UntilTold, Runs::UntilTold);
    let (container, _) = testbed.engine().read(&order, None).expect("a bundle");
    token.cancel();
    let created = soon(container.create(&order, options, &token)).await;
    assert!(created.is_err_and(|error| error.is_cut_short()));
    assert_eq!(testbed.left_of("broken"), "");
}

async fn a_deletion_by_force_kills_all_processes(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "forced", Runs::UntilKilled).await;
    trial.delete(Deletion::Forced).await;
    assert_eq!(
        soon(exit_of(new_init.exit_future)).await,
        ExitStatus::Signal(9)
    );
}

async fn deletions_and_forgetting_are_idempotent(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "twice", Runs::AndExits(0)).await;
    soon(exit_of(new_init.exit_future)).await;
    for _ in 0..2 {
        soon(trial.container.forget()).await.expect("forgotten");
    }
    for how in [Deletion::RootfsOnly, Deletion::Usual, Deletion::Forced] {
        trial.delete(how).await;
    }
}

async fn a_missing_bundle_is_invalid(testbed: &dyn Testbed) {
    let order = Order {
        id: "nowhere".to_owned(),
        bundle: "/nowhere/at/all".into(),
        ..Order::default()
    };
    let read = testbed.engine().read(&order, None);
    let error = read.map(|_| ()).expect_err("there is no bundle");
    assert!(matches!(error, EngineError::Invalid(_)), "{error:?}");
}

async fn a_running_container_is_only_deleted_by_force(testbed: &dyn Testbed) {
    let (mut trial, new_init) = Trial::run(testbed, "lives", Runs::UntilTold).await;
    assert!(soon(trial.container.forget()).await.is_err());
    kill(&*new_init.init, Signal::TERM, false)
        .await
        .expect("TERM");
    assert_eq!(
        soon(exit_of(new_init.exit_future)).await,
        ExitStatus::Code(7)
    );
    trial.delete(Deletion::Usual).await;
}

impl<'a> Trial<'a> {
    async fn create(testbed: &'a dyn Testbed, id: &str, runs: Runs) -> (Trial<'a>, NewInit) {
        let order = testbed.order(id, true, runs, Runs::UntilTold);
        Trial::created(testbed, id, order).await
    }

    async fn created(testbed: &'a dyn Testbed, id: &str, order: Order) -> (Trial<'a>, NewInit) {
        let (container, facts) = testbed.engine().read(&order, None).expect("a bundle");
        let token = CancelToken::default();
        let options = CreateOptions {
            may_restart: true,
            ..CreateOptions::default()
        };
        let created = soon(container.create(&order, options, &token)).await;
        let created = created.unwrap_or_else(|error| panic!("creation of {id}: {error}"));
        let InitialState::Parked(new_init) = created.initial_state else {
            panic!("{id} is to be restored, without a checkpoint");
        };
        let trial = Trial {
            testbed,
            id: id.to_owned(),
            order,
            container,
            facts,
            cancel_token: token,
            streams: created.streams,
        };
        (trial, new_init)
    }

    async fn run(testbed: &'a dyn Testbed, id: &str, runs: Runs) -> (Trial<'a>, NewInit) {
        Trial::run_with(testbed, id, runs, Runs::UntilTold).await
    }

    async fn run_with(
        testbed: &'a dyn Testbed,
        id: &str,
        runs: Runs,
        execs: Runs,
    ) -> (Trial<'a>, NewInit) {
        let order = testbed.order(id, true, runs, execs);
        let (trial, new_init) = Trial::created(testbed, id, order).await;
        release(&*new_init.init).await.expect("a release");
        if !matches!(runs, Runs::AndExits(_)) {
            // The program needs time to install its signal handler.
            sleep(A_WHILE).await;
        }
        (trial, new_init)
    }

    async fn end(&mut self, new_init: NewInit) {
        new_init.init.end().expect("KILL");
        assert_eq!(
            soon(exit_of(new_init.exit_future)).await,
            ExitStatus::Signal(9)
        );
        self.delete(Deletion::Usual).await;
    }

    async fn delete(&mut self, how: Deletion) {
        let streams = vec![std::mem::take(&mut self.streams)];
        let deleted = soon(self.container.delete(how, streams)).await;
        deleted.unwrap_or_else(|error| panic!("deletion of {}: {error}", self.order.id));
        assert_eq!(self.testbed.left_of(&self.id), "");
    }
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work)
        .await
        .expect("it does not end in time")
}

fn exit_of(exit_future: ExitFuture) -> std::pin::Pin<Box<dyn Future<Output = ExitStatus> + Send>> {
    Box::pin(async move { exit_future.0.await.expect("an end") })
}

async fn release(init: &dyn Init) -> Result<(), EngineError> {
    let (_here, gone) = oneshot::channel();
    soon(init.release(gone, &CancelToken::default())).await
}

async fn signalled(killing: SignalProgress) -> Result<(), EngineError> {
    match killing {
        SignalProgress::Done(killed) => killed,
        SignalProgress::UnderWay(work) => soon(work).await,
    }
}

async fn kill(init: &dyn Init, signal: Signal, all: bool) -> Result<(), EngineError> {
    signalled(init.kill(signal, all)).await
}
