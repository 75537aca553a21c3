//! `steadfast disk`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::status::ask;
use super::{DataArgs, Failure};
use crate::config::Config;
use crate::config::human_size;
use crate::control::{Command, client};
use crate::datadir::DataDir;
use crate::disks::contents::{Contents, look};
use crate::disks::plan::{Role, role};
use crate::disks::words;

/// Arguments of `disk`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  steadfast disk list --data /var/lib/steadfast\n  steadfast disk add /dev/sdx --data /var/lib/steadfast\n  \
steadfast disk drain /dev/sdb --data /var/lib/steadfast"
)]
pub struct DiskArgs {
    #[command(subcommand)]
    command: DiskCommand,
}

#[derive(Subcommand, Debug)]
enum DiskCommand {
    /// Show every disk of a pool: role, state and content.
    List(ListArgs),
    /// Add a disk to the pool and move its share of the data to it.
    Add(AddArgs),
    /// Move all data of a disk to the other disks, then take it out of the pool.
    Drain(DrainArgs),
    /// Move all data of a disk to a new disk, then take the old disk out of the pool.
    Replace(ReplaceArgs),
    /// Resume a move that failed.
    Resume(ResumeArgs),
    /// Give up disks that are lost for good, with their data.
    Forget(ForgetArgs),
}

const WHILE: &str = "The running server moves the data; reads and writes continue. Ctrl-C stops the display, not the move; \
a restart resumes it. Progress: `steadfast status`. A disk that holds data is never overwritten.\n\n";

/// Options of commands that move data.
#[derive(Args, Debug)]
struct WaitArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Return when the move has begun, not when it is done
    #[arg(long)]
    no_wait: bool,

    /// Print the progress and the result as JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Arguments of `disk add`.
#[derive(Args, Debug)]
#[command(after_help = format!("{WHILE}Example:\n  steadfast disk add /dev/sdx --data /var/lib/steadfast"))]
struct AddArgs {
    /// The disk: a blank block device, or a file that does not exist
    path: PathBuf,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Arguments of `disk drain`.
#[derive(Args, Debug)]
#[command(after_help = format!("{WHILE}Example:\n  steadfast disk drain /dev/sdb --data /var/lib/steadfast"))]
struct DrainArgs {
    /// The disk: its name in `steadfast status`, or its UUID
    disk: String,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Arguments of `disk replace`.
#[derive(Args, Debug)]
#[command(after_help = format!("{WHILE}Example:\n  steadfast disk replace /dev/sdb /dev/sdx --data /var/lib/steadfast"))]
struct ReplaceArgs {
    /// The disk to take out: its name in `steadfast status`, or its UUID
    old: String,

    /// The new disk: a blank block device, or a file that does not exist
    new: PathBuf,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Arguments of `disk forget`.
#[derive(Args, Debug)]
#[command(
    after_help = "Needs a running server, and all other disks of the pool. The command prints how many objects are lost, as far \
as the index knows. The lost keys are empty and can be written again. Listings, buckets and moves work again. A lost disk that \
returns is ignored; wiped, it can be added as a new disk.\n\n\
Example:\n  steadfast disk forget /dev/sdb --yes-lose-its-data --data /var/lib/steadfast"
)]
struct ForgetArgs {
    /// The lost disks: their names in `steadfast status`, or their UUIDs
    #[arg(required = true)]
    disks: Vec<String>,

    /// Confirm that the data on them may be lost for good
    #[arg(long)]
    yes_lose_its_data: bool,

    #[command(flatten)]
    data: DataArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `disk resume`.
#[derive(Args, Debug)]
#[command(after_help = format!("{WHILE}Example:\n  steadfast disk resume --data /var/lib/steadfast"))]
struct ResumeArgs {
    #[command(flatten)]
    wait: WaitArgs,
}

/// Arguments of `disk list`.
#[derive(Args, Debug)]
#[command(
    after_help = "Asks the running server, through the socket in its data directory or at --admin; without a server it reads the \
disks. It changes nothing. Exit code 3 if a disk is missing, failed, hanging, foreign, stale or not in use.\n\n\
Examples:\n  steadfast disk list --admin http://127.0.0.1:9001\n  steadfast disk list --config steadfast.toml --json"
)]
struct ListArgs {
    #[command(flatten)]
    data: DataArgs,

