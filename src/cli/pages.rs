//! The reference pages: of all annotations, and of a node's configuration. For terminals, as man pages, and
//! as tables of Markdown, made of what the parsers know.

use std::fmt::Write as _;

use clap::ValueEnum;
use roff::{Inline, Roff, bold, roman};
use usher_core::config::reference as config;
use usher_core::plan::reference as plan;

/// How wide text is for terminals.
const WIDTH: usize = 80;

/// A page that is no command's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Topic {
    /// What can be said in a pod's annotations
    Annotations,
    /// What can be said in /etc/usher/config.toml
    Config,
}

/// A reference.
pub(super) struct Page {
    /// Its name as a man page, and the section of the manual.
    pub name: &'static str,
    pub section: &'static str,
    title: &'static str,
    parts: Vec<Part>,
}

/// What stands under one heading.
struct Part {
    title: String,
    about: &'static str,
    items: Vec<Item>,
}

/// One key.
struct Item {
    key: String,
    /// What belongs to it: "value", and what that is.
    facts: Vec<(&'static str, String)>,
    about: &'static str,
    /// Whole lines.
    example: String,
}

impl Topic {
    pub fn page(self) -> Page {
        match self {
            Topic::Annotations => annotations(),
            Topic::Config => configuration(),
        }
    }
}

fn annotations() -> Page {
    let part = |title: &str, about, is_here: fn(&plan::Entry) -> bool| Part {
        title: title.to_owned(),
        about,
        items: plan::entries().filter(is_here).map(annotation).collect(),
    };
    let is_of_pod = |entry: &plan::Entry| entry.key.starts_with("usher/");
    Page {
        name: "usher-annotations",
        section: "7",
        title: "what a pod's annotations tell usher",
        parts: vec![
            part(
                "Of the whole pod",
                "A key that usher does not know, a value that it cannot read, a name in two roles: each is \
                 refused when the container is created, in one sentence.",
                is_of_pod,
            ),
            part(
                "Of one container",
                "The container's name stands behind the slash.",
                |entry| !entry.key.starts_with("usher/"),
            ),
        ],
    }
}

fn annotation(entry: plan::Entry) -> Item {
    let lines = entry.example.iter();
    let lines = lines.map(|(key, value)| format!("{key}: {}", yaml(value)));
    Item {
        key: entry.key,
        facts: vec![
            ("value", entry.value.into_owned()),
            ("default", entry.default.into_owned()),
        ],
        about: entry.about,
        example: lines.collect::<Vec<_>>().join("\n"),
    }
}

/// A value as it stands in a manifest.
fn yaml(value: &str) -> String {
    match value.starts_with('{') {
        true => format!("'{value}'"),
        false => value.to_owned(),
    }
}

fn configuration() -> Page {
    let of_table = |table: &str| {
        let entries = config::ENTRIES.iter().filter(|entry| entry.table == table);
        entries.map(setting).collect()
    };
    let mut parts = vec![Part {
        title: "At the top of the file".to_owned(),
        about: "The file need not be there, and nothing has to stand in it. It holds for every pod that \
                begins from then on; one with a mistake lets no pod begin, and `usher check` says what it is.",
        items: of_table(""),
    }];
    parts.extend(config::TABLES.iter().map(|table| Part {
        title: format!("[{}]", table.name),
        about: table.about,
        items: of_table(table.name),
    }));
    Page {
        name: "usher-config",
        section: "5",
        title: "what a node's administrator tells usher, in /etc/usher/config.toml",
        parts,
    }
}

fn setting(entry: &config::Entry) -> Item {
    Item {
        key: entry.key.to_owned(),
        facts: Vec::new(),
        about: entry.about,
        example: format!("{} = {}", entry.key, entry.example),
    }
}

// === impl Page ===

impl Page {
    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.title);
        for part in &self.parts {
            let _ = write!(text, "\n{}\n{}\n", part.title, filled(part.about, ""));
            for item in &part.items {
                let _ = write!(text, "\n{}\n", item.key);
                for (label, fact) in &item.facts {
                    let _ = writeln!(text, "{}", filled(&format!("{label}: {fact}"), "    "));
                }
                let _ = writeln!(text, "{}", filled(item.about, "    "));
                for line in item.example.lines() {
                    let _ = writeln!(text, "        {line}");
                }
            }
        }
        text
    }

    /// As tables.
    pub fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let mut text = String::new();
        for (number, part) in self.parts.iter().enumerate() {
            let between = if number > 0 { "\n" } else { "" };
            let _ = write!(text, "{between}### {}\n\n{}\n", part.title, part.about);
            let Some(first) = part.items.first() else {
                continue;
            };
            let labels: String = first
                .facts
                .iter()
                .fold(String::new(), |mut all, (label, _)| {
                    let _ = write!(all, " {label} |");
                    all
                });
            let lines = "---|".repeat(first.facts.len());
            let _ = write!(
                text,
                "\n| key |{labels} what it does | example |\n|---|{lines}---|---|\n"
            );
            for item in &part.items {
                let _ = write!(text, "| `{}` |", cell(&item.key));
                for (_, fact) in &item.facts {
                    let _ = write!(text, " {} |", cell(fact));
                }
                // Of a pod's annotations the last is the one.
                let example = item.example.lines().last().unwrap_or_default();
                let _ = writeln!(text, " {} | `{}` |", cell(item.about), cell(example));
            }
        }
        text
    }

    /// As a man page.
    pub fn roff(&self) -> String {
        let mut page = Roff::new();
        let version = concat!("usher ", env!("CARGO_PKG_VERSION"));
        page.control("TH", [self.name, self.section, "", version]);
        page.control("SH", ["NAME"]);
        page.text([roman(format!("{} - {}", self.name, self.title))]);
        for part in &self.parts {
            page.control("SH", [part.title.to_uppercase().as_str()]);
            page.text(inline(part.about));
            for item in &part.items {
                page.control("TP", []);
                page.text([bold(item.key.as_str())]);
                for (label, fact) in &item.facts {
                    page.text(inline(&format!("{label}: {fact}")));
                    page.control("br", []);
                }
                page.text(inline(item.about));
                page.control("RS", []).control("PP", []);
                page.control("nf", []);
                for line in item.example.lines() {
                    page.text([roman(line)]);
                }
                page.control("fi", []).control("RE", []);
            }
        }
        page.control("SH", ["SEE ALSO"]);
        page.text([bold("usher"), roman("(1)")]);
        page.render()
    }
}

fn filled(text: &str, indent: &str) -> String {
    let plain = text.replace('`', "");
    let options = textwrap::Options::new(WIDTH);
    textwrap::fill(
        &plain,
        options.initial_indent(indent).subsequent_indent(indent),
    )
}

/// What stands between back quotes is bold.
fn inline(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    let inline = parts.map(|(number, part)| match number % 2 {
        0 => roman(part),
        _ => bold(part),
    });
    inline.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_key_in_every_form() {
        for topic in Topic::value_variants() {
            let page = topic.page();
            let forms = [page.text(), page.markdown(), page.roff().replace('\\', "")];
            let items = page.parts.iter().flat_map(|part| &part.items);
            for item in items {
                for form in &forms {
                    assert!(form.contains(&item.key), "{} in {form}", item.key);
                }
            }
        }
    }

    #[test]
    fn text_is_no_wider_than_a_terminal() {
        for topic in Topic::value_variants() {
            let text = topic.page().text();
            let is_example = |line: &&str| line.starts_with("        ");
            let lines = text.lines().filter(|line| !is_example(line));
            for line in lines {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
    }
}
