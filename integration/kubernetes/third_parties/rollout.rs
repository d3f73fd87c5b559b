//! A rolling update under constant load: an app with a proxy and a log shipper, both programs of
//! other projects.
//!
//! The app sends its own requests through the proxy, and serves the requests that come in through
//! the proxy. After its stop signal, the app works for some seconds more, as an app does that ends
//! its open work. All containers of a pod use only files in two directories: `/shared`, where the
//! results are, and `/logs`, which belongs to the pod.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE};
use crate::harness::{Background, eventually};
use crate::pod::{Case, Pod, script, with};

use super::{HAPROXY, NGINX, RSYSLOG, import_packages};

const REPLICAS: usize = 4;
/// Number of rolling updates of each kind.
const ROUNDS: usize = 3;

/// The order of the pod's containers.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// The proxy and the log shipper are ordinary containers, which Kubernetes does not order.
    None,
    /// The proxy and the log shipper are native sidecars.
    Native,
    /// The proxy and the log shipper are sidecars of usher.
    Usher,
}

impl Order {
    const ALL: [Self; 3] = [Self::None, Self::Native, Self::Usher];

    fn title(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Native => "native sidecars",
            Self::Usher => "usher",
        }
    }
}

struct Proxy {
    name: &'static str,
    image: &'static str,
    command: &'static [&'static str],
    /// The configuration file. `BACKEND` stands for the address of the backend.
    config: &'static str,
}