    /// URL of a running server's admin port
    #[arg(long, value_name = "URL")]
    admin: Option<String>,

    /// Print the disks as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: DiskArgs) -> Result<(), Failure> {
    match args.command {
        DiskCommand::List(args) => list(&args),
        DiskCommand::Add(args) => {
            let wait = !args.wait.no_wait;
            change(&args.wait, &Command::DiskAdd { path: absolute(&args.path)?, wait })
        }
        DiskCommand::Drain(args) => {
            change(&args.wait, &Command::DiskDrain { disk: named(&args.disk)?, wait: !args.wait.no_wait })
        }
        DiskCommand::Replace(args) => {
            let wait = !args.wait.no_wait;
            change(&args.wait, &Command::DiskReplace { old: named(&args.old)?, new: absolute(&args.new)?, wait })
        }
        DiskCommand::Forget(args) => forget(&args),
        DiskCommand::Resume(args) => change(&args.wait, &Command::DiskResume { wait: !args.wait.no_wait }),
    }
}

/// The absolute path: the server's working directory may be another.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Sends the command to the server and shows the progress.
fn change(args: &WaitArgs, command: &Command) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    let terminal = !args.json && std::io::stderr().is_terminal();
    if terminal && !args.no_wait {
        eprintln!("Ctrl-C stops the display, not the move.");
    }
    let done = client::ask(&config.data.dir, command, |progress| {
        if args.json {
            print_line!("{}", json!({"progress": progress}));
        } else if terminal && let Some(line) = words::moving(progress) {
            eprint!("\r\x1b[K{line}");
        }
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    let done = done?;
    if args.json {
        print_line!("{}", json!({"done": done}));
        return Ok(());
    }
    match words::moving(&done["moved"]) {
        Some(line) => print_line!("Done: {line}"),
        None => print_line!("Begun; `steadfast status` shows the progress."),
    }
    if let (false, Some(line)) = (args.no_wait, done["configure"].as_str()) {
        print_line!(
            "Put this into [data] of the configuration, in place of its disks (a restart also works without it):\n  {line}"
        );
    }
    Ok(())
}

fn forget(args: &ForgetArgs) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    if !args.yes_lose_its_data {
        let what = "the data on it is lost for good, even if the disk returns; confirm with --yes-lose-its-data";
        return Err(format!("{}: {what}", args.disks.join(", ")).into());
    }
    let disks = args.disks.iter().map(|disk| named(disk)).collect::<Result<_, String>>()?;
    let done = client::ask(&config.data.dir, &Command::DiskForget { disks }, |_| {})?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&done)?);
        return Ok(());
    }
    for one in done["forgotten"].as_array().into_iter().flatten() {
        let objects = one["objects"].as_u64().map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
        print_line!(
            "{} is given up: {} of {} slots, {objects} objects are lost",
            one["name"].as_str().unwrap_or("?"),
            one["slots"],
            one["slots_total"]
        );
    }
    if let Some(line) = done["configure"].as_str() {
        print_line!("Put this into [data] of the configuration, in place of its disks:\n  {line}");
    }
    Ok(())
}

/// The name of a disk: an existing path as an absolute path, any other text unchanged.
fn named(disk: &str) -> Result<String, String> {
    if Path::new(disk).exists() { Ok(absolute(Path::new(disk))?.display().to_string()) } else { Ok(disk.to_owned()) }
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let listed = match &args.admin {
        Some(url) => running(url)?,
        None => {
            let config = args.data.load(&[])?;
            let dir = &config.data.dir;
            if !dir.is_dir() {
                return Err(format!(
                    "{}: there is no such directory; give the one of a server with --data",
                    dir.display()
                )
                .into());
            }
            // A server that holds the directory knows more than its disks show.
            let server = DataDir::open_to_read(dir).is_err();
            let by_socket = || client::ask(dir, &Command::Status {}, |_| {}).map(|status| of_status(&status));
            let by_port = || running(&format!("http://{}", config.admin.listen));
            match server.then(|| by_socket().or_else(|_| by_port())) {
                Some(Ok(listed)) => listed,
                Some(Err(why)) => {
                    eprintln!("steadfast: {why}; reading the disks instead (--admin sets the port of the server)");
                    offline(&config)
                }
                None => offline(&config),
            }
        }
    };
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        put!("{}", table(&listed));
    }
    let well = |row: &Value| ["in use", "clean", "rebuilding", "ready"].contains(&row["state"].as_str().unwrap_or("?"));
    let all = listed["disks"].as_array().is_some_and(|rows| rows.iter().all(well));
    if all { Ok(()) } else { Err(Failure::Found) }
}

