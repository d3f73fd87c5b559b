//! Checks the language of the source: the first word of doc comments, the length of their
//! sentences, banned words, and types without a comment. If a comment fails, rewrite it, and do not
//! add an exception for it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::docs::{root, sources};

/// Words that a doc comment must not begin with, because they name neither a thing nor an action.
const VAGUE: [&str; 29] = [
    "how",
    "it",
    "its",
    "nobody",
    "nothing",
    "of",
    "one",
    "others",
    "same",
    "some",
    "somebody",
    "something",
    "that",
    "them",
    "these",
    "they",
    "this",
    "those",
    "what",
    "whatever",
    "when",
    "where",
    "whether",
    "who",
    "whoever",
    "whom",
    "whose",
    "anybody",
    "everybody",
];

/// Banned words, and the words to use.
const BANNED: [(&str, &str); 28] = [
    ("anybody", "the noun: caller, kubelet, author, client"),
    ("everybody", "the noun: caller, kubelet, author, client"),
    ("nobody", "the noun: caller, kubelet, author, client"),
    ("somebody", "the noun: caller, kubelet, author, client"),
    ("whoever", "the noun: caller, kubelet, author, client"),
    ("one who", "the noun"),
    ("what there is of it", "the noun"),
    ("begotten", "started"),
    ("behaviour", "behavior"),
    ("cancelled", "canceled"),
    ("cancelling", "canceling"),
    ("centre", "center"),
    ("colour", "color"),
    ("favour", "favor"),
    ("honour", "honor"),
    ("initialise", "initialize"),
    ("labelled", "labeled"),
    ("neighbour", "neighbor"),
    ("organise", "organize"),
    ("recognise", "recognize"),
    ("signalled", "signaled"),
    ("deed", "decision, effect or engine call"),
    ("duty", "role policy"),
    ("fate", "fault"),
    ("halt", "cancel"),
    ("misplaced", "invalid transition"),
    ("onlooker", "read-only client"),
    ("wish", "stop request"),
];

/// Maximum number of words of a sentence. A code span or a link counts as one word.
const MOST_WORDS: usize = 32;

/// Directories with Rust source.
const CHECKED: [&str; 2] = ["src", "integration"];

/// Exceptions: the file, a part of the comment or of the line that breaks a rule, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "src/kubectl/arguments.rs",
        "pub enum Command",
        "clap would print its comment in the help text",
    ),
    ("src/cli/check.rs", JSON_FIELDS, "a list of fields"),
    ("src/cli/explain/mod.rs", JSON_FIELDS, "a list of fields"),
];

const JSON_FIELDS: &str = "Fields with `-o json`";

/// The directory in which types need a doc comment.
const TYPES_DOCUMENTED: &str = "src/";

/// Types that need a doc comment. The names of fields, variants and functions often say enough.
const DOCUMENTED: [&str; 4] = ["pub enum ", "pub struct ", "pub trait ", "pub union "];

/// A problem that was found in a file. An exception may permit it.
struct Found {
    line: usize,
    /// The comment or line that has the problem. An exception names a part of this text.
    subject: String,
    problem: String,
}

/// A comment: consecutive lines of the same kind.
struct Comment {
    line: usize,
    lines: Vec<String>,
}

#[test]
fn doc_comments_follow_the_rules_of_the_language() {
    let mut problems = Vec::new();
    for directory in CHECKED {
        for file in rust_files(&root().join(directory)) {
            let text = fs::read_to_string(&file).expect("a source");
            let name = file.strip_prefix(root()).expect("a file of the project");
            let name = name.display().to_string();
            problems.extend(problems_of(&name, &text));
        }
    }
    let count = problems.len();
    assert!(count == 0, "{count} problems:\n{}", problems.join("\n"));
}

/// `scripts/test` runs the examples of usher-core only. To run the examples of other crates, cargo
/// would compile their dependencies once more. This takes longer than the examples of usher-core.
#[test]
fn only_the_core_has_examples() {
    let mut files = rust_files(&root().join("src"));
    files.retain(|file| !file.starts_with(root().join("src/core")));
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        let examples = comments(&text).into_iter().flat_map(|comment| {
            let fences = comment.lines.into_iter();
            let fences = fences.filter(|line| line.starts_with("```"));
            fences.step_by(2).filter(|fence| fence != "```text")
        });
        assert_eq!(examples.collect::<Vec<_>>(), [""; 0], "{}", file.display());
    }
}

#[test]
fn every_exception_is_needed() {
    for (file, part, _) in EXCEPTIONS {
        let text = fs::read_to_string(root().join(file)).expect("a file with an exception");
        let mut found = found_in(&text).into_iter().chain(undocumented(&text));
        let is_needed = found.any(|found| found.subject.contains(part));
        assert!(is_needed, "remove the exception for {file}: {part}");
    }
}

