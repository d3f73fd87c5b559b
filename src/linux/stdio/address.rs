//! The address of a standard stream, which containerd's client gives: a path, or a URI.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address<'a> {
    /// The path of a FIFO, or of a file that exists.
    Path(&'a str),
    /// `file://`: a log file, created if it does not exist.
    File(PathBuf),
    /// `binary://` or `binary-v2://`: a logging program, which reads the output.
    Binary(Program),
    Unknown {
        scheme: &'a str,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub path: PathBuf,
    pub args: Vec<String>,
    /// True if a program writes a byte to its pipe when it is ready (`binary-v2://`). Other
    /// programs only close the pipe.
    pub says_when_ready: bool,
}

impl Address<'_> {
    /// Parses an address as containerd's runc shim does: ignores the host of a URI, and uses the
    /// first value of each key in the query.
    pub fn parse(text: &str) -> Address<'_> {
        let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme))
        else {
            return Address::Path(text);
        };
        let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (hierarchy, query) = rest.split_once('?').unwrap_or((rest, ""));
        let scheme_in_lower_case = scheme.to_ascii_lowercase();
        match scheme_in_lower_case.as_str() {
            "file" => Address::File(path(hierarchy)),
            "binary" | "binary-v2" => Address::Binary(Program {
                path: path(hierarchy),
                args: arguments(query),
                says_when_ready: scheme_in_lower_case == "binary-v2",
            }),
            _ => Address::Unknown { scheme },
        }
    }
}

/// True if the text is the scheme of a URI (RFC 3986, section 3.1).
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn path(hierarchy: &str) -> PathBuf {
    let path = match hierarchy.strip_prefix("//") {
        // The path begins after the host, which is usually empty.
        Some(rest) => rest
            .find('/')
            .and_then(|begin| rest.get(begin..))
            .unwrap_or_default(),
        None => hierarchy,
    };
    let bytes = percent_encoding::percent_decode_str(path).collect();
    PathBuf::from(OsString::from_vec(bytes))
}

/// Arguments of a logging program: each key of the query, followed by its value.
fn arguments(query: &str) -> Vec<String> {
    let mut keys = HashSet::new();
    let mut arguments = Vec::new();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if keys.insert(key.clone()) {
            arguments.extend([key.into_owned(), value.into_owned()]);
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_uri() {
        for text in ["/run/fifo/a:b", "relative", "", "/100%/x"] {
            assert_eq!(Address::parse(text), Address::Path(text));
        }
    }

    #[test]
    fn the_path_of_a_file_uri_is_decoded_and_the_host_ignored() {
        for (text, path) in [
            ("file:///var/log/a%20b.log", "/var/log/a b.log"),
            ("FILE:///x?query#fragment", "/x"),
            ("file://localhost/x", "/x"),
            ("file:/x", "/x"),
            ("file://x", ""),
        ] {
            assert_eq!(Address::parse(text), Address::File(path.into()), "{text}");
        }
    }

    #[test]
    fn a_logging_programs_arguments_are_the_keys_and_first_values_of_the_query() {
        let text = "binary:///bin/log%20it?id=web+1&dir=%2Ftmp&flag&id=other";
        let program = Program {
            path: "/bin/log it".into(),
            args: ["id", "web 1", "dir", "/tmp", "flag", ""]
                .map(str::to_owned)
                .to_vec(),
            says_when_ready: false,
        };
        assert_eq!(Address::parse(text), Address::Binary(program));
    }

    #[test]
    fn many_keys_of_a_query_are_parsed_in_linear_time() {
        let keys: Vec<String> = (0..100_000).map(|key| key.to_string()).collect();
        let text = format!("binary:///x?{}", keys.join("&"));
        // Comparing each key with all others would take minutes.
        let Address::Binary(Program { args, .. }) = Address::parse(&text) else {
            panic!("not parsed as a program");
        };
        assert_eq!(args.len(), 200_000);
    }

    #[test]
    fn an_unknown_scheme_is_reported() {
        assert_eq!(
            Address::parse("http://x/y"),
            Address::Unknown { scheme: "http" }
        );
    }
}
