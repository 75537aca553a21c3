//! `steadfast live`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use steadfast_flow::{Env, TokioRuntime};

use super::options::ConfigArgs;
use super::{Failure, block_on};
use crate::config::Config;
use crate::serve::check_live;

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

        /// The server's own configuration, which has a part in what is refused
        #[command(flatten)]
        config: ConfigArgs,
    },
}

/// Runs the command.
pub fn run(args: LiveArgs) -> Result<(), Failure> {
    let LiveCommand::Check { file, config } = args.command;
    let mut config = config.load(&[])?;
    config.live.config = Some(file.clone());
    config.live.listen = config.live.listen.or(Config::default().live.listen);
    let checked = block_on(async { Ok(check_live(&mut config, &Env::new(TokioRuntime::current()))) })?;
    let read = match checked {
        Ok(read) => read,
        Err(error) => {
            put!("{error}\n");
            return Err(Failure::Found);
        }
    };
    for (title, options) in [
        ("without effect here", &read.ignored),
        ("unknown to Centrifugo", &read.unknown),
        ("not replaced", &read.literal),
    ] {
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
