//! Releases of held containers, which are started for the caller but have not executed their
//! programs yet. At any moment, callers break off their calls, and pause, stop or kill the
//! containers. No program starts early, no container is lost, and each exit code is right.
//!
//! The moments are random. The moments of a failed test are repeated if `USHER_TEST_SEED` is set to
//! the seed that the test printed. All apps are held until the sidecar's startup probe succeeds,
//! and the test decides when: the sidecar shares the machine's network, and the test itself listens
//! at the probed address.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use containerd_shim_protos::api::{
    CreateTaskRequest, Empty, PauseRequest, ResumeRequest, StartRequest,
};
use serde_json::{Value, json};

use crate::harness::{
    Answer, BareShim, Containerd, PATIENCE, Record, TaskApi, eventually, runtime_under_test, times,
};

const APPS: usize = 5;

/// Exit code of an undisturbed app.
const OWN_CODE: u32 = 7;

/// Run time of an undisturbed app after its release.
const RUNS_FOR: &str = "40ms";

/// Time in milliseconds, from the beginning of a round. All disturbances happen within this time.
/// The sidecar's startup probe begins to succeed within this time, too.
const WINDOW_MS: u64 = 120;

/// Pseudorandom numbers by splitmix64 (Steele, Lea, Flood).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }

    fn within(&mut self, millis: u64) -> Duration {
        Duration::from_micros(self.next() % (millis * 1000))
    }
}

/// Events that disturb an app around the time of its release.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disturbance {
    None,
    GiveUp,
    Pause,
    Term,
    Kill,
    PauseAndKill,
}

/// Random moments of the disturbances and of the first successful probe, counted from the beginning
/// of the round.
#[derive(Debug)]
struct Script {
    mode: &'static str,
    opens: Duration,
    apps: Vec<App>,
}

#[derive(Clone, Copy, Debug)]
struct App {
    disturbance: Disturbance,
    at: Duration,
    pause: Duration,
}

impl Script {
    fn new(random: &mut Random) -> Self {
        use Disturbance::{GiveUp, Kill, None, Pause, PauseAndKill, Term};
        // Only one app gets a stop request, because stop requests for two apps would end the pod.
        let ends = [Term, Kill, PauseAndKill];
        let others = [GiveUp, GiveUp, Pause, Pause, None];
        let app = |number: usize| App {
            disturbance: match number {
                0 => random.one_of(&ends),
                _ => random.one_of(&others),
            },
            at: random.within(WINDOW_MS),
            pause: random.within(WINDOW_MS),
        };
        let apps = (0..APPS).map(app).collect();
        Self {
            apps,
            mode: random.one_of(&["Hold", "Block", "Auto"]),
            opens: random.within(WINDOW_MS),
        }
    }
}

/// The exit code of an app, and the times of the caller's calls for it.
#[derive(Debug, Default)]
struct Seen {
    /// Times of the answer to Pause and of the Resume request.
    paused: Option<(u64, u64)>,
    /// Time of the answer to the stop request.
    stopped: Option<u64>,
    code: u32,
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a clock after 1970").as_nanos() as u64
}

fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// A pod with one shim. Its sidecar runs. The sidecar's startup probe succeeds once the test
/// listens at `address`.
struct Pod<'host> {
    host: &'host Containerd,
    number: usize,
    shim: BareShim<'host>,
    address: String,
}

impl<'host> Pod<'host> {
    fn start(host: &'host Containerd, number: usize, mode: &str) -> Self {
        let pid = std::process::id();
        let address = format!(
            "127.{}.{}.{}",
            1 + number % 250,
            pid >> 8 & 0xff,
            pid & 0xff
        );
        let id = format!("sidecar-{number}");
        let probe = json!({
            "tcpSocket": { "host": address, "port": 8080 },
            "periodMilliseconds": 10,
            "failureThreshold": 1_000_000,
        });
        let edit = |config: &mut Value| {
            config["annotations"] = json!({
                "io.kubernetes.cri.container-name": "sidecar",
                "usher/sidecars": "sidecar",
                "usher/start-mode": mode,
                "startup-probe.usher/sidecar": probe.to_string(),
            });
            let namespaces = config["linux"]["namespaces"].as_array_mut();
            namespaces.unwrap().retain(|ns| ns["type"] != "network");
        };
        let args = ["/bin/sleep", "1000"];
        let shim = BareShim::start(host, &runtime_under_test(), &id, &args, edit);
        let api = shim.api();
        api.create(&shim.create_request())
            .expect("create the sidecar");
        api.start(&id, "").expect("start the sidecar");
        Self {
            host,
            number,
            shim,
            address,
        }
    }

