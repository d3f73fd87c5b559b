//! `usher man`: the man pages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_mangen::Man as Page;

use super::Usher;
use super::output::{Failure, Stdout};

/// Prints a man page, or writes all of them
///
/// `usher man | man -l -` shows it; `usher man --directory /usr/local/share/man/man1` installs
/// them all.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// The command whose page is printed; usher's own if none is given
    #[arg(conflicts_with = "directory")]
    command: Option<String>,
    /// Where all pages are written to, each into a file of its own
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let mut usher = Usher::command().disable_help_subcommand(true);
        usher.build();
        if let Some(directory) = self.directory {
            clap_mangen::generate_to(usher, &directory)
                .map_err(|error| Failure::because(format!("{}: {error}", directory.display())))?;
            return Ok(ExitCode::SUCCESS);
        }
        let command = match &self.command {
            None => usher,
            Some(name) => usher.find_subcommand(name).cloned().ok_or_else(|| {
                Failure::because(format!("{name:?} is no command of usher; see usher --help"))
            })?,
        };
        let mut page = Vec::new();
        Page::new(command).render(&mut page)?;
        stdout.bytes(&page)?;
        Ok(ExitCode::SUCCESS)
    }
}
