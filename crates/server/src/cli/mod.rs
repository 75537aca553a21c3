//! The command line.

#[macro_use]
mod print;

mod archive;
mod block;
mod cluster;
mod disk;
mod edge;
mod format;
mod key;
mod live;
mod options;
mod policy;
mod probe;
mod progress;
mod promote;
mod restore;
mod scrub;
mod serve;
mod status;
mod times;
mod user;
mod verify;
mod webhook;

use std::future::Future;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use options::{ConfigArgs, DataArgs};

/// The command succeeded.
pub const EXIT_OK: u8 = 0;
/// The command failed; standard error has the reason. (clap exits with 2 for a wrong command line.)
pub const EXIT_FAILED: u8 = 1;
/// The command found a problem: damage, a failing simulation, a server that is not ready.
pub const EXIT_FOUND: u8 = 3;

/// Another process owns the archive of the pool: this server must not start again by itself.
pub const EXIT_SUPERSEDED: u8 = 4;

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed (standard error has the reason); 2 wrong command line; \
3 done, and a problem was found (damage, a failing simulation, a server that is not ready, an archive of another pool); \
4 another server owns the archive.";

#[derive(Parser)]
#[command(name = "steadfast", version, about = "S3 objects and Centrifugo channels that survive a power cut: one server, one append-only log on each of its disks.",
    after_help = EXIT_CODES, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run the server: S3 objects and channels.
    Serve(serve::ServeArgs),
    /// Show the status of a running server.
    Status(status::StatusArgs),
    /// Verify a stopped pool: every frame and chunk against its checksum.
    Verify(verify::VerifyArgs),
    /// Measure a disk: bandwidth, IOPS and the cost of a flush.
    Probe(probe::ProbeArgs),
    /// Crash a simulated machine, seed after seed, and check every guarantee.
    #[cfg(feature = "simulate")]
    Simulate(steadfast_sim::cli::SimulateArgs),
    /// Create a pool on its disks.
    Format(format::FormatArgs),
    /// Format, serve over NBD and show a block device on a durable disk with fast disks.
    Block(block::BlockArgs),
    /// List, add, drain, replace and forget the disks of a pool.
    Disk(disk::DiskArgs),
    /// Restore a pool from its archive.
    Restore(restore::RestorePoolArgs),
    /// Make a standby take its archive over, and serve the pool.
    Promote(promote::PromoteArgs),
    /// Show an archive, list its points in time, and verify it.
    Archive(archive::ArchiveCommandArgs),
    /// Start, stop and show the background verification of a running server.
    Scrub(scrub::ScrubArgs),
    /// Purge what buckets with an origin have fetched.
    Edge(edge::EdgeArgs),
    /// Print the home of a channel in a cluster.
    Cluster(cluster::ClusterArgs),
    /// Check a configuration file of Centrifugo.
    Live(live::LiveArgs),
    /// Create, list, permit, disable and remove users.
    User(user::UserArgs),
    /// Make, list and remove policies that users share.
    Policy(policy::PolicyArgs),
    /// Create, list, disable, rotate and remove the access keys of users.
    Key(key::KeyArgs),
    /// Show, skip, purge and retry the queued events and dead letters of webhooks.
    Webhook(webhook::WebhookArgs),
}

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The reason, as a message.
    Failed(String),
    /// The command printed its result and found a problem.
    Found,
    /// The exit code, and the reason as a message.
    Ended(u8, String),
}

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(e: E) -> Self {
        Self::Failed(e.to_string())
    }
}

/// Runs the work of a command that needs no server, on one thread.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    run_on(tokio::runtime::Builder::new_current_thread(), work)
}

/// The same for work that uses several cores.
fn block_on_threads<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    run_on(tokio::runtime::Builder::new_multi_thread(), work)
}

fn run_on<T>(mut runtime: tokio::runtime::Builder, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = runtime.enable_all().build().map_err(|e| format!("the runtime cannot be started: {e}"))?;
    runtime.block_on(work)
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    steadfast_disk::outlive_file_size_limit();
    // Files and directories of any command, also of libraries, hold data or names of it: no other
    // user of the machine may open them, whatever the umask that the process was started with.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let command = Cli::parse().command;
    if let Err(error) = std::env::current_dir() {
        // A library of the index panics without one.
        eprintln!("steadfast: the working directory cannot be used: {error}. Start from another one");
        return ExitCode::from(EXIT_FAILED);
    }
    let done = match command {
        CliCommand::Serve(args) => serve::run(args),
        CliCommand::Status(args) => status::run(&args),
        CliCommand::Verify(args) => verify::run(&args),
        CliCommand::Probe(args) => probe::run(&args),
        #[cfg(feature = "simulate")]
        CliCommand::Simulate(args) => simulate(&args),
        CliCommand::Format(args) => format::run(args),
        CliCommand::Block(args) => block::run(args),
        CliCommand::Disk(args) => disk::run(args),
        CliCommand::Restore(args) => restore::run(args),
        CliCommand::Promote(args) => promote::run(&args),
        CliCommand::Archive(args) => archive::run(args),
        CliCommand::Scrub(args) => scrub::run(&args),
        CliCommand::Edge(args) => edge::run(args),
        CliCommand::Cluster(args) => cluster::run(args),
        CliCommand::Live(args) => live::run(args),
        CliCommand::User(args) => user::run(args),
        CliCommand::Policy(args) => policy::run(args),
        CliCommand::Key(args) => key::run(args),
        CliCommand::Webhook(args) => webhook::run(args),
    };
    match done {
        Ok(()) => ExitCode::from(EXIT_OK),
        Err(Failure::Found) => ExitCode::from(EXIT_FOUND),
        Err(Failure::Ended(code, why)) => {
            eprintln!("steadfast: {why}");
            ExitCode::from(code)
        }
        Err(Failure::Failed(why)) => {
            eprintln!("steadfast: {why}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

#[cfg(feature = "simulate")]
fn simulate(args: &steadfast_sim::cli::SimulateArgs) -> Result<(), Failure> {
    let report = args.run();
    put!("{}", args.describe("steadfast simulate", &report)?);
    if report.passed() { Ok(()) } else { Err(Failure::Found) }
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
