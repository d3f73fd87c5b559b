//! What holds for every trace, whatever goes wrong in it. Each promise is a sentence of the contract;
//! what it is held against is what the containers and kubelet know, never what the core says of itself.

use std::time::Duration;

use crate::lifecycle::{Cause, HookKind, Refusal, Time};
use crate::plan::{GracePolicy, RestartPolicy, Signal};
use crate::process::ExitStatus;

use crate::simulator::{Seen, ms, name_of, secs};

use super::case::{Deletion, Fault, Member, Part, PreStop};
use super::kubelet::{Ask, intern};
use super::trace::{Ending, LEAST, Life, Run, WINDOW};

/// What is told apart at best: a message, a process that is killed.
const MOMENT: Duration = ms(100);

pub type Verdict = Result<(), String>;

pub type Promise = fn(&Run<'_>) -> Verdict;

pub const PROMISES: &[(&str, Promise)] = &[
    (
        "every defer runs once at the end of a sandbox of which something ran",
        every_defer_runs_once,
    ),
    (
        "a pod that lives on is not taken for one that ends",
        no_end_while_the_pod_lives,
    ),
    ("who is told to stop has its time", who_is_told_has_its_time),
    (
        "a termination hook runs before its container is stopped",
        hooks_run,
    ),
    (
        "an end is over within the worst case of its policy",
        an_end_is_bounded,
    ),
    (
        "nothing is started after the end began but defers and restarted sidecars",
        nothing_is_started_after_the_end_began,
    ),
    (
        "no created container is refused for an end that is over",
        nothing_is_refused_for_an_end_that_is_over,
    ),
    (
        "no Start waits on what can no longer come",
        who_waits_for_nothing_runs,
    ),
    (
        "what is created after an end of its pod runs",
        who_comes_after_an_end_runs,
    ),
    (
        "who waits for what has failed for good is ended",
        who_waits_in_vain_is_ended,
    ),
    (
        "an app has its sidecars until it has ended",
        sidecars_outlive_apps,
    ),
    (
        "each call is answered once, and in time",
        calls_are_answered,
    ),
    (
        "a deleted pod ends, and nothing is left of it",
        the_pod_ends,
    ),
    ("no timer spins", no_timer_spins),
    (
        "a sidecar that dies while its apps drain is there again",
        sidecars_are_there_again,
    ),
    (
        "a sidecar that is restarted in place gets its postStart again",
        post_starts_come_again,
    ),
    (
        "a sidecar that fails its liveness probe is restarted in place",
        the_unwell_are_restarted,
    ),
    (
        "a stop of one container in a pod that lives on stops that one",
        a_stop_of_one_stops_that_one,
    ),
    (
        "the next sandbox goes without nothing that it needs",
        the_next_sandbox_is_whole,
    ),
    (
        "who waits for its turn for long says so, once",
        who_waits_says_so,
    ),
];

fn broken(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    match holds {
        true => Ok(()),
        false => Err(what()),
    }
}

// === the promises ===

fn every_defer_runs_once(run: &Run<'_>) -> Verdict {
    for sandbox in run.sandboxes() {
        let Some(ending) = run.ending(sandbox) else {
            continue;
        };
        let since = run.began(sandbox, ending.from);
        let ran = |life: &Life<'_>| {
            let first = life.executed.first();
            first.is_some_and(|at| *at < ending.from && life.created >= since)
        };
        let something_ran = run
            .of(sandbox)
            .any(|life| life.part().is_ours() && !life.part().is_defer() && ran(life));
        for life in run.of(sandbox).filter(|life| life.part().is_defer()) {
            let runs = life
                .executed
                .iter()
                .filter(|at| **at >= ending.from)
                .count();
            let again = life.member.restart.unwrap_or(RestartPolicy::Never) != RestartPolicy::Never;
            let namesakes = run
                .of(sandbox)
                .filter(|other| other.member.name == life.member.name);
            let of_name = namesakes.flat_map(|other| &other.executed);
            let in_all = of_name.filter(|at| **at >= ending.from).count();
            // A cleanup twice is the lesser harm where a Create shows that it was no end.
            let is_disproved = run
                .taken
                .iter()
                .any(|taken| taken.sandbox == sandbox && taken.disproved >= Some(ending.from));
            broken(in_all <= 1 || again || is_disproved, || {
                format!("{} runs {in_all} times", life.member.name)
            })?;
            if ending.is_vague {
                continue;
            }
            if ending.forced {
                // Where nobody could ask, a request comes when its time seems to be over.
                let is_late = run.is_any_hindered(sandbox, ending.from, ending.from);
                broken(runs == 0 || is_late, || {
                    format!("{} runs in a forced end", life.id)
                })?;
                continue;
            }
            let is_there = life
                .answered
                .is_some_and(|(at, is_ok)| is_ok && at < ending.from)
                && life.is_alive(ending.from)
                && !life.is_killed_by(ending.from)
                && life.executed.iter().all(|at| *at >= ending.from);
            // "A defer that gets one ends without having run": a request of its own.
            let is_own = |ask: &Ask| match ask.end {
                true => ask.at < ending.from,
                false => ask.at <= ending.from,
            };
            let mut asks = run.log.asks.iter();
            let was_asked = asks.any(|ask| ask.id == life.id && is_own(ask));
            // So it is with one that was kept for as long as it may be, and no second one came.
            let told = life.signals.first().map(|(at, _)| *at);
            // But where no app reads RUNNING that is the end of the pod.
            let has_apps = |at: Time| {
                let mut apps = run.of(sandbox).filter(|life| life.part() == Part::App);
                apps.any(|app| app.reads_running(at))
            };
            let was_alone =
                told.is_some_and(|told| has_apps(told) && run.is_told_alone(life, told));
            // And with one whose caller kills it sooner than he said, while nothing else shows.
            let is_cut = run.log.asks.iter().any(|ask| {
                let mut kills = run.log.kills.iter();
                let until = run.kept_until(ask, life);
                ask.id == life.id && kills.any(|(at, id)| *id == life.id && *at < until)
            });
            if !is_there || was_asked || was_alone || is_cut || !something_ran {
                continue;
            }
            let Some(turn) = turn_of(run, sandbox, &ending, life) else {
                continue;
            };
            // Who gives more time later than at first comes too late with it.
            let of_end = run.log.asks.iter().filter(|ask| {
                ask.end && run.ask_sandbox(ask) == sandbox && ask.at <= turn && !ask.is_handler
            });
            let mut graces = of_end.map(|ask| ask.grace).peekable();
            if run.is_hurried() && graces.peek().is_some() && graces.all(|grace| grace <= LEAST) {
                continue;
            }
            let margin = match run.case.grace_policy {
                // Of its step the last 2 s are for those that are still to be asked.
                GracePolicy::Reserve => secs(8),
                GracePolicy::Overrun | GracePolicy::SkipHooks => secs(2),
                GracePolicy::Shared | GracePolicy::Strict => Duration::ZERO,
            };
            let has_time = turn.after(margin).after(ms(300)) < ending.soonest;
            // Whoever comes before it may have been kept up.
            let is_hindered = run.is_hindered(&life.id, life.created, turn)
                || run.is_any_hindered(sandbox, ending.from, ending.deadline);
            broken(runs > 0 || !has_time || is_hindered, || {
                format!(
                    "{} never runs: its turn was at {turn}, the end began at {}, its deadline is {}",
                    life.id, ending.from, ending.deadline
                )
            })?;
        }
    }
    Ok(())
}

