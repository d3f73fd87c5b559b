//! A certificate of our own, on which all replicas agree.
//!
//! The Secret decides. Whoever finds in it no certificate that is good for long enough makes one and puts
//! it there, unless another replica was faster: the API server takes a change only from who has seen the
//! last one. Then the authority goes into the webhook configurations, and only later, when every API
//! server has had the time to see it there, is the certificate used. The authority of the one before stays
//! in them, so that a replica which has not come to that yet is believed as well.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

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

use super::{Pair, Served};
use usher_core::text::causes;

/// A certificate is renewed when it is good for no more than this: a third of its time.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Others may be faster so often in a row.
const ATTEMPTS: u32 = 8;

/// What it is all called.
#[derive(Debug, Clone)]
pub struct Names {
    pub namespace: String,
    pub secret: String,
    pub service: String,
    pub configuration: String,
}

/// Keeps a certificate of our own.
pub struct Keeper {
    names: Names,
    /// The name by which the API server calls the Service.
    host: String,
    secrets: Api<Secret>,
    configurations: [(&'static str, Api<DynamicObject>); 2],
    /// How objects are put back.
    as_usual: PostParams,
    served: Served,
    /// What is served, and what the Secret had when it was last looked at.
    serving: Option<Pair>,
    seen: Option<Pair>,
}

// === impl Keeper ===

impl Keeper {
    pub fn new(client: &Client, names: Names, served: Served) -> Keeper {
        let mutating = ApiResource::erase::<MutatingWebhookConfiguration>(&());
        let validating = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
        Keeper {
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
            as_usual: PostParams::default(),
            served,
            serving: None,
            seen: None,
        }
    }

    /// Looks whether all is as it should be, and makes it so; true if another certificate is served than
    /// before.
    ///
    /// # Errors
    ///
    /// One sentence; the certificate from before is served on.
    pub async fn tend(&mut self, now: SystemTime) -> Result<bool, String> {
        let pair = self.agree(now).await?;
        let changed = self.tell(&pair).await?;
        let is_served = self.serving.as_ref() == Some(&pair);
        let is_known = !changed && self.seen.as_ref() == Some(&pair);
        let serving = self.serving.as_ref();
        let has_good = serving.is_some_and(|serving| serving.is_good(&self.host, now));
        let takes_it = !is_served && (is_known || !has_good);
        if takes_it {
            let certified = pair
                .certified()
                .map_err(|error| format!("Secret {}: {error}", self.names.secret))?;
            self.served.set(certified);
            self.serving = Some(pair.clone());
        }
        self.seen = Some(pair);
        Ok(takes_it)
    }

    /// The certificate that all replicas have: that of the Secret, after one of them has seen to it.
    async fn agree(&self, now: SystemTime) -> Result<Pair, String> {
        let name = &self.names.secret;
        let until = now.checked_add(RENEWED_BEFORE).unwrap_or(now);
        let (pair, is_new) = self
            .change("Secret", &self.secrets, name, |secret| {
                let old = pair_of(secret).filter(|pair| pair.is_good(&self.host, now));
                if let Some(pair) = &old
                    && pair.is_good(&self.host, until)
                {
                    return Ok((pair.clone(), false));
                }
                let mut pair = Pair::make(&self.host, now)?;
                // Somebody may have emptied the Secret; then it is still served.
                let serving = self.serving.as_ref();
                let serving = serving.filter(|pair| pair.is_good(&self.host, now));
                if let Some(old) = old.as_ref().or(serving) {
                    pair.succeed(old);
                }
                put_pair(secret, &pair);
                Ok((pair, true))
            })
            .await?;
        if is_new {
            tracing::info!("Secret {name} has a new certificate");
        }
        Ok(pair)
    }

    /// Sees to it that the API server believes the authorities; true if it did not know them all before.
    async fn tell(&self, pair: &Pair) -> Result<bool, String> {
        let mut changed = false;
        for (kind, api) in &self.configurations {
            let name = &self.names.configuration;
            let tell = |configuration: &mut DynamicObject| {
                let tells = put_authorities(&mut configuration.data, &pair.authorities);
                Ok(((), tells))
            };
            let ((), is_new) = self.change(kind, api, name, tell).await?;
            changed |= is_new;
        }
        Ok(changed)
    }

    /// Changes an object, once more if somebody else was faster. `change` is given it as it is, and says
    /// something about it and whether it has changed it; that is given back.
    async fn change<K, T>(
        &self,
        kind: &str,
        api: &Api<K>,
        name: &str,
        change: impl Fn(&mut K) -> Result<(T, bool), String>,
    ) -> Result<(T, bool), String>
    where
        K: Clone + Debug + DeserializeOwned + Serialize,
    {
        let wrong = |error: kube::Error| format!("{kind} {name}: {}", sentence(&error));
        for _ in 0..ATTEMPTS {
            let mut object = api.get(name).await.map_err(wrong)?;
            let (said, is_changed) = change(&mut object)?;
            if !is_changed {
                return Ok((said, false));
            }
            match api.replace(name, &self.as_usual, &object).await {
                Ok(_) => return Ok((said, true)),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(wrong(error)),
            }
        }
        Err(format!(
            "{kind} {name}: somebody else changed it {ATTEMPTS} times in a row"
        ))
    }
}

/// What a Secret of type `kubernetes.io/tls` calls them.
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

/// Puts them into all webhooks of a configuration; true if that changes it.
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

/// What the API server says, or why it says nothing.
fn sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => causes(error),
    }
}
