//! Tests on a real cluster of one node. `scripts/test-kubernetes` runs them.
//!
//! Cases that only create pods run in parallel, on one cluster. After them, other cases run one by
//! one, because they restart parts of the cluster, fill its memory, or change its settings. Cases
//! of the installer use another cluster, without usher.
//!
//! Each case has a separate namespace and directory. A case has the name of its function. Each
//! argument selects the cases whose names contain it. `--test-threads N` limits the number of cases
//! that run at the same time.

#![allow(clippy::disallowed_methods, reason = "tests may wait")]

#[path = "../harness/mod.rs"]
mod harness;

mod admission;
mod cgroups;
mod cluster;
mod defers;
mod examples;
mod figures;
mod guest;
mod hierarchies;
mod images;
mod installer;
mod jobs;
mod kubectl;
mod load;
mod machine;
mod memory;
mod node;
mod own_images;
mod pod;
mod resources;
mod restarts;
mod settings;
mod starting;
mod stopping;
mod third_parties;
mod traffic;
mod upstream;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use cluster::{Cluster, Node, held};
use pod::Case;
use settings::Programs;

/// A test case, with its name and requirements.
struct Named {
    name: &'static str,
    run: fn(&Case),
    needs: Needs,
}

/// Requirements that the cluster has to meet for a case.
enum Needs {
    Nothing,
    /// Kubernetes of at least this major and minor version.
    Since(u32, u32),
    /// A node that is a virtual machine, with systemd, cgroup v2, a current kernel and all
    /// privileges.
    Guest,
    /// The node's runc supports user namespaces, and kubelet enables them by default.
    UserNamespaces,
}

/// A list of cases with their names.
macro_rules! cases {
    ($($module:ident::$name:ident $(: $needs:expr)?),* $(,)?) => {
        &[$(Named {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: $module::$name,
            needs: cases!(@needs $($needs)?),
        }),*]
    };
    (@needs) => { Needs::Nothing };
    (@needs $needs:expr) => { $needs };
}

use Needs::{Guest, Since, UserNamespaces};

/// Cases with the webhook need Kubernetes 1.28 or later, because the webhook's configuration uses
/// matchConditions.
const WEBHOOK: Needs = Since(1, 28);
/// Cases that inject native sidecars need Kubernetes 1.29 or later.
const INJECTOR: Needs = Since(1, 29);

/// Cases that can run at the same time as others.
const CASES: &[Named] = cases![
    starting::sidecars_start_before_apps,
    starting::an_app_listed_before_its_sidecar_waits,
    starting::sidecars_start_after_the_init_phase,
    starting::sidecars_start_among_the_init_containers,
    starting::apps_start_together_after_the_init_containers,
    starting::a_pod_without_annotations_behaves_as_under_runc,
    starting::an_invalid_annotation_is_reported_in_the_pods_events,
    starting::a_failed_init_container_runs_again,
    starting::a_native_init_container_runs_beside_annotated_sidecars,
    starting::a_debug_container_does_not_wait,
    starting::a_sidecar_that_ends_is_restarted,
    starting::native_sidecars_work_as_under_runc: Since(1, 29),
    starting::recursive_read_only_mounts_work: Since(1, 29),
    starting::a_container_is_resized_in_place: Since(1, 33),
    starting::a_pod_in_a_user_namespace_starts_in_order: UserNamespaces,
    starting::an_image_can_be_a_volume: Since(1, 35),
    traffic::a_sidecar_is_reachable_until_the_apps_have_ended,
    traffic::a_sidecar_that_is_not_ready_has_no_endpoint,
    traffic::ports_of_a_pod_can_be_forwarded,
    stopping::apps_end_before_sidecars,
    stopping::a_shorter_grace_period_is_kept,
    stopping::a_forced_deletion_leaves_nothing,
    stopping::an_evicted_pod_ends_in_order,
    stopping::a_pod_replaced_by_a_rollout_ends_in_order,
    stopping::another_stop_signal_is_delivered,
    stopping::a_pods_own_stop_signal_is_delivered: Since(1, 36),
    stopping::termination_hooks_come_first,
    stopping::an_unhealthy_app_is_restarted_alone,
    stopping::an_unhealthy_sidecar_is_restarted_alone,
    stopping::an_app_and_a_sidecar_that_are_unhealthy_are_both_restarted,
    jobs::a_job_completes_when_its_apps_do,
    jobs::an_on_failure_job_completes_when_its_apps_succeeded,
    jobs::a_job_fails_when_its_app_does,
    jobs::a_sidecar_that_ends_is_restarted_in_place,
    jobs::a_pod_with_a_failed_sidecar_has_failed,
    defers::defers_run_in_order_around_the_apps_end,
    defers::defers_run_when_a_pod_is_evicted,
    defers::defers_run_when_a_stateful_set_is_scaled_down,
    defers::defers_run_when_a_stateful_set_is_updated,
    defers::a_failed_defer_does_not_stop_the_sequence,
    defers::a_failed_defer_runs_again_if_it_has_to_succeed,
    defers::a_defer_that_hangs_is_the_last,
    defers::defers_do_not_wait_for_pre_stop_handlers,
    defers::a_forced_deletion_runs_no_defer,
    defers::a_restarted_app_runs_no_defer,
    defers::a_job_runs_its_defers_after_its_app,
    defers::a_defer_whose_probe_succeeds_gets_more_time,
    defers::a_running_defer_gets_more_time_in_intervals,
    restarts::an_app_restarted_by_a_rule_runs_after_the_termination: Since(1, 34),
    restarts::an_app_restarted_by_a_rule_that_usher_knows_keeps_its_sidecar: Since(1, 34),
    resources::a_pods_overhead_is_kept: Since(1, 23),
    resources::a_limit_ranges_defaults_apply,
    resources::a_pod_grows_and_shrinks_with_a_container: Since(1, 33),
    resources::a_pods_own_resources_are_kept: Since(1, 34),
    resources::a_pods_own_resources_are_resized_in_place: Since(1, 36),
    node::a_static_pod_starts_and_ends_in_order,
    node::pressure_is_measured: Guest,
    examples::mesh,
    examples::log_forwarder,
    examples::job,
    examples::training,
    examples::database,
    examples::leader,
];