/// When all that comes before a defer is over; none if that never is.
fn turn_of(run: &Run<'_>, sandbox: usize, ending: &Ending, defer: &Life<'_>) -> Option<Time> {
    let hooks = run.case.members.iter().filter_map(|member| member.hook);
    let mut turn = ending.known.after(ms(hooks.max().unwrap_or_default()));
    let hidden = run.of(sandbox).filter(|life| life.part() == Part::App);
    let hidden = hidden.filter(|life| life.runs(ending.from));
    let mut hides = false;
    for life in hidden {
        hides |= life
            .member
            .pre_stop
            .is_some_and(|(kind, _)| kind != PreStop::Exec);
    }
    if hides && ending.known > ending.from.after(WINDOW) {
        turn = turn.max(ending.known);
    }
    let before = run.of(sandbox).filter(|life| {
        let is_earlier = |part| {
            let place = |name| run.case.of(part).position(|member| member.name == name);
            place(life.member.name) < place(defer.member.name)
        };
        match (life.part(), defer.part()) {
            (Part::App | Part::Init | Part::PreExit, Part::PostExit) => true,
            (Part::PreExit, Part::PreExit) => is_earlier(Part::PreExit),
            (Part::PostExit, Part::PostExit) => is_earlier(Part::PostExit),
            _ => false,
        }
    });
    for life in before {
        let is_there = life.reads_running(ending.from) || life.is_alive(ending.from);
        // A defer that is created later has its turn as well.
        let comes_later =
            life.part().is_defer() && life.executed.iter().any(|at| *at > ending.from);
        if life.id == defer.id || !is_there && !comes_later {
            continue;
        }
        turn = turn.max(life.ended()?);
    }
    Some(turn)
}

fn no_end_while_the_pod_lives(run: &Run<'_>) -> Verdict {
    for taken in &run.taken {
        let (at, sandbox, because) = (taken.at, taken.sandbox, &taken.because);
        let read_running = |life: &Life<'_>| life.read_running(at, taken.after);
        // An end is known to who decides a moment before it is to anybody else.
        let has_just_died = |life: &Life<'_>| {
            let died = life.died.iter().map(|(died, _)| *died);
            died.max()
                .is_some_and(|died| died <= at && at.since(died) < ms(10) + run.account.untold)
        };
        // A guest's tells nothing.
        let ours = || run.of(sandbox).filter(|life| life.part() != Part::Guest);
        let is_meant = match because {
            Cause::SandboxDied => run.deaths[sandbox].is_some_and(|died| died <= at),
            Cause::Completed => {
                let mut apps = run.of(sandbox).filter(|life| life.part() == Part::App);
                run.case.policy != RestartPolicy::Always && !apps.any(|life| life.runs(at))
            }
            Cause::EssentialFailed { name, .. } => run.case.member(name).essential,
            Cause::InitFailed { .. } | Cause::SidecarFailed { .. } => {
                run.case.policy == RestartPolicy::Never
            }
            Cause::Stopped => false,
            Cause::Inferred => {
                let all = run.stopped_all(sandbox).is_some_and(|(from, _)| from <= at);
                let open = run.log.asks.iter().filter(|ask| {
                    ask.at <= at
                        && run.closes(ask) > at
                        && ours().any(|life| life.id == ask.id && read_running(life))
                });
                let mut open: Vec<_> = open.map(|ask| ask.id).collect();
                open.sort_unstable();
                open.dedup();
                let is_defer = open
                    .first()
                    .is_some_and(|id| run.case.member(name_of(id)).part.is_defer());
                let running = ours().filter(|life| read_running(life) && !has_just_died(life));
                let running: Vec<_> = running.collect();
                let app_runs = running.iter().any(|life| life.part() == Part::App);
                let is_first = |life: &&Life<'_>| open.first() == Some(&life.id.as_str());
                let only = running.iter().all(is_first);
                let excused = open.len() > 1 || open.len() == 1 && (is_defer && !app_runs || only);
                // All were about to start when containerd died, and are cleared away since it is back.
                let cleared_away = running.is_empty() && run.is_any_hindered(sandbox, at, at);
                all || excused || cleared_away
            }
        };
        broken(is_meant, || format!("taken for the end at {at}: {because}"))?;
    }
    Ok(())
}

