//! Tests on a real cluster of one node; `scripts/test-kubernetes` runs them.
//!
//! One cluster serves all cases: those that only make pods run some at a time, and after them, one by one,
//! those that restart it, fill its memory or change it for all. Those of the installer have another one,
//! without usher. Each case has a namespace and a directory of its own. A case is named by its function;
//! words given as arguments choose those whose name contains one of them, and `--test-threads N` says how
//! many run at a time.

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
mod ours;
mod pod;
mod resources;
mod restarts;
mod settings;
mod starting;
mod stopping;
mod traffic;
mod upstream;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use cluster::{Cluster, Node, held};
use pod::Case;
use settings::Programs;

/// A case: what it is called, and what it does.
struct Named {
    name: &'static str,
    run: fn(&Case),
    needs: Needs,
}

/// What a case cannot do without.
enum Needs {
    Nothing,
    /// What Kubernetes has had since this version.
    Since(u32, u32),
    /// A node of its own, with systemd, cgroup v2, a current kernel and all rights.
    Guest,
    /// A runc that knows them, and a kubelet that has them without being told.
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

/// Before there are no matchConditions.
const WEBHOOK: Needs = Since(1, 28);
/// With an injector of native sidecars.
const INJECTOR: Needs = Since(1, 29);

/// Beside others.
const CASES: &[Named] = cases![
    starting::sidecars_start_before_apps,
    starting::an_app_that_is_listed_first_waits,
    starting::sidecars_start_after_the_init_phase,
    starting::sidecars_start_among_the_init_containers,
    starting::apps_start_together_after_the_init_containers,
    starting::without_annotations_all_is_as_under_runc,
    starting::what_is_wrong_with_an_annotation_is_told,
    starting::an_init_container_that_fails_is_run_again,
    starting::a_native_init_container_runs_beside_annotated_sidecars,
    starting::a_debug_container_is_a_guest,
    starting::a_sidecar_that_ends_is_started_again,
    starting::native_sidecars_work_as_under_runc: Since(1, 29),
    starting::a_recursive_read_only_mount_is_one: Since(1, 29),
    starting::a_container_is_resized_in_place: Since(1, 33),
    starting::a_pod_in_a_user_namespace_starts_in_order: UserNamespaces,
    starting::an_image_is_a_volume: Since(1, 35),
    traffic::a_sidecar_is_reached_until_the_apps_have_ended,
    traffic::a_sidecar_that_is_not_ready_has_no_endpoint,
    traffic::a_port_of_a_pod_is_forwarded,
    stopping::apps_end_before_sidecars,
    stopping::a_shorter_grace_period_is_kept,
    stopping::a_forced_deletion_leaves_nothing,
    stopping::an_evicted_pod_ends_in_order,
    stopping::a_pod_that_is_rolled_over_ends_in_order,
    stopping::another_stop_signal_is_delivered,
    stopping::a_pods_own_stop_signal_is_delivered: Since(1, 36),
    stopping::termination_hooks_come_first,
    stopping::an_unhealthy_app_is_restarted_alone,
    stopping::an_unhealthy_sidecar_is_restarted_alone,
    stopping::an_app_and_a_sidecar_that_are_unhealthy_are_both_restarted,
    jobs::a_job_is_complete_when_its_apps_are,
    jobs::a_job_on_failure_is_complete_when_its_apps_have_succeeded,
    jobs::a_job_fails_when_its_app_does,
    jobs::a_sidecar_that_ends_is_started_again_in_place,
    jobs::a_pod_whose_sidecar_failed_has_failed,
    defers::they_run_in_order_around_the_apps_end,
    defers::they_run_when_a_pod_is_evicted,
    defers::they_run_when_a_stateful_set_is_scaled_down,
    defers::they_run_when_a_stateful_set_is_updated,
    defers::one_that_fails_does_not_stop_the_sequence,
    defers::one_that_is_to_succeed_is_run_again,
    defers::one_that_hangs_is_the_last,
    defers::they_do_not_wait_for_pre_stop_handlers,
    defers::a_forced_deletion_runs_none,
    defers::an_app_that_is_restarted_runs_none,
    defers::a_job_runs_them_when_its_app_has_ended,
    defers::one_whose_probe_succeeds_gets_more_time,
    defers::one_at_work_gets_more_time,
    restarts::an_app_that_a_rule_restarts_runs_when_the_end_is_over: Since(1, 34),
    resources::a_pods_overhead_is_kept: Since(1, 23),
    resources::a_limit_ranges_defaults_apply,
    resources::a_pod_grows_and_shrinks_with_a_container: Since(1, 33),
    resources::a_pods_own_resources_are_kept: Since(1, 34),
    node::a_static_pod_starts_and_ends_in_order,
    node::pressure_is_measured: Guest,
    examples::mesh,
    examples::log_forwarder,
    examples::job,
    examples::training,
    examples::database,
    examples::leader,
];

/// With the cluster to themselves.
const ALONE: &[Named] = cases![
    starting::a_pod_starts_while_the_api_server_is_down,
    stopping::a_pod_of_a_node_that_goes_down_ends_in_order: Guest,
    defers::they_run_on_while_kubelet_is_restarted,
    defers::they_run_on_while_containerd_is_restarted,
    restarts::kubelet_restarted_while_an_init_container_runs,
    restarts::kubelet_restarted_while_sidecars_start,
    restarts::kubelet_restarted_while_a_pod_runs,
    restarts::kubelet_restarted_while_a_pod_ends,
    restarts::containerd_restarted_while_an_init_container_runs,
    restarts::containerd_restarted_while_sidecars_start,
    restarts::containerd_restarted_while_a_pod_runs,
    restarts::containerd_restarted_while_a_pod_ends,
    restarts::all_containers_are_restarted_by_a_rule: Since(1, 36),
    restarts::a_node_that_was_switched_off_starts_its_pods_in_order,
    resources::systemd_does_not_undo_a_pods_size: Guest,
    memory::scores_of_a_guaranteed_pod_are_below_zero: Guest,
    memory::a_sidecar_is_not_the_first_when_its_pods_memory_runs_out: Guest,
    memory::a_sidecar_is_not_the_first_when_the_nodes_memory_runs_out: Guest,
    memory::what_kubelet_says_of_memory_holds: Guest,
    memory::a_pod_that_is_evicted_for_memory_ends_in_order: Guest,
    admission::a_job_with_one_annotation_behaves_as_with_all: WEBHOOK,
    admission::what_the_shim_would_refuse_is_refused_when_it_is_applied: WEBHOOK,
    admission::while_it_is_down_only_pods_that_need_it_wait: WEBHOOK,
    admission::its_certificate_is_renewed_while_pods_are_created: WEBHOOK,
    admission::a_certificate_of_cert_managers_is_served_and_renewed: WEBHOOK,
    admission::replicas_are_killed_in_turn_while_pods_are_created: WEBHOOK,
    admission::a_rollout_of_it_refuses_nothing: WEBHOOK,
    admission::a_job_with_an_injected_proxy_is_complete: INJECTOR,
    admission::a_job_whose_proxy_was_not_injected_runs: WEBHOOK,
    admission::native_init_containers_and_sidecars_beside_ours: INJECTOR,
    admission::a_proxy_that_the_node_knows_needs_no_annotation: INJECTOR,
    admission::it_has_no_right_that_it_does_not_need: WEBHOOK,
    kubectl::pods_are_seen_wherever_they_are,
    kubectl::the_role_is_enough_and_who_has_it_not_is_told_what_is_missing,
    kubectl::a_node_that_does_not_answer_does_not_keep_the_others,
    kubectl::what_is_executed_on_a_node_can_only_look,
];

/// On a node that usher is not installed on: each leaves it so.
const INSTALLER_CASES: &[Named] = cases![
    installer::a_node_gets_usher_and_is_left_as_it_was,
    installer::pods_go_on_when_it_is_applied_again_or_brings_other_programs,
    installer::the_runtime_is_not_removed_while_pods_use_it,
    installer::what_stays_on_a_node_has_no_rights_there,
    installer::the_installer_changes_no_other_node,
    installer::what_only_calls_itself_kubelet_is_not_believed,
];

/// How many cases run beside each other if nothing else is said.
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
        eprintln!("no cluster was named: these tests are run by scripts/test-kubernetes");
        return ExitCode::FAILURE;
    };
    if words.iter().any(|word| word == "--figures") {
        let cluster = start(Node::WithUsher);
        figures::print(&cluster);
        load::print(&cluster);
        return ExitCode::SUCCESS;
    }
    let (threads, words) = match &words[..] {
        [option, number, words @ ..] if option == "--test-threads" => {
            (number.parse().expect("a number of threads"), words)
        }
        words => (THREADS, words),
    };
    let choose = |cases: &'static [Named]| -> Vec<&Named> {
        let is_chosen = |case: &&Named| {
            case.needs.are_met_by(&programs)
                && (words.is_empty() || words.iter().any(|word| case.name.contains(&**word)))
        };
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

/// The names of those that have failed.
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
