//! `steadfast scrub`.

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{DataArgs, Failure};
use crate::control::{Command, ScrubAction, client};
use crate::report;

/// Arguments of `scrub`.
#[derive(Args, Debug)]
#[command(
    after_help = "The scrub reads everything that is stored and compares it with its checksums; what is bad on one side of a super-disk is healed from \
the other. It runs by itself (`scrub.interval`, `scrub.window`, `scrub.rate`); `start` begins a pass now, whatever the time of the day, and `stop` ends the one that is \
going on. The running server is asked, through its data directory. Exit code 3 when damage has been found.\n\n\
Examples:\n  steadfast scrub status --data /var/lib/steadfast\n  steadfast scrub start --data /var/lib/steadfast"
)]
pub struct ScrubArgs {
    /// What to do
    #[arg(value_enum)]
    action: Action,

    #[command(flatten)]
    data: DataArgs,

    /// Print the scrub of each disk as JSON
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Begin a pass now
    Start,
    /// End the pass that is going on
    Stop,
    /// Show how far it is and what it found
    Status,
}

/// Runs it.
pub fn run(args: &ScrubArgs) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    let action = match args.action {
        Action::Start => ScrubAction::Start,
        Action::Stop => ScrubAction::Stop,
        Action::Status => ScrubAction::Status,
    };
    let disks = client::ask(&config.data.dir, &Command::Scrub { action }, |_| {})?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&disks)?);
    } else {
        match args.action {
            Action::Start => say!("a pass begins"),
            Action::Stop => say!("the pass ends; the next one comes by the schedule"),
            Action::Status => {}
        }
        for disk in disks.as_array().into_iter().flatten() {
            let name = disk["disk"].as_str().unwrap_or("?");
            say!("{name}: {}", report::scrub(disk));
            for damage in disk["damage"].as_array().into_iter().flatten() {
                say!("  {}", report::damage(damage));
            }
        }
    }
    let damaged = |disk: &Value| disk["damaged"].as_u64().unwrap_or_default() > 0;
    if args.action == Action::Status && disks.as_array().is_some_and(|disks| disks.iter().any(damaged)) {
        return Err(Failure::Found);
    }
    Ok(())
}
