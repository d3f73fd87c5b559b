//! Divides the duration of a run, of an exec and of a pod among programs. [The
//! kernel](super::processes) tells which program worked at each moment between a client's start and
//! exit. In the remaining time the client, containerd and the serving shim take turns.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::figures::Figures;
use super::harness::{ContainerSpec, Containerd};
use super::idle::CONTAINERS;
use super::processes::{Event, Processes, What};
use super::report::machine;
use super::walltime::{BRIEF, exec_command, quiet_host, run_command, side_by_side};
use super::{Effort, LASTING, progress};

/// The kinds of work, in the order in which they begin. If several programs work at the same time,
/// the time counts for the kind that is listed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    ShimStart,
    Create,
    Start,
    Exec,
    /// The container's own program.
    Program,
    Delete,
    ShimDelete,
    /// The client exits, because it has its answer.
    End,
}

/// A part of a client's run time. If `is_at_work` is true, the part is `work` itself. Otherwise it
/// is the time before `work`, in which the client, containerd and the serving shim prepare `work`.
/// Parts are ordered as they occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    work: Work,
    is_at_work: bool,
}

/// Milliseconds of each part of a client's run time.
pub type Shares = BTreeMap<Share, f64>;

#[derive(Debug)]
struct Span {
    work: Work,
    begin: Duration,
    end: Duration,
}

struct Bench {
    profiler: Profiler,
    host: Containerd,
}

/// Runs clients and measures the parts of their run times, see [`Share`].
pub struct Profiler(Processes);

pub fn print(runtimes: [&str; 2], effort: &Effort) {
    let bench = Bench {
        profiler: Profiler::new(),
        host: quiet_host(),
    };
    let profiler = &bench.profiler;
    progress("a client that asks for nothing");
    let idle = (0..effort.pairs).map(|_| profiler.client(bench.host.ctr_command(&["--version"])));
    let idle: Figures = idle.map(|shares| whole(&shares)).collect();
    progress("ctr run --rm");
    let runs = side_by_side(effort.pairs, |n, id| {
        profiler.client(run_command(&bench.host, runtimes[n], id))
    });
    progress("ctr task exec");
    let hosts = ["container-0", "container-1"];
    for (id, runtime) in hosts.iter().zip(runtimes) {
        let spec = ContainerSpec::new(id).runtime(runtime);
        bench.host.run(&spec.args(LASTING));
    }
    let execs = side_by_side(effort.pairs, |n, id| {
        profiler.client(exec_command(&bench.host, hosts[n], id))
    });
    progress(&format!("pods of {CONTAINERS}"));
    let pods = side_by_side(effort.releases, |n, id| bench.pod(runtimes[n], id));
    let columns: Vec<_> = [runs, execs, pods].into_iter().flatten().collect();
    println!("{}\n", machine());
    let [ours, theirs] = runtimes;
    let heads = [
        format!("`ctr run --rm`, {ours}"),
        theirs.to_owned(),
        format!("`ctr task exec`, {ours}"),
        theirs.to_owned(),
        format!("pod of {CONTAINERS}, {ours}"),
        theirs.to_owned(),
    ];
    table(&heads, &columns);
    println!("\nA client that asks for nothing: {}.", idle.text("ms"));
}

/// Prints the shares, with a column for each kind of client.
fn table(heads: &[String], columns: &[Vec<Shares>]) {
    println!("| median, ms | {} |", heads.join(" | "));
    println!("|---|{}", "--:|".repeat(heads.len()));
    let shares: BTreeSet<&Share> = columns.iter().flatten().flat_map(BTreeMap::keys).collect();
    for share in shares {
        row(&share.text(), columns, |shares| shares.get(share).copied());
    }
    row("all", columns, |shares| Some(whole(shares)));
}

/// Prints a row. A cell is empty if no client of the column has a value for the row.
fn row(what: &str, columns: &[Vec<Shares>], value: impl Fn(&Shares) -> Option<f64>) {
    let cell = |column: &Vec<Shares>| {
        let all: Vec<_> = column.iter().map(&value).collect();
        let takes_part = all.iter().any(Option::is_some);
        let figures: Figures = all.into_iter().map(Option::unwrap_or_default).collect();
        takes_part.then(|| format!("{:.1}", figures.median()))
    };
    let cells: Vec<_> = columns
        .iter()
        .map(|column| cell(column).unwrap_or_default())
        .collect();
    println!("| {what} | {} |", cells.join(" | "));
}

fn whole(shares: &Shares) -> f64 {
    shares.values().sum()
}

impl Bench {
    /// Starts a pod's containers one after another.
    fn pod(&self, runtime: &str, pod: &str) -> Shares {
        let ids: [_; CONTAINERS] = std::array::from_fn(|n| format!("{pod}-{n}"));
        let mut all = Shares::new();
        for id in &ids {
            let spec = ContainerSpec::new(id).runtime(runtime).args(LASTING);
            let spec = spec.in_pod(pod, id);
            let run = spec.ctr_command(&self.host, &["run", "--detach", "--null-io"]);
            for (share, milliseconds) in self.profiler.client(run) {
                *all.entry(share).or_default() += milliseconds;
            }
        }
        self.host.delete_all();
        all
    }
}

