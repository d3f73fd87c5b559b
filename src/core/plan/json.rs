//! Common parts of all settings in JSON.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, Unexpected, Visitor};

use super::error::{Problem, condense};

/// Reads a JSON object. `schema` is the name of the expected type in error messages.
pub(super) fn parse<T: DeserializeOwned>(text: &str, schema: &str) -> Result<T, Problem> {
    serde_json::from_str::<Object<T>>(text)
        .map(|Object(object)| object)
        .map_err(|error| {
            Problem::new(format!(
                "is not {schema} in JSON: {}",
                condense(&error.to_string())
            ))
        })
}

/// A `T` that must be a JSON object. serde alone also accepts an array for a struct.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Object<T>(pub T);

/// A whole number within bounds; most of Kubernetes' numbers are int32.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole<const MIN: u64, const MAX: u64 = 0x7fff_ffff>(u64);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    pub(super) fn get(self) -> u64 {
        self.0
    }

    /// The number, for types whose `MAX` fits an int32.
    pub(super) fn count(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    pub(super) fn seconds(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeVisitor)
    }
}

struct WholeVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if MIN == MAX {
            return write!(f, "the number {MIN}");
        }
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        if (MIN..=MAX).contains(&number) {
            return Ok(Whole(number));
        }
        Err(E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }
}
