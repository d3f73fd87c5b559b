//! `usher man`: prints or installs man pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_mangen::Man as Page;

use super::Usher;
use super::help::{HelpTopic, help_topic};
use super::output::{Failure, Stdout};
use super::pages::Topic;

/// Prints a man page, or writes all of them
///
/// `usher man | man -l -` shows usher's page, `usher man annotations | man -l -` that of all
/// annotations; `usher man --directory /usr/local/share/man` installs all pages.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// A command, `annotations` or `config` [default: usher itself]
    #[arg(conflicts_with = "directory")]
    topic: Option<String>,
    /// Writes all pages to the sections' directories (man1 and others) below this one
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        if let Some(directory) = self.directory {
            write_all(&directory)?;
            return Ok(ExitCode::SUCCESS);
        }
        match help_topic(self.topic.as_deref())? {
            HelpTopic::Page(topic) => stdout.text(topic.page().roff())?,
            HelpTopic::Command(command) => {
                let mut page = Vec::new();
                Page::new(*command).render(&mut page)?;
                stdout.bytes(&page)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn write_all(directory: &Path) -> Result<(), Failure> {
    let failed =
        |path: &Path, error| Failure::because(format!("cannot write {}: {error}", path.display()));
    let section = |number: &str| {
        let path = directory.join(format!("man{number}"));
        let made = fs::create_dir_all(&path).map_err(|error| failed(&path, error));
        made.map(|()| path)
    };
    let commands = section("1")?;
    clap_mangen::generate_to(Usher::command(), &commands)
        .map_err(|error| failed(&commands, error))?;
    for topic in Topic::value_variants() {
        let page = topic.page();
        let path = section(page.section)?.join(format!("{}.{}", page.name, page.section));
        fs::write(&path, page.roff()).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
