//! Findings of `usher check`, with their subjects, levels, codes and cures.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

use super::super::output::{self, styled};

/// The manual page with a heading for each code.
const PAGE: &str = "docs/troubleshooting.md";

/// Groups of subjects, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Group {
    Containerd,
    Runtime,
    Node,
    Configuration,
}

/// The part of the node that a check is about, and its group in the report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject {
    pub(super) group: Group,
    pub(super) about: &'static str,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(super) group: Group,
    pub(super) about: &'static str,
    pub(super) level: Level,
    /// The stable name of the problem; None if the level is [`Level::Ok`].
    pub(super) code: Option<Code>,
    pub(super) says: String,
    #[serde(flatten)]
    pub(super) cure: Cure,
    /// The value of `code`. JSON has in its place where the manual explains the problem.
    #[serde(serialize_with = "place")]
    see: Option<Code>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// Pods run, but some feature does not work.
    Warning,
    /// Pods do not run, or usher has no effect.
    Problem,
}

/// Steps that solve the problem.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Cure {
    pub(super) run: Option<String>,
    /// The configuration file to which `add` belongs.
    pub(super) file: Option<PathBuf>,
    /// The table in `file` to which `add` belongs. None if `add` contains the table's heading.
    pub(super) table: Option<String>,
    /// Lines to add to the configuration file.
    pub(super) add: Option<String>,
}

/// Stable names of problems; each is a heading in the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Code {
    ContainerdMissing,
    ContainerdVersion,
    ContainerdStopped,
    ContainerdStale,
    CriFailed,
    CriSilent,
    CriDisabled,
    ConfigRefused,
    ConfigMissing,
    ConfigParts,
    DefaultRuntime,
    RuntimeMissing,
    RuntimePath,
    RuntimeType,
    Sandboxer,
    PauseImage,
    KubeletFeatures,
    CgroupDriver,
    ShimMissing,
    ShimMode,
    ShimFails,
    ShimVersion,
    OciRuntimeMissing,
    OciRuntimeFails,
    OciRuntimeRemoved,
    PodAnnotations,
    ContainerAnnotations,
    OomScores,
    Cgroups,
    Kernel,
    UsherConfig,
    UsherOff,
}

impl Subject {
    pub(super) const fn new(group: Group, about: &'static str) -> Subject {
        Subject { group, about }
    }

    pub(super) fn ok(self, says: impl Into<String>) -> Finding {
        self.finding(Level::Ok, None, says.into())
    }

    pub(super) fn warning(self, code: Code, says: impl Into<String>) -> Finding {
        self.finding(Level::Warning, Some(code), says.into())
    }

    pub(super) fn problem(self, code: Code, says: impl Into<String>) -> Finding {
        self.finding(Level::Problem, Some(code), says.into())
    }

    fn finding(self, level: Level, code: Option<Code>, says: String) -> Finding {
        Finding {
            group: self.group,
            about: self.about,
            level,
            code,
            says,
            cure: Cure::default(),
            see: code,
        }
    }
}

impl Cure {
    pub(super) fn run(command: impl Into<String>) -> Cure {
        Cure {
            run: Some(command.into()),
            ..Cure::default()
        }
    }

    /// The cure that adds lines to this table of the configuration file.
    pub(super) fn keys(file: PathBuf, table: String, lines: impl Into<String>) -> Cure {
        Cure {
            file: Some(file),
            table: Some(table),
            add: Some(lines.into()),
            run: None,
        }
    }

    /// The cure that adds these lines, with a new table, at the end of the configuration file.
    pub(super) fn table(file: PathBuf, lines: impl Into<String>) -> Cure {
        Cure {
            file: Some(file),
            add: Some(lines.into()),
            ..Cure::default()
        }
    }
}

impl Finding {
    pub(super) fn cure(mut self, cure: Cure) -> Finding {
        self.cure = cure;
        self
    }

    pub(super) fn is_problem(&self) -> bool {
        self.level == Level::Problem
    }

    /// The text output: a line, and below it the cure and the place in the manual.
    pub(crate) fn text(&self) -> String {
        let (word, style) = match self.level {
            Level::Ok => ("ok     ", output::GOOD),
            Level::Warning => ("warning", output::WARNING),
            Level::Problem => ("PROBLEM", output::BAD),
        };
        let word = styled(style, word);
        let about = styled(output::BOLD, self.about);
        let mut text = format!("{word}  {about}: {}\n", self.says);
        let mut say = |line: &str| {
            text.push_str(format!("           {line}").trim_end());
            text.push('\n');
        };
        if let Some(command) = &self.cure.run {
            say(&format!("run: {command}"));
        }
        match (&self.cure.file, &self.cure.table) {
            (Some(file), Some(table)) => {
                say(&format!("in {}, in the table [{table}]:", file.display()));
            }
            (Some(file), None) => say(&format!("at the end of {}:", file.display())),
            (None, _) => {}
        }
        for line in self.cure.add.iter().flat_map(|lines| lines.lines()) {
            say(line);
        }
        if let Some(code) = self.code {
            say(&format!("see: {}", code.place()));
        }
        text
    }
}

impl Code {
    pub(super) fn word(self) -> String {
        let word = self.to_possible_value();
        word.map_or_else(String::new, |word| word.get_name().to_owned())
    }

    fn place(self) -> String {
        format!("{PAGE}#{}", self.word())
    }
}

fn place<S: Serializer>(code: &Option<Code>, serializer: S) -> Result<S::Ok, S::Error> {
    code.map(Code::place).serialize(serializer)
}

impl Group {
    pub(super) fn title(self) -> &'static str {
        match self {
            Group::Containerd => "containerd",
            Group::Runtime => "the runtime",
            Group::Node => "the node",
            Group::Configuration => "usher's configuration",
        }
    }
}
