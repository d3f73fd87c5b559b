//! The log: writes lines to a FIFO that containerd copies into its own log.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;

use nix::libc;
use tracing::level_filters::LevelFilter;

/// The FIFO's name in the bundle.
const FIFO: &str = "log";

/// The FIFO of the log. A write never blocks, because a pod must not wait for its log. If the FIFO
/// is full, the line is dropped.
struct Fifo(File);

impl Write for Fifo {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.0.write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to log to the FIFO in the working directory, which is the bundle. Without the FIFO, the
/// shim logs nothing.
pub(super) fn begin(debug: bool) {
    // Open the FIFO for reading, too: otherwise it would break when containerd restarts.
    let fifo = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(FIFO);
    let Ok(fifo) = fifo else { return };
    let level = if debug {
        LevelFilter::DEBUG
    } else {
        LevelFilter::INFO
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .with_writer(Mutex::new(Fifo(fifo)));
    // This cannot fail, because the shim installs no other subscriber.
    let _ = log.try_init();
}
