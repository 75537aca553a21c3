//! Load generator and measurements. `bench/run` starts the servers, calls this, and compares.

mod client;
mod commit;
mod fill;
mod load;
mod sign;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Load generator and measurements; bench/run drives it")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends S3 requests to any endpoint and prints a JSON report.
    Load(load::LoadArgs),
    /// Commits on the log itself at an emulated flush time.
    Commit(commit::CommitArgs),
    /// Fills a data directory with objects, without a server.
    FillStore(fill::FillArgs),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Cli::parse().command {
        Command::Load(args) => println!("{}", serde_json::to_string(&load::run(args)?)?),
        Command::Commit(args) => println!("{}", commit::run(&args)?),
        Command::FillStore(args) => println!("{}", fill::run(&args)?),
    }
    Ok(())
}
