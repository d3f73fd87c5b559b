//! The start plan: the containers that each container waits for, and how kubelet sees its Start.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::lifecycle::LAST_APP_AFTER;
use crate::plan::{
    Check, DeferTurn, ExitCodes, GraceExtension, Host, Origin, Plan, PodSetting, Port, Probe, Role,
    Stage,
};

use crate::manifest::Pod;

use super::order::{StartOrder, few, few_joined};
use super::role;

/// The entry of a container in the start plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub container: String,
    pub role: String,
    pub origin: Origin,
    pub optional: bool,
    /// True if the manifest has no container of this name.
    pub missing: bool,
    /// Number of the start step. Containers with the same step start side by side; `None` for a
    /// container that is not ordered.
    pub step: Option<usize>,
    pub waits_for: Vec<String>,
    pub held: Held,
    /// The annotation that the author can add so that usher does not hold the container.
    pub remedy: Option<String>,
    /// The condition under which the containers that wait for this container may run. For an app:
    /// the condition under which the pod's run is complete. `None` if nothing depends on the
    /// container.
    pub done: Option<String>,
    /// The effect of the container's liveness probe, if usher runs one.
    pub liveness: Option<String>,
}

/// The way in which usher holds a container that waits for other containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Held {
    /// Not held: the container runs as soon as kubelet starts it.
    No,
    /// usher answers the Start when the container may run, if kubelet can wait for so long.
    Blocked,
    /// usher answers the Start at once, so kubelet shows the container as running while usher holds
    /// it.
    AtOnce,
    /// Held until the pod terminates.
    UntilTermination,
    /// Held until usher ends the container, because the container waits for others that kubelet
    /// creates only after this container's exit.
    InVain,
}

/// The name of the row for containers that are not in the manifest.
pub const ADDED_LATER: &str = "(added later)";

/// Makes an entry for each container of the pod, in start order.
pub fn entries(plan: &Plan, pod: &Pod) -> Vec<Entry> {
    let order = StartOrder::of(plan, pod);
    let mut entries = init_entries(&order, plan, pod);
    let mut step = entries.len();
    for Stage(names) in plan.stages() {
        step = step.saturating_add(1);
        for name in names {
            let waits = order.waits(name, order.before(name));
            entries.push(Entry {
                container: name.clone(),
                role: plan.role(name).to_string(),
                origin: plan.origin(name),
                optional: plan.is_optional(name),
                missing: pod.container(name).is_none(),
                step: Some(step),
                waits_for: few(waits.names.iter().copied()),
                held: order.held(&waits),
                remedy: None,
                done: Some(done(plan, name)),
                liveness: liveness(plan, name),
            });
        }
    }
    step = step.saturating_add(1);
    let in_role = |wanted: Role| {
        let containers = pod.spec.containers.iter();
        containers.filter(move |it| role(plan, pod, &it.name) == wanted)
    };
    let run_is_over = run_is_over(plan, pod);
    for container in in_role(Role::App) {
        let name = &container.name;
        let waits = order.waits(name, order.all());
        entries.push(Entry {
            container: name.clone(),
            role: Role::App.to_string(),
            origin: plan.origin(name),
            optional: false,
            missing: false,
            step: Some(step),
            held: order.held(&waits),
            waits_for: few(waits.names.iter().copied()),
            remedy: None,
            done: run_is_over.clone(),
            liveness: None,
        });
    }
    for container in in_role(Role::Guest) {
        entries.push(out_of_order(plan, &container.name, Role::Guest, Held::No));
    }
    for (names, turn) in [
        (plan.pre_exit(), DeferTurn::PreExit),
        (plan.post_exit(), DeferTurn::PostExit),
    ] {
        for name in names {
            let held = match pod.has_init_container(name) {
                true => Held::InVain,
                false => Held::UntilTermination,
            };
            entries.push(Entry {
                missing: pod.container(name).is_none(),
                ..out_of_order(plan, name, Role::Defer(turn), held)
            });
        }
    }
    entries
}

