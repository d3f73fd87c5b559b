//! Makes admission reviews like those of the API server, and decodes the webhook's responses.

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use usher_core::plan::Rules;

use crate::admission::{Admission, Webhook};

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

/// A decoded response.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) refused: Option<String>,
    pub(super) warnings: Vec<String>,
    /// The object with the patch applied.
    pub(super) object: Value,
    pub(super) is_changed: bool,
}

pub(super) fn admission() -> Admission {
    Admission {
        rules: Rules::default(),
        runtime_class: "usher".to_owned(),
    }
}

/// A review of the creation of `object`, or of its change from `old`.
pub(super) fn review(object: &Value, old: Option<&Value>) -> Value {
    let kind = object["kind"].as_str().expect("a kind");
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "kind": { "group": "", "version": "v1", "kind": kind },
            "resource": { "group": "", "version": "v1", "resource": "x" },
            "name": "shop",
            "namespace": "shop",
            "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
            "userInfo": { "username": "admin", "groups": ["system:authenticated"] },
            "object": object,
            "oldObject": old,
            "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    })
}

#[track_caller]
pub(super) fn created(webhook: Webhook, object: &Value) -> Reply {
    reply_to(webhook, object, None)
}

#[track_caller]
pub(super) fn changed(old: &Value, new: &Value) -> Reply {
    reply_to(Webhook::Validate, new, Some(old))
}

/// Returns the webhook's reply to the creation of `object`, with `rules` as the nodes'
/// configuration.
#[track_caller]
pub(super) fn created_under(rules: &Rules, webhook: Webhook, object: &Value) -> Reply {
    let mut admission = admission();
    admission.rules = rules.clone();
    reply_of(&admission, webhook, object, None)
}

#[track_caller]
fn reply_to(webhook: Webhook, object: &Value, old: Option<&Value>) -> Reply {
    reply_of(&admission(), webhook, object, old)
}

#[track_caller]
fn reply_of(admission: &Admission, webhook: Webhook, object: &Value, old: Option<&Value>) -> Reply {
    let body = review(object, old).to_string();
    let answer = admission.answer(webhook, body.as_bytes());
    let answer: Value = serde_json::from_slice(&answer.expect("an answer").body).expect("JSON");
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = &answer["response"];
    assert_eq!(response["uid"], UID);
    let mut object = object.clone();
    let is_changed = !response["patch"].is_null();
    if is_changed {
        assert_eq!(response["patchType"], "JSONPatch");
        let patch = serde_json::from_value(response["patch"].clone());
        let ByteString(patch) = patch.expect("base64");
        let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a patch");
        json_patch::patch(&mut object, &patch).expect("it fits");
    }
    let allowed = response["allowed"].as_bool().expect("a verdict");
    let sentence = response["status"]["message"].as_str().map(str::to_owned);
    let warnings = response["warnings"].as_array().into_iter().flatten();
    let text = |warning: &Value| warning.as_str().expect("text").to_owned();
    Reply {
        refused: (!allowed).then(|| sentence.expect("a sentence")),
        warnings: warnings.map(text).collect(),
        object,
        is_changed,
    }
}
