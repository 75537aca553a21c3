//! The only way to write to the disk.
//!
//! A device or kernel tells one of two concurrent flushes of an error, and drops the unwritten data of both. So one flush runs
//! at a time, and its failure closes the latch before the next one can begin: no success that came after may be believed.

use std::sync::Arc;

use bytes::Bytes;
use steadfast_disk::Disk;
use tokio::sync::Mutex;

use crate::LogError;
use crate::latch::{Latch, LogState};

pub(crate) struct Io {
    disk: Arc<dyn Disk>,
    latch: Arc<Latch>,
    flushing: Mutex<()>,
}

impl Io {
    pub(crate) fn new(disk: Arc<dyn Disk>, latch: Arc<Latch>) -> Self {
        Self { disk, latch, flushing: Mutex::new(()) }
    }

    /// What a request is told that was on its way when the latch closed.
    fn unknown(&self) -> Result<(), LogError> {
        match self.latch.state() {
            LogState::Failed { what, cause } => Err(LogError::Unknown { what, cause }),
            _ => Ok(()),
        }
    }

    /// Writes; not durable before a flush.
    ///
    /// # Errors
    /// [`LogError::Unknown`]; the latch is closed then.
    pub(crate) async fn write(&self, offset: u64, data: Bytes) -> Result<(), LogError> {
        self.unknown()?;
        self.disk.write(offset, data).await.map_err(|error| self.latch.fail("write", &error))
    }

    /// Makes durable what has been written.
    ///
    /// # Errors
    /// As [`Io::write`].
    pub(crate) async fn flush(&self) -> Result<(), LogError> {
        let _one = self.flushing.lock().await;
        self.unknown()?;
        self.disk.flush().await.map_err(|error| self.latch.fail("flush", &error))?;
        // A write may have failed meanwhile.
        self.unknown()
    }

    /// Writes and makes durable.
    ///
    /// # Errors
    /// As [`Io::write`].
    pub(crate) async fn write_flush(&self, offset: u64, data: Bytes) -> Result<(), LogError> {
        let _one = self.flushing.lock().await;
        self.unknown()?;
        self.disk.write_flush(offset, data).await.map_err(|error| self.latch.fail("write or flush", &error))?;
        self.unknown()
    }

    /// Empties the zone that begins at `offset`, durably.
    ///
    /// # Errors
    /// As [`Io::write`].
    pub(crate) async fn reset_zone(&self, offset: u64) -> Result<(), LogError> {
        let _one = self.flushing.lock().await;
        self.unknown()?;
        self.disk.reset_zone(offset).await.map_err(|error| self.latch.fail("zone reset", &error))?;
        self.unknown()
    }

    /// Says that nothing more is written to the zone that begins at `offset`.
    ///
    /// # Errors
    /// As [`Io::write`].
    pub(crate) async fn finish_zone(&self, offset: u64) -> Result<(), LogError> {
        let _one = self.flushing.lock().await;
        self.unknown()?;
        self.disk.finish_zone(offset).await.map_err(|error| self.latch.fail("zone finish", &error))?;
        self.unknown()
    }
}
