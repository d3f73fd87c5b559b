//! The division of the grace period among the steps of a termination.
//!
//! The source is the KEP-753 draft, "Alternatives to kill the pod in the expected time". This
//! module only does arithmetic: all times are counted from the start of the grace period. The core
//! asks for the share of the current step, and `usher explain` asks for the worst case.

use std::time::Duration;

use crate::plan::{GraceExtension, GracePolicy, Settings};

use super::action::Step;

/// Time between the stop signal and SIGKILL at the end of the grace period. Also the minimum time
/// of a step, if the grace policy gives each step time of its own. It is kubelet's minimum grace
/// period, too (`minimumGracePeriodInSeconds`).
pub const MIN_GRACE: Duration = Duration::from_secs(2);

const LATER_STEPS: u32 = 4;

/// The steps of a termination in their order, without `Step::Over`.
pub const STEPS: [Step; 5] = [
    Step::Hooks,
    Step::PreExit,
    Step::Apps,
    Step::PostExit,
    Step::Sidecars,
];

/// The time for a whole termination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub policy: GracePolicy,
    /// The grace period that the caller gives, which may be shorter than the one in the settings.
    pub grace: Duration,
    /// Longest time that all defer containers together may take beyond the grace period. `None` if
    /// the settings do not extend it.
    pub extension: Option<Duration>,
}

/// The deadlines of one step, measured from the start of the grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Time of the stop signal for all remaining containers of the step. After it, no hook or defer
    /// container begins.
    pub ask_all: Duration,
    /// Time of SIGKILL for containers of the step that are still alive.
    pub kill: Duration,
}

impl Budget {
    /// The budget of a pod with these settings if its caller gives it `grace`. The policy is
    /// `Strict` if `grace` is too short for the policy of the settings. If defer containers may
    /// exceed the grace period, `Overrun` replaces `Shared` and `Strict`.
    pub fn new(settings: &Settings, grace: Duration) -> Budget {
        let policy = match settings.grace_policy {
            policy if grace < policy.least() => GracePolicy::Strict,
            policy => policy,
        };
        let extension = settings.grace_extension.map(|extension| match extension {
            GraceExtension::Probe { max } => max,
            GraceExtension::Interval {
                interval,
                count,
                max,
            } => interval.saturating_mul(count).min(max),
        });
        // If defer containers may exceed the grace period, the other containers should not be
        // killed when it ends.
        let policy = match (extension, policy) {
            (Some(_), GracePolicy::Shared | GracePolicy::Strict) => GracePolicy::Overrun,
            (_, policy) => policy,
        };
        Budget {
            policy,
            grace,
            extension,
        }
    }

    /// The deadlines of a `step` that begins at `began`, or `None` if the policy skips the step for
    /// lack of time.
    pub fn share(&self, step: Step, began: Duration) -> Option<Share> {
        let least = began.saturating_add(MIN_GRACE);
        let limit = match self.policy {
            GracePolicy::Reserve => self.grace.saturating_sub(self.policy.least()),
            GracePolicy::Shared
            | GracePolicy::Overrun
            | GracePolicy::SkipHooks
            | GracePolicy::Strict => self.grace,
        };
        let may_be_skipped = matches!(step, Step::Hooks | Step::PreExit | Step::PostExit);
        let kill = match self.policy {
            GracePolicy::Shared if step == Step::Hooks => limit,
            GracePolicy::Shared => {
                return Some(Share {
                    ask_all: limit,
                    kill: limit.saturating_add(MIN_GRACE),
                });
            }
            GracePolicy::Strict => {
                return Some(Share {
                    ask_all: limit,
                    kill: limit,
                });
            }
            GracePolicy::SkipHooks if may_be_skipped && least > limit => return None,
            GracePolicy::SkipHooks if may_be_skipped => limit,
            // The rule is "Each later step has at least 2 s", so only the first step may get less.
            GracePolicy::Reserve | GracePolicy::Overrun if step == Step::Hooks => limit,
            GracePolicy::Reserve | GracePolicy::Overrun | GracePolicy::SkipHooks => {
                limit.max(least)
            }
        };
        // Containers whose turn has not come are signaled together, two seconds before SIGKILL. If
        // the step has less than four seconds, they are signaled halfway through the step.
        let half = kill
            .saturating_sub(began)
            .checked_div(2)
            .unwrap_or_default();
        let ask_all = match step {
            Step::Hooks => kill,
            _ => kill.saturating_sub(half.min(MIN_GRACE)),
        };
        Some(Share { ask_all, kill })
    }

