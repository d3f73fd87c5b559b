//! JSON of messages, for scripts.

use anyhow::Context;
use protobuf::MessageFull;
use protobuf::reflect::{EnumDescriptor, MessageDescriptor, RuntimeFieldType, RuntimeType};
use protobuf_json_mapping::{ParseError, ParseOptions, PrintOptions};
use serde_json::Value;

use super::output::Failure;
use super::words;
use usher_api as api;

/// A message in protobuf's JSON mapping, but with words for enums and for a pod's status.
pub(super) fn json<M: MessageFull>(message: &M) -> Result<Value, Failure> {
    let options = PrintOptions {
        always_output_default_values: true,
        // Enum values come as numbers, because a value that this version does not know has no name.
        enum_values_int: true,
        ..PrintOptions::default()
    };
    let text = protobuf_json_mapping::print_to_string_with_options(message, &options)
        .context("cannot encode the output")?;
    let mut value = serde_json::from_str(&text).context("cannot encode the output")?;
    reword_message(&mut value, &M::descriptor());
    Ok(value)
}

/// The JSON of a pod, with its node if given.
pub(super) fn json_on(pod: &api::Pod, node: Option<&str>) -> Result<Value, Failure> {
    let mut value = json(pod)?;
    if let (Some(node), Some(fields)) = (node, value.as_object_mut()) {
        fields.insert("node".to_owned(), node.into());
    }
    Ok(value)
}

/// Parses the output of `json`, which may come from another version of usher. Drops unknown fields.
/// Reads an enum value with an unknown name as the `UNKNOWN` of its enum.
///
/// # Errors
///
/// If the value is not the output of `json`.
pub fn message<M: MessageFull>(mut value: Value) -> Result<M, ParseError> {
    unword_message(&mut value, &M::descriptor());
    let options = ParseOptions {
        ignore_unknown_fields: true,
        ..ParseOptions::default()
    };
    protobuf_json_mapping::parse_from_str_with_options(&value.to_string(), &options)
}

fn reword_message(value: &mut Value, message: &MessageDescriptor) {
    for_each_field(value, message, reword);
}

fn unword_message(value: &mut Value, message: &MessageDescriptor) {
    for_each_field(value, message, unword);
}

fn for_each_field(
    value: &mut Value,
    message: &MessageDescriptor,
    change: fn(&mut Value, &RuntimeType),
) {
    for field in message.fields() {
        let Some(value) = value.get_mut(field.json_name()) else {
            continue;
        };
        match field.runtime_field_type() {
            RuntimeFieldType::Singular(kind) => change(value, &kind),
            RuntimeFieldType::Repeated(kind) => {
                for value in value.as_array_mut().into_iter().flatten() {
                    change(value, &kind);
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

/// Undoes [`reword`]: converts words back to enum numbers and to statuses.
fn unword(value: &mut Value, kind: &RuntimeType) {
    match kind {
        RuntimeType::Enum(all) => {
            if let Some(number) = value.as_str().map(|word| words::number_in(all, word)) {
                *value = number.into();
            }
        }
        RuntimeType::Message(message) if *message == api::Status::descriptor() => {
            let status = value.as_str().map(words::status_of);
            if let Some(status) = status {
                *value = serde_json::json!({
                    "doing": status.doing.value(), "done": status.done, "total": status.total,
                });
            }
        }
        RuntimeType::Message(message) => unword_message(value, message),
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
    fn enums_and_statuses_are_words() {
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
        // An optional enum without a value stays null.
        assert!(event["probe"].is_null());
    }

    #[test]
    fn every_printed_value_and_status_is_parsed_back() {
        use api::Doing::*;
        use protobuf::Enum;
        let mut pods = Vec::new();
        for (number, doing) in api::Doing::VALUES.iter().enumerate() {
            let counts = matches!(doing, DOING_INIT | DOING_SIDECAR | DOING_DEFER);
            let status = api::Status {
                doing: (*doing).into(),
                done: u32::from(counts),
                total: if counts { 12 } else { 0 },
                ..api::Status::new()
            };
            let number = i32::try_from(number).unwrap_or_default();
            let event = api::Event {
                what: EnumOrUnknown::from_i32(number),
                why: Some(EnumOrUnknown::from_i32(number.min(5))),
                reason: Some("a\u{1b}\n".to_owned()),
                ..api::Event::new()
            };
            let container = api::Container {
                state: EnumOrUnknown::from_i32(number),
                role: EnumOrUnknown::from_i32(number.min(8)),
                exit_code: Some(137),
                oom_score: Some(-997),
                cgroup: MessageField::some(api::Cgroup {
                    memory_limit: Some(u64::MAX),
                    cpu_limit: Some(0.25),
                    ..api::Cgroup::new()
                }),
                ..api::Container::new()
            };
            pods.push(api::Pod {
                name: "web".to_owned(),
                status: MessageField::some(status),
                phase: EnumOrUnknown::from_i32(number.min(4)),
                containers: vec![container],
                events: vec![event],
                forgotten_events: 1 << 60,
                ..api::Pod::new()
            });
        }
        for pod in pods {
            let Ok(printed) = json_on(&pod, Some("node1")) else {
                panic!("it cannot be encoded")
            };
            assert_eq!(message::<api::Pod>(printed).unwrap(), pod);
        }
    }

    #[test]
    fn unknown_fields_and_words_of_another_version_are_tolerated() {
        let said = json!({
            "name": "web", "phase": "Dreaming", "status": "Hoping:1/2", "mood": { "is": "good" },
            "containers": [{ "state": "asleep", "role": 5, "new": [] }],
        });
        let Ok(pod) = message::<api::Pod>(said) else {
            panic!("it is a pod")
        };
        assert_eq!((pod.name.as_str(), pod.phase.value()), ("web", 0));
        assert_eq!(words::status(&pod.status), "Unknown");
        assert_eq!(pod.containers[0].state.value(), 0);
        for none in [json!(null), json!(7), json!([]), json!({ "name": 7 })] {
            assert!(message::<api::Pod>(none.clone()).is_err(), "{none}");
        }
    }

    #[test]
    fn values_of_a_newer_shim_are_unknown() {
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
