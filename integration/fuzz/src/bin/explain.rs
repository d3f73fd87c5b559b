#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| usher_cli::fuzz::explain(input));