/// The disks from the status of a server.
fn running(url: &str) -> Result<Value, String> {
    Ok(of_status(&ask(url)?))
}

fn of_status(status: &Value) -> Value {
    json!({"running": true, "disks": status["disks"], "superdisks": status["superdisks"]})
}

/// The disks as read without a server.
fn offline(config: &Config) -> Value {
    let mut rows = Vec::new();
    let sets = config.disk_sets();
    for (number, set) in sets.iter().enumerate() {
        for (kind, paths) in [(Role::Durable, &set.durable), (Role::Fast, &set.fast)] {
            for (index, path) in paths.iter().enumerate() {
                let found = look(path);
                let state = match (&found.contents, kind, paths.len()) {
                    (Contents::Pool { .. }, Role::Durable, 1) | (Contents::FastLeg { .. }, Role::Fast, 1) => "ready",
                    (Contents::StripeMember { .. }, _, 2..) => "ready",
                    (Contents::Absent, ..) => "missing",
                    (Contents::Blank, ..) => "blank",
                    (Contents::Unreadable { .. }, ..) => "failed",
                    _ => "foreign",
                };
                rows.push(json!({
                    "disk": number,
                    "disks": sets.len(),
                    "role": kind,
                    "index": index,
                    "count": paths.len(),
                    "path": path,
                    "device": found.device,
                    "size_bytes": found.size_bytes,
                    "state": state,
                    "holds": found.contents.to_string(),
                    "contents": found.contents,
                }));
            }
        }
    }
    json!({"running": false, "disks": rows})
}

/// The disks as a table.
fn table(listed: &Value) -> String {
    let mut out = String::new();
    for row in listed["disks"].as_array().into_iter().flatten() {
        let text = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let number = |key: &str| row[key].as_u64().unwrap_or_default();
        let kind = if row["role"] == json!(Role::Fast) { Role::Fast } else { Role::Durable };
        let nth = |of: &str, count: &str| (number(of) as usize, number(count) as usize);
        let name = role(kind, nth("index", "count"), nth("disk", "disks"));
        let device = if row["device"] == Value::Bool(true) { "block device" } else { "file" };
        let holds = row["holds"].as_str().unwrap_or_default();
        let line = format!(
            "{name:<24} {:<28} {device:<13} {:>10}  {:<11} {holds}",
            text("path"),
            human_size(number("size_bytes")),
            text("state")
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for line in words::lines_in(&listed["superdisks"]) {
        out.push_str(&format!("super-disk: {line}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_status_gives_a_table() {
        assert_eq!(table(&json!({})), "");
        let superdisk = |disk| json!({"disk": disk, "fast": {"state": "rebuilding"}, "configured": true, "regions_clean": 1, "regions_total": 4});
        let mut listed = json!({"disks": [{"role": "fast", "index": 1, "count": 2, "path": "/dev/x", "device": true,
            "size_bytes": 1 << 30, "state": "rebuilding"}, 7], "superdisks": [superdisk("/dev/p")]});
        let text = table(&listed);
        assert!(text.contains("fast leg, 2 of 2") && text.contains("1 GiB") && text.contains("25 %"), "{text}");
        assert!(!text.contains("/dev/p"), "the only one needs no name: {text}");
        listed["superdisks"] = json!([superdisk("/dev/p"), superdisk("/dev/q")]);
        (listed["disks"][0]["disk"], listed["disks"][0]["disks"]) = (json!(1), json!(2));
        let text = table(&listed);
        assert!(
            text.contains("fast leg of 2, 2 of 2") && text.contains("super-disk: /dev/q: fast leg rebuilding"),
            "{text}"
        );
    }
}
