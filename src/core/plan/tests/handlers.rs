use std::num::NonZeroU16;
use std::time::Duration;

use super::{plan, refusal};
use crate::plan::{Check, Hook, Host, HttpGet, Port, Probe, Scheme};

fn probe(json: &str) -> Probe {
    let plan = plan(&[("usher/sidecars", "p"), ("startup-probe.usher/p", json)]);
    plan.container("p").startup_probe.clone().expect("a probe")
}

fn probe_refusal(json: &str) -> String {
    refusal(&[("usher/sidecars", "p"), ("startup-probe.usher/p", json)])
}

fn hook(json: &str) -> Hook {
    plan(&[("termination-hook.usher/web", json)])
        .container("web")
        .termination_hook
        .clone()
        .expect("a hook")
}

fn number(port: u16) -> Port {
    Port::Number(NonZeroU16::new(port).expect("a port"))
}

#[test]
fn a_probe_has_the_defaults_of_kubernetes() {
    let expected = Probe {
        check: Check::Exec {
            command: vec!["true".to_owned()],
        },
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(10),
        timeout: Duration::from_secs(1),
        success_threshold: 1,
        failure_threshold: 3,
    };
    assert_eq!(probe(r#"{"exec": {"command": ["true"]}}"#), expected);
    assert_eq!(
        probe(r#"{"exec": {"command": ["true"]}, "tcpSocket": null, "periodSeconds": null}"#),
        expected
    );
}

#[test]
fn every_number_of_a_probe_is_read() {
    let probe = probe(
        r#"{"tcpSocket": {"port": 80}, "initialDelaySeconds": 1, "periodSeconds": 2, "timeoutSeconds": 3,
            "successThreshold": 1, "failureThreshold": 2147483647}"#,
    );
    assert_eq!(probe.initial_delay, Duration::from_secs(1));
    assert_eq!(probe.period, Duration::from_secs(2));
    assert_eq!(probe.timeout, Duration::from_secs(3));
    assert_eq!(
        (probe.success_threshold, probe.failure_threshold),
        (1, 2_147_483_647)
    );
}

#[test]
fn a_period_may_be_in_milliseconds_instead() {
    assert_eq!(
        probe(r#"{"tcpSocket": {"port": 80}, "periodMilliseconds": 250}"#).period,
        Duration::from_millis(250)
    );
    assert!(
        probe_refusal(
            r#"{"tcpSocket": {"port": 80}, "periodMilliseconds": 1, "periodSeconds": 1}"#
        )
        .contains("has both periodSeconds and periodMilliseconds; expected one of them")
    );
}

#[test]
fn every_kind_of_check_is_read() {
    let get = r#"{"httpGet": {"scheme": "HTTPS", "host": "::1", "port": "web", "path": "healthz?x=1",
        "httpHeaders": [{"name": "X-A", "value": "b c"}]}}"#;
    assert_eq!(
        probe(get).check,
        Check::HttpGet(HttpGet {
            scheme: Scheme::Https,
            host: Some(Host::Ip("::1".parse().unwrap())),
            port: Port::Name("web".to_owned()),
            path: "/healthz?x=1".to_owned(),
            headers: vec![("X-A".to_owned(), "b c".to_owned())],
        })
    );
    assert_eq!(
        probe(r#"{"httpGet": {"port": 8080}}"#).check,
        Check::HttpGet(HttpGet {
            scheme: Scheme::Http,
            host: None,
            port: number(8080),
            path: "/".to_owned(),
            headers: vec![],
        })
    );
    assert_eq!(
        probe(r#"{"tcpSocket": {"host": "localhost", "port": 1}}"#).check,
        Check::TcpSocket {
            host: Some(Host::Localhost),
            port: number(1)
        }
    );
    assert_eq!(
        probe(r#"{"grpc": {"port": 65535, "service": "s"}}"#).check,
        Check::Grpc {
            port: 65535,
            service: "s".to_owned()
        }
    );
    assert_eq!(
        probe(r#"{"grpc": {"port": 1}}"#).check,
        Check::Grpc {
            port: 1,
            service: String::new()
        }
    );
}

#[test]
fn a_probe_has_exactly_one_check() {
    assert!(
        probe_refusal("{}").contains("has nothing to check; expected exactly one of exec, httpGet")
    );
    assert!(
        probe_refusal(r#"{"tcpSocket": {"port": 1}, "grpc": {"port": 1}}"#)
            .contains("more than one check")
    );
}

#[test]
fn a_probe_that_is_none_is_refused() {
    let refused = [
        ("", "EOF"),
        ("true", "expected an object"),
        (r#"[{"command": ["x"]}]"#, "expected an object"),
        (r#"{"exec": [["x"]]}"#, "expected an object"),
        (r#"{"exec": {"command": "x"}}"#, "expected a sequence"),
        (r#"{"exec": {"command": [1]}}"#, "expected a string"),
        (r#"{"exec": {"command": []}}"#, "exec without command"),
        (r#"{"exec": {}}"#, "exec without command"),
        (r#"{"exec": {"command": ["a\u0000"]}}"#, "has a NUL"),
        (
            r#"{"exec": {"command": ["x"], "shell": true}}"#,
            "unknown field `shell`",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 1}"#,
            "unknown field `terminationGracePeriodSeconds`",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "tcpSocket": {"port": 1}}"#,
            "duplicate field",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "timeoutSeconds": "1"}"#,
            "expected a whole number from 1 to 2147483647",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "timeoutSeconds": 1.0}"#,
            "expected a whole number",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "timeoutSeconds": 0}"#,
            "expected a whole number from 1",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "periodSeconds": 0}"#,
            "expected a whole number from 1",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "periodMilliseconds": 0}"#,
            "expected a whole number from 1",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "failureThreshold": 0}"#,
            "expected a whole number from 1",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "failureThreshold": 2147483648}"#,
            "expected a whole number from 1",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "initialDelaySeconds": -1}"#,
            "expected a whole number from 0",
        ),
        (
            r#"{"tcpSocket": {"port": 1}, "successThreshold": 2}"#,
            "expected the number 1",
        ),
        (
            r#"{"grpc": {"port": "web"}}"#,
            "expected a whole number from 1 to 65535",
        ),
        (
            r#"{"grpc": {"port": 65536}}"#,
            "expected a whole number from 1 to 65535",
        ),
        (r#"{"tcpSocket": {}}"#, "missing field `port`"),
        (
            r#"{"httpGet": {"port": 1, "scheme": "http"}}"#,
            "has the scheme \"http\"; expected HTTP or HTTPS",
        ),
        (
            r#"{"httpGet": {"port": 1, "path": "/a\nb"}}"#,
            "expected one without control characters",
        ),
        (
            r#"{"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}"#,
            "has a header named \"a b\"",
        ),
        (
            r#"{"httpGet": {"port": 1, "httpHeaders": [{"name": "a", "value": "b\r\nc"}]}}"#,
            "in its header \"a\"",
        ),
    ];
    for (json, expected) in refused {
        let sentence = probe_refusal(json);
        assert!(sentence.contains(expected), "{json}: {sentence}");
        assert!(
            sentence.starts_with("startup-probe.usher/p: \""),
            "{sentence}"
        );
    }
}

#[test]
fn json_of_any_depth_is_refused_without_recursion() {
    let deep = "[".repeat(16_000);
    probe_refusal(&deep);
    probe_refusal(&format!("{{\"exec\": {deep}"));
    probe_refusal(&"{\"exec\":".repeat(2_000));
}

#[test]
fn a_host_is_an_ip_literal_or_localhost() {
    for host in ["localhost", "127.0.0.1", "10.1.2.3", "::1", "fe80::1"] {
        probe(&format!(
            r#"{{"tcpSocket": {{"port": 1, "host": "{host}"}}}}"#
        ));
    }
    for host in [
        "example.com",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "127.1",
        "1.2.3.4:80",
        "fe80::1%eth0",
        " ",
    ] {
        let sentence = probe_refusal(&format!(
            r#"{{"httpGet": {{"port": 1, "host": "{host}"}}}}"#
        ));
        assert!(sentence.contains(&format!(
            "has the host \"{host}\"; expected an IP literal or localhost"
        )));
    }
    let none = Check::TcpSocket {
        host: None,
        port: number(1),
    };
    assert_eq!(
        probe(r#"{"tcpSocket": {"port": 1, "host": ""}}"#).check,
        none
    );
}

#[test]
fn a_port_is_a_number_or_a_service_name() {
    for port in ["1", "65535", r#""web""#, r#""a-1""#, r#""abcdefghijklmno""#] {
        probe(&format!(r#"{{"tcpSocket": {{"port": {port}}}}}"#));
    }
    for port in [
        "0",
        "65536",
        "-1",
        "1.5",
        "null",
        "true",
        r#""""#,
        r#""80""#,
        r#""Web""#,
        r#""-a""#,
        r#""a-""#,
        r#""a--b""#,
        r#""abcdefghijklmnop""#,
    ] {
        let sentence = probe_refusal(&format!(r#"{{"tcpSocket": {{"port": {port}}}}}"#));
        assert!(
            sentence.contains("expected a port number from 1 to 65535, or a port name"),
            "{sentence}"
        );
    }
}

#[test]
fn every_kind_of_hook_is_read() {
    assert_eq!(
        hook(r#"{"exec": {"command": ["a", "b"]}}"#),
        Hook::Exec {
            command: vec!["a".to_owned(), "b".to_owned()]
        }
    );
    assert_eq!(
        hook(r#"{"tcpSocket": {"port": 9}}"#),
        Hook::TcpSocket {
            host: None,
            port: number(9)
        }
    );
    assert_eq!(
        hook(r#"{"sleep": {"seconds": 5}}"#),
        Hook::Sleep(Duration::from_secs(5))
    );
    assert!(matches!(hook(r#"{"httpGet": {"port": 9}}"#), Hook::HttpGet(get) if get.path == "/"));
}

#[test]
fn a_hook_that_is_none_is_refused() {
    let refused = [
        (
            "{}",
            "has nothing to do; expected exactly one of exec, httpGet, tcpSocket, sleep",
        ),
        (
            r#"{"sleep": {"seconds": 1}, "tcpSocket": {"port": 9}}"#,
            "more than one action",
        ),
        (
            r#"{"sleep": {"seconds": -1}}"#,
            "expected a whole number from 0",
        ),
        (r#"{"sleep": {}}"#, "missing field `seconds`"),
        (r#"{"sleep": 5}"#, "expected an object"),
        (r#"{"grpc": {"port": 1}}"#, "unknown field `grpc`"),
    ];
    for (json, expected) in refused {
        let sentence = refusal(&[("termination-hook.usher/web", json)]);
        assert!(sentence.contains(expected), "{json}: {sentence}");
    }
}
