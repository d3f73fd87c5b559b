//! Pods and containers that many tests begin with.

use crate::plan::Signal;

use crate::simulator::{Call, Script, World, ms, secs};

pub const TERM: Signal = Signal::TERM;

/// The proxy has a startup probe.
pub const PROBED: (&str, &str) = (
    "startup-probe.usher/proxy",
    r#"{"tcpSocket":{"port":1},"failureThreshold":100}"#,
);

/// A container that stops this long after it was told to.
pub fn stops_after(millis: u64) -> Script {
    Script {
        stops_after: Some(ms(millis)),
        ..Script::default()
    }
}

/// A container that heeds no stop signal.
pub fn deaf() -> Script {
    Script {
        stops_after: None,
        ..Script::default()
    }
}

/// A pod whose containers run, in this order of creation.
pub fn running(mut world: World, names: &[&'static str]) -> World {
    for name in names {
        world.call(Call::Run(name, None));
        world.run_for(ms(50));
    }
    world.run_for(secs(60));
    world.seen.clear();
    world
}

/// Asks as kubelet does at the end of a pod: all, ten milliseconds apart.
pub fn ask_all(world: &mut World, names: &[&'static str], signal: Signal) {
    for (position, name) in names.iter().enumerate() {
        world.call_in(ms(10 * position as u64), Call::Kill(name, signal, None));
    }
}

/// A container that never gets ready.
pub fn never_ready() -> Script {
    Script {
        ready_after: None,
        ..Script::default()
    }
}
