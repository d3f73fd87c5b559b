//! A streaming reader for pods. It keeps only the fields that usher needs, and at most as many
//! containers as Kubernetes can run.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::plan::{Amounts, ExitCodes, MAX_NAME_CHARS, Object, Resources};

use super::Owner;
use super::pod::{Container, Pod, Requirements, Spec};

/// Maximum number of containers of one pod, init containers included. A kubelet runs some hundred
/// containers on a node.
pub const MAX_CONTAINERS: usize = 1000;

/// Kubernetes' own limit for the annotations of an object, keys and values together.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// The reason why a manifest cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A field with another type than in Kubernetes.
    #[error("{0}")]
    Malformed(String),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// A pod that is larger than any that Kubernetes can run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    #[error("spec has {count} containers; expected at most {MAX_CONTAINERS}")]
    Containers { count: usize },
    #[error("metadata.annotations has {bytes} bytes; expected at most {MAX_ANNOTATION_BYTES}")]
    Annotations { bytes: usize },
    /// The name of a container is too long. The container is in the field `list` of the spec.
    #[error(
        "spec.{list}[{index}] has a name of more than {MAX_NAME_CHARS} characters; expected at most as many"
    )]
    Name { list: &'static str, index: usize },
}

pub(super) fn pod(owner: &Owner, pod: &Value) -> Result<Pod, Unreadable> {
    match Option::<Object<Body>>::deserialize(pod) {
        Ok(body) => body.unwrap_or_default().0.pod(owner),
        Err(error) => {
            let sentence = container_error(pod).unwrap_or_else(|| error.to_string());
            Err(Unreadable::Malformed(sentence))
        }
    }
}

pub(super) fn pod_within(
    owner: &Owner,
    path: &[&str],
    object: &str,
) -> Result<Option<Pod>, Unreadable> {
    let mut parser = serde_json::Deserializer::from_str(object);
    let body = Within(path).deserialize(&mut parser);
    let body = body.map_err(|error| Unreadable::Malformed(error.to_string()))?;
    body.map(|body| body.pod(owner)).transpose()
}

/// The error for the first container that cannot be read, with its place and name.
fn container_error(pod: &Value) -> Option<String> {
    ["initContainers", "containers"].iter().find_map(|list| {
        let containers = pod.get("spec")?.get(list)?.as_array()?;
        let mut containers = containers.iter().take(MAX_CONTAINERS).enumerate();
        containers.find_map(|(index, container)| {
            let error = Object::<Container>::deserialize(container).err()?;
            let name = container.get("name").and_then(Value::as_str);
            let name = name.unwrap_or("without a name");
            Some(format!("spec.{list}[{index}] ({name}): {error}"))
        })
    })
}

/// A pod as written, before it is checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    #[serde(deserialize_with = "object")]
    metadata: Metadata,
    #[serde(deserialize_with = "spec")]
    spec: Option<Spec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(deserialize_with = "annotations")]
    annotations: Annotations,
}

impl Body {
    fn pod(self, owner: &Owner) -> Result<Pod, Unreadable> {
        let spec = self.spec.unwrap_or_default();
        check(&self.metadata.annotations, &spec)?;
        Ok(Pod::new(owner, self.metadata.annotations.all, spec))
    }
}

fn check(annotations: &Annotations, spec: &Spec) -> Result<(), TooLarge> {
    let (init, apps) = (&spec.init_containers, &spec.containers);
    let count = init.count.saturating_add(apps.count);
    if count > MAX_CONTAINERS {
        return Err(TooLarge::Containers { count });
    }
    if annotations.bytes > MAX_ANNOTATION_BYTES {
        let bytes = annotations.bytes;
        return Err(TooLarge::Annotations { bytes });
    }
    for (list, containers) in [("initContainers", init), ("containers", apps)] {
        let mut lengths = containers.iter().map(|it| it.name.len());
        if let Some(index) = lengths.position(|length| length > MAX_NAME_CHARS) {
            return Err(TooLarge::Name { list, index });
        }
    }
    Ok(())
}

