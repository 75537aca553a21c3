//! `steadfast block`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use steadfast_block::Listen;
use steadfast_flow::Env;
use tokio::sync::watch;

use super::{Failure, status};
use crate::admin::collect::StatusCollector;
use crate::admin::{Access, Admin, Source};
use crate::block::make::{self, FormatRequest};
use crate::block::{Device, Devices};
use crate::config::human_size;
use crate::config::{BlockSpec, Config, IoMode, LogFormat, Paths, Size, check_block_name};
use crate::net::listener::{ADMIN_CONNECTIONS, Port};
use crate::output;
use crate::report::block_lines;
use crate::serve::signals::Signals;

/// Arguments of `block`.
#[derive(Args, Debug)]
#[command(
    after_help = "A block device is a durable disk with local fast disks in front of it. A write is acknowledged \
when the durable disk has it. Reads come from the fast disks. Clients connect over NBD.\n\n\
Example:\n  steadfast block format --durable /dev/sdb --fast /dev/nvme0n1\n  \
steadfast block serve --durable /dev/sdb --fast /dev/nvme0n1 --listen unix:/run/db.sock\n  \
nbd-client -unix /run/db.sock /dev/nbd0"
)]
pub struct BlockArgs {
    #[command(subcommand)]
    command: BlockCommand,
}

#[derive(Subcommand, Debug)]
enum BlockCommand {
    /// Create a block device on its disks
    Format(BlockFormatArgs),
    /// Serve a block device until SIGTERM
    Serve(BlockServeArgs),
    /// Show a block device: its status if served, else the labels on its disks
    Status(BlockStatusArgs),
    /// Discard the content of the fast disks; the next start refills them
    ForgetFast(ForgetFastArgs),
}

/// The disks of a device.
#[derive(Args, Debug)]
struct BlockDiskArgs {
    /// Durable disk: a file or a block device
    #[arg(long, value_name = "PATH")]
    durable: PathBuf,

    /// Fast disk; repeat the option for a stripe
    #[arg(long, value_name = "PATH")]
    fast: Vec<PathBuf>,
}

impl BlockDiskArgs {
    fn spec(self, name: String, listen: Listen, read_only: bool) -> BlockSpec {
        BlockSpec { name, durable: self.durable, fast: Paths(self.fast), listen, read_only }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast block format --durable /dev/sdb --fast /dev/nvme0n1")]
struct BlockFormatArgs {
    #[command(flatten)]
    disks: BlockDiskArgs,

    /// Size of the durable disk if it is a file to be created, such as "100 GiB"
    #[arg(long, value_name = "SIZE", value_parser = size_from)]
    size: Option<u64>,

    /// Overwrite disks that hold data: ALL OF IT IS LOST
    #[arg(long)]
    force: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  steadfast block serve --durable /dev/sdb --fast /dev/nvme0n1 --listen unix:/run/db.sock"
)]
struct BlockServeArgs {
    #[command(flatten)]
    disks: BlockDiskArgs,

    /// Address for clients: unix:PATH, or ADDRESS:PORT on loopback
    #[arg(long, value_name = "ADDRESS")]
    listen: Listen,

    /// Name of the export
    #[arg(long, value_name = "NAME", default_value = "disk", value_parser = name_from)]
    name: String,

    /// Refuse writes
    #[arg(long)]
    read_only: bool,

    /// Maximum bytes a second copied to the fast disks in the background; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "100 MiB", value_parser = size_from)]
    rebuild_rate: u64,

    /// I/O method: uring, threads or auto
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: IoMode,

    /// Address of the admin port (health, metrics, status); none by default
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<std::net::SocketAddr>,

    /// Log level: error, warn, info, debug, trace, or target=level,...
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  steadfast block status --admin http://127.0.0.1:9001\n  \
steadfast block status --durable /dev/sdb --fast /dev/nvme0n1")]
struct BlockStatusArgs {
    /// URL of the admin port of the server
    #[arg(long, value_name = "URL", conflicts_with = "durable", required_unless_present = "durable")]
    admin: Option<String>,

    /// Durable disk of a device that is not served
    #[arg(long, value_name = "PATH")]
    durable: Option<PathBuf>,

