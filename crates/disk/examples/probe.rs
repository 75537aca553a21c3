//! `cargo run --release -p steadfast-disk --example probe -- PATH [SECONDS]`

use std::path::Path;
use std::time::Duration;

use steadfast_disk::probe::{ProbeOptions, probe};
use steadfast_flow::Env;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let seconds = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(10);
    let options = ProbeOptions { duration: Duration::from_secs(seconds), ..ProbeOptions::default() };
    println!("{}", probe(Path::new(&path), &options, &Env::tokio(), |_, _| {}).await?);
    Ok(())
}
