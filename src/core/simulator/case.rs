//! A pod, the behavior of its containers, and its faults: all determined by one number.

use std::collections::BTreeMap;
use std::fmt;

use crate::plan::{GracePolicy, Plan, RestartPolicy, Signal};

use crate::simulator::{Script, ms, secs};

/// The role of a container, both in the pod's spec and in the annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// An entry of the pod's own `initContainers`, listed in `usher/native-init`.
    NativeInit,
    /// A native sidecar: an init container with `restartPolicy: Always`, listed in
    /// `usher/native-init`.
    NativeSidecar,
    Init,
    Sidecar,
    App,
    PreExit,
    PostExit,
    /// A container that the annotations do not list, in a pod whose annotations list the apps.
    Guest,
}

impl Part {
    pub fn is_native(self) -> bool {
        matches!(self, Part::NativeInit | Part::NativeSidecar)
    }

    pub fn is_defer(self) -> bool {
        matches!(self, Part::PreExit | Part::PostExit)
    }

    /// True if usher decides when the container stops.
    pub fn is_ours(self) -> bool {
        !self.is_native() && self != Part::Guest
    }
}

/// A preStop handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreStop {
    Exec,
    Sleep,
    HttpGet,
    TcpSocket,
}

/// The behavior of a container after one of its creations. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behavior {
    /// Time until the container's startup probe can succeed.
    pub ready: u64,
    /// Time until the container exits by itself, and its exit code.
    pub ends: Option<(u64, u8)>,
    /// Time from a stop signal to the exit; `None` if the container ignores stop signals.
    pub stops: Option<u64>,
    /// The exit code after a stop signal.
    pub code: u8,
}

/// The exit code for which restart rules make kubelet restart the whole pod.
pub const RESTARTS_ALL: u8 = 42;

pub const WELL: Behavior = Behavior {
    ready: 0,
    ends: None,
    stops: Some(20),
    code: 0,
};

/// A container of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub name: &'static str,
    pub part: Part,
    /// The value of `restart.usher/NAME`.
    pub restart: Option<RestartPolicy>,
    /// The value of `grace-period.usher/NAME`, in seconds.
    pub cap: Option<u64>,
    pub probed: bool,
    /// Time from the container's execution until the shim's liveness probe fails, in milliseconds.
    pub unwell: Option<u64>,
    pub hook: Option<u64>,
    pub pre_stop: Option<(PreStop, u64)>,
    pub post_start: Option<u64>,
    /// The postStart handler fails for this many creations, and succeeds for all later creations.
    pub post_starts_fail: u32,
    /// The value of `stop-signal.usher/NAME`: the only signal that the container reacts to. The
    /// container's image names another stop signal.
    pub stop_signal: Option<Signal>,
    pub essential: bool,
    /// True if the annotations mark the container as optional. The container is created
    /// nonetheless.
    pub optional: bool,
    /// The number of times that restart rules make kubelet create the container again, under the
    /// restart policy `Never`.
    pub again: u32,
    /// Milliseconds for the image pull before the container's first creation.
    pub pull: u64,
    /// True if restart rules make kubelet restart the whole pod in its sandbox when the container
    /// exits with [`RESTARTS_ALL`] (KEP-5532).
    pub restarts_all: bool,
    /// True if the annotations repeat the container's restart rules (`caller-restarts`).
    pub rules_are_known: bool,
    /// The behavior after each creation of the container. The last entry applies to all further
    /// creations.
    pub behaviors: Vec<Behavior>,
    /// The exit code after a restart in place.
    pub then: Option<u8>,
}

/// A fault during a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Crash(&'static str, u8),
    /// Kubelet's liveness probe of the container has failed so often that kubelet stops the
    /// container.
    Unhealthy(&'static str),
    /// The container's image is changed in the pod's spec.
    Image(&'static str),
    SandboxDies,
    /// Kubelet is away for this time, in milliseconds. When it is back, it has forgotten its work.
    Restart(u64),
    /// The pod is deleted again with this grace period, in seconds.
    Hurry(u64),
}

/// The way in which the pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    Usual,
    /// The pod is deleted with another grace period than its own, in seconds.
    Within(u64),
    /// The containers get SIGKILL at once, without a stop signal.
    Kill,
}

