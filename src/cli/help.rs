//! `usher help`: of a command, or a page of the reference.

use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, CommandFactory, ValueEnum};

use super::Usher;
use super::output::{Failure, Stdout};
use super::pages::Topic;

/// Explains a command, all annotations, or a node's configuration
///
/// `usher help annotations` lists what a pod's annotations can say, `usher help config` what a node's
/// administrator can say in /etc/usher/config.toml; each with its default and an example.
#[derive(Debug, Args)]
pub(super) struct Help {
    /// A command, `annotations` or `config`; usher itself if none is given
    topic: Option<String>,
    /// Print a page of the reference as tables in Markdown
    #[arg(long, requires = "topic")]
    markdown: bool,
}

/// What a person asks for.
pub(super) enum Asked {
    Page(Topic),
    Command(Box<clap::Command>),
}

impl Help {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        match asked(self.topic.as_deref())? {
            Asked::Page(topic) if self.markdown => stdout.text(topic.page().markdown())?,
            Asked::Page(topic) => stdout.text(topic.page().text())?,
            Asked::Command(_) if self.markdown => {
                let message = "--markdown is for annotations and config alone";
                return Err(Failure::Senseless(message.to_owned()));
            }
            Asked::Command(mut command) => stdout.text(command.render_long_help().ansi())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The page, or the command, of this name; usher itself if there is none.
pub(super) fn asked(name: Option<&str>) -> Result<Asked, Failure> {
    let mut usher = Usher::command();
    usher.build();
    let Some(name) = name else {
        return Ok(Asked::Command(Box::new(usher)));
    };
    if let Ok(topic) = Topic::from_str(name, false) {
        return Ok(Asked::Page(topic));
    }
    let command = usher.find_subcommand(name).cloned();
    let command = command.map(|command| Asked::Command(Box::new(command)));
    command.ok_or_else(|| {
        let pages = Topic::value_variants().iter();
        let pages = pages.filter_map(|topic| topic.to_possible_value());
        let pages: Vec<String> = pages.map(|page: PossibleValue| page.get_name().to_owned()).collect();
        let pages = pages.join(" or ");
        Failure::Senseless(format!(
            "{name:?} is no command of usher; expected one of those that usher --help lists, {pages}"
        ))
    })
}
