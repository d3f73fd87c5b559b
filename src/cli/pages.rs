//! The reference pages about annotations and about a node's configuration, as text, man pages and
//! Markdown tables. The parsers of the settings supply the contents.

use std::fmt::Write as _;

use clap::ValueEnum;
use roff::{Inline, Roff, bold, roman};
use usher_core::config::reference as config;
use usher_core::plan::reference as plan;

/// The width of pages as text, in columns.
const WIDTH: usize = 80;

/// A reference page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Topic {
    /// The annotations of pods
    Annotations,
    /// The keys of /etc/usher/config.toml
    Config,
}

/// The contents of a reference page.
pub(super) struct Page {
    /// The name and the section of the man page.
    pub name: &'static str,
    pub section: &'static str,
    title: &'static str,
    /// The mark before a heading in Markdown, such as `##`.
    level: &'static str,
    parts: Vec<Part>,
}

/// A heading with its items.
struct Part {
    title: String,
    about: &'static str,
    items: Vec<Item>,
}

/// A key.
struct Item {
    /// The key as it stands in a Markdown table: `key` without its prefix.
    name: String,
    key: String,
    /// Facts about the key. Each has a label, such as "value".
    facts: Vec<(&'static str, String)>,
    about: &'static str,
    /// The source of the key: a proposal for Kubernetes, or usher itself.
    source: Option<&'static str>,
    /// Lines of an example.
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
    Page {
        name: "usher-annotations",
        section: "7",
        title: "annotations of pods for usher",
        level: "##",
        parts: vec![
            part(
                "Of the pod",
                "A setting of the pod is an annotation `usher/NAME`. Separate names of containers \
                 by commas or white space. Write times in Go's format, for example `300ms`, `90s` \
                 or `1h30m`. Each entry names the source of the setting: a proposal for \
                 Kubernetes, `Kubernetes` itself or `usher`.",
                |entry| entry.roles.is_empty(),
            ),
            part(
                "Of one container",
                "A setting of one container is an annotation `NAME.usher/CONTAINER`.",
                |entry| !entry.roles.is_empty(),
            ),
        ],
    }
}

fn annotation(entry: plan::Entry) -> Item {
    let lines = entry.example.iter();
    let lines = lines.map(|(key, value)| format!("{key}: {}", yaml(value)));
    let mut facts = vec![
        ("value", entry.value.into_owned()),
        ("default", entry.default.into_owned()),
    ];
    if !entry.roles.is_empty() {
        facts.push(("for", entry.roles.join(", ")));
    }
    Item {
        name: entry.name,
        key: entry.key,
        facts,
        about: entry.about,
        source: Some(entry.source),
        example: lines.collect::<Vec<_>>().join("\n"),
    }
}

/// A value in YAML.
fn yaml(value: &str) -> String {
    match value.starts_with('{') {
        true => format!("'{value}'"),
        false => value.to_owned(),
    }
}

fn configuration() -> Page {
    let tables = config::TABLES.iter().map(|table| Part {
        title: match table.name {
            "" => "At the top".to_owned(),
            name => format!("`[{name}]`"),
        },
        about: table.about,
        items: table.entries.iter().map(setting).collect(),
    });
    Page {
        name: "usher-config",
        section: "5",
        title: "configuration of a node, in /etc/usher/config.toml",
        level: "###",
        parts: tables.collect(),
    }
}

fn setting(entry: &config::Entry) -> Item {
    Item {
        name: entry.key.to_owned(),
        key: entry.key.to_owned(),
        facts: vec![
            ("value", entry.value.to_owned()),
            ("default", entry.default.to_owned()),
        ],
        about: entry.about,
        source: None,
        example: format!("{} = {}", entry.key, entry.example),
    }
}

impl Page {
    /// The page as text for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.title);
        for part in &self.parts {
            let _ = write!(
                text,
                "\n{}\n{}\n",
                filled(&part.title, ""),
                filled(part.about, "")
            );
            for item in &part.items {
                let _ = write!(text, "\n{}\n", item.key);
                for (label, fact) in &item.facts {
                    let _ = writeln!(text, "{}", filled(&format!("{label}: {fact}"), "    "));
                }
                let _ = writeln!(text, "{}", filled(&item.words(), "    "));
                for line in item.example.lines() {
                    let _ = writeln!(text, "        {line}");
                }
            }
        }
        text
    }

