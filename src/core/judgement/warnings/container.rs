//! Warnings about one container.

use crate::lifecycle::{MIN_GRACE, RolePolicy};
use crate::manifest::{Container, Handler, Json, Pod};
use crate::plan::{ContainerPlan, ContainerSetting, Object, Plan, RestartPolicy, Role, StartMode};

use super::super::order::{StartOrder, few_joined};
use super::super::role;
use super::super::start::{Held, longest, shown};

/// All warnings about a container. `may_be_complete` is true if the pod's run can become complete:
/// each app has exit codes after which kubelet does not restart it.
pub(super) fn of(
    plan: &Plan,
    pod: &Pod,
    order: &StartOrder<'_>,
    may_be_complete: bool,
    container: &Container,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = container.name.as_str();
    let role = role(plan, pod, name);
    // The pattern names every setting, without `..`. So code with a new setting does not compile
    // until the programmer has decided on warnings about the setting.
    let ContainerPlan {
        startup_probe: _,
        restart_policy: _,
        caller_restarts: _,
        liveness_probe: _,
        termination_hook: _,
        restart: _,
        grace_period: _,
        stop_signal: _,
        resources: annotated,
    } = plan.container(name);
    match role {
        Role::App | Role::Init => warnings.extend(of_waiting(plan, pod, order, container, role)),
        Role::Sidecar => {
            warnings.extend(of_waiting(plan, pod, order, container, role));
            warnings.extend(of_sidecar(plan, pod, container));
        }
        Role::Defer(_) => warnings.extend(of_defer(plan, pod, container)),
        Role::Guest => warnings.push(
            "is in no list, so it is a guest: it starts at once, and no container waits for it"
                .to_owned(),
        ),
        Role::NativeInit => {}
    }
    warnings.extend(of_own_policy(plan, container, role));
    if may_be_complete {
        warnings.extend(of_kept_pod(container, role));
    }
    if let (Some(annotated), Some(given)) = (annotated, &container.resources)
        && given != annotated
    {
        warnings.push(format!("resources.usher/{name} differs from its resources"));
    }
    warnings
}

/// Warnings about a container that may still be held when kubelet assumes that it runs.
fn of_waiting(
    plan: &Plan,
    pod: &Pod,
    order: &StartOrder<'_>,
    container: &Container,
    role: Role,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let before = match role {
        Role::App => order.all(),
        _ => order.before(&container.name),
    };
    let waits = order.waits(&container.name, before);
    let own = pod.place_among_all(&container.name);
    let in_vain = before.iter().filter(|it| it.is_missed_at(own));
    let in_vain = few_joined(in_vain.map(|it| it.name));
    if !in_vain.is_empty() {
        warnings.push(format!(
            "is listed before {in_vain}: it does not wait for optional containers that are not created \
             yet; expected it behind {in_vain}"
        ));
    }
    let own = pod.place(&container.name);
    let later = waits.names.iter().copied();
    let later: Vec<&str> = later.filter(|name| pod.place(name) > own).collect();
    let names = few_joined(later.iter().copied());
    let when = match order.held(&waits) {
        Held::Blocked if !later.is_empty() => {
            warnings.push(format!(
                "is listed before {names}: with the start mode {} its Start waits for them, but kubelet \
                 creates them only after this Start; expected it behind them, or Auto",
                StartMode::Block
            ));
            return warnings;
        }
        Held::AtOnce if !later.is_empty() => {
            let (reads, or) = match container.readiness_probe {
                None => ("Ready", ", or a readiness probe"),
                Some(_) => ("Running", ""),
            };
            warnings.push(format!(
                "is listed before {names}: it is held and reads {reads} before it runs; \
                 expected it behind them{or}"
            ));
            String::new()
        }
        Held::AtOnce => String::new(),
        // Sidecars rarely take more than 10 s to start, but init containers often do.
        Held::Blocked if plan.settings().start_mode == StartMode::Auto => {
            let names = waits.names.iter().copied();
            let inits = few_joined(names.filter(|name| plan.role(name) == Role::Init));
            if inits.is_empty() {
                return warnings;
            }
            format!(" (when {inits} takes more than 10 s)")
        }
        Held::No | Held::Blocked | Held::UntilTermination | Held::InVain => return warnings,
    };
    for (kind, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        if asks_from_outside(probe.as_ref()) {
            warnings.push(format!(
                "its {kind} fails while it is held{when}, and kubelet kills it; expected an exec \
                 probe, which does not count then"
            ));
        }
    }
    warnings.extend(of_post_start(container, &when));
    warnings
}

/// A warning about the postStart handler of a container that may be held: kubelet runs the handler
/// as soon as the Start is answered. `None` without a handler, or if the handler only sleeps.
/// `when` continues the words "while it is held", such as " (when a takes more than 10 s)", or is
/// empty.
fn of_post_start(container: &Container, when: &str) -> Option<String> {
    let Object(Handler {
        exec,
        http_get,
        tcp_socket,
    }) = container.lifecycle.post_start?;
    if exec.is_some() {
        return Some(format!(
            "its postStart runs while it is held{when}; if it waits for the container's program, \
             it never ends"
        ));
    }
    http_get.or(tcp_socket).map(|_| {
        format!(
            "its postStart fails while it is held{when}, and kubelet kills it; expected an exec, \
             or none"
        )
    })
}

