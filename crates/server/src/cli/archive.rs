//! `steadfast archive`.

use std::collections::HashSet;
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::json;
use steadfast_archive::{
    ArchiveCheck, ArchiveDescription, ArchiveError, ArchivePoint, ArchiveReader, Aside, DiskId, TransferProgress,
};
use steadfast_disk::Disk;
use steadfast_flow::Env;
use steadfast_log::{Lsn, peek, pool_on};
use steadfast_store::Names;

use super::options::{ArchiveArgs, ConfigArgs};
use super::progress::Progress;
use super::{DataArgs, EXIT_FOUND, Failure, block_on};
use crate::config::human_size;
use crate::datadir::DataDir;
use crate::disks::open::open_durable;
use crate::disks::words::utc;
use crate::report::duration;
use crate::restoring::PATIENCE;
use crate::serve::archive::StateFile;

/// Arguments of `archive`.
#[derive(Args, Debug)]
#[command(
    after_help = "These commands read an archive from any machine, and change nothing. The credentials come from the \
configuration or from the AWS_ variables. `steadfast status` shows how far a running server is behind. `aside` also reads the \
disks of the data directory.\n\n\
Examples:\n  steadfast archive status --config steadfast.toml\n  steadfast archive points s3://acme-backup/chat --endpoint \
https://objects.example.com\n  steadfast archive verify file:///mnt/backup/chat"
)]
pub struct ArchiveCommandArgs {
    #[command(subcommand)]
    command: ArchiveCommand,
}

#[derive(Subcommand, Debug)]
enum ArchiveCommand {
    /// Show the owner, the newest state and the disks of an archive.
    Status(ReadArgs),
    /// List the points in time to which a pool can be restored.
    Points(ReadArgs),
    /// Read everything that can be restored, and verify every checksum.
    Verify(ReadArgs),
    /// List what only this pool has, after another machine took its archive over.
    Aside(AsideArgs),
}

/// Options of commands that read an archive.
#[derive(Args, Debug)]
#[command(after_help = "Exit code 3: nothing can be restored yet, or something is damaged.\n\n\
Example:\n  steadfast archive status --config steadfast.toml")]
struct ReadArgs {
    #[command(flatten)]
    archive: ArchiveArgs,

    #[command(flatten)]
    config: ConfigArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `archive aside`.
#[derive(Args, Debug)]
#[command(
    after_help = "Run it on the machine of the former owner, whose server ended with exit code 4. It changes nothing. A \
line is a change that is on these disks and not in the archive: the new owner is without it.\n\n\
Exit code 3: there are such changes.\n\n\
Example:\n  steadfast archive aside --config steadfast.toml"
)]
struct AsideArgs {
    #[command(flatten)]
    archive: ArchiveArgs,

    #[command(flatten)]
    data: DataArgs,

    /// Print each change as a JSON object, one on a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: ArchiveCommandArgs) -> Result<(), Failure> {
    match args.command {
        ArchiveCommand::Status(args) => status(&args),
        ArchiveCommand::Points(args) => points(&args),
        ArchiveCommand::Verify(args) => verify(&args),
        ArchiveCommand::Aside(args) => aside(&args),
    }
}

impl ReadArgs {
    fn reader(&self, env: &Env) -> Result<ArchiveReader, String> {
        Ok(ArchiveReader::new(self.archive.open(&self.config, env)?, Some(PATIENCE), env))
    }
}

/// An archive from which nothing can be restored yet is no failure of the command.
fn answered<T>(found: Result<T, ArchiveError>) -> Result<T, Failure> {
    found.map_err(|e| match e {
        ArchiveError::NothingYet(_) => Failure::Ended(EXIT_FOUND, e.to_string()),
        e => Failure::Failed(e.to_string()),
    })
}

fn status(args: &ReadArgs) -> Result<(), Failure> {
    let (found, now_ms) = answered(block_on(async {
        let env = Env::tokio();
        let found = args.reader(&env)?.describe().await;
        Ok(found.map(|found| (found, env.wall_ms())))
    })?)?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        show(&found, now_ms);
    }
    if found.newest_ms.is_some() { Ok(()) } else { Err(Failure::Found) }
}

