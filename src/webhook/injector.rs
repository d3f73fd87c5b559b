//! A webhook that injects containers, like those of meshes and agents. Tests run it beside ours.
//!
//!     injector ADDR DIRECTORY
//!
//! For a review at `/NAME` the injector reads `DIRECTORY/NAME.json`, for example `{"list":
//! "containers", "container": {…}}` (or `initContainers`), and inserts that container at the front
//! of the list unless the pod already has it. The injector makes its own certificate. Once it
//! listens, `DIRECTORY/authority.json` has the authority in the form of a `caBundle`.

#![allow(clippy::restriction, reason = "a test may panic")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{env, fs};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use rustls::ServerConfig;
use rustls::crypto::ring;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use usher_webhook::certificate::{CurrentCertificate, Pair};

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let [address, directory] = &words[..] else {
        panic!("expected ADDR DIRECTORY, not {words:?}");
    };
    let address: SocketAddr = address.parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let serving = serve(address, PathBuf::from(directory));
    runtime.expect("a runtime").block_on(serving);
}

async fn serve(address: SocketAddr, directory: PathBuf) {
    let pair = Pair::make(&address.ip().to_string(), SystemTime::now()).expect("a certificate");
    let served = CurrentCertificate::default();
    served.set(pair.certified().expect("what was just made"));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(served));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address).await.expect("its address");
    // Write another file and rename it, so that a reader never sees a part of the file.
    let unfinished = directory.join("unfinished");
    let bundle = serde_json::to_vec(&ByteString(pair.authorities)).expect("base64");
    fs::write(&unfinished, bundle).expect("a file");
    fs::rename(unfinished, directory.join("authority.json")).expect("a file");
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        tokio::spawn(connection(acceptor.clone(), stream, directory.clone()));
    }
}

async fn connection(acceptor: TlsAcceptor, stream: TcpStream, directory: PathBuf) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(|request: Request<Incoming>| {
        let file = directory.join(format!("{}.json", request.uri().path().trim_matches('/')));
        async move {
            let body = request.into_body().collect().await.expect("a body");
            let answer = answer(&file, &body.to_bytes());
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer.to_string()))))
        }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(file: &Path, body: &[u8]) -> Value {
    let injected = fs::read(file).expect("what is injected");
    let injected: Value = serde_json::from_slice(&injected).expect("JSON");
    let review: Value = serde_json::from_slice(body).expect("a review");
    let request = &review["request"];
    let mut response = json!({ "uid": request["uid"], "allowed": true });
    if let Some(patch) = patch(&request["object"]["spec"], &injected) {
        response["patchType"] = "JSONPatch".into();
        let patch = ByteString(patch.to_string().into_bytes());
        response["patch"] = serde_json::to_value(patch).expect("base64");
    }
    json!({ "apiVersion": review["apiVersion"], "kind": review["kind"], "response": response })
}

fn patch(spec: &Value, injected: &Value) -> Option<Value> {
    let (list, container) = (injected["list"].as_str()?, &injected["container"]);
    let path = format!("/spec/{list}");
    Some(match spec[list].as_array() {
        Some(all) if all.iter().any(|it| it["name"] == container["name"]) => return None,
        Some(_) => json!([{ "op": "add", "path": format!("{path}/0"), "value": container }]),
        None => json!([{ "op": "add", "path": path, "value": [container] }]),
    })
}