    pub fn markdown(&self) -> String {
        let parts = self.parts.iter().map(|part| part.markdown(self.level));
        parts.collect::<Vec<_>>().join("\n")
    }

    pub fn roff(&self) -> String {
        let mut page = Roff::new();
        let version = concat!("usher ", env!("CARGO_PKG_VERSION"));
        page.control("TH", [self.name, self.section, "", version]);
        page.control("SH", ["NAME"]);
        page.text([roman(format!("{} - {}", self.name, self.title))]);
        for part in &self.parts {
            page.control("SH", [part.title.replace('`', "").to_uppercase().as_str()]);
            page.text(inline(part.about));
            for item in &part.items {
                page.control("TP", []);
                page.text([bold(item.key.as_str())]);
                for (label, fact) in &item.facts {
                    page.text(inline(&format!("{label}: {fact}")));
                    page.control("br", []);
                }
                page.text(inline(&item.words()));
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

impl Part {
    fn markdown(&self, level: &str) -> String {
        let cell = |text: &str| format!(" {} |", text.replace('|', "\\|"));
        let mut text = format!("{level} {}\n\n{}\n", self.title, self.about);
        let Some(first) = self.items.first() else {
            return text;
        };
        let mut heading = vec!["name"];
        heading.extend(first.facts.iter().map(|(label, _)| *label));
        heading.push("what it does");
        heading.extend(first.source.map(|_| "from"));
        let _ = writeln!(text, "\n| {} |", heading.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(heading.len()));
        for item in &self.items {
            let name = cell(&format!("`{}`", item.name));
            let facts: String = item.facts.iter().map(|(_, fact)| cell(fact)).collect();
            let source = item.source.map(cell).unwrap_or_default();
            let _ = writeln!(text, "|{name}{facts}{}{source}", cell(item.about));
        }
        text
    }
}

impl Item {
    /// The description, with the source.
    fn words(&self) -> String {
        let from = self.source.map(|source| format!(" ({source})"));
        format!("{}{}", self.about, from.unwrap_or_default())
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

/// Converts text between back quotes to bold.
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

    /// The documentation pages that contain tables made from a reference page.
    const MADE: [(&str, &str, Topic); 2] = [
        (
            "docs/annotations.md",
            include_str!("../../docs/annotations.md"),
            Topic::Annotations,
        ),
        (
            "docs/configuration.md",
            include_str!("../../docs/configuration.md"),
            Topic::Config,
        ),
    ];

    #[test]
    fn the_documentation_has_the_tables_that_the_parsers_make() {
        for (file, page, topic) in MADE {
            let made = topic.page();
            for part in &made.parts {
                let part = part.markdown(made.level);
                assert!(
                    page.contains(&part),
                    "{file} is not what `usher help {} --markdown` prints: it has no\n{part}",
                    topic.to_possible_value().expect("a word").get_name()
                );
            }
        }
    }

    #[test]
    fn a_page_has_every_key_in_every_form() {
        for topic in Topic::value_variants() {
            let page = topic.page();
            let (text, tables) = (page.text(), page.markdown());
            let roff = page.roff().replace('\\', "");
            for item in page.parts.iter().flat_map(|part| &part.items) {
                assert!(text.contains(&item.key), "{} in {text}", item.key);
                assert!(roff.contains(&item.key), "{} in {roff}", item.key);
                let cell = format!("| `{}` |", item.name);
                assert!(tables.contains(&cell), "{cell} in {tables}");
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
