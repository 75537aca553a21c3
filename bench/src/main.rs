//! Load generator and measurements. `bench/run` starts the servers, calls this, and compares.

mod client;
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
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Cli::parse().command {
        Command::Load(args) => println!("{}", serde_json::to_string(&load::run(args)?)?),
    }
    Ok(())
}