/// A pod, its faults, and its deletion.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub policy: RestartPolicy,
    pub grace_policy: GracePolicy,
    /// The pod's grace period in seconds.
    pub grace: u64,
    pub mode: &'static str,
    pub parallel: bool,
    /// True if sidecars and init containers start one after another, in the order of the spec.
    pub ordered: bool,
    /// True if the annotations list the apps.
    pub listed: bool,
    /// Containers in the order of the spec.
    pub members: Vec<Member>,
    /// Optional names in the annotations whose containers are never created.
    pub absent: Vec<(&'static str, Part)>,
    /// Faults, each with its time in milliseconds.
    pub faults: Vec<(u64, Fault)>,
    pub deleted: (u64, Deletion),
    /// Faults during the deletion, each with the milliseconds since the deletion began.
    pub late: Vec<(u64, Fault)>,
    /// For each container, the milliseconds from the start of a deletion to its stop request.
    pub gaps: Vec<u64>,
    /// True if kubelet aborts its current activity when the pod is deleted.
    pub breaks_off: bool,
    /// The point within each second at which kubelet looks at its pods, in milliseconds.
    pub tick: u64,
    /// Time from the report of an exit until containerd deletes the container, in milliseconds.
    pub clean_up: u64,
    /// True if a person creates and ends the pod, with `ctr`.
    pub by_hand: bool,
}

const PROBE: &str = r#"{"tcpSocket":{"port":80},"periodSeconds":1,"failureThreshold":30}"#;

const LIVENESS: &str = r#"{"tcpSocket":{"port":80},"periodSeconds":1,"failureThreshold":2}"#;

const HOOK: &str = r#"{"exec":{"command":["/bin/hook"]}}"#;

impl Case {
    /// A pod of these members without faults, deleted after `deleted` milliseconds.
    pub fn plain(policy: RestartPolicy, members: Vec<Member>, deleted: u64) -> Case {
        let listed = members.iter().any(|member| member.part == Part::Guest);
        Case {
            policy,
            grace_policy: GracePolicy::Shared,
            grace: 10,
            mode: "Auto",
            parallel: false,
            ordered: false,
            listed,
            faults: Vec::new(),
            deleted: (deleted, Deletion::Usual),
            late: Vec::new(),
            gaps: (0..members.len() as u64).map(|n| n * 10).collect(),
            members,
            absent: Vec::new(),
            breaks_off: false,
            tick: 500,
            clean_up: 20,
            by_hand: false,
        }
    }

    /// Pods of one app and up to three other containers, in every combination and under every
    /// restart policy.
    pub fn small() -> Vec<Case> {
        let others = [
            ("setup", Part::Init),
            ("proxy", Part::Sidecar),
            ("drain", Part::PreExit),
            ("report", Part::PostExit),
            ("vpn", Part::NativeSidecar),
            ("api", Part::App),
        ];
        let policies = [
            RestartPolicy::Always,
            RestartPolicy::OnFailure,
            RestartPolicy::Never,
        ];
        let mut all = Vec::new();
        for set in 0_u32..1 << others.len() {
            if set.count_ones() > 3 {
                continue;
            }
            let chosen = (0..others.len()).filter(|n| set & (1 << n) != 0);
            let chosen: Vec<_> = chosen.map(|n| others[n]).collect();
            let natives = chosen.iter().filter(|(_, part)| part.is_native());
            let rest = chosen.iter().filter(|(_, part)| !part.is_native());
            let members = natives.chain(rest).chain([&("web", Part::App)]);
            let members: Vec<_> = members
                .map(|(name, part)| Member::well(name, *part))
                .collect();
            for policy in policies {
                all.push(Case::plain(policy, members.clone(), 3_000));
            }
        }
        all
    }