/// Both proxies listen on port 8080 for requests to the app, and on port 8081 for requests of the
/// app to the backend.
const PROXIES: [Proxy; 2] = [
    Proxy {
        name: "nginx",
        image: NGINX,
        command: &["nginx", "-c", "/shared/proxy.conf", "-g", "daemon off;"],
        config: "
user root;
pid /tmp/nginx.pid;
error_log stderr crit;
events {}
http {
    access_log off;
    client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    # nc closes its side of the connection when it has sent the request.
    proxy_ignore_client_abort on;
    server { listen 8080; location / { proxy_pass http://127.0.0.1:9000; } }
    server { listen 8081; location / { proxy_pass http://BACKEND:8080; } }
}
",
    },
    Proxy {
        name: "haproxy",
        image: HAPROXY,
        command: &["haproxy", "-W", "-db", "-f", "/shared/proxy.conf"],
        config: "
defaults
    mode http
    timeout connect 1s
    timeout client 10s
    timeout server 10s
frontend in
    bind :8080
    default_backend app
frontend out
    bind :8081
    default_backend world
backend app
    server app 127.0.0.1:9000
backend world
    server world BACKEND:8080
",
    },
];

const SHIPPER_CONFIG: &str = r#"
global(workDirectory="/tmp")
module(load="imfile" mode="inotify")
input(type="imfile" File="/logs/app.log" Tag="app")
template(name="line" type="string" string="%msg%\n")
template(name="file" type="string" string="/shared/shipped-%hostname%")
action(type="omfile" dynaFile="file" template="line")
"#;

/// Makes a request through the proxy every 20 ms, and logs a line for each request. 150 requests
/// after the stop signal, the app exits.
const APP: &str = r#"
mkdir -p /tmp/www && echo served >/tmp/www/index.html && httpd -p 9000 -h /tmp/www
stopped=
trap 'stopped=1' TERM
calls=0 left=150
while [ $left -gt 0 ]; do
    [ -z "$stopped" ] || left=$((left - 1))
    calls=$((calls + 1))
    printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 2 127.0.0.1 8081 2>/dev/null | grep -q served ||
        echo "$HOSTNAME $calls" >>/shared/failed-calls
    echo "line $calls" >>/logs/app.log
    echo $calls >/shared/calls-$HOSTNAME
    sleep 0.02
done
"#;

/// Writes the addresses of the Service to a file whenever they change, as kube-proxy writes them
/// into the kernel's tables.
const WATCH: &str = r#"
cd "$2"
kubectl --namespace "$1" get endpoints app --watch \
    --output 'jsonpath={.subsets[*].addresses[*].ip}{"\n"}' 2>/dev/null > >(
    while read -r line; do
        [ -z "$line" ] || { echo "$line" >endpoints.new && mv endpoints.new endpoints; }
    done
) &
until [ -e load-may-end ]; do sleep 0.2; done
kill $!
"#;

/// Sends requests to the addresses of the Service, one after another.
const LOAD: &str = r#"
cd "$1" && requests=0
until [ -e load-may-end ]; do
    read -ra addresses <endpoints
    address=${addresses[RANDOM % ${#addresses[@]}]}
    requests=$((requests + 1))
    wget --quiet --tries=1 --timeout=2 --output-document=/dev/null "http://$address:8080/" ||
        echo "$address" >>failed-requests
    echo $requests >requests
    sleep 0.01
done
"#;

/// Requests, calls and log lines during one or several rolling updates, and the updates' durations.
#[derive(Default)]
struct Counts {
    requests: usize,
    failed_requests: usize,
    calls: usize,
    failed_calls: usize,
    lines: usize,
    lost_lines: usize,
    times: Vec<Duration>,
}

/// Measures rolling updates with each proxy and each order of the containers. Prints the counts as
/// Markdown.
pub fn print(cluster: &Cluster) {
    import_packages(cluster);
    println!(
        "| proxy | order | failed requests to the app | failed requests of the app | lines of the app's \
         log that were not shipped | time of a rolling update |"
    );
    println!("|---|---|--:|--:|--:|--:|");
    for proxy in &PROXIES {
        let mut all = Order::ALL.map(|order| (order, Counts::default()));
        for round in 0..ROUNDS {
            for (order, counts) in &mut all {
                let order_name = order.title().replace(' ', "-");
                let name = format!("rollout-{}-{order_name}-{round}", proxy.name);
                roll(&Case::new(cluster, &name), proxy, *order, counts);
            }
        }
        for (order, counts) in all {
            println!(
                "| {} | {} | {} of {} | {} of {} | {} of {} | {} |",
                proxy.name,
                order.title(),
                counts.failed_requests,
                counts.requests,
                counts.failed_calls,
                counts.calls,
                counts.lost_lines,
                counts.lines,
                crate::figures::summary(counts.times),
            );
        }
    }
}

/// Starts all replicas, and replaces all of them under load.
fn roll(case: &Case, proxy: &Proxy, order: Order, counts: &mut Counts) {
    let shared = case.shared_dir();
    let put = |name: &str, text: &str| fs::write(shared.join(name), text).expect("a file");
    case.create(&backend());
    let backend = case.await_ready("backend");
    let address = backend["status"]["podIP"].as_str().expect("an address");
    put("proxy.conf", &proxy.config.replace("BACKEND", address));
    put("shipper.conf", SHIPPER_CONFIG);
    case.cluster.apply(&[service(case)]);
    case.create_deployment(&pod(case, proxy, order));
    let scale = format!("--replicas={REPLICAS}");
    case.kubectl(&["scale", "deployment", "app", &scale]);
    case.await_rollout("deployment/app");

    let directory = shared.display().to_string();
    let on_machine = |script: &str, words: &[&str]| {
        let words = [&["bash", "-c", script, "bash"], words].concat();
        Background::spawn(case.cluster.on_machine(&words))
    };
    let watch = on_machine(WATCH, &[&case.namespace, &directory]);
    eventually("the Service has addresses", PATIENCE, || {
        let text = fs::read_to_string(shared.join("endpoints")).unwrap_or_default();
        text.split_whitespace().count() == REPLICAS
    });
    let load = on_machine(LOAD, &[&directory]);
    // Failures before the rolling update, while the first replicas start, are not counted.
    let before = Files::read(case);
    let old = names(case);
    let begun = Instant::now();
    case.kubectl(&["rollout", "restart", "deployment/app"]);
    case.await_rollout("deployment/app");
    eventually("the old pods are gone", PATIENCE, || {
        let now = names(case);
        now.len() == REPLICAS && old.iter().all(|name| !now.contains(name))
    });
    counts.times.push(begun.elapsed());
    let after = Files::read(case);
    case.touch("load-may-end");
    load.finish(PATIENCE);
    watch.finish(PATIENCE);

    counts.requests += after.requests - before.requests;
    counts.failed_requests += after.failed_requests - before.failed_requests;
    counts.calls += after.calls - before.calls;
    counts.failed_calls += after.failed_calls - before.failed_calls;
    for name in old {
        let written = number(case, &format!("calls-{name}"));
        let shipped = lines(case, &format!("shipped-{name}"));
        counts.lines += written;
        counts.lost_lines += written.saturating_sub(shipped);
    }
}

/// Numbers of requests and calls so far, read from the case's shared directory.
struct Files {
    requests: usize,
    failed_requests: usize,
    calls: usize,
    failed_calls: usize,
}

impl Files {
    fn read(case: &Case) -> Self {
        let files = fs::read_dir(case.shared_dir())
            .expect("a directory")
            .flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let calls = names.filter(|name| name.starts_with("calls-"));
        Self {
            requests: number(case, "requests"),
            failed_requests: lines(case, "failed-requests"),
            calls: calls.map(|name| number(case, &name)).sum(),
            failed_calls: lines(case, "failed-calls"),
        }
    }
}

fn read(case: &Case, file: &str) -> String {
    fs::read_to_string(case.shared_dir().join(file)).unwrap_or_default()
}

/// The number in a file; 0 if the file does not exist.
fn number(case: &Case, file: &str) -> usize {
    read(case, file).trim().parse().unwrap_or(0)
}

fn lines(case: &Case, file: &str) -> usize {
    read(case, file).lines().count()
}

/// Names of the app's pods, also of those that are ending.
fn names(case: &Case) -> Vec<String> {
    let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
    case.pods_of("app").iter().filter_map(name).collect()
}

fn service(case: &Case) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "app", "namespace": case.namespace },
        "spec": { "selector": { "app": "app" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    })
}

fn backend() -> Pod {
    let text = "mkdir -p /tmp/www && echo served >/tmp/www/index.html
        exec httpd -f -p 8080 -h /tmp/www";
    Pod::new("backend")
        .spec("runtimeClassName", Value::Null)
        .container(script("backend", text))
}

fn pod(case: &Case, proxy: &Proxy, order: Order) -> Pod {
    let mounts = json!([
        { "name": "shared", "mountPath": "/shared" },
        { "name": "logs", "mountPath": "/logs" },
    ]);
    let sidecar = |name: &str, image: &str, command: &[&str]| json!({ "name": name, "image": image, "command": command, "volumeMounts": mounts });
    let readiness = json!({
        "httpGet": { "path": "/", "port": 8080 }, "periodSeconds": 1, "timeoutSeconds": 10,
    });
    let proxied = with(
        sidecar("proxy", proxy.image, proxy.command),
        json!({ "readinessProbe": readiness }),
    );
    let shipper = sidecar(
        "shipper",
        RSYSLOG,
        &[
            "rsyslogd",
            "-n",
            "-i",
            "/tmp/pid",
            "-f",
            "/shared/shipper.conf",
        ],
    );
    let app = with(script("app", APP), json!({ "volumeMounts": mounts }));
    let pod = Pod::new("app").spec(
        "volumes",
        json!([
            { "name": "shared", "hostPath": { "path": case.shared_dir() } },
            { "name": "logs", "emptyDir": {} },
        ]),
    );
    match order {
        Order::None => pod
            .spec("runtimeClassName", Value::Null)
            .container(proxied)
            .container(shipper)
            .container(app),
        Order::Native => {
            let startup = json!({
                "restartPolicy": "Always",
                "startupProbe": {
                    "tcpSocket": { "port": 8081 }, "periodSeconds": 1, "failureThreshold": 60,
                },
            });
            pod.spec("runtimeClassName", Value::Null)
                .init_container(with(proxied, startup))
                .init_container(with(shipper, json!({ "restartPolicy": "Always" })))
                .container(app)
        }
        Order::Usher => {
            let startup = json!({
                "tcpSocket": { "port": 8081 }, "periodMilliseconds": 200, "failureThreshold": 300,
            });
            pod.annotation("usher/sidecars", "proxy, shipper")
                .annotation("usher/apps", "app")
                .annotation("startup-probe.usher/proxy", startup.to_string())
                .container(proxied)
                .container(shipper)
                .container(app)
        }
    }
}