/// Reads a pod inside an object, at the end of this path of fields.
struct Within<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Option<Body>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = Option<Body>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((first, rest)) = self.0.split_first() else {
            let body = Body::deserialize(MapAccessDeserializer::new(map))?;
            return Ok(body.spec.is_some().then_some(body));
        };
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == *first {
                found = map.next_value_seed(Within(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// The containers of a list, at most [`MAX_CONTAINERS`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Containers {
    all: Vec<Container>,
    /// Number of all containers, including those that were not kept.
    count: usize,
}

impl Deref for Containers {
    type Target = [Container];

    fn deref(&self) -> &[Container] {
        &self.all
    }
}

impl DerefMut for Containers {
    fn deref_mut(&mut self) -> &mut [Container] {
        &mut self.all
    }
}

impl Fold for Containers {
    type Item = Object<Container>;

    const EXPECTED: &str = "a list of containers";

    fn keeps_more(&self) -> bool {
        self.count < MAX_CONTAINERS
    }

    fn keep(&mut self, Object(container): Object<Container>) {
        self.all.push(container);
        self.skip();
    }

    fn skip(&mut self) {
        self.count = self.count.saturating_add(1);
    }
}

impl<'de> Deserialize<'de> for Containers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fold(deserializer)
    }
}

/// Kubernetes' `restartPolicyRules`, combined into one set of exit codes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RestartRules {
    pub are_there: bool,
    /// The exit codes after which kubelet creates the container again.
    pub codes: ExitCodes,
}

/// Kubernetes' `ContainerRestartRule` (KEP-5307).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartRule {
    #[serde(deserialize_with = "or_default")]
    action: String,
    #[serde(deserialize_with = "object")]
    exit_codes: RuleCodes,
}

/// Kubernetes' `ContainerRestartRuleOnExitCodes`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuleCodes {
    #[serde(deserialize_with = "or_default")]
    operator: String,
    values: Codes,
}

/// The exit codes of a rule, without codes outside of 0 to 255, which no Linux process has.
#[derive(Debug, Default)]
struct Codes(ExitCodes);

impl Fold for RestartRules {
    type Item = Object<RestartRule>;

    const EXPECTED: &str = "a list of rules";

    fn keep(&mut self, Object(rule): Object<RestartRule>) {
        self.are_there = true;
        let RuleCodes {
            operator,
            values: Codes(codes),
        } = rule.exit_codes;
        match (rule.action.as_str(), operator.as_str()) {
            ("Restart" | "RestartAllContainers", "In") => self.codes.extend(&codes),
            ("Restart" | "RestartAllContainers", "NotIn") => self.codes.extend(&codes.complement()),
            _ => {}
        }
    }
}

impl<'de> Deserialize<'de> for RestartRules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fold(deserializer)
    }
}

impl Fold for Codes {
    type Item = i64;

    const EXPECTED: &str = "a list of exit codes";

    fn keep(&mut self, code: i64) {
        if let Ok(code) = u8::try_from(code) {
            self.0.insert(code);
        }
    }
}

impl<'de> Deserialize<'de> for Codes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fold(deserializer)
    }
}

/// True if one of the capabilities lets a container change the network.
#[derive(Default)]
struct NetworkRights(bool);

impl Fold for NetworkRights {
    type Item = String;

    const EXPECTED: &str = "a list of capabilities";

    fn keep(&mut self, capability: String) {
        self.0 |= matches!(capability.as_str(), "NET_ADMIN" | "CAP_NET_ADMIN" | "ALL");
    }
}

/// A value that is computed from the items of a list while they are read.
trait Fold: Default {
    type Item;

    const EXPECTED: &str;

    /// True while the items of the list are kept. Further items are only counted.
    fn keeps_more(&self) -> bool {
        true
    }

    fn keep(&mut self, item: Self::Item);

    /// Counts an item that is not kept.
    fn skip(&mut self) {}
}

