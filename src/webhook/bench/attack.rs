//! Measures the program under attack: 300 connections of one kind of attack at a time, while an API
//! server sends 200 reviews a second.
//!
//! An attacker reconnects as soon as its connection ends. For each kind of attack a new program is
//! started.

use std::io::{Read, Write};
use std::net::TcpStream as StdStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{HEALTH, HOST, Load, Program, REVIEWS, measure, quantile, tls};
use usher_webhook::certificate::Pair;

const ATTACKERS: usize = 300;
const FOR: Duration = Duration::from_secs(15);
/// Longest allowed latency of the fastest 99 % of the reviews.
const P99: Duration = Duration::from_secs(1);
const MEMORY_KIB: u64 = 128 << 10;
/// Longest allowed latency of a `/healthz` request.
const HEALTHY_WITHIN: Duration = Duration::from_millis(100);
/// Latency that stands for a request without an answer.
const UNANSWERED: Duration = Duration::from_secs(999);

#[derive(Clone)]
enum Kind {
    /// Connects to this address, and sends nothing.
    Silent(&'static str),
    /// Sends these bytes after the handshake, and nothing more.
    SendsOnce(Arc<Vec<u8>>),
    /// Sends these bytes after the handshake, and again after each response.
    Repeats(Arc<Vec<u8>>),
}

fn request(length: usize, body: &str) -> Arc<Vec<u8>> {
    let head = format!("POST /mutate HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {length}\r\n\r\n");
    Arc::new(format!("{head}{body}").into_bytes())
}

fn whole(spec: &str, sidecars: &str) -> Kind {
    let body = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1",
        "kind":{{"group":"","version":"v1","kind":"Pod"}},"operation":"CREATE","object":{{
        "metadata":{{"annotations":{{"usher/sidecars":"{sidecars}"}}}},"spec":{spec}}}}}}}"#
    );
    Kind::Repeats(request(body.len(), &body))
}

fn many(item: &str, bytes: usize) -> String {
    vec![item; bytes / (item.len() + 1)].join(",")
}

fn containers(count: usize) -> String {
    let container = |index| format!(r#"{{"name":"c{index}"}}"#);
    let all: Vec<String> = (0..count).map(container).collect();
    format!(r#"{{"containers":[{}]}}"#, all.join(","))
}

fn patterns(count: usize) -> String {
    let all: Vec<String> = (0..count).map(|index| format!("*c*{index}*")).collect();
    all.join(",")
}

fn kinds() -> Vec<(&'static str, Option<Kind>)> {
    let claimed = 7 << 20;
    let grows = format!(
        r#"{{"containers":[{}]}}"#,
        many(r#"{"":0}"#, claimed - 4096)
    );
    let lists = format!(r#"{{"containers":[{}]}}"#, many("[]", 256 << 10));
    let env = many(r#"{"name":"A"}"#, 2_800_000);
    let env = format!(r#"{{"containers":[{{"name":"a","env":[{env}]}}]}}"#);
    vec![
        ("nothing", None),
        ("silent", Some(Kind::Silent(REVIEWS))),
        (
            "silent after the handshake",
            Some(Kind::SendsOnce(Arc::default())),
        ),
        ("silent on the health port", Some(Kind::Silent(HEALTH))),
        (
            "7 MiB announced, one byte sent",
            Some(Kind::SendsOnce(request(claimed, " "))),
        ),
        (
            "7 MiB announced, 5 MiB sent",
            Some(Kind::SendsOnce(request(claimed, &" ".repeat(5 << 20)))),
        ),
        (
            r#"7 MiB of `{"":0}` as containers"#,
            Some(whole(&grows, "a?")),
        ),
        ("256 KiB of `[]` as containers", Some(whole(&lists, "a?"))),
        ("2.8 MB of `env`", Some(whole(&env, "*a"))),
        (
            "250 patterns, 10,000 containers",
            Some(whole(&containers(10_000), &patterns(250))),
        ),
        (
            "65 patterns, 1,000 containers",
            Some(whole(&containers(1_000), &patterns(65))),
        ),
    ]
}

/// Measures each kind of attack whose name contains one of `words`. If `words` is empty, measures
/// all kinds. Fails if an attack breaks a bound.
pub(super) fn main(pair: &Pair, words: &[String]) -> ExitCode {
    println!("| {ATTACKERS} connections | p99 | longest | lost | memory | health |");
    println!("|---|---|---|---|---|---|");
    let mut is_valid = true;
    for (name, kind) in kinds() {
        if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
            is_valid &= against(pair, name, kind);
        }
    }
    match is_valid {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn against(pair: &Pair, name: &str, kind: Option<Kind>) -> bool {
    let program = Program::start(pair);
    let over = AtomicBool::new(false);
    let (load, health) = thread::scope(|threads| {
        let health = threads.spawn(|| longest_health(&over));
        if let Some(kind) = kind {
            threads.spawn(|| attack(pair, kind, &over));
        }
        let load = runtime().block_on(measure(pair, FOR));
        over.store(true, Ordering::Relaxed);
        (load, health.join().expect("its figures"))
    });
    let Load { reviews, lost, .. } = load;
    let memory = program.peak_memory_kib();
    let (p99, longest) = (quantile(&reviews, 0.99), quantile(&reviews, 1.0));
    println!(
        "| {name} | {p99:.0} ms | {longest:.0} ms | {lost} of {} | {} MiB | {:.0} ms |",
        reviews.len() + lost,
        memory >> 10,
        health.as_secs_f64() * 1e3,
    );
    p99 < P99.as_secs_f64() * 1e3 && lost == 0 && memory < MEMORY_KIB && health < HEALTHY_WITHIN
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// Longest latency of `/healthz` from the first connection on.
fn longest_health(over: &AtomicBool) -> Duration {
    while StdStream::connect(HEALTH).is_err() {
        thread::sleep(Duration::from_millis(50));
    }
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let answer = StdStream::connect(HEALTH).and_then(|mut stream| {
            write!(stream, "GET /healthz HTTP/1.1\r\nhost: {HOST}\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        });
        longest = match answer {
            Ok(answer) if answer.starts_with("HTTP/1.1 200") => longest.max(begin.elapsed()),
            _ => UNANSWERED,
        };
        thread::sleep(Duration::from_millis(50));
    }
    longest
}

fn attack(pair: &Pair, kind: Kind, over: &AtomicBool) {
    runtime().block_on(async {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|_| tokio::spawn(attacker(pair.clone(), kind.clone())))
            .collect();
        while !over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        attackers.iter().for_each(|it| it.abort());
    });
}

async fn attacker(pair: Pair, kind: Kind) {
    let connector = tls(&pair);
    loop {
        // The attacker reconnects, whatever the outcome.
        let _ = once(&connector, &kind).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn once(connector: &tokio_rustls::TlsConnector, kind: &Kind) -> std::io::Result<()> {
    let mut answer = vec![0; 64 << 10];
    let (sent, again) = match kind {
        Kind::Silent(address) => {
            let mut stream = TcpStream::connect(address).await?;
            return stream.read(&mut answer).await.map(|_| ());
        }
        Kind::SendsOnce(sent) => (sent, false),
        Kind::Repeats(sent) => (sent, true),
    };
    let stream = TcpStream::connect(REVIEWS).await?;
    let name = HOST.try_into().expect("a name");
    let mut stream = connector.connect(name, stream).await?;
    loop {
        stream.write_all(sent).await?;
        stream.flush().await?;
        if stream.read(&mut answer).await? == 0 || !again {
            return Ok(());
        }
    }
}
