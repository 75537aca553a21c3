//! Random workloads with random crashes: acknowledged records are present in order, others whole or
//! absent.

use std::sync::Arc;

use proptest::prelude::*;
use steadfast_disk::{Disk, Effect, Fault, Faults, Faulty, MemDisk, OpKind};

use super::harness::{format, open, open_at, record};
use crate::Durability;

#[derive(Debug, Clone)]
struct Life {
    batches: Vec<(usize, usize, bool)>,
    /// The number of the write that is torn and fails, with all after it, and the blocks before the
    /// tear.
    torn: (u64, usize),
    clean: bool,
}

fn life() -> impl Strategy<Value = Life> {
    let batch = (1usize..4, prop_oneof![4 => 0usize..6000, 1 => 60_000usize..70_000], any::<bool>());
    (proptest::collection::vec(batch, 1..30), (0u64..40, 0usize..5), any::<bool>())
        .prop_map(|(batches, torn, clean)| Life { batches, torn, clean })
}

async fn live(disk: &MemDisk, life: &Life, must: &mut Vec<u64>, next: &mut u64) {
    let faults = Faults::new();
    let wrapped: Arc<dyn Disk> = Arc::new(Faulty::new(Arc::new(disk.clone()), faults.clone()));
    let opened = open_at(wrapped, 0).await;
    assert!(opened.report.damage.is_empty(), "{:?}", opened.report);
    opened.check_all().await;
    let found = heads(&opened);
    // All required records are present in order; others were being written when the machine
    // stopped.
    let mut expected = must.iter();
    let mut missing = expected.next();
    for n in &found {
        if missing == Some(n) {
            missing = expected.next();
        }
    }
    assert_eq!(missing, None, "acknowledged and lost, of {found:?}");
    *must = found;
    let (after, blocks) = life.torn;
    faults.add(Fault::new(OpKind::Write, Effect::Tear { bytes: blocks * 4096, errno: Some(5) }).after(after));
    for (count, len, sync) in &life.batches {
        let batch = (0..*count as u64).map(|i| record(*next + i, *len)).collect();
        let first = *next;
        *next += *count as u64;
        let durability = if *sync { Durability::Sync } else { Durability::Async };
        let Ok(ticket) = opened.submit(batch, durability).await else { break };
        // In memory no written data is lost, so an asynchronous commit counts too.
        if ticket.await.is_err() {
            break;
        }
        must.extend(first..*next);
    }
    if life.clean {
        let _ = opened.log.close().await;
    }
}

fn heads(opened: &super::harness::Opened) -> Vec<u64> {
    let records = opened.memory.records.lock();
    records.iter().map(|r| u64::from_le_bytes(r.head[..].try_into().expect("eight bytes"))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_acknowledged_is_lost(lives in proptest::collection::vec(life(), 1..5)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime.block_on(async {
            let disk = MemDisk::fixed(40 << 20);
            format(&disk, 1 << 20).await;
            let (mut must, mut next) = (Vec::new(), 0);
            for life in &lives {
                live(&disk, life, &mut must, &mut next).await;
            }
            let last = open(&disk).await;
            assert!(last.report.damage.is_empty(), "{:?}", last.report);
            last.check_all().await;
            let found = heads(&last);
            assert!(must.iter().all(|n| found.contains(n)), "{must:?} {found:?}");
        });
    }
}
