//! The command line itself: what clap can check, help, completion, man pages.

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use super::output::Table;
use super::{Usher, output};

#[test]
fn the_command_line_contradicts_itself_nowhere() {
    Usher::command().debug_assert();
}

#[test]
fn every_command_and_argument_says_what_it_is_for() {
    let mut usher = Usher::command();
    usher.build();
    for command in usher.get_subcommands() {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{name} {argument}");
        }
    }
}

#[test]
fn completion_knows_every_command_in_every_shell() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Usher::command(), "usher", &mut script);
        let script = String::from_utf8(script).unwrap();
        for command in Usher::command().get_subcommands() {
            assert!(script.contains(command.get_name()), "{shell} {command}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_status_2() {
    let refused = Usher::try_parse_from(["usher", "mak"]).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    assert_eq!(
        Usher::try_parse_from(["usher", "--help"])
            .unwrap_err()
            .exit_code(),
        0
    );
}

#[test]
fn help_for_what_is_no_command_makes_no_sense() {
    for name in ["nosuch", "hel"] {
        let asked = super::help::asked(Some(name)).err().unwrap();
        assert!(matches!(asked, output::Failure::Senseless(_)), "{name}");
    }
}

#[test]
fn a_table_is_as_wide_as_its_text_whatever_its_colours() {
    let mut table = Table::new(["NAME", "ROLE"]);
    table.row([output::styled(output::GOOD, "web"), "app".to_owned()]);
    table.row(["longer-name", "sidecar"]);
    let plain = anstream::adapter::strip_str(&table.to_string()).to_string();
    assert_eq!(
        plain,
        "NAME          ROLE\nweb           app\nlonger-name   sidecar\n"
    );
}