/// Cases during which no other case may run.
const ALONE: &[Named] = cases![
    starting::a_pod_starts_while_the_api_server_is_down,
    stopping::a_pod_ends_in_order_when_its_node_shuts_down: Guest,
    defers::defers_continue_while_kubelet_restarts,
    defers::defers_continue_while_containerd_restarts,
    restarts::kubelet_restarted_while_an_init_container_runs,
    restarts::kubelet_restarted_while_sidecars_start,
    restarts::kubelet_restarted_while_a_pod_runs,
    restarts::kubelet_restarted_while_a_pod_ends,
    restarts::containerd_restarted_while_an_init_container_runs,
    restarts::containerd_restarted_while_sidecars_start,
    restarts::containerd_restarted_while_a_pod_runs,
    restarts::containerd_restarted_while_a_pod_ends,
    restarts::a_rule_restarts_all_containers_in_order: Since(1, 36),
    restarts::a_node_that_lost_power_starts_its_pods_in_order,
    resources::systemd_does_not_undo_a_pods_size: Guest,
    memory::scores_of_a_guaranteed_pod_are_below_zero: Guest,
    memory::a_sidecar_is_not_the_first_when_its_pods_memory_runs_out: Guest,
    memory::a_sidecar_is_not_the_first_when_the_nodes_memory_runs_out: Guest,
    memory::the_memory_values_reported_by_kubelet_are_right: Guest,
    memory::a_pod_that_is_evicted_for_memory_ends_in_order: Guest,
    admission::a_job_with_one_annotation_behaves_as_with_all_annotations: WEBHOOK,
    admission::objects_that_the_shim_would_refuse_are_refused_by_the_api_server: WEBHOOK,
    admission::while_the_webhook_is_down_only_pods_that_need_it_wait: WEBHOOK,
    admission::the_webhooks_certificate_is_renewed_while_pods_are_created: WEBHOOK,
    admission::a_certificate_by_cert_manager_is_served_and_renewed: WEBHOOK,
    admission::replicas_are_killed_in_turn_while_pods_are_created: WEBHOOK,
    admission::a_rollout_of_the_webhook_refuses_no_pod: WEBHOOK,
    admission::a_job_with_an_injected_proxy_completes: INJECTOR,
    admission::a_job_whose_proxy_was_not_injected_runs: WEBHOOK,
    admission::native_init_containers_and_sidecars_work_beside_ushers: INJECTOR,
    admission::a_proxy_in_the_nodes_roles_needs_no_annotation: INJECTOR,
    admission::the_webhook_has_only_the_permissions_that_it_needs: WEBHOOK,
    kubectl::pods_are_listed_on_all_nodes,
    kubectl::the_role_suffices_and_without_it_the_error_names_the_missing_permission,
    kubectl::a_silent_node_does_not_hide_the_others,
    kubectl::commands_executed_on_a_node_are_read_only,
];

/// Cases of the installer. Before and after each of them, usher is not installed on the node.
const INSTALLER_CASES: &[Named] = cases![
    installer::usher_is_installed_on_a_node_and_removed_without_a_trace,
    installer::pods_continue_when_the_daemon_set_is_applied_again_or_updated,
    installer::the_runtime_is_not_removed_while_pods_use_it,
    installer::the_container_that_stays_on_a_node_has_no_privileges,
    installer::the_installer_changes_no_other_node,
    installer::a_process_that_pretends_to_be_kubelet_is_not_trusted,
];

