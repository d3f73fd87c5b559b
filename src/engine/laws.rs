//! Conformance tests: the laws of engines, which `docs/engine.md` lists. They run on the simulated
//! engine as a unit test, and on OCI runtimes as integration tests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use usher::engine::{
    Beginning, Born, Container, Deletion, Ending, Engine, EngineError, ExecOrder, Executed, Facts,
    Halt, Init, Killing, LastLife, Order, Wishes,
};
use usher::plan::Signal;
use usher::process::ExitStatus;
use usher::stdio::Streams;

/// Generous limit for anything that has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time after which an event counts as not happening.
const A_WHILE: Duration = Duration::from_millis(300);

/// The environment in which an engine is tested.
pub trait Ground {
    fn engine(&self) -> Arc<dyn Engine>;

    /// An order for a container with this ID that runs one program, and another in each exec.
    fn order(&self, id: &str, has_own_pid_namespace: bool, runs: Runs, execs: Runs) -> Order;

    /// An order for a container that cannot be created.
    fn broken_order(&self, id: &str) -> Order;

    /// An order for an exec.
    fn exec(&self, exec_id: &str, execs: Runs) -> ExecOrder;

    /// True if the container's program has ever been executed.
    fn was_executed(&self, id: &str) -> bool;

    /// True if a process has this PID, or it is held; a zombie counts.
    fn is_there(&self, pid: i32) -> bool;

    /// Description of all that is left of the container, except its bundle; empty if nothing is.
    fn left_of(&self, id: &str) -> String;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// Runs until SIGTERM, and then exits with 7.
    UntilTold,
    /// Runs until it is killed.
    UntilKilled,
    /// Exits with this code at once.
    AndExits(u8),
}

struct Trial<'a> {
    ground: &'a dyn Ground,
    id: String,
    order: Order,
    container: Arc<dyn Container>,
    facts: Facts,
    halt: Halt,
    streams: Streams,
}

/// Tests all laws.
pub async fn hold(ground: &dyn Ground) {
    a_created_container_is_parked_until_it_is_released(ground).await;
    an_exit_status_is_reported_unchanged(ground).await;
    a_signal_after_the_exit_yields_gone(ground).await;
    a_signal_reaches_the_program(ground).await;
    a_parked_container_can_be_killed_and_is_then_not_released(ground).await;
    a_frozen_container_reacts_to_no_signal_until_it_is_thawed(ground).await;
    a_frozen_container_can_be_killed(ground).await;
    the_program_of_a_frozen_container_is_not_executed(ground).await;
    a_held_pid_is_not_reused(ground).await;
    an_exec_runs_and_its_exit_is_reported(ground).await;
    everything_in_a_pid_namespace_ends_with_its_init(ground).await;
    processes_left_by_an_init_are_killed(ground).await;
    canceled_work_does_not_begin_but_kills_and_deletions_do(ground).await;
    a_container_restarts_in_place_without_earlier_processes(ground).await;
    a_creation_that_fails_leaves_nothing(ground).await;
    a_deletion_by_force_kills_all_processes(ground).await;
    deletions_and_forgetting_are_idempotent(ground).await;
    a_missing_bundle_is_invalid(ground).await;
    a_running_container_is_only_deleted_by_force(ground).await;
}

async fn a_created_container_is_parked_until_it_is_released(ground: &dyn Ground) {
    let (mut trial, born) = Trial::create(ground, "parked", Runs::AndExits(3)).await;
    let Born { init, ending } = born;
    assert!(ground.is_there(init.pid()));
    let mut ending = told(ending);
    assert!(
        timeout(A_WHILE, &mut ending).await.is_err(),
        "it has exited"
    );
    assert!(!ground.was_executed("parked"));
    release(&*init).await.expect("a release");
    assert_eq!(soon(ending).await, ExitStatus::Code(3));
    assert!(ground.was_executed("parked"));
    trial.delete(Deletion::Usual).await;
}

async fn an_exit_status_is_reported_unchanged(ground: &dyn Ground) {
    for (runs, signal, expected) in [
        (Runs::AndExits(0), None, ExitStatus::Code(0)),
        (Runs::AndExits(42), None, ExitStatus::Code(42)),
        (Runs::UntilTold, Some(Signal::KILL), ExitStatus::Signal(9)),
        (Runs::UntilTold, Some(Signal::TERM), ExitStatus::Code(7)),
    ] {
        let (mut trial, born) = Trial::run(ground, "exits", runs).await;
        if let Some(signal) = signal {
            kill(&*born.init, signal, false).await.expect("a signal");
        }
        assert_eq!(soon(told(born.ending)).await, expected);
        trial.delete(Deletion::Usual).await;
    }
}

