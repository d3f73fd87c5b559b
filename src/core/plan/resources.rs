//! Requests and limits of a container: Kubernetes' `ResourceRequirements`.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::error::{Problem, quote};
use super::json::{self, Object};
use super::quantity::Quantity;

/// Requests and limits of one container; no request is above its limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    requests: Amounts,
    limits: Amounts,
}

/// Amounts of CPU and memory, the resources by which usher sizes a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Amounts {
    /// Thousandths of a CPU, rounded up.
    pub cpu_millis: Option<u64>,
    /// Memory in bytes, rounded up.
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawResources {
    requests: Option<ResourceList>,
    limits: Option<ResourceList>,
    /// Device claims: part of the schema, irrelevant to the size of a cgroup.
    #[serde(rename = "claims")]
    _claims: Option<Vec<Object<RawClaim>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClaim {
    #[serde(rename = "name")]
    _name: IgnoredText,
    #[serde(rename = "request")]
    _request: Option<IgnoredText>,
}

/// Reads resources from JSON.
///
/// # Errors
///
/// A field or type that Kubernetes' `ResourceRequirements` does not have, a quantity that is
/// negative or too large, or a request above its limit.
pub(super) fn parse(text: &str) -> Result<Resources, Problem> {
    let raw: RawResources = json::parse(text, "Kubernetes ResourceRequirements")?;
    let amounts = |list: Option<ResourceList>| list.map_or_else(Amounts::default, |list| list.0);
    Resources::new(amounts(raw.requests), amounts(raw.limits))
}

fn check_order(name: &str, request: Option<u64>, limit: Option<u64>) -> Result<(), Problem> {
    match (request, limit) {
        (Some(request), Some(limit)) if request > limit => Err(Problem::new(format!(
            "requests more {name} than its limit; expected at most the limit"
        ))),
        _ => Ok(()),
    }
}

impl Resources {
    /// Combines requests and limits; a missing request is the limit, as in Kubernetes.
    ///
    /// # Errors
    ///
    /// A request above its limit.
    pub fn new(given: Amounts, limits: Amounts) -> Result<Resources, Problem> {
        let requests = Amounts {
            cpu_millis: given.cpu_millis.or(limits.cpu_millis),
            memory_bytes: given.memory_bytes.or(limits.memory_bytes),
        };
        check_order("cpu", requests.cpu_millis, limits.cpu_millis)?;
        check_order("memory", requests.memory_bytes, limits.memory_bytes)?;
        Ok(Resources { requests, limits })
    }

    /// The requests. If the author gives only a limit for a resource, the limit is the request.
    pub fn requests(&self) -> Amounts {
        self.requests
    }

    /// The limits; an amount that is not set is unlimited.
    pub fn limits(&self) -> Amounts {
        self.limits
    }
}

/// Kubernetes' `ResourceList`. Resources that affect no cgroup, such as ephemeral storage, must be
/// well-formed too.
#[derive(Debug)]
struct ResourceList(Amounts);

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = AmountsVisitor { takes_null: false };
        deserializer.deserialize_map(visitor).map(ResourceList)
    }
}

impl Amounts {
    /// Reads a `ResourceList` of a manifest, in which a null quantity counts as missing.
    ///
    /// # Errors
    ///
    /// An invalid quantity, or an invalid resource name.
    pub fn of_manifest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AmountsVisitor { takes_null: true })
    }
}

struct AmountsVisitor {
    takes_null: bool,
}

impl<'de> Visitor<'de> for AmountsVisitor {
    type Value = Amounts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of resource names and quantities")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amounts, A::Error> {
        let mut amounts = Amounts::default();
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let text = match self.takes_null {
                true => map.next_value::<Option<RawQuantity>>()?,
                false => Some(map.next_value::<RawQuantity>()?),
            };
            let Some(RawQuantity(text)) = text else {
                continue;
            };
            let refused = |problem| {
                let (name, text) = (quote(&name), quote(&text));
                A::Error::custom(format_args!("{name}: {text} {problem}"))
            };
            let quantity = Quantity::parse(&text).map_err(refused)?;
            match name.as_str() {
                "cpu" => amounts.cpu_millis = Some(quantity.thousandths().map_err(refused)?),
                "memory" => amounts.memory_bytes = Some(quantity.units().map_err(refused)?),
                other if is_resource_name(other) => {}
                other => {
                    let other = quote(other);
                    return Err(A::Error::custom(format_args!(
                        "{other} is no resource name"
                    )));
                }
            }
            if let Some(name) = seen.replace(name) {
                let name = quote(&name);
                return Err(A::Error::custom(format_args!("duplicate field {name}")));
            }
        }
        Ok(amounts)
    }
}

/// True if `name` has the form of Kubernetes' qualified names, such as `example.com/gpu`.
fn is_resource_name(name: &str) -> bool {
    let (prefix, name) = name
        .rsplit_once('/')
        .map_or((None, name), |(p, n)| (Some(p), n));
    let well_formed = |part: &str, longest: usize| {
        (1..=longest).contains(&part.len())
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    };
    well_formed(name, 63) && prefix.is_none_or(|prefix| well_formed(prefix, 253))
}

/// The text of a quantity; Kubernetes takes bare numbers too.
struct RawQuantity(String);

impl<'de> Deserialize<'de> for RawQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawQuantityVisitor)
    }
}

struct RawQuantityVisitor;

impl Visitor<'_> for RawQuantityVisitor {
    type Value = RawQuantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a quantity")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RawQuantity, E> {
        Ok(RawQuantity(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<RawQuantity, E> {
        Ok(RawQuantity(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<RawQuantity, E> {
        Ok(RawQuantity(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<RawQuantity, E> {
        Ok(RawQuantity(number.to_string()))
    }
}

/// A string that is checked and dropped.
#[derive(Debug)]
struct IgnoredText;

impl<'de> Deserialize<'de> for IgnoredText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|_| IgnoredText)
    }
}
