//! `steadfast restore`.

use clap::Args;
use steadfast_archive::TransferProgress;
use steadfast_flow::Env;

use super::options::ArchiveArgs;
use super::progress::Progress;
use super::{DataArgs, Failure, block_on_threads, times};
use crate::config::human_size;
use crate::datadir::DataDir;
use crate::disks::words::utc;
use crate::output;
use crate::report::duration;
use crate::restoring::{RestoreRequest, Restored, Restoring};

/// Arguments of `restore`.
#[derive(Args, Debug)]
#[command(
    after_help = "Restores the newest state, and takes the archive over: the pool continues it, and a server that still lives \
elsewhere ends as soon as it learns of it. The server must be stopped. The disks are those of the configuration: as many as the \
archived pool had, blank or absent. All channels get new epochs, so that clients with a later state than the archive get \
`recovered: false`, unless the former server was stopped and has handed everything over.\n\n\
With --at the command restores an earlier state, as another pool beside the first: it does not take the archive over, and needs \
another prefix for an archive of its own.\n\n\
An interrupted restore continues when the same command runs again. Credentials of S3 clients are not in the archive: copy \
credentials.json and seal.key from a safe place. The credentials of the archive come from the configuration or from the AWS_ \
variables.\n\n\
Examples:\n  steadfast restore s3://acme-backup/chat --endpoint https://objects.example.com --data /var/lib/steadfast\n  \
steadfast restore file:///mnt/backup/chat --data /tmp/yesterday --at 2026-11-26T10:00\n  \
steadfast restore --config steadfast.toml --disk /dev/sdb"
)]
pub struct RestorePoolArgs {
    #[command(flatten)]
    archive: ArchiveArgs,

    #[command(flatten)]
    data: DataArgs,

    /// Restore the last state that is not later than this, such as 2026-11-26T10:00 (UTC)
    #[arg(long, value_name = "TIME", value_parser = times::parse)]
    at: Option<u64>,

    /// Restore only this disk of a pool of several; may be repeated. The other disks are intact
    #[arg(long = "disk", value_name = "NAME", conflicts_with = "at")]
    disks: Vec<String>,

    /// Take the archive from a server that still writes to it
    #[arg(long, conflicts_with_all = ["at", "disks"])]
    take_over: bool,

    /// Overwrite disks that hold data: ALL OF IT IS LOST
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: RestorePoolArgs) -> Result<(), Failure> {
    let request = RestoreRequest { at_ms: args.at, disks: args.disks, force: args.force, take_over: args.take_over };
    let work = async {
        let env = Env::tokio();
        let (config, store) = args.archive.open_with(&args.data, &env)?;
        output::init(config.output.format, "warn")?;
        let progress = TransferProgress::default();
        let data = DataDir::create(&config.data.dir)?;
        DataDir::refuse_standby(data.path())?;
        let restoring = Restoring::new(&config, &data, request, store, &progress, &env)?;
        let begun = env.now();
        let restored = Progress::new(env.clone()).follow("restoring", &progress, restoring.run()).await?;
        Ok((restored, env.now().saturating_sub(begun)))
    };
    let (restored, took) = block_on_threads(work)?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&restored)?);
    } else {
        show(&restored, took.as_secs_f64());
    }
    Ok(())
}

fn show(restored: &Restored, took_s: f64) {
    for (name, paths) in &restored.disks {
        print_line!("{name}: restored onto {paths}");
    }
    let speed = human_size((restored.bytes as f64 / took_s.max(0.001)) as u64);
    print_line!(
        "restored: the state of {}, {} objects, {} in {} ({speed}/s)",
        utc(restored.time_ms),
        restored.objects,
        human_size(restored.bytes),
        duration(took_s.ceil() as u64)
    );
    match restored.tenure {
        Some(tenure) => print_line!(
            "the pool continues the archive {}, tenure {tenure}: the configuration of the server must name it in archive.to",
            restored.from
        ),
        None => print_line!("it is another pool now: give it another prefix in archive.to"),
    }
    for warning in &restored.warnings {
        eprintln!("steadfast: warning: {warning}");
    }
}
