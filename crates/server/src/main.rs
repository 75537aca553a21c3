//! The `steadfast` binary.

/// The allocator of the whole process. With the one of glibc, a small request takes 5 % more CPU
/// time: docs/decisions/0078-two-optimised-builds.md.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    steadfast_server::cli::main()
}