    /// The deadlines of a step of defer containers if `granted` is added to the grace period. The
    /// stop signal comes at the end of the extended grace period, and SIGKILL two seconds later.
    pub fn extended(&self, granted: Duration) -> Share {
        let ask_all = self.grace.saturating_add(granted);
        Share {
            ask_all,
            kill: ask_all.saturating_add(MIN_GRACE),
        }
    }

    /// Returns the time by which each of the pod's `steps` is over at the latest, in the order of a
    /// termination. Each step comes with its cap, the longest time that its containers may take, or
    /// `None` without a limit. A skipped step ends when it begins.
    pub fn worst_case(&self, steps: &[(Step, Option<Duration>)]) -> Vec<(Step, Duration)> {
        let mut at = Duration::ZERO;
        let present = STEPS.iter().filter_map(|step| {
            let mut steps = steps.iter();
            steps.find(|(present, _)| present == step)
        });
        present
            .map(|(step, cap)| {
                let share = match (step, self.extension) {
                    (Step::PreExit | Step::PostExit, Some(extension)) if at <= self.grace => {
                        Some(self.extended(extension))
                    }
                    _ => self.share(*step, at),
                };
                let kill = share.map_or(at, |share| share.kill.max(at));
                let capped = cap.map_or(kill, |cap| at.saturating_add(cap));
                at = kill.min(capped);
                (*step, at)
            })
            .collect()
    }

    /// Longest time for which the shim delays its answer to a stop request whose signal is not
    /// delivered yet. Another limit applies if defer containers may exceed the grace period. The
    /// caller starts its timer when it gets the answer, and sends SIGKILL at the end of the grace
    /// period. So the delay leaves time for the containers that are stopped last.
    pub fn answer_delay(&self) -> Duration {
        match self.policy {
            GracePolicy::Shared | GracePolicy::Reserve => MIN_GRACE,
            GracePolicy::Overrun => MIN_GRACE.saturating_mul(LATER_STEPS),
            GracePolicy::SkipHooks => MIN_GRACE.saturating_mul(2),
            GracePolicy::Strict => Duration::ZERO,
        }
    }

    /// True if, at the end of the grace period, all containers that are still alive get a stop
    /// signal together, even before their turn. Only `Shared` does so: under the other policies,
    /// each step has its own deadlines.
    pub fn signals_all_at_deadline(&self) -> bool {
        match self.policy {
            GracePolicy::Shared => true,
            GracePolicy::Reserve
            | GracePolicy::Overrun
            | GracePolicy::SkipHooks
            | GracePolicy::Strict => false,
        }
    }