/// The containers in the pod's `initContainers`, except those with the role init, sidecar or defer.
fn init_entries(order: &StartOrder<'_>, plan: &Plan, pod: &Pod) -> Vec<Entry> {
    let mut entries = Vec::new();
    let native_init = native_init(plan, pod);
    for container in pod.spec.init_containers.iter() {
        let role = plan.role(&container.name);
        if !matches!(role, Role::NativeInit | Role::App | Role::Guest) {
            continue;
        }
        let done = match container.is_native_sidecar() {
            true => "when kubelet takes it for started",
            false => "when it has exited with 0",
        };
        let before = match role {
            Role::App => order.all(),
            _ => &[],
        };
        let waits = order.waits(&container.name, before);
        let held = order.held(&waits);
        entries.push(Entry {
            container: container.name.clone(),
            role: role.to_string(),
            origin: plan.origin(&container.name),
            optional: false,
            missing: false,
            step: Some(entries.len().saturating_add(1)),
            waits_for: few(waits.names.iter().copied()),
            held,
            remedy: (held != Held::No).then(|| native_init.clone()),
            done: Some(done.to_owned()),
            liveness: None,
        });
    }
    entries
}

/// The entry of a container that is added to a running pod (`kubectl debug`) and is in no list of
/// the pod's author.
pub fn added_later(plan: &Plan, pod: &Pod) -> Option<Entry> {
    let order = StartOrder::of(plan, pod);
    let waits = order.waits_of_last();
    if waits.names.is_empty() || plan.apps().is_some() {
        return None;
    }
    Some(Entry {
        container: ADDED_LATER.to_owned(),
        role: Role::App.to_string(),
        origin: Origin::Default,
        optional: false,
        missing: false,
        step: None,
        held: order.held(&waits),
        waits_for: few(waits.names.iter().copied()),
        remedy: Some(apps(plan, pod)),
        done: None,
        liveness: None,
    })
}

/// The annotation `usher/native-init` that lists the pod's own init containers, except those that
/// are in another list.
pub(super) fn native_init(plan: &Plan, pod: &Pod) -> String {
    let init = pod.spec.init_containers.iter();
    let missing = init.filter(|it| plan.origin(&it.name) != Origin::List);
    let listed = plan.native_init().iter().map(String::as_str);
    annotation(
        PodSetting::NativeInit,
        listed.chain(missing.map(|it| it.name.as_str())),
    )
}

/// The annotation `usher/apps` that lists all apps of the pod.
pub(super) fn apps(plan: &Plan, pod: &Pod) -> String {
    let containers = pod.spec.containers.iter();
    let apps = containers.filter(|it| plan.role(&it.name) == Role::App);
    annotation(PodSetting::Apps, apps.map(|it| it.name.as_str()))
}

pub(super) fn annotation<'a>(setting: PodSetting, names: impl Iterator<Item = &'a str>) -> String {
    format!("{}: {}", setting.key(), few_joined(names))
}

/// Maximum number of sets of exit codes that are shown. Apps with the same set share one entry.
const SHOWN_ENDS: usize = 4;

/// The condition under which the pod's run is complete, in words for people. `None` if the pod has
/// no app, or if kubelet restarts an app forever.
pub(super) fn run_is_over(plan: &Plan, pod: &Pod) -> Option<String> {
    let mut places: BTreeMap<ExitCodes, usize> = BTreeMap::new();
    let mut ends: Vec<(ExitCodes, Vec<&str>)> = Vec::new();
    let containers = pod.spec.containers.iter().map(|it| it.name.as_str());
    for name in containers.filter(|name| role(plan, pod, name) == Role::App) {
        let codes = final_codes(plan, name);
        if codes.is_empty() {
            return None;
        }
        let place = *places.entry(codes.clone()).or_insert(ends.len());
        match ends.get_mut(place) {
            Some((_, names)) => names.push(name),
            None => ends.push((codes, vec![name])),
        }
    }
    let all = match &ends[..] {
        [] => return None,
        [(codes, _)] => format!("the run, when all apps have {}", exited(codes)),
        several => {
            let each = several.iter().take(SHOWN_ENDS).map(|(codes, names)| {
                let names = few_joined(names.iter().copied());
                format!("{names}: {}", exited(codes))
            });
            let mut each: Vec<String> = each.collect();
            if let more @ 1.. = several.len().saturating_sub(SHOWN_ENDS) {
                each.push(format!("and {more} more"));
            }
            format!("the run, when all apps have ended ({})", each.join("; "))
        }
    };
    Some(match plan.apps() {
        Some(_) => all,
        None => format!(
            "{all} and no container was created for {} ({} makes it at once)",
            shown(LAST_APP_AFTER),
            apps(plan, pod)
        ),
    })
}

