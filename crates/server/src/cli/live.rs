//! `steadfast live`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Failure;
use crate::config::live::{of_file, variables};

/// Arguments of `live`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast live check centrifugo.yaml")]
pub struct LiveArgs {
    #[command(subcommand)]
    command: LiveCommand,
}

#[derive(Subcommand, Debug)]
enum LiveCommand {
    /// Check a configuration file of Centrifugo v6 (JSON, TOML or YAML), with the CENTRIFUGO_*
    /// variables of the environment. Lists the options without effect, and all that are refused.
    #[command(after_help = "Example:\n  steadfast live check /etc/centrifugo/config.json")]
    Check {
        /// The file
        file: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: &LiveArgs) -> Result<(), Failure> {
    let LiveCommand::Check { file } = &args.command;
    let read = match of_file(file, variables()) {
        Ok(read) => read,
        Err(error) => {
            put!("{error}\n");
            return Err(Failure::Found);
        }
    };
    for (title, options) in [("without effect here", &read.ignored), ("unknown to Centrifugo", &read.unknown)] {
        if !options.is_empty() {
            put!("{title}:\n");
            for option in options {
                put!("  {option}\n");
            }
        }
    }
    let http = &read.config.http_server;
    let address = if http.address.is_empty() { "*" } else { &http.address };
    if read.names_port {
        put!("the live port is {address}:{}\n", http.port);
    }
    put!("{}: valid; start with `steadfast serve --live-config {0}`\n", file.display());
    Ok(())
}
