//! The node that the simulated kubelet uses: a containerd, its shims, and the machine on which they
//! run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use containerd_shim_protos::api::{
    CheckpointTaskRequest, CloseIORequest, ConnectRequest, PauseRequest, PidsRequest,
    ResizePtyRequest, ResumeRequest, StatsRequest, UpdateTaskRequest,
};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim_async::Task;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, sleep_until};
use usher_core::lifecycle::{Exec, HookKind, Report, RequestId, Time};
use usher_core::simulator::case::Case;
use usher_core::simulator::chance::Dice;
use usher_core::simulator::{Call, Node, Script, Seen, name_of};

use crate::node;
use crate::pod::Actor;
use crate::pod::sim::SimNode;
use crate::task::Service;
use usher_api::{self as api, Archive};
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;
use usher_core::sizing::{Bytes, Millicores, Size};
use usher_engine::sim::{Happening, Left, OnStop, Program, SimBundle, SimEngine};

use super::containerd::Containerd;
use super::faults::Faults;

const USUAL: Duration = Duration::from_secs(120);

const POD_UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";

/// Prefix of the exec ids that callers other than kubelet use.
pub const OTHERS: &str = "other-";

/// Suffix of the exec ids of processes that exit when their stdin is closed, as `cat` does.
pub const CAT: &str = "-cat";

const MEBIBYTE: u64 = 1 << 20;

/// The initial memory limit of a container, in bytes.
pub const MEMORY: u64 = 100 * MEBIBYTE;

/// A simulated node with its own simulated clock.
pub struct SimulatedNode {
    node: SimNode,
    pub containerd: Containerd,
    /// The tasks that run the shims, including shims that have exited.
    pub shims: Vec<JoinHandle<()>>,
    seen: Vec<(Time, Seen)>,
    annotations: BTreeMap<String, String>,
    by_hand: bool,
    call_timeout: Option<Duration>,
    runs: BTreeMap<String, AbortHandle>,
    /// The numbers of the Kills that have been answered.
    kills: Arc<Mutex<BTreeSet<u64>>>,
    requests: u64,
    execs: u64,
    sandboxes: u64,
    scripts: BTreeMap<String, Script>,
    /// For each container, the id of the last exec that ran as its preStop handler.
    handlers: BTreeMap<&'static str, String>,
    /// The names of the containers that have a termination hook.
    hooked: BTreeSet<&'static str>,
    /// The containers that were created at least once.
    parked: BTreeSet<String>,
    /// Number of the machine's events that were handled.
    heard: usize,
    /// The annotations of each bundle.
    bundles: BTreeMap<String, BTreeMap<String, String>>,
    dice: Dice,
    others: Option<u64>,
    is_over: Arc<AtomicBool>,
    // The runtime is dropped last, because its tasks have handles of the other fields.
    runtime: Runtime,
}

impl SimulatedNode {
    pub fn new(case: &Case, faults: &Faults, is_pauseless: bool) -> SimulatedNode {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let engine = SimEngine::with_fault_plan(faults.fault_plan());
        let containerd = Containerd::new(is_pauseless);
        let mut dice = Dice::new(faults.seed ^ 0x6f74_6865);
        let delays = (0..500).map(|_| Duration::from_millis(dice.within(0, faults.events)));
        containerd.delay_events(delays);
        runtime.spawn(containerd.clone().listen());
        let node = SimNode::new(engine.clone());
        let origin = node.origin;
        for (at, away) in &faults.deaths {
            let (containerd, at) = (containerd.clone(), origin + Duration::from_millis(*at));
            let away = Duration::from_millis(*away);
            runtime.spawn(async move {
                sleep_until(at).await;
                containerd.die(away);
            });
        }
        for at in &faults.oom {
            let (engine, at) = (engine.clone(), origin + Duration::from_millis(*at));
            let names: Vec<_> = case.members.iter().map(|member| member.name).collect();
            let name = dice.one_of(&names);
            runtime.spawn(async move {
                sleep_until(at).await;
                if engine.lock().is_running(name) {
                    engine.memory_runs_out(name);
                }
            });
        }
        drop(entered);
        SimulatedNode {
            node,
            containerd,
            shims: Vec::new(),
            seen: Vec::new(),
            annotations: case.annotations(),
            by_hand: case.by_hand,
            call_timeout: None,
            runs: BTreeMap::new(),
            kills: Arc::default(),
            requests: 0,
            execs: 0,
            sandboxes: 0,
            scripts: BTreeMap::new(),
            handlers: BTreeMap::new(),
            hooked: case
                .members
                .iter()
                .filter(|m| m.hook.is_some())
                .map(|m| m.name)
                .collect(),
            parked: BTreeSet::new(),
            heard: 0,
            bundles: BTreeMap::new(),
            dice,
            others: faults.others,
            is_over: Arc::default(),
            runtime,
        }
    }

