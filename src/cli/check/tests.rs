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
