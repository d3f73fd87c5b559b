//! Command lines of the manual, split into words. A command that no test runs is still checked: its
//! program must have the options, and the named files must exist.

use std::fs;
use std::path::Path;

use clap::error::ErrorKind;

use super::page::{Place, root};

/// A command in a line of a page, without redirections, and without variables and `sudo` before it.
pub struct Command {
    pub at: Place,
    pub words: Vec<String>,
}

/// The commands in a text. A line that ends with a backslash continues in the next line.
pub fn commands(at: &Place, text: &str) -> Vec<Command> {
    let mut all = Vec::new();
    let mut begun = String::new();
    let mut first = at.line;
    for (number, line) in text.lines().enumerate() {
        if begun.is_empty() {
            first = at.line + number;
        }
        begun.push_str(line.strip_suffix('\\').unwrap_or(line));
        begun.push('\n');
        let goes_on = line.ends_with('\\') || line.trim_end().ends_with('|');
        let Some(words) = shlex::split(&begun).filter(|_| !goes_on) else {
            continue;
        };
        begun.clear();
        let at = Place {
            line: first,
            ..at.clone()
        };
        all.extend(simple(words).into_iter().map(|words| Command {
            at: at.clone(),
            words,
        }));
    }
    assert!(
        begun.is_empty(),
        "{at}: a quotation without an end: {begun}"
    );
    all
}

fn simple(words: Vec<String>) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    for word in words {
        let (word, ends) = match word.strip_suffix(';') {
            Some(word) => (word.to_owned(), true),
            None => (word, false),
        };
        match word.as_str() {
            "|" | "&&" | "" => all.push(Vec::new()),
            "…" | "sudo" => {}
            word if word.starts_with('>') => {}
            word => {
                let command = all.last_mut().expect("a command");
                // The word is an assignment: `digest=$(docker …)`, or the beginning of `NAME=VALUE
                // program`.
                let (variable, value) = word.split_once('=').unwrap_or(("", word));
                let is_first = command.is_empty() && !variable.starts_with('-');
                match value.strip_prefix("$(") {
                    Some(program) => command.push(program.to_owned()),
                    None if is_first && !variable.is_empty() => {}
                    None => command.push(word.trim_end_matches(')').to_owned()),
                }
            }
        }
        if ends {
            all.push(Vec::new());
        }
    }
    all.retain(|words| !words.is_empty());
    all
}

impl Command {
    pub fn line(&self) -> String {
        self.words.join(" ")
    }

    /// The first problem that can be found without running the command.
    pub fn problem(&self) -> Option<String> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let missing = words.iter().find(|word| is_path(word) && !exists(word));
        if let Some(path) = missing {
            return Some(format!("there is no {path}"));
        }
        match words.as_slice() {
            ["kubectl", "usher", ..] => None,
            ["usher", arguments @ ..] => usher(arguments),
            ["scripts/install", arguments @ ..] => usher(&[&["install"], arguments].concat()),
            ["cargo", verb, arguments @ ..] => cargo(verb, arguments),
            [program, arguments @ ..] if program.starts_with("scripts/") => {
                script(program, arguments)
            }
            _ => None,
        }
    }
}

impl Command {
    /// Returns the same as `problem`, but for a command that a sentence quotes. The sentence may
    /// leave out the command's last arguments.
    pub fn problem_of_part(&self) -> Option<String> {
        let whole = |words: &[&str]| Command {
            at: self.at.clone(),
            words: self
                .words
                .iter()
                .map(String::as_str)
                .chain(words.iter().copied())
                .map(str::to_owned)
                .collect(),
        };
        let first = self.problem()?;
        let ends: [&[&str]; 2] = [&["X"], &["X", "X"]];
        let is_part = ends.iter().any(|words| whole(words).problem().is_none());
        (!is_part).then_some(first)
    }
}

/// True for a word in capitals that a reader replaces, like POD.
fn is_placeholder(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_ascii_uppercase() || "_.…".contains(c))
}

fn is_path(word: &str) -> bool {
    const ROOMS: [&str; 5] = ["scripts/", "src/", "integration/", "docs/", "protos/"];
    ROOMS.iter().any(|room| word.starts_with(room)) && !word.contains('*')
}

pub fn exists(path: &str) -> bool {
    let parts = path.split('/').take_while(|part| !is_placeholder(part));
    let path: std::path::PathBuf = parts.collect();
    // These files exist only after a reader has typed commands of the manual.
    let is_made = [
        "docs/timeline.svg",
        "scripts/kubernetes/cert-manager/webhook.yaml",
        "integration/fuzz/artifacts",
    ];
    // The manual names a Rust module by its path without `.rs`. The module is a directory or a
    // file.
    let is_there = |path: &Path| path.exists() || path.with_extension("rs").exists();
    is_there(&root().join(&path)) || is_made.iter().any(|made| Path::new(made) == path)
}

fn usher(arguments: &[&str]) -> Option<String> {
    // The reader has to replace a word in capitals. Here it is replaced by a word that the command
    // accepts.
    let arguments = arguments.iter().map(|word| match *word {
        "SHELL" => "bash",
        word => word,
    });
    let words = ["usher"].into_iter().chain(arguments);
    match usher_cli::command().try_get_matches_from(words) {
        Ok(_) => None,
        Err(said)
            if matches!(
                said.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) =>
        {
            None
        }
        Err(said) => Some(said.to_string()),
    }
}

