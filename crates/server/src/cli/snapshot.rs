//! `steadfast snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;
use steadfast_flow::Env;

use super::options::EndpointArgs;
use super::progress::Progress;
use super::{Failure, block_on};
use crate::backup::place::{PlaceSpec, S3Spec};
use crate::config::human_size;
use crate::config::setting::Size;
use crate::control::{Command, client};
use crate::disks::words::utc;

/// Arguments of `snapshot`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast snapshot create monday --data /var/lib/steadfast\n  \
steadfast snapshot export monday --to /backup --data /var/lib/steadfast")]
pub struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand, Debug)]
enum SnapshotCommand {
    /// Create a snapshot (milliseconds).
    Create(NamedArgs),
    /// Show the snapshots, oldest first.
    #[command(after_help = "Example:\n  steadfast snapshot list --data /var/lib/steadfast")]
    List(ServerArgs),
    /// Delete a snapshot and free the space that only it kept.
    Delete(NamedArgs),
    /// Export a snapshot to a directory or to S3.
    Export(ExportArgs),
    /// Restore an export into a running server.
    Restore(RestoreArgs),
}

#[derive(Args, Debug)]
struct ServerArgs {
    /// Data directory of the running server
    #[arg(long, value_name = "DIR", env = "STEADFAST_DATA_DIR")]
    data: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast snapshot create monday --data /var/lib/steadfast\n  \
steadfast snapshot delete monday --data /var/lib/steadfast")]
struct NamedArgs {
    /// Name of the snapshot: letters, digits, -, _ and .
    name: String,

    #[command(flatten)]
    server: ServerArgs,
}

const PLACE_HELP: &str = "A place is a directory of the server's machine, or s3://BUCKET/PREFIX with --endpoint. The S3 \
credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if needed, AWS_SESSION_TOKEN. In the place, the export is \
a folder named like the snapshot.";

#[derive(Args, Debug)]
#[command(
    before_long_help = PLACE_HELP,
    after_help = "Examples:\n  steadfast snapshot export monday --to /backup --data /var/lib/steadfast\n  \
steadfast snapshot export tuesday --to /backup --since monday --data /var/lib/steadfast\n  \
steadfast snapshot export monday --to s3://backup/pool1 --endpoint https://s3.example.com --data /var/lib/steadfast"
)]
struct ExportArgs {
    /// Name of the snapshot
    name: String,

    /// Destination: a directory, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "PLACE")]
    to: String,

    /// An older export in the same place; only changes since then are written
    #[arg(long, value_name = "NAME")]
    since: Option<String>,

    /// Maximum bytes read a second, instead of snapshots.export_rate; 0: no limit
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,

    #[command(flatten)]
    endpoint: EndpointArgs,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
#[command(
    before_long_help = PLACE_HELP,
    after_help = "Needs a running server; start it with an empty data directory to restore into a new pool. The server checks the \
whole manifest before it writes anything, and each body before its object becomes visible.\n\n\
Examples:\n  steadfast snapshot restore monday --from /backup --data /var/lib/steadfast\n  \
steadfast snapshot restore monday --from s3://backup/pool1 --endpoint https://s3.example.com --data /var/lib/steadfast"
)]
struct RestoreArgs {
    /// Name of the export
    name: String,

    /// Source: a directory, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "PLACE")]
    from: String,

    /// Replace objects with the same key; without it, a bucket that holds objects is refused
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    endpoint: EndpointArgs,

    #[command(flatten)]
    server: ServerArgs,
}

/// Reads a place from the command line.
fn place(text: &str, endpoint: &EndpointArgs) -> Result<PlaceSpec, String> {
    let Some(rest) = text.strip_prefix("s3://") else {
        let path = std::path::absolute(text).map_err(|e| format!("{text}: {e}"))?;
        return Ok(PlaceSpec::Dir(path));
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(format!("{text}: it names no bucket; give s3://BUCKET/PREFIX"));
    }
    let prefix = prefix.trim_matches('/');
    let (endpoint, credentials) = endpoint.endpoint_and_credentials()?;
    Ok(PlaceSpec::S3(S3Spec {
        endpoint,
        bucket: bucket.to_owned(),
        prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
        credentials,
    }))
}

