//! `usher completion`: prints a shell's completion script.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Usher;
use super::output::{Failure, Stdout};

/// Prints a script with which a shell completes usher's arguments, including names of pods
///
/// For bash: `usher completion bash > /etc/bash_completion.d/usher`. For zsh: write it to a file
/// `_usher` in a directory of $fpath. For fish: write it to
/// `~/.config/fish/completions/usher.fish`.
#[derive(Debug, Args)]
pub(super) struct Completion {
    /// The shell
    shell: Shell,
}

impl Completion {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        stdout.bytes(script(self.shell).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Usher::command(), "usher", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + &BASH.replace("@PODS@", PODS),
        // The fish script already has single quotes around the command, so the command's own quotes
        // are escaped.
        Shell::Fish => script + &FISH.replace("@PODS@", &PODS.replace('\'', r"\'")),
        Shell::Zsh => with_zsh(&script),
        _ => script,
    }
}

/// The shell command that prints the names of pods. The scripts contain it in place of `@PODS@`. It
/// omits names with special characters, since `compgen` would execute command substitutions in
/// them.
const PODS: &str =
    "usher ps -a 2>/dev/null | awk 'NR > 1 && $2 ~ /^[A-Za-z0-9._-]+$/ { print $2 }'";

const BASH: &str = r#"
_usher_with_pods() {
    local word="${COMP_WORDS[COMP_CWORD]}"
    case "${COMP_WORDS[1]}" in
        inspect | timeline | stop | release)
            if [[ $COMP_CWORD -eq 2 && $word != -* ]]; then
                local pods
                pods=$(@PODS@)
                COMPREPLY=($(compgen -W "$pods" -- "$word"))
                return
            fi
            ;;
    esac
    _usher "$@"
}

complete -F _usher_with_pods -o bashdefault -o default usher
"#;

const FISH: &str = r"
complete -c usher -n '__fish_seen_subcommand_from inspect timeline stop release' -f \
    -a '(@PODS@)'
";

const ZSH: &str = r#"
_usher_pods() {
    local -a pods
    pods=(${(f)"$(@PODS@)"})
    compadd -a pods
}
"#;

/// Adds a function that completes pods to the zsh script. The function comes after the script's
/// first line. It cannot come at the end, because the script's last lines call it.
fn with_zsh(script: &str) -> String {
    let mut text = String::new();
    for (index, line) in script.lines().enumerate() {
        match line.contains(":pod -- ") {
            true => text.push_str(&line.replace(":_default'", ":_usher_pods'")),
            false => text.push_str(line),
        }
        text.push('\n');
        if index == 0 {
            text.push_str(&ZSH.replace("@PODS@", PODS));
        }
    }
    text
}