fn show(found: &ArchiveDescription, now_ms: u64) {
    let since = |ms: u64| duration(now_ms.saturating_sub(ms) / 1000);
    print_line!("{}", found.to);
    print_line!("  pool         {}, archived since {}", found.pool, utc(found.created_ms));
    print_line!("  owner        {}, tenure {}, wrote {} ago", found.machine, found.tenure, since(found.written_ms));
    match found.newest_ms {
        Some(ms) => print_line!("  newest state {}, {} ago", utc(ms), since(ms)),
        None => print_line!("  NOTHING CAN BE RESTORED YET: the first complete copy is not finished"),
    }
    for disk in &found.disks {
        let (bytes, needs) = (human_size(disk.bytes), human_size(disk.needs_bytes));
        print_line!("  disk         {} ({}): {bytes}, needs a disk of {needs}", disk.name, disk.id);
    }
}

fn points(args: &ReadArgs) -> Result<(), Failure> {
    let (points, newest_ms) = answered(block_on(async {
        let env = Env::tokio();
        Ok(args.reader(&env)?.points().await)
    })?)?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&json!({"newest_ms": newest_ms, "points": points}))?);
        return Ok(());
    }
    for ArchivePoint { time_ms, base, further } in &points {
        print_line!("{}  {base}, and {further} later states before the next", utc(*time_ms));
    }
    print_line!("{}  the newest", utc(newest_ms));
    Ok(())
}

fn verify(args: &ReadArgs) -> Result<(), Failure> {
    let found = answered(block_on(async {
        let env = Env::tokio();
        let (reader, progress) = (args.reader(&env)?, TransferProgress::default());
        let found = Progress::new(env.clone()).follow("verifying", &progress, reader.verify(&progress)).await;
        Ok(found)
    })?)?;
    let ArchiveCheck { oldest_ms, newest_ms, points, objects, bytes, damaged, damage } = &found;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        damage.iter().for_each(|damage| print_line!("damage: {damage}"));
        let more = damaged.saturating_sub(damage.len() as u64);
        if more > 0 {
            print_line!("... and {more} more");
        }
        print_line!(
            "{}; {points} states from {} to {}; {objects} objects, {} read",
            if *damaged == 0 { "no damage".to_owned() } else { format!("{damaged} DAMAGED") },
            utc(*oldest_ms),
            utc(*newest_ms),
            human_size(*bytes)
        );
    }
    if *damaged == 0 { Ok(()) } else { Err(Failure::Found) }
}

fn aside(args: &AsideArgs) -> Result<(), Failure> {
    let listed = block_on(async {
        let env = Env::tokio();
        let (config, store) = args.archive.open_with(&args.data, &env)?;
        let data = DataDir::open_to_read(&config.data.dir)?;
        DataDir::refuse_restoring(data.path())?;
        let reader = ArchiveReader::new(store, Some(PATIENCE), &env);
        let known = reader.aside(Arc::new(StateFile(data.archive()))).await.map_err(|e| e.to_string())?;
        if !args.json {
            print_line!(
                "{}: taken over at {}, after tenure {}; {} owns it now",
                known.to,
                utc(known.taken_ms),
                known.tenure,
                known.machine
            );
        }
        let mut disks = Vec::new();
        for set in config.disk_sets() {
            disks.push((set.name(), open_durable(&config, &set, &env).await?));
        }
        let listed = list_aside(&disks, &known, args.json).await?;
        Ok::<_, String>(listed)
    })?;
    if !args.json {
        print_line!("{listed} changes are only on these disks");
    }
    if listed == 0 { Ok(()) } else { Err(Failure::Found) }
}

/// Prints the changes on some disks that the archive does not have. Returns their number.
async fn list_aside(disks: &[(String, Arc<dyn Disk>)], known: &Aside, as_json: bool) -> Result<usize, String> {
    let mut names = Names::default();
    // Compaction may have moved the record of a bucket behind those of its objects.
    for (name, disk) in disks {
        let learn = peek(disk, |record| {
            names.learn(record.head);
            true
        });
        learn.await.map_err(|e| format!("{name}: {e}"))?;
    }
    let mut count = 0;
    for (name, disk) in disks {
        let archived: Lsn = known.last_lsn(DiskId(pool_on(disk).await));
        // Recovery and compaction leave copies, with the versions of what they copied.
        let mut listed = HashSet::new();
        let list = peek(disk, |record| {
            if record.version > archived && names.is_change(record.head) && listed.insert(record.version) {
                let what = names.describe(record.head);
                match as_json {
                    true => print_line!("{}", json!({"disk": name, "lsn": record.lsn, "what": what})),
                    false => print_line!("  {what}"),
                }
            }
            true
        });
        list.await.map_err(|e| format!("{name}: {e}"))?;
        count += listed.len();
    }
    Ok(count)
}
