//! `steadfast disk`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::status::ask;
use super::{DataArgs, Failure};
use crate::config::Config;
use crate::datadir::DataDir;
use crate::disks::contents::{Contents, look};
use crate::disks::plan::{Role, role};
use crate::disks::words;
use crate::report::size;

/// Arguments of `disk`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast disk list --data /var/lib/steadfast")]
pub struct DiskArgs {
    #[command(subcommand)]
    command: DiskCommand,
}

#[derive(Subcommand, Debug)]
enum DiskCommand {
    /// Show every disk of a pool: its role, its state, what it holds.
    List(ListArgs),
}

/// Arguments of `disk list`.
#[derive(Args, Debug)]
#[command(
    after_help = "A running server is asked, at --admin or where its configuration says; without one the disks themselves are looked \
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
    let DiskCommand::List(args) = args.command;
    let listed = match &args.admin {
        Some(url) => running(url)?,
        None => {
            let config = args.data.load(&[])?;
            // Whoever has the directory knows more than its disks tell.
            let server = config.data.dir.is_dir() && DataDir::open(&config.data.dir).is_err();
            let asked = server.then(|| running(&format!("http://{}", config.admin.listen)));
            match asked {
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
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        print!("{}", table(&listed));
    }
    let well = |row: &Value| ["in use", "clean", "rebuilding", "ready"].contains(&row["state"].as_str().unwrap_or("?"));
    let all = listed["disks"].as_array().is_some_and(|rows| rows.iter().all(well));
    if all { Ok(()) } else { Err(Failure::Found) }
}

/// What a server says.
fn running(url: &str) -> Result<Value, String> {
    let status = ask(url)?;
    Ok(json!({"running": true, "disks": status["disks"], "superdisk": status["superdisk"]}))
}

/// What the disks themselves say.
fn offline(config: &Config) -> Value {
    let mut rows = Vec::new();
    let many = config.disk_paths();
    let durable = if many.is_empty() { config.pool_paths() } else { many.clone() };
    for (kind, paths) in [(Role::Durable, durable), (Role::Fast, config.fast_paths())] {
        for (index, path) in paths.iter().enumerate() {
            let found = look(path);
            let state = match (&found.contents, kind, paths.len()) {
                (Contents::Pool { .. }, Role::Durable, 1) | (Contents::FastLeg { .. }, Role::Fast, 1) => "ready",
                (Contents::Pool { .. }, Role::Durable, _) if !many.is_empty() => "ready",
                (Contents::StripeMember { .. }, Role::Durable, _) if !many.is_empty() => "foreign",
                (Contents::StripeMember { .. }, _, 2..) => "ready",
                (Contents::Absent, ..) => "missing",
                (Contents::Blank, ..) => "blank",
                (Contents::Unreadable { .. }, ..) => "failed",
                _ => "foreign",
            };
            rows.push(json!({
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
    json!({"running": false, "disks": rows})
}

/// For people.
fn table(listed: &Value) -> String {
    let mut out = String::new();
    for row in listed["disks"].as_array().into_iter().flatten() {
        let text = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        let number = |key: &str| row[key].as_u64().unwrap_or_default();
        let kind = if row["role"] == json!(Role::Fast) { Role::Fast } else { Role::Durable };
        let name = role(kind, number("index") as usize, number("count") as usize);
        let device = if row["device"] == Value::Bool(true) { "block device" } else { "file" };
        let holds = row["holds"].as_str().unwrap_or_default();
        let line = format!(
            "{name:<18} {:<28} {device:<13} {:>10}  {:<11} {holds}",
            text("path"),
            size(number("size_bytes")),
            text("state")
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if let Some(line) = words::line_in(&listed["superdisk"]) {
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
        let listed = json!({"disks": [{"role": "fast", "index": 1, "count": 2, "path": "/dev/x", "device": true,
            "size_bytes": 1 << 30, "state": "rebuilding"}, 7],
            "superdisk": {"fast": {"state": "rebuilding"}, "configured": true, "regions_clean": 1, "regions_total": 4}});
        let text = table(&listed);
        assert!(text.contains("fast leg, 2 of 2") && text.contains("1 GiB") && text.contains("25 %"), "{text}");
    }
}
