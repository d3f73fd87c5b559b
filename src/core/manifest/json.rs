//! A value of a manifest, kept as compact JSON text.

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::Serialize;
use serde_json::Value;

/// The text of a JSON value. Null fields are left out, because Kubernetes treats them as missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Json(Box<str>);

impl Json {
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Parses the text. A parsed value takes some hundred bytes even if its text is short.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// True if the value is an object with this field.
    pub fn has(&self, field: &str) -> bool {
        let mut parser = serde_json::Deserializer::from_str(&self.0);
        parser.deserialize_map(Search(field)).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = Vec::new();
        Writer(&mut text).deserialize(deserializer)?;
        let text = String::from_utf8(text).map_err(D::Error::custom)?;
        Ok(Json(text.into_boxed_str()))
    }
}

/// A visitor that returns true if a map has this key.
struct Search<'a>(&'a str);

impl<'de> Visitor<'de> for Search<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            found |= key == self.0;
            map.next_value::<IgnoredAny>()?;
        }
        Ok(found)
    }
}

/// A visitor that writes the value as text, without null fields.
struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn write<E: Error>(self, scalar: impl Serialize) -> Result<IsNull, E> {
        serde_json::to_writer(self.0, &scalar).map_err(E::custom)?;
        Ok(IsNull(false))
    }
}

struct IsNull(bool);

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = IsNull;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<IsNull, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = IsNull;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "any value")
    }

    fn visit_unit<E: Error>(self) -> Result<IsNull, E> {
        self.write(()).map(|_| IsNull(true))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<IsNull, E> {
        self.write(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<IsNull, E> {
        self.write(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<IsNull, E> {
        self.write(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<IsNull, E> {
        self.write(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<IsNull, E> {
        self.write(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<IsNull, A::Error> {
        self.0.push(b'[');
        let mut end = self.0.len();
        while list.next_element_seed(Writer(self.0))?.is_some() {
            self.0.push(b',');
            end = self.0.len().saturating_sub(1);
        }
        self.0.truncate(end);
        self.0.push(b']');
        Ok(IsNull(false))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IsNull, A::Error> {
        self.0.push(b'{');
        let mut end = self.0.len();
        while let Some(key) = map.next_key::<String>()? {
            // If the text ends with `{`, no field was written yet, because no value ends with `{`.
            if !self.0.ends_with(b"{") {
                self.0.push(b',');
            }
            serde_json::to_writer(&mut *self.0, &key).map_err(A::Error::custom)?;
            self.0.push(b':');
            match map.next_value_seed(Writer(self.0))? {
                IsNull(true) => self.0.truncate(end),
                IsNull(false) => end = self.0.len(),
            }
        }
        self.0.push(b'}');
        Ok(IsNull(false))
    }
}
