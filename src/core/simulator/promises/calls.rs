//! Promises about calls: each call has its effect and is answered in time.

use std::time::Duration;

use crate::lifecycle::Time;
use crate::plan::Signal;
use crate::simulator::secs;
use crate::simulator::trace::Run;

use super::{MOMENT, Verdict, broken};

pub fn single_stops_are_delivered(run: &Run<'_>) -> Verdict {
    for trace in run.traces.iter().filter(|trace| trace.part().is_ours()) {
        let sandbox = trace.sandbox;
        let first_end = [
            run.ending(sandbox).map(|ending| ending.from),
            run.first_taken(sandbox),
            run.deaths[sandbox],
            run.stopped_all(sandbox).map(|(at, _)| at),
        ];
        let end = first_end.into_iter().flatten().min();
        let lives_on = |at: &Time| end.is_none_or(|end| at < &end);
        let asked = run.first_asked(trace);
        let signalled = trace.signals.iter().map(|(at, _)| *at).find(|at| {
            let is_well = trace.member.unwell.is_none() && !run.was_given_up(trace);
            let by_itself = is_well && !run.is_hindered(&trace.id, *at, *at);
            by_itself && lives_on(at) && trace.runs(*at) && asked.is_none_or(|asked| asked > *at)
        });
        broken(signalled.is_none(), || {
            format!(
                "{} gets a signal at {signalled:?} without a request",
                trace.id
            )
        })?;
        let mut asks = run.log.asks.iter();
        let Some(ask) = asks.find(|ask| ask.id == trace.id && !ask.is_handler) else {
            continue;
        };
        let told = trace
            .signals
            .iter()
            .map(|(at, _)| *at)
            .chain(trace.ended())
            .min();
        let by = run.kept_until(ask, trace).after(MOMENT);
        let has_hooks = run.case.members.iter().any(|member| member.hook.is_some());
        let in_time = told.is_some_and(|told| told <= by)
            || !lives_on(&by)
            || has_hooks
            || run.is_hindered(&trace.id, ask.at, by);
        broken(in_time, || {
            format!("{} is asked at {} and told at {told:?}", trace.id, ask.at)
        })?;
    }
    Ok(())
}

/// Checks that a container with the setting `stop-signal` gets no other signal than this stop
/// signal and SIGKILL.
pub fn stop_signals_are_the_authors(run: &Run<'_>) -> Verdict {
    for trace in &run.traces {
        let own = trace.member.stop_signal;
        let signals = trace.signals.iter().filter(|(at, _)| trace.runs(*at));
        let mut signals = signals.map(|(_, signal)| *signal);
        let other = signals.find(|signal| Some(*signal) != own && *signal != Signal::KILL);
        broken(own.is_none() || other.is_none(), || {
            format!("{} gets {other:?}, and heeds {own:?} alone", trace.id)
        })?;
    }
    Ok(())
}

pub fn calls_are_answered(run: &Run<'_>) -> Verdict {
    let unanswered = run
        .account
        .unanswered
        .first()
        .filter(|_| run.log.over.is_some());
    broken(unanswered.is_none(), || {
        unanswered.cloned().unwrap_or_default()
    })?;
    for (waited, call_timeout) in &run.account.start_waits {
        let bound = match run.case.mode {
            "Hold" => Duration::ZERO,
            _ => call_timeout.map_or(secs(10), |call_timeout| (call_timeout / 2).min(secs(10))),
        };
        broken(*waited <= bound + MOMENT, || {
            format!("a Start waits {waited:?}")
        })?;
    }
    let withheld = run.withheld();
    for (at, id, waited) in &run.log.answers {
        let is_hindered = run.is_hindered(id, *at, at.after(*waited));
        broken(*waited <= withheld + MOMENT || is_hindered, || {
            format!("a Kill of {id} at {at} is answered after {waited:?}")
        })?;
    }
    Ok(())
}

pub fn no_timer_spins(run: &Run<'_>) -> Verdict {
    broken(run.account.idle_wakes <= 100, || {
        format!(
            "the core is woken {} times for nothing",
            run.account.idle_wakes
        )
    })
}
