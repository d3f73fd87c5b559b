//! `usher timeline`: what happened to a pod when, as bars.

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
use crate::api;
use chart::Chart;

/// Shows what happened to a pod when: a row for each container, with bars and marks
///
/// Bars say whether the container was held, starting, running, in back-off or stopping; marks say when
/// it was ready, signalled, killed, or exited, and when a probe or handler of it failed. Long times in
/// which nothing happens are cut short, and the axis says where. Works for an hour after the pod has
/// ended.
#[derive(Debug, Args)]
pub struct Timeline {
    /// The pod: its name, namespace/name, or the first characters of its id, four or more
    pod: String,
    /// Writes a picture into this file instead
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    svg: Option<PathBuf>,
    /// So many columns wide; as wide as the terminal if none is given
    #[arg(long, value_parser = clap::value_parser!(u16).range(60..=400))]
    width: Option<u16>,
    #[command(flatten)]
    output: Output,
}

/// Where there is no terminal.
const WIDTH: usize = 100;

impl Timeline {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let pod = Node::new()?.find(&self.pod, true)?.pod;
        self.show(&pod, None, stdout)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Which pod is asked for.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Shows a pod, which is on `node` where that may be another than this one.
    ///
    /// # Errors
    ///
    /// If it, or the picture of it, cannot be written.
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
            return std::fs::write(file, picture::draw(&chart))
                .map_err(|error| Failure::because(format!("{}: {error}", file.display())));
        }
        let width = self.width.map(usize::from);
        let width = width.or_else(|| Some(terminal_width()?.clamp(60, 400)));
        let glyphs = terminal::Glyphs::for_locale();
        stdout.text(terminal::draw(&chart, width.unwrap_or(WIDTH), &glyphs))
    }
}

/// As wide as may be, as narrow as may be, and as a picture.
#[cfg(any(test, fuzzing))]
pub(super) fn draw_all(pod: &api::Pod, now: f64) -> ([String; 2], String) {
    let chart = Chart::of(pod, now);
    let glyphs = terminal::Glyphs::for_locale();
    let texts = [60, 400].map(|width| terminal::draw(&chart, width, &glyphs));
    (texts, picture::draw(&chart))
}