/// Cases with programs of other projects, which `--third-parties` runs.
const THIRD_PARTIES: &[Named] = cases![
    third_parties::certificates_are_issued_and_renewed_while_pods_are_created,
    third_parties::jobs_with_containers_injected_by_vault_complete,
    third_parties::jobs_with_a_container_injected_by_opentelemetry_complete,
];

/// Default number of cases that run at a time.
const THREADS: usize = 3;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        let all = CASES.iter().chain(ALONE).chain(INSTALLER_CASES);
        all.for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    if let [option, words @ ..] = &words[..]
        && option == "--upstream"
    {
        return upstream::run(words);
    }
    let Some(programs) = Programs::from_environment() else {
        eprintln!("no cluster is configured; run these tests by scripts/test-kubernetes");
        return ExitCode::FAILURE;
    };
    if words.iter().any(|word| word == "--figures") {
        let cluster = start(Node::WithUsher);
        figures::print(&cluster);
        load::print(&cluster);
        return ExitCode::SUCCESS;
    }
    if let [option, words @ ..] = &words[..]
        && option == "--third-parties"
    {
        return run_third_parties(words);
    }
    let (threads, words) = match &words[..] {
        [option, number, words @ ..] if option == "--test-threads" => {
            (number.parse().expect("a number of threads"), words)
        }
        words => (THREADS, words),
    };
    let choose = |cases: &'static [Named]| -> Vec<&Named> {
        let is_chosen =
            |case: &&Named| case.needs.are_met_by(&programs) && is_chosen(words, case.name);
        cases.iter().filter(is_chosen).collect()
    };
    let mut failed = Vec::new();
    for (node, cases, alone) in [
        (Node::WithUsher, CASES, ALONE),
        (Node::Bare, &[], INSTALLER_CASES),
    ] {
        let (cases, alone) = (choose(cases), choose(alone));
        if cases.is_empty() && alone.is_empty() {
            continue;
        }
        let cluster = start(node);
        failed.extend(run_side_by_side(&cluster, cases, threads));
        for case in alone {
            if !passes(&cluster, case) {
                cluster.mend();
                failed.push(case.name);
            }
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed:\n    {}", failed.join("\n    "));
    ExitCode::FAILURE
}

/// True if a name contains one of the words, or if there are no words.
fn is_chosen(words: &[String], name: &str) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(&**word))
}

/// Runs the cases with programs of other projects, and prints the figures of a rolling update. If
/// `words` is not empty, runs only the cases whose names contain one of them. The word `rollout`
/// selects the figures.
fn run_third_parties(words: &[String]) -> ExitCode {
    let cluster = start(Node::WithUsher);
    let chosen = THIRD_PARTIES
        .iter()
        .filter(|case| is_chosen(words, case.name));
    let chosen: Vec<&Named> = chosen.collect();
    if !chosen.is_empty() {
        third_parties::import_programs(&cluster);
    }
    let mut passed = true;
    for case in chosen {
        passed &= passes(&cluster, case);
    }
    if is_chosen(words, "rollout") {
        third_parties::print(&cluster);
    }
    match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs cases in parallel. Returns the names of the cases that failed.
fn run_side_by_side(
    cluster: &Cluster,
    cases: Vec<&'static Named>,
    threads: usize,
) -> Vec<&'static str> {
    let waiting = Mutex::new(cases.into_iter());
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = held(&waiting).next();
            let Some(case) = next else { break };
            if !passes(cluster, case) {
                held(&failed).push(case.name);
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    std::mem::take(&mut held(&failed))
}

fn start(node: Node) -> Cluster {
    let begin = Instant::now();
    let programs = Programs::from_environment().expect("the environment as before");
    let cluster = Cluster::start(programs, node);
    eprintln!("the cluster is up after {:.0?}", begin.elapsed());
    cluster
}

impl Needs {
    fn are_met_by(&self, programs: &Programs) -> bool {
        let on_guest = programs.node_image.is_some();
        match self {
            Needs::Nothing => true,
            Needs::Since(major, minor) => programs.version >= (*major, *minor),
            Needs::Guest => on_guest,
            Needs::UserNamespaces => programs.version >= (1, 33) && programs.has_user_namespaces(),
        }
    }
}

fn passes(cluster: &Cluster, case: &Named) -> bool {
    let begin = Instant::now();
    let name = case.name;
    let run = || (case.run)(&Case::new(cluster, name));
    let passed = catch_unwind(AssertUnwindSafe(run)).is_ok();
    let verdict = if passed { "ok" } else { "FAILED" };
    println!("test {name} ... {verdict} ({:.0?})", begin.elapsed());
    passed
}
