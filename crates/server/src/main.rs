//! The `steadfast` binary.

/// The allocator of the whole process. With the one of glibc, a small request takes 5 % more CPU
/// time: docs/decisions/0078-two-optimised-builds.md.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings of the allocator. By default it returns memory of 8 MiB and more to the kernel at once,
/// and the next buffer of a restore costs as much as its read.
// SAFETY: jemalloc wants a pointer to a string that ends with 0 under this name, and only reads it.
#[cfg(feature = "jemalloc")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; 21] = b"oversize_threshold:0\0";

fn main() -> std::process::ExitCode {
    steadfast_server::cli::main()
}
