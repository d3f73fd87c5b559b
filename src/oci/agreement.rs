//! Tests that the shim reads and rewrites bundles in agreement with `oci-spec`, the Rust
//! ecosystem's model of bundles.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{
    HookBuilder, HooksBuilder, LinuxBuilder, LinuxCpuBuilder, LinuxMemoryBuilder,
    LinuxNamespaceBuilder, LinuxNamespaceType, LinuxResources, LinuxResourcesBuilder, MountBuilder,
    Process, ProcessBuilder, Spec, SpecBuilder,
};
use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::bundle::{Bundle, CONFIG};
use super::config::{process, set_oom_score};
use usher_core::sizing::{Bytes, Limit, Millicores, Size};
use usher_engine::{Namespaces, Resources};

const NAMESPACES: [LinuxNamespaceType; 8] = [
    LinuxNamespaceType::Mount,
    LinuxNamespaceType::Cgroup,
    LinuxNamespaceType::Uts,
    LinuxNamespaceType::Ipc,
    LinuxNamespaceType::User,
    LinuxNamespaceType::Pid,
    LinuxNamespaceType::Network,
    LinuxNamespaceType::Time,
];

/// A path or name, including characters that JSON escapes.
fn word() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9/._:é\"\\\\ -]{1,16}"
}

prop_compose! {
    fn resources()(
        shares in option::of(2_u64..300_000),
        quota in option::of(-1_i64..1_000_000),
        period in option::of(1_000_u64..1_000_000),
        limit in option::of(-1_i64..1 << 50),
        swap in option::of(-1_i64..1 << 50),
    ) -> LinuxResources {
        let (mut cpu, mut memory) = (LinuxCpuBuilder::default(), LinuxMemoryBuilder::default());
        if let Some(shares) = shares { cpu = cpu.shares(shares) }
        if let Some(quota) = quota { cpu = cpu.quota(quota) }
        if let Some(period) = period { cpu = cpu.period(period) }
        if let Some(limit) = limit { memory = memory.limit(limit) }
        if let Some(swap) = swap { memory = memory.swap(swap) }
        LinuxResourcesBuilder::default()
            .cpu(cpu.build().unwrap())
            .memory(memory.build().unwrap())
            .build()
            .unwrap()
    }
}

prop_compose! {
    fn a_process()(
        args in vec(word(), 1..4),
        terminal in any::<bool>(),
        score in option::of(-1000..=1000),
        no_new_privileges in any::<bool>(),
    ) -> Process {
        let mut process = ProcessBuilder::default().args(args).terminal(terminal).no_new_privileges(no_new_privileges);
        if let Some(score) = score { process = process.oom_score_adj(score) }
        process.build().unwrap()
    }
}

prop_compose! {
    /// Configurations in which some fields vary; all other fields have the defaults of `oci-spec`.
    fn specs()(
        annotations in hash_map(word(), word(), 0..5),
        mounts in vec((word(), word()), 0..5),
        namespaces in vec((0..NAMESPACES.len(), option::of(word())), 0..8),
        cgroups_path in option::of(word()),
        resources in option::of(resources()),
        hooks in option::of((0_usize..2, 0_usize..2)),
        process in a_process(),
    ) -> Spec {
        let mounts: Vec<_> = mounts.into_iter().map(|(to, from)| {
            MountBuilder::default().destination(to).source(from).build().unwrap()
        }).collect();
        let namespaces: Vec<_> = namespaces.into_iter().map(|(kind, path)| {
            let namespace = LinuxNamespaceBuilder::default().typ(NAMESPACES[kind]);
            match path {
                Some(path) => namespace.path(path),
                None => namespace,
            }.build().unwrap()
        }).collect();
        let mut linux = LinuxBuilder::default().namespaces(namespaces);
        if let Some(path) = cgroups_path { linux = linux.cgroups_path(path) }
        if let Some(resources) = resources { linux = linux.resources(resources) }
        let mut spec = SpecBuilder::default()
            .annotations(annotations)
            .mounts(mounts)
            .process(process)
            .linux(linux.build().unwrap());
        if let Some((poststart, poststop)) = hooks {
            let hook = HookBuilder::default().path("/bin/true").build().unwrap();
            let hooks = HooksBuilder::default()
                .poststart(vec![hook.clone(); poststart])
                .poststop(vec![hook; poststop]);
            spec = spec.hooks(hooks.build().unwrap());
        }
        spec.build().unwrap()
    }
}

