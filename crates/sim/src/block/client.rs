//! Clients without checksums: they accept whatever a read returns, and the ledger decides whether
//! it is allowed.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Env;

use super::ledger::{Ledger, content};
use super::plan::{BlockPlan, MIB};
use crate::executor::Executor;
use crate::rng::Rng;

/// One client task.
#[derive(Clone)]
pub(crate) struct BlockClient {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) env: Env,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) executor: Executor,
    pub(crate) plan: Arc<BlockPlan>,
}

fn offset(block: usize) -> u64 {
    MIB + (block * BLOCK) as u64
}

impl BlockClient {
    fn note(&self, what: &'static str, block: usize, blocks: usize, number: u64) {
        self.executor.trace().note(self.executor.now_ns(), what, "client", [block as u64, blocks as u64, number]);
    }

    /// Sends the requests, one after the other.
    pub(crate) async fn run(self, mut rng: Rng, requests: u64, pause_max: std::time::Duration) {
        let plan = self.plan.clone();
        for _ in 0..requests {
            let blocks = if rng.one_in(3) { rng.range(1, 5) as usize } else { 1 };
            let block = if rng.chance(700) { rng.below(plan.hot as u64) } else { rng.below(plan.blocks as u64) };
            let block = block as usize;
            let blocks = blocks.min(plan.blocks - block);
            let dice = rng.below(1000);
            let [write, write_flush, flush, discard] = plan.mix;
            if dice < write {
                self.write(block, blocks, false).await;
            } else if dice < write + write_flush {
                self.write(block, blocks, true).await;
            } else if dice < write + write_flush + flush {
                self.flush().await;
            } else if dice < write + write_flush + flush + discard {
                self.discard(block, blocks).await;
            } else {
                self.read(block, blocks).await;
            }
            if rng.one_in(3) {
                self.env.sleep(pause_max.mul_f64(rng.below(1000) as f64 / 1000.0)).await;
            }
        }
    }

    async fn write(&self, block: usize, blocks: usize, flush: bool) {
        let (number, covered) = {
            let mut ledger = self.ledger.lock();
            let covered = ledger.flush_begins(self.env.now());
            (ledger.write_begins(block, blocks, false, self.env.now()), covered)
        };
        self.note(if flush { "write+" } else { "write" }, block, blocks, number);
        let data = Bytes::from(content(number, blocks));
        let result = match flush {
            true => self.disk.write_flush(offset(block), data).await,
            false => self.disk.write(offset(block), data).await,
        };
        self.note(if result.is_ok() { "written" } else { "refused" }, block, blocks, number);
        let mut ledger = self.ledger.lock();
        ledger.write_ends(number, result.is_ok(), flush, self.env.now());
        if flush && result.is_ok() {
            ledger.flush_ends(&covered, self.env.now());
        }
        if let Err(error) = result {
            ledger.refused("a write", &error);
        }
    }

    async fn flush(&self) {
        let flush = self.ledger.lock().flush_begins(self.env.now());
        self.note("flush", 0, 0, 0);
        let result = self.disk.flush().await;
        self.note(if result.is_ok() { "flushed" } else { "refused" }, 0, 0, 0);
        let mut ledger = self.ledger.lock();
        match result {
            Ok(()) => ledger.flush_ends(&flush, self.env.now()),
            Err(error) => ledger.refused("a flush", &error),
        }
    }

    async fn discard(&self, block: usize, blocks: usize) {
        let number = self.ledger.lock().write_begins(block, blocks, true, self.env.now());
        self.note("discard", block, blocks, number);
        let result = self.disk.discard(offset(block), (blocks * BLOCK) as u64).await;
        self.note("discarded", block, blocks, number);
        let mut ledger = self.ledger.lock();
        ledger.write_ends(number, result.is_ok(), false, self.env.now());
        if let Err(error) = result {
            ledger.refused("a discard", &error);
        }
    }

    async fn read(&self, block: usize, blocks: usize) {
        let number = self.ledger.lock().read_begins(block, blocks, self.env.now());
        self.note("read?", block, blocks, number);
        let result = self.disk.read(offset(block), blocks * BLOCK).await;
        self.note("read!", block, blocks, number);
        let mut ledger = self.ledger.lock();
        ledger.read_ends(number, result.as_deref().ok(), self.env.now());
        if let Err(error) = result {
            ledger.fail(format!("a read was refused: {error}"));
        }
        if ledger.violation.is_some() {
            // Later events say nothing.
            self.executor.cut_now();
        }
    }

    /// Reads everything once.
    pub(crate) async fn read_all(&self) {
        let mut block = 0;
        while block < self.plan.blocks {
            let blocks = 4.min(self.plan.blocks - block);
            self.read(block, blocks).await;
            block += blocks;
        }
    }
}