async fn a_signal_after_the_exit_yields_gone(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "gone", Runs::AndExits(0)).await;
    soon(told(born.ending)).await;
    for signal in [Signal::TERM, Signal::KILL] {
        let killed = kill(&*born.init, signal, false).await;
        assert!(matches!(killed, Err(EngineError::Gone(_))), "{killed:?}");
    }
    assert!(matches!(born.init.end(), Err(EngineError::Gone(_))));
    trial.delete(Deletion::Usual).await;
}

async fn a_signal_reaches_the_program(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "deaf", Runs::UntilKilled).await;
    let mut ending = told(born.ending);
    kill(&*born.init, Signal::TERM, false).await.expect("TERM");
    assert!(
        timeout(A_WHILE, &mut ending).await.is_err(),
        "it has exited"
    );
    kill(&*born.init, Signal::KILL, false).await.expect("KILL");
    assert_eq!(soon(ending).await, ExitStatus::Signal(9));
    trial.delete(Deletion::Usual).await;
}

async fn a_parked_container_can_be_killed_and_is_then_not_released(ground: &dyn Ground) {
    let (mut trial, born) = Trial::create(ground, "unborn", Runs::UntilTold).await;
    kill(&*born.init, Signal::KILL, false).await.expect("KILL");
    assert_eq!(soon(told(born.ending)).await, ExitStatus::Signal(9));
    // The exit was reported to the release.
    let (told_of_it, gone) = oneshot::channel();
    drop(told_of_it);
    let released = soon(born.init.release(gone, &Halt::default())).await;
    assert!(released.is_err());
    assert!(!ground.was_executed("unborn"));
    trial.delete(Deletion::Usual).await;
}

async fn a_frozen_container_reacts_to_no_signal_until_it_is_thawed(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "frozen", Runs::UntilTold).await;
    let halt = Halt::default();
    soon(born.init.pause(&halt)).await.expect("a pause");
    let mut ending = told(born.ending);
    kill(&*born.init, Signal::TERM, false).await.expect("TERM");
    assert!(
        timeout(A_WHILE, &mut ending).await.is_err(),
        "it has exited"
    );
    soon(born.init.resume(&halt)).await.expect("a resumption");
    assert_eq!(soon(ending).await, ExitStatus::Code(7));
    trial.delete(Deletion::Usual).await;
}

async fn a_frozen_container_can_be_killed(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "icicle", Runs::UntilTold).await;
    soon(born.init.pause(&Halt::default()))
        .await
        .expect("a pause");
    kill(&*born.init, Signal::KILL, false).await.expect("KILL");
    assert_eq!(soon(told(born.ending)).await, ExitStatus::Signal(9));
    trial.delete(Deletion::Usual).await;
}

async fn the_program_of_a_frozen_container_is_not_executed(ground: &dyn Ground) {
    let (mut trial, born) = Trial::create(ground, "waits", Runs::AndExits(0)).await;
    let halt = Halt::default();
    soon(born.init.pause(&halt)).await.expect("a pause");
    let init = Arc::clone(&born.init);
    let released = tokio::spawn(async move { release(&*init).await });
    sleep(A_WHILE).await;
    // Some engines report the release before the thaw; the program must not run in any case.
    assert!(!ground.was_executed("waits"));
    soon(born.init.resume(&halt)).await.expect("a resumption");
    let released = soon(released).await.expect("no panic");
    assert_eq!(released, Ok(()));
    soon(told(born.ending)).await;
    trial.delete(Deletion::Usual).await;
}

async fn a_held_pid_is_not_reused(ground: &dyn Ground) {
    let (mut trial, born) = Trial::create(ground, "held", Runs::AndExits(0)).await;
    let hold = born.init.hold_pid();
    let pid = hold.pid();
    assert_eq!(pid, born.init.pid());
    release(&*born.init).await.expect("a release");
    soon(told(born.ending)).await;
    trial.delete(Deletion::Usual).await;
    let (mut other, next) = Trial::run(ground, "next", Runs::UntilTold).await;
    assert_ne!(next.init.pid(), pid);
    assert!(ground.is_there(pid), "the PID is held");
    let killed = kill(&*born.init, Signal::KILL, false).await;
    assert!(matches!(killed, Err(EngineError::Gone(_))), "{killed:?}");
    drop(hold);
    assert!(!ground.is_there(pid), "the PID is free");
    other.delete(Deletion::Forced).await;
    soon(told(next.ending)).await;
}

