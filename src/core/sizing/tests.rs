use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

fn limited(millis: u64, bytes: u64) -> Size {
    Size::exactly(Millicores(millis), Bytes(bytes))
}

/// The first example of the proposal "Pod initialization", section "Resources": two init
/// containers, two apps.
#[test]
fn the_size_is_the_larger_of_the_largest_init_container_and_all_apps_per_resource() {
    let containers = Containers {
        starting: vec![
            Starting::Init(limited(100, GI)),
            Starting::Init(limited(50, 2 * GI)),
        ],
        apps: vec![limited(10, 1100 * MI), limited(10, 1100 * MI)],
        ..Containers::default()
    };
    assert_eq!(containers.effective(), limited(100, 2200 * MI));
}

/// The second example of the proposal "Pod initialization", section "Resources". The sizes follow
/// rules that Kubernetes adopted later: a missing request equals the limit, and a missing limit
/// means unlimited.
#[test]
fn a_limit_that_one_app_lacks_is_unlimited_for_the_pod() {
    let app = Size {
        requests: limited(10, 1100 * MI).requests,
        limits: Size::UNLIMITED.limits,
    };
    let containers = Containers {
        starting: vec![Starting::Init(limited(100, GI))],
        apps: vec![app],
        ..Containers::default()
    };
    let effective = containers.effective();
    assert_eq!(effective.requests, limited(100, 1100 * MI).requests);
    assert_eq!(effective.limits, Size::UNLIMITED.limits);
    // While the init container runs, the pod has a limit.
    assert_eq!(containers.at(Moment::Starting(0)), limited(100, GI));
}

/// KEP-753: while an init container runs, the pod's size includes only the sidecars that started
/// before this init container.
#[test]
fn an_init_container_counts_the_sidecars_started_before_it() {
    let containers = Containers {
        starting: vec![
            Starting::Init(limited(500, 0)),
            Starting::Sidecar(limited(100, 0)),
            Starting::Init(limited(450, 0)),
            Starting::Sidecar(limited(30, 0)),
        ],
        apps: vec![limited(200, 0)],
        overhead: limited(7, 0),
        ..Containers::default()
    };
    let sizes: Vec<_> = containers
        .moments()
        .map(|moment| containers.at(moment).requests.cpu.0)
        .collect();
    assert_eq!(sizes, [500, 100, 550, 130, 330, 330, 130, 130]);
    assert_eq!(containers.effective(), limited(557, 0));
}

/// Only one defer container runs at a time: a pre-exit container beside apps and sidecars, a
/// post-exit container beside the sidecars alone.
#[test]
fn defer_containers_count_one_at_a_time() {
    let containers = Containers {
        starting: vec![Starting::Sidecar(limited(10, 1))],
        apps: vec![limited(100, 2)],
        pre_exit: vec![limited(5, 40), limited(6, 30)],
        post_exit: vec![limited(200, 3), limited(1, 80)],
        ..Containers::default()
    };
    assert_eq!(containers.at(Moment::PreExit), limited(116, 43));
    assert_eq!(containers.at(Moment::PostExit), limited(210, 81));
    assert_eq!(containers.effective(), limited(210, 81));
}

#[test]
fn a_plan_has_the_containers_of_each_stage() {
    let annotations = [
        ("usher/init", "a b"),
        ("usher/sidecars", "p"),
        ("usher/startup-order", "a p b"),
        ("usher/native-init", "n"),
        (
            "resources.usher/web",
            r#"{"requests":{"cpu":"0.1"},"limits":{"memory":"1Ki"}}"#,
        ),
    ];
    let annotations: BTreeMap<_, _> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let plan = Plan::parse(&annotations).unwrap();
    let size = |name: &str| match &plan.container(name).resources {
        Some(resources) => resources.into(),
        None => limited(u64::from(name.as_bytes()[0]), 0),
    };
    let containers = Containers::of(&plan, ["web"], size);
    let [a, b, p, n] = [b'a', b'b', b'p', b'n'].map(|name| limited(name.into(), 0));
    let expected = [
        Starting::Init(n),
        Starting::Init(a),
        Starting::Sidecar(p),
        Starting::Init(b),
    ];
    assert_eq!(containers.starting, expected);
    let web = Size {
        requests: Requests {
            cpu: Millicores(100),
            memory: Bytes(1024),
        },
        limits: Limits {
            cpu: Limit::Unlimited,
            memory: Limit::Of(Bytes(1024)),
        },
    };
    assert_eq!(containers.apps, [web]);
}

fn limits<Q: std::fmt::Debug>(amount: impl Strategy<Value = Q>) -> impl Strategy<Value = Limit<Q>> {
    proptest::option::weighted(0.8, amount).prop_map(Limit::from)
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![9 => 0..1_000_u64, 1 => any::<u64>()]
}

