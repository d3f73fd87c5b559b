use super::*;

#[test]
fn the_lines_to_add_stand_below_the_sentence_that_wants_them() {
    let finding = Finding::problem("runtime", "it is missing").add("[a]\n  b = 1");
    let plain = anstream::adapter::strip_str(&finding.text()).to_string();
    assert_eq!(
        plain,
        "PROBLEM  runtime: it is missing\n           [a]\n             b = 1\n"
    );
}

#[test]
fn the_names_of_json_fields_are_as_documented() {
    let finding = Finding::warning("shim", "is old");
    let json = serde_json::to_value(&finding).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"about": "shim", "level": "warning", "says": "is old", "add": null})
    );
}

#[test]
fn a_kernel_without_lists_of_children_is_warned_of_by_the_name_of_its_setting() {
    assert_eq!(kernel(Path::new("/proc/thread-self/status")), None);
    let finding = kernel(Path::new("/proc/thread-self/no-such-list")).unwrap();
    assert_eq!(finding.level, Level::Warning);
    let named = ["/proc/thread-self/no-such-list", "CONFIG_PROC_CHILDREN"];
    assert!(named.iter().all(|name| finding.says.contains(name)));
}
