//! Pods and containers that many tests begin with.

use crate::lifecycle::{Exec, Kill};
use crate::plan::Signal;

use crate::simulator::{Call, Script, World, ms, secs};

pub const TERM: Signal = Signal::TERM;

/// The annotation that gives the proxy a startup probe.
pub const PROBED: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":1},"failureThreshold":100}"#,
);

pub fn stops_after(millis: u64) -> Script {
    Script {
        stops_after: Some(ms(millis)),
        ..Script::default()
    }
}

/// A container that ignores stop signals.
pub fn deaf() -> Script {
    Script {
        stops_after: None,
        ..Script::default()
    }
}

/// Creates the containers in this order, and returns the world when they run.
pub fn running(mut world: World, names: &[&'static str]) -> World {
    for name in names {
        world.call(Call::Run(name, None));
        world.run_for(ms(50));
    }
    world.run_for(secs(60));
    world.seen.clear();
    world
}

/// Asks all containers to stop, ten milliseconds apart, as kubelet does at the end of a pod.
pub fn ask_all(world: &mut World, names: &[&'static str], signal: Signal) {
    for (position, name) in names.iter().enumerate() {
        world.call_in(ms(10 * position as u64), Call::Kill(name, signal, None));
    }
}

pub fn never_ready() -> Script {
    Script {
        ready_after: None,
        ..Script::default()
    }
}

/// An exec as kubelet makes it for a handler: with no deadline, terminal or stdin.
pub fn exec<'a>(id: &'a str, argv: &'a [String]) -> Exec<'a> {
    Exec {
        id,
        argv,
        has_deadline: false,
        is_interactive: false,
    }
}

/// A container that the OCI runtime cannot create.
pub fn broken() -> Script {
    Script {
        cannot_be_created: true,
        ..Script::default()
    }
}

/// A Kill that carries no deadline, as `ctr` sends it.
pub fn by_hand(signal: Signal) -> Kill {
    Kill {
        signal,
        all: false,
        call_timeout: None,
    }
}
