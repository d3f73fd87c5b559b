//! A value in a manifest, with its fields in order.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A YAML or JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Integer(i64),
    /// A number too large for [`Node::Integer`].
    Large(u64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    pub(crate) fn text(text: impl Into<String>) -> Node {
        Node::Text(text.into())
    }

    /// The value of a field of a map. None if the field is missing or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        let (_, value) = self.fields().iter().find(|(name, _)| name == key)?;
        (*value != Node::Null).then_some(value)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match self {
            Node::Map(fields) => fields
                .iter_mut()
                .find(|(name, value)| name == key && *value != Node::Null)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// The value of a field in nested maps.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub(crate) fn at_mut(&mut self, path: &[&str]) -> Option<&mut Node> {
        path.iter().try_fold(self, |node, key| node.get_mut(key))
    }

    /// The fields of a map; empty for other values.
    pub(crate) fn fields(&self) -> &[(String, Node)] {
        match self {
            Node::Map(fields) => fields,
            _ => &[],
        }
    }

    /// The items of a list; empty for other values.
    pub(crate) fn items(&self) -> &[Node] {
        match self {
            Node::List(items) => items,
            _ => &[],
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Node::as_text)
    }

    /// Removes a field and returns it, or None if it is null.
    pub(crate) fn take(&mut self, key: &str) -> Option<Node> {
        let Node::Map(fields) = self else {
            return None;
        };
        let at = fields.iter().position(|(name, _)| name == key)?;
        let (_, value) = fields.remove(at);
        (value != Node::Null).then_some(value)
    }

    /// Sets a field of a map. A new field is added at the end.
    pub(crate) fn set(&mut self, key: &str, value: Node) {
        let Node::Map(fields) = self else {
            return;
        };
        match fields.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => fields.push((key.to_owned(), value)),
        }
    }

    /// Sets a field of a map. A new field is added before the field `other`, or at the end if that
    /// is missing.
    pub(crate) fn set_before(&mut self, other: &str, key: &str, value: Node) {
        match self {
            Node::Map(fields) if !fields.iter().any(|(name, _)| name == key) => {
                let at = fields.iter().position(|(name, _)| name == other);
                fields.insert(at.unwrap_or(fields.len()), (key.to_owned(), value));
            }
            _ => self.set(key, value),
        }
    }

    /// The key in JSON that kubectl makes of this key in YAML: `no` and `0x10` become `false` and
    /// `16`. `None` for lists and maps.
    fn into_key(self) -> Option<String> {
        Some(match self {
            Node::Null => "null".to_owned(),
            Node::Bool(value) => value.to_string(),
            Node::Integer(value) => value.to_string(),
            Node::Large(value) => value.to_string(),
            Node::Float(value) => value.to_string(),
            Node::Text(text) => text,
            Node::List(_) | Node::Map(_) => return None,
        })
    }

    /// The value as JSON, without the order of fields and without null fields.
    pub(crate) fn json(&self) -> Value {
        match self {
            Node::List(items) => items.iter().map(Node::json).collect(),
            Node::Map(fields) => fields
                .iter()
                .filter(|(_, value)| *value != Node::Null)
                .map(|(key, value)| (key.clone(), value.json()))
                .collect(),
            scalar => serde_json::to_value(scalar).unwrap_or_default(),
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Null => serializer.serialize_unit(),
            Node::Bool(value) => serializer.serialize_bool(*value),
            Node::Integer(value) => serializer.serialize_i64(*value),
            Node::Large(value) => serializer.serialize_u64(*value),
            Node::Float(value) => serializer.serialize_f64(*value),
            Node::Text(text) => serializer.serialize_str(text),
            Node::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Node::Map(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (key, value) in fields {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Large(value), Node::Integer))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some((key, value)) = map.next_entry::<Node, Node>()? {
            let key = key.into_key().ok_or_else(|| {
                A::Error::custom("a key is a list or a map; expected text, a number or a boolean")
            })?;
            fields.push((key, value));
        }
        Ok(Node::Map(fields))
    }
}
