//! The command line.

#[macro_use]
mod print;

mod block;
mod disk;
mod format;
mod options;
mod probe;
mod progress;
mod scrub;
mod serve;
mod simulate;
mod snapshot;
mod status;
mod verify;
mod webhook;

use std::future::Future;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use options::{ConfigArgs, DataArgs};

/// Everything went as asked.
pub const EXIT_OK: u8 = 0;
/// It could not be done; standard error says why. (clap answers a wrong command line with 2.)
pub const EXIT_FAILED: u8 = 1;
/// It was done and something bad was found: damage, a failing run, a server that is not ready.
pub const EXIT_FOUND: u8 = 3;

const EXIT_CODES: &str = "Exit codes: 0 done; 1 it could not be done (standard error says why); 2 wrong command line; \
3 done, and something bad was found (damage, a failing run, a server that is not ready).";

#[derive(Parser)]
#[command(name = "steadfast", version, about = "S3 objects and Centrifugo channels that survive a power cut: one server, one append-only log on each of its disks.",
    after_help = EXIT_CODES, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Store and serve objects.
    Serve(serve::ServeArgs),
    /// Ask a running server how it is.
    Status(status::StatusArgs),
    /// Check a pool offline, every byte of it.
    Verify(verify::VerifyArgs),
    /// Measure a disk: what it can do, what a flush costs, what that means.
    Probe(probe::ProbeArgs),
    /// Crash a simulated machine, seed after seed, and check every promise.
    Simulate(simulate::SimulateArgs),
    /// Make a pool.
    Format(format::FormatArgs),
    /// A block device over a durable disk and fast ones: made, served over NBD, shown.
    Block(block::BlockArgs),
    /// The disks of a pool.
    Disk(disk::DiskArgs),
    /// Snapshots of everything: made, exported, restored.
    Snapshot(snapshot::SnapshotArgs),
    /// Verify everything stored in a running server: begin, end, show.
    Scrub(scrub::ScrubArgs),
    /// Queues and dead letters of webhooks: shown, skipped, removed, posted again.
    Webhook(webhook::WebhookArgs),
}

/// Why a command ended without having done what was asked.
#[derive(Debug)]
pub enum Failure {
    /// It could not be done; for people.
    Failed(String),
    /// It was done, the result has been printed, and it is bad.
    Found,
}

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(e: E) -> Self {
        Self::Failed(e.to_string())
    }
}

/// Runs the work of a command that needs no server.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("the runtime cannot be started: {e}"))?;
    runtime.block_on(work)
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    steadfast_disk::outlive_file_size_limit();
    let done = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Status(args) => status::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Format(args) => format::run(args),
        Command::Block(args) => block::run(args),
        Command::Disk(args) => disk::run(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Webhook(args) => webhook::run(args),
    };
    match done {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(Failure::Found) => ExitCode::from(EXIT_FOUND),
        Err(Failure::Failed(why)) => {
            eprintln!("steadfast: {why}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
        }
    }
}
