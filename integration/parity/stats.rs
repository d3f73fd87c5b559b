//! Metrics of containers.

use std::collections::BTreeMap;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use containerd_shim_protos::api::{Empty, PauseRequest};
use containerd_shim_protos::cgroups::metrics::Metrics as V1;
use containerd_shim_protos::cgroups_v2::metrics::Metrics as V2;
use containerd_shim_protos::protobuf::text_format::print_to_string_pretty;
use containerd_shim_protos::protobuf::{Message, MessageDyn};
use nix::sys::stat::{major, minor};
use serde_json::{Value, json};
use ttrpc::proto::Code;

use super::both;
use crate::harness::{
    BareShim, Containerd, PATIENCE, REFERENCE, TaskApi, eventually, oci_runtime, runtime_under_test,
};

/// Paths and values of the metrics' fields, without fields that have no value.
type Fields = BTreeMap<String, String>;

const MEMORY_LIMIT: u64 = 64 << 20;

/// A script that uses disk, memory and CPU for less than a second.
const WORK: &str = "dd if=/dev/zero of=/shared/block bs=65536 count=64 conv=fsync; \
    i=0; while test $i -lt 100000; do i=$((i+1)); done; \
    touch /shared/up; exec sleep 1000";

/// Fields that are zero in some runs.
const VARYING: &[&str] = &[
    // Fields of cgroup v1.
    "rss",
    "total_rss",
    "active_anon",
    "total_active_anon",
    "inactive_anon",
    "total_inactive_anon",
    "dirty",
    "total_dirty",
    "writeback",
    "total_writeback",
    "mapped_file",
    "total_mapped_file",
    "pg_maj_fault",
    "total_pg_maj_fault",
    "kernel",
    "throttled_periods",
    "throttled_time",
    "active_file",
    "total_active_file",
    // Fields of cgroup v2.
    "thp_fault_alloc",
    "rbytes",
    "rios",
    "file_dirty",
    "file_writeback",
    "file_mapped",
    "pgmajfault",
    "nr_throttled",
    "throttled_usec",
    "pgactivate",
    "pgrefill",
    "pgscan",
    "pgsteal",
    "workingset_refault",
    "workingset_activate",
    "workingset_nodereclaim",
];

/// Fields that the shims of older versions of containerd do not report. Some are missing before
/// 1.7, some also in later versions.
const MORE: &[&str] = &[
    "psi",
    "max_usage",
    "swap_max_usage",
    "nr_bursts",
    "burst_usec",
    "oom_group_kill",
    "failcnt",
];

/// Fields that do not change while the container runs.
const STATIC: &[&str] = &[
    "limit",
    "usage_limit",
    "swap_limit",
    "hierarchical_memory_limit",
    "hierarchical_swap_limit",
    "pagesize",
    "device",
    "major",
    "minor",
    "op",
];

/// Disk operations that cgroup v1 counts for the container in every run. The counts of others are
/// zero in some runs: reads may come from memory, and writes may reach the disk later.
const SURE_OPERATIONS: [&str; 2] = ["[Write]", "[Total]"];

/// True if the field is zero in some runs.
fn is_varying(field: &str) -> bool {
    let of_operation = field.strip_suffix(".value");
    VARYING.contains(&name(field))
        || field.contains(".psi.")
        || of_operation.is_some_and(|entry| !SURE_OPERATIONS.iter().any(|op| entry.ends_with(op)))
}

/// The last part of a field's path.
fn name(field: &str) -> &str {
    field.rsplit('.').next().unwrap_or(field)
}

#[track_caller]
fn stats(api: &TaskApi) -> (String, Fields) {
    let any = api.stats("a").expect("Stats").stats.unwrap();
    // containerd's own shim lists the sizes of huge pages in random order.
    let fields = match any.type_url.as_str() {
        "io.containerd.cgroups.v1.Metrics" => {
            let mut metrics = V1::parse_from_bytes(&any.value).expect("metrics");
            metrics.hugetlb.sort_by_key(|size| size.pagesize.clone());
            fields(&metrics)
        }
        "io.containerd.cgroups.v2.Metrics" => {
            let mut metrics = V2::parse_from_bytes(&any.value).expect("metrics");
            metrics.hugetlb.sort_by_key(|size| size.pagesize.clone());
            fields(&metrics)
        }
        other => panic!("metrics of an unknown type {other}"),
    };
    (any.type_url, fields)
}

fn fields(metrics: &dyn MessageDyn) -> Fields {
    let mut fields = Fields::new();
    let mut path: Vec<String> = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for line in print_to_string_pretty(metrics).lines() {
        let line = line.trim();
        if let Some(name) = line.strip_suffix(" {") {
            // Messages of the same name form a list. The second and later ones get a number.
            path.push(name.to_owned());
            let count = seen.entry(path.join(".")).or_default();
            *count += 1;
            if *count > 1
                && let Some(last) = path.last_mut()
            {
                *last = format!("{name}[{count}]");
            }
            fields.insert(path.join("."), String::new());
        } else if line == "}" {
            path.pop();
        } else if let Some((name, value)) = line.split_once(": ") {
            // The order of disk operations varies. So name each entry after its operation, and not
            // after its number in the list.
            if name == "op"
                && let Some(last) = path.last_mut()
            {
                let list = last.split('[').next().unwrap_or_default();
                *last = format!("{list}[{}]", value.trim_matches('"'));
            }
            let at = path.iter().map(String::as_str).chain([name]);
            let values = fields.entry(at.collect::<Vec<_>>().join(".")).or_default();
            // The values of a list are joined, with spaces between them.
            *values = format!("{values} {value}").trim().to_owned();
        }
    }
    fields
}

