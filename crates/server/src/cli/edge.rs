//! `steadfast edge`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Failure;
use crate::control::{Command, client};

/// Arguments of `edge`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast edge purge media films/one.mp4 --data /var/lib/steadfast")]
pub struct EdgeArgs {
    #[command(subcommand)]
    command: EdgeCommand,
}

#[derive(Subcommand, Debug)]
enum EdgeCommand {
    /// Remove fetched objects, so that the next request asks the origin.
    ///
    /// When the command returns, the removal is durable, and nothing that was fetched before is
    /// served any more. Only readers that have begun continue.
    Purge(EdgePurgeArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast edge purge media films/one.mp4 --data /var/lib/steadfast\n  \
steadfast edge purge media films/ --prefix --data /var/lib/steadfast")]
struct EdgePurgeArgs {
    /// The bucket
    bucket: String,

    /// The key
    key: String,

    /// Remove all objects whose keys begin with KEY
    #[arg(long)]
    prefix: bool,

    /// Data directory of the running server
    #[arg(long, value_name = "DIR", env = "STEADFAST_DATA_DIR")]
    data: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: EdgeArgs) -> Result<(), Failure> {
    let EdgeCommand::Purge(args) = args.command;
    let command = Command::EdgePurge { bucket: args.bucket, key: args.key, prefix: args.prefix };
    let done = client::ask(&args.data, &command, |_| ())?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&done)?);
    } else {
        put!("{} objects are removed\n", done["purged"]);
    }
    Ok(())
}
