//! `steadfast cluster`.

use clap::{Args, Subcommand};
use serde_json::json;

use super::{ConfigArgs, Failure};

/// Arguments of `cluster`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast cluster ring news:sport --config /etc/steadfast.toml")]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand, Debug)]
enum ClusterCommand {
    /// Print the home of a channel, as the configuration gives it.
    Ring(RingArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast cluster ring news:sport --config /etc/steadfast.toml")]
struct RingArgs {
    /// The channel
    channel: String,

    #[command(flatten)]
    config: ConfigArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: ClusterArgs) -> Result<(), Failure> {
    let ClusterCommand::Ring(args) = args.command;
    let config = args.config.load(&[])?;
    let roster = config.roster(&config.live_options()?)?;
    let home = roster.as_ref().map(|roster| {
        let home = roster.home(&args.channel);
        (roster.name(home), roster.address(home))
    });
    if args.json {
        let home = home.map(|(name, address)| json!({"name": name, "address": address}));
        print_line!("{}", serde_json::to_string_pretty(&json!({"channel": args.channel, "home": home}))?);
        return Ok(());
    }
    match home {
        Some((name, address)) => print_line!("{name} at {address}"),
        None => print_line!("This one process is the home of every channel: no cluster is configured"),
    }
    Ok(())
}