    /// All faults that can happen while the pod lives, and all that can happen while it terminates.
    pub fn all_faults(&self) -> (Vec<Fault>, Vec<Fault>) {
        let names: Vec<_> = self.members.iter().map(|member| member.name).collect();
        let of_each = names.iter().flat_map(|name| {
            [
                Fault::Crash(name, 1),
                Fault::Crash(name, 0),
                Fault::Unhealthy(name),
                Fault::Image(name),
            ]
        });
        let common = [Fault::SandboxDies, Fault::Restart(1_500)];
        let early = of_each.chain(common).collect();
        let crashes = names.iter().map(|name| Fault::Crash(name, 1));
        let late = crashes
            .chain(common)
            .chain([Fault::Hurry(0), Fault::Hurry(2)])
            .collect();
        (early, late)
    }
}

impl Member {
    pub fn well(name: &'static str, part: Part) -> Member {
        let ends = match part {
            Part::Init | Part::NativeInit => Some((400, 0)),
            Part::PreExit | Part::PostExit => Some((300, 0)),
            _ => None,
        };
        Member {
            name,
            part,
            restart: None,
            cap: None,
            probed: false,
            unwell: None,
            hook: None,
            pre_stop: None,
            post_start: None,
            post_starts_fail: 0,
            stop_signal: None,
            essential: false,
            optional: false,
            again: 0,
            pull: 0,
            restarts_all: false,
            rules_are_known: false,
            behaviors: vec![Behavior { ends, ..WELL }],
            then: None,
        }
    }
}

impl Case {
    pub fn member(&self, name: &str) -> &Member {
        let member = self.members.iter().find(|member| member.name == name);
        member.expect("a member of the pod")
    }

    pub fn of(&self, part: Part) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |member| member.part == part)
    }

    /// True if the pod has a defer container or a termination hook.
    pub fn has_an_ending(&self) -> bool {
        let mut members = self.members.iter();
        members.any(|member| member.part.is_defer() || member.hook.is_some())
    }

    pub fn annotations(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut set = |key: &str, value: String| {
            if !value.is_empty() {
                all.insert(key.to_owned(), value);
            }
        };
        let list = |of: &dyn Fn(&Member) -> bool| {
            let names = self.members.iter().filter(|member| of(member));
            names.map(|m| m.name).collect::<Vec<_>>().join(" ")
        };
        // Names of absent containers come first in the lists. If a faulty shim waited for an absent
        // container, all containers after it would wait, too.
        let absent = |part| {
            let absent = self.absent.iter().filter(move |(_, of)| *of == part);
            absent.map(|(name, _)| format!("{name}?"))
        };
        let marked = |part| {
            let members = self.of(part).map(|member| match member.optional {
                true => format!("{}?", member.name),
                false => member.name.to_owned(),
            });
            absent(part).chain(members).collect::<Vec<_>>().join(" ")
        };
        set("usher/init", marked(Part::Init));
        set("usher/native-init", list(&|m| m.part.is_native()));
        set("usher/sidecars", marked(Part::Sidecar));
        set("usher/pre-exit", marked(Part::PreExit));
        set("usher/post-exit", marked(Part::PostExit));
        set("usher/essential", list(&|m| m.essential));
        if self.listed {
            set("usher/apps", list(&|m| m.part == Part::App));
        }
        if self.ordered {
            let is_staged = |m: &Member| matches!(m.part, Part::Init | Part::Sidecar);
            let staged = [Part::Init, Part::Sidecar];
            let absent = self.absent.iter().filter(|(_, of)| staged.contains(of));
            let absent = absent.map(|(name, _)| (*name).to_owned());
            let order: Vec<_> = absent.chain([list(&is_staged)]).collect();
            set("usher/startup-order", order.join(" ").trim().to_owned());
        }
        if self.parallel {
            set("usher/sidecar-stop-order", "Parallel".to_owned());
        }
        set("usher/restart-policy", format!("{:?}", self.policy));
        set("usher/grace-policy", format!("{:?}", self.grace_policy));
        set("usher/grace-period", format!("{}s", self.grace));
        set("usher/start-mode", self.mode.to_owned());
        for member in &self.members {
            let mut own = |setting: &str, value: String| {
                all.insert(format!("{setting}.usher/{}", member.name), value);
            };
            if let Some(restart) = member.restart {
                own("restart", format!("{restart:?}"));
            }
            if let Some(cap) = member.cap {
                own("grace-period", format!("{cap}s"));
            }
            if let Some(codes) = member.known_rules() {
                own("caller-restarts", codes);
            }
            if let Some(signal) = member.stop_signal {
                own("stop-signal", signal.to_string());
            }
            if member.probed {
                own("startup-probe", PROBE.to_owned());
            }
            if member.unwell.is_some() {
                own("liveness-probe", LIVENESS.to_owned());
            }
            if member.hook.is_some() {
                own("termination-hook", HOOK.to_owned());
            }
        }
        all
    }

    pub fn plan(&self) -> Plan {
        let annotations = self.annotations();
        Plan::parse(&annotations).unwrap_or_else(|error| panic!("{error}: {annotations:?}"))
    }
}

