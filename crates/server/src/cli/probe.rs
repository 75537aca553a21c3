//! `steadfast probe`: of a disk, or of a store for an archive.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use steadfast_disk::IoMode;
use steadfast_disk::probe::{ProbeOptions, probe};
use steadfast_flow::Env;
use steadfast_net::{DirectoryStore, ProbeFinding, ProbeVerdict, RemotePlace, RemoteStore, S3Place, S3Store};

use super::options::EndpointArgs;
use super::progress::Progress;
use super::{Failure, block_on};

/// Arguments of `probe`.
#[derive(Args, Debug)]
#[command(
    after_help = "Measures bandwidth, IOPS and the cost of a flush, and compares them with what the device reports. In a \
directory it uses a temporary file, which it removes. An existing file or device is only read, unless --destroy is given.\n\n\
Of s3://BUCKET/PREFIX or file:///DIRECTORY it checks whether an archive can be kept there: conditional writes, races, \
entity tags, rules of the bucket. It writes under a name of its own, and removes that. The S3 credentials come from \
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if needed, AWS_SESSION_TOKEN. Exit code 3: unfit.\n\n\
Examples:\n  steadfast probe /var/lib --seconds 20\n  steadfast probe s3://acme-backup/chat --endpoint https://objects.example.com"
)]
pub struct ProbeArgs {
    /// A directory, a file or a block device; or a store: s3://BUCKET/PREFIX or file:///DIRECTORY
    path: PathBuf,

    #[command(flatten)]
    endpoint: EndpointArgs,

    /// Approximate duration in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// I/O method: uring, threads or auto
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: IoMode,

    /// Overwrite the existing file or device: ALL ITS DATA IS LOST
    #[arg(long)]
    destroy: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ProbeArgs) -> Result<(), Failure> {
    if let Some(url) = args.path.to_str().filter(|path| path.contains("://")) {
        return run_store(url, args);
    }
    let options = ProbeOptions { duration: Duration::from_secs(args.seconds), io: args.io, destroy: args.destroy };
    let report = block_on(async {
        let env = Env::tokio();
        let mut progress = Progress::new(env.clone());
        let report = probe(&args.path, &options, &env, |what, part| progress.show(what, part)).await;
        progress.clear();
        report.map_err(|e| e.to_string())
    })?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        put!("{report}");
    }
    Ok(())
}

/// Time limit of a request to a store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks a store.
fn run_store(url: &str, args: &ProbeArgs) -> Result<(), Failure> {
    let place = RemotePlace::parse(url)?;
    let (shown, findings) = block_on(async {
        let env = Env::tokio();
        match place {
            RemotePlace::Directory(path) => {
                let store = DirectoryStore::new(&path, env.clone())?;
                Ok((store.describe(), steadfast_net::probe(&store, &env).await?))
            }
            RemotePlace::Bucket { bucket, prefix } => {
                let (endpoint, credentials) = args.endpoint.endpoint_and_credentials()?;
                let store =
                    S3Store::new(S3Place { endpoint, bucket, prefix, credentials }, REQUEST_TIMEOUT, env.clone())?;
                let mut findings = steadfast_net::probe(&store, &env).await?;
                findings.extend(store.bucket_findings().await);
                Ok((store.describe(), findings))
            }
        }
    })?;
    let fit = findings.iter().all(|finding| finding.verdict != ProbeVerdict::Unfit);
    if args.json {
        print_line!(
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({"store": shown, "fit": fit, "findings": findings}))?
        );
    } else {
        print_line!("{shown}");
        findings.iter().for_each(show);
        print_line!(
            "{}",
            if fit { "an archive can be kept here" } else { "UNFIT: an archive here could be lost or wrong" }
        );
    }
    if fit { Ok(()) } else { Err(Failure::Found) }
}

fn show(finding: &ProbeFinding) {
    let verdict = match finding.verdict {
        ProbeVerdict::Good => "ok",
        ProbeVerdict::Noted => "note",
        ProbeVerdict::Unfit => "UNFIT",
    };
    let separator = if finding.detail.is_empty() { "" } else { ": " };
    print_line!("  {verdict:<6}{}{separator}{}", finding.what, finding.detail);
}