    /// Starts a shim, as containerd would.
    fn boot(&mut self) {
        let node = node::Node {
            publisher: Arc::new(self.containerd.clone()),
            archive: Arc::new(Witness(self.node.engine.clone())),
            ..self.node.node()
        };
        let _entered = self.runtime.enter();
        let (mut actor, pod) = Actor::new("k8s.io", node);
        self.containerd.adopt(pod);
        self.sandboxes += 1;
        self.shims.push(tokio::spawn(async move {
            loop {
                actor.run().await;
                if actor.confirm_end() {
                    return;
                }
                actor.postpone_end();
            }
        }));
        if let Some(apart) = self.others {
            let containerd = self.containerd.clone();
            let seed = self.dice.within(0, u64::MAX / 2);
            let is_over = Arc::clone(&self.is_over);
            let engine = self.node.engine.clone();
            let number = self.sandboxes;
            tokio::spawn(others(
                containerd,
                engine,
                Dice::new(seed),
                (number, apart),
                is_over,
            ));
        }
    }

    /// The id that a container has on the node. `id` is kubelet's name of the container. Each
    /// sandbox gets a new id.
    fn id(&self, id: &str) -> String {
        match id {
            "pause" => format!("pause-{}", self.sandboxes),
            id => id.to_owned(),
        }
    }

    /// True if this id belongs to an earlier sandbox.
    fn is_of_another(&self, id: &str) -> bool {
        kubelets(id) == "pause" && id != self.id("pause")
    }

    /// Lets all events happen that are due now.
    fn settle(&mut self) {
        self.runtime.block_on(async {
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        });
        self.hear();
    }

    fn hear(&mut self) {
        let now = self.now();
        let news = self.story_since(self.heard);
        self.heard += news.len();
        for (at, happening) in &news {
            if let Some(seen) = self.seen_of(happening) {
                self.seen.push((Time::from_origin(*at), seen));
            }
        }
        for seen in self.containerd.seen() {
            let of = |id: String| kubelets(&id).to_owned();
            let seen = match seen {
                // If an earlier sandbox exits late, this exit does not belong to the present
                // sandbox.
                Seen::ExitReported(id, _) if self.is_of_another(&id) => continue,
                Seen::StartAnswered(id, answer) => Seen::StartAnswered(of(id), answer),
                Seen::StartFailed(id, why) => Seen::StartFailed(of(id), why),
                Seen::CreateRefused(id, why) => Seen::CreateRefused(of(id), why),
                Seen::ExitReported(id, code) => Seen::ExitReported(of(id), code),
                other => other,
            };
            self.seen.push((now, seen));
        }
    }