/// Sends the command to the server and shows a progress line.
fn ask(server: &ServerArgs, command: &Command) -> Result<Value, String> {
    block_on(async {
        let mut progress = Progress::new(Env::tokio());
        let done = client::ask(&server.data, command, |value| {
            let phase = match value["phase"].as_str() {
                Some("index") => "indexing the snapshot",
                Some("manifest") => "checking the manifest",
                _ => "copying objects",
            };
            progress.show(phase, value["part"].as_f64().unwrap_or_default());
        });
        progress.clear();
        done
    })
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn table(listed: &Value) -> String {
    let mut out = String::new();
    for snapshot in listed["snapshots"].as_array().into_iter().flatten() {
        let whole = if snapshot["whole"] == Value::Bool(false) { "  INCOMPLETE" } else { "" };
        out.push_str(&format!(
            "{:<24} {}  {:>10} objects  {:>10}{whole}\n",
            snapshot["name"].as_str().unwrap_or("?"),
            utc(number(snapshot, "created_ms")),
            number(snapshot, "objects"),
            human_size(number(snapshot, "object_bytes"))
        ));
    }
    let kept = number(listed, "kept_bytes");
    if out.is_empty() {
        out.push_str("There are no snapshots.\n");
    } else {
        out.push_str(&format!("They keep {} that nothing else needs.\n", human_size(kept)));
    }
    out.extend(working(listed));
    out
}

/// The progress of the running export or restore.
fn working(listed: &Value) -> Option<String> {
    let what = listed["working"]["what"].as_str()?;
    let part = listed["working"]["progress"]["part"].as_f64().unwrap_or_default();
    Some(format!("Running: {what}, {:.0} %.\n", part * 100.0))
}

/// The objects that a backup lacks, one a line.
fn missing(done: &Value) -> String {
    let mut out = String::new();
    let listed = done["missing"].as_array().map_or(&[][..], Vec::as_slice);
    for one in listed {
        let text = |key: &str| one[key].as_str().unwrap_or("?").escape_debug().to_string();
        out.push_str(&format!("MISSING {}/{}: {}\n", text("bucket"), text("key"), text("why")));
    }
    let more = number(done, "missing_total").saturating_sub(listed.len() as u64);
    if more > 0 {
        out.push_str(&format!("MISSING ... and {more} more: the server's log names them\n"));
    }
    for fault in done["faults"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        out.push_str(&format!("DAMAGE in what the snapshot keeps: {fault}\n"));
    }
    let before = number(done, "missing_in_export");
    if before > 0 {
        out.push_str(&format!("The export itself lacks {before} objects, which could not be read when it was made.\n"));
    }
    out
}

/// Whether the backup lacks an object or has faults.
fn is_short(done: &Value) -> bool {
    number(done, "missing_total") > 0 || done["faults"].as_array().is_some_and(|faults| !faults.is_empty())
}

/// Runs the command.
pub fn run(args: SnapshotArgs) -> Result<(), Failure> {
    let (server, done, text) = match args.command {
        SnapshotCommand::Create(args) => {
            let done = ask(&args.server, &Command::SnapshotCreate { name: args.name.clone() })?;
            let text = format!("snapshot {}: {} objects\n", args.name, number(&done, "objects"));
            (args.server, done, text)
        }
        SnapshotCommand::List(server) => {
            let done = ask(&server, &Command::SnapshotList {})?;
            let text = table(&done);
            (server, done, text)
        }
        SnapshotCommand::Delete(args) => {
            let done = ask(&args.server, &Command::SnapshotDelete { name: args.name.clone() })?;
            (args.server, done, format!("snapshot {} is deleted\n", args.name))
        }
        SnapshotCommand::Export(args) => {
            let to = place(&args.to, &args.endpoint)?;
            let bytes_s = args.rate.map(|rate| rate.0);
            let command = Command::SnapshotExport { name: args.name, since: args.since, to, bytes_s };
            let done = ask(&args.server, &command)?;
            let text = format!(
                "{} objects, {}; {} written to {}\n",
                number(&done, "objects"),
                human_size(number(&done, "bytes")),
                human_size(number(&done, "written_bytes")),
                done["to"].as_str().unwrap_or_default()
            );
            (args.server, done, text)
        }
        SnapshotCommand::Restore(args) => {
            let from = place(&args.from, &args.endpoint)?;
            let command = Command::SnapshotRestore { name: args.name, from, overwrite: args.overwrite };
            let done = ask(&args.server, &command)?;
            let text =
                format!("{} objects, {}, are restored\n", number(&done, "objects"), human_size(number(&done, "bytes")));
            (args.server, done, text)
        }
    };
    let text = format!("{}{text}", missing(&done));
    if server.json {
        print_line!("{}", serde_json::to_string_pretty(&done)?);
    } else {
        put!("{text}");
    }
    if is_short(&done) { Err(Failure::Found) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_places_are_read() {
        let endpoint = EndpointArgs { endpoint: None, region: "r".into() };
        assert_eq!(place("/a/b", &endpoint), Ok(PlaceSpec::Dir("/a/b".into())));
        assert!(place("s3:///x", &endpoint).expect_err("no bucket").contains("BUCKET"));
        assert_eq!(table(&serde_json::json!({})), "There are no snapshots.\n");
    }
}
