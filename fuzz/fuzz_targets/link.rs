#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    steadfast_cluster::fuzzing::fuzz_link(data);
});
