//! Another mutating webhook, which injects a container. The API server calls it before or after
//! ours.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::cluster::PATIENCE;
use crate::harness::{poll, shim_dir};
use crate::machine::with_us;
use crate::pod::Case;

const ADDRESS: &str = "127.0.0.1:9443";

/// The injector's program (`src/webhook/injector.rs`) and its webhook configurations. Removed on
/// drop.
pub struct Injector<'a> {
    case: &'a Case<'a>,
    program: Child,
    configurations: Vec<String>,
}

impl<'a> Injector<'a> {
    pub fn start(case: &'a Case<'a>) -> Self {
        let directory = directory(case);
        fs::create_dir_all(&directory).expect("a directory");
        let _ = fs::remove_file(directory.join("authority.json"));
        let program = shim_dir().join("examples/injector").display().to_string();
        // The child of the test is nsenter, so the program writes its own process id to a file.
        let script = "echo $$ >\"$1/pid\"; exec \"$2\" \"$3\" \"$1\"";
        let words = ["sh", "-c", script, "sh"];
        let path = directory.display().to_string();
        let words = [&words[..], &[&path, &program, ADDRESS]].concat();
        let mut command = case.cluster.on_machine(&words);
        command.stdin(Stdio::null());
        command.stdout(case.cluster.log("injector"));
        command.stderr(case.cluster.log("injector"));
        with_us(&mut command);
        let program = command.spawn().expect("nsenter");
        let injector = Self {
            case,
            program,
            configurations: Vec::new(),
        };
        let answers = || directory.join("authority.json").exists().then_some(());
        let tail = || case.cluster.log_tail("injector", 20);
        assert!(poll(PATIENCE, answers).is_some(), "{}", tail());
        injector
    }

    /// Injects a container into the case's pods with the label `inject: CONFIGURATION`. The API
    /// server calls webhooks in the order of their configurations' names.
    pub fn inject(&mut self, configuration: &str, list: &str, container: &Value) {
        let directory = directory(self.case);
        let injected = json!({ "list": list, "container": container });
        let file = directory.join(format!("{configuration}.json"));
        fs::write(file, injected.to_string()).expect("a file");
        let authority = directory.join("authority.json");
        let authority = fs::read(authority).expect("whom to believe");
        let authority: Value = serde_json::from_slice(&authority).expect("base64");
        let own = &self.case.namespace;
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": configuration },
            "webhooks": [{
                "name": "injector.example.com",
                "clientConfig": {
                    "url": format!("https://{ADDRESS}/{configuration}"),
                    "caBundle": authority,
                },
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                    "operations": ["CREATE"],
                }],
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": own } },
                "objectSelector": { "matchLabels": { "inject": configuration } },
                "reinvocationPolicy": "Never", "failurePolicy": "Fail", "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        });
        self.case.cluster.apply(&[object]);
        self.configurations.push(configuration.to_owned());
    }
}

impl Drop for Injector<'_> {
    fn drop(&mut self) {
        for name in &self.configurations {
            let kind = "mutatingwebhookconfiguration";
            self.case.cluster.kubectl(&["delete", kind, name]);
        }
        let pid = fs::read_to_string(directory(self.case).join("pid")).unwrap_or_default();
        let mut command = self.case.cluster.on_machine(&["kill", "-KILL", pid.trim()]);
        let _ = command.status();
        let _ = self.program.wait();
    }
}

fn directory(case: &Case) -> PathBuf {
    case.cluster.path("injector").join(&case.namespace)
}