prop_compose! {
    fn size()(
        cpu in amount(),
        memory in amount(),
        cpu_limit in limits(amount().prop_map(Millicores)),
        memory_limit in limits(amount().prop_map(Bytes)),
    ) -> Size {
        Size {
            requests: Requests { cpu: Millicores(cpu), memory: Bytes(memory) },
            limits: Limits { cpu: cpu_limit, memory: memory_limit },
        }
    }
}

fn starting() -> impl Strategy<Value = Starting> {
    (any::<bool>(), size()).prop_map(|(is_init, size)| match is_init {
        true => Starting::Init(size),
        false => Starting::Sidecar(size),
    })
}

prop_compose! {
    fn containers()(
        starting in vec(starting(), 0..5),
        apps in vec(size(), 0..4),
        pre_exit in vec(size(), 0..3),
        post_exit in vec(size(), 0..3),
        overhead in size(),
    ) -> Containers {
        Containers { starting, apps, pre_exit, post_exit, overhead }
    }
}

/// True if each request and limit of `one` is at most as large as that of `other`.
fn is_within(one: Size, other: Size) -> bool {
    one.or(other) == other
}

/// For each moment, the sizes of all containers that run at that moment.
fn sides(containers: &Containers) -> Vec<Vec<Size>> {
    let sidecars = |until: usize| {
        let starting = containers.starting.iter().take(until);
        starting.filter_map(Starting::stays).collect::<Vec<_>>()
    };
    let all = sidecars(usize::MAX);
    let with = |before: &[Size], more: &[Size]| [before, more].concat();
    let running = with(&all, &containers.apps);
    let inits = containers.starting.iter().enumerate();
    let mut sides: Vec<_> = inits
        .map(|(index, Starting::Init(size) | Starting::Sidecar(size))| {
            with(&sidecars(index), &[*size])
        })
        .collect();
    sides.push(running.clone());
    sides.extend(
        containers
            .pre_exit
            .iter()
            .map(|size| with(&running, &[*size])),
    );
    sides.extend(containers.post_exit.iter().map(|size| with(&all, &[*size])));
    sides
}

/// A copy of the pod in which the requests and limits of one container are larger.
fn grown(containers: &Containers, which: usize, by: Size) -> Containers {
    let mut grown = containers.clone();
    let starting = grown.starting.iter_mut();
    let starting = starting.map(|(Starting::Init(size) | Starting::Sidecar(size))| size);
    let mut sizes: Vec<&mut Size> = starting
        .chain(&mut grown.apps)
        .chain(&mut grown.pre_exit)
        .chain(&mut grown.post_exit)
        .chain([&mut grown.overhead])
        .collect();
    let which = which % sizes.len();
    *sizes[which] = sizes[which].plus(by);
    grown
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_moment_needs_more_than_the_effective_size(containers in containers()) {
        let effective = containers.effective();
        for side in sides(&containers) {
            prop_assert!(is_within(sum(&side), effective));
            prop_assert!(is_within(sum(&side).plus(containers.overhead), effective));
        }
    }

    #[test]
    fn the_effective_size_is_needed_at_some_moment(containers in containers()) {
        let without = Containers { overhead: Size::NOTHING, ..containers };
        let needed = sides(&without).iter().map(|side| sum(side)).fold(Size::NOTHING, Size::or);
        prop_assert_eq!(without.effective(), needed);
    }

    #[test]
    fn a_larger_container_never_makes_a_smaller_pod(
        containers in containers(), which in 0..32_usize, by in size(),
    ) {
        let grown = grown(&containers, which, by);
        for moment in containers.moments() {
            prop_assert!(is_within(containers.at(moment), grown.at(moment)));
        }
        prop_assert!(is_within(containers.effective(), grown.effective()));
    }

    #[test]
    fn only_the_order_of_what_starts_one_after_another_matters(containers in containers()) {
        let mut turned = containers.clone();
        turned.apps.reverse();
        turned.pre_exit.reverse();
        turned.post_exit.reverse();
        // Neighboring sidecars may change places, but no sidecar may pass an init container.
        for neighbours in turned.starting.chunk_by_mut(|one, other| {
            matches!((one, other), (Starting::Sidecar(_), Starting::Sidecar(_)))
        }) {
            neighbours.reverse();
        }
        prop_assert_eq!(containers.effective(), turned.effective());
        for moment in [Moment::Running, Moment::PreExit, Moment::PostExit, Moment::Sidecars] {
            prop_assert_eq!(containers.at(moment), turned.at(moment));
        }
    }

    #[test]
    fn one_container_without_a_limit_leaves_its_moments_without(
        mut containers in containers(), app in size(),
    ) {
        containers.apps.push(Size { limits: Size::UNLIMITED.limits, ..app });
        for moment in [Moment::Running, Moment::PreExit] {
            prop_assert_eq!(containers.at(moment).limits, Size::UNLIMITED.limits);
        }
    }
}
