//! A parsed page of the manual: its code blocks, code spans, links and anchors.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub struct Page {
    /// Path of the page below the root.
    pub file: String,
    pub blocks: Vec<Block>,
    /// Code spans in the page's text.
    pub spans: Vec<Piece>,
    pub links: Vec<Piece>,
    /// The anchors of the headings, to which links can point.
    pub anchors: Vec<String>,
}

pub struct Block {
    pub at: Place,
    /// The language that the first line of a block names after the backquotes. `None` for an
    /// indented block.
    pub language: Option<String>,
    pub text: String,
}

pub struct Piece {
    pub at: Place,
    pub text: String,
}

/// A line of a page.
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    pub line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

pub fn all() -> Vec<Page> {
    let mut files = Vec::new();
    for directory in ["", "docs"] {
        let entries = fs::read_dir(root().join(directory)).expect("a directory of pages");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    files.sort();
    files.iter().map(read).collect()
}

fn read(path: &PathBuf) -> Page {
    let file = path.strip_prefix(root()).expect("below the top");
    let text = fs::read_to_string(path).expect("a page");
    Page::of(&file.display().to_string(), &text)
}

impl Page {
    pub fn of(file: &str, text: &str) -> Page {
        let mut page = Page {
            file: file.to_owned(),
            blocks: Vec::new(),
            spans: Vec::new(),
            links: Vec::new(),
            anchors: Vec::new(),
        };
        let place = |range: &Range<usize>| Place {
            file: file.to_owned(),
            line: text[..range.start].matches('\n').count() + 1,
        };
        let (mut in_block, mut heading) = (false, None);
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    in_block = true;
                    page.blocks.push(Block {
                        at: place(&range),
                        language: match kind {
                            CodeBlockKind::Fenced(language) => Some(language.to_string()),
                            CodeBlockKind::Indented => None,
                        },
                        text: String::new(),
                    });
                }
                Event::End(TagEnd::CodeBlock) => in_block = false,
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors
                        .extend(heading.take().map(|text| anchor(&text)));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Piece {
                        at: place(&range),
                        text: dest_url.to_string(),
                    });
                }
                Event::Text(words) if in_block => {
                    let block = page.blocks.last_mut().expect("a block");
                    block.text.push_str(&words);
                }
                Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                    page.spans.push(Piece {
                        at: place(&range),
                        text: words.to_string(),
                    });
                }
                Event::Text(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// The anchor of a heading: lower case, without punctuation, dashes for spaces.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The purpose of a code block.
pub enum Use<'a> {
    /// Commands at a prompt, each with its output.
    Transcript(Vec<(&'a str, String)>),
    Commands,
    /// A block in a language: `yaml`, `toml`, `rust`.
    Language(&'a str),
    Output,
}

/// A prompt at the beginning of a line.
const PROMPTS: [&str; 2] = ["# ", "$ "];

/// First words of lines that are commands.
const PROGRAMS: [&str; 16] = [
    "scripts/",
    "usher ",
    "kubectl ",
    "cargo ",
    "ctr ",
    "docker ",
    "nerdctl ",
    "systemctl ",
    "skopeo ",
    "digest=",
    "sed ",
    "sudo ",
    "git ",
    "tar ",
    "apt-get ",
    "sha256sum ",
];

impl Block {
    pub fn is_for(&self) -> Use<'_> {
        match self.language.as_deref() {
            // Blocks of `text` are drawings and output.
            Some("text") => return Use::Output,
            Some("sh" | "console") | None => {}
            Some(language) => return Use::Language(language),
        }
        let begins_with =
            |line: &str, words: &[&str]| words.iter().any(|word| line.starts_with(word));
        if begins_with(&self.text, &PROMPTS) {
            let mut all: Vec<(&str, String)> = Vec::new();
            for line in self.text.lines() {
                match PROMPTS.iter().find_map(|prompt| line.strip_prefix(prompt)) {
                    Some(command) => all.push((command, String::new())),
                    None => {
                        let (_, said) = all.last_mut().expect("a command comes first");
                        said.push_str(line);
                        said.push('\n');
                    }
                }
            }
            return Use::Transcript(all);
        }
        match begins_with(&self.text, &PROGRAMS) {
            true => Use::Commands,
            false => Use::Output,
        }
    }

    /// The first line of the block, with its prompt removed. Tests in `scenes.rs` refer to the
    /// block by this title.
    pub fn title(&self) -> &str {
        let line = self.text.lines().next().unwrap_or_default();
        let bare = PROMPTS.iter().find_map(|prompt| line.strip_prefix(prompt));
        bare.unwrap_or(line).trim()
    }
}