/// Sets a limit for every resource. The limit for the disk makes the kernel count disk operations.
fn limits(host: &Containerd, config: &mut Value) {
    let resources = &mut config["linux"]["resources"];
    resources["memory"] = json!({ "limit": MEMORY_LIMIT });
    resources["pids"] = json!({ "limit": 77 });
    resources["cpu"] = json!({ "shares": 512, "quota": 20_000, "period": 10_000 });
    let disk = std::fs::metadata(host.shared_dir())
        .expect("the directory")
        .st_dev();
    if major(disk) != 0 {
        let rate = json!([{ "major": major(disk), "minor": minor(disk), "rate": 1_u64 << 40 }]);
        resources["blockIO"] = json!({ "throttleWriteBpsDevice": rate });
    }
}

fn has_cgroup(host: &Containerd) -> bool {
    let places = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
    let place = |root: &Path| root.join(&host.namespace).join("a");
    places.into_iter().any(|root| place(root).exists())
}

/// The metrics that the shim reports when the container has done its work.
#[track_caller]
fn figures_of_work(runtime: &str) -> (String, Fields) {
    let host = Containerd::start();
    let script = ["/bin/sh", "-c", WORK];
    let shim = BareShim::start(&host, runtime, "a", &script, |c| limits(&host, c));
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    let up = host.shared_dir().join("up");
    eventually("the program has done its work", PATIENCE, || up.exists());
    // After the work only the final `sleep` remains.
    eventually("only one process is left", PATIENCE, || {
        stats(&api).1.get("pids.current").is_some_and(|n| n == "1")
    });
    stats(&api)
}

#[test]
fn our_metrics_have_every_field_of_the_reference() {
    let (url, ours) = figures_of_work(&runtime_under_test());
    let (expected, reference) = figures_of_work(REFERENCE);
    assert_eq!(url, expected);
    let set = |fields: &Fields| -> Vec<String> {
        let fields = fields.keys().filter(|field| {
            let names = || {
                field
                    .split('.')
                    .map(|name| name.split('[').next().unwrap_or(name))
            };
            !is_varying(field) && !names().any(|name| MORE.contains(&name))
        });
        fields.cloned().collect()
    };
    assert_eq!(set(&ours), set(&reference), "left: ours");
    for (field, expected) in &reference {
        let Some(value) = ours.get(field) else {
            assert!(is_varying(field), "{field} is {expected} in the reference");
            continue;
        };
        if STATIC.contains(&name(field)) {
            assert_eq!(value, expected, "{field}");
        }
        // Both runs do the same work, so each value must be similar in both: at most eight times as
        // high.
        if let (Ok(value), Ok(expected)) = (value.parse::<u128>(), expected.parse::<u128>())
            && !is_varying(field)
        {
            let alike = value <= expected * 8 && expected <= value * 8;
            assert!(alike, "{field} is {value}, and {expected} in the reference");
        }
    }
    let limit = MEMORY_LIMIT.to_string();
    assert!(ours.values().any(|value| *value == limit), "{ours:?}");
}

#[test]
fn metrics_are_reported_in_every_state() {
    let seen = both(|host, runtime| {
        let script = ["/bin/sh", "-c", WORK];
        let shim = BareShim::start(host, runtime, "a", &script, |c| limits(host, c));
        let api = shim.api();
        api.create(&shim.create_request()).expect("Create");
        let created = stats(&api).1;
        api.start("a", "").expect("Start");
        let up = host.shared_dir().join("up");
        eventually("the program has done its work", PATIENCE, || up.exists());
        let pause = PauseRequest {
            id: "a".into(),
            ..Default::default()
        };
        api.call::<Empty>("Pause", &pause).expect("Pause");
        let paused = stats(&api).1;
        api.call::<Empty>("Resume", &pause).expect("Resume");
        api.kill("a", "", 9, false).expect("Kill");
        api.wait("a", "").expect("Wait");
        if !host.is_reference() {
            // Our shim removes the cgroup when the container has exited. Afterwards it still
            // reports the last metrics.
            eventually("the container's cgroup is gone", PATIENCE, || {
                !has_cgroup(host)
            });
        }
        let stopped = stats(&api).1;
        api.delete("a", "").expect("Delete");
        let deleted = api.stats("a").map_or_else(|(code, _)| code, |_| Code::OK);
        // Compare the configured limits, whether CPU time was used, and whether there is one
        // process.
        let told = |fields: &Fields| {
            let limits = fields
                .iter()
                .filter(|(field, _)| STATIC.contains(&name(field)));
            // Leave out disk operations: the kernel counts them only when they reach the disk.
            let limits = limits.filter(|(field, _)| !field.contains("io"));
            let used = ["cpu.usage.total", "cpu.usage_usec"].map(|f| fields.contains_key(f));
            let processes = fields.get("pids.current").map(|n| n == "1");
            let limits = limits.map(|(field, value)| format!("{field}: {value}"));
            (limits.collect::<Vec<_>>(), used.contains(&true), processes)
        };
        let states = [created, paused, stopped];
        (states.each_ref().map(told), deleted)
    });
    let ([created, paused, stopped], deleted) = seen;
    let limit = MEMORY_LIMIT.to_string();
    for (limits, used, _) in [&created, &paused, &stopped] {
        assert!(
            limits.iter().any(|told| told.ends_with(&limit)),
            "{limits:?}"
        );
        assert!(used);
    }
    let processes = [created.2, paused.2, stopped.2];
    // In a created container, runc's waiting process has several threads, and all of them are
    // counted. With other OCI runtimes this process has one thread. An exited container has no
    // process.
    let parked_has_one = oci_runtime() != "runc";
    assert_eq!(processes, [Some(parked_has_one), Some(true), None]);
    assert_eq!(deleted, Code::NOT_FOUND);
}
