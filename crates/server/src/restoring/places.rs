//! Configured disks that are written before they are a pool.

use std::io;
use std::sync::Arc;

use steadfast_archive::DiskId;
use steadfast_disk::{BLOCK, Disk, Stripe, StripeOptions};
use steadfast_flow::Env;
use steadfast_log::format::{SUPERBLOCK_OFFSETS, Superblock};

use crate::config::{Config, DiskSet};
use crate::disks::open::{open_file, stripe};

/// Opens configured disks that are written before they are a pool.
#[derive(Clone, Copy)]
pub struct DiskPlaces<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Its surroundings.
    pub env: &'a Env,
}

impl DiskPlaces<'_> {
    /// Opens the disk of a log, which is to be written. `new`: it is made of new files.
    ///
    /// # Errors
    /// The operating system's error, as a message.
    pub async fn open(&self, set: &DiskSet, new: bool) -> Result<Arc<dyn Disk>, String> {
        if new {
            for path in &set.durable {
                match std::fs::remove_file(path) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {e}", path.display())),
                    _ => {}
                }
            }
        }
        let disks = self.open_files(set, new).await?;
        if disks.len() > 1 && (new || Stripe::open(disks.clone()).await.is_err()) {
            let formatted = Stripe::format(&disks, self.env, &StripeOptions::default(), true).await;
            formatted.map_err(|e| e.to_string())?;
        }
        stripe(disks).await
    }

    /// Opens the disk of a log that was written.
    ///
    /// # Errors
    /// The operating system's error, as a message.
    pub async fn open_again(&self, set: &DiskSet) -> Result<Arc<dyn Disk>, String> {
        stripe(self.open_files(set, false).await?).await
    }

    async fn open_files(&self, set: &DiskSet, create: bool) -> Result<Vec<Arc<dyn Disk>>, String> {
        let limit = self.config.data.pool_size.map(|size| size.0);
        let mut disks = Vec::new();
        for path in &set.durable {
            disks.push(open_file(path, self.config, self.env, limit, create).await?);
        }
        Ok(disks)
    }
}

/// Whether a disk holds the log of this identity.
pub async fn holds_pool(disk: &Arc<dyn Disk>, id: &str) -> bool {
    for offset in SUPERBLOCK_OFFSETS {
        if let Ok(block) = disk.read(offset, BLOCK).await
            && Superblock::decode(&block).is_ok_and(|superblock| DiskId(superblock.pool).to_string() == id)
        {
            return true;
        }
    }
    false
}
