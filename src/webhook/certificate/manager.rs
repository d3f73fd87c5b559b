//! A certificate that the webhook makes itself, and on which all replicas agree.
//!
//! The certificate in the Secret is the one to use. If a replica finds no certificate there, or one
//! that expires soon, it makes a new one and writes it to the Secret. If another replica was
//! faster, the API server rejects the write as a conflict, and the replica uses the certificate of
//! the other replica. Then the replica writes the authority of the certificate into the webhook
//! configurations. Replicas start using the certificate at their next check, when every API server
//! has had time to see the new authority. The previous authority stays in the configurations, so
//! that the API server still trusts a replica that has not switched yet.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{CurrentCertificate, Pair};
use usher_core::text::causes;

/// Remaining validity at which a certificate is renewed, a third of the validity of a new one.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Write conflicts tolerated in a row.
const MAX_CONFLICTS: u32 = 8;

/// Names of the webhook's objects in the cluster.
#[derive(Debug, Clone)]
pub struct ObjectNames {
    pub namespace: String,
    pub secret: String,
    pub service: String,
    pub configuration: String,
}

/// Makes, renews and publishes the certificate.
pub struct Manager {
    names: ObjectNames,
    /// DNS name by which the API server calls the Service.
    host: String,
    secrets: Api<Secret>,
    configurations: [(&'static str, Api<DynamicObject>); 2],
    put_params: PostParams,
    served: CurrentCertificate,
    /// The certificate in use.
    serving: Option<Pair>,
    /// The certificate in the Secret at the last check.
    seen: Option<Pair>,
}

impl Manager {
    /// Keeps the certificate in a Secret, and its authority in the webhook configurations.
    pub fn new(client: &Client, names: ObjectNames, served: CurrentCertificate) -> Manager {
        let mutating = ApiResource::erase::<MutatingWebhookConfiguration>(&());
        let validating = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
        Manager {
            host: format!("{}.{}.svc", names.service, names.namespace),
            secrets: Api::namespaced(client.clone(), &names.namespace),
            configurations: [
                (
                    "MutatingWebhookConfiguration",
                    Api::all_with(client.clone(), &mutating),
                ),
                (
                    "ValidatingWebhookConfiguration",
                    Api::all_with(client.clone(), &validating),
                ),
            ],
            names,
            put_params: PostParams::default(),
            served,
            serving: None,
            seen: None,
        }
    }

    /// Checks the Secret, the webhook configurations and the certificate in use, and corrects them.
    /// Returns true if the certificate in use has changed.
    ///
    /// # Errors
    ///
    /// If an object is missing, or the API server fails; the previous certificate stays in use.
    pub async fn reconcile(&mut self, now: SystemTime) -> anyhow::Result<bool> {
        let pair = self.agree(now).await?;
        let changed = self.publish_authorities(&pair).await?;
        let is_served = self.serving.as_ref() == Some(&pair);
        let is_known = !changed && self.seen.as_ref() == Some(&pair);
        let serving = self.serving.as_ref();
        let has_valid = serving.is_some_and(|serving| serving.is_valid(&self.host, now));
        let switches = !is_served && (is_known || !has_valid);
        if switches {
            let certified = pair
                .certified()
                .with_context(|| format!("cannot use Secret {}", self.names.secret))?;
            self.served.set(certified);
            self.serving = Some(pair.clone());
        }
        self.seen = Some(pair);
        Ok(switches)
    }

    /// Returns the certificate of the Secret, on which all replicas agree. First replaces the
    /// certificate if it is missing, invalid or due for renewal.
    async fn agree(&self, now: SystemTime) -> anyhow::Result<Pair> {
        let name = &self.names.secret;
        let until = now.checked_add(RENEW_BEFORE).unwrap_or(now);
        let (pair, is_new) = self
            .change("Secret", &self.secrets, name, |secret| {
                let old = pair_of(secret).filter(|pair| pair.is_valid(&self.host, now));
                if let Some(pair) = &old
                    && pair.is_valid(&self.host, until)
                {
                    return Ok((pair.clone(), false));
                }
                let mut pair = Pair::make(&self.host, now)?;
                // If the Secret was emptied, replicas still use the certificate in `serving`.
                let serving = self.serving.as_ref();
                let serving = serving.filter(|pair| pair.is_valid(&self.host, now));
                if let Some(old) = old.as_ref().or(serving) {
                    pair.trust_authority_of(old);
                }
                put_pair(secret, &pair);
                Ok((pair, true))
            })
            .await?;
        if is_new {
            tracing::info!("wrote a new certificate to Secret {name}");
        }
        Ok(pair)
    }

    /// Writes the authorities into the webhook configurations. Returns true if a configuration has
    /// changed.
    async fn publish_authorities(&self, pair: &Pair) -> anyhow::Result<bool> {
        let mut changed = false;
        for (kind, api) in &self.configurations {
            let name = &self.names.configuration;
            let put = |configuration: &mut DynamicObject| {
                let changes = put_authorities(&mut configuration.data, &pair.authorities);
                Ok(((), changes))
            };
            let ((), is_changed) = self.change(kind, api, name, put).await?;
            changed |= is_changed;
        }
        Ok(changed)
    }

    /// Reads an object, changes it by `change` and writes it back; starts over after a write
    /// conflict. `change` returns a value, and true if the object has changed. This function
    /// returns both.
    async fn change<K, T>(
        &self,
        kind: &str,
        api: &Api<K>,
        name: &str,
        change: impl Fn(&mut K) -> anyhow::Result<(T, bool)>,
    ) -> anyhow::Result<(T, bool)>
    where
        K: Clone + Debug + DeserializeOwned + Serialize,
    {
        let wrong = |verb: &str, error: kube::Error| {
            anyhow!("cannot {verb} {kind} {name}: {}", sentence(&error))
        };
        for _ in 0..MAX_CONFLICTS {
            let object = api.get(name).await;
            let mut object = object.map_err(|error| wrong("get", error))?;
            let (value, is_changed) = change(&mut object)?;
            if !is_changed {
                return Ok((value, false));
            }
            match api.replace(name, &self.put_params, &object).await {
                Ok(_) => return Ok((value, true)),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(wrong("replace", error)),
            }
        }
        bail!("cannot replace {kind} {name}: {MAX_CONFLICTS} write conflicts in a row")
    }
}

/// Keys of a Secret of type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";

fn pair_of(secret: &Secret) -> Option<Pair> {
    let data = secret.data.as_ref()?;
    let field = |name| data.get(name).map(|ByteString(bytes)| bytes.clone());
    Some(Pair {
        certificate: field(CERTIFICATE)?,
        key: field(KEY)?,
        authorities: field(AUTHORITIES)?,
    })
}

fn put_pair(secret: &mut Secret, pair: &Pair) {
    let fields = [
        (CERTIFICATE, &pair.certificate),
        (KEY, &pair.key),
        (AUTHORITIES, &pair.authorities),
    ];
    let data = secret.data.get_or_insert_with(BTreeMap::new);
    for (name, bytes) in fields {
        data.insert(name.to_owned(), ByteString(bytes.clone()));
    }
}

/// Writes the authorities into all webhooks of a configuration. Returns true if this changes the
/// configuration.
fn put_authorities(configuration: &mut Value, authorities: &[u8]) -> bool {
    let Ok(authorities) = serde_json::to_value(ByteString(authorities.to_vec())) else {
        return false;
    };
    let webhooks = configuration.get_mut("webhooks");
    let webhooks = webhooks.and_then(Value::as_array_mut).into_iter().flatten();
    let mut changed = false;
    for webhook in webhooks {
        let client = webhook.get_mut("clientConfig");
        let Some(client) = client.and_then(Value::as_object_mut) else {
            continue;
        };
        if client.get("caBundle") != Some(&authorities) {
            client.insert("caBundle".to_owned(), authorities.clone());
            changed = true;
        }
    }
    changed
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// The API server's message, or why the request failed.
fn sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => causes(error),
    }
}
