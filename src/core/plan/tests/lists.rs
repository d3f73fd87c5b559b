use super::{plan, refusal};

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
            sentence.contains("has an empty name; expected container names"),
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
fn a_name_is_what_kubernetes_or_ctr_can_call_a_container() {
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
