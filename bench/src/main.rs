//! Load generator and measurements. `bench/run` starts the servers, calls it and compares.

mod block;
mod client;
mod commit;
mod content;
mod fetch;
mod fill;
mod live;
mod load;
mod origin;
mod ring;
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
    /// Send S3 requests to an endpoint and print a JSON report.
    Load(load::LoadArgs),
    /// Read and write an NBD export.
    Block(block::BlockArgs),
    /// Measure commits on the log itself at an emulated flush time.
    Commit(commit::CommitArgs),
    /// Open sessions on an endpoint of Centrifugo's client protocol, publish, and print a JSON
    /// report.
    Live(live::LiveArgs),
    /// Keep sessions on a channel while its server is killed and restarted, and check their
    /// messages.
    LiveWatch(live::watch::WatchArgs),
    /// Serve the floor: the minimal work to send a message to many sockets, for `live --bare`.
    LiveFloor(live::floor::FloorArgs),
    /// Measure durable publications of a NATS JetStream server.
    Nats(live::nats::NatsArgs),
    /// Measure look-ups of channels in the hash ring.
    Ring(ring::RingArgs),
    /// Serve objects over HTTP as an origin of caches, with a limited rate.
    Origin(origin::OriginArgs),
    /// GET an origin's objects through a cache and check every byte.
    Fetch(fetch::FetchArgs),
    /// Fill a data directory with objects, without a server.
    FillStore(fill::FillArgs),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Cli::parse().command {
        Command::Load(args) => println!("{}", serde_json::to_string(&load::run(args)?)?),
        Command::Block(args) => println!("{}", block::run(&args)?),
        Command::Commit(args) => println!("{}", commit::run(&args)?),
        Command::Live(args) => println!("{}", live::run(&args)?),
        Command::LiveWatch(args) => println!("{}", live::watch::run(&args)?),
        Command::LiveFloor(args) => live::floor::run(&args)?,
        Command::Nats(args) => println!("{}", live::nats::run(&args)?),
        Command::Ring(args) => println!("{}", ring::run(&args)),
        Command::Origin(args) => origin::run(&args)?,
        Command::Fetch(args) => println!("{}", fetch::run(&args)?),
        Command::FillStore(args) => println!("{}", fill::run(&args)?),
    }
    Ok(())
}