impl Member {
    pub fn behavior(&self, creation: u32) -> Behavior {
        let place = (creation as usize).min(self.behaviors.len() - 1);
        self.behaviors[place]
    }

    /// The exit codes of the container's restart rules, if the annotations repeat the rules.
    fn known_rules(&self) -> Option<String> {
        let codes = match (self.again > 0, self.restarts_all) {
            (true, _) => "!0".to_owned(),
            (false, true) => RESTARTS_ALL.to_string(),
            (false, false) => return None,
        };
        self.rules_are_known.then_some(codes)
    }

    pub fn script(&self, creation: u32) -> Script {
        let behavior = self.behavior(creation);
        Script {
            ready_after: Some(ms(behavior.ready)),
            stops_after: behavior.stops.map(ms),
            heeds: self.stop_signal,
            exits_after: behavior.ends.map(|(after, code)| (ms(after), code)),
            stop_code: behavior.code,
            unwell_after: self.unwell.map(ms),
            then_exits: self.then,
            hook_takes: ms(self
                .hook
                .unwrap_or_else(|| self.pre_stop.map_or(1, |(_, takes)| takes))),
            ..Script::default()
        }
    }

    pub fn pre_stop_argv(&self) -> Vec<String> {
        vec!["/bin/pre-stop".to_owned(), self.name.to_owned()]
    }

    /// The annotations that kubelet gives the container.
    pub fn annotations(&self, case: &Case, restarts: u32) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([
            (
                "io.kubernetes.pod.terminationGracePeriod".to_owned(),
                secs(case.grace).as_secs().to_string(),
            ),
            (
                "io.kubernetes.container.restartCount".to_owned(),
                restarts.to_string(),
            ),
        ]);
        let handler = self.pre_stop.map(|(kind, takes)| match kind {
            PreStop::Exec => format!(
                r#"{{"exec":{{"command":["/bin/pre-stop","{}"]}}}}"#,
                self.name
            ),
            PreStop::Sleep => format!(r#"{{"sleep":{{"seconds":{}}}}}"#, takes / 1_000),
            PreStop::HttpGet => r#"{"httpGet":{"port":80}}"#.to_owned(),
            PreStop::TcpSocket => r#"{"tcpSocket":{"port":80}}"#.to_owned(),
        });
        if let Some(handler) = handler {
            all.insert("io.kubernetes.container.preStopHandler".to_owned(), handler);
        }
        all
    }
}

/// Prints the annotations, the unusual behavior of each container, and the faults.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in self.annotations() {
            writeln!(f, "    {key}: {value}")?;
        }
        for member in &self.members {
            write!(f, "    {} is {:?}", member.name, member.part)?;
            if let Some((kind, takes)) = member.pre_stop {
                write!(f, ", preStop {kind:?} {takes} ms")?;
            }
            if let Some(after) = member.unwell {
                write!(f, ", unwell after {after} ms")?;
            }
            if let Some(takes) = member.hook {
                write!(f, ", hook {takes} ms")?;
            }
            if let Some(takes) = member.post_start {
                write!(f, ", postStart {takes} ms")?;
            }
            if member.post_starts_fail > 0 {
                write!(f, ", which fails {} times", member.post_starts_fail)?;
            }
            if member.again > 0 {
                write!(f, ", created again {} times", member.again)?;
            }
            if member.pull > 0 {
                write!(f, ", pulled for {} ms", member.pull)?;
            }
            if member.restarts_all {
                write!(f, ", restarts all after {RESTARTS_ALL}")?;
            }
            for behavior in &member.behaviors {
                write!(f, "; ready {} ms", behavior.ready)?;
                if let Some((after, code)) = behavior.ends {
                    write!(f, ", ends with {code} after {after} ms")?;
                }
                match behavior.stops {
                    Some(after) => write!(f, ", stops with {} after {after} ms", behavior.code)?,
                    None => write!(f, ", heeds no signal")?,
                }
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "    by hand {}; faults {:?}; deleted {:?}; late {:?}; gaps {:?}; breaks off {}; tick {}; clean up {}",
            self.by_hand,
            self.faults,
            self.deleted,
            self.late,
            self.gaps,
            self.breaks_off,
            self.tick,
            self.clean_up
        )
    }
}

