use super::{plan, refusal};
use crate::plan::{Plan, Stage};

#[test]
fn names_are_separated_by_commas_or_white_space() {
    for list in ["a,b", "a, b", "a b", "a\n b", " a ,\tb\n", "a\r\nb"] {
        assert_eq!(
            plan(&[("usher/sidecars", list)]).sidecars(),
            ["a", "b"],
            "{list:?}"
        );
    }
}

#[test]
fn the_order_of_a_list_is_kept() {
    assert_eq!(
        plan(&[("usher/post-exit", "c a b")]).post_exit(),
        ["c", "a", "b"]
    );
}

#[test]
fn an_empty_name_is_refused() {
    for list in ["a,,b", ",a", "a,", "a, ,b", ","] {
        let sentence = refusal(&[("usher/init", list)]);
        assert!(
            sentence.contains("has an empty container name; expected container names"),
            "{sentence}"
        );
    }
}

#[test]
fn an_empty_list_is_refused() {
    for setting in [
        "init",
        "native-init",
        "sidecars",
        "apps",
        "pre-exit",
        "post-exit",
        "startup-order",
        "essential",
    ] {
        let key = format!("usher/{setting}");
        for list in ["", " \n"] {
            let sentence = refusal(&[(&key, list)]);
            assert!(
                sentence.contains("lists nothing; expected at least one container name"),
                "{sentence}"
            );
        }
    }
}

#[test]
fn a_name_twice_in_one_list_is_refused() {
    assert_eq!(
        refusal(&[("usher/sidecars", "a b, a")]),
        "usher/sidecars: \"a b, a\" lists \"a\" twice; expected each name once"
    );
}

#[test]
fn a_name_is_valid_if_kubernetes_or_ctr_accepts_it() {
    let longest = "x".repeat(253);
    for name in ["web", "web-1", "Web_1.2", "0", longest.as_str()] {
        assert_eq!(plan(&[("usher/sidecars", name)]).sidecars(), [name]);
    }
    let too_long = "x".repeat(254);
    for name in ["-web", ".web", "we/b", "wéb", "a;b", too_long.as_str()] {
        assert!(
            refusal(&[("usher/sidecars", name)]).contains("expected a name of 1 to 253"),
            "{name}"
        );
    }
}

#[test]
fn an_optional_name_is_in_its_list_once_its_container_is_created() {
    for (setting, list) in [
        ("sidecars", Plan::sidecars as fn(&Plan) -> &[String]),
        ("init", Plan::init),
        ("pre-exit", Plan::pre_exit),
        ("post-exit", Plan::post_exit),
    ] {
        let key = format!("usher/{setting}");
        let mut plan = plan(&[(&key, "a? b c?")]);
        assert_eq!(list(&plan), ["b"]);
        assert!(plan.is_optional("a") && !plan.is_optional("b"));
        assert_eq!(plan.role("a"), plan.role("b"));
        plan.mark_present("c");
        assert_eq!(list(&plan), ["b", "c"]);
        plan.mark_present("a");
        assert!(!plan.is_written_as(&self::plan(&[(&key, "a b c")])));
        assert_eq!(list(&plan), ["a", "b", "c"]);
        plan.forget_who_came();
        assert_eq!(plan, self::plan(&[(&key, "a? b c?")]));
    }
}

#[test]
fn stages_contain_the_created_optional_names() {
    let stages = |plan: &Plan| {
        let stages = plan.stages().iter();
        stages
            .map(|Stage(names)| names.join(" "))
            .collect::<Vec<_>>()
    };
    let mut parallel = plan(&[("usher/init", "a? b"), ("usher/sidecars", "c? d?")]);
    assert_eq!(stages(&parallel), ["b"]);
    parallel.mark_present("d");
    assert_eq!(stages(&parallel), ["b", "d"]);
    parallel.mark_present("c");
    parallel.mark_present("a");
    assert_eq!(stages(&parallel), ["a", "b", "c d"]);
    assert_eq!(parallel.position("d"), Some(2));
    let mut serial = plan(&[
        ("usher/init", "a b?"),
        ("usher/sidecars", "c?"),
        ("usher/startup-order", "c b a"),
    ]);
    assert_eq!(stages(&serial), ["a"]);
    serial.mark_present("c");
    assert_eq!(stages(&serial), ["c", "a"]);
}

#[test]
fn required_names_have_no_mark() {
    for setting in ["native-init", "apps", "essential", "startup-order"] {
        let key = format!("usher/{setting}");
        let sentence = refusal(&[("usher/sidecars", "a"), (&key, "a?")]);
        assert!(
            sentence.contains("lists \"a?\"; expected it without ?, which stands in lists of"),
            "{sentence}"
        );
    }
    for list in ["a? a", "a a?", "a? a?"] {
        let sentence = refusal(&[("usher/sidecars", list)]);
        assert!(sentence.contains("lists \"a\" twice"), "{sentence}");
    }
    for list in ["?", "a??", "?a"] {
        let sentence = refusal(&[("usher/sidecars", list)]);
        assert!(
            sentence.contains("expected a name of 1 to 253"),
            "{sentence}"
        );
    }
}

#[test]
fn a_pattern_is_not_for_the_shim() {
    for list in ["*-proxy", "istio-*?"] {
        let sentence = refusal(&[("usher/sidecars", list)]);
        assert!(
            sentence.contains("a pattern, which only usher-webhook makes names of"),
            "{sentence}"
        );
    }
}
