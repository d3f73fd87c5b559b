//! Fuzz target: addresses of streams.

use usher_fuzz::cost::assert_bounded;

use super::address::{Address, Program};

pub(crate) fn address(input: &[u8]) {
    let text = &*String::from_utf8_lossy(input);
    let read = || Address::parse(text);
    match assert_bounded(text.len(), 128, 1024, read) {
        Address::Path(path) => assert_eq!(path, text),
        Address::File(path) => assert!(path.as_os_str().len() < text.len()),
        Address::Binary(Program { args, .. }) => assert!(args.len() % 2 == 0),
        Address::Unknown { scheme } => assert!(scheme.len() < text.len()),
    }
}
