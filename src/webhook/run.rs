//! The program: certificate, reviews, health, and the end.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use usher_core::plan::Rules;

use crate::admission::Admission;
use crate::arguments::Arguments;
use crate::certificate::{Clients, Files, Keeper, Names, Served, Source};
use crate::metrics::Metrics;
use crate::server::{Reviews, Stage, health};
use usher_core::text::causes;

/// Runs the program with these arguments, of which the first is its name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(said) => {
            // Help that was asked for is no error, and goes to standard output.
            let _ = said.print();
            return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2));
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
        .map_err(|error| format!("the runtime: {error}"))
        .and_then(|runtime| runtime.block_on(run(arguments)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!("{why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let served = Served::default();
    let source = match arguments.certificates {
        Some(directory) => Source::Given(Files::new(directory, served.clone())),
        None => {
            let client = Client::try_default()
                .await
                .map_err(|error| format!("the API server: {}", causes(&error)))?;
            let names = Names {
                namespace: client.default_namespace().to_owned(),
                secret: arguments.secret,
                service: arguments.service,
                configuration: arguments.configuration,
            };
            Source::Own(Box::new(Keeper::new(&client, names, served.clone())))
        }
    };
    let program = Program {
        admission: Admission {
            rules: rules(arguments.config.as_deref())?,
            runtime_class: arguments.runtime_class,
        },
        served,
        source,
        metrics: Metrics::new().map_err(|error| format!("metrics: {error}"))?,
        clients: match &arguments.client_ca {
            Some(path) => Some(Clients::read(path)?),
            None => None,
        },
        reviews: listen(arguments.listen).await?,
        health: listen(arguments.health).await?,
        drain: arguments.drain,
    };
    let end = end().map_err(|error| format!("signals: {error}"))?;
    program.run(end).await
}

/// Where nodes have it.
const CONFIG: &str = "/etc/usher/config.toml";

/// What is named has to be there.
fn rules(named: Option<&Path>) -> Result<Rules, String> {
    let path = named.unwrap_or(Path::new(CONFIG));
    let wrong = |why: String| format!("{}: {why}", path.display());
    match std::fs::read_to_string(path) {
        Ok(text) => usher_core::config::parse(&text).map_err(wrong),
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
            Ok(Rules::default())
        }
        Err(error) => Err(wrong(error.to_string())),
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("{address}: {error}"))
}

/// SIGTERM, as kubelet sends it, or SIGINT.
fn end() -> std::io::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// All that runs.
pub struct Program {
    pub admission: Admission,
    pub served: Served,
    pub source: Source,
    pub metrics: Metrics,
    /// The clients whose certificates are demanded; `None`: none are.
    pub clients: Option<Clients>,
    /// Where reviews come in, and where health and metrics are asked for.
    pub reviews: TcpListener,
    pub health: TcpListener,
    /// For how long it answers when its end has come.
    pub drain: Duration,
}

// === impl Program ===

impl Program {
    /// Runs until `end`, and then until everybody is answered who has asked.
    ///
    /// # Errors
    ///
    /// If there can be no TLS, or no thread for health.
    pub async fn run(self, end: impl Future<Output = ()>) -> Result<(), String> {
        let (stage, stages) = watch::channel(Stage::Serving);
        let reviews = Reviews::new(
            self.admission,
            self.served.clone(),
            self.clients,
            self.metrics.clone(),
            stages.clone(),
        );
        let reviews = reviews.map_err(|error| format!("TLS: {error}"))?;
        let ending = async {
            end.await;
            tracing::info!("ends in {:?}, with all that was asked", self.drain);
            stage.send_replace(Stage::Draining);
            tokio::time::sleep(self.drain).await;
            stage.send_replace(Stage::Closing);
        };
        let metrics = self.metrics.clone();
        health(self.health, self.served, metrics, stages)
            .map_err(|error| format!("health: {error}"))?;
        let served = async { tokio::join!(reviews.serve(self.reviews), ending) };
        tokio::select! {
            _ = served => {}
            () = self.source.look_after(&self.metrics) => {}
        }
        Ok(())
    }
}
