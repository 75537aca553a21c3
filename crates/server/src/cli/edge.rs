//! `steadfast edge`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use steadfast_flow::Env;

use super::progress::Progress;
use super::{Failure, block_on};
use crate::config::human_size;
use crate::control::{Command, client};
use crate::report::edge_bucket;

/// Bytes of keys in one command to the server.
const COMMAND_KEY_BYTES: usize = 8 << 10;

/// Arguments of `edge`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast edge status --data /var/lib/steadfast\n  \
steadfast edge fill media --prefix films/ --data /var/lib/steadfast\n  \
steadfast edge purge media films/one.mp4 --data /var/lib/steadfast")]
pub struct EdgeArgs {
    #[command(subcommand)]
    command: EdgeCommand,
}

#[derive(Subcommand, Debug)]
enum EdgeCommand {
    /// Show the buckets with an origin: space, hits, traffic.
    #[command(after_help = "Example:\n  steadfast edge status --data /var/lib/steadfast")]
    Status(EdgeServerArgs),
    /// Remove fetched objects, so that the next request asks the origin.
    ///
    /// When the command returns, the removal is durable, and nothing that was fetched before is
    /// served any more. Only readers that have begun continue.
    Purge(EdgePurgeArgs),
    /// Fetch objects before clients ask for them.
    ///
    /// Objects that are stored and fresh are not fetched again. Interrupting the command stops it.
    Fill(EdgeFillArgs),
}

#[derive(Args, Debug)]
struct EdgeServerArgs {
    /// Data directory of the running server
    #[arg(long, value_name = "DIR", env = "STEADFAST_DATA_DIR")]
    data: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast edge purge media films/one.mp4 --data /var/lib/steadfast\n  \
steadfast edge purge media films/ --prefix --data /var/lib/steadfast")]
struct EdgePurgeArgs {
    /// The bucket
    bucket: String,

    /// The key
    key: String,

    /// Remove all objects whose keys begin with KEY
    #[arg(long)]
    prefix: bool,

    #[command(flatten)]
    server: EdgeServerArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast edge fill media films/one.mp4 --data /var/lib/steadfast\n  \
steadfast edge fill media --prefix films/ --data /var/lib/steadfast\n  \
steadfast edge fill media --keys-from keys.txt --data /var/lib/steadfast")]
struct EdgeFillArgs {
    /// The bucket
    bucket: String,

    /// The keys
    keys: Vec<String>,

    /// All objects that an S3 origin lists under this prefix; \"\" for all
    #[arg(long, conflicts_with_all = ["keys", "keys_from"])]
    prefix: Option<String>,

    /// A file with one key a line; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    keys_from: Option<PathBuf>,

    #[command(flatten)]
    server: EdgeServerArgs,
}

/// Runs the command.
pub fn run(args: EdgeArgs) -> Result<(), Failure> {
    let (json, done, text) = match args.command {
        EdgeCommand::Status(server) => {
            let status = client::ask(&server.data, &Command::Status {}, |_| ())?;
            let edge = status.get("edge").cloned().unwrap_or_else(|| json!({"buckets": []}));
            let buckets = edge["buckets"].as_array().into_iter().flatten();
            let lines: String = buckets.map(|bucket| edge_bucket(bucket) + "\n").collect();
            let none = "No bucket has an origin: see edge.buckets in the configuration.\n";
            (server.json, edge, if lines.is_empty() { none.to_owned() } else { lines })
        }
        EdgeCommand::Purge(args) => {
            let command = Command::EdgePurge { bucket: args.bucket, key: args.key, prefix: args.prefix };
            let done = client::ask(&args.server.data, &command, |_| ())?;
            let text = format!("{} objects are removed\n", done["purged"]);
            (args.server.json, done, text)
        }
        EdgeCommand::Fill(args) => {
            let json = args.server.json;
            let done = fill(args)?;
            let text = filled(&done);
            (json, done, text)
        }
    };
    match json {
        true => print_line!("{}", serde_json::to_string_pretty(&done)?),
        false => put!("{text}"),
    }
    if number(&done, "failed") > 0 { Err(Failure::Found) } else { Ok(()) }
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn filled(done: &Value) -> String {
    let n = |key| number(done, key);
    let mut out = format!("{} of {} objects fetched, {}", n("fetched"), n("objects"), human_size(n("fetched_bytes")));
    let stored = n("done") - n("fetched") - n("not_storable") - n("missing") - n("failed");
    for (count, what) in [
        (stored, "stored before"),
        (n("not_storable"), "cannot be stored"),
        (n("missing"), "missing at the origin"),
        (n("failed"), "failed"),
    ] {
        if count > 0 {
            out.push_str(&format!(", {count} {what}"));
        }
    }
    out + "\n"
}

fn keys_from(file: &Path) -> Result<Vec<String>, String> {
    let text = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(text.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect())
}

/// The keys in groups that fit into a command.
fn groups(mut keys: &[String]) -> Vec<&[String]> {
    let mut groups = Vec::new();
    while !keys.is_empty() {
        let mut bytes = 0;
        let fits = keys.iter().take_while(|key| {
            bytes += key.len();
            bytes <= COMMAND_KEY_BYTES
        });
        let (group, rest) = keys.split_at(fits.count().max(1));
        groups.push(group);
        keys = rest;
    }
    groups
}

/// Sends the keys in commands of a bounded size, and adds up the results.
fn fill(args: EdgeFillArgs) -> Result<Value, String> {
    let keys = args.keys_from.as_deref().map_or(Ok(args.keys), keys_from)?;
    let groups = if args.prefix.is_some() { vec![&[][..]] } else { groups(&keys) };
    if groups.is_empty() {
        return Err("give keys, --prefix or --keys-from".to_owned());
    }
    let (mut total, mut before) = (json!({}), 0);
    block_on(async {
        let mut progress = Progress::new(Env::tokio());
        for group in groups {
            let (bucket, prefix) = (args.bucket.clone(), args.prefix.clone());
            let command = Command::EdgeFill { bucket, keys: group.to_vec(), prefix };
            let done = client::ask(&args.server.data, &command, |value| {
                let what = format!("fetching, {} so far", human_size(number(value, "fetched_bytes")));
                let part = value["part"].as_f64().unwrap_or_default() * group.len().max(1) as f64;
                progress.show(&what, (f64::from(before) + part) / keys.len().max(1) as f64);
            });
            before += group.len() as u32;
            progress.clear();
            add(&mut total, &done?);
        }
        Ok(total)
    })
}

/// Adds the counts of a result.
fn add(total: &mut Value, done: &Value) {
    for key in ["objects", "done", "fetched", "fetched_bytes", "not_storable", "missing", "failed"] {
        total[key] = json!(number(total, key) + number(done, key));
    }
}
