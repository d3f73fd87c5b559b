//! The log: lines into the FIFO that containerd copies into its own log.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;

use nix::libc;
use tracing::level_filters::LevelFilter;

/// The FIFO's name in the bundle.
const FIFO: &str = "log";

/// A FIFO that never blocks: a line that does not fit because nobody reads is lost, which is better
/// than a pod that waits for a log.
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

/// Begins to log, if there is somewhere to.
pub(super) fn begin(debug: bool) {
    // For reading too: so it stays whole while containerd is restarted.
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
    // There is none before this one.
    let _ = log.try_init();
}
