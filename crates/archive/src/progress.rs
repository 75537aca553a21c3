//! How far an archive is.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;
use steadfast_log::{Lsn, Ranges};
use tokio::sync::watch;

use crate::error::ArchiveError;
use crate::head::{Head, Promise};
use crate::image::Image;
use crate::name::DiskId;

/// What an archive is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveState {
    /// This process does not know yet whether it owns the archive.
    Claiming,
    /// The first complete copy is being made: nothing can be restored yet.
    Copying,
    /// It has a complete copy, and follows.
    Following,
    /// Another process owns it.
    Superseded,
    /// It cannot be used any more.
    Broken,
}

#[derive(Debug)]
struct Known {
    state: ArchiveState,
    error: Option<ArchiveError>,
    version: u64,
    /// The identity of the archive; empty before one is known.
    archive: String,
    tenure: u64,
    promise: Promise,
    /// When the last cut was taken that a head names.
    cut_ms: Option<u64>,
    /// When the oldest state was taken that can be restored.
    oldest_ms: Option<u64>,
    cuts: u64,
    given_up: u64,
    damaged_bytes: u64,
}

/// How far an archive is. Tasks wait on it.
pub(crate) struct Progress {
    state: Mutex<Known>,
    /// The last record of each disk that a head has.
    archived: Mutex<BTreeMap<DiskId, Lsn>>,
    /// Why it ended.
    ended: watch::Sender<Option<ArchiveError>>,
    /// Whether the last task has ended.
    stopped: watch::Sender<bool>,
}

/// A copy of what is known.
#[derive(Debug, Clone)]
pub(crate) struct ProgressNow {
    pub(crate) state: ArchiveState,
    pub(crate) error: Option<String>,
    pub(crate) version: u64,
    pub(crate) tenure: u64,
    pub(crate) promise: Promise,
    pub(crate) cut_ms: Option<u64>,
    pub(crate) oldest_ms: Option<u64>,
    pub(crate) cuts: u64,
    pub(crate) given_up: u64,
    pub(crate) damaged_bytes: u64,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let state = Known {
            state: ArchiveState::Claiming,
            error: None,
            version: 0,
            archive: String::new(),
            tenure: 0,
            promise: Promise::Local,
            cut_ms: None,
            oldest_ms: None,
            cuts: 0,
            given_up: 0,
            damaged_bytes: 0,
        };
        Self {
            state: Mutex::new(state),
            archived: Mutex::default(),
            ended: watch::Sender::new(None),
            stopped: watch::Sender::new(false),
        }
    }

    pub(crate) fn now(&self) -> ProgressNow {
        let state = self.state.lock();
        ProgressNow {
            state: state.state,
            error: state.error.as_ref().map(ArchiveError::to_string),
            version: state.version,
            tenure: state.tenure,
            promise: state.promise,
            cut_ms: state.cut_ms,
            oldest_ms: state.oldest_ms,
            cuts: state.cuts,
            given_up: state.given_up,
            damaged_bytes: state.damaged_bytes,
        }
    }

    /// The pool has owned the archive of this identity, with this tenure.
    pub(crate) fn owns(&self, archive: &str, tenure: u64) {
        let mut state = self.state.lock();
        (state.archive, state.tenure) = (archive.to_owned(), tenure);
    }

    /// The identity of the archive, and the tenure.
    pub(crate) fn tenure(&self) -> (String, u64) {
        let state = self.state.lock();
        (state.archive.clone(), state.tenure)
    }

    /// A head names a new cut.
    pub(crate) fn named(&self, head: &Head, image: &Image, oldest_ms: Option<u64>) {
        self.state.lock().cuts += 1;
        self.head_is(head, image, oldest_ms);
    }

    /// The head of the archive, which this process owns, names this image. The oldest state that
    /// can be restored is of `oldest_ms`.
    pub(crate) fn head_is(&self, head: &Head, image: &Image, oldest_ms: Option<u64>) {
        let mut state = self.state.lock();
        assert!(head.version > state.version, "heads have ascending versions");
        state.state = if head.cut.is_some() { ArchiveState::Following } else { ArchiveState::Copying };
        (state.version, state.tenure, state.promise) = (head.version, head.tenure, head.promise);
        state.cut_ms = head.cut.as_ref().map(|cut| cut.time_ms);
        state.oldest_ms = oldest_ms;
        drop(state);
        *self.archived.lock() = image.last_lsns();
    }

    /// A cut was given up.
    pub(crate) fn given_up(&self) {
        self.state.lock().given_up += 1;
    }

    /// These bytes are damaged on the disk.
    pub(crate) fn damaged(&self, ranges: &Ranges) {
        self.state.lock().damaged_bytes += ranges.bytes();
    }

    /// The archive is not followed any more.
    pub(crate) fn end(&self, error: ArchiveError) {
        let mut state = self.state.lock();
        state.state = match &error {
            ArchiveError::Superseded { .. } => ArchiveState::Superseded,
            _ => ArchiveState::Broken,
        };
        state.error = Some(error.clone());
        drop(state);
        self.ended.send_replace(Some(error));
    }

    /// Waits for the end of an archive.
    pub(crate) async fn ended(&self) -> ArchiveError {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(error) = ended.borrow_and_update().clone() {
                return error;
            }
            if ended.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The last task has ended.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits for the end of the last task.
    pub(crate) async fn stopped(&self) {
        if self.stopped.subscribe().wait_for(|stopped| *stopped).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether a head has a record of a disk.
    pub(crate) fn has(&self, disk: DiskId, lsn: Lsn) -> bool {
        self.archived.lock().get(&disk).is_some_and(|last| *last >= lsn)
    }

    /// The last record of each disk that the archive has, for operators.
    pub(crate) fn archived_lsns(&self) -> String {
        let lsns = self.archived.lock();
        let one = |(disk, lsn): (&DiskId, &Lsn)| format!("disk {disk} up to LSN {lsn}");
        lsns.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}