    /// Converts an event of the machine to an event that the core's simulator knows.
    fn seen_of(&mut self, happening: &Happening) -> Option<Seen> {
        let of = |id: &String| (!self.is_of_another(id)).then(|| kubelets(id).to_owned());
        let hook = |id: &String| match self.hooked.contains(name_of(id)) {
            true => HookKind::Termination,
            false => HookKind::PreStop,
        };
        Some(match happening {
            Happening::Parked { id, .. } => {
                let id = of(id)?;
                match self.parked.insert(id.clone()) {
                    true => return None,
                    false => Seen::Restarting(id),
                }
            }
            Happening::Executed { id } => Seen::Executed(of(id)?),
            Happening::Signalled { id, signal } => Seen::Signalled(of(id)?, *signal),
            Happening::Died {
                id,
                exec_id: None,
                status,
                ..
            } => Seen::Died(of(id)?, *status),
            Happening::MessageWritten { id, words } => Seen::MessageWritten(of(id)?, words.clone()),
            Happening::ExitRecorded { id, code, .. } => Seen::ExitSaid(of(id)?, *code),
            Happening::PostStarted { id } => Seen::PostStarted(of(id)?),
            Happening::HookBegan { id } => Seen::HookBegan(of(id)?, hook(id)),
            Happening::HookEnded { id } => Seen::HookEnded(of(id)?, hook(id)),
            Happening::Decided(Report::Released { name, .. }) => {
                let created = self.seen.iter().rev().find_map(|(_, seen)| match seen {
                    Seen::Did(what) => what
                        .strip_prefix("create ")
                        .filter(|id| name_of(id) == name),
                    _ => None,
                });
                Seen::Released(created?.to_owned())
            }
            Happening::Decided(report) => Seen::Reported(report.clone()),
            _ => return None,
        })
    }

    fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.runtime.spawn(work).abort_handle()
    }

    /// Sets the behavior of an exec: it exits after this time with this code, or runs until it is
    /// stopped.
    fn behave_exec(&self, id: &str, exec_id: &str, ends: Option<(Duration, u8)>) {
        behave_exec(&self.node.engine, id, exec_id, ends);
    }

    /// The machine's events, with their times since the start of the node.
    pub fn story(&self) -> Vec<(Duration, Happening)> {
        self.story_since(0)
    }

    /// Returns the events of [`story`](SimulatedNode::story) without the first `heard` events.
    fn story_since(&self, heard: usize) -> Vec<(Duration, Happening)> {
        let machine = self.node.engine.lock();
        let news = machine.story.iter().skip(heard);
        news.map(|(at, happening)| (*at - self.node.origin, happening.clone()))
            .collect()
    }

    /// Processes, containers and mounts that are left on the machine.
    pub fn left(&self) -> Left {
        self.node.engine.lock().left()
    }

    fn bundle(&mut self, id: &str, name: &str, own: &BTreeMap<String, String>) {
        let mut all = self.annotations.clone();
        all.extend(own.clone());
        if !self.by_hand {
            let kind = if name == "pause" {
                "sandbox"
            } else {
                "container"
            };
            let sandbox = format!("pause-{}", self.sandboxes);
            for (key, value) in [
                ("io.kubernetes.cri.container-type", kind),
                ("io.kubernetes.cri.sandbox-id", sandbox.as_str()),
                ("io.kubernetes.cri.sandbox-uid", POD_UID),
            ] {
                all.insert(key.to_owned(), value.to_owned());
            }
        }
        if name != "pause" {
            let key = "io.kubernetes.cri.container-name".to_owned();
            all.insert(key, name.to_owned());
        }
        self.bundles.insert(id.to_owned(), all);
        self.put(id);
    }

    fn put(&self, id: &str) {
        let Some(all) = self.bundles.get(id).cloned() else {
            return;
        };
        let script = self.scripts.get(id).cloned().unwrap_or_default();
        let first = program(&script, None);
        let bundle = SimBundle {
            annotations: all,
            oom_score: 900,
            size: match kubelets(id) {
                "pause" => Size::UNLIMITED,
                _ => Size::exactly(Millicores(100), Bytes(MEMORY)),
            },
            pod_uid: (!self.by_hand).then(|| POD_UID.to_owned()),
            programs: vec![first, program(&script, script.then_exits)],
            exec: Program::exits_after(Duration::from_millis(5), 0),
            ..SimBundle::default()
        };
        self.node.engine.put(format!("/bundles/{id}"), bundle);
    }

    fn exec_id(&mut self, what: &str) -> String {
        self.execs += 1;
        format!("{what}-{}", self.execs)
    }

    /// Lets the node run for the time `wait`, and handles the events of this time.
    pub fn live(&mut self, wait: Duration) {
        self.runtime.block_on(async { sleep(wait).await });
        self.hear();
    }

    /// Stops the calls of all callers other than kubelet.
    pub fn calm_down(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// An archive that adds a shim's decisions to the machine's events, and stores no pod.
#[derive(Debug)]
struct Witness(SimEngine);

impl Archive for Witness {
    fn keep(&self, _: api::Pod) {}

    fn decided(&self, report: &Report) {
        self.0.lock().note(Happening::Decided(report.clone()));
    }
}

impl Node for SimulatedNode {
    fn now(&self) -> Time {
        let _entered = self.runtime.enter();
        Time::from_origin(self.node.origin.elapsed())
    }

    fn advance(&mut self, end: Time) {
        let end = self.node.origin + end.since_origin();
        let (engine, containerd) = (self.node.engine.clone(), self.containerd.clone());
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = containerd.news() => {}
                () = engine.happening() => {}
                () = sleep_until(end) => {}
            }
        });
        self.hear();
    }

    fn seen(&self) -> &[(Time, Seen)] {
        &self.seen
    }

    fn did(&mut self, what: String) {
        let now = self.now();
        self.seen.push((now, Seen::Did(what)));
    }

    fn call(&mut self, call: Call) {
        self.call_in(Duration::ZERO, call);
        self.settle();
    }

    fn call_in(&mut self, wait: Duration, call: Call) {
        let containerd = self.containerd.clone();
        match call {
            Call::Run(id, call_timeout) => {
                let is_gone = self.shims.last().is_none_or(|shim| shim.is_finished());
                if self.by_hand && is_gone {
                    // A caller that finds no running shim starts a new one.
                    self.boot();
                }
                let name = id.to_owned();
                let id = self.id(id);
                let call_timeout = call_timeout.or(self.call_timeout);
                let running = self.spawn(async move { containerd.run(&id, call_timeout).await });
                self.runs.insert(name, running);
            }
            Call::GiveUp(id) => {
                if let Some(running) = self.runs.remove(id) {
                    running.abort();
                }
            }
            Call::Kill(id, signal, call_timeout) => {
                let id = self.id(id);
                let signal = signal.number().unsigned_abs();
                self.spawn(async move {
                    sleep(wait).await;
                    let _ = containerd
                        .kill(&id, "", (signal, false), call_timeout)
                        .await;
                });
            }
            Call::KillLeftovers(id) => {
                let id = self.id(id);
                self.spawn(async move {
                    sleep(wait).await;
                    let _ = containerd.kill(&id, "", (9, true), Some(USUAL)).await;
                });
            }
            Call::Delete(id) => {
                let id = self.id(id);
                self.spawn(async move {
                    sleep(wait).await;
                    containerd.delete(&id, USUAL).await;
                });
            }
            Call::Crash(id, code) => {
                let (id, engine) = (self.id(id), self.node.engine.clone());
                self.spawn(async move {
                    sleep(wait).await;
                    if engine.lock().is_running(&id) {
                        engine.init_dies(&id, ExitStatus::Code(code));
                    }
                });
            }
            Call::PostStart(id, takes, code) => {
                let exec_id = self.exec_id("post-start");
                self.behave_exec(id, &exec_id, Some((takes, code)));
                self.spawn(async move {
                    let argv = ["/bin/post-start".to_owned()];
                    let code = match containerd.exec(id, &exec_id, &argv, None).await {
                        Ok(_) => containerd.run_exec(id, &exec_id, USUAL).await,
                        Err(why) => Err(why),
                    };
                    let has_succeeded = match code {
                        Ok(code) => Some(code == 0),
                        Err(why) if why.is_lost() => None,
                        Err(_) => Some(false),
                    };
                    containerd.see(Seen::PostStartOver(id.to_owned(), has_succeeded));
                });
            }
            Call::PreStopOver(id) => {
                let engine = self.node.engine.clone();
                let Some(exec_id) = self.handlers.get(id).cloned() else {
                    return;
                };
                self.spawn(async move {
                    sleep(wait).await;
                    engine.exec_dies(id, &exec_id, ExitStatus::Code(0));
                });
            }
            Call::Create(_) | Call::Start(..) => unreachable!("kubelet does both at once"),
        }
    }

    fn kill(&mut self, id: &'static str, signal: Signal, call_timeout: Duration) -> RequestId {
        self.requests += 1;
        let (request, containerd, kills) = (
            self.requests,
            self.containerd.clone(),
            Arc::clone(&self.kills),
        );
        let id = self.id(id);
        let signal = signal.number().unsigned_abs();
        self.spawn(async move {
            let _ = containerd
                .kill(&id, "", (signal, false), Some(call_timeout))
                .await;
            let mut kills = kills.lock().unwrap_or_else(PoisonError::into_inner);
            kills.insert(request);
            drop(kills);
            // Kubelet's grace period begins with this answer, so kubelet is woken.
            containerd.has_news();
        });
        self.settle();
        RequestId(request)
    }

    fn is_answered(&self, request: RequestId) -> bool {
        let kills = self.kills.lock().unwrap_or_else(PoisonError::into_inner);
        kills.contains(&request.0)
    }

    fn exec(&mut self, id: &'static str, exec: &Exec<'_>) -> bool {
        let exec_id = self.exec_id(exec.id);
        self.handlers.insert(id, exec_id.clone());
        let forever = Duration::from_secs(3_600);
        self.behave_exec(id, &exec_id, None);
        let containerd = self.containerd.clone();
        let argv = exec.argv.to_vec();
        // The shim assumes that an Exec with a deadline is a probe, and any other a handler.
        let limit = exec.has_deadline.then_some(Duration::from_secs(1));
        let added = self
            .runtime
            .block_on(containerd.exec(id, &exec_id, &argv, limit));
        let is_added = added.is_ok();
        if is_added {
            let containerd = self.containerd.clone();
            self.spawn(async move {
                let _ = containerd.run_exec(id, &exec_id, forever).await;
            });
        }
        self.settle();
        is_added
    }

    fn learn(&mut self, id: &str, annotations: &BTreeMap<String, String>) {
        self.bundle(id, name_of(id), annotations);
    }

    fn behave(&mut self, name: &str, script: Script) {
        let id = match name {
            // The next sandbox will have this id.
            "pause" => format!("pause-{}", self.sandboxes + 1),
            name => name.to_owned(),
        };
        self.scripts.insert(id.clone(), script);
        self.put(&id);
    }

    fn open(&mut self, call_timeout: Duration) {
        self.call_timeout = Some(call_timeout);
        self.boot();
        let id = self.id("pause");
        self.bundle(&id, "pause", &BTreeMap::new());
        self.call(Call::Run("pause", None));
    }

    fn change_sandbox(&mut self) {}

    fn is_known(&self, id: &str) -> bool {
        self.containerd.tasks().contains(&self.id(id))
    }

    fn is_alive(&self, id: &str) -> bool {
        self.node.engine.lock().init_of(&self.id(id)).is_some()
    }

    fn is_executing(&self, id: &str) -> bool {
        self.node.engine.lock().is_running(&self.id(id))
    }

    fn is_anything_alive(&self) -> bool {
        self.node.engine.lock().is_anything_alive()
    }
}

