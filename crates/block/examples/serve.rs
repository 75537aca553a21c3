//! Serves a file, a device or memory over NBD, for manual checks:
//!
//! ```text
//! cargo run --release -p steadfast-block --example serve -- unix:/tmp/nbd.sock --memory 67108864
//! cargo run --release -p steadfast-block --example serve -- \
//!     127.0.0.1:10809 --file disk.img --size 1073741824
//! ```
//!
//! An interrupt ends the server. It then prints the status of the export to standard output.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use steadfast_block::{Export, ExportOptions, Limits, Listen, Server};
use steadfast_disk::{Disk, DiskOptions, FileDisk, MemDisk};
use steadfast_flow::Env;

#[derive(Parser)]
struct Arguments {
    /// unix:PATH or ADDRESS:PORT.
    listen: Listen,
    /// A file or a block device.
    #[arg(long)]
    file: Option<PathBuf>,
    /// The file grows to this size in bytes.
    #[arg(long, default_value_t = 0)]
    size: u64,
    /// Memory of this size in bytes, instead of a file.
    #[arg(long, default_value_t = 64 << 20)]
    memory: u64,
    /// Name of the export.
    #[arg(long, default_value = "disk")]
    name: String,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let env = Env::tokio();
    let disk: Arc<dyn Disk> = match &arguments.file {
        Some(path) => {
            let options = DiskOptions { create: true, punch_holes: true, ..DiskOptions::default() };
            let disk = FileDisk::open(path, &options)?;
            disk.reserve(arguments.size).await?;
            disk
        }
        None => Arc::new(MemDisk::fixed(arguments.memory)),
    };
    let options = ExportOptions {
        description: "a disk served by an example".to_owned(),
        read_only: arguments.read_only,
        ..ExportOptions::new(arguments.name)
    };
    let export = Export::new(options, disk, env.clone())?;
    let server = Server::bind(&arguments.listen, vec![export.clone()], Limits::default(), env).await?;
    println!("listening on {}", server.local()?);
    server
        .serve(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await;
    println!("{}", serde_json::to_string_pretty(&export.status())?);
    Ok(())
}
