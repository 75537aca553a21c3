#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    steadfast_block::fuzzing::fuzz_nbd(data);
});
