//! Messages as JSON, for scripts.

use protobuf::MessageFull;
use protobuf::reflect::{EnumDescriptor, MessageDescriptor, RuntimeFieldType, RuntimeType};
use protobuf_json_mapping::PrintOptions;
use serde_json::Value;

use super::output::Failure;
use super::words;
use crate::api;

/// A message in protobuf's JSON mapping, but with words for enums, and one for a pod's status.
pub(super) fn json<M: MessageFull>(message: &M) -> Result<Value, Failure> {
    let options = PrintOptions {
        always_output_default_values: true,
        // Numbers of values that are not known here stand among names otherwise.
        enum_values_int: true,
        ..PrintOptions::default()
    };
    let text = protobuf_json_mapping::print_to_string_with_options(message, &options);
    let value = text
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    let mut value = value
        .map_err(|error| Failure::because(format!("the answer cannot be encoded: {error}")))?;
    reword_message(&mut value, &M::descriptor());
    Ok(value)
}

fn reword_message(value: &mut Value, message: &MessageDescriptor) {
    for field in message.fields() {
        let Some(value) = value.get_mut(field.json_name()) else {
            continue;
        };
        match field.runtime_field_type() {
            RuntimeFieldType::Singular(kind) => reword(value, &kind),
            RuntimeFieldType::Repeated(kind) => {
                for value in value.as_array_mut().into_iter().flatten() {
                    reword(value, &kind);
                }
            }
            RuntimeFieldType::Map(..) => {}
        }
    }
}

fn reword(value: &mut Value, kind: &RuntimeType) {
    match kind {
        RuntimeType::Enum(all) => {
            if let Some(word) = word(value, all) {
                *value = word.into();
            }
        }
        RuntimeType::Message(message) if *message == api::Status::descriptor() => {
            let text = value.to_string();
            if let Ok(status) = protobuf_json_mapping::parse_from_str(&text) {
                *value = words::status(&status).into();
            }
        }
        RuntimeType::Message(message) => reword_message(value, message),
        _ => {}
    }
}

fn word(value: &Value, all: &EnumDescriptor) -> Option<String> {
    let number = i32::try_from(value.as_i64()?).ok()?;
    Some(words::word_in(all, number))
}

#[cfg(test)]
mod tests {
    use protobuf::{EnumOrUnknown, MessageField};
    use serde_json::json;

    use super::*;

    #[test]
    fn enums_are_words_and_a_status_is_one() {
        let proxy = api::Container {
            name: "STATE_HELD".to_owned(),
            role: api::Role::ROLE_NATIVE_INIT.into(),
            state: api::State::STATE_BACKING_OFF.into(),
            kills: vec![api::Kills {
                why: api::Why::WHY_GRACE_OVER.into(),
                count: 2,
                ..api::Kills::new()
            }],
            ..api::Container::new()
        };
        let status = api::Status {
            doing: api::Doing::DOING_SIDECAR.into(),
            total: 2,
            ..api::Status::new()
        };
        let event = api::Event {
            what: api::What::WHAT_SIGNALLED.into(),
            why: Some(api::Why::WHY_TURN.into()),
            ..api::Event::new()
        };
        let pod = api::Pod {
            status: MessageField::some(status),
            phase: api::Phase::PHASE_INITIALIZING.into(),
            containers: vec![proxy],
            events: vec![event],
            ..api::Pod::new()
        };
        let Ok(pod) = super::json(&pod) else {
            panic!("it cannot be encoded")
        };
        assert_eq!(pod["status"], "Sidecar:0/2");
        assert_eq!(pod["phase"], "Initializing");
        let proxy = &pod["containers"][0];
        assert_eq!(proxy["name"], "STATE_HELD");
        assert_eq!(proxy["role"], "native-init");
        assert_eq!(proxy["state"], "backing-off");
        assert_eq!(proxy["kills"], json!([{ "why": "grace-over", "count": 2 }]));
        let event = &pod["events"][0];
        assert_eq!(
            (&event["what"], &event["why"]),
            (&json!("signalled"), &json!("turn"))
        );
        // What says nothing about it says nothing.
        assert!(event["probe"].is_null());
    }

    #[test]
    fn what_a_newer_shim_says_is_unknown() {
        let status = api::Status {
            doing: EnumOrUnknown::from_i32(99),
            ..api::Status::new()
        };
        let pod = api::Pod {
            status: MessageField::some(status),
            phase: EnumOrUnknown::from_i32(99),
            ..api::Pod::new()
        };
        let Ok(pod) = super::json(&pod) else {
            panic!("it cannot be encoded")
        };
        assert_eq!(
            (&pod["status"], &pod["phase"]),
            (&json!("Unknown"), &json!("Unknown"))
        );
    }
}
