//! What an admission takes of the program as it is released, and the memory of it:
//!
//!     cargo bench --package usher-webhook
//!
//! 200 reviews a second come for a minute, on eight connections, as from a few API servers. Each is a pod
//! with an annotation, of a proxy, an app and what injectors leave, in 9 kB. What one takes is counted
//! from the moment that it is due, TLS and HTTP included.
//!
//! Between any two of them comes a request that nothing is done for: it takes what the machine, its other
//! work and this program take for every request. What the program itself needs of a processor, and for how
//! long it waited for one that others had, the kernel says. On a busy machine `chrt -f 10 cargo bench …`
//! lets it wait for nobody.

use std::process::{Child, Command};
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
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use usher_webhook::certificate::Pair;

const HOST: &str = "usher-webhook.usher-webhook.svc";
const REVIEWS: &str = "127.0.0.1:18443";
const CONNECTIONS: u32 = 8;
const A_SECOND: u32 = 200;
const FOR: Duration = Duration::from_secs(60);

/// The program; it ends with the measurement.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::make(HOST, SystemTime::now()).expect("a certificate");
    fs::write(directory.path().join("tls.crt"), &pair.certificate).expect("a file");
    fs::write(directory.path().join("tls.key"), &pair.key).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher-webhook"));
    command.args(["--listen", REVIEWS, "--health", "127.0.0.1:18080"]);
    command.arg("--certificates").arg(directory.path());
    let program = Program(command.spawn().expect("the program"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let (reviews, nothing) = runtime.expect("a runtime").block_on(measure(&pair));
    let pid = program.0.id();
    println!("{} admissions, {A_SECOND} a second", reviews.len());
    println!("          admission     nothing");
    for (name, share) in [
        ("median", 0.5),
        ("p90", 0.9),
        ("p99", 0.99),
        ("p99.9", 0.999),
        ("longest", 1.0),
    ] {
        let [reviews, nothing] = [&reviews, &nothing].map(|took| at(took, share));
        println!("{name:8} {reviews:8.3} ms {nothing:8.3} ms");
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let memory = |line: &&str| line.starts_with("VmRSS") || line.starts_with("VmHWM");
    status
        .lines()
        .filter(memory)
        .for_each(|line| println!("{line}"));
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it runs");
    let mut times = times.split_whitespace().map(|it| it.parse::<f64>());
    for name in ["ran", "waited"] {
        let time = times.next().and_then(Result::ok).unwrap_or(f64::NAN);
        let each = time / 1e6 / reviews.len() as f64;
        println!("{name:8} {each:8.3} ms each");
    }
}

/// In milliseconds; `took` is sorted.
fn at(took: &[Duration], share: f64) -> f64 {
    let index = ((took.len() - 1) as f64 * share) as usize;
    took[index].as_secs_f64() * 1e3
}

/// What reviews took, and requests that nothing is done for; both sorted.
async fn measure(pair: &Pair) -> (Vec<Duration>, Vec<Duration>) {
    let body = Bytes::from(review().to_string());
    let period = Duration::from_secs(1) * CONNECTIONS / A_SECOND;
    let begin = Instant::now() + Duration::from_secs(1);
    let mut all = Vec::new();
    for index in 0..CONNECTIONS {
        let mut sender = connect(pair).await;
        let body = body.clone();
        all.push(tokio::spawn(async move {
            let (mut reviews, mut nothing) = (Vec::new(), Vec::new());
            let mut due = begin + Duration::from_secs(1) * index / A_SECOND;
            while due < begin + FOR {
                let request = Request::post("/mutate").body(Full::new(body.clone()));
                reviews.push(send(&mut sender, due, request, StatusCode::OK).await);
                let request = Request::get("/").body(Full::default());
                let between = due + period / 2;
                nothing.push(send(&mut sender, between, request, StatusCode::NOT_FOUND).await);
                due += period;
            }
            (reviews, nothing)
        }));
    }
    let (mut reviews, mut nothing) = (Vec::new(), Vec::new());
    for one in all {
        let took = one.await.expect("no answer was missing");
        reviews.extend(took.0);
        nothing.extend(took.1);
    }
    reviews.sort();
    nothing.sort();
    (reviews, nothing)
}

/// Sends a request when it is due, and says how long it then took until all of the answer was there.
async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    due: Instant,
    request: http::Result<Request<Full<Bytes>>>,
    expected: StatusCode,
) -> Duration {
    tokio::time::sleep_until(due.into()).await;
    // The timer is a millisecond late at most, which is not the program's.
    let from = Instant::now().min(due + Duration::from_millis(1));
    let mut request = request.expect("a request");
    let host = HeaderValue::from_static(HOST);
    request.headers_mut().insert("host", host);
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), expected);
    response.into_body().collect().await.expect("all of it");
    from.elapsed()
}

async fn connect(pair: &Pair) -> SendRequest<Full<Bytes>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&pair.authorities) {
        roots.add(authority.expect("PEM")).expect("an authority");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
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