/// The exit codes after which kubelet does not create a container again.
fn final_codes(plan: &Plan, name: &str) -> ExitCodes {
    let creates_again = plan.creates_again(name);
    let codes = 0..=u8::MAX;
    codes
        .filter(|code| !creates_again(u32::from(*code)))
        .collect()
}

fn exited(codes: &ExitCodes) -> String {
    let text = codes.to_string();
    match text.strip_prefix('!') {
        _ if *codes == ExitCodes::all() => "exited".to_owned(),
        Some(others) => format!("exited with any code but {others}"),
        None => format!("exited with {text}"),
    }
}

fn out_of_order(plan: &Plan, name: &str, role: Role, held: Held) -> Entry {
    Entry {
        container: name.to_owned(),
        role: role.to_string(),
        origin: plan.origin(name),
        optional: plan.is_optional(name),
        missing: false,
        step: None,
        waits_for: Vec::new(),
        held,
        remedy: None,
        done: None,
        liveness: liveness(plan, name),
    }
}

fn done(plan: &Plan, name: &str) -> String {
    let probe = plan.container(name).startup_probe.as_ref();
    match (plan.role(name), probe) {
        (Role::Init, _) => "when it has exited with 0".to_owned(),
        (_, None) => "when its program runs".to_owned(),
        (_, Some(probe)) => self::probe(probe),
    }
}

/// The effect of a container's liveness probe.
fn liveness(plan: &Plan, name: &str) -> Option<String> {
    let probe = plan.container(name).liveness_probe.as_ref()?;
    let (what, period) = (check(probe), probe.period);
    match (plan.role(name), plan.settings().grace_extension) {
        (Role::Sidecar, _) => Some(format!(
            "is restarted in place unless {what} (asked every {period:?}, fails at {} in a row)",
            probe.failure_threshold
        )),
        (Role::Defer(_), Some(GraceExtension::Probe { max })) => Some(format!(
            "goes on past the grace period while {what} (asked every {period:?}, at most {})",
            shown(max)
        )),
        _ => None,
    }
}

/// A startup probe in words.
fn probe(probe: &Probe) -> String {
    format!(
        "when {} (asked every {:?}, at most {})",
        check(probe),
        probe.period,
        shown(longest(probe))
    )
}

/// The longest time until a startup probe has failed.
pub(super) fn longest(probe: &Probe) -> Duration {
    let checks = probe
        .longest_period()
        .saturating_mul(probe.failure_threshold);
    probe.initial_delay.saturating_add(checks)
}

/// The longest time until the startup probes of all sidecars are over, in whole seconds. Of
/// sidecars that start at the same time, only the slowest probe counts. Sidecars that start one
/// after another add up.
pub(super) fn longest_start(plan: &Plan) -> Duration {
    let of_sidecar = |name: &String| plan.container(name).startup_probe.as_ref().map(longest);
    let stages = plan.stages().iter();
    let times = stages.filter_map(|Stage(names)| names.iter().filter_map(of_sidecar).max());
    let time = times.fold(Duration::ZERO, Duration::saturating_add);
    let begun = u64::from(time.subsec_nanos() > 0);
    Duration::from_secs(time.as_secs().saturating_add(begun))
}

/// The condition that a probe tests.
fn check(probe: &Probe) -> String {
    let host = |host: &Option<Host>| match host {
        None => String::new(),
        Some(Host::Localhost) => "localhost".to_owned(),
        Some(Host::Ip(ip)) => ip.to_string(),
    };
    let port = |port: &Port| match port {
        Port::Number(number) => number.to_string(),
        Port::Name(name) => name.clone(),
    };
    match &probe.check {
        Check::Exec { command } => format!("{} succeeds", command.join(" ")),
        Check::TcpSocket { host: at, port: to } => {
            format!("{}:{} accepts connections", host(at), port(to))
        }
        Check::HttpGet(get) => format!(
            "{} {}:{}{} succeeds",
            get.scheme,
            host(&get.host),
            port(&get.port),
            get.path
        ),
        Check::Grpc { port, service } => match service.as_str() {
            "" => format!("gRPC :{port} serves"),
            service => format!("gRPC :{port} {service} serves"),
        },
    }
}

/// Formats a duration for people. A long duration is shown in whole seconds.
pub fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, rest) = (seconds / 60, seconds % 60);
    match (minutes, rest) {
        (0, _) => format!("{time:?}"),
        (_, 0) => format!("{minutes}m"),
        _ => format!("{minutes}m{rest}s"),
    }
}
