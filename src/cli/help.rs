//! `usher help`: prints the help of a command, or a page of the reference.

use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, CommandFactory, ValueEnum};

use super::Usher;
use super::output::{Failure, Stdout};
use super::pages::Topic;

/// Explains a command, all annotations, or a node's configuration
///
/// `usher help annotations` lists the annotations of pods, `usher help config` the keys of
/// /etc/usher/config.toml; each with its default and an example.
#[derive(Debug, Args)]
pub(super) struct Help {
    /// A command, `annotations` or `config` [default: usher itself]
    topic: Option<String>,
    /// Prints a page of the reference as Markdown tables
    #[arg(long, requires = "topic")]
    markdown: bool,
}

/// The subject of a help text: a page of the reference, or a command.
pub(super) enum HelpTopic {
    Page(Topic),
    Command(Box<clap::Command>),
}

impl Help {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        match help_topic(self.topic.as_deref())? {
            HelpTopic::Page(topic) if self.markdown => stdout.text(topic.page().markdown())?,
            HelpTopic::Page(topic) => stdout.text(topic.page().text())?,
            HelpTopic::Command(_) if self.markdown => {
                let message = "--markdown works only with annotations and config";
                return Err(Failure::Usage(message.to_owned()));
            }
            HelpTopic::Command(mut command) => stdout.text(command.render_long_help().ansi())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Finds the page or command with this name. Without a name, returns `usher` itself.
pub(super) fn help_topic(name: Option<&str>) -> Result<HelpTopic, Failure> {
    let mut usher = Usher::command();
    usher.build();
    let Some(name) = name else {
        return Ok(HelpTopic::Command(Box::new(usher)));
    };
    if let Ok(topic) = Topic::from_str(name, false) {
        return Ok(HelpTopic::Page(topic));
    }
    let command = usher.find_subcommand(name).cloned();
    let command = command.map(|command| HelpTopic::Command(Box::new(command)));
    command.ok_or_else(|| {
        let pages = Topic::value_variants().iter();
        let pages = pages.filter_map(|topic| topic.to_possible_value());
        let pages: Vec<String> = pages
            .map(|page: PossibleValue| page.get_name().to_owned())
            .collect();
        let pages = pages.join(" or ");
        Failure::Usage(format!(
            "usher has no command {name:?}; expected a command that usher --help lists, {pages}"
        ))
    })
}
