//! What libcontainer says on its way to a failure.
//!
//! Its processes in a container hand only their last sentence to the one that answers, without its causes. Those
//! they write into their log; here that is a pipe, which is read if something has failed.

use std::fmt::{self, Write as _};
use std::io::{self, Read, Write};
use std::sync::Mutex;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How much is kept of it.
const AT_MOST: u64 = 2048;

/// The end that is read.
pub struct Report(std::fs::File);

impl Report {
    /// From now on libcontainer's errors are kept, of this process and of those that it makes.
    ///
    /// # Errors
    ///
    /// If there is no pipe to be had.
    pub fn begin() -> io::Result<Report> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // There is none before: this is done once.
        let _ = tracing::subscriber::set_global_default(Errors(Mutex::new(Some(write.into()))));
        Ok(Report(read.into()))
    }

    /// The first thing that went wrong, which is the cause of all that followed.
    pub fn cause(self) -> Option<String> {
        let mut said = Vec::new();
        // It ends with an error where there is no more: what was read until then is there.
        let _ = self.0.take(AT_MOST).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        said.lines()
            .next()
            .filter(|line| !line.is_empty())
            .map(ToOwned::to_owned)
    }
}

/// Nothing is written any more by this process. Its program would be ended by the kernel for writing into a pipe that
/// nobody reads, and so would it.
pub fn end() {
    tracing::dispatcher::get_default(|dispatch| {
        if let Some(Ok(mut write)) = dispatch
            .downcast_ref::<Errors>()
            .map(|errors| errors.0.lock())
        {
            *write = None;
        }
    });
}

struct Errors(Mutex<Option<std::fs::File>>);

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Ok(mut write) = self.0.lock() else {
            return;
        };
        if let Some(write) = write.as_mut() {
            let Line { message, fields } = line;
            // A full pipe has more than anybody reads.
            let _ = write.write_all(format!("{message}{fields}\n").as_bytes());
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}").replace('\n', " ");
        // A String takes whatever it is given.
        let _ = match field.name() {
            "message" => self.message.write_str(&text),
            name => write!(self.fields, ", {name} {text}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_the_cause_until_the_end() {
        let report = Report::begin().unwrap();
        tracing::info!("all is well");
        tracing::error!(path = ?"/proc", "failed to mount\nit");
        tracing::error!("failed");
        end();
        tracing::error!("nobody hears this");
        assert_eq!(
            report.cause().as_deref(),
            Some("failed to mount it, path \"/proc\"")
        );
    }
}
