//! Runs fuzz targets with their seed files, and bounds their costs: no input from outside causes a
//! panic or a hang, or takes more memory than its size justifies.
//!
//! A target is a function that takes any bytes. It stands beside the code that parses them, in the
//! module `fuzz` of its crate. `scripts/fuzz` searches for failing inputs, with overflow checks.
//! The tests of each crate run its targets with the seed files in `integration/fuzz/seeds`. An
//! input that once failed is kept there, under a name that describes it.

pub mod cost;

use std::fs;
use std::path::{Path, PathBuf};

/// A target with its name, which is also the name of its directory of seed files. Two crates may
/// each have a target of the same name; these targets get the same inputs.
pub type Target = (&'static str, fn(&[u8]));

/// Runs each target with all its seed files.
///
/// # Panics
///
/// If a target fails or has no seed files.
pub fn run_seeds(targets: &[Target]) {
    for (name, target) in targets {
        let inputs = entries(&directory().join("seeds").join(name));
        assert!(!inputs.is_empty(), "{name} has no seed files");
        for path in inputs {
            println!("{}", path.display());
            target(&fs::read(path).expect("a seed"));
        }
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/fuzz")
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory of the fuzzers");
    let entries = entries.map(|entry| entry.expect("an entry").path());
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &str) -> Vec<String> {
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let names = entries(&directory().join(of)).into_iter().map(stem);
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn every_directory_of_seeds_has_a_fuzzer_program() {
        assert_eq!(names("seeds"), names("src/bin"));
    }

    /// The source of a fuzzer program contains the path of each target that it runs, such as
    /// `usher_core::fuzz::annotations`.
    #[test]
    fn every_target_of_a_fuzzer_program_runs_its_seeds_in_a_test() {
        for name in names("src/bin") {
            let program = directory().join("src/bin").join(format!("{name}.rs"));
            let program = fs::read_to_string(program).unwrap();
            let call = format!("::fuzz::{name}(");
            let crates: Vec<&str> = program
                .match_indices(&call)
                .map(|(end, _)| program[..end].rsplit("usher").next().unwrap())
                .collect();
            assert!(!crates.is_empty(), "{name} runs no target of that name");
            for of in crates {
                let targets = directory()
                    .join("../../src")
                    .join(of.trim_start_matches('_'))
                    .join("fuzz.rs");
                let targets = fs::read_to_string(targets).unwrap();
                assert!(
                    targets.contains(&format!("(\"{name}\", {name})")),
                    "{name} is not among the targets of usher{of}"
                );
            }
        }
    }
}