fn who_is_told_has_its_time(run: &Run<'_>) -> Verdict {
    for life in &run.lives {
        let kill = life
            .signals
            .iter()
            .find(|(at, signal)| *signal == Signal::KILL && life.runs(*at));
        let Some((killed, _)) = kill else { continue };
        let ending = run.ending(life.sandbox).filter(|e| e.from <= *killed);
        // Who kills sooner than he said at first takes back what he gave.
        let asked = run.log.asks.iter().find(|ask| ask.id == life.id);
        let is_sooner = asked.is_some_and(|ask| *killed < ask.at.after(ask.grace));
        // Nor does anybody know of an order that is given once more.
        let is_sooner = is_sooner || run.log.asked_again.contains(&intern(life.id.clone()));
        let is_cut = is_sooner && run.log.kills.contains(&(*killed, intern(life.id.clone())))
            || run.is_hurried()
            || run.was_given_up(life)
            || run.case.deleted.1 == Deletion::Kill;
        // What somebody has paused cannot be told.
        let is_hindered = run.is_hindered(&life.id, *killed, *killed);
        if is_cut || is_hindered || life.member.cap.is_some() {
            continue;
        }
        // It may run again the moment that it is killed.
        let since = life.executed.iter().filter(|at| *at < killed).max();
        let told = life
            .signals
            .iter()
            .find(|(at, signal)| *signal != Signal::KILL && since.is_some_and(|since| since <= at));
        let mut taken = run.taken.iter();
        let was_taken = taken.any(|taken| taken.sandbox == life.sandbox && taken.at <= *killed);
        let need = match (&ending, run.case.grace_policy) {
            (Some(ending), _) if ending.forced => continue,
            (Some(_), GracePolicy::Strict) => continue,
            // Such an end was none in the end.
            (None, policy) if policy != GracePolicy::Shared && was_taken => continue,
            // "With a real grace under 6 s as `Strict`", whoever has given that.
            (Some(ending), GracePolicy::Reserve)
                if ending.grace.min(ending.soonest.since(ending.from)) < secs(6) =>
            {
                continue;
            }
            // Nor is more to be shared than what is left when it is decided, after a request that was its
            // first: "it ends, within the table".
            (Some(ending), GracePolicy::Reserve)
                if run.is_decided_late(ending, secs(6)) || run.is_given_less(ending, secs(6)) =>
            {
                continue;
            }
            // Of a lone request the window is a part.
            (None, GracePolicy::Strict | GracePolicy::Reserve) => LEAST - WINDOW,
            (Some(_), GracePolicy::Shared) | (None, _) => LEAST,
            // The last of a step share its end.
            (Some(_), _) => LEAST / 2,
        };
        let had = told.map(|(at, _)| killed.since(*at));
        broken(
            had.is_some_and(|had| had.saturating_add(MOMENT / 2) >= need),
            || match had {
                Some(had) => format!(
                    "{} is killed at {killed}, {had:?} after it was told",
                    life.id
                ),
                None => format!("{} is killed at {killed} and was never told", life.id),
            },
        )?;
    }
    Ok(())
}

/// "Termination hooks of all containers that have one", where the end is not forced and there is time.
fn hooks_run(run: &Run<'_>) -> Verdict {
    for life in run.lives.iter().filter(|life| life.member.hook.is_some()) {
        let Some(ending) = run.ending(life.sandbox) else {
            continue;
        };
        let mut asks = run.log.asks.iter();
        let was_asked_alone =
            asks.any(|ask| ask.id == life.id && (!ask.end || ask.at < ending.from));
        let has_time = match run.case.grace_policy {
            GracePolicy::Reserve => ending.known.after(secs(8)) < ending.soonest,
            _ => ending.known.after(LEAST) < ending.soonest,
        };
        // It ends by itself, or is restarted just then.
        let lives = life.runs(ending.from)
            && life.runs(ending.known)
            && life
                .executed
                .iter()
                .all(|at| at.after(MOMENT) < ending.from)
            && life
                .died
                .iter()
                .all(|(at, _)| *at < ending.from || *at > ending.known.after(MOMENT));
        // Its request was kept for as long as it may be, and no second one came; or it has failed a probe
        // just before the end was known, and was told so.
        let has_probes = life.member.probed || life.member.unwell.is_some();
        // That of the only one that reads RUNNING is the end of the pod.
        let has_others = |at: Time| {
            let others = run.of(life.sandbox).filter(|other| other.id != life.id);
            let mut others = others.filter(|other| other.part() != Part::Guest);
            // One that ends at that moment may do so after it.
            others.any(|other| other.reads_running(at.before(ms(1))))
        };
        let mut told = life.signals.iter().map(|(at, _)| *at);
        let was_told = told.any(|at| {
            at < ending.from
                || at < ending.known && has_probes
                || has_others(at) && run.is_told_alone(life, at)
        });
        // One request, and that of another, is no end that anybody could know of while this one lives.
        let mut ends = life.died.iter().map(|(at, _)| *at);
        let end = ends.find(|at| *at >= ending.from);
        let before_its = |at: Time| end.is_none_or(|end| at < end);
        let in_end = run.log.asks.iter().filter(|ask| {
            let is_of_it = ask.end && run.tells(ask) && run.ask_sandbox(ask) == life.sandbox;
            is_of_it && ask.at >= ending.from && before_its(ask.at)
        });
        let was_taken = run.taken.iter().any(|taken| {
            let is_of_it = taken.sandbox == life.sandbox && taken.disproved.is_none();
            is_of_it && before_its(taken.at)
        });
        let mut asked: Vec<_> = in_end.map(|ask| ask.id).collect();
        asked.sort_unstable();
        asked.dedup();
        let is_unknown = !was_taken && asked.len() == 1 && asked[0] != life.id;
        let is_hindered = run.is_hindered(&life.id, ending.from, ending.deadline);
        let excused = was_asked_alone || was_told || is_unknown || is_hindered;
        if ending.forced || ending.is_vague || excused || !has_time || !lives {
            continue;
        }
        // It may have been taken for the end before.
        let taken = run.taken.iter();
        let taken =
            taken.filter(|taken| taken.sandbox == life.sandbox && taken.disproved.is_none());
        let since = taken.map(|taken| taken.at).min().unwrap_or(ending.from);
        let since = since.min(ending.from);
        if !life.runs(since) {
            continue;
        }
        let began = |(at, seen): &(Time, Seen)| {
            let is_its =
                matches!(seen, Seen::HookBegan(id, HookKind::Termination) if *id == life.id);
            is_its && *at >= since
        };
        // One that is still under way from an end that was none is waited for.
        let is_its = |seen: &Seen, began: bool| match seen {
            Seen::HookBegan(id, HookKind::Termination) => began && *id == life.id,
            Seen::HookEnded(id, HookKind::Termination) => !began && *id == life.id,
            _ => false,
        };
        let count = |began: bool| {
            let seen = run.account.seen.iter();
            let before = seen.filter(|(at, seen)| *at <= ending.from && is_its(seen, began));
            before.count()
        };
        let is_under_way = count(true) > count(false);
        let runs = run.account.seen.iter().any(began) || is_under_way;
        broken(runs, || {
            format!(
                "that of {} never runs: the end began at {}",
                life.id, ending.from
            )
        })?;
    }
    Ok(())
}

