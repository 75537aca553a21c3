//! Costs that must not grow with the number of extents.

use std::sync::Arc;
use std::time::Duration;

use steadfast_disk::MemDisk;
use steadfast_flow::Env;

use super::harness::{format, open_with, options};
use crate::Priority;

/// Prints the cost of a reservation: `cargo test --release -p steadfast-log -- --ignored
/// --nocapture cost_of_a_reservation`.
#[tokio::test]
#[ignore = "a measurement, for people to read"]
async fn cost_of_a_reservation() {
    let env = Env::tokio();
    for extents in [100, 10_000, 400_000] {
        let disk = MemDisk::fixed((extents + 1) << 20);
        format(&disk, 1 << 20).await;
        let mut options = options();
        options.compaction.enabled = false;
        let opened = open_with(Arc::new(disk), 0, options).await;
        let times = 20_000;
        let begun = env.now();
        for _ in 0..times {
            drop(opened.log.reserve(4096, Priority::Write, Duration::ZERO).await.expect("there is room"));
        }
        let each = (env.now() - begun) / times;
        println!("{extents} extents: {each:?} a reservation");
    }
}
