//! What containers cost that libcontainer makes: our shim with it, beside containerd's own with runc.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::figures::{FigureOf, Figures};
use super::harness::{ContainerSpec, Containerd, REFERENCE, installed_program, number_of};
use super::profile::{Profiler, Shares, table};
use super::report::{commands, machine, row};
use super::walltime::{BRIEF, exec_command, milliseconds, quiet_host, side_by_side};
use super::{Effort, LASTING, progress};

const LIBCONTAINER: &str = "usher-libcontainer";
const RUNC: &str = "runc";

/// What is executed in.
const IN: [&str; 2] = ["container-0", "container-1"];

/// Of how many held containers the memory is taken.
const HELD: usize = 10;

pub fn print(runtimes: [&str; 2], effort: &Effort) {
    let bench = Bench {
        host: quiet_host(),
        contenders: [(runtimes[0], LIBCONTAINER), (runtimes[1], RUNC)],
    };
    progress("wall time of ctr run --rm");
    let runs = bench.runs(effort.pairs);
    progress("wall time of ctr task exec");
    let execs = bench.execs(effort.pairs);
    progress("whose the time is");
    let profiles = bench.profiles(effort.pairs);
    progress("held containers");
    let held = [LIBCONTAINER, RUNC].map(|binary| bench.held(runtimes[0], binary));
    println!("{}\n", machine());
    println!(
        "| | {} with libcontainer | {} with runc | ratio |",
        runtimes[0], runtimes[1]
    );
    println!("|---|---|---|---|");
    commands(&runs, &execs);
    let figures: [(&str, FigureOf<Held>); 3] = [
        ("resident, with what others share", |held| held.resident),
        ("proportional: of a page that n share one n-th", |held| {
            held.proportional
        }),
        ("what its cgroup is charged", |held| held.charged),
    ];
    for (name, figure) in figures {
        row(
            &format!("memory of a held container, {HELD} under our shim with either: {name}"),
            [0, 1].map(|n| format!("{:.2} MB", figure(&held[n]))),
            figure(&held[0]) / figure(&held[1]),
        );
    }
    let heads = ["`ctr run --rm`", "`ctr task exec`"].map(|command| {
        [
            format!("{command}, {} with libcontainer", runtimes[0]),
            format!("{} with runc", runtimes[1]),
        ]
    });
    println!();
    table(&heads.concat(), &profiles);
}

struct Bench<'a> {
    host: Containerd,
    /// A shim, and the OCI runtime that it is to use.
    contenders: [(&'a str, &'a str); 2],
}

/// In MB.
struct Held {
    resident: f64,
    proportional: f64,
    charged: f64,
}

impl Bench<'_> {
    /// `ctr` has an option for the program of runc's own shim, and for others a file.
    fn spec(&self, id: &str, (runtime, binary): (&str, &str)) -> ContainerSpec {
        let spec = ContainerSpec::new(id).runtime(runtime);
        if runtime == REFERENCE {
            return spec;
        }
        let file = self.host.dir().join(binary).with_extension("toml");
        let program = installed_program(binary);
        fs::write(&file, format!("BinaryName = {program:?}\n")).expect("the options");
        spec.option(&["--runtime-config-path", &file.display().to_string()])
    }

    fn run_command(&self, which: usize, id: &str) -> Command {
        let fifo_dir = self.host.dir().join("fifo").display().to_string();
        let spec = self.spec(id, self.contenders[which]).args(BRIEF);
        spec.ctr_command(&self.host, &["run", "--rm", "--fifo-dir", &fifo_dir])
    }

    fn runs(&self, pairs: usize) -> [Figures; 2] {
        let times = side_by_side(pairs, |which, id| milliseconds(self.run_command(which, id)));
        times.map(Figures::from_iter)
    }

    /// In the containers that these have.
    fn execs(&self, pairs: usize) -> [Figures; 2] {
        for (id, contender) in IN.iter().zip(self.contenders) {
            self.host.run(&self.spec(id, contender).args(LASTING));
        }
        let times = side_by_side(pairs, |which, id| {
            milliseconds(exec_command(&self.host, IN[which], id))
        });
        times.map(Figures::from_iter)
    }

    /// Whose the time of each of these is.
    fn profiles(&self, pairs: usize) -> Vec<Vec<Shares>> {
        let profiler = Profiler::new();
        let runs = side_by_side(pairs, |which, id| {
            profiler.client(self.run_command(which, &format!("profiled-{id}")))
        });
        let execs = side_by_side(pairs, |which, id| {
            let id = format!("profiled-{id}");
            profiler.client(exec_command(&self.host, IN[which], &id))
        });
        [runs, execs].into_iter().flatten().collect()
    }

    /// Apps whose sidecar never comes.
    fn held(&self, runtime: &str, binary: &str) -> Held {
        let ids: Vec<String> = (0..HELD).map(|n| format!("held-by-{binary}-{n}")).collect();
        for id in &ids {
            let spec = self
                .spec(id, (runtime, binary))
                .in_pod(&format!("pod-{id}"), id);
            self.host
                .run(&spec.annotation("usher/sidecars", "none").args(LASTING));
        }
        let sum = |figure: &dyn Fn(&str) -> u64| {
            let kilobytes: u64 = ids.iter().map(|id| figure(id)).sum();
            kilobytes as f64 * 1024.0 / 1e6 / HELD as f64
        };
        Held {
            resident: sum(&|id| number_of(&self.init_of(id, "smaps_rollup"), "Rss:")),
            proportional: sum(&|id| number_of(&self.init_of(id, "smaps_rollup"), "Pss:")),
            charged: sum(&|id| self.charged(id) / 1024),
        }
    }

    /// A file of the kernel's about a container's init.
    fn init_of(&self, id: &str, file: &str) -> String {
        let pids = self.host.must(&["tasks", "ps", id]);
        let pid = pids
            .lines()
            .nth(1)
            .and_then(|line| line.split_whitespace().next());
        let path = format!("/proc/{}/{file}", pid.expect("a process"));
        fs::read_to_string(path).expect("a running init")
    }

    /// Bytes.
    fn charged(&self, id: &str) -> u64 {
        let root = PathBuf::from("/sys/fs/cgroup");
        let own = format!("{}/{id}", self.host.namespace);
        let v1 = root.join("memory").join(&own).join("memory.usage_in_bytes");
        let v2 = root.join(&own).join("memory.current");
        let said = fs::read_to_string(v1).or_else(|_| fs::read_to_string(v2));
        said.expect("its cgroup").trim().parse().expect("a number")
    }
}