/// Kubelet's name of the container with this id on the node.
pub fn kubelets(id: &str) -> &str {
    match id.starts_with("pause-") {
        true => "pause",
        false => id,
    }
}

fn behave_exec(engine: &SimEngine, id: &str, exec_id: &str, ends: Option<(Duration, u8)>) {
    let program = match ends {
        Some((after, code)) => Program::exits_after(after, code),
        None => Program::default(),
    };
    let key = (id.to_owned(), exec_id.to_owned());
    engine.lock().execs.insert(key, program);
}

/// Translates a container's script into a program for the engine. `again` is the exit code after a
/// restart in place, if it differs from the first exit code.
fn program(script: &Script, again: Option<u8>) -> Program {
    let ends = script.exits_after;
    Program {
        ends: ends.map(|(after, code)| (after, ExitStatus::Code(again.unwrap_or(code)))),
        on_stop: match script.stops_after {
            Some(after) => OnStop::Ends(after, ExitStatus::Code(script.stop_code)),
            None => OnStop::Ignores,
        },
        heeds: script.heeds,
        ready_after: script.ready_after,
        unwell_after: script.unwell_after,
        hook_takes: script.hook_takes,
        ..Program::default()
    }
}

/// Largest number of calls by callers other than kubelet. After so many, a further call tries
/// nothing new, and a check that compares calls with one another takes minutes.
const CALLS_AT_MOST: u64 = 10_000;

