//! Promises that every trace keeps, whatever faults the case has. Each promise is a sentence of the
//! contract. Each is checked against what the containers and kubelet know, never against the core's
//! own reports.
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
        "every defer runs once at the end of a sandbox of which something ran",
        cleanup::every_defer_runs_once,
    ),
    (
        "a pod that lives on is not taken for one that ends",
        ends::no_end_while_the_pod_lives,
    ),
    (
        "who is told to stop has its time",
        ends::who_is_told_has_its_time,
    ),
    (
        "a termination hook runs before its container is stopped",
        cleanup::hooks_run,
    ),
    (
        "an end is over within the worst case of its policy",
        ends::an_end_is_bounded,
    ),
    (
        "nothing is started after the end began but defers and restarted sidecars",
        ends::nothing_is_started_after_the_end_began,
    ),
    (
        "no created container is refused for an end that is over",
        starts::nothing_is_refused_for_an_end_that_is_over,
    ),
    (
        "no Start waits on what can no longer come",
        starts::who_waits_for_nothing_runs,
    ),
    (
        "what is created after an end of its pod runs",
        starts::who_comes_after_an_end_runs,
    ),
    (
        "who waits for what has failed for good is ended",
        starts::who_waits_in_vain_is_ended,
    ),
    (
        "an app has its sidecars until it has ended",
        ends::sidecars_outlive_apps,
    ),
    (
        "each call is answered once, and in time",
        calls::calls_are_answered,
    ),
    (
        "a deleted pod ends, and nothing is left of it",
        ends::the_pod_ends,
    ),
    ("no timer spins", calls::no_timer_spins),
    (
        "a sidecar that dies while its apps drain is there again",
        restarts::sidecars_are_there_again,
    ),
    (
        "a sidecar that is restarted in place gets its postStart again",
        restarts::post_starts_come_again,
    ),
    (
        "a sidecar that fails its liveness probe is restarted in place",
        restarts::the_unwell_are_restarted,
    ),
    (
        "a stop of one container in a pod that lives on stops that one",
        calls::a_stop_of_one_stops_that_one,
    ),
    (
        "a container is stopped with the signal that its author has chosen",
        calls::its_own_signal_stops_it,
    ),
    (
        "what waits for a sidecar runs when that is started, not before",
        starts::nothing_runs_before_its_sidecars_are_started,
    ),
    (
        "a defer has the time that its cap gives",
        cleanup::a_cap_gives_a_defer_its_time,
    ),
    (
        "a defer that is run again leaves those behind it their time",
        cleanup::what_is_run_again_leaves_time,
    ),
    (
        "what is run again inside an end waits for 0, 1, 2, then 4 s before",
        retries::waits_are_kept,
    ),
    (
        "no defer is run again in the time of those behind it",
        retries::time_of_others_is_left,
    ),
    (
        "a decided end waits for the defers that its caller has not created yet",
        runs::decided_ends_wait_for_defers,
    ),
    (
        "a pod that is restarted as a whole starts over",
        runs::a_restarted_pod_starts_over,
    ),
    (
        "the next sandbox goes without nothing that it needs",
        restarts::the_next_sandbox_is_whole,
    ),
    (
        "who waits for its turn for long says so, once",
        starts::who_waits_says_so,
    ),
];

fn broken(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    match holds {
        true => Ok(()),
        false => Err(what()),
    }
}
