#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    steadfast_live::fuzzing::fuzz_grpc(data);
});
