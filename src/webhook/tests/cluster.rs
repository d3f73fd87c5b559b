//! A fake API server that keeps objects in memory and rejects writes to an outdated version.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use k8s_openapi::ByteString;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::certificate::{CurrentCertificate, Manager, ObjectNames};

pub(super) const HOST: &str = "usher-webhook.usher-webhook.svc";

pub(super) const SECRET: &str = "/api/v1/namespaces/usher-webhook/secrets/usher-webhook";

pub(super) const CONFIGURATIONS: [&str; 2] = [
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/usher-webhook",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/usher-webhook",
];

/// Objects by their URL path.
#[derive(Clone)]
pub(super) struct Cluster(Arc<Mutex<BTreeMap<String, Value>>>);

impl Cluster {
    /// A cluster with the objects of scripts/kubernetes/webhook.yaml.
    pub(super) fn new() -> Cluster {
        let metadata = json!({ "name": "usher-webhook", "resourceVersion": "1" });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque",
        });
        let mut objects = BTreeMap::from([(SECRET.to_owned(), secret)]);
        let service = json!({ "name": "usher-webhook", "namespace": "usher-webhook" });
        for path in CONFIGURATIONS {
            let webhook = |name: &str| {
                let client = json!({ "service": service });
                json!({ "name": name, "future": "is kept", "clientConfig": client })
            };
            let configuration = json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "WebhookConfiguration",
                "metadata": metadata,
                "webhooks": [webhook("one.usher"), webhook("two.usher")],
            });
            objects.insert(path.to_owned(), configuration);
        }
        Cluster(Arc::new(Mutex::new(objects)))
    }

    pub(super) fn get(&self, path: &str) -> Value {
        self.0.lock().unwrap()[path].clone()
    }

    pub(super) fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().insert(path.to_owned(), object);
    }

    pub(super) fn remove(&self, path: &str) {
        self.0.lock().unwrap().remove(path);
    }

    pub(super) fn version(&self, path: &str) -> u64 {
        let version = self.get(path)["metadata"]["resourceVersion"].clone();
        version.as_str().expect("a version").parse().unwrap()
    }

    /// The `caBundle` of a configuration, which is the same in all its webhooks.
    pub(super) fn authorities(&self, configuration: &str) -> Vec<u8> {
        let object = self.get(configuration);
        let of = |index: usize| object["webhooks"][index]["clientConfig"]["caBundle"].clone();
        assert_eq!(of(0), of(1));
        let ByteString(bundle) = serde_json::from_value(of(0)).expect("a bundle");
        bundle
    }

    pub(super) fn manager(&self, served: CurrentCertificate) -> Manager {
        let names = ObjectNames {
            namespace: "usher-webhook".to_owned(),
            secret: "usher-webhook".to_owned(),
            service: "usher-webhook".to_owned(),
            configuration: "usher-webhook".to_owned(),
        };
        Manager::new(&self.client(), names, served)
    }

    fn client(&self) -> Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                // Lets the request of another client run first, so that write conflicts happen.
                tokio::task::yield_now().await;
                let (status, answer) = cluster.answer(&parts.method, parts.uri.path(), &body);
                let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "usher-webhook")
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let refused = |status: StatusCode, message: &str| {
            let answer = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": status.as_u16(), "message": message, "reason": "Why",
            });
            (status, answer)
        };
        let mut objects = self.0.lock().unwrap();
        let Some(object) = objects.get_mut(path) else {
            return refused(StatusCode::NOT_FOUND, "it is not found");
        };
        if method == Method::GET {
            return (StatusCode::OK, object.clone());
        }
        assert_eq!(method, Method::PUT);
        let mut new: Value = serde_json::from_slice(body).expect("JSON");
        let version = &object["metadata"]["resourceVersion"];
        if new["metadata"]["resourceVersion"] != *version {
            return refused(StatusCode::CONFLICT, "the object has been modified");
        }
        let version: u64 = version.as_str().unwrap().parse().unwrap();
        new["metadata"]["resourceVersion"] = (version + 1).to_string().into();
        *object = new.clone();
        (StatusCode::OK, new)
    }
}
