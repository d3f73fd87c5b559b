#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    usher_shim::fuzz::calls(input);
    usher_oci::fuzz::calls(input);
});
