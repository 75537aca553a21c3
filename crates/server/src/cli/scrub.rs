//! `steadfast scrub`.

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{DataArgs, Failure};
use crate::control::{Command, ScrubAction, client};
use crate::report;

/// Arguments of `scrub`.
#[derive(Args, Debug)]
#[command(
    after_help = "The scrub reads all stored data and verifies its checksums. Damage on one leg of a super-disk is healed from \
the other leg. The server runs it on a schedule (`scrub.interval`, `scrub.window`, `scrub.rate`); `start` begins a pass at once, at \
any time of the day. The command uses the socket in the data directory. Exit code 3 of `status` if damage was found.\n\n\
Examples:\n  steadfast scrub status --data /var/lib/steadfast\n  steadfast scrub start --data /var/lib/steadfast"
)]
pub struct ScrubArgs {
    /// Action
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
    /// End the running pass
    Stop,
    /// Show the progress and the damage found
    Status,
}

/// Runs the command.
pub fn run(args: &ScrubArgs) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    let action = match args.action {
        Action::Start => ScrubAction::Start,
        Action::Stop => ScrubAction::Stop,
        Action::Status => ScrubAction::Status,
    };
    let disks = client::ask(&config.data.dir, &Command::Scrub { action }, |_| {})?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&disks)?);
    } else {
        match args.action {
            Action::Start => print_line!("a pass begins"),
            Action::Stop => print_line!("the pass ends; the next one begins by the schedule"),
            Action::Status => {}
        }
        for disk in disks.as_array().into_iter().flatten() {
            let name = disk["disk"].as_str().unwrap_or("?");
            print_line!("{name}: {}", report::scrub(disk));
            for damage in disk["damage"].as_array().into_iter().flatten() {
                print_line!("  {}", report::damage(damage));
            }
        }
    }
    let damaged = |disk: &Value| disk["damaged"].as_u64().unwrap_or_default() > 0;
    if args.action == Action::Status && disks.as_array().is_some_and(|disks| disks.iter().any(damaged)) {
        return Err(Failure::Found);
    }
    Ok(())
}
