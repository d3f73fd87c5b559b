//! `usher timeline`: draws the history of a pod as bars.

mod axis;
mod chart;
mod picture;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::json::json_on;
use super::node::Node;
use super::output::{Failure, Output, Stdout, terminal_width};
use super::time;
use chart::Chart;
use usher_api as api;

/// Shows the history of a pod: a row for each container, with bars and marks
///
/// Bars show when the container was held, starting, running, in back-off or stopping. Marks show
/// when it became ready, got a signal, was killed or exited, and when a probe or handler failed.
/// Long times without events are shortened, and the axis shows where. Works for an hour after the
/// end of the pod.
#[derive(Debug, Args)]
pub struct Timeline {
    /// The pod: its name, namespace/name, or the first characters of its id, four or more
    pod: String,
    /// Writes a picture to this file instead
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    svg: Option<PathBuf>,
    /// The width in columns [default: that of the terminal]
    #[arg(long, value_parser = clap::value_parser!(u16).range(60..=400))]
    width: Option<u16>,
    #[command(flatten)]
    output: Output,
}

/// The default width without a terminal.
const WIDTH: usize = 100;

impl Timeline {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let pod = Node::new()?.find(&self.pod, true)?.pod;
        self.show(&pod, None, stdout)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The pod's name or id on the command line.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Shows a pod, and its node if given.
    ///
    /// # Errors
    ///
    /// If the output or the picture cannot be written.
    pub fn show(
        &self,
        pod: &api::Pod,
        node: Option<&str>,
        stdout: &mut Stdout,
    ) -> Result<(), Failure> {
        if self.output.is_json() {
            return stdout.json(&json_on(pod, node)?);
        }
        let chart = Chart::of(pod, time::observed(pod));
        if let Some(file) = &self.svg {
            return std::fs::write(file, picture::draw(&chart)).map_err(|error| {
                Failure::because(format!("cannot write {}: {error}", file.display()))
            });
        }
        let width = self.width.map(usize::from);
        let width = width.or_else(|| Some(terminal_width()?.clamp(60, 400)));
        let glyphs = terminal::Glyphs::for_locale();
        stdout.text(terminal::draw(&chart, width.unwrap_or(WIDTH), &glyphs))
    }
}

/// Draws a pod as text with the least width, as text with the greatest width, and as a picture.
#[cfg(any(test, fuzzing))]
pub(super) fn draw_all(pod: &api::Pod, now: f64) -> ([String; 2], String) {
    let chart = Chart::of(pod, now);
    let glyphs = terminal::Glyphs::for_locale();
    let texts = [60, 400].map(|width| terminal::draw(&chart, width, &glyphs));
    (texts, picture::draw(&chart))
}