fn of_sidecar(plan: &Plan, pod: &Pod, container: &Container) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = container.name.as_str();
    let settings = plan.settings();
    match &plan.container(name).startup_probe {
        None if container.startup_probe.is_some() => warnings.push(format!(
            "has a startupProbe, which usher does not see: to usher it is started once its program \
             runs; expected startup-probe.usher/{name} as well"
        )),
        Some(probe) if longest(probe) > settings.startup_timeout => warnings.push(format!(
            "its startup probe may take {}, but containers that wait for it end after {} \
             (usher/startup-timeout); expected a shorter probe or a longer timeout",
            shown(longest(probe)),
            shown(settings.startup_timeout)
        )),
        _ => {}
    }
    let policy = pod.restart_policy().unwrap_or(settings.restart_policy);
    // Under `OnFailure`, the shim reports 143 for a sidecar that kubelet stops alone, so kubelet
    // restarts the sidecar. For this, the shim has to know the policy.
    let is_restarted = match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => settings.restart_policy == RestartPolicy::OnFailure,
        RestartPolicy::Never => false,
    };
    if container.liveness_probe.is_some() && !is_restarted {
        let instead = match plan.container(name).liveness_probe {
            None => "instead, with which usher restarts it in place",
            Some(_) => "alone",
        };
        warnings.push(format!(
            "kubelet's livenessProbe stops it for good under {policy}; expected \
             liveness-probe.usher/{name} {instead}"
        ));
    }
    warnings
}

/// Warnings about a container that is held until the pod terminates.
fn of_defer(plan: &Plan, pod: &Pod, container: &Container) -> Vec<String> {
    let mut warnings = Vec::new();
    let kubelets = pod.grace_period();
    let annotated = plan.settings().grace_period;
    if annotated.unwrap_or(kubelets).min(kubelets) <= MIN_GRACE {
        warnings.push(format!(
            "never runs when the pod is deleted: a grace period of {MIN_GRACE:?} or less counts as a \
             forced deletion; expected 3 s or more"
        ));
    }
    for (kind, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        if asks_from_outside(probe.as_ref()) {
            warnings.push(format!(
                "its {kind} fails while it is held, and kubelet kills it; expected none"
            ));
        }
    }
    if container.readiness_probe.is_some() {
        warnings.push(
            "its readinessProbe never succeeds while it is held: the pod is never Ready; expected \
             none"
                .to_owned(),
        );
    }
    warnings.extend(of_post_start(container, ""));
    warnings
}

/// Warnings about a container with restart rules of its own. The shim cannot see these rules unless
/// annotations repeat them.
fn of_own_policy(plan: &Plan, container: &Container, role: Role) -> Vec<String> {
    match role {
        Role::App | Role::Init => of_unseen_restarts(plan, container, role),
        Role::Sidecar | Role::Defer(_) => {
            of_kubelets_restarts(plan, container).into_iter().collect()
        }
        // usher never waits for the exit of a native init container, nor of a container that it
        // leaves alone.
        Role::NativeInit | Role::Guest => Vec::new(),
    }
}

/// Warnings about a container whose annotations about restarts differ from its spec.
fn of_unseen_restarts(plan: &Plan, container: &Container, role: Role) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = container.name.as_str();
    let (of_pod, annotated) = (plan.settings().restart_policy, plan.container(name));
    let counts = match role {
        Role::App => "when the run is complete",
        _ => "when it has failed for good",
    };
    let own = container.restart_policy();
    if own.unwrap_or(of_pod) != plan.restart_policy(name) {
        let key = ContainerSetting::RestartPolicy.key(name);
        warnings.push(match own {
            Some(own) => format!(
                "has its own restartPolicy {own}, which usher does not see but needs to tell {counts}; \
                 expected {key}: {own}"
            ),
            None => format!("{key} differs from its restartPolicy; expected no such annotation"),
        });
    }
    if role == Role::Init && own == Some(RestartPolicy::Never) && of_pod != RestartPolicy::Never {
        warnings.push(format!(
            "has its own restartPolicy {}: after a failure kubelet does not start it again, and \
             containers that wait for it never run; expected the pod's",
            RestartPolicy::Never
        ));
    }
    let codes = container.restart_codes();
    if codes != annotated.caller_restarts {
        let key = ContainerSetting::CallerRestarts.key(name);
        warnings.push(match codes.is_empty() {
            false => format!(
                "has restartPolicyRules, which usher does not see but needs to tell {counts}; \
                 expected {key}: \"{codes}\""
            ),
            true => {
                format!("{key} differs from its restartPolicyRules; expected no such annotation")
            }
        });
    }
    warnings
}

/// A warning about restart rules in the spec of a sidecar or defer container. usher does not see
/// these rules: it restarts such a container by the setting `restart`.
fn of_kubelets_restarts(plan: &Plan, container: &Container) -> Option<String> {
    let name = container.name.as_str();
    let of_pod = plan.settings().restart_policy;
    let field = match container.restart_policy() {
        _ if container.has_restart_rules() => "restartPolicyRules",
        Some(own) if own != of_pod => "its own restartPolicy",
        _ => return None,
    };
    let is_said = plan.container(name).restart.is_some();
    (!is_said).then(|| {
        format!("has {field}, which usher does not see; expected restart.usher/{name} instead")
    })
}

/// A warning about a container that usher does not stop when the pod's run is complete.
fn of_kept_pod(container: &Container, role: Role) -> Option<String> {
    let is_left_alone = RolePolicy::of(role).step.is_none();
    is_left_alone.then(|| {
        format!(
            "keeps the pod running after the run is complete: usher does not stop containers of role \
             {role}, so the pod ends only once it exits by itself; expected {name} in \
             usher/sidecars, unless it does",
            name = container.name
        )
    })
}

/// True if kubelet runs the probe and obeys its result even while the container is held. This
/// applies to all probes except `exec` probes.
fn asks_from_outside(probe: Option<&Json>) -> bool {
    probe.is_some_and(|probe| !probe.has("exec"))
}