fn an_end_is_bounded(run: &Run<'_>) -> Verdict {
    for sandbox in run.sandboxes() {
        let Some(ending) = run.ending(sandbox) else {
            continue;
        };
        let is_away = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Restart(_));
        let is_interrupted = ending.forced && run.case.late.iter().any(is_away);
        // Where nothing was taken for the end each stop is kubelet's own.
        let mut taken = run.taken.iter().filter(|taken| taken.sandbox == sandbox);
        let is_none = taken.all(|taken| taken.followed.is_some_and(|at| at <= ending.from));
        if is_none || ending.is_entangled || ending.is_vague || is_interrupted || run.is_hurried() {
            continue;
        }
        // Where it shows only when its time is over, its last moment is still to come.
        let bound = ending
            .deadline
            .max(ending.known)
            .after(run.beyond(&ending))
            // The first to be asked may have ended before the next was.
            .after(run.spread())
            // Kubelet counts whole seconds.
            .after(secs(1));
        for life in run.of(sandbox) {
            if !life.part().is_ours() || life.created >= ending.from {
                continue;
            }
            let last = life.died.last().map(|(at, _)| *at);
            let unseen = unseen_bound(run, &ending, life);
            let bound = unseen.map_or(bound, |unseen| unseen.max(bound));
            let over = match last {
                Some(last) => last <= bound,
                None => life.answered.is_none(),
            };
            let is_hindered = run.is_hindered(&life.id, ending.from, bound);
            broken(over || is_hindered, || {
                format!(
                    "{} ends at {last:?}, the end began at {}, its deadline is {}, its bound {bound}",
                    life.id, ending.from, ending.deadline
                )
            })?;
        }
    }
    Ok(())
}

/// By when a container has ended at the latest where a request was made that nobody could see: that less time
/// was given with it tells nothing. Until then its own caller leaves it its time, or the end that the shim has
/// decided does.
fn unseen_bound(run: &Run<'_>, ending: &Ending, life: &Life<'_>) -> Option<Time> {
    let mut lives = run.of(life.sandbox);
    let is_unseen = |life: &Life<'_>| run.log.asked_again.contains(&intern(life.id.clone()));
    if !lives.any(is_unseen) {
        return None;
    }
    let mut asks = run.log.asks.iter();
    let own = asks.rfind(|ask| ask.id == life.id && !ask.is_kill);
    let mut taken = run.taken.iter();
    let decided = taken.rfind(|taken| taken.sandbox == life.sandbox && taken.because.is_decided());
    let whole = secs(run.case.grace).saturating_add(run.beyond(ending));
    let kills = run.log.kills.iter().filter(|(_, id)| *id == life.id);
    let bounds = [
        own.map(|ask| run.closes(ask)),
        decided.map(|taken| taken.at.after(whole)),
        kills.map(|(at, _)| *at).max(),
    ];
    let last = bounds.into_iter().flatten().max();
    last.map(|last| last.after(secs(1)))
}

fn nothing_is_started_after_the_end_began(run: &Run<'_>) -> Verdict {
    for taken in &run.taken {
        let goes_on = [taken.disproved, taken.followed]
            .into_iter()
            .flatten()
            .min();
        let is_in = |at: &Time| *at > taken.at && goes_on.is_none_or(|goes_on| *at < goes_on);
        let there = run.of(taken.sandbox);
        for life in there.filter(|life| life.created < taken.at) {
            let is_restarted = life.part() == Part::Sidecar || life.part().is_defer();
            let released = life.released.filter(is_in);
            broken(
                released.is_none() || life.part().is_defer() || !life.part().is_ours(),
                || format!("{} is released at {released:?}", life.id),
            )?;
            let restarted = life.restarting.iter().find(|at| is_in(at));
            broken(restarted.is_none() || is_restarted, || {
                format!("{} is restarted at {restarted:?}", life.id)
            })?;
        }
    }
    Ok(())
}

fn nothing_is_refused_for_an_end_that_is_over(run: &Run<'_>) -> Verdict {
    for (at, seen) in run.account.seen {
        let Seen::StartAnswered(id, Err(Refusal::Terminating { because, .. })) = seen else {
            continue;
        };
        let Some(life) = run.lives.iter().find(|life| life.id == *id) else {
            continue;
        };
        let sandbox = life.sandbox;
        let ends = run
            .stopped_all(sandbox)
            .is_some_and(|(from, _)| from <= *at)
            || run.deaths[sandbox].is_some_and(|died| died <= *at);
        let mut others = run.of(sandbox);
        let goes_on =
            others.any(|other| other.id != *id && other.part().is_ours() && other.runs(*at));
        // What waits for an init container that has failed for good has nothing to wait for.
        let waits_in_vain = matches!(
            because,
            Cause::InitFailed { .. } | Cause::SidecarFailed { .. }
        );
        // It was there before that end.
        let is_in_it = run.taken.iter().any(|taken| {
            let was_there = life.created_after < taken.after && taken.at <= *at;
            taken.sandbox == sandbox && taken.disproved.is_none() && was_there
        });
        broken(ends || goes_on || is_in_it || waits_in_vain, || {
            format!("{id} is refused at {at}: {because}")
        })?;
    }
    Ok(())
}

