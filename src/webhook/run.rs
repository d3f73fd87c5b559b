//! The program: its setup, its servers and its shutdown.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use usher_core::plan::Rules;

use crate::admission::Admission;
use crate::arguments::Arguments;
use crate::certificate::{
    ClientAuthorities, CurrentCertificate, Files, Manager, ObjectNames, Source,
};
use crate::metrics::Metrics;
use crate::server::{Reviews, ServerState, health};
use usher_core::text::causes;

/// Runs the program; the first argument is its name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap reports `--help` as an error, too: it prints the help to standard output, and
            // the exit code is 0.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .context("cannot start the async runtime")
        .and_then(|runtime| runtime.block_on(run(arguments)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let served = CurrentCertificate::default();
    let source = match arguments.certificates {
        Some(directory) => Source::Files(Files::new(directory, served.clone())),
        None => {
            let client = Client::try_default()
                .await
                .context("cannot configure the connection to the API server")?;
            let names = ObjectNames {
                namespace: client.default_namespace().to_owned(),
                secret: arguments.secret,
                service: arguments.service,
                configuration: arguments.configuration,
            };
            Source::Managed(Box::new(Manager::new(&client, names, served.clone())))
        }
    };
    let program = Program {
        admission: Admission {
            rules: rules(arguments.config.as_deref())?,
            runtime_class: arguments.runtime_class,
        },
        served,
        source,
        metrics: Metrics::new().context("cannot register the metrics")?,
        clients: match &arguments.client_ca {
            Some(path) => Some(ClientAuthorities::read(path)?),
            None => None,
        },
        reviews: listen(arguments.listen).await?,
        health: listen(arguments.health).await?,
        drain: arguments.drain,
    };
    let end = termination_signal().context("cannot handle signals")?;
    program.run(end).await
}

/// Path of the configuration on nodes, used if no other is named.
const CONFIG: &str = "/etc/usher/config.toml";

/// Reads the nodes' rules. If the user names a file, the file has to exist; [`CONFIG`] need not
/// exist.
fn rules(named: Option<&Path>) -> anyhow::Result<Rules> {
    let path = named.unwrap_or(Path::new(CONFIG));
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let rules = usher_core::config::parse(&text);
            rules.with_context(|| path.display().to_string())
        }
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
            Ok(Rules::default())
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen at {address}"))
}

/// Completes at the first SIGTERM, which kubelet sends, or SIGINT.
fn termination_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// The program's parts, ready to run.
pub struct Program {
    pub admission: Admission,
    pub served: CurrentCertificate,
    pub source: Source,
    pub metrics: Metrics,
    /// Authorities that sign the certificates of clients; `None` if clients need no certificate.
    pub clients: Option<ClientAuthorities>,
    pub reviews: TcpListener,
    pub health: TcpListener,
    /// Time for which new connections are still accepted after the shutdown has begun.
    pub drain: Duration,
}

impl Program {
    /// Serves until `end` completes, and for the time `drain` after that. Then accepts no more
    /// connections, and returns when all open requests are answered.
    ///
    /// # Errors
    ///
    /// If TLS or the thread for health cannot be set up.
    pub async fn run(self, end: impl Future<Output = ()>) -> anyhow::Result<()> {
        let (state, states) = watch::channel(ServerState::Serving);
        let reviews = Reviews::new(
            self.admission,
            self.served.clone(),
            self.clients,
            self.metrics.clone(),
            states.clone(),
        );
        let reviews = reviews.context("cannot set up TLS")?;
        let ending = async {
            end.await;
            tracing::info!(
                "shutting down: accepting new connections for another {:?}",
                self.drain
            );
            state.send_replace(ServerState::Draining);
            tokio::time::sleep(self.drain).await;
            state.send_replace(ServerState::Closing);
        };
        let metrics = self.metrics.clone();
        health(self.health, self.served, metrics, states)
            .context("cannot start the thread for health")?;
        let served = async { tokio::join!(reviews.serve(self.reviews), ending) };
        tokio::select! {
            _ = served => {}
            () = self.source.maintain(&self.metrics) => {}
        }
        Ok(())
    }
}
