#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    steadfast_log::fuzzing::fuzz_frame(data);
});
