use super::{plan, refusal};
use crate::plan::{DeferTurn, Role, Stage};

fn stage(names: &[&str]) -> Stage {
    Stage(names.iter().map(|&name| name.to_owned()).collect())
}

#[test]
fn every_list_gives_its_role() {
    let plan = plan(&[
        ("usher/init", "i"),
        ("usher/native-init", "n"),
        ("usher/sidecars", "s"),
        ("usher/apps", "a"),
        ("usher/pre-exit", "p"),
        ("usher/post-exit", "q"),
    ]);
    let roles = ["i", "n", "s", "a", "p", "q", "x"].map(|name| plan.role(name));
    let (pre, post) = (
        Role::Defer(DeferTurn::PreExit),
        Role::Defer(DeferTurn::PostExit),
    );
    assert_eq!(
        roles,
        [
            Role::Init,
            Role::NativeInit,
            Role::Sidecar,
            Role::App,
            pre,
            post,
            Role::Guest
        ]
    );
    let words = roles.map(|role| role.to_string());
    assert_eq!(
        words,
        [
            "init",
            "native-init",
            "sidecar",
            "app",
            "defer",
            "defer",
            "guest"
        ]
    );
    assert_eq!(plan.init(), ["i"]);
    assert_eq!(plan.native_init(), ["n"]);
    assert_eq!(plan.pre_exit(), ["p"]);
    assert_eq!(plan.apps().map(|apps| apps.len()), Some(1));
}

#[test]
fn without_apps_a_container_in_no_list_is_an_app() {
    let plan = plan(&[("usher/sidecars", "s")]);
    assert_eq!(plan.role("web"), Role::App);
    assert_eq!(plan.apps(), None);
}

#[test]
fn a_name_has_one_role() {
    let lists = [
        "init",
        "native-init",
        "sidecars",
        "apps",
        "pre-exit",
        "post-exit",
    ];
    for (index, first) in lists.iter().enumerate() {
        for second in lists.iter().skip(index + 1) {
            let (first, second) = (format!("usher/{first}"), format!("usher/{second}"));
            let sentence = refusal(&[(&first, "a b"), (&second, "c b")]);
            assert_eq!(
                sentence,
                format!(
                    "{second}: \"c b\" lists \"b\", and so does {first}; expected each name in one role"
                )
            );
        }
    }
}

#[test]
fn by_default_inits_start_one_by_one_and_then_all_sidecars_at_once() {
    let plan = plan(&[
        ("usher/init", "i j"),
        ("usher/sidecars", "s t"),
        ("usher/native-init", "n"),
    ]);
    assert_eq!(
        plan.stages(),
        [stage(&["i"]), stage(&["j"]), stage(&["s", "t"])]
    );
    let positions = ["i", "j", "s", "t", "n", "web"].map(|name| plan.position(name));
    assert_eq!(positions, [Some(0), Some(1), Some(2), Some(2), None, None]);
}

#[test]
fn a_startup_order_starts_each_by_itself() {
    let plan = plan(&[
        ("usher/init", "i j"),
        ("usher/sidecars", "s t"),
        ("usher/startup-order", "s i t j"),
    ]);
    assert_eq!(
        plan.stages(),
        [stage(&["s"]), stage(&["i"]), stage(&["t"]), stage(&["j"])]
    );
    assert_eq!(plan.sidecars(), ["s", "t"]);
}

#[test]
fn a_startup_order_has_exactly_the_init_and_sidecar_containers() {
    let with = |order| {
        refusal(&[
            ("usher/init", "i"),
            ("usher/native-init", "n"),
            ("usher/sidecars", "s"),
            ("usher/startup-order", order),
        ])
    };
    assert_eq!(
        with("s"),
        "usher/startup-order: \"s\" leaves out \"i\"; expected every init and sidecar container, and no other"
    );
    assert!(with("i").contains("leaves out \"s\""));
    assert!(with("i s web").contains("lists \"web\""));
    assert!(with("i s n").contains("lists \"n\""));
    assert!(with("i s i").contains("lists \"i\" twice"));
    assert!(refusal(&[("usher/startup-order", "a")]).contains("lists \"a\""));
}

#[test]
fn only_a_container_that_can_end_the_pod_may_be_essential() {
    let lists = [
        ("usher/init", "i"),
        ("usher/sidecars", "s"),
        ("usher/post-exit", "d"),
    ];
    let with = |essential| [&lists[..], &[("usher/essential", essential)]].concat();
    assert_eq!(plan(&with("i s web")).settings().essential.len(), 3);
    assert!(refusal(&with("d")).contains("lists \"d\", whose role is defer; expected"));
    let listed = [&with("web")[..], &[("usher/apps", "a")]].concat();
    assert!(refusal(&listed).contains("lists \"web\", whose role is guest"));
}