fn who_waits_for_nothing_runs(run: &Run<'_>) -> Verdict {
    for life in &run.lives {
        let sandbox = life.sandbox;
        if !matches!(life.part(), Part::Init | Part::Sidecar | Part::App) {
            continue;
        }
        let Some(ready) = due(run, life) else {
            continue;
        };
        let due = ready.after(ms(1_300));
        // What ends the wait otherwise.
        let taken = run.taken.iter().find(|taken| {
            taken.sandbox == sandbox && taken.disproved.is_none_or(|undone| undone > ready)
        });
        let ends = [
            taken.map(|taken| taken.at),
            run.stopped_all(sandbox).map(|(at, _)| at),
            run.deaths[sandbox],
            life.executed.first().copied(),
            life.reported.map(|(at, _)| at),
            life.died.first().map(|(at, _)| *at),
            run.log
                .asks
                .iter()
                .find(|ask| ask.id == life.id)
                .map(|ask| ask.at),
            life.answered.filter(|(_, is_ok)| !is_ok).map(|(at, _)| at),
        ];
        let ends = ends.into_iter().flatten().min();
        // So may be what it has waited for.
        let mut names: Vec<_> = predecessors(run, life).map(|member| member.name).collect();
        names.push(life.member.name);
        let mut waited_for = run
            .of(sandbox)
            .filter(|other| names.contains(&other.member.name));
        if waited_for.any(|other| run.is_hindered(&other.id, life.created, due)) {
            continue;
        }
        broken(ends.is_some_and(|at| at <= due), || {
            format!(
                "{} could run from {ready} on and waits until {ends:?}",
                life.id
            )
        })?;
        // An end that comes to what could run is for it to tell.
        let failed = life.reported.is_some_and(|(_, code)| code == 1) && life.executed.is_empty();
        let is_ended = failed
            && ends == life.reported.map(|(at, _)| at)
            && life.died.first().is_none_or(|(at, _)| *at > ready);
        broken(!is_ended, || {
            format!("{} waited in vain and is ended", life.id)
        })?;
    }
    Ok(())
}

/// "A wait of more than 5 s says so once on the container's stderr", and no other does.
fn who_waits_says_so(run: &Run<'_>) -> Verdict {
    for life in &run.lives {
        let words = |what: &str| what.contains(": it waits for ");
        let said = life.told.iter().filter(|(_, what)| words(what));
        let said: Vec<Time> = said.map(|(at, _)| *at).collect();
        broken(said.len() <= 1, || {
            format!("{} says it at {said:?}", life.id)
        })?;
        let too_early = said.iter().find(|at| at.since(life.created) < secs(5));
        broken(too_early.is_none(), || {
            format!("{} says it early, at {too_early:?}", life.id)
        })?;
        if !matches!(life.part(), Part::Init | Part::Sidecar | Part::App) {
            continue;
        }
        let since = match life.answered {
            Some((at, true)) => at,
            _ => continue,
        };
        let ends = [
            // It takes a while until its program runs.
            life.released,
            life.executed.first().copied(),
            life.died.first().map(|(at, _)| *at),
            life.reported.map(|(at, _)| at),
            run.log.over,
        ];
        // Its end comes a moment after what ended the wait.
        let until = ends.into_iter().flatten().min();
        let by = since.after(secs(5)).after(MOMENT);
        let is_long = until.is_some_and(|until| until > by.after(MOMENT));
        let is_hindered = run.is_hindered(&life.id, since, by);
        let in_time = is_hindered || said.iter().any(|at| *at <= by);
        broken(!is_long || in_time, || {
            format!(
                "{} waits from {since} to {until:?}, and says {said:?}",
                life.id
            )
        })?;
    }
    Ok(())
}

/// "What is created afterwards starts the pod over": an app runs when the end is over that it came in, or
/// after, if its caller leaves it the time.
fn who_comes_after_an_end_runs(run: &Run<'_>) -> Verdict {
    let longest = secs(run.case.grace).saturating_add(secs(10));
    for taken in run.taken.iter().filter(|taken| taken.because.is_decided()) {
        let is_last = match taken.because {
            Cause::SandboxDied => true,
            // "Its failure ends the pod": what has failed is never started again, and who comes behind it
            // waits in vain.
            Cause::InitFailed { .. } | Cause::SidecarFailed { .. } => true,
            // Then the sandbox is killed.
            Cause::EssentialFailed { .. } => {
                !run.case.by_hand && run.case.policy != RestartPolicy::Never
            }
            _ => false,
        };
        let is_of_it = |life: &&Life<'_>| {
            // A person makes all of it again; what came in between waits for that.
            let is_there = match run.case.by_hand {
                true => life.sandbox > taken.sandbox,
                false => life.sandbox == taken.sandbox,
            };
            // What comes after a later end is a matter of that.
            let is_later = run.taken.iter().any(|other| {
                let is_between = other.at > taken.at && other.at < life.created;
                other.sandbox == life.sandbox && other.because.is_decided() && is_between
            });
            is_there && life.part() == Part::App && life.created > taken.at && !is_later
        };
        for life in run.lives.iter().filter(is_of_it).filter(|_| !is_last) {
            let Some(ready) = due(run, life) else {
                continue;
            };
            let due = ready.max(taken.at.after(longest)).after(ms(1_300));
            // It has ended before, or another end has begun that is not that of a run without it.
            let mut others = run
                .taken
                .iter()
                .filter(|other| other.sandbox == life.sandbox);
            let other = others.find(|other| {
                other.at > taken.at && other.at <= due && other.because != Cause::Completed
            });
            let mut asks = run.log.asks.iter();
            let ends = [
                other.map(|other| other.at),
                run.stopped_all(life.sandbox).map(|(at, _)| at),
                run.deaths[life.sandbox],
                asks.find(|ask| ask.id == life.id).map(|ask| ask.at),
            ];
            let is_stopped = ends.into_iter().flatten().any(|at| at <= due);
            let runs = life.executed.first().is_some_and(|at| *at <= due)
                || run.is_any_hindered(life.sandbox, taken.at, due);
            broken(runs || is_stopped || run.was_given_up(life), || {
                format!(
                    "{} was created after {} and never runs",
                    life.id, taken.because
                )
            })?;
        }
    }
    Ok(())
}