    /// True if containers get two seconds even when the caller leaves none. For example, the caller
    /// may send SIGKILL to a sidecar before the sidecar's turn. The sidecar then gets its stop
    /// signal first, and SIGKILL two seconds later.
    pub fn gives_a_last_chance(&self) -> bool {
        match self.policy {
            GracePolicy::Strict => false,
            GracePolicy::Shared
            | GracePolicy::Reserve
            | GracePolicy::Overrun
            | GracePolicy::SkipHooks => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICIES: [GracePolicy; 5] = [
        GracePolicy::Shared,
        GracePolicy::Reserve,
        GracePolicy::Overrun,
        GracePolicy::SkipHooks,
        GracePolicy::Strict,
    ];

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn budget(policy: GracePolicy, grace: u64) -> Budget {
        let settings = Settings {
            grace_policy: policy,
            ..Settings::default()
        };
        Budget::new(&settings, secs(grace))
    }

    fn uncapped(steps: &[Step]) -> Vec<(Step, Option<Duration>)> {
        steps.iter().map(|step| (*step, None)).collect()
    }

    /// The end of the last step.
    fn whole(budget: Budget) -> Duration {
        budget.worst_case(&uncapped(&STEPS)).last().unwrap().1
    }

    #[test]
    fn the_worst_cases_are_those_of_the_draft() {
        let worst = POLICIES.map(|policy| whole(budget(policy, 20)).as_secs());
        assert_eq!(worst, [20 + 2, 20 + 2, 20 + 8, 20 + 4, 20]);
        let steps = budget(GracePolicy::Reserve, 20).worst_case(&uncapped(&STEPS));
        let ends: Vec<_> = steps.iter().map(|(_, end)| end.as_secs()).collect();
        assert_eq!(ends, [14, 16, 18, 20, 22]);
    }

    #[test]
    fn a_step_that_a_pod_does_not_have_takes_no_time() {
        let steps = [Step::Apps, Step::Sidecars];
        let worst = budget(GracePolicy::Overrun, 20).worst_case(&uncapped(&steps));
        assert_eq!(worst, [(Step::Apps, secs(20)), (Step::Sidecars, secs(22))]);
    }

    #[test]
    fn reserve_is_strict_where_there_is_nothing_to_reserve() {
        assert_eq!(budget(GracePolicy::Reserve, 5).policy, GracePolicy::Strict);
        assert_eq!(budget(GracePolicy::Reserve, 6).policy, GracePolicy::Reserve);
    }

    #[test]
    fn hooks_and_defers_are_skipped_when_time_is_short() {
        let budget = budget(GracePolicy::SkipHooks, 20);
        for step in [Step::PreExit, Step::PostExit] {
            assert!(budget.share(step, secs(18)).is_some());
            assert_eq!(budget.share(step, secs(19)), None);
        }
        assert_eq!(budget.share(Step::Apps, secs(19)).unwrap().kill, secs(21));
    }

    #[test]
    fn an_extension_comes_on_top() {
        let settings = Settings {
            grace_extension: Some(GraceExtension::Interval {
                interval: secs(30),
                count: 2,
                max: secs(50),
            }),
            ..Settings::default()
        };
        let budget = Budget::new(&settings, secs(20));
        let worst = budget.worst_case(&uncapped(&[Step::PostExit, Step::Sidecars]));
        let expected = [(Step::PostExit, secs(72)), (Step::Sidecars, secs(74))];
        assert_eq!(worst, expected);
    }

    #[test]
    fn a_cap_shortens_its_step_and_lengthens_none() {
        let steps = [
            (Step::PreExit, Some(secs(6))),
            (Step::Apps, Some(secs(60))),
            (Step::PostExit, Some(secs(1))),
            (Step::Sidecars, Some(secs(4))),
        ];
        let ends = |policy| -> Vec<u64> {
            let worst = budget(policy, 20).worst_case(&steps);
            worst.iter().map(|(_, end)| end.as_secs()).collect()
        };
        assert_eq!(ends(GracePolicy::Shared), [6, 22, 22, 22]);
        assert_eq!(ends(GracePolicy::Overrun), [6, 20, 21, 23]);
        assert_eq!(ends(GracePolicy::Strict), [6, 20, 20, 20]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_step_has_less_than_its_policy_says_and_all_stay_within_the_worst_case(
            policy in prop::sample::select(POLICIES.to_vec()),
            grace in 0_u64..40,
            parts in prop::collection::vec(0.0_f64..=1.0, 5),
        ) {
            let budget = budget(policy, grace);
            let mut at = Duration::ZERO;
            for (step, part) in STEPS.iter().zip(parts) {
                let Some(share) = budget.share(*step, at) else { continue };
                prop_assert!(share.ask_all <= share.kill);
                let later = *step != Step::Hooks;
                let may_be_short = matches!(budget.policy, GracePolicy::Shared | GracePolicy::Strict);
                if later && !may_be_short {
                    prop_assert!(share.kill >= at + MIN_GRACE);
                    prop_assert!(share.ask_all < share.kill && share.ask_all >= at);
                }
                at += share.kill.saturating_sub(at).mul_f64(part);
            }
            prop_assert!(at <= whole(budget));
        }
    }
}
