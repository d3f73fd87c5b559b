//! Promises that every trace keeps, whatever faults the case has. Each promise is a sentence of the
//! contract. The checks compare with what the containers and kubelet know, and do not trust the
//! core's view of the pod.
//!
//! | module | what its promises are about |
//! |---|---|
//! | [`starts`] | which containers wait, which containers they wait for, and for how long |
//! | [`ends`] | why a pod terminates, which containers are stopped, and when it is over |
//! | [`cleanup`] | defer containers and termination hooks |
//! | [`restarts`] | restarts in place, and in the next sandbox |
//! | [`calls`] | the effect and the answer of each call |

mod calls;
mod cleanup;
mod ends;
mod restarts;
mod retries;
mod runs;
mod starts;

use std::time::Duration;

use crate::simulator::ms;

use super::trace::Run;

/// Smallest difference in time that matters. Sending a message or killing a process may take this
/// long.
const MOMENT: Duration = ms(100);

pub type Verdict = Result<(), String>;

pub type Promise = fn(&Run<'_>) -> Verdict;

pub const PROMISES: &[(&str, Promise)] = &[
    (
        "every defer container runs once at the end of a sandbox in which a program ran",
        cleanup::every_defer_runs_once,
    ),
    (
        "no termination begins while the pod is to go on",
        ends::no_termination_of_a_running_pod,
    ),
    (
        "a container has its grace period after its stop signal",
        ends::grace_periods_are_kept,
    ),
    (
        "a termination hook runs before its container is stopped",
        cleanup::hooks_run,
    ),
    (
        "a termination takes no longer than the worst case of its grace policy",
        ends::terminations_are_bounded,
    ),
    (
        "after a termination began, only defer containers and restarted sidecars start",
        ends::no_start_during_a_termination,
    ),
    (
        "no container is refused because of a termination that is over",
        starts::no_refusal_after_a_termination,
    ),
    (
        "a Start does not wait for containers that can no longer start",
        starts::no_start_waits_forever,
    ),
    (
        "a container created after a termination runs",
        starts::containers_of_the_next_run_start,
    ),
    (
        "a container that waits for a container failed for good is ended",
        starts::hopeless_waits_end,
    ),
    (
        "an app has its sidecars until it has exited",
        ends::sidecars_outlive_apps,
    ),
    (
        "each call is answered once, and in time",
        calls::calls_are_answered,
    ),
    (
        "a deleted pod ends, and leaves nothing behind",
        ends::deleted_pods_end,
    ),
    ("no timer spins", calls::no_timer_spins),
    (
        "a sidecar that exits while the apps are stopping is restarted",
        restarts::sidecars_are_restarted,
    ),
    (
        "a sidecar that exits before the second stop request of a termination is restarted",
        restarts::sidecars_asked_first_are_restarted,
    ),
    (
        "a sidecar restarted in place runs its postStart handler again",
        restarts::post_starts_are_repeated,
    ),
    (
        "a sidecar that fails its liveness probe is restarted in place",
        restarts::failed_probes_restart_sidecars,
    ),
    (
        "a stop request for one container of a pod that goes on stops this container",
        calls::single_stops_are_delivered,
    ),
    (
        "a container is stopped with the signal that its author has chosen",
        calls::stop_signals_are_the_authors,
    ),
    (
        "a container that waits for a sidecar runs once the sidecar is started, not before",
        starts::starts_follow_the_startup_order,
    ),
    (
        "a defer container has the time that its cap gives",
        cleanup::caps_of_defers_are_kept,
    ),
    (
        "a restarted defer container leaves the later ones their time",
        cleanup::restarted_defers_leave_time,
    ),
    (
        "restarts during a termination wait 0, 1, 2, then 4 s",
        retries::restarts_back_off,
    ),
    (
        "no defer container is restarted in the time of later ones",
        retries::no_restart_in_the_time_of_others,
    ),
    (
        "a decided termination waits for defer containers that are not created yet",
        runs::decided_terminations_wait_for_defers,
    ),
    (
        "a pod that is restarted as a whole starts over",
        runs::restarted_pods_start_over,
    ),
    (
        "the next sandbox has all containers that it needs",
        restarts::the_next_sandbox_is_complete,
    ),
    (
        "who waits for its turn for long says so, once",
        starts::waiting_containers_say_so,
    ),
];

fn broken(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    match holds {
        true => Ok(()),
        false => Err(what()),
    }
}
