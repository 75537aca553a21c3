//! How far records have been applied.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::hold::Hold;
use crate::{Lsn, Usage};

/// How far records have been applied, and which bytes they make live.
pub(crate) struct ApplyProgress {
    pub(crate) applied: watch::Sender<Lsn>,
    /// The last LSN passed to the applier, which may still be applying it.
    pub(crate) applying: AtomicU64,
    /// Holds records back that may not be applied yet.
    pub(crate) hold: Hold,
    /// The accounts. Locked while records are applied.
    pub(crate) usage: Mutex<Usage>,
}
