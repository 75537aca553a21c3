//! The only write path to the disk.
//!
//! A device or kernel reports an error to only one of two concurrent flushes, and drops the
//! unwritten data of both. So one flush runs at a time, and its failure closes the latch before the
//! next one can begin. No later success is trusted.
//!
//! A failed write is reported alone; other written data is not in doubt. If acknowledged data
//! depends on the write, it closes the latch too. Otherwise ([`Io::try_write`]) the data can go
//! elsewhere or be omitted.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use steadfast_disk::{BLOCK, Disk};
use steadfast_flow::Env;
use tokio::sync::Mutex;

use crate::LogError;
use crate::latch::{Latch, LogState};

/// Retries of a write for which the kernel had no memory.
const RETRY_MAX: u32 = 8;
/// Delay before the first retry. It doubles with each retry.
const RETRY_BACKOFF: Duration = Duration::from_millis(1);

/// Whether a write is one of whole blocks.
fn is_aligned(offset: u64, data: &Bytes) -> bool {
    !data.is_empty() && offset.is_multiple_of(BLOCK as u64) && data.len().is_multiple_of(BLOCK)
}

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

    /// The error for a request that was in flight when the latch closed.
    fn unknown(&self) -> Result<(), LogError> {
        match self.latch.state() {
            LogState::Failed { what, cause } => Err(LogError::Unknown { what, cause }),
            _ => Ok(()),
        }
    }

    /// Writes, and retries after a transient error: the same bytes to the same place, not
    /// acknowledged yet.
    async fn put(&self, offset: u64, data: Bytes) -> io::Result<()> {
        debug_assert!(is_aligned(offset, &data), "a write of {} bytes at {offset}", data.len());
        let mut pause = RETRY_BACKOFF;
        for _ in 0..RETRY_MAX {
            match self.disk.write(offset, data.clone()).await {
                Err(error) if passes(&error) => tracing::warn!(%error, "a write failed for the moment; retrying it"),
                done => return done,
            }
            self.env.sleep(pause).await;
            pause *= 2;
        }
        self.disk.write(offset, data).await
    }

    /// Writes. The data is not durable before a flush.
    ///
    /// # Errors
    /// [`LogError::Unknown`]; the latch is closed then.
    pub(crate) async fn write(&self, offset: u64, data: Bytes) -> Result<(), LogError> {
        self.unknown()?;
        self.put(offset, data).await.map_err(|error| self.latch.fail("write", &error))
    }

    /// Writes data that was not acknowledged. A failure leaves the latch as it is. The place must
    /// not be relied on then.
    ///
    /// # Errors
    /// Those of the disk, or that of a closed latch.
    pub(crate) async fn try_write(&self, offset: u64, data: Bytes) -> Result<(), WriteError> {
        self.unknown().map_err(WriteError::Log)?;
        self.put(offset, data).await.map_err(WriteError::Disk)
    }

    /// Closes the latch because of a failed write.
    pub(crate) fn give_up(&self, error: &io::Error) -> LogError {
        self.latch.fail("write", error)
    }

    /// The disk beneath.
    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Closes the latch because of a fault of the disk, without a failed write.
    pub(crate) fn give_up_for(&self, what: &'static str, error: &io::Error) -> LogError {
        self.latch.fail(what, error)
    }

    /// Makes written data durable.
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
        debug_assert!(is_aligned(offset, &data), "a write of {} bytes at {offset}", data.len());
        let _one = self.flushing.lock().await;
        self.unknown()?;
        let written = match self.disk.write_flush(offset, data.clone()).await {
            // The write failed. A disk whose flush failed refuses the next flush too.
            Err(error) if passes(&error) => {
                tracing::warn!(%error, "a write failed for the moment; retrying it");
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

    /// Resets the zone that begins at `offset`, durably.
    ///
    /// # Errors
    /// As [`Io::write`].
    pub(crate) async fn reset_zone(&self, offset: u64) -> Result<(), LogError> {
        let _one = self.flushing.lock().await;
        self.unknown()?;
        self.disk.reset_zone(offset).await.map_err(|error| self.latch.fail("zone reset", &error))?;
        self.unknown()
    }

    /// Finishes the zone that begins at `offset`, which is not written again before a reset.
    ///
    /// # Errors
    /// As [`Io::write`].
    pub(crate) async fn finish_zone(&self, offset: u64) -> Result<(), LogError> {
        let _one = self.flushing.lock().await;
        self.unknown()?;
        self.disk.finish_zone(offset).await.map_err(|error| self.latch.fail("zone finish", &error))?;
        self.unknown()
    }

    /// Rewrites a place at which a write failed, and reads it back. Returns whether it holds the
    /// bytes.
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

/// Reason why a write of unacknowledged data failed.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The disk refused the write.
    Disk(io::Error),
    /// The latch is closed.
    Log(LogError),
}

/// Whether an error is transient and shows no fault of the disk.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
