//! Fuzzes the parsers of untrusted bytes, on a stable toolchain:
//!
//! ```text
//! cargo run --release -p steadfast-server --example fuzz -- frame --seconds 600
//! cargo run --release -p steadfast-server --example fuzz -- all --seconds 60 --seed 7
//! cargo run --release -p steadfast-server --example fuzz -- config --input crash-config.bin
//! ```
//!
//! Stops at the first panic, writes the input that caused it to `crash-TARGET.bin` and ends with
//! status 1.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use steadfast_sim::fuzz::{Outcome, Target, run};

/// Maximum single allocation of a parser for inputs of these sizes, in bytes.
const ALLOCATION_BYTES_MAX: usize = 64 << 20;

struct Capped;

// SAFETY: everything is passed on to the system's allocator unchanged; a request above the bound
// fails, as an allocator may.
unsafe impl GlobalAlloc for Capped {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's guarantees are those that the system's allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from the system's allocator with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Capped = Capped;

const TARGETS: [Target; 8] = [
    Target {
        name: "frame",
        corpus: steadfast_log::fuzzing::frame_corpus,
        run: steadfast_log::fuzzing::fuzz_frame,
        input_bytes_max: 20 << 10,
    },
    Target {
        name: "extent",
        corpus: steadfast_log::fuzzing::extent_corpus,
        run: steadfast_log::fuzzing::fuzz_extent,
        input_bytes_max: 1 + (32 << 10),
    },
    Target {
        name: "config",
        corpus: steadfast_server::fuzzing::config_corpus,
        run: steadfast_server::fuzzing::fuzz_config,
        input_bytes_max: 16 << 10,
    },
    Target {
        name: "commands-json",
        corpus: steadfast_live::fuzzing::json_corpus,
        run: steadfast_live::fuzzing::fuzz_json,
        input_bytes_max: 4 << 10,
    },
    Target {
        name: "commands-protobuf",
        corpus: steadfast_live::fuzzing::protobuf_corpus,
        run: steadfast_live::fuzzing::fuzz_protobuf,
        input_bytes_max: 4 << 10,
    },
    Target {
        name: "grpc",
        corpus: steadfast_live::fuzzing::grpc_corpus,
        run: steadfast_live::fuzzing::fuzz_grpc,
        input_bytes_max: 4 << 10,
    },
    Target {
        name: "nbd",
        corpus: steadfast_block::fuzzing::nbd_corpus,
        run: steadfast_block::fuzzing::fuzz_nbd,
        input_bytes_max: 4 << 10,
    },
    Target {
        name: "link",
        corpus: steadfast_cluster::fuzzing::link_corpus,
        run: steadfast_cluster::fuzzing::fuzz_link,
        input_bytes_max: 4 << 10,
    },
];

/// Fuzzes the parsers of untrusted bytes.
#[derive(Parser)]
struct Arguments {
    /// Target: frame, extent, config, commands-json, commands-protobuf, grpc, nbd, link, or all in
    /// turn.
    target: String,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed; the same seed gives the same inputs in the same order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs only this input.
    #[arg(long)]
    input: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chosen = |target: &&Target| arguments.target == "all" || arguments.target == target.name;
    let targets: Vec<_> = TARGETS.iter().filter(chosen).collect();
    if targets.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("there is no target {}: use {} or all", arguments.target, names.join(", "));
        return ExitCode::from(2);
    }
    for target in targets {
        if let Some(path) = &arguments.input {
            match std::fs::read(path) {
                Ok(input) => println!("{}: {:#x}", target.name, (target.run)(&input)),
                Err(error) => {
                    eprintln!("{}: {error}", path.display());
                    return ExitCode::from(2);
                }
            }
            continue;
        }
        let (outcome, took) = timed(target, arguments.seed, Duration::from_secs(arguments.seconds));
        println!(
            "{}: {} inputs in {:.0} s, {} outcomes, a corpus of {}",
            target.name,
            outcome.runs,
            took.as_secs_f64(),
            outcome.signatures,
            outcome.corpus
        );
        if let Some(input) = outcome.panicked {
            let path = format!("crash-{}.bin", target.name);
            match std::fs::write(&path, &input) {
                Ok(()) => eprintln!("{}: panicked; the input is in {path}", target.name),
                Err(error) => eprintln!("{}: panicked; {path}: {error}; the input: {input:02x?}", target.name),
            }
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

#[allow(clippy::disallowed_methods, reason = "a tool's own clock, not part of what a seed replays")]
fn timed(target: &Target, seed: u64, limit: Duration) -> (Outcome, Duration) {
    let start = Instant::now();
    let outcome = run(target, seed, |runs| !runs.is_multiple_of(64) || start.elapsed() < limit);
    (outcome, start.elapsed())
}