#[test]
fn each_kind_of_problem_is_found() {
    let long = format!("/// Returns {}.\n", "a word ".repeat(MOST_WORDS / 2));
    let also_long = format!(
        "/// Short. Then {}; end.\n",
        "a word ".repeat(MOST_WORDS / 2)
    );
    for (text, problem) in [
        ("/// What it is called.\n", "begins with \"What\""),
        ("//! Whether all is well.\n", "begins with \"Whether\""),
        ("    /// It's the name.\n", "begins with \"It\""),
        ("/// Kills whoever asks.\n", "says \"whoever\""),
        ("/// The behaviour of a container.\n", "says \"behaviour\""),
        ("/// The wishes of the caller.\n", "says \"wish\""),
        (long.as_str(), "a sentence has 33 words"),
        (also_long.as_str(), "a sentence has 33 words"),
        ("// === impl Pod ===\n", "is a heading in a comment"),
        ("pub struct Pod {\n", "has no doc comment"),
    ] {
        let problems = problems_of("src/a.rs", text);
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert!(problems[0].contains(problem), "{text}: {problems:?}");
        assert!(problems[0].starts_with("src/a.rs:1: "), "{problems:?}");
    }
}

#[test]
fn plain_comments_pass() {
    for text in [
        "/// Returns the name of the container.\n",
        "/// `what`: names the part.\n",
        "/// \"It will be killed\": a sentence of the proposal.\n",
        "/// Returns `whoever`, as in [`nobody`](Nobody).\n",
        "/// A pod.\n#[derive(Debug)]\npub struct Pod;\n\nstruct Private;\n",
        "// What an ordinary comment says is not checked.\n",
        "//// What four slashes begin is no doc comment.\n",
        "let text = \"/// What a string contains\";\n",
        "/// | what | it is |\n/// |---|---|\n/// | a | whatever |\n",
        "/// A list:\n///\n/// - one item\n/// - another\n///\n/// ```text\n/// whoever\n/// ```\n",
    ] {
        assert_eq!(problems_of("src/a.rs", text), [""; 0], "{text}");
    }
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = sources(directory);
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files
}

/// Descriptions of a file's problems, one per problem. Problems that [`EXCEPTIONS`] permits are
/// left out.
fn problems_of(file: &str, text: &str) -> Vec<String> {
    let mut found = found_in(text);
    if file.starts_with(TYPES_DOCUMENTED) {
        found.extend(undocumented(text));
    }
    let problems = found
        .into_iter()
        .filter(|found| exceptions(file).all(|part| !found.subject.contains(part)));
    problems
        .map(|found| format!("{file}:{}: {}", found.line, found.problem))
        .collect()
}

/// Texts that a file may contain although they break a rule.
fn exceptions(file: &str) -> impl Iterator<Item = &'static str> {
    let exceptions = EXCEPTIONS
        .iter()
        .filter(move |(excepted, ..)| *excepted == file);
    exceptions.map(|(_, part, _)| *part)
}

fn found_in(text: &str) -> Vec<Found> {
    let of_comments = comments(text).into_iter().flat_map(|comment| {
        let problems = comment.problems().into_iter();
        let found = problems.map(|problem| Found {
            line: comment.line,
            subject: comment.text(),
            problem: format!("the comment {problem}"),
        });
        found.collect::<Vec<_>>()
    });
    of_comments.chain(headings(text)).collect()
}

/// Section headings in comments. A section heading is a problem, because the items below the
/// heading already have names.
fn headings(text: &str) -> Vec<Found> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let headings = lines.filter(|(_, line)| line.starts_with("// ==") && line.ends_with("=="));
    headings
        .map(|(line, text)| Found {
            line,
            subject: text.to_owned(),
            problem: "the line is a heading in a comment".to_owned(),
        })
        .collect()
}

/// Public types and traits without a doc comment.
fn undocumented(text: &str) -> Vec<Found> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_documented = |index: usize| {
        let above = lines[..index].iter().rev();
        let mut own = above.take_while(|line| !line.is_empty() && !line.ends_with(['{', '}', ';']));
        own.any(|line| line.starts_with("///"))
    };
    let is_type = |line: &str| {
        let mut types = DOCUMENTED.iter().filter_map(|item| line.strip_prefix(item));
        types.any(|name| !name.starts_with('$'))
    };
    let types = (0..lines.len()).filter(|index| is_type(lines[*index]) && !is_documented(*index));
    types
        .map(|index| Found {
            line: index + 1,
            subject: lines[index].to_owned(),
            problem: "the type has no doc comment".to_owned(),
        })
        .collect()
}

