//! Endless output to FIFOs that no client reads, or that a client reads slowly.

use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

use super::{Container, Pod, Stage};

/// Reads a few bytes at a time, with pauses, until the end.
fn read_slowly(stage: &Stage) {
    let dirs = fs::read_dir(stage.host.dir().join("fifo"));
    let dirs = dirs.expect("FIFOs").flatten().map(|entry| entry.path());
    for fifo in dirs.map(|dir| dir.join("web-stdout")) {
        let Ok(mut fifo) = File::open(fifo) else {
            continue;
        };
        std::thread::spawn(move || {
            let mut piece = [0; 100];
            while fifo.read(&mut piece).is_ok_and(|length| length > 0) {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }
}

pub const PODS: &[Pod] = &[Pod {
    name: "output",
    about: "output without end, unread, and read slowly",
    annotations: &[("usher/sidecars", "proxy")],
    containers: &[
        Container::new("proxy", &["/bin/busybox", "yes"]),
        Container::new("web", &["/bin/busybox", "yes"]),
    ],
    meanwhile: read_slowly,
    // The shim stops waiting for a reader that pauses for too long. This reader makes only short
    // pauses, so the shim waits for its maximum time before it reports the exit.
    told_late: Duration::from_secs(2),
    ..Pod::NEW
}];
