//! Load generator and measurements. `bench/run` starts the servers, calls this, and compares.

mod block;
mod client;
mod commit;
mod fill;
mod live;
mod load;
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
    /// Sends S3 requests to any endpoint and prints a JSON report.
    Load(load::LoadArgs),
    /// Reads and writes of an NBD export.
    Block(block::BlockArgs),
    /// Commits on the log itself at an emulated flush time.
    Commit(commit::CommitArgs),
    /// Opens sessions on any endpoint of Centrifugo's client protocol, publishes, and prints a JSON report.
    Live(live::LiveArgs),
    /// Keeps sessions on a channel while its server is killed and started again, and checks what they got.
    LiveWatch(live::watch::WatchArgs),
    /// The least that a server can do to give a message to many sockets: what `live --bare` measures.
    LiveFloor(live::floor::FloorArgs),
    /// Durable publications of a NATS JetStream server.
    Nats(live::nats::NatsArgs),
    /// Looks up the homes of many sessions' channels in the ring.
    Ring(ring::RingArgs),
    /// Fills a data directory with objects, without a server.
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
        Command::FillStore(args) => println!("{}", fill::run(&args)?),
    }
    Ok(())
}
