//! The API server, as the user's kubeconfig has it.

use std::error::Error;

use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Resource;
use kube::core::params::GetParams;
use kube::{Client, Config};
use usher::text::causes;

use crate::arguments::Whereabouts;

/// An API server, and the user's namespace there.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    pub namespace: String,
}

/// What the API server said that is no answer.
#[derive(Debug)]
pub enum No {
    /// The user may not ask that.
    Forbidden(String),
    /// There is no such thing.
    Missing(String),
    /// Anything else, or nothing.
    Because(String),
}

impl Cluster {
    /// Nothing is asked yet, unless the user's credentials come from a program.
    ///
    /// # Errors
    ///
    /// In a sentence, if there is no kubeconfig, or it does not tell where to go and as whom.
    pub async fn of(whereabouts: &Whereabouts) -> Result<Cluster, String> {
        let wrong = |error: &dyn Error| format!("the kubeconfig cannot be used: {}", causes(error));
        let file = match &whereabouts.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let options = KubeConfigOptions {
            context: whereabouts.context.clone(),
            ..KubeConfigOptions::default()
        };
        let file = file.map_err(|error| wrong(&error))?;
        let config = Config::from_custom_kubeconfig(file, &options).await;
        let config = config.map_err(|error| wrong(&error))?;
        let namespace = whereabouts.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| wrong(&error))?;
        Ok(Cluster { client, namespace })
    }

    /// A pod, with every field that the API server has of it.
    ///
    /// # Errors
    ///
    /// If it is not there, or cannot be had.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<String, No> {
        let path = Pod::url_path(&(), Some(namespace));
        let request = kube::core::Request::new(path).get(name, &GetParams::default());
        let request = request.map_err(|error| No::Because(causes(&error)))?;
        let text = self.client.request_text(request).await;
        text.map_err(No::from)
    }
}

impl From<kube::Error> for No {
    fn from(error: kube::Error) -> No {
        match error {
            kube::Error::Api(status) if status.code == 403 => No::Forbidden(status.message),
            kube::Error::Api(status) if status.code == 404 => No::Missing(status.message),
            kube::Error::Api(status) => No::Because(status.message),
            error => No::Because(causes(&error)),
        }
    }
}

impl No {
    /// What was said.
    pub fn words(&self) -> &str {
        match self {
            No::Forbidden(words) | No::Missing(words) | No::Because(words) => words,
        }
    }
}