fn comments(text: &str) -> Vec<Comment> {
    let mut comments: Vec<Comment> = Vec::new();
    let mut before = None;
    for (number, line) in (1..).zip(text.lines()) {
        let found = doc_line(line);
        if let Some((kind, content)) = found {
            match comments.last_mut().filter(|_| before == Some(kind)) {
                Some(comment) => comment.lines.push(content.to_owned()),
                None => comments.push(Comment {
                    line: number,
                    lines: vec![content.to_owned()],
                }),
            }
        }
        before = found.map(|(kind, _)| kind);
    }
    comments
}

/// The kind of the doc comment (`///` or `//!`) and its content. `None` if the line is no doc
/// comment.
fn doc_line(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!"].into_iter().find_map(|kind| {
        let content = line.strip_prefix(kind)?;
        (!content.starts_with('/')).then_some((kind, content.trim()))
    })
}

impl Comment {
    fn text(&self) -> String {
        self.lines.join(" ")
    }

    fn problems(&self) -> Vec<String> {
        let paragraphs = paragraphs(&self.lines);
        let mut problems = Vec::new();
        let is_quote = self.lines.first().is_some_and(|line| line.starts_with('"'));
        if let Some(first) = paragraphs
            .first()
            .and_then(|text| words(text).next().map(str::to_owned))
            && !is_quote
            && VAGUE.contains(&first.to_lowercase().as_str())
        {
            problems.push(format!(
                "begins with \"{first}\": begin with a noun or a verb"
            ));
        }
        for sentence in paragraphs.iter().flat_map(|text| sentences(text)) {
            let count = sentence
                .split_whitespace()
                .filter(|word| has_letter(word))
                .count();
            if count > MOST_WORDS {
                let begin: String = sentence.chars().take(40).collect();
                problems.push(format!("a sentence has {count} words: {begin}…"));
            }
            let plain = sentence.to_lowercase();
            let plain: Vec<_> = words(&plain).collect();
            for (banned, instead) in BANNED {
                if says(&plain, banned) {
                    problems.push(format!("says \"{banned}\"; say {instead}"));
                }
            }
        }
        problems
    }
}

/// Paragraphs and list items, without tables, headings and code blocks; a code span or a link
/// becomes one word.
fn paragraphs(lines: &[String]) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_code = false;
    for line in lines {
        if line.starts_with("```") {
            is_code = !is_code;
            paragraphs.push(String::new());
        } else if is_code || line.is_empty() || line.starts_with(['|', '#']) {
            paragraphs.push(String::new());
        } else {
            let is_item = line.starts_with("- ") || line.starts_with("* ") || is_numbered(line);
            if is_item {
                paragraphs.push(String::new());
            }
            if let Some(paragraph) = paragraphs.last_mut() {
                paragraph.push_str(line);
                paragraph.push(' ');
            }
        }
    }
    let plain = paragraphs.iter().map(|text| without_code(text));
    plain.filter(|text| has_letter(text)).collect()
}

fn is_numbered(line: &str) -> bool {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < line.len() && rest.starts_with(". ")
}

/// The text, with each code span replaced by `X`, and without the targets of links.
fn without_code(text: &str) -> String {
    let mut plain = String::new();
    for (index, piece) in text.split('`').enumerate() {
        match index % 2 {
            0 => plain.push_str(piece),
            _ => plain.push('X'),
        }
    }
    while let Some(begin) = plain.find("](") {
        let end = plain[begin..]
            .find(')')
            .map_or(plain.len(), |end| begin + end + 1);
        plain.replace_range(begin..end, "]");
    }
    plain
}

/// The sentences of a paragraph. A period inside a word or a number does not end a sentence.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![Vec::new()];
    for word in text.split_whitespace() {
        let last = sentences.len() - 1;
        sentences[last].push(word);
        let bare = word.trim_end_matches([')', ']', '"', '\'', '*']);
        if bare.ends_with(['.', '?', '!', ';', ':']) {
            sentences.push(Vec::new());
        }
    }
    sentences.iter().map(|words| words.join(" ")).collect()
}

/// The words of a text, without punctuation.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
}

fn has_letter(text: &str) -> bool {
    text.contains(char::is_alphanumeric)
}

/// True if the words contain the banned word, its plural or its past tense, or the banned phrase.
fn says(words: &[&str], banned: &str) -> bool {
    let phrase: Vec<_> = banned.split(' ').collect();
    let is_form = |(word, banned): (&&str, &&str)| {
        let rest = word.strip_prefix(*banned);
        rest.is_some_and(|rest| ["", "s", "es", "d", "ed"].contains(&rest))
    };
    let mut places = words.windows(phrase.len());
    places.any(|place| place.iter().zip(&phrase).all(is_form))
}