fn who_waits_in_vain_is_ended(run: &Run<'_>) -> Verdict {
    if run.case.policy != RestartPolicy::Never || run.case.by_hand {
        return Ok(());
    }
    for life in run.lives.iter().filter(|life| life.executed.is_empty()) {
        let waits = matches!(life.part(), Part::Init | Part::Sidecar | Part::App);
        let mut failed = Vec::new();
        for init in predecessors(run, life).filter(|member| member.part == Part::Init) {
            let lives = run
                .of(life.sandbox)
                .filter(|of| of.member.name == init.name);
            let last = lives.last().and_then(|last| last.died.first());
            failed.extend(last.filter(|(_, status)| *status != ExitStatus::Code(0)));
        }
        let Some((failed, _)) = failed.first().filter(|_| waits) else {
            continue;
        };
        // What is under way is over then under every policy.
        let since = life.created.max(*failed);
        // And one that was asked to stop may have been created again for half a minute.
        let by = since.after(secs(run.case.grace)).after(secs(40));
        let over = life
            .ended()
            .or(life.answered.filter(|(_, ok)| !ok).map(|(at, _)| at));
        let is_over = over.is_some_and(|over| over <= by);
        let ends = run
            .stopped_all(life.sandbox)
            .is_some_and(|(at, _)| at <= by);
        let is_hindered = run.is_any_hindered(life.sandbox, since, by);
        broken(is_over || ends || is_hindered, || {
            format!("{} waits until {over:?}", life.id)
        })?;
    }
    Ok(())
}

/// From when on nothing keeps a container from being started; none if something always does.
fn due(run: &Run<'_>, life: &Life<'_>) -> Option<Time> {
    let mut at = life.created.after(ms(31));
    let (optional, needed): (Vec<_>, Vec<_>) =
        predecessors(run, life).partition(|member| member.optional);
    for member in needed {
        at = at.max(done(run, life, member)?);
    }
    // Who need not come is waited for if it has come by then, and so may be the next one.
    for _ in 0..=optional.len() {
        for member in &optional {
            // A person's pod goes on after an end that only seemed to be one: who came before has come.
            let mut lives = run.lives.iter();
            if lives.any(|of| {
                let is_there = of.sandbox == life.sandbox || run.case.by_hand;
                is_there && of.member.name == member.name && of.created <= at
            }) {
                at = at.max(done(run, life, member)?);
            }
        }
    }
    Some(at)
}

/// What comes before a container in the order of starts.
fn predecessors<'a>(run: &Run<'a>, life: &Life<'a>) -> impl Iterator<Item = &'a Member> {
    let staged = |part| matches!(part, Part::Init | Part::Sidecar);
    let members = &run.case.members;
    let place = members.iter().position(|m| m.name == life.member.name);
    let (part, ordered) = (life.part(), run.case.ordered);
    let before = members.iter().enumerate().filter(move |(n, member)| {
        let is_listed_before = Some(*n) < place;
        match part {
            Part::App => staged(member.part),
            _ if ordered => staged(member.part) && is_listed_before,
            Part::Sidecar => member.part == Part::Init,
            _ => member.part == Part::Init && is_listed_before,
        }
    });
    before.map(|(_, member)| member)
}

/// When a container had done its part for another that was to come after it.
fn done(run: &Run<'_>, other: &Life<'_>, member: &Member) -> Option<Time> {
    let lives = run
        .of(other.sandbox)
        .filter(|life| life.member.name == member.name);
    match member.part {
        Part::Init => {
            // The last that there is counts.
            let last = lives.last()?;
            let (died, status) = last.died.first()?;
            let was_told = last.signals.iter().any(|(at, _)| at <= died);
            let by_itself = !was_told && !last.executed.is_empty();
            (by_itself && *status == ExitStatus::Code(0)).then_some(*died)
        }
        _ => lives.flat_map(|life| started(run, life)).min(),
    }
}

/// When a sidecar was started, in each of its lives.
fn started<'a>(run: &'a Run<'_>, life: &'a Life<'_>) -> impl Iterator<Item = Time> + 'a {
    let creation = life
        .id
        .split('#')
        .nth(1)
        .and_then(|n| n.parse::<u32>().ok());
    let script = life.member.script(creation.map_or(0, |n| n - 1));
    let ready = match life.member.probed {
        true => script
            .ready_after
            .unwrap_or_default()
            .saturating_add(secs(1)),
        false => Duration::ZERO,
    };
    let post_start = ms(life.member.post_start.unwrap_or_default());
    // The same port answers both of its probes.
    let is_well = life
        .member
        .unwell
        .is_none_or(|after| !life.member.probed || ms(after) > ready);
    let executed = life.executed.iter().filter(move |_| is_well);
    executed.filter_map(move |at| {
        let started = at.after(ready.max(post_start.saturating_add(MOMENT)));
        let handled = life.answered.map(|(at, _)| at.after(post_start));
        let handled = handled.max(run.taken_for_post_start(life));
        let started = started.max(handled.unwrap_or(started));
        let died = life.died.iter().map(|(died, _)| died);
        // What is asked or told to stop is not made ready any more, nor anything when the shim has decided
        // that the pod ends: "a gate that opens after termination began starts nothing but defers".
        let told = life.signals.iter().map(|(told, _)| told);
        let asks = run.log.asks.iter();
        let asked = asks.filter(|ask| ask.id == life.id && !ask.is_handler);
        let told = told.chain(asked.map(|ask| &ask.at));
        let decided = run
            .taken
            .iter()
            .filter(|taken| taken.sandbox == life.sandbox && taken.because.is_decided());
        let decided = decided.map(|taken| &taken.at);
        let mut ends = died.chain(told).chain(decided).filter(|end| *end >= at);
        ends.all(|end| *end > started).then_some(started)
    })
}