    fn app(&self, number: usize) -> String {
        format!("app-{}-{number}", self.number)
    }

    /// Creates an app beside the sidecar, from a bundle like the sidecar's.
    fn create(&self, number: usize) {
        let id = self.app(number);
        let bundle = self.host.dir().join("bundles").join(&id);
        fs::create_dir_all(&bundle).expect("the bundle");
        let config = fs::read(self.shim.bundle().join("config.json")).expect("config.json");
        let mut config: Value = serde_json::from_slice(&config).expect("a config");
        let code = OWN_CODE.to_string();
        config["process"]["args"] =
            json!(["/bin/witness", id, "--run-for", RUNS_FOR, "--exit", code]);
        config["annotations"]["io.kubernetes.cri.container-name"] = json!(id);
        config["linux"]["cgroupsPath"] = json!(format!("/{}/{id}", self.host.namespace));
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        let request = CreateTaskRequest {
            id,
            bundle: bundle.display().to_string(),
            ..Default::default()
        };
        self.shim.api().create(&request).expect("create an app");
    }

    /// Starts an app, and disturbs it at the planned moment. Returns the app's exit code and the
    /// times of the caller's calls.
    fn disturb(&self, number: usize, app: App, begin: Instant) -> Seen {
        let id = self.app(number);
        let mut seen = Seen::default();
        thread::scope(|scope| {
            scope.spawn(|| self.ask_for_start(&id, app));
            let api = self.shim.api();
            sleep_until(begin + app.at);
            match app.disturbance {
                Disturbance::None | Disturbance::GiveUp => {}
                Disturbance::Pause => seen.paused = pause(&api, &id, app.pause),
                Disturbance::Term => seen.stopped = stop(&api, &id, 15),
                Disturbance::Kill => seen.stopped = stop(&api, &id, 9),
                Disturbance::PauseAndKill => {
                    let paused = api.call::<Empty>("Pause", &pause_request(&id));
                    seen.stopped = stop(&api, &id, 9);
                    if paused.is_ok() {
                        // With cgroup v1 some OCI runtimes cannot kill a frozen process: the signal
                        // takes effect only on Resume.
                        let _ = api.call::<Empty>("Resume", &resume_request(&id));
                    }
                }
            }
            let exit = api
                .wait(&id, "")
                .unwrap_or_else(|e| panic!("wait for {id}: {e:?}"));
            seen.code = exit.exit_status;
        });
        self.shim
            .api()
            .delete(&id, "")
            .unwrap_or_else(|e| panic!("delete {id}: {e:?}"));
        seen
    }

    /// Calls Start for the app. If the app's disturbance is `GiveUp`, the first caller closes its
    /// connection during the call, and a second caller calls Start later.
    fn ask_for_start(&self, id: &str, app: App) {
        if app.disturbance == Disturbance::GiveUp {
            let request = StartRequest {
                id: id.to_owned(),
                ..Default::default()
            };
            self.shim.api().call_and_vanish("Start", &request, app.at);
            thread::sleep(app.pause);
        }
        // The shim may take a moment to notice that the first caller has gone.
        let mut started = self.shim.api().start(id, "");
        eventually("no Start is under way", PATIENCE, || {
            let is_under_way =
                matches!(&started, Err((_, why)) if why.contains("an earlier Start"));
            if is_under_way {
                started = self.shim.api().start(id, "");
            }
            !is_under_way
        });
        if app.disturbance == Disturbance::None {
            started.unwrap_or_else(|e| panic!("start {id}: {e:?}"));
        }
    }

    /// Ends the sidecar, and waits until the shim has no child process.
    fn end(self) {
        let (api, id) = (self.shim.api(), &self.shim.id);
        api.kill(id, "", 9, false).expect("kill the sidecar");
        api.wait(id, "").expect("wait for the sidecar");
        api.delete(id, "").expect("delete the sidecar");
        let shim = self.shim.pid();
        let children = Path::new("/proc").join(format!("{shim}/task/{shim}/children"));
        eventually("the shim has no child", PATIENCE, || {
            fs::read_to_string(&children).is_ok_and(|children| children.trim().is_empty())
        });
    }
}

