//! Measures the latency of admissions and the memory of the release program:
//!
//!     cargo bench --package usher-webhook
//!
//! The benchmark sends 200 reviews a second for a minute, on eight connections, like a few API
//! servers. Each review has 9 kB: a pod with an annotation, a proxy, an app and the usual fields.
//! Latency is counted from the moment at which a request is due, and includes TLS and HTTP.
//!
//! Between two reviews comes a trivial request, which is refused at once: its latency is the
//! overhead of machine and connection. The kernel tells how long the program ran on a processor,
//! and how long it waited for one. On a busy machine, `chrt -f 10 cargo bench …` gives the
//! benchmark priority.
//!
//! With `--attack`, attackers send requests while the same reviews are sent (`scripts/attack`).

#![allow(clippy::restriction, reason = "a benchmark may panic")]

#[path = "bench/attack.rs"]
mod attack;

use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, process};

use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use usher_webhook::certificate::Pair;

const HOST: &str = "usher-webhook.usher-webhook.svc";
const REVIEWS: &str = "127.0.0.1:18443";
const HEALTH: &str = "127.0.0.1:18080";
const CONNECTIONS: u32 = 8;
const A_SECOND: u32 = 200;
const FOR: Duration = Duration::from_secs(60);

/// The program, which is killed on drop, and the directory of its certificate.
struct Program {
    child: Child,
    _certificate: TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(pair: &Pair) -> Program {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("tls.crt"), &pair.certificate).expect("a file");
        fs::write(directory.path().join("tls.key"), &pair.key).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_usher-webhook"));
        command.args(["--listen", REVIEWS, "--health", HEALTH]);
        command.arg("--certificates").arg(directory.path());
        let child = command.spawn().expect("the program");
        Program {
            child,
            _certificate: directory,
        }
    }

    /// Reads `/proc/PID/FILE` of the program.
    fn proc_file(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("it runs")
    }

    /// Peak of the resident memory.
    fn peak_memory_kib(&self) -> u64 {
        let status = self.proc_file("status");
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let most = most.and_then(|it| it.trim().strip_suffix(" kB"));
        most.and_then(|it| it.parse().ok()).expect("a figure")
    }
}

fn main() -> ExitCode {
    let pair = Pair::make(HOST, SystemTime::now()).expect("a certificate");
    // Ignore the argument `--bench`, which Cargo adds.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    if let Some(("--attack", words)) = words.split_first().map(|(first, rest)| (&**first, rest)) {
        return attack::main(&pair, words);
    }
    let program = Program::start(&pair);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let load = runtime.expect("a runtime").block_on(measure(&pair, FOR));
    let Load {
        reviews,
        nothing,
        lost,
    } = load;
    assert_eq!(lost, 0, "no answer was missing");
    println!("{} admissions, {A_SECOND} a second", reviews.len());
    println!("          admission     nothing");
    for (name, share) in [
        ("median", 0.5),
        ("p90", 0.9),
        ("p99", 0.99),
        ("p99.9", 0.999),
        ("longest", 1.0),
    ] {
        let [reviews, nothing] = [&reviews, &nothing].map(|took| quantile(took, share));
        println!("{name:8} {reviews:8.3} ms {nothing:8.3} ms");
    }
    let status = program.proc_file("status");
    let memory = |line: &&str| line.starts_with("VmRSS") || line.starts_with("VmHWM");
    status
        .lines()
        .filter(memory)
        .for_each(|line| println!("{line}"));
    let times = program.proc_file("schedstat");
    let mut times = times.split_whitespace().map(|it| it.parse::<f64>());
    for name in ["ran", "waited"] {
        let time = times.next().and_then(Result::ok).unwrap_or(f64::NAN);
        let each = time / 1e6 / reviews.len() as f64;
        println!("{name:8} {each:8.3} ms each");
    }
    ExitCode::SUCCESS
}

/// Quantile in milliseconds; `took` is sorted.
fn quantile(took: &[Duration], share: f64) -> f64 {
    let index = ((took.len() - 1) as f64 * share) as usize;
    took[index].as_secs_f64() * 1e3
}

/// Latencies of reviews and of trivial requests, both sorted.
#[derive(Default)]
struct Load {
    reviews: Vec<Duration>,
    nothing: Vec<Duration>,
    /// Number of pairs with a missing or unexpected response. A pair is a review and the trivial
    /// request after it.
    lost: usize,
}

