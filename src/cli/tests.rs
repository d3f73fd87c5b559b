//! Tests of the command line: clap's own checks, help and completion.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use super::output::Table;
use super::{Usher, completion, output};

#[test]
fn the_command_line_definition_is_valid() {
    Usher::command().debug_assert();
}

#[test]
fn every_command_and_argument_has_a_help_text() {
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
        let script = completion::script(shell);
        for command in Usher::command().get_subcommands() {
            assert!(script.contains(command.get_name()), "{shell} {command}");
        }
    }
}

#[test]
fn completion_offers_the_names_of_pods_and_executes_none() {
    let said = r"
        usher() { printf 'NAMESPACE NAME READY\nshop checkout 1/1\nshop cart 1/1\nshop ch$(exit) 1/1\n'; }
        COMP_WORDS=(usher inspect ch) COMP_CWORD=2
        _usher_with_pods usher ch inspect
        echo ${COMPREPLY[@]}
        COMP_WORDS=(usher insp) COMP_CWORD=1
        _usher_with_pods usher insp usher
        echo ${COMPREPLY[@]}";
    let script = completion::script(Shell::Bash) + said;
    let bash = std::process::Command::new("bash")
        .args(["-c", &script])
        .output();
    let output = String::from_utf8(bash.unwrap().stdout).unwrap();
    assert_eq!(output.lines().collect::<Vec<_>>(), ["checkout", "inspect"]);
    for (shell, function) in [(Shell::Zsh, ":_usher_pods'"), (Shell::Fish, "usher ps -a")] {
        assert!(completion::script(shell).contains(function), "{shell}");
    }
}

#[test]
fn an_unknown_command_is_refused_with_status_2() {
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
fn a_closed_output_is_no_success() {
    let status = super::run(["usher", "man"].map(OsString::from), |usher: Usher, _| {
        usher.command.run(&mut output::Stdout::closed())
    });
    assert_eq!(format!("{status:?}"), format!("{:?}", ExitCode::from(141)));
}

#[test]
fn help_for_an_unknown_command_is_a_usage_error() {
    for name in ["nosuch", "hel"] {
        let asked = super::help::help_topic(Some(name)).err().unwrap();
        assert!(matches!(asked, output::Failure::Usage(_)), "{name}");
    }
}

#[test]
fn colors_do_not_change_a_tables_width() {
    let mut table = Table::new(["NAME", "ROLE"]);
    table.row([output::styled(output::GOOD, "web"), "app".to_owned()]);
    table.row(["longer-name", "sidecar"]);
    let plain = anstream::adapter::strip_str(&table.to_string()).to_string();
    assert_eq!(
        plain,
        "NAME          ROLE\nweb           app\nlonger-name   sidecar\n"
    );
}
