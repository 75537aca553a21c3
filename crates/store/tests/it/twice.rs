//! Two servers on one disk, as when a network volume is attached to two machines: a lock on one
//! machine does not reach the other.

use std::time::Duration;

use crate::common::{BUCKET, Pool, bytes_of, etag, put, read};
use steadfast_flow::Env;
use steadfast_log::LogState;
use steadfast_store::{Condition, DiskState, IndexKind, Store};

#[tokio::test]
async fn an_idle_server_that_loses_its_disk_stops() {
    let (pool, first) = Pool::start(false).await;
    put(&first, "before", &bytes_of(1, 1500)).await;
    let opened = Store::open_pool(pool.given(), IndexKind::memory(), Env::tokio(), pool.options.clone()).await;
    let second = opened.expect("nothing keeps it out").0;
    let failed = async {
        while !matches!(first.status().log.log, LogState::Failed { what: "check of the disk's owner", .. }) {
            Env::tokio().sleep(Duration::from_millis(50)).await;
        }
    };
    Env::tokio().timeout(Duration::from_secs(60), failed).await.expect("it looks, though it is idle");
    put(&second, "second", &bytes_of(2, 1500)).await;
}

#[tokio::test]
async fn a_server_that_loses_its_disk_to_another_stops() {
    for lsm in [false, true] {
        let (pool, first) = Pool::start(lsm).await;
        put(&first, "before", &bytes_of(1, 1500)).await;
        let opened = Store::open_pool(pool.given(), IndexKind::memory(), Env::tokio(), pool.options.clone()).await;
        let second = opened.expect("nothing keeps it out").0;
        put(&second, "second", &bytes_of(2, 1500)).await;
        let mut refused = None;
        // Until it needs an extent: it has none for bodies yet.
        for n in 0..20 {
            let written = async {
                let mut writer = first.at(BUCKET, &format!("first {n}")).writer(None).await?;
                writer.write(bytes_of(n, 900_000).into()).await?;
                writer.commit(etag("e"), Condition::None, None).await
            };
            if let Err(e) = written.await {
                refused = Some(e.to_string());
                break;
            }
        }
        let why = refused.expect("it stops");
        assert!(why.contains("another server has opened the disk"), "{why}");
        let status = first.status();
        assert!(matches!(status.log.log, LogState::Failed { what: "check of the disk's owner", .. }));
        assert_eq!(status.disks[0].state, DiskState::ReadOnly);
        assert_eq!(read(&first, "before", 0..1500).await.expect("read"), bytes_of(1, 1500));
        // The other server continues, and so do later starts.
        for n in 0..10 {
            put(&second, &format!("more {n}"), &bytes_of(n, 900_000)).await;
        }
        second.close().await.expect("closed");
        drop(second);
        let opened = Store::open_pool(pool.given(), IndexKind::memory(), Env::tokio(), pool.options.clone()).await;
        let (third, report) = opened.expect("opens");
        assert!(report.recovery.damage.is_empty() && !report.recovery.read_only, "{:?}", report.recovery);
        for (key, seed, len) in [("before", 1, 1500), ("second", 2, 1500), ("more 7", 7, 900_000)] {
            assert_eq!(read(&third, key, 0..len as u64).await.expect("read"), bytes_of(seed, len), "{key}");
        }
    }
}
