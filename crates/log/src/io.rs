//! The only way to write to the disk.
//!
//! A device or kernel tells one of two concurrent flushes of an error, and drops the unwritten data of both. So one flush runs
//! at a time, and its failure closes the latch before the next one can begin: no success that came after may be believed.
//!
//! A write that fails is told of by itself: what else was written is not in doubt. Where something was promised that depends on it, it closes
//! the latch, too. Where nothing was ([`Io::try_write`]), the data can go elsewhere, or be done without.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::Disk;
use steadfast_flow::Env;
use tokio::sync::Mutex;

use crate::LogError;
use crate::latch::{Latch, LogState};

/// How often a write is tried again for which the kernel had no memory just then,
const AGAIN_MAX: u32 = 8;
/// and how long after the first time; twice as long each time.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

pub(crate) struct Io {
    disk: Arc<dyn Disk>,
    latch: Arc<Latch>,
    env: Env,
    flushing: Mutex<()>,
}

impl Io {
    pub(crate) fn new(disk: Arc<dyn Disk>, latch: Arc<Latch>, env: Env) -> Self {
        Self { disk, latch, env, flushing: Mutex::new(()) }
    }

    /// What a request is told that was on its way when the latch closed.
    fn unknown(&self) -> Result<(), LogError> {
        match self.latch.state() {
            LogState::Failed { what, cause } => Err(LogError::Unknown { what, cause }),
            _ => Ok(()),
        }
    }

    /// Writes, and tries again where that failed for a want that passes: the same bytes to the same place, of which nobody has been told.
    async fn put(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let mut pause = AGAIN_AFTER;
        for _ in 0..AGAIN_MAX {
            match self.disk.write(offset, data.clone()).await {
                Err(error) if passes(&error) => tracing::warn!(%error, "a write is tried again"),
                done => return done,
            }
            self.env.sleep(pause).await;
            pause *= 2;
        }
        self.disk.write(offset, data).await
    }

    /// Writes; not durable before a flush.
    ///
    /// # Errors
    /// [`LogError::Unknown`]; the latch is closed then.
    pub(crate) async fn write(&self, offset: u64, data: Bytes) -> Result<(), LogError> {
        self.unknown()?;
        self.put(offset, data).await.map_err(|error| self.latch.fail("write", &error))
    }

    /// Writes what nobody has been promised: when it fails, the latch stays as it is, and that place is not to be relied on.
    ///
    /// # Errors
    /// The disk's; or that of the latch, if that was closed.
    pub(crate) async fn try_write(&self, offset: u64, data: Bytes) -> Result<(), WriteError> {
        self.unknown().map_err(WriteError::Log)?;
        self.put(offset, data).await.map_err(WriteError::Disk)
    }

    /// Closes the latch for a write that failed after all.
    pub(crate) fn give_up(&self, error: &io::Error) -> LogError {
        self.latch.fail("write", error)
    }

    /// The disk beneath.
    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Closes the latch for what is wrong with the disk, though no write failed.
    pub(crate) fn give_up_for(&self, what: &'static str, error: &io::Error) -> LogError {
        self.latch.fail(what, error)
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
        let written = match self.disk.write_flush(offset, data.clone()).await {
            // The write failed: a disk whose flush failed refuses the next flush as well.
            Err(error) if passes(&error) => {
                tracing::warn!(%error, "a write is tried again");
                match self.put(offset, data).await {
                    Ok(()) => self.disk.flush().await,
                    failed => failed,
                }
            }
            done => done,
        };
        written.map_err(|error| self.latch.fail("write or flush", &error))?;
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

    /// Writes a place anew that a write has failed at, and reads it: whether it holds what it was given.
    ///
    /// # Errors
    /// As [`Io::flush`].
    pub(crate) async fn proves(&self, offset: u64, len: u64) -> Result<bool, LogError> {
        let mut at = offset;
        while at < offset + len {
            let step = (offset + len - at).min(1 << 20) as usize;
            let pattern: Vec<u8> = std::iter::repeat_with(|| self.env.random_u64().to_le_bytes())
                .take(512)
                .flatten()
                .collect::<Vec<u8>>()
                .repeat(step.div_ceil(4096));
            let pattern = Bytes::from(pattern).slice(..step);
            match self.try_write(at, pattern.clone()).await {
                Ok(()) => {}
                Err(WriteError::Log(error)) => return Err(error),
                Err(WriteError::Disk(_)) => return Ok(false),
            }
            self.flush().await?;
            if !self.disk.read(at, step).await.is_ok_and(|read| read == pattern) {
                return Ok(false);
            }
            at += step as u64;
        }
        Ok(true)
    }
}

/// Why a write failed that nobody was promised.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The disk did not take it.
    Disk(io::Error),
    /// The latch is closed.
    Log(LogError),
}

/// Whether an error is one of the moment, and says nothing about the disk.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
