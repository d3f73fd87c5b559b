//! The API server, reached by the user's kubeconfig.

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Resource;
use kube::core::params::GetParams;
use kube::{Client, Config};
use usher_core::text::causes;

use crate::arguments::ClusterOptions;

/// An API server, and the user's namespace there.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    pub namespace: String,
}

/// The reason why a request to the API server failed, with a message.
#[derive(Debug)]
pub enum ApiError {
    Forbidden(String),
    Missing(String),
    /// Another error, or no response.
    Other(String),
}

impl Cluster {
    /// Reads the kubeconfig. No request is sent, but a credential plugin of the kubeconfig may run.
    ///
    /// # Errors
    ///
    /// If there is no kubeconfig, or it lacks a cluster or a user.
    pub async fn connect(options: &ClusterOptions) -> anyhow::Result<Cluster> {
        const WRONG: &str = "cannot use the kubeconfig";
        let file = match &options.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let kube_options = KubeConfigOptions {
            context: options.context.clone(),
            ..KubeConfigOptions::default()
        };
        let file = file.context(WRONG)?;
        let config = Config::from_custom_kubeconfig(file, &kube_options).await;
        let config = config.context(WRONG)?;
        let namespace = options.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context(WRONG)?;
        Ok(Cluster { client, namespace })
    }

    /// Gets a pod as JSON, with all its fields.
    ///
    /// # Errors
    ///
    /// If the pod does not exist or cannot be read.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<String, ApiError> {
        let path = Pod::url_path(&(), Some(namespace));
        let request = kube::core::Request::new(path).get(name, &GetParams::default());
        let request = request.map_err(|error| ApiError::Other(causes(&error)))?;
        let text = self.client.request_text(request).await;
        text.map_err(ApiError::from)
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> ApiError {
        match error {
            kube::Error::Api(status) if status.code == 403 => ApiError::Forbidden(status.message),
            kube::Error::Api(status) if status.code == 404 => ApiError::Missing(status.message),
            kube::Error::Api(status) => ApiError::Other(status.message),
            error => ApiError::Other(causes(&error)),
        }
    }
}

impl ApiError {
    /// The message of the API server.
    pub fn message(&self) -> &str {
        match self {
            ApiError::Forbidden(text) | ApiError::Missing(text) | ApiError::Other(text) => text,
        }
    }
}