fn sidecars_outlive_apps(run: &Run<'_>) -> Verdict {
    for sidecar in run.lives.iter().filter(|life| life.part() == Part::Sidecar) {
        let Some(ending) = run.ending(sidecar.sandbox) else {
            continue;
        };
        let mut asks = run.log.asks.iter();
        let was_asked_alone = asks.any(|ask| ask.id == sidecar.id && !ask.end);
        let is_unwell = sidecar.member.unwell.is_some();
        // "Elsewhere a lone request for a sidecar is delivered": what was told so has had its signal, and its
        // caller kills it at its own time.
        let mut signals = sidecar.signals.iter();
        let was_told_alone =
            signals.any(|(at, _)| *at < ending.from && run.is_told_alone(sidecar, *at));
        let is_given_up = run.was_given_up(sidecar);
        // What was told in an end that was none is killed when its moment is over.
        let was_told_before = sidecar.signals.iter().any(|(at, _)| {
            let mut taken = run.taken.iter();
            taken.any(|taken| taken.at <= *at && taken.disproved.is_some_and(|end| *at <= end))
        });
        let is_alone = was_asked_alone || was_told_alone || was_told_before;
        if ending.forced || is_alone || is_unwell || is_given_up {
            continue;
        }
        let told = sidecar.signals.iter().map(|(at, _)| *at).find(|at| {
            // Whose request is the first of the end differs by as much as kubelet's come one after another.
            let is_in_time = at.after(run.spread()) < ending.soonest;
            *at >= ending.from && is_in_time && sidecar.runs(*at)
        });
        let Some(told) = told else { continue };
        // A request of the same deletion may not have come through.
        let is_hindered = run.is_any_hindered(sidecar.sandbox, ending.from, told);
        if is_hindered || run.is_told_alone(sidecar, told) {
            continue;
        }
        let app = run
            .of(sidecar.sandbox)
            .find(|app| app.part() == Part::App && app.runs(told) && app.created < ending.from);
        broken(app.is_none(), || {
            format!(
                "{} is told at {told} before {} has ended",
                sidecar.id,
                app.unwrap().id
            )
        })?;
    }
    Ok(())
}

fn sidecars_are_there_again(run: &Run<'_>) -> Verdict {
    for sidecar in run.lives.iter().filter(|life| life.part() == Part::Sidecar) {
        let Some(ending) = run.ending(sidecar.sandbox) else {
            continue;
        };
        let mut asks = run.log.asks.iter();
        let was_asked_alone = asks.any(|ask| ask.id == sidecar.id && !ask.end);
        let is_wanted = |status: &ExitStatus| match sidecar.member.restart {
            None | Some(RestartPolicy::Always) => true,
            Some(RestartPolicy::OnFailure) => *status != ExitStatus::Code(0),
            Some(RestartPolicy::Never) => false,
        };
        let excused = was_asked_alone
            || ending.forced
            || sidecar.member.essential
            || run.deaths[sidecar.sandbox].is_some();
        // The first restart of a container comes at once; those after it after a back-off.
        let Some((died, status)) = sidecar.died.first().filter(|_| !excused) else {
            continue;
        };
        let is_in = *died > ending.known && died.after(secs(2)) < ending.deadline;
        let by_itself = sidecar.signals.iter().all(|(at, _)| at > died);
        let there = sidecar.executed.get(1).copied();
        let last_app = run
            .of(sidecar.sandbox)
            .filter(|life| life.part() == Part::App && life.runs(*died))
            .filter_map(|app| app.died.iter().map(|(at, _)| *at).find(|at| at > died))
            .max();
        let in_time = last_app.is_none_or(|last| {
            let by = died.after(MOMENT);
            last <= by || there.is_some_and(|there| there <= by)
        });
        let in_time = in_time || run.is_hindered(&sidecar.id, *died, died.after(MOMENT));
        broken(
            !is_in || !by_itself || !is_wanted(status) || in_time,
            || {
                format!(
                    "{} dies at {died}, {last_app:?} is the end of the apps",
                    sidecar.id
                )
            },
        )?;
    }
    Ok(())
}

fn post_starts_come_again(run: &Run<'_>) -> Verdict {
    for life in run.lives.iter().filter(|life| life.part() == Part::Sidecar) {
        // Only what has been begun by its caller can be known.
        let known = life.answered.filter(|(at, is_ok)| {
            let ends = run
                .log
                .over
                .into_iter()
                .chain(life.died.first().map(|(at, _)| *at));
            *is_ok && ends.min().is_none_or(|end| end > *at)
        });
        if life.member.post_start.is_none() || known.is_none() {
            continue;
        }
        for at in life.executed.iter().skip(1) {
            let ends = life
                .died
                .iter()
                .map(|(died, _)| *died)
                .find(|died| died > at);
            let is_short = ends.is_some_and(|end| end <= at.after(MOMENT))
                || run.is_hindered(&life.id, life.created, at.after(MOMENT));
            let mut handled = life.post_starts.iter();
            let is_handled = handled.any(|t| t >= at && *t <= at.after(MOMENT));
            broken(is_handled || is_short, || {
                format!("{} is restarted at {at}", life.id)
            })?;
        }
    }
    Ok(())
}