    /// Its fast disk; shows whether its content is usable
    #[arg(long, value_name = "PATH", requires = "durable")]
    fast: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  steadfast block forget-fast --durable /dev/sdb")]
struct ForgetFastArgs {
    /// Durable disk
    #[arg(long, value_name = "PATH")]
    durable: PathBuf,
}

fn size_from(text: &str) -> Result<u64, String> {
    use crate::config::{Input, Setting};
    Size::read(Input::Text(text)).map(|size| size.0)
}

fn name_from(text: &str) -> Result<String, String> {
    check_block_name(text).map(|()| text.to_owned())
}

/// Runs the command.
pub fn run(args: BlockArgs) -> Result<(), Failure> {
    match args.command {
        BlockCommand::Format(args) => format(args),
        BlockCommand::Serve(args) => serve(args),
        BlockCommand::Status(args) => show(&args),
        BlockCommand::ForgetFast(args) => {
            super::block_on(async { make::forget_fast(&args.durable, &Env::tokio()).await })?;
            print_line!("the next start refills the fast disks");
            Ok(())
        }
    }
}

fn format(args: BlockFormatArgs) -> Result<(), Failure> {
    let making = FormatRequest { size: args.size, force: args.force };
    let spec = args.disks.spec("disk".to_owned(), Listen::Unix(PathBuf::new()), false);
    let made = super::block_on(async { make::make(&spec, &Config::default(), making, &Env::tokio()).await })?;
    print_line!("a block device of {} on {}", human_size(made.data_bytes), spec.durable.display());
    if !made.reserved {
        print_line!("its file system reserves no space for a file: writes of clients fail when it is full");
    }
    Ok(())
}

fn serve(args: BlockServeArgs) -> Result<(), Failure> {
    let mut config = Config::default();
    config.superdisk.rebuild_rate = Size(args.rebuild_rate);
    config.data.io = args.io;
    output::init(LogFormat::Text, &args.log_level)?;
    let spec = args.disks.spec(args.name, args.listen, args.read_only);
    crate::serve::run_alone(|env| serve_one(spec, config, args.admin_listen, env)).map_err(Failure::Failed)
}

async fn serve_one(
    spec: BlockSpec,
    config: Config,
    admin: Option<std::net::SocketAddr>,
    env: Env,
) -> Result<(), String> {
    let mut signals = Signals::new()?;
    let devices = Devices::open(&[spec], &config, &env).await?;
    let (stop, stopped) = watch::channel(false);
    let mut shown = devices.addresses().join(" ");
    if let Some(address) = admin {
        let port = Port::bind(address, ADMIN_CONNECTIONS, None, "--admin-listen").await?;
        let local = port.address().map_err(|e| format!("--admin-listen: {e}"))?;
        shown.push_str(&format!(" admin=http://{local}"));
        let source = Arc::new(Served(devices.list()));
        let mut registry = Registry::with_prefix("steadfast");
        registry.register_collector(Box::new(StatusCollector::new(source.clone())));
        let access = Access { any_host: !address.ip().is_loopback(), ..Access::default() };
        let admin = Admin::new(source, registry, access, env.clone());
        let (inner, stopped) = (env.clone(), stopped.clone());
        env.spawn_critical("admin port", async move {
            port.run(inner, admin, stopped, Duration::from_secs(1)).await;
        });
    }
    print_line!("steadfast {} ready: {shown}", env!("CARGO_PKG_VERSION"));
    let serving = devices.serve(stopped);
    tokio::pin!(serving);
    tokio::select! {
        signal = signals.next() => tracing::info!(signal, "stopping: accepted requests are completed"),
        () = &mut serving => return Err("the port has ended".to_owned()),
    }
    let _ = stop.send(true);
    tokio::select! {
        () = serving => {}
        signal = signals.next() => tracing::warn!(signal, "not waiting for the requests in flight"),
    }
    tracing::info!("stopped");
    Ok(())
}

/// Source of the admin port of `block serve`.
struct Served(Vec<Arc<Device>>);

impl Source for Served {
    fn not_ready(&self) -> Option<String> {
        None
    }

    fn warnings(&self) -> Vec<String> {
        self.0.iter().flat_map(|device| device.warnings()).collect()
    }

    fn status(&self) -> Value {
        let block: Vec<Value> = self.0.iter().map(|device| device.status()).collect();
        json!({"version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "ready": true, "block": block})
    }
}

fn show(args: &BlockStatusArgs) -> Result<(), Failure> {
    if let Some(url) = &args.admin {
        let status = status::ask(url)?;
        if args.json {
            print_line!("{}", serde_json::to_string_pretty(&status["block"])?);
        } else {
            put!("{}", block_lines(&status));
        }
        return Ok(());
    }
    let Some(durable) = &args.durable else { return Err("give --admin or --durable".into()) };
    let fast = args.fast.as_deref();
    let (bytes, labels) = super::block_on(async { make::labels(durable, fast, &Env::tokio()).await })?;
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&json!({"data_bytes": bytes, "labels": labels}))?);
        return Ok(());
    }
    print_line!("data         {}", human_size(bytes));
    let Some(labels) = labels else {
        print_line!("fast leg     never had one");
        return Ok(());
    };
    print_line!("pair         {}, opened {} times with a fast leg", labels.pair, labels.generation);
    print_line!("fast leg     {}", labels.fast.as_deref().unwrap_or("none: the next one is refilled"));
    print_line!("dirty        {}: copied after the next start", human_size(labels.dirty_bytes));
    if fast.is_some() {
        match &labels.refused {
            None => print_line!("this one     usable"),
            Some(why) => print_line!("this one     not usable: {why}"),
        }
    }
    Ok(())
}
