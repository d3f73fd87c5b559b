//! A person who runs a pod with `ctr`: there is no sandbox container, and nothing restarts exited
//! containers. The person creates the containers and stops them one after another, and then does
//! both a second time.

use crate::lifecycle::Time;
use crate::plan::Signal;

use crate::simulator::{Call, Node, Seen, ms, secs};

use super::case::{Case, Deletion, Fault, Member, Part, WELL};
use super::kubelet::{Ask, End, Log, intern};

/// A person who runs a pod with `ctr`.
pub struct Person<'a> {
    case: &'a Case,
    world: &'a mut dyn Node,
    log: &'a mut Log,
    heard: usize,
}

/// Adapts a case to a pod that a person runs with `ctr`: removes everything that needs kubelet, for
/// example preStop handlers.
pub fn by_hand(mut case: Case) -> Case {
    let is_had = |part: Part| !part.is_native() && part != Part::Guest;
    case.members.retain(|member| is_had(member.part));
    for member in &mut case.members {
        (member.pre_stop, member.post_start) = (None, None);
    }
    case.faults.retain(|(_, fault)| match fault {
        Fault::Crash(name, _) => case.members.iter().any(|member| member.name == *name),
        _ => false,
    });
    // The failure of an essential app makes the shim decide a termination. The next round then
    // starts the pod over.
    if case.tick.is_multiple_of(4)
        && let Some(app) = case.members.iter_mut().find(|m| m.part == Part::App)
    {
        app.essential = true;
        app.behaviors.truncate(1);
        app.behaviors.push(WELL);
        app.behaviors[0].ends = Some((700, 1));
    }
    case.late.clear();
    case.deleted.1 = Deletion::Usual;
    case.gaps = (0..case.members.len() as u64).map(|n| n * 30).collect();
    case.by_hand = true;
    case
}

impl<'a> Person<'a> {
    pub fn new(case: &'a Case, world: &'a mut dyn Node, log: &'a mut Log) -> Person<'a> {
        Person {
            case,
            world,
            log,
            heard: 0,
        }
    }

    pub fn run(&mut self) {
        for round in 0..2 {
            let began = self.world.now();
            self.log.sandboxes.push(self.world.seen().len());
            self.world.did("a pod without a sandbox".to_owned());
            for member in &self.case.members {
                let id = id_of(member.name, round);
                self.world.did(format!("create {id}"));
                self.world.learn(id, &member.annotations(self.case, round));
                self.world.behave(id, member.script(round));
                self.world.call(Call::Run(id, None));
                self.wait_until(self.world.now().after(ms(200)));
            }
            for (at, fault) in &self.case.faults {
                self.wait_until(began.after(ms(*at)));
                if let Fault::Crash(name, code) = fault
                    && self.world.is_executing(id_of(name, round))
                {
                    let id = id_of(name, round);
                    self.world.did(format!("{id} crashes with {code}"));
                    self.world.call(Call::Crash(id, *code));
                }
            }
            self.wait_until(began.after(ms(self.case.deleted.0)));
            self.end(round);
            let is_left = |member: &Member| self.world.is_alive(id_of(member.name, round));
            if self.case.members.iter().any(is_left) {
                return;
            }
        }
        self.log.over = Some(self.world.now());
    }

    /// Stops the containers one after another, and kills those that still run when the grace period
    /// is over.
    fn end(&mut self, round: u32) {
        let began = self.world.now();
        let sandbox = self.log.sandboxes.len() - 1;
        self.log.ends.push((began, sandbox, End::Deleted));
        let grace = secs(self.case.grace);
        let ids: Vec<_> = self
            .case
            .members
            .iter()
            .map(|m| id_of(m.name, round))
            .collect();
        for (id, gap) in ids.iter().zip(&self.case.gaps) {
            self.wait_until(began.after(ms(*gap)));
            if self.world.is_known(id) && self.reads_running(id) {
                self.log.asks.push(Ask {
                    at: self.world.now(),
                    after: self.world.seen().len(),
                    id,
                    end: true,
                    grace,
                    is_handler: false,
                    is_kill: false,
                });
                self.world.did(format!("kill {id}"));
                self.world.call(Call::Kill(id, Signal::TERM, None));
            }
        }
        // The wait is longer than any termination takes, under every grace policy.
        self.wait_until(began.after(grace).after(secs(12)));
        let deletes = round > 0 || !self.leaves_what_has_ended();
        let members = self.case.members.iter();
        let all = members.flat_map(|member| (0..=round).map(|made| id_of(member.name, made)));
        let all: Vec<_> = all.collect();
        // The kills are repeated, because commands may fail or take long.
        for _ in 0..100 {
            let is_left = |id: &&'static str| match deletes {
                true => self.world.is_known(id),
                false => self.world.is_alive(id),
            };
            let left: Vec<_> = all.iter().copied().filter(is_left).collect();
            if left.is_empty() {
                return;
            }
            // The shim may have withheld the exits of containers of the previous round, so that the
            // person still sees these containers as RUNNING. A SIGKILL makes the shim publish a
            // withheld exit.
            for id in left.iter().filter(|id| deletes || ids.contains(id)) {
                self.world.did(format!("kill -9 {id}"));
                self.world.call(Call::Kill(id, Signal::KILL, None));
            }
            self.wait_until(self.world.now().after(secs(2)));
            if deletes {
                for id in left {
                    self.world.call(Call::Delete(id));
                }
            }
        }
    }

    /// True if the person does not delete exited containers, so that the same pod starts over.
    /// Otherwise the person deletes the exited containers and creates a new pod.
    fn leaves_what_has_ended(&self) -> bool {
        self.case.tick.is_multiple_of(2)
    }

    fn reads_running(&self, id: &str) -> bool {
        let ended = |seen: &Seen| matches!(seen, Seen::ExitReported(who, _) if who == id);
        !self.world.seen().iter().any(|(_, seen)| ended(seen))
    }

    fn wait_until(&mut self, end: Time) {
        while self.world.now() < end {
            self.world.advance(end);
            while let Some((_, seen)) = self.world.seen().get(self.heard).cloned() {
                self.heard += 1;
                // A container that could not be started is removed.
                if let Seen::StartAnswered(id, Err(_)) | Seen::StartFailed(id, _) = seen {
                    self.world.call(Call::Kill(intern(id), Signal::KILL, None));
                }
            }
        }
    }
}

fn id_of(name: &'static str, round: u32) -> &'static str {
    match round {
        0 => name,
        n => intern(format!("{name}#{}", n + 1)),
    }
}
