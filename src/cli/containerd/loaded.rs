//! The runtimes that the running containerd has loaded, compared with its configuration file.

use serde_json::Value as Json;
use toml::{Table, Value};

use super::{Effective, PROGRAM, TYPE, text};

/// Keys of a runtime's table, each with its name in the configuration that the CRI plugin reports.
const KEYS: [(&str, &str); 6] = [
    ("runtime_type", "runtimeType"),
    ("runtime_path", "runtimePath"),
    ("pod_annotations", "PodAnnotations"),
    ("container_annotations", "ContainerAnnotations"),
    ("sandboxer", "sandboxer"),
    ("options", "options"),
];

/// containerd's default sandboxer.
const USUAL_SANDBOXER: &str = "podsandbox";

/// True if pods of this runtime run under the shim.
pub(crate) fn is_ours(runtime: &Table) -> bool {
    text(runtime, "runtime_type") == Some(TYPE)
        || text(runtime, "runtime_path").is_some_and(|path| path.ends_with(PROGRAM))
}

/// The first difference between usher's runtimes in the file and in the loaded configuration. In
/// the returned clause, "it" is the running containerd: "it lacks the runtime usher". `loaded` is
/// the CRI plugin's report.
pub(crate) fn difference(file: &Effective, loaded: &Json) -> Option<String> {
    let loaded = loaded.get("containerd")?.get("runtimes")?.as_object()?;
    let ours = || file.runtimes().filter(|(_, runtime)| is_ours(runtime));
    for (name, runtime) in ours() {
        let Some(other) = loaded.get(name) else {
            return Some(format!("it lacks the runtime {name}"));
        };
        if let Some((key, _)) = KEYS.iter().find(|key| differs(key, runtime, other)) {
            return Some(format!("its {key} for {name} is different"));
        }
    }
    let is_in_file = |name: &str| file.runtimes().any(|(other, _)| other == name);
    let stale = loaded
        .iter()
        .find(|(name, runtime)| is_loaded_ours(runtime) && !is_in_file(name));
    stale.map(|(name, _)| format!("it still has the runtime {name}"))
}

fn is_loaded_ours(runtime: &Json) -> bool {
    let text = |key: &str| runtime.get(key).and_then(Json::as_str).unwrap_or_default();
    text("runtimeType") == TYPE || text("runtimePath").ends_with(PROGRAM)
}

/// True if the values of a key differ. A key that this containerd does not report counts as equal.
fn differs((key, reported): &(&str, &str), runtime: &Table, loaded: &Json) -> bool {
    let Some(loaded) = loaded.get(reported) else {
        return false;
    };
    let wanted = runtime.get(*key).map(json);
    let is_usual = |value: &Json| match value {
        Json::Null => true,
        Json::String(text) => text.is_empty() || *key == "sandboxer" && text == USUAL_SANDBOXER,
        Json::Array(values) => values.is_empty(),
        Json::Object(values) => values.is_empty(),
        Json::Bool(_) | Json::Number(_) => false,
    };
    match wanted {
        None => !is_usual(loaded),
        Some(wanted) => wanted != *loaded && !(is_usual(&wanted) && is_usual(loaded)),
    }
}

fn json(value: &Value) -> Json {
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{CRI, RUNC_TYPE};
    use super::*;

    fn file(lines: &str) -> Effective {
        let runtimes = format!("plugins.'{CRI}'.containerd.runtimes");
        let text =
            format!("[{runtimes}.runc]\nruntime_type = '{RUNC_TYPE}'\n[{runtimes}.usher]\n{lines}");
        Effective::parse(text).unwrap()
    }

    fn loaded(usher: Json) -> Json {
        let runc = json!({"runtimeType": RUNC_TYPE});
        json!({"containerd": {"runtimes": {"runc": runc, "usher": usher}}})
    }

    #[test]
    fn a_runtime_loaded_as_in_the_file_is_no_difference() {
        let lines = format!(
            "runtime_type = '{TYPE}'\nruntime_path = ''\npod_annotations = ['usher/*']\n\
             options = {{ SystemdCgroup = true }}"
        );
        let same = json!({
            "runtimeType": TYPE, "runtimePath": "", "PodAnnotations": ["usher/*"],
            "ContainerAnnotations": null, "sandboxer": "podsandbox", "options": {"SystemdCgroup": true},
        });
        assert_eq!(difference(&file(&lines), &loaded(same)), None);
        // An older containerd reports fewer keys.
        let fewer = json!({"runtimeType": TYPE});
        assert_eq!(difference(&file(&lines), &loaded(fewer)), None);
    }

    #[test]
    fn a_runtime_loaded_with_other_values_or_not_at_all_is_a_difference() {
        let own = file(&format!("runtime_type = '{TYPE}'"));
        let none = json!({"containerd": {"runtimes": {"runc": {"runtimeType": RUNC_TYPE}}}});
        let said = |file: &Effective, loaded: &Json| difference(file, loaded).unwrap();
        assert_eq!(said(&own, &none), "it lacks the runtime usher");
        let annotated = json!({"runtimeType": TYPE, "PodAnnotations": ["usher/*"]});
        assert_eq!(
            said(&own, &loaded(annotated)),
            "its pod_annotations for usher is different"
        );
        let of_runc = file(&format!("runtime_type = '{RUNC_TYPE}'"));
        let by_path = json!({"runtimeType": RUNC_TYPE, "runtimePath": format!("/opt/{PROGRAM}")});
        assert_eq!(difference(&of_runc, &loaded(by_path.clone())), None);
        let without = Effective::parse(format!(
            "[plugins.'{CRI}'.containerd.runtimes.runc]\nruntime_type = '{RUNC_TYPE}'"
        ));
        assert_eq!(
            said(&without.unwrap(), &loaded(by_path)),
            "it still has the runtime usher"
        );
    }

    #[test]
    fn a_containerd_that_reports_no_configuration_shows_no_difference() {
        let own = file(&format!("runtime_type = '{TYPE}'"));
        assert_eq!(difference(&own, &json!({})), None);
    }
}