/// Reads a list; null is an empty list.
fn fold<'de, D: Deserializer<'de>, F>(deserializer: D) -> Result<F, D::Error>
where
    F: Fold<Item: Deserialize<'de>>,
{
    deserializer.deserialize_option(FoldVisitor(F::default()))
}

struct FoldVisitor<F>(F);

impl<'de, F: Fold<Item: Deserialize<'de>>> Visitor<'de> for FoldVisitor<F> {
    type Value = F;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(F::EXPECTED)
    }

    fn visit_none<E: Error>(self) -> Result<F, E> {
        Ok(self.0)
    }

    fn visit_unit<E: Error>(self) -> Result<F, E> {
        Ok(self.0)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<F, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<F, A::Error> {
        let FoldVisitor(mut folded) = self;
        while folded.keeps_more() {
            match list.next_element()? {
                Some(item) => folded.keep(item),
                None => return Ok(folded),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            folded.skip();
        }
        Ok(folded)
    }
}

/// Annotations, kept up to the size that Kubernetes accepts.
#[derive(Debug, Default)]
struct Annotations {
    all: BTreeMap<String, String>,
    /// Size of all keys and values, including those that were not kept.
    bytes: usize,
}

fn annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Annotations, D::Error> {
    named(
        "metadata.annotations",
        deserializer.deserialize_option(AnnotationsVisitor),
    )
}

struct AnnotationsVisitor;

impl<'de> Visitor<'de> for AnnotationsVisitor {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of annotations")
    }

    fn visit_none<E: Error>(self) -> Result<Annotations, E> {
        Ok(Annotations::default())
    }

    fn visit_unit<E: Error>(self) -> Result<Annotations, E> {
        Ok(Annotations::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Annotations, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut annotations = Annotations::default();
        while let Some((key, value)) = map.next_entry::<String, Option<String>>()? {
            let Some(value) = value else {
                continue;
            };
            let bytes = key.len().saturating_add(value.len());
            annotations.bytes = annotations.bytes.saturating_add(bytes);
            if annotations.bytes <= MAX_ANNOTATION_BYTES {
                annotations.all.insert(key, value);
            }
        }
        Ok(annotations)
    }
}

/// Reads null as the default value.
pub(super) fn or_default<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads null as an object without fields.
pub(super) fn object<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
{
    let Object(object) = or_default(deserializer)?;
    Ok(object)
}

/// Adds the field's name to an error that lacks it.
fn named<T, E: Error>(name: &str, read: Result<T, E>) -> Result<T, E> {
    read.map_err(|error| E::custom(format_args!("{name}: {error}")))
}

fn spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Spec>, D::Error> {
    let spec = named("spec", Option::<Object<Spec>>::deserialize(deserializer))?;
    Ok(spec.map(|Object(spec)| spec))
}

pub(super) fn amounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Amounts, D::Error> {
    let amounts = Option::<OfManifest>::deserialize(deserializer)?;
    Ok(amounts.map_or_else(Amounts::default, |OfManifest(amounts)| amounts))
}

struct OfManifest(Amounts);

impl<'de> Deserialize<'de> for OfManifest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Amounts::of_manifest(deserializer).map(OfManifest)
    }
}

pub(super) fn overhead<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Amounts>, D::Error> {
    let amounts = named("overhead", Option::<OfManifest>::deserialize(deserializer))?;
    Ok(amounts.map(|OfManifest(amounts)| amounts))
}

pub(super) fn requirements<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Requirements>, D::Error> {
    let given = Option::<Object<Requirements>>::deserialize(deserializer);
    Ok(named("resources", given)?.map(|Object(given)| given))
}

pub(super) fn resources<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Resources>, D::Error> {
    let Some(given) = requirements(deserializer)? else {
        return Ok(None);
    };
    let resources = Resources::new(given.requests, given.limits);
    named("resources", resources.map(Some).map_err(D::Error::custom))
}

pub(super) fn network_rights<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let NetworkRights(has_some) = fold(deserializer)?;
    Ok(has_some)
}
