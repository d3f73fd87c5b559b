//! Faults of a node, drawn from a seed: faults of engine calls, deaths of containerd, OOM kills,
//! and calls of callers other than kubelet.

use std::fmt;
use std::time::Duration;

use usher_core::simulator::chance::Dice;

use usher_engine::EngineError;
use usher_engine::sim::{EngineCall, Fault, FaultPlan};

/// Prefix of the message of a panic that the seed injects. A panic without this prefix is a bug of
/// the shim.
pub const SIMULATED: &str = "simulated: ";

/// The error of a call that hung until its time limit was over.
pub const TOOK_TOO_LONG: &str = "took too long";

/// The faults of a node. The pod on the node has further faults of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    pub seed: u64,
    /// Number of engine calls in a thousand that fail.
    pub fails: u64,
    /// Number of engine calls in a thousand that hang.
    pub hangs: u64,
    /// Number of engine calls in a thousand that panic. A panic stands for a bug of the shim.
    pub panics: u64,
    /// Longest time of an engine call, in milliseconds.
    pub slow: u64,
    /// The deaths of containerd, in milliseconds: for each the time of the death, and how long
    /// containerd is away.
    pub deaths: Vec<(u64, u64)>,
    /// The times at which memory runs out, in milliseconds.
    pub oom: Vec<u64>,
    /// Longest time between two calls by callers other than kubelet, in milliseconds. `None` if
    /// kubelet is the only caller.
    pub others: Option<u64>,
    /// Longest delay of events, in milliseconds.
    pub events: u64,
}

impl Faults {
    /// Draws the faults of a seed. Most kinds of faults occur only for some seeds.
    pub fn random(seed: u64) -> Faults {
        let mut dice = Dice::new(seed ^ 0x6e6f_6465);
        let some = |dice: &mut Dice, odds, most| match dice.percent(odds) {
            true => dice.within(1, most),
            false => 0,
        };
        let deaths = some(&mut dice, 40, 3);
        let kills = some(&mut dice, 25, 2);
        Faults {
            seed,
            fails: some(&mut dice, 50, 120),
            hangs: some(&mut dice, 30, 30),
            panics: some(&mut dice, 15, 20),
            slow: dice.one_of(&[1, 1, 5, 50, 400]),
            deaths: (0..deaths)
                .map(|_| (dice.within(0, 25_000), dice.within(1, 6_000)))
                .collect(),
            oom: (0..kills).map(|_| dice.within(100, 20_000)).collect(),
            others: dice.percent(60).then(|| dice.within(5, 2_000)),
            events: dice.one_of(&[0, 1, 20, 800]),
        }
    }

    /// Simpler variants, each without one of the faults.
    pub fn simpler(&self) -> Vec<Faults> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Faults)| {
            let mut faults = self.clone();
            change(&mut faults);
            if faults != *self {
                all.push(faults);
            }
        };
        with(&|faults| faults.others = None);
        with(&|faults| faults.panics = 0);
        with(&|faults| faults.hangs = 0);
        with(&|faults| faults.fails = 0);
        with(&|faults| faults.slow = 1);
        with(&|faults| faults.events = 0);
        for place in 0..self.deaths.len() {
            with(&|faults| {
                faults.deaths.remove(place);
            });
        }
        for place in 0..self.oom.len() {
            with(&|faults| {
                faults.oom.remove(place);
            });
        }
        all
    }

    pub fn fault_plan(&self) -> NoFaults {
        NoFaults {
            dice: Dice::new(self.seed ^ 0x6661_7465),
            faults: self.clone(),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "    {self:?}")
    }
}

/// A fault plan that draws the faults of each engine call from dice.
#[derive(Clone, Debug)]
pub struct NoFaults {
    dice: Dice,
    faults: Faults,
}

/// Time limit of an engine call, the same as for calls of an OCI runtime.
pub fn limit(call: EngineCall) -> Duration {
    match call {
        EngineCall::Create
        | EngineCall::CreateAgain
        | EngineCall::Exec
        | EngineCall::Checkpoint => Duration::from_secs(120),
        EngineCall::EndTheRest => Duration::from_secs(1),
        _ => Duration::from_secs(10),
    }
}

/// True if a panic of the call loses only this call, because the shim makes the call in a separate
/// tokio task. The other calls are part of the shim's work on a message, and a panic would lose the
/// rest of this work. `Read` is part of the work on a Create, but its panic loses only this Create.
fn is_a_job(call: EngineCall) -> bool {
    let in_messages = [
        EngineCall::FindCgroup,
        EngineCall::ReadCgroup,
        EngineCall::WritePod,
    ];
    !in_messages.contains(&call)
}

impl FaultPlan for NoFaults {
    fn of(&mut self, call: EngineCall, id: &str) -> Fault {
        let wait = Duration::from_millis(self.dice.within(0, self.faults.slow));
        match call {
            // The report of an exit may be late, but it cannot fail.
            EngineCall::Collect => return Fault::delay(wait / 4),
            // A drain of the streams cannot return an error, so its only fault is a delay.
            EngineCall::Drain => return Fault::delay(wait),
            // These calls never fail for a sandbox, because the simulated kubelet cannot handle a
            // sandbox that was not made.
            EngineCall::Read | EngineCall::Mount | EngineCall::Create | EngineCall::Release
                if id.starts_with("pause") =>
            {
                return Fault::delay(wait);
            }
            _ => {}
        }
        let roll = self.dice.within(0, 999);
        let Faults {
            fails,
            hangs,
            panics,
            ..
        } = self.faults;
        match roll {
            roll if roll < fails => Fault::failure(wait, "simulated failure"),
            roll if roll < fails + hangs => Fault {
                after: limit(call),
                outcome: Err(EngineError::CutShort(format!(
                    "{call:?} of {id} {TOOK_TOO_LONG}"
                ))),
            },
            roll if roll < fails + hangs + panics && is_a_job(call) => {
                panic!("{SIMULATED}{call:?} of {id}")
            }
            _ => Fault::delay(wait),
        }
    }

    fn answers_after(&mut self, _: EngineCall, _: &str) -> Duration {
        match self.dice.percent(20) {
            true => Duration::from_millis(self.dice.within(0, self.faults.slow)),
            false => Duration::ZERO,
        }
    }
}
