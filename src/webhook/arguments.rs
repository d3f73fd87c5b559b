//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Writes down for the usher shim what a pod's spec says, and refuses what the shim would refuse
///
/// An admission webhook of Kubernetes. It answers reviews of pods at /mutate, and of pods and what has a
/// template of them at /validate; at /mutate/namespace pods that say nothing of usher get the runtime
/// class as well, for namespaces that ask for it. scripts/kubernetes/webhook.yaml installs it.
///
/// Its certificate it makes by itself, and renews it in time: it is kept in a Secret, and told to the API
/// server in the webhook configurations, all of which have to be there. Or it reads one from files, as
/// cert-manager makes them.
///
/// A client without a certificate is heard, unless --client-ca says whose certificates are taken: the API
/// server has one where its AdmissionConfiguration names a kubeconfig for webhooks.
#[derive(Debug, Clone, Parser)]
#[command(name = "usher-webhook", version)]
pub struct Arguments {
    /// Where reviews are answered, by HTTPS
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are answered, by HTTP
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    pub health: SocketAddr,
    /// Reads the certificate from tls.crt and tls.key in this directory, and again when they change [default: makes its own]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["secret", "service", "configuration"])]
    pub certificates: Option<PathBuf>,
    /// Demands certificates of clients, by these authorities in PEM; read once [default: anybody may ask]
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// The Secret that its own certificate is kept in, in its own namespace
    #[arg(long, value_name = "NAME", default_value = "usher-webhook")]
    pub secret: String,
    /// The Service by which the API server calls it
    #[arg(long, value_name = "NAME", default_value = "usher-webhook")]
    pub service: String,
    /// The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration that are told of its own certificate
    #[arg(long, value_name = "NAME", default_value = "usher-webhook")]
    pub configuration: String,
    /// The RuntimeClass that selects usher
    #[arg(long, value_name = "NAME", default_value = "usher")]
    pub runtime_class: String,
    /// The config.toml of the cluster's nodes, by which pods are judged; read once [default: /etc/usher/config.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// For so many seconds after SIGTERM it answers whoever has not heard of its end
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub drain: Duration,
}

/// Longer than a kubelet waits is of no use.
const MAX_DRAIN_SECONDS: u64 = 3600;

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0..=MAX_DRAIN_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("expected 0 to {MAX_DRAIN_SECONDS} seconds")),
    }
}
