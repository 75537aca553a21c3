//! `steadfast disk`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::status::ask;
use super::{DataArgs, Failure};
use crate::config::Config;
use crate::control::{Command, client};
use crate::datadir::DataDir;
use crate::disks::contents::{Contents, look};
use crate::disks::plan::{Role, role};
use crate::disks::words;
use crate::report::size;

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
    /// Show every disk of a pool: its role, its state, what it holds.
    List(ListArgs),
    /// Take a disk into the pool of a running server, and move its share of the objects there.
    Add(AddArgs),
    /// Move all that a disk has to the others, then take it out of the pool.
    Drain(DrainArgs),
    /// Take a disk into the pool in place of another: all that one has is moved, then it is taken out.
    Replace(ReplaceArgs),
    /// Go on with moving objects where that has failed.
    Resume(ResumeArgs),
    /// Give up disks that are lost for good: what was on them is lost, and the pool goes on without them.
    Forget(ForgetArgs),
}

const WHILE: &str = "A running server does it, while it goes on serving: reads and writes see nothing of it. Ctrl-C ends the watching, not the work; a restart of the \
server goes on with it. How far it is: `steadfast status`. Nothing is changed on a disk that holds anything.\n\n";

/// How to wait.
#[derive(Args, Debug)]
struct WaitArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Return when the work has begun, not when it is done
    #[arg(long)]
    no_wait: bool,

    /// Print how far it is and the result as JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Arguments of `disk add`.
#[derive(Args, Debug)]
#[command(after_help = format!("{WHILE}Example:\n  steadfast disk add /dev/sdx --data /var/lib/steadfast"))]
struct AddArgs {
    /// The disk: a blank block device, or a file that is not there yet
    path: PathBuf,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Arguments of `disk drain`.
#[derive(Args, Debug)]
#[command(after_help = format!("{WHILE}Example:\n  steadfast disk drain /dev/sdb --data /var/lib/steadfast"))]
struct DrainArgs {
    /// The disk, as `steadfast status` names it, or its UUID
    disk: String,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Arguments of `disk replace`.
#[derive(Args, Debug)]
#[command(after_help = format!("{WHILE}Example:\n  steadfast disk replace /dev/sdb /dev/sdx --data /var/lib/steadfast"))]
struct ReplaceArgs {
    /// The disk that leaves, as `steadfast status` names it, or its UUID
    old: String,

    /// The disk that comes: a blank block device, or a file that is not there yet
    new: PathBuf,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Arguments of `disk forget`.
#[derive(Args, Debug)]
#[command(
    after_help = "A running server does it, while all other disks of the pool are there. What is lost is named: how many objects, as far as their index \
knows, and snapshots, which can only be deleted then. The keys that were on the disks are empty from then on, and can be written again; listings, buckets, \
snapshots and moves work again. A disk that comes back later is left out; it can be wiped and added as a new one.\n\n\
Example:\n  steadfast disk forget /dev/sdb --yes-lose-its-data --data /var/lib/steadfast"
)]
struct ForgetArgs {
    /// The missing disks, as `steadfast status` names them, or their UUIDs
    #[arg(required = true)]
    disks: Vec<String>,

    /// Say that what is on them may be lost for good
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
    after_help = "A running server is asked, over the socket in its data directory or at --admin; without one the disks themselves are looked \
at. Nothing is changed. Exit code 3 when a disk is not as it should be.\n\n\
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

/// Runs it.
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

/// The server's own directory is another than ours.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Tells the server, and shows how far it is.
fn change(args: &WaitArgs, command: &Command) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    let terminal = !args.json && std::io::stderr().is_terminal();
    if terminal && !args.no_wait {
        eprintln!("Ctrl-C ends the watching, not the work.");
    }
    let done = client::ask(&config.data.dir, command, |progress| {
        if args.json {
            say!("{}", json!({"progress": progress}));
        } else if terminal && let Some(line) = words::moving(progress) {
            eprint!("\r\x1b[K{line}");
        }
    });
    if terminal {
        eprint!("\r\x1b[K");
    }
    let done = done?;
    if args.json {
        say!("{}", json!({"done": done}));
        return Ok(());
    }
    match words::moving(&done["moved"]) {
        Some(line) => say!("Done: {line}"),
        None => say!("Begun; `steadfast status` says how far it is."),
    }
    if let (false, Some(line)) = (args.no_wait, done["configure"].as_str()) {
        say!(
            "Put this into [data] of the configuration, in place of what it says of disks (a restart finds them without it too):\n  {line}"
        );
    }
    Ok(())
}

fn forget(args: &ForgetArgs) -> Result<(), Failure> {
    let config = args.data.load(&[])?;
    if !args.yes_lose_its_data {
        let what = "what is on it is lost for good, also when it comes back: say --yes-lose-its-data if that is meant";
        return Err(format!("{}: {what}", args.disks.join(", ")).into());
    }
    let disks = args.disks.iter().map(|disk| named(disk)).collect::<Result<_, String>>()?;
    let done = client::ask(&config.data.dir, &Command::DiskForget { disks }, |_| {})?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&done)?);
        return Ok(());
    }
    for one in done["forgotten"].as_array().into_iter().flatten() {
        let objects = one["objects"].as_u64().map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
        say!(
            "{} is given up: {} of {} slots, {objects} objects are lost",
            one["name"].as_str().unwrap_or("?"),
            one["slots"],
            one["slots_total"]
        );
    }
    let first = &done["forgotten"][0]["snapshots"];
    let snapshots: Vec<&str> = first.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !snapshots.is_empty() {
        say!("Snapshots that had a part there can only be deleted: {}", snapshots.join(", "));
    }
    if let Some(line) = done["configure"].as_str() {
        say!("Put this into [data] of the configuration, in place of what it says of disks:\n  {line}");
    }
    Ok(())
}

/// A disk as it was named: a path that is there is what it is wherever the server runs.
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
            // Whoever has the directory knows more than its disks tell.
            let server = DataDir::open_to_read(dir).is_err();
            let by_socket = || client::ask(dir, &Command::Status {}, |_| {}).map(|status| of_status(&status));
            let by_port = || running(&format!("http://{}", config.admin.listen));
            match server.then(|| by_socket().or_else(|_| by_port())) {
                Some(Ok(listed)) => listed,
                Some(Err(why)) => {
                    eprintln!("steadfast: {why}; the disks themselves are looked at (--admin names the right port)");
                    offline(&config)
                }
                None => offline(&config),
            }
        }
    };
    if args.json {
        say!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        put!("{}", table(&listed));
    }
    let well = |row: &Value| ["in use", "clean", "rebuilding", "ready"].contains(&row["state"].as_str().unwrap_or("?"));
    let all = listed["disks"].as_array().is_some_and(|rows| rows.iter().all(well));
    if all { Ok(()) } else { Err(Failure::Found) }
}

/// What a server says.
fn running(url: &str) -> Result<Value, String> {
    Ok(of_status(&ask(url)?))
}

fn of_status(status: &Value) -> Value {
    json!({"running": true, "disks": status["disks"], "superdisks": status["superdisks"]})
}

/// What the disks themselves say.
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

/// For people.
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
            size(number("size_bytes")),
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
    fn whatever_a_server_says_gives_a_table() {
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