fn the_unwell_are_restarted(run: &Run<'_>) -> Verdict {
    for life in run.lives.iter().filter(|life| life.part() == Part::Sidecar) {
        let Some((wait, since)) = life.member.unwell.zip(life.executed.first()) else {
            continue;
        };
        let unwell = since.after(ms(wait));
        if started(run, life)
            .next()
            .is_none_or(|started| started > unwell)
        {
            continue;
        }
        // Two attempts, what a stop takes, and the first restart, which comes at once.
        let due = unwell
            .after(secs(4))
            .after(secs(run.case.grace))
            .after(LEAST);
        let ends = [
            run.ending(life.sandbox).map(|ending| ending.from),
            run.deaths[life.sandbox],
            run.log
                .asks
                .iter()
                .find(|ask| ask.id == life.id)
                .map(|ask| ask.at),
            run.first_taken(life.sandbox),
        ];
        let died = life.died.first().map(|(at, _)| *at);
        let was_well = died.is_some_and(|died| {
            died <= unwell.after(secs(3)) && life.signals.iter().all(|(at, _)| *at > died)
        });
        let goes_on = ends.into_iter().flatten().min().is_none_or(|end| end > due);
        let again = life.executed.get(1).is_some_and(|at| *at <= due);
        let excused = was_well
            || run.is_hindered(&life.id, life.created, due)
            || !goes_on
            || life.member.essential
            || life.member.restart == Some(RestartPolicy::Never);
        broken(again || excused, || {
            format!("{} is unwell from {unwell} on", life.id)
        })?;
    }
    Ok(())
}

fn a_stop_of_one_stops_that_one(run: &Run<'_>) -> Verdict {
    for life in run.lives.iter().filter(|life| life.part().is_ours()) {
        let sandbox = life.sandbox;
        let first_end = [
            run.ending(sandbox).map(|ending| ending.from),
            run.first_taken(sandbox),
            run.deaths[sandbox],
        ];
        let end = first_end.into_iter().flatten().min();
        let lives_on = |at: &Time| end.is_none_or(|end| at < &end);
        let asked = run.log.asks.iter().find(|ask| ask.id == life.id);
        let asked = asked.map(|ask| ask.at);
        let signalled = life.signals.iter().map(|(at, _)| *at).find(|at| {
            let is_well = life.member.unwell.is_none() && !run.was_given_up(life);
            let by_itself = is_well && !run.is_hindered(&life.id, *at, *at);
            by_itself && lives_on(at) && life.runs(*at) && asked.is_none_or(|asked| asked > *at)
        });
        broken(signalled.is_none(), || {
            format!(
                "{} is told at {signalled:?}, and nobody has asked for it",
                life.id
            )
        })?;
        let ask = run
            .log
            .asks
            .iter()
            .find(|ask| ask.id == life.id && !ask.is_handler);
        let Some(ask) = ask.filter(|_| life.part() == Part::App) else {
            continue;
        };
        let told = life
            .signals
            .iter()
            .map(|(at, _)| *at)
            .chain(life.ended())
            .min();
        let by = ask.at.after(WINDOW).after(MOMENT);
        let has_hooks = run.case.members.iter().any(|member| member.hook.is_some());
        let in_time = told.is_some_and(|told| told <= by)
            || !lives_on(&by)
            || has_hooks
            || run.is_hindered(&life.id, ask.at, by);
        broken(in_time, || {
            format!("{} is asked at {} and told at {told:?}", life.id, ask.at)
        })?;
    }
    Ok(())
}

fn calls_are_answered(run: &Run<'_>) -> Verdict {
    let unanswered = run
        .account
        .unanswered
        .first()
        .filter(|_| run.log.over.is_some());
    broken(unanswered.is_none(), || {
        unanswered.cloned().unwrap_or_default()
    })?;
    for (waited, patience) in &run.account.start_waits {
        let bound = match run.case.mode {
            "Hold" => Duration::ZERO,
            _ => patience.map_or(secs(10), |patience| (patience / 2).min(secs(10))),
        };
        broken(*waited <= bound + MOMENT, || {
            format!("a Start waits {waited:?}")
        })?;
    }
    let withheld = match run.case.grace_policy {
        GracePolicy::Shared | GracePolicy::Reserve => secs(2),
        GracePolicy::Overrun => secs(8),
        GracePolicy::SkipHooks => secs(4),
        GracePolicy::Strict => Duration::ZERO,
    };
    for (at, id, waited) in &run.log.answers {
        let is_hindered = run.is_hindered(id, *at, at.after(*waited));
        broken(*waited <= withheld + MOMENT || is_hindered, || {
            format!("a Kill of {id} at {at} is answered after {waited:?}")
        })?;
    }
    Ok(())
}

fn the_pod_ends(run: &Run<'_>) -> Verdict {
    broken(run.log.over.is_some(), || {
        "the pod is never over".to_owned()
    })?;
    broken(run.account.left.is_empty(), || {
        format!("{:?} are left", run.account.left)
    })
}

fn no_timer_spins(run: &Run<'_>) -> Verdict {
    broken(run.account.idle_wakes <= 100, || {
        format!(
            "the core is woken {} times for nothing",
            run.account.idle_wakes
        )
    })
}

fn the_next_sandbox_is_whole(run: &Run<'_>) -> Verdict {
    for (at, name, code) in &run.log.left_out {
        let member = run.case.member(name);
        let last = run
            .lives
            .iter()
            .rfind(|life| life.member.name == *name && life.created < *at);
        let Some(last) = last else { continue };
        let apps_over = run.case.of(Part::App).all(|app| {
            let mut lives = run.lives.iter();
            lives
                .rfind(|life| life.member.name == app.name && life.created < *at)
                .is_some_and(|life| life.reported.is_some_and(|(t, code)| t <= *at && code == 0))
        });
        let by_itself = last.died.last().is_some_and(|(died, status)| {
            let was_told = last.signals.iter().any(|(at, _)| at <= died);
            *status == ExitStatus::Code(0) && !was_told
        });
        let is_its_own = match member.part {
            Part::Sidecar => by_itself && member.restart.is_some(),
            Part::Init | Part::PreExit | Part::PostExit => false,
            _ => true,
        };
        // "Unless the run is complete": its caller may be about to start an app once more, for another image.
        let mut taken = run.taken.iter();
        let was_complete = taken.any(|taken| {
            let until = taken.followed.unwrap_or(*at);
            let is_in_it = last
                .ended()
                .is_some_and(|end| end >= taken.at && end <= until);
            taken.because == Cause::Completed && is_in_it
        });
        broken(apps_over || is_its_own || was_complete, || {
            format!("{name} ended with {code} and is left out at {at}")
        })?;
    }
    Ok(())
}
