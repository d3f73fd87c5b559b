//! Random pods and faults, determined by a number.

use crate::plan::{GracePolicy, RestartPolicy, Signal};

use super::case::{Behavior, Case, Deletion, Fault, Member, Part, PreStop, RESTARTS_ALL, WELL};

/// Pseudo-random numbers, always the same for one seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `least` to `most`, both included.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    /// True with a probability of `percent`.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[(self.next() % values.len() as u64) as usize]
    }
}

impl Case {
    /// A random case that depends only on the seed.
    pub fn random(seed: u64) -> Case {
        let mut dice = Dice::new(seed);
        let policy = dice.one_of(&[
            RestartPolicy::Always,
            RestartPolicy::OnFailure,
            RestartPolicy::Never,
        ]);
        let mut members = Vec::new();
        let mut cast = |dice: &mut Dice, part, names: &[&'static str], most: u64, odds: u64| {
            for name in &names[..most as usize] {
                if dice.percent(odds) {
                    members.push(Member::random(dice, name, part, policy));
                }
            }
        };
        cast(&mut dice, Part::Init, &["setup", "migrate"], 2, 30);
        cast(&mut dice, Part::Sidecar, &["proxy", "logs"], 2, 60);
        cast(&mut dice, Part::App, &["web"], 1, 100);
        cast(&mut dice, Part::App, &["api"], 1, 30);
        cast(&mut dice, Part::PreExit, &["drain", "flush"], 2, 30);
        cast(&mut dice, Part::PostExit, &["report", "clean"], 2, 40);
        cast(&mut dice, Part::Guest, &["debug"], 1, 10);
        // A pod's spec may list its containers in any order.
        if dice.percent(50) {
            for place in (1..members.len()).rev() {
                members.swap(place, dice.within(0, place as u64) as usize);
            }
        }
        let mut natives = Vec::new();
        for (name, part) in [("vpn", Part::NativeSidecar), ("fetch", Part::NativeInit)] {
            if dice.percent(15) {
                natives.push(Member::random(&mut dice, name, part, policy));
            }
        }
        natives.append(&mut members);
        let members = natives;
        let names: Vec<_> = members.iter().map(|member| member.name).collect();
        let has_guest = members.iter().any(|member| member.part == Part::Guest);
        let grace_policy = dice.one_of(&[
            GracePolicy::Shared,
            GracePolicy::Shared,
            GracePolicy::Reserve,
            GracePolicy::Overrun,
            GracePolicy::SkipHooks,
            GracePolicy::Strict,
        ]);
        let least = match grace_policy {
            GracePolicy::Reserve => 6,
            _ => 3,
        };
        let until = dice.one_of(&[500, 3_000, 15_000, 40_000, 90_000]);
        let deleted = dice.within(0, until);
        let mut faults: Vec<(u64, Fault)> = (0..dice.one_of(&[0, 0, 1, 1, 2, 3]))
            .map(|_| {
                let name = dice.one_of(&names);
                let fault = match dice.within(0, 9) {
                    0..=2 => Fault::Crash(name, dice.one_of(&[0, 1, 1, 137])),
                    3..=4 => Fault::Unhealthy(name),
                    5..=6 => Fault::Image(name),
                    7..=8 => Fault::SandboxDies,
                    _ => Fault::Restart(dice.within(500, 4_000)),
                };
                (dice.within(0, deleted), fault)
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        let deletion = match dice.within(0, 9) {
            0 => Deletion::Within(dice.within(1, 6)),
            1 if dice.percent(50) => Deletion::Kill,
            _ => Deletion::Usual,
        };
        let mut late: Vec<(u64, Fault)> = (0..dice.one_of(&[0, 0, 0, 0, 1, 2]))
            .map(|_| {
                let name = dice.one_of(&names);
                let fault = match dice.within(0, 9) {
                    0..=4 => Fault::Crash(name, dice.one_of(&[0, 1, 137])),
                    5 => Fault::SandboxDies,
                    6..=7 => Fault::Restart(dice.within(500, 4_000)),
                    _ => Fault::Hurry(dice.within(0, 3)),
                };
                (dice.within(0, 12_000), fault)
            })
            .collect();
        late.sort_by_key(|(at, _)| *at);
        let spread = dice.one_of(&[0, 15, 100, 800]);
        let mut case = Case {
            policy,
            grace_policy,
            grace: dice.within(least, 20),
            mode: dice.one_of(&["Auto", "Auto", "Auto", "Hold"]),
            parallel: dice.percent(25),
            ordered: dice.percent(40),
            listed: has_guest || dice.percent(60),
            faults,
            deleted: (deleted, deletion),
            late,
            gaps: members.iter().map(|_| dice.within(0, spread)).collect(),
            breaks_off: dice.percent(50),
            tick: dice.within(0, 999),
            clean_up: dice.one_of(&[1, 20, 400]),
            members,
            absent: Vec::new(),
            by_hand: false,
        };
        case.leave_open(&mut dice);
        case.restart_and_pull(&mut dice);
        case.complicate(&mut Dice::new(!seed));
        case
    }

    /// Adds restart rules and slow image pulls to some containers.
    fn restart_and_pull(&mut self, dice: &mut Dice) {
        if dice.percent(35) {
            for member in &mut self.members {
                if dice.percent(40) {
                    member.pull = dice.one_of(&[300, 2_500, 8_000, 25_000]);
                }
            }
        }
        for member in &mut self.members {
            member.rules_are_known = dice.percent(50);
            if member.part == Part::App && dice.percent(12) {
                member.restarts_all = true;
                let after = dice.one_of(&[50, 700, 5_000, 20_000]);
                member.behaviors[0].ends = Some((after, RESTARTS_ALL));
                // The container exits with this code only once.
                if member.behaviors.len() == 1 {
                    member.behaviors.push(WELL);
                }
            }
        }
    }

    /// Adds rarer settings and faults. They are chosen with separate dice, so that all other
    /// choices for a seed stay the same.
    fn complicate(&mut self, dice: &mut Dice) {
        for member in &mut self.members {
            if member.post_start.is_none() && dice.percent(10) {
                member.post_start = Some(dice.one_of(&[50, 900]));
                member.post_starts_fail = dice.one_of(&[1, 1, 2, 99]);
            }
            if member.part.is_ours() && dice.percent(8) {
                member.stop_signal = Some(dice.one_of(&[Signal::INT, Signal::QUIT]));
            }
            if member.part.is_defer() && dice.percent(15) {
                member.cap = Some(dice.within(1, 5));
            }
            if member.part == Part::App && dice.percent(8) {
                let takes = dice.one_of(&[50, 4_000, 30_000]);
                member.pre_stop =
                    Some((dice.one_of(&[PreStop::HttpGet, PreStop::TcpSocket]), takes));
            }
        }
        // Makes kubelet stop one sidecar while the pod goes on.
        let sidecars: Vec<_> = self.of(Part::Sidecar).map(|member| member.name).collect();
        if !sidecars.is_empty() && dice.percent(10) {
            let at = dice.within(0, self.deleted.0);
            self.faults
                .push((at, Fault::Unhealthy(dice.one_of(&sidecars))));
            self.faults.sort_by_key(|(at, _)| *at);
        }
        // Makes one sidecar exit after its own stop request and before the requests for the other
        // containers.
        if !sidecars.is_empty() && dice.percent(10) {
            let first = dice.one_of(&sidecars);
            let (members, gaps) = (self.members.iter(), self.gaps.iter_mut());
            for (member, gap) in members.zip(gaps) {
                *gap = match member.name == first {
                    true => 0,
                    false => dice.within(300, 900),
                };
            }
            let crash = Fault::Crash(first, dice.one_of(&[0, 1, 137]));
            self.late.push((dice.within(1, 300), crash));
            self.late.sort_by_key(|(at, _)| *at);
        }
    }

    /// Makes the names of some containers optional, and adds optional names whose containers are
    /// never created.
    fn leave_open(&mut self, dice: &mut Dice) {
        let parts = [Part::Init, Part::Sidecar, Part::PreExit, Part::PostExit];
        for member in &mut self.members {
            member.optional = parts.contains(&member.part) && dice.percent(15);
        }
        for (name, part) in ["seed", "mesh", "save", "bill"].into_iter().zip(parts) {
            if dice.percent(10) {
                self.absent.push((name, part));
            }
        }
    }
}

impl Member {
    fn random(dice: &mut Dice, name: &'static str, part: Part, policy: RestartPolicy) -> Member {
        let behaviors = (0..dice.within(1, 3)).map(|_| Behavior::random(dice, part));
        let behaviors = behaviors.collect();
        let any = [
            RestartPolicy::Always,
            RestartPolicy::OnFailure,
            RestartPolicy::Never,
        ];
        let restart = match part {
            Part::Sidecar if dice.percent(25) => Some(dice.one_of(&any)),
            Part::PreExit | Part::PostExit if dice.percent(20) => Some(dice.one_of(&any)),
            _ => None,
        };
        let pre_stop = dice.percent(20).then(|| {
            let kinds = [
                PreStop::Exec,
                PreStop::Exec,
                PreStop::Sleep,
                PreStop::HttpGet,
                PreStop::TcpSocket,
            ];
            let kind = dice.one_of(&kinds);
            let takes = match kind {
                PreStop::Sleep => dice.within(1, 6) * 1_000,
                _ => dice.one_of(&[50, 1_500, 4_000, 30_000]),
            };
            (kind, takes)
        });
        let takes_hooks = matches!(part, Part::App | Part::Sidecar);
        let may_be_essential = matches!(part, Part::App | Part::Sidecar);
        let is_capped = part.is_ours() && !part.is_defer() && dice.percent(5);
        Member {
            restart,
            cap: is_capped.then(|| dice.within(1, 5)),
            probed: part == Part::Sidecar && dice.percent(40),
            unwell: (part == Part::Sidecar && dice.percent(15))
                .then(|| dice.one_of(&[500, 3_000, 12_000])),
            hook: (takes_hooks && dice.percent(8)).then(|| dice.one_of(&[20, 1_000, 30_000])),
            pre_stop: pre_stop.filter(|_| !part.is_defer()),
            post_start: dice.percent(15).then(|| dice.one_of(&[50, 900, 4_000])),
            essential: may_be_essential && dice.percent(8),
            again: match policy {
                RestartPolicy::Never if part == Part::App && dice.percent(50) => 2,
                _ => 0,
            },
            behaviors,
            then: dice.percent(30).then(|| dice.one_of(&[0, 1])),
            ..Member::well(name, part)
        }
    }
}

impl Behavior {
    fn random(dice: &mut Dice, part: Part) -> Behavior {
        let ends = match part {
            Part::Init | Part::NativeInit => {
                Some((dice.within(50, 3_000), dice.one_of(&[0, 0, 0, 1])))
            }
            Part::PreExit | Part::PostExit => (!dice.percent(7)).then(|| {
                (
                    dice.one_of(&[20, 300, 1_500, 3_000]),
                    dice.one_of(&[0, 0, 0, 1]),
                )
            }),
            Part::App if dice.percent(45) => Some((
                dice.one_of(&[50, 700, 5_000, 20_000]),
                dice.one_of(&[0, 1, 1]),
            )),
            Part::Sidecar if dice.percent(25) => Some((
                dice.one_of(&[50, 700, 5_000, 20_000]),
                dice.one_of(&[0, 1, 1]),
            )),
            _ => None,
        };
        Behavior {
            ready: dice.one_of(&[0, 0, 900, 4_000]),
            ends,
            stops: match dice.within(0, 9) {
                0 => None,
                1 => Some(dice.within(2_000, 9_000)),
                _ => Some(dice.within(5, 1_200)),
            },
            code: dice.one_of(&[0, 0, 143]),
        }
    }
}