/// Adds unknown fields, as a later version of the specification may have them, to the document, its
/// process and its `linux` object.
fn with_unknown_fields(spec: &Spec) -> Value {
    let mut config = serde_json::to_value(spec).unwrap();
    let new = json!({"a": [1, 2.5e3, null], "oomScoreAdj": 3});
    config["new"] = new.clone();
    config["process"]["new"] = new.clone();
    config["linux"]["new"] = new;
    config
}

fn in_a_bundle(config: &Value) -> tempfile::TempDir {
    let bundle = tempfile::tempdir().unwrap();
    fs::write(bundle.path().join(CONFIG), config.to_string()).unwrap();
    bundle
}

fn written(bundle: &Path) -> Value {
    serde_json::from_slice(&fs::read(bundle.join(CONFIG)).unwrap()).unwrap()
}

fn name(kind: LinuxNamespaceType) -> String {
    let name = serde_json::to_value(kind).unwrap();
    name.as_str().unwrap().to_owned()
}

/// The requests and limits that the shim should read from these resources.
fn size(resources: Option<&LinuxResources>) -> Size {
    let mut size = Size::UNLIMITED;
    let cpu = resources.and_then(|it| it.cpu().as_ref());
    if let Some(shares) = cpu.and_then(|cpu| cpu.shares()) {
        let shares = if shares == 2 { 0 } else { shares };
        size.requests.cpu = Millicores((shares * 1000).div_ceil(1024));
    }
    if let Some(quota @ 1..) = cpu.and_then(|cpu| cpu.quota()) {
        let period = cpu.and_then(|cpu| cpu.period()).unwrap_or(100_000);
        size.limits.cpu = Limit::Of(Millicores((quota.unsigned_abs() * 1000).div_ceil(period)));
    }
    let memory = resources.and_then(|it| it.memory().as_ref());
    if let Some(limit @ 1..) = memory.and_then(|memory| memory.limit()) {
        size.limits.memory = Limit::Of(Bytes(limit.unsigned_abs()));
    }
    size
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_read_the_same_facts(spec in specs()) {
        let bundle = in_a_bundle(&with_unknown_fields(&spec));
        let read = Bundle::read(bundle.path()).unwrap();

        let annotations: HashMap<_, _> = read.annotations.clone().into_iter().collect();
        prop_assert_eq!(Some(&annotations), spec.annotations().as_ref());
        let linux = spec.linux().as_ref().unwrap();
        let namespaces: Vec<_> = linux.namespaces().iter().flatten().map(|it| {
            let path = it.path().clone().unwrap_or_default();
            (name(it.typ()), path.display().to_string())
        }).collect();
        let ours: Vec<_> = read.namespaces().map(|(kind, path)| (kind.to_owned(), path.to_owned())).collect();
        prop_assert_eq!(ours, namespaces);
        let mut own = linux.namespaces().iter().flatten();
        let has_own = own.any(|it| it.typ() == LinuxNamespaceType::Pid && it.path().is_none());
        prop_assert_eq!(read.has_own_pid_namespace(), has_own);
        prop_assert_eq!(read.oom_score(), spec.process().as_ref().unwrap().oom_score_adj());
        prop_assert_eq!(read.cgroups_path().map(PathBuf::from), linux.cgroups_path().clone());
        prop_assert_eq!(read.resources().change(Size::UNLIMITED), size(linux.resources().as_ref()));
        for mount in spec.mounts().iter().flatten() {
            let destination = mount.destination().to_str().unwrap();
            let mut same = spec.mounts().iter().flatten().rev();
            // The test compares the paths as text, because `Path` treats "a/" and "a" as equal.
            let last = same.find(|it| it.destination().to_str() == Some(destination)).unwrap();
            prop_assert_eq!(read.mount_source(destination), last.source().as_deref());
        }
        let hooks = spec.hooks().as_ref();
        let has = |hooks: Option<&Vec<_>>| hooks.is_some_and(|hooks| !hooks.is_empty());
        prop_assert_eq!(read.has_poststart_hooks(), has(hooks.and_then(|it| it.poststart().as_ref())));
        prop_assert_eq!(read.has_poststop_hooks(), has(hooks.and_then(|it| it.poststop().as_ref())));
    }

    #[test]
    fn setting_an_oom_score_changes_nothing_else(spec in specs(), score in -1000..=1000) {
        let before = with_unknown_fields(&spec);
        let bundle = in_a_bundle(&before);
        set_oom_score(bundle.path(), score).unwrap();

        let mut process = spec.process().clone().unwrap();
        process.set_oom_score_adj(Some(score));
        let mut expected = spec;
        expected.set_process(Some(process));
        let after = written(bundle.path());
        prop_assert_eq!(serde_json::from_value::<Spec>(after.clone()).unwrap(), expected);
        let mut unchanged = before;
        unchanged["process"]["oomScoreAdj"] = score.into();
        prop_assert_eq!(after, unchanged);
    }

    #[test]
    fn a_command_has_the_programs_settings_without_a_terminal(spec in specs(), argv in vec(word(), 1..4)) {
        let config = with_unknown_fields(&spec);
        let bundle = in_a_bundle(&config);
        let made = process(bundle.path(), &argv).unwrap();

        let mut expected = spec.process().clone().unwrap();
        expected.set_args(Some(argv)).set_terminal(Some(false)).set_console_size(None);
        prop_assert_eq!(serde_json::from_slice::<Process>(&made).unwrap(), expected);
        let made: Value = serde_json::from_slice(&made).unwrap();
        prop_assert_eq!(&made["new"], &config["process"]["new"]);
    }

    #[test]
    fn both_read_the_same_size_from_an_update(resources in resources()) {
        let json = serde_json::to_vec(&resources).unwrap();
        let ours = Resources::parse(&json).change(Size::UNLIMITED);
        prop_assert_eq!(ours, size(Some(&resources)));
    }
}