/// Checks that a script knows these options. The text of the script must contain each option.
fn script(program: &str, arguments: &[&str]) -> Option<String> {
    let text = fs::read_to_string(root().join(program)).expect("a script");
    let unknown = arguments
        .iter()
        .find(|word| word.starts_with("--") && !text.contains(*word));
    let tests = arguments
        .iter()
        .find_map(|word| tests("integration/kubernetes", word));
    unknown
        .map(|word| format!("{program} says nothing of {word}"))
        .or(tests)
}

/// Options that take a value.
const WITH_VALUE: [&str; 6] = [
    "--package",
    "--test",
    "--bench",
    "--example",
    "--bin",
    "--target",
];

fn cargo(verb: &str, arguments: &[&str]) -> Option<String> {
    let value_of = |option: &str| {
        let at = arguments.iter().position(|word| *word == option)?;
        arguments.get(at + 1).copied()
    };
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    for option in ["--test", "--bench", "--example"] {
        let name =
            value_of(option).filter(|name| !manifest.contains(&format!("name = \"{name}\"")));
        if let Some(name) = name {
            return Some(format!("no target is called {name}"));
        }
    }
    let room = match value_of("--package") {
        None => "src",
        Some("usher-cli") => "src/cli",
        Some("usher-core") => "src/core",
        Some("usher-engine") => "src/engine",
        Some("usher-webhook") => "src/webhook",
        Some("kubectl-usher") => "src/kubectl",
        Some(other) => return Some(format!("no package is called {other}")),
    };
    let room = value_of("--test").map_or(room, |_| "integration");
    let mut before = "";
    let mut names = Vec::new();
    for word in arguments {
        if !word.starts_with('-') && !WITH_VALUE.contains(&before) && !word.ends_with(';') {
            names.push(*word);
        }
        before = word;
    }
    match verb {
        "test" => names.iter().find_map(|name| tests(room, name)),
        "build" | "check" | "run" | "bench" | "fmt" | "clippy" | "deny" => None,
        _ => Some(format!("cargo {verb} is on no list here")),
    }
}

/// Returns a problem if the directory `room` has no test for `name`. A name like `module::` stands
/// for all tests of a module. A name like `module::beginning` stands for the tests and submodules
/// whose names begin with `beginning`. A name without `::` is not checked.
fn tests(room: &str, name: &str) -> Option<String> {
    let (modules, test) = name.rsplit_once("::")?;
    let module = modules.rsplit("::").next().unwrap_or(modules);
    let sources = sources(&root().join(room));
    let mut of_module = sources.iter().filter(|path| {
        let in_directory = path
            .parent()
            .and_then(Path::file_name)
            .is_some_and(|it| it == module);
        in_directory || path.file_stem().is_some_and(|it| it == module)
    });
    let has_it = of_module.any(|path| {
        let text = fs::read_to_string(path).expect("a source");
        let names = [format!("fn {test}"), format!("mod {test}")];
        test.is_empty() || names.iter().any(|name| text.contains(name))
    });
    (!has_it).then(|| format!("no test in {room} is called {name}"))
}

/// All files below a directory, except build output.
pub fn sources(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        match path.is_dir() && !path.is_symlink() {
            true if name == "target" || name == ".git" => {}
            true => all.extend(sources(&path)),
            false => all.push(path),
        }
    }
    all
}

#[test]
fn a_line_is_split_as_a_shell_does_it() {
    let at = Place {
        file: "page".to_owned(),
        line: 7,
    };
    let text = "a --b 'c d' | e -f X   # g\nvariable=$(h -- i) && j \\\n    k\nl; X=1 m >n\n";
    let all = commands(&at, text);
    let lines: Vec<_> = all.iter().map(|it| (it.at.line, it.line())).collect();
    let expected = [
        (7, "a --b c d"),
        (7, "e -f X"),
        (8, "h -- i"),
        (8, "j k"),
        (10, "l"),
        (10, "m"),
    ];
    assert_eq!(
        lines,
        expected.map(|(line, words)| (line, words.to_owned()))
    );
}

#[test]
fn an_unknown_command_option_file_or_test_is_a_problem() {
    let at = Place {
        file: "page".to_owned(),
        line: 1,
    };
    for (line, is_wrong) in [
        ("usher inspect POD -o json", false),
        ("usher inspect", true),
        ("usher inspect web --loud", true),
        ("usher help annotations", false),
        ("scripts/install --restart", false),
        ("scripts/install --everywhere", true),
        ("scripts/simulate 1 --from 26824", false),
        ("scripts/simulate --backwards", true),
        ("scripts/nothing", true),
        (
            "kubectl apply -f scripts/kubernetes/runtimeclass.yaml",
            false,
        ),
        ("kubectl apply -f scripts/kubernetes/class.yaml", true),
        ("cargo test --package usher-core policies::", false),
        ("cargo test --package usher-core manners::", true),
        (
            "cargo test --test integration grace_policies::under_shared",
            false,
        ),
        (
            "cargo test --test integration grace_policies::under_nobody",
            true,
        ),
        ("cargo test --test unit", true),
    ] {
        let command = commands(&at, line).remove(0);
        assert_eq!(
            command.problem().is_some(),
            is_wrong,
            "{line}: {:?}",
            command.problem()
        );
    }
}