fn pause_request(id: &str) -> PauseRequest {
    PauseRequest {
        id: id.to_owned(),
        ..Default::default()
    }
}

fn resume_request(id: &str) -> ResumeRequest {
    ResumeRequest {
        id: id.to_owned(),
        ..Default::default()
    }
}

/// Pauses the app for `length`. Returns the times of the answer to Pause and of the Resume request.
/// Returns `None` if Pause fails, because the app has not started yet or has ended.
fn pause(api: &TaskApi, id: &str, length: Duration) -> Option<(u64, u64)> {
    let paused: Answer<Empty> = api.call("Pause", &pause_request(id));
    paused.ok()?;
    let since = now();
    thread::sleep(length);
    let until = now();
    let resumed: Answer<Empty> = api.call("Resume", &resume_request(id));
    if resumed.is_err() {
        let state = api.state(id, "").expect("State");
        assert!(state.exited_at.is_some(), "{id} stays paused: {resumed:?}");
    }
    Some((since, until))
}

fn stop(api: &TaskApi, id: &str, signal: u32) -> Option<u64> {
    api.kill(id, "", signal, false).ok().map(|_| now())
}

/// Describes the rule that the shim has broken, according to the observations of one app. `None` if
/// the shim has kept all rules.
fn judge(record: &Record, id: &str, app: App, opened: u64, seen: &Seen) -> Option<String> {
    let starts: Vec<u64> = record.all(id, "start").map(|event| event.at_ns).collect();
    let held_when_stopped = seen.stopped.is_some_and(|at| at < opened);
    let may_end_with: &[u32] = match (app.disturbance, starts.len()) {
        (Disturbance::Term, 0) => &[143],
        (Disturbance::Kill | Disturbance::PauseAndKill, 0) => &[137],
        (Disturbance::Kill | Disturbance::PauseAndKill, 1) if !held_when_stopped => {
            &[137, OWN_CODE]
        }
        (_, 1) if !held_when_stopped => &[OWN_CODE],
        _ => &[],
    };
    if !may_end_with.contains(&seen.code) {
        return Some(format!("{} starts, exit code {}", starts.len(), seen.code));
    }
    let start = *starts.first()?;
    if start < opened {
        return Some(format!("started {} ns too early", opened - start));
    }
    let (since, until) = seen.paused?;
    (since < start && start < until).then(|| "started while it was paused".to_owned())
}

fn round(host: &Containerd, number: usize, random: &mut Random) {
    let script = Script::new(random);
    let pod = Pod::start(host, number, script.mode);
    thread::scope(|scope| {
        (0..APPS).for_each(|number| {
            drop(scope.spawn({
                let pod = &pod;
                move || pod.create(number)
            }))
        });
    });
    let begin = Instant::now();
    let (opened, seen) = thread::scope(|scope| {
        let disturb = |(number, app): (usize, &App)| {
            let (pod, app) = (&pod, *app);
            scope.spawn(move || pod.disturb(number, app, begin))
        };
        let apps: Vec<_> = script.apps.iter().enumerate().map(disturb).collect();
        sleep_until(begin + script.opens);
        let opened = now();
        let _listener = TcpListener::bind((pod.address.as_str(), 8080)).expect("an address");
        let seen: Vec<Seen> = apps
            .into_iter()
            .map(|app| app.join().expect("an app"))
            .collect();
        (opened, seen)
    });
    let record = host.record();
    for (number, seen) in seen.iter().enumerate() {
        let problem = judge(&record, &pod.app(number), script.apps[number], opened, seen);
        assert_eq!(problem, None, "{} {seen:?} of {script:?}", pod.app(number));
    }
    pod.end();
}

#[test]
fn disturbed_releases_are_never_early_and_never_lost() {
    let seed = match std::env::var("USHER_TEST_SEED") {
        Ok(text) => text.parse().expect("USHER_TEST_SEED is a number"),
        Err(_) => now(),
    };
    // The test harness prints this line only if the test fails.
    println!("USHER_TEST_SEED={seed}");
    let host = Containerd::start();
    let mut random = Random(seed);
    for number in 0..times(12, 40) {
        round(&host, number, &mut random);
    }
}