/// Makes calls at random times, as callers other than kubelet do: for metrics, for probes, and by a
/// person with `ctr`.
async fn others(
    containerd: Containerd,
    engine: SimEngine,
    mut dice: Dice,
    (sandbox, apart): (u64, u64),
    is_over: Arc<AtomicBool>,
) {
    let mut number = 0;
    while number < CALLS_AT_MOST {
        sleep(Duration::from_millis(dice.within(1, apart))).await;
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let mut tasks = containerd.tasks();
        tasks.retain(|id| !containerd.is_sandbox(id));
        if tasks.is_empty() {
            continue;
        }
        let place = usize::try_from(dice.within(0, tasks.len() as u64 - 1)).unwrap_or_default();
        let id = tasks[place].clone();
        number += 1;
        let exec_id = format!("{OTHERS}{sandbox}-{number}");
        let (what, takes) = (dice.within(0, 99), dice.within(0, 3_000));
        let (containerd, engine) = (containerd.clone(), engine.clone());
        let gives_up = dice
            .percent(10)
            .then(|| Duration::from_millis(dice.within(0, 50)));
        let work = async move { ask(&containerd, &engine, &id, &exec_id, what, takes).await };
        tokio::spawn(async move {
            match gives_up {
                Some(soon) => drop(tokio::time::timeout(soon, work).await),
                None => work.await,
            }
        });
    }
}

