//! `steadfast promote`.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use steadfast_flow::Env;

use super::{DataArgs, Failure, block_on};
use crate::control::{Command, client};
use crate::disks::words::utc;

/// Arguments of `promote`.
#[derive(Args, Debug)]
#[command(
    after_help = "The standby that runs on the data directory takes the archive over, copies what is left, and serves the pool. \
Its process stays the same.\n\n\
An owner that was stopped with SIGTERM has handed everything over: nothing is lost, and channels keep their epochs. One that was \
lost must be switched off: if it wrote to the archive within the last 30 s the command refuses. If it keeps a lease, the command \
waits until that has ended, and refuses if the owner renews it. With --force the archive is taken \
from it nevertheless. The owner ends as soon as it learns of that, and what it answered since the newest state in the archive is \
lost. All channels get new epochs, unless the owner has handed over everything.\n\n\
Examples:\n  steadfast promote --data /var/lib/steadfast\n  steadfast promote --data /var/lib/steadfast --force"
)]
pub struct PromoteArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Take the archive from an owner that may be alive: what only it has is LOST
    #[arg(long)]
    force: bool,

    /// Return when the archive is taken over, not when the pool is served
    #[arg(long)]
    no_wait: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Time between two looks whether the pool is served.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(args: &PromoteArgs) -> Result<(), Failure> {
    let dir = args.data.load(&[])?.data.dir;
    let standby = client::ask(&dir, &Command::Status {}, |_| {})?;
    let promoted = client::ask(&dir, &Command::Promote { force: args.force }, |_| {})?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&promoted)?);
    } else {
        let time = promoted["time_ms"].as_u64().map_or_else(|| "?".to_owned(), utc);
        print_line!("promoted: the state of {time}, tenure {}", promoted["tenure"].as_u64().unwrap_or_default());
        if promoted["complete"] != Value::Bool(true) {
            print_line!("what the former owner answered after it is lost, and all channels have new epochs");
        }
    }
    if args.no_wait {
        return Ok(());
    }
    let status = block_on(wait_until_it_serves(&dir, standby["pid"].as_u64()))?;
    if !args.json {
        print_line!("the pool is served: {} objects", status["store"]["objects"].as_u64().unwrap_or_default());
    }
    Ok(())
}

/// Waits until the pool is served. `pid` is the process of the standby.
async fn wait_until_it_serves(dir: &Path, pid: Option<u64>) -> Result<Value, String> {
    let env = Env::tokio();
    loop {
        match client::ask(dir, &Command::Status {}, |_| {}) {
            Ok(status) if status["ready"] == Value::Bool(true) => return Ok(status),
            // The socket is absent while the pool is being opened.
            Ok(_) | Err(_) => {}
        }
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            return Err("the server has ended: its log says why. Start it again, and it continues".to_owned());
        }
        env.sleep(LOOK).await;
    }
}