async fn measure(pair: &Pair, time: Duration) -> Load {
    let body = Bytes::from(review().to_string());
    let period = Duration::from_secs(1) * CONNECTIONS / A_SECOND;
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        senders.push(connect(pair).await);
    }
    let begin = Instant::now() + Duration::from_secs(1);
    let mut all = Vec::new();
    for (index, mut sender) in (0..CONNECTIONS).zip(senders) {
        let (body, pair) = (body.clone(), pair.clone());
        all.push(tokio::spawn(async move {
            let mut load = Load::default();
            let mut due = begin + Duration::from_secs(1) * index / A_SECOND;
            while due < begin + time {
                let review = Request::post("/mutate").body(Full::new(body.clone()));
                let review = send(&mut sender, due, review, StatusCode::OK).await;
                let nothing = Request::get("/").body(Full::default());
                let between = due + period / 2;
                let nothing = send(&mut sender, between, nothing, StatusCode::NOT_FOUND).await;
                load.reviews.extend(review);
                load.nothing.extend(nothing);
                if review.is_none() || nothing.is_none() {
                    load.lost += 1;
                    sender = connect(&pair).await;
                }
                due += period;
            }
            load
        }));
    }
    let mut sum = Load::default();
    for one in all {
        let load = one.await.expect("it has only measured");
        sum.reviews.extend(load.reviews);
        sum.nothing.extend(load.nothing);
        sum.lost += load.lost;
    }
    sum.reviews.sort();
    sum.nothing.sort();
    sum
}

/// Sends a request when it is due, and returns the time until the whole response has come; `None`
/// without the expected response.
async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    due: Instant,
    request: http::Result<Request<Full<Bytes>>>,
    expected: StatusCode,
) -> Option<Duration> {
    tokio::time::sleep_until(due.into()).await;
    // The timer is up to a millisecond late, which does not count as latency of the program.
    let from = Instant::now().min(due + Duration::from_millis(1));
    let mut request = request.expect("a request");
    let host = HeaderValue::from_static(HOST);
    request.headers_mut().insert("host", host);
    let response = sender.send_request(request).await.ok()?;
    let is_expected = response.status() == expected;
    response.into_body().collect().await.ok()?;
    is_expected.then(|| from.elapsed())
}

fn tls(pair: &Pair) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&pair.authorities) {
        roots.add(authority.expect("PEM")).expect("an authority");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn connect(pair: &Pair) -> SendRequest<Full<Bytes>> {
    let connector = tls(pair);
    let name = ServerName::try_from(HOST).expect("a name");
    for _ in 0..200 {
        if let Ok(stream) = TcpStream::connect(REVIEWS).await {
            stream.set_nodelay(true).expect("a connection");
            if let Ok(stream) = connector.connect(name.clone(), stream).await {
                let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
                tokio::spawn(connection);
                return sender;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("the program does not answer at {REVIEWS}");
    process::exit(1);
}

fn review() -> Value {
    let field = |index: u32| (format!("f:field-{index}"), json!({ ".": {}, "f:name": {} }));
    let managed: serde_json::Map<String, Value> = (0..80).map(field).collect();
    let variable =
        |index: u32| json!({ "name": format!("VARIABLE_{index}"), "value": "x".repeat(40) });
    let container = |name: &str| {
        json!({
            "name": name,
            "image": format!("registry.example.com/shop/{name}:1.2.3"),
            "env": (0..12).map(variable).collect::<Vec<_>>(),
            "startupProbe": { "httpGet": { "path": "/ready", "port": 15021 }, "periodSeconds": 1 },
            "livenessProbe": { "httpGet": { "path": "/live", "port": 15021 } },
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
            "terminationMessagePath": "/dev/termination-log",
            "volumeMounts": [{ "name": "token", "mountPath": "/var/run/secrets", "readOnly": true }],
        })
    };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": "shop",
            "operation": "CREATE",
            "userInfo": { "username": "system:serviceaccount:kube-system:job-controller" },
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "generateName": "shop-",
                    "namespace": "shop",
                    "annotations": { "usher/sidecars": "*-proxy, logs?" },
                    "managedFields": [{
                        "manager": "kube-controller-manager", "operation": "Update",
                        "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": managed,
                    }],
                },
                "spec": {
                    "restartPolicy": "Never",
                    "initContainers": [container("setup")],
                    "containers": [container("mesh-proxy"), container("shop"), container("logs")],
                },
            },
            "oldObject": null,
            "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    })
}
