#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    usher_linux::fuzz::state(input);
    usher_oci::fuzz::state(input);
});
