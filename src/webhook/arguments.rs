//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Parser;

/// Adds the annotations that the usher shim needs to pods, and refuses what the shim would refuse
///
/// A Kubernetes admission webhook; scripts/kubernetes/webhook.yaml installs it. At /mutate it
/// completes pods that have usher annotations. At /mutate/namespace it also sets the runtime class
/// of all other pods, for namespaces whose pods all run under usher. At /validate it refuses pods,
/// and objects with a pod template, that the shim would refuse.
///
/// By default the webhook makes and renews its own certificate, and keeps it in a Secret. It writes
/// the certificate's authority into the webhook configurations. The Secret and the configurations
/// must exist. With --certificates the webhook reads a certificate from files, as cert-manager
/// writes them.
///
/// Clients need no certificate unless --client-ca is given. The API server has one if its
/// AdmissionConfiguration names a kubeconfig for webhooks.
#[derive(Debug, Clone, Parser)]
#[command(name = "usher-webhook", version)]
pub struct Arguments {
    /// Address for reviews, by HTTPS
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Address for /healthz, /readyz and /metrics, by HTTP
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    pub health: SocketAddr,
    /// Directory with the certificate in tls.crt and its key in tls.key; read again when they
    /// change [default: make one]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["secret", "service", "configuration"])]
    pub certificates: Option<PathBuf>,
    /// Authorities, in PEM, one of which has to sign the certificate of each client; read at the
    /// start [default: clients need none]
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Secret for the webhook's own certificate, in the webhook's namespace
    #[arg(long, value_name = "NAME", default_value = "usher-webhook")]
    pub secret: String,
    /// Service through which the API server calls the webhook
    #[arg(long, value_name = "NAME", default_value = "usher-webhook")]
    pub service: String,
    /// MutatingWebhookConfiguration and ValidatingWebhookConfiguration that get the authority of
    /// the webhook's own certificate
    #[arg(long, value_name = "NAME", default_value = "usher-webhook")]
    pub configuration: String,
    /// RuntimeClass that selects usher
    #[arg(long, value_name = "NAME", default_value = "usher")]
    pub runtime_class: String,
    /// config.toml of the cluster's nodes, by which pods are judged; read at the start [default:
    /// /etc/usher/config.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Seconds after SIGTERM for which the webhook still accepts connections, because some clients
    /// do not know of its end yet
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub drain: Duration,
}

/// Longest drain. A longer one is useless, because kubelet kills the pod at the end of its grace
/// period.
const MAX_DRAIN_SECONDS: u64 = 3600;

fn seconds(text: &str) -> anyhow::Result<Duration> {
    match text.parse() {
        Ok(seconds @ 0..=MAX_DRAIN_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => bail!("expected 0 to {MAX_DRAIN_SECONDS} seconds"),
    }
}