#[test]
fn each_type_of_namespace_of_the_model_is_known() {
    let own = i32::try_from(std::process::id()).unwrap();
    for kind in NAMESPACES {
        let path = format!("/proc/self/ns/{kind}");
        let named = [(name(kind), path)];
        let named = named
            .iter()
            .map(|(kind, path)| (kind.as_str(), path.as_str()));
        let named = Namespaces::named(named, None).unwrap();
        assert_ne!(named, Namespaces::default(), "{kind} is unknown");
        assert!(named.hold(own).is_ok(), "{kind}");
    }
}

/// Shows two of the reasons why the shim does not use `oci-spec`.
#[test]
fn the_model_rejects_unknown_values_and_drops_unknown_fields() {
    let of_tomorrow =
        json!({"ociVersion": "9.0.0", "linux": {"namespaces": [{"type": "weather"}]}});
    assert!(serde_json::from_value::<Spec>(of_tomorrow.clone()).is_err());
    let bundle = in_a_bundle(&of_tomorrow);
    let read = Bundle::read(bundle.path()).unwrap();
    assert_eq!(read.namespaces().next(), Some(("weather", "")));

    let config = with_unknown_fields(&Spec::default());
    let read: Spec = serde_json::from_value(config.clone()).unwrap();
    assert_ne!(serde_json::to_value(read).unwrap(), config);
}

#[test]
fn the_model_takes_many_times_the_memory() {
    // Variables with which kubelet announces services to a container.
    let service = |number| format!("A_SERVICE_{number}_PORT=tcp://10.0.0.1:443");
    let process = ProcessBuilder::default().env((0..100).map(service).collect::<Vec<_>>());
    let spec = SpecBuilder::default().process(process.build().unwrap());
    let config = with_unknown_fields(&spec.build().unwrap()).to_string();
    let peak = |read: fn(&str)| allocation_counter::measure(|| read(&config)).bytes_max;
    let ours = peak(|config| drop(serde_json::from_str::<Bundle>(config).unwrap()));
    let models = peak(|config| drop(serde_json::from_str::<Spec>(config).unwrap()));
    assert!(ours * 5 < models, "{ours} and {models} bytes");
}