async fn an_exec_runs_and_its_exit_is_reported(ground: &dyn Ground) {
    for (execs, signal, expected) in [
        (Runs::AndExits(5), None, ExitStatus::Code(5)),
        (Runs::UntilTold, Some(Signal::TERM), ExitStatus::Code(7)),
        (Runs::UntilTold, Some(Signal::KILL), ExitStatus::Signal(9)),
    ] {
        let (mut trial, born) = Trial::run_with(ground, "execs", Runs::UntilTold, execs).await;
        let order = ground.exec("e", execs);
        let executed = soon(born.init.exec(order, &Halt::default())).await;
        let Executed {
            process, ending, ..
        } = executed.expect("an exec");
        assert_ne!(process.pid(), born.init.pid());
        if let Some(signal) = signal {
            // Time to install its signal handler.
            sleep(A_WHILE).await;
            signalled(process.kill(signal)).await.expect("a signal");
        }
        assert_eq!(soon(told(ending)).await, expected);
        let killed = signalled(process.kill(Signal::KILL)).await;
        assert!(matches!(killed, Err(EngineError::Gone(_))), "{killed:?}");
        trial.end(born).await;
    }
}

async fn everything_in_a_pid_namespace_ends_with_its_init(ground: &dyn Ground) {
    let execs = Runs::UntilKilled;
    let (mut trial, born) = Trial::run_with(ground, "together", Runs::UntilTold, execs).await;
    let order = ground.exec("e", execs);
    let executed = soon(born.init.exec(order, &Halt::default())).await;
    let executed = executed.expect("an exec");
    trial.end(born).await;
    assert_eq!(soon(told(executed.ending)).await, ExitStatus::Signal(9));
}

async fn processes_left_by_an_init_are_killed(ground: &dyn Ground) {
    let execs = Runs::UntilKilled;
    let order = ground.order("shared", false, Runs::UntilTold, execs);
    let (mut trial, born) = Trial::created(ground, "shared", order).await;
    assert!(!trial.facts.has_own_pid_namespace);
    release(&*born.init).await.expect("a release");
    let order = ground.exec("e", execs);
    let executed = soon(born.init.exec(order, &Halt::default())).await;
    let executed = executed.expect("an exec");
    let Born { init, ending } = born;
    init.end().expect("KILL");
    soon(told(ending)).await;
    let mut rest = told(executed.ending);
    assert!(timeout(A_WHILE, &mut rest).await.is_err(), "it has exited");
    soon(init.end_the_rest()).await;
    assert_eq!(soon(rest).await, ExitStatus::Signal(9));
    trial.delete(Deletion::Usual).await;
}

async fn canceled_work_does_not_begin_but_kills_and_deletions_do(ground: &dyn Ground) {
    let execs = Runs::UntilTold;
    let (mut trial, born) = Trial::run_with(ground, "halted", Runs::UntilTold, execs).await;
    let all = Halt::default();
    let part = all.part();
    all.call();
    for halt in [&all, &part] {
        let executed = soon(born.init.exec(ground.exec("e", execs), halt)).await;
        let error = executed.expect_err("nothing is executed");
        assert!(error.is_cut_short(), "{error:?}");
        let paused = soon(born.init.pause(halt)).await;
        assert!(paused.is_err_and(|error| error.is_cut_short()));
    }
    trial.halt.call();
    trial.end(born).await;
}

async fn a_container_restarts_in_place_without_earlier_processes(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "again", Runs::UntilTold).await;
    for is_forgotten in [false, true] {
        let _ = born.init.end();
        let gone = async {
            while ground.left_of("again").contains("process") {
                sleep(Duration::from_millis(10)).await;
            }
        };
        soon(gone).await;
        if is_forgotten {
            soon(trial.container.forget()).await.expect("forgotten");
        }
        let last = LastLife {
            cgroup: born.init.cgroup(),
            is_forgotten,
            ..LastLife::default()
        };
        let created = trial
            .container
            .create_again(last, &mut trial.streams, &trial.halt);
        let next = soon(created).await.expect("another life");
        release(&*next.init).await.expect("a release");
        kill(&*next.init, Signal::KILL, false).await.expect("KILL");
        assert_eq!(soon(told(next.ending)).await, ExitStatus::Signal(9));
    }
    trial.delete(Deletion::Usual).await;
}

async fn a_creation_that_fails_leaves_nothing(ground: &dyn Ground) {
    let order = ground.broken_order("broken");
    let (container, _) = ground.engine().read(&order, None).expect("a bundle");
    let halt = Halt::default();
    let wishes = Wishes {
        may_live_again: true,
        ..Wishes::default()
    };
    let created = soon(container.create(&order, wishes, &halt)).await;
    assert!(created.is_err());
    assert_eq!(ground.left_of("broken"), "");
    // A creation that is canceled before it begins leaves nothing either.
    let order = ground.order("broken", true, Runs::UntilTold, Runs::UntilTold);
    let (container, _) = ground.engine().read(&order, None).expect("a bundle");
    halt.call();
    let created = soon(container.create(&order, wishes, &halt)).await;
    assert!(created.is_err_and(|error| error.is_cut_short()));
    assert_eq!(ground.left_of("broken"), "");
}

