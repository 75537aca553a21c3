//! `steadfast serve`.

use clap::Args;

use super::options::ArchiveArgs;
use super::{DataArgs, EXIT_FOUND, EXIT_SUPERSEDED, Failure, times};
use crate::config::Config;
use crate::output;
use crate::serve::ServeError;
use crate::serve::point::PointRequest;

/// Arguments of `serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "Creates the data directory and the pool at the first start, and serves until SIGTERM or SIGINT. A ready server \
prints one line with its addresses.\n\n\
Credentials come from STEADFAST_ACCESS_KEY and STEADFAST_SECRET_KEY. Without them the first start generates a pair and keeps it \
in DIR/credentials.json.\n\n\
With --standby the server follows the archive of another machine's pool onto its own disks, which must be blank, and serves \
nothing but its admin port. `steadfast promote` makes it take the archive over and serve the pool. A server that has a pool of its \
own serves that: both machines of a pair can be started so.\n\n\
With --at the server needs no disk: it reads from the archive what is asked for, refuses all writes, and keeps its index in a \
directory under TMPDIR until it stops. Credentials and seal.key come from the data directory, if it has them.\n\n\
Every setting can also be given as STEADFAST_<SECTION>_<KEY>; `serve --print-config` lists them all.\n\n\
Examples:\n  steadfast serve --data /var/lib/steadfast --s3-listen 0.0.0.0:9000\n  \
steadfast serve --at s3://acme-backup/chat 2026-11-26T10:00 --s3-listen 127.0.0.1:9100"
)]
pub struct ServeArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Address of the S3 port [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDRESS")]
    s3_listen: Option<String>,

    /// Address of the admin port [default: 127.0.0.1:9001]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<String>,

    /// Address of the live port; empty for none [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS")]
    live_listen: Option<String>,

    /// Centrifugo configuration file (JSON, TOML or YAML) for the live port
    #[arg(long, value_name = "FILE")]
    live_config: Option<String>,

    /// Format of log lines: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// Log level: error, warn, info, debug, trace, or target=level,... [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Rebuild the index, with new epochs: for one start, after disks were restored from a snapshot
    #[arg(long)]
    restored: bool,

    /// Take a pool whose channels have another home now, or that was another home's: for one start,
    /// after a change of cluster.homes or of the node's name
    #[arg(long)]
    accept_moved_channels: bool,

    /// Follow the archive of another machine's pool, until `steadfast promote`. With a pool of its
    /// own the server serves that
    #[arg(long)]
    standby: bool,

    /// Serve a state of an archive read-only, the newest or the last that is not later than TIME,
    /// such as 2026-11-26T10:00 (UTC)
    #[arg(long, num_args = 1..=2, value_names = ["URL", "TIME"], conflicts_with_all = ["restored", "accept_moved_channels", "standby"])]
    at: Option<Vec<String>>,

    /// URL of the S3 endpoint of the archive [default: AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL", requires = "at")]
    endpoint: Option<String>,

    /// Region of the endpoint [default: AWS_REGION, or us-east-1]
    #[arg(long, value_name = "NAME", requires = "at")]
    region: Option<String>,

    /// Print the configuration in force, with comments, and exit
    #[arg(long)]
    print_config: bool,
}

/// What `--at URL [TIME]` asks for.
fn point(
    config: &mut Config,
    at: Vec<String>,
    endpoint: Option<String>,
    region: Option<String>,
) -> Result<PointRequest, String> {
    let mut at = at.into_iter();
    let place = ArchiveArgs { url: at.next(), endpoint, region };
    let at_ms = at.next().map(|time| times::parse(&time)).transpose().map_err(|e| format!("--at: {e}"))?;
    place.put(config)?;
    Ok(PointRequest { archive: config.archive.clone(), at_ms })
}

/// Runs the command.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let mut config = args.data.load(&[
        ("--s3-listen", "s3.listen", args.s3_listen),
        ("--admin-listen", "admin.listen", args.admin_listen),
        ("--live-listen", "live.listen", args.live_listen),
        ("--live-config", "live.config", args.live_config),
        ("--log-format", "output.format", args.log_format),
        ("--log-level", "output.level", args.log_level),
        (
            "--accept-moved-channels",
            "cluster.accept_moved_channels",
            args.accept_moved_channels.then(|| "true".to_owned()),
        ),
        ("--standby", "archive.standby", args.standby.then(|| "true".to_owned())),
        ("--restored", "data.restored", args.restored.then(|| "true".to_owned())),
    ])?;
    config.adopt_http_server()?;
    if args.print_config {
        put!("{}", config.to_toml());
        return Ok(());
    }
    let point = match args.at {
        Some(at) => Some(point(&mut config, at, args.endpoint, args.region)?),
        None => None,
    };
    output::init(config.output.format, &config.output.level)?;
    crate::serve::run(config, point, |config, data, signals, env| {
        Box::pin(crate::standby::run(config, data, signals, env))
    })
    .map_err(|e| match e {
        ServeError::Failed(why) => Failure::Failed(why),
        ServeError::Refused(why) => Failure::Ended(EXIT_FOUND, why),
        ServeError::Superseded(why) => Failure::Ended(EXIT_SUPERSEDED, why),
    })
}