impl Case {
    /// Variants of this case, each of them simpler in one respect.
    pub fn simpler(&self) -> Vec<Case> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            change(&mut case);
            let has_guest = case.of(Part::Guest).next().is_some();
            case.listed |= has_guest;
            if case != *self && case.of(Part::App).next().is_some() {
                all.push(case);
            }
        };
        for place in 0..self.members.len() {
            with(&|case| {
                let name = case.members.remove(place).name;
                let is_about = |fault: &Fault| matches!(fault, Fault::Crash(who, _) | Fault::Unhealthy(who) | Fault::Image(who) if *who == name);
                case.faults.retain(|(_, fault)| !is_about(fault));
                case.late.retain(|(_, fault)| !is_about(fault));
                case.gaps.remove(place);
            });
        }
        for place in 0..self.faults.len() {
            with(&|case| {
                case.faults.remove(place);
            });
        }
        for place in 0..self.late.len() {
            with(&|case| {
                case.late.remove(place);
            });
        }
        with(&|case| case.deleted.1 = Deletion::Usual);
        with(&|case| case.grace_policy = GracePolicy::Shared);
        with(&|case| case.policy = RestartPolicy::Always);
        with(&|case| case.grace = 10);
        with(&|case| case.mode = "Auto");
        with(&|case| case.parallel = false);
        with(&|case| case.ordered = false);
        with(&|case| case.listed = true);
        for place in 0..self.absent.len() {
            with(&|case| {
                case.absent.remove(place);
            });
        }
        with(&|case| case.breaks_off = false);
        with(&|case| case.tick = 500);
        with(&|case| case.clean_up = 20);
        with(&|case| {
            let places = 0..case.gaps.len() as u64;
            case.gaps = places.map(|n| n * 10).collect();
        });
        for sooner in [5_000, 30_000] {
            with(&|case| case.deleted.0 = case.deleted.0.min(sooner));
        }
        for place in 0..self.members.len() {
            with(&|case| {
                let member = &mut case.members[place];
                *member = Member::well(member.name, member.part);
            });
            with(&|case| case.members[place].restart = None);
            with(&|case| case.members[place].cap = None);
            with(&|case| case.members[place].probed = false);
            with(&|case| case.members[place].unwell = None);
            with(&|case| case.members[place].hook = None);
            with(&|case| case.members[place].pre_stop = None);
            with(&|case| case.members[place].post_start = None);
            with(&|case| case.members[place].post_starts_fail = 0);
            with(&|case| case.members[place].stop_signal = None);
            with(&|case| case.members[place].essential = false);
            with(&|case| case.members[place].optional = false);
            with(&|case| case.members[place].again = 0);
            with(&|case| case.members[place].pull = 0);
            with(&|case| case.members[place].restarts_all = false);
            with(&|case| case.members[place].then = None);
            with(&|case| case.members[place].behaviors.truncate(1));
            for behavior in 0..self.members[place].behaviors.len() {
                with(&|case| case.members[place].behaviors[behavior].ready = 0);
                with(&|case| case.members[place].behaviors[behavior].ends = None);
                with(&|case| case.members[place].behaviors[behavior].stops = Some(20));
                with(&|case| case.members[place].behaviors[behavior].code = 0);
            }
        }
        all
    }
}