async fn a_deletion_by_force_kills_all_processes(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "forced", Runs::UntilKilled).await;
    trial.delete(Deletion::Forced).await;
    assert_eq!(soon(told(born.ending)).await, ExitStatus::Signal(9));
}

async fn deletions_and_forgetting_are_idempotent(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "twice", Runs::AndExits(0)).await;
    soon(told(born.ending)).await;
    for _ in 0..2 {
        soon(trial.container.forget()).await.expect("forgotten");
    }
    for how in [Deletion::RootfsOnly, Deletion::Usual, Deletion::Forced] {
        trial.delete(how).await;
    }
}

async fn a_missing_bundle_is_invalid(ground: &dyn Ground) {
    let order = Order {
        id: "nowhere".to_owned(),
        bundle: "/nowhere/at/all".into(),
        ..Order::default()
    };
    let read = ground.engine().read(&order, None);
    let error = read.map(|_| ()).expect_err("there is no bundle");
    assert!(matches!(error, EngineError::Invalid(_)), "{error:?}");
}

async fn a_running_container_is_only_deleted_by_force(ground: &dyn Ground) {
    let (mut trial, born) = Trial::run(ground, "lives", Runs::UntilTold).await;
    assert!(soon(trial.container.forget()).await.is_err());
    kill(&*born.init, Signal::TERM, false).await.expect("TERM");
    assert_eq!(soon(told(born.ending)).await, ExitStatus::Code(7));
    trial.delete(Deletion::Usual).await;
}

impl<'a> Trial<'a> {
    async fn create(ground: &'a dyn Ground, id: &str, runs: Runs) -> (Trial<'a>, Born) {
        let order = ground.order(id, true, runs, Runs::UntilTold);
        Trial::created(ground, id, order).await
    }

    async fn created(ground: &'a dyn Ground, id: &str, order: Order) -> (Trial<'a>, Born) {
        let (container, facts) = ground.engine().read(&order, None).expect("a bundle");
        let halt = Halt::default();
        let wishes = Wishes {
            may_live_again: true,
            ..Wishes::default()
        };
        let created = soon(container.create(&order, wishes, &halt)).await;
        let created = created.unwrap_or_else(|error| panic!("creation of {id}: {error}"));
        let Beginning::Parked(born) = created.beginning else {
            panic!("{id} is to be restored, without a checkpoint");
        };
        let trial = Trial {
            ground,
            id: id.to_owned(),
            order,
            container,
            facts,
            halt,
            streams: created.streams,
        };
        (trial, born)
    }

    async fn run(ground: &'a dyn Ground, id: &str, runs: Runs) -> (Trial<'a>, Born) {
        Trial::run_with(ground, id, runs, Runs::UntilTold).await
    }

    async fn run_with(
        ground: &'a dyn Ground,
        id: &str,
        runs: Runs,
        execs: Runs,
    ) -> (Trial<'a>, Born) {
        let order = ground.order(id, true, runs, execs);
        let (trial, born) = Trial::created(ground, id, order).await;
        release(&*born.init).await.expect("a release");
        if !matches!(runs, Runs::AndExits(_)) {
            // Time to install its signal handler.
            sleep(A_WHILE).await;
        }
        (trial, born)
    }

    async fn end(&mut self, born: Born) {
        born.init.end().expect("KILL");
        assert_eq!(soon(told(born.ending)).await, ExitStatus::Signal(9));
        self.delete(Deletion::Usual).await;
    }

    async fn delete(&mut self, how: Deletion) {
        let streams = vec![std::mem::take(&mut self.streams)];
        let deleted = soon(self.container.delete(how, streams)).await;
        deleted.unwrap_or_else(|error| panic!("deletion of {}: {error}", self.order.id));
        assert_eq!(self.ground.left_of(&self.id), "");
    }
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work)
        .await
        .expect("it does not end in time")
}

fn told(ending: Ending) -> std::pin::Pin<Box<dyn Future<Output = ExitStatus> + Send>> {
    Box::pin(async move { ending.0.await.expect("an end") })
}

async fn release(init: &dyn Init) -> Result<(), String> {
    let (_here, gone) = oneshot::channel();
    soon(init.release(gone, &Halt::default())).await
}

async fn signalled(killing: Killing) -> Result<(), EngineError> {
    match killing {
        Killing::Done(killed) => killed,
        Killing::UnderWay(work) => soon(work).await,
    }
}

async fn kill(init: &dyn Init, signal: Signal, all: bool) -> Result<(), EngineError> {
    signalled(init.kill(signal, all)).await
}