async fn ask(
    containerd: &Containerd,
    engine: &SimEngine,
    id: &str,
    exec_id: &str,
    what: u64,
    takes: u64,
) {
    let takes = Duration::from_millis(takes);
    /// Makes a call that concerns a whole task.
    macro_rules! ask {
        ($name:literal, $call:ident, $request:ident $fields:tt) => {
            ask!($name, $call, $request $fields, |_| 0)
        };
        ($name:literal, $call:ident, $request:ident { $($field:ident: $value:expr),* }, $outcome:expr) => {{
            let request = $request {
                id: id.to_owned(),
                $($field: $value,)*
                ..$request::new()
            };
            let work = |service: Arc<Service>, context| async move {
                service.$call(&context, request).await.map($outcome)
            };
            containerd.call($name, (id, ""), Some(USUAL), work).await
        }};
    }
    let answer = match what {
        0..30 => containerd.state(id).await.map(|_| 0),
        30..40 => ask!("Pids", pids, PidsRequest {}, |it| it.processes.len() as u32),
        40..50 => ask!("Stats", stats, StatsRequest {}),
        50..55 => ask!("Connect", connect, ConnectRequest {}),
        55..58 => {
            ask!(
                "ResizePty",
                resize_pty,
                ResizePtyRequest {
                    width: 80,
                    height: 25
                }
            )
        }
        58..60 => ask!("CloseIO", close_io, CloseIORequest { stdin: true }),
        60..65 => {
            let _ = containerd.state(id).await;
            containerd.kill(id, "", (0, false), Some(USUAL)).await
        }
        65..75 => {
            // The Update changes the limit to a random value. In half of the cases another Update
            // follows before the first one is answered.
            let steps = takes.as_millis() as u64;
            let update = |steps: u64| {
                let memory = MEMORY + (steps % 5) * 30 * MEBIBYTE;
                let change = serde_json::json!({ "memory": { "limit": memory } });
                let resources = MessageField::some(Any {
                    value: change.to_string().into_bytes(),
                    ..Any::new()
                });
                async move {
                    ask!(
                        "Update",
                        update,
                        UpdateTaskRequest {
                            resources: resources
                        }
                    )
                }
            };
            let again = async {
                sleep(Duration::from_millis(steps % 7)).await;
                update(steps / 5).await
            };
            match steps.is_multiple_of(2) {
                true => update(steps).await,
                false => tokio::join!(update(steps), again).1,
            }
        }
        75..80 => {
            let paused = ask!("Pause", pause, PauseRequest {});
            let _ = containerd.state(id).await;
            sleep(takes / 10).await;
            // A caller that pauses a container always resumes it.
            let resumed = ask!("Resume", resume, ResumeRequest {});
            paused.and(resumed)
        }
        80..83 => {
            let path = "/checkpoint".to_owned();
            let checkpointed = async {
                ask!(
                    "Checkpoint",
                    checkpoint,
                    CheckpointTaskRequest { path: path }
                )
            };
            // In half of the cases the container crashes during the checkpoint.
            let crash = async {
                let after = takes.as_millis() as u64;
                sleep(Duration::from_millis(after % 40)).await;
                if after.is_multiple_of(2) && engine.lock().is_running(id) {
                    engine.memory_runs_out(id);
                }
            };
            tokio::join!(checkpointed, crash).0
        }
        83..88 => {
            cat(containerd, engine, (id, &format!("{exec_id}{CAT}")), takes).await;
            Ok(0)
        }
        // Execute a process with a time limit, as kubelet does for a probe, or without one, as a
        // person does.
        _ => {
            behave_exec(engine, id, exec_id, Some((takes, 3)));
            let limit = what.is_multiple_of(2).then_some(Duration::from_secs(1));
            let argv = ["/bin/check".to_owned()];
            let added = containerd.exec(id, exec_id, &argv, limit).await;
            if added.is_ok() {
                let limit = limit.unwrap_or(USUAL);
                let _ = containerd.run_exec(id, exec_id, limit).await;
            }
            added
        }
    };
    // The call may fail, because its container may be gone. It only has to be answered, and an
    // invariant checks that.
    let _ = answer;
}

/// Execs a process as a person would, and closes its stdin before, during or after its start.
async fn cat(
    containerd: &Containerd,
    engine: &SimEngine,
    (id, exec_id): (&str, &str),
    takes: Duration,
) {
    // In half of the cases the client reads slowly.
    let is_slow = takes.as_millis().is_multiple_of(2);
    let program = Program {
        reads_stdin: true,
        is_read_for: is_slow.then_some(takes),
        ..Program::deaf()
    };
    let key = (id.to_owned(), exec_id.to_owned());
    engine.lock().execs.insert(key, program);
    let argv = ["/bin/cat".to_owned()];
    if containerd.exec(id, exec_id, &argv, None).await.is_err() {
        return;
    }
    let closes = async {
        sleep(takes / 60).await;
        let request = CloseIORequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            stdin: true,
            ..CloseIORequest::new()
        };
        let work = |service: Arc<Service>, context| async move {
            service.close_io(&context, request).await.map(|_| 0)
        };
        let ids = (id, exec_id);
        let _ = containerd.call("CloseIO", ids, Some(USUAL), work).await;
    };
    let starts = async {
        sleep(takes / 100).await;
        let _ = containerd.run_exec(id, exec_id, USUAL).await;
    };
    tokio::join!(closes, starts);
}
