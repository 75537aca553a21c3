//! A short run of the probe.

use std::io::ErrorKind;
use std::time::Duration;

use crate::common::folder;
use steadfast_disk::IoMode;
use steadfast_disk::probe::{ProbeOptions, ProbeReport, Subject, probe};
use steadfast_flow::Env;

async fn run(path: &std::path::Path, destroy: bool) -> Option<ProbeReport> {
    let options = ProbeOptions { duration: Duration::from_millis(700), io: IoMode::Auto, destroy };
    let env = Env::tokio();
    let mut last = -1.0;
    let found = probe(path, &options, &env, |_, part| {
        assert!(part >= last && part <= 1.0, "{part} after {last}");
        last = part;
    });
    match found.await {
        Ok(report) => Some(report),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_folder_is_measured_and_left_as_it_was() {
    let folder = folder();
    let Some(report) = run(folder.path(), false).await else { return };
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 0);
    assert_eq!(report.subject, Subject::TemporaryFile);
    let (flush, commits) = (report.flush.clone().expect("flush"), report.commits.clone().expect("commits"));
    assert!(flush.write_and_flush.count > 0 && flush.write_and_flush.p50_us > 0.0);
    assert!(commits.one_by_one_per_s > 0.0 && commits.grouped_per_s > commits.one_by_one_per_s);
    assert!(report.read.best_mib_per_s > 0.0 && report.write.as_ref().expect("write").best_mib_per_s > 0.0);
    assert!(report.queue_depth >= 1 && report.random_read.iops > 0.0);
    let text = report.to_string();
    assert!(text.contains("a flush costs") && text.contains("device claims"), "{text}");
}

#[tokio::test]
async fn an_existing_file_is_only_read_unless_it_may_be_destroyed() {
    let folder = folder();
    let path = folder.path().join("precious");
    let precious = crate::common::pattern(1, 4096);
    std::fs::write(&path, &precious).expect("a file");
    let Some(report) = run(&path, false).await else { return };
    assert_eq!(
        (report.subject, report.write, report.flush, report.commits),
        (Subject::ExistingReadOnly, None, None, None)
    );
    assert!(std::fs::read(&path).expect("still there") == precious);
    let report = run(&path, true).await.expect("as before");
    assert_eq!(report.subject, Subject::ExistingOverwritten);
    assert!(report.flush.is_some() && std::fs::read(&path).expect("still there") != precious);
}

#[tokio::test]
async fn unmeasurable_disks_are_reported() {
    let folder = folder();
    let tiny = folder.path().join("tiny");
    std::fs::write(&tiny, [0; 4096]).expect("a file");
    let options = ProbeOptions::default();
    let error = probe(&tiny, &options, &Env::tokio(), |_, _| {}).await.expect_err("too small");
    assert!(matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::Unsupported), "{error}");
    let error = probe(&folder.path().join("none"), &options, &Env::tokio(), |_, _| {}).await.expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