impl Profiler {
    pub fn new() -> Self {
        let processes = Processes::watch();
        Self(processes.unwrap_or_else(|e| panic!("the kernel does not tell of processes: {e}")))
    }

    /// Runs a client, and returns the parts of its run time.
    pub fn client(&self, mut command: Command) -> Shares {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut client = command.spawn().expect("ctr");
        let events = self.0.until_end_of(client.id());
        let status = client.wait().expect("ctr");
        assert!(status.success(), "{command:?}: {status}");
        shares(&events, client.id())
    }
}

/// Divides the time from a client's start to its exit among the programs that ran meanwhile.
fn shares(events: &[Event], client: u32) -> Shares {
    let own = |event: &&Event| event.pid == client;
    let (Some(first), Some(last)) = (events.iter().find(own), events.iter().rfind(own)) else {
        panic!("the kernel has said nothing of the client")
    };
    let spans = spans(events);
    let edges = spans.iter().flat_map(|span| [span.begin, span.end]);
    let edges = edges.filter(|edge| (first.at..last.at).contains(edge));
    let edges: BTreeSet<Duration> = edges.chain([first.at, last.at]).collect();
    let edges: Vec<Duration> = edges.into_iter().collect();
    let mut shares = Shares::new();
    for window in edges.windows(2) {
        let [from, to] = [window[0], window[1]];
        let at_work = spans
            .iter()
            .filter(|span| span.begin <= from && to <= span.end);
        let next = spans
            .iter()
            .filter(|span| span.begin >= to)
            .min_by_key(|span| span.begin);
        let at_work = at_work.map(|span| span.work).min();
        let share = Share {
            work: at_work.or(next.map(|span| span.work)).unwrap_or(Work::End),
            is_at_work: at_work.is_some(),
        };
        *shares.entry(share).or_default() += (to - from).as_secs_f64() * 1e3;
    }
    shares
}

/// The periods in which programs worked. For a program that has not exited, the period ends with
/// the last event.
fn spans(events: &[Event]) -> Vec<Span> {
    let last = events.last().map_or(Duration::ZERO, |event| event.at);
    let mut inits = HashSet::new();
    let mut open: HashMap<u32, (Work, Duration)> = HashMap::new();
    let mut spans = Vec::new();
    for Event { at, pid, what } in events {
        let (begin, end) = (*at, *at);
        if let Some((work, begin)) = open.remove(pid) {
            spans.push(Span { work, begin, end });
        }
        let What::Executed(arguments) = what else {
            continue;
        };
        if is_init(arguments) {
            inits.insert(*pid);
        } else if inits.remove(pid) {
            open.insert(*pid, (Work::Program, begin));
        } else if let Some(work) = Work::of(arguments) {
            open.insert(*pid, (work, begin));
        }
    }
    let still = open.into_values();
    spans.extend(still.map(|(work, begin)| Span {
        work,
        begin,
        end: last,
    }));
    spans
}

/// True for `runc init`, the process that later executes the container's program.
fn is_init(arguments: &[String]) -> bool {
    runtime_verb(arguments) == Some("init")
}

fn runtime_verb(arguments: &[String]) -> Option<&str> {
    let (program, words) = arguments.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    let is_runtime = matches!(name, "runc" | "crun");
    let verbs = ["init", "create", "start", "exec", "delete"];
    let mut words = words.iter().map(String::as_str);
    is_runtime
        .then(|| words.find(|word| verbs.contains(word)))
        .flatten()
}

impl Work {
    fn of(arguments: &[String]) -> Option<Self> {
        if arguments == BRIEF || arguments == LASTING {
            return Some(Self::Program);
        }
        if let Some(verb) = runtime_verb(arguments) {
            return match verb {
                "create" => Some(Self::Create),
                "start" => Some(Self::Start),
                "exec" => Some(Self::Exec),
                "delete" => Some(Self::Delete),
                _ => None,
            };
        }
        let program = Path::new(arguments.first()?).file_name()?.to_str()?;
        let is_shim = program.starts_with("containerd-shim-");
        match arguments.last()?.as_str() {
            "start" if is_shim => Some(Self::ShimStart),
            "delete" if is_shim => Some(Self::ShimDelete),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::ShimStart => "the shim's `start`",
            Self::Create => "the runtime's `create`",
            Self::Start => "the runtime's `start`",
            Self::Exec => "the runtime's `exec`",
            Self::Program => "the program",
            Self::Delete => "the runtime's `delete`",
            Self::ShimDelete => "the shim's `delete`",
            Self::End => "the client exits",
        }
    }
}

impl Share {
    fn text(self) -> String {
        match self.is_at_work {
            true => self.work.text().to_owned(),
            false => format!("client, containerd and shim, until {}", self.work.text()),
        }
    }
}
