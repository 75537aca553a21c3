//! The disks of a state, opened to be read only.

use std::future::Future;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use steadfast_store::{OpenReport, Store, StoreError};

use crate::image_disk::ImageDisk;

/// The disks of a state, opened to be read only.
pub struct ImagePool {
    disks: Vec<(String, ImageDisk)>,
}

impl ImagePool {
    pub(crate) fn new(disks: Vec<(String, ImageDisk)>) -> Self {
        Self { disks }
    }

    /// The disks with their names.
    pub fn disks(&self) -> impl Iterator<Item = (&str, &ImageDisk)> {
        self.disks.iter().map(|(name, disk)| (&**name, disk))
    }

    /// Runs the opening of a store on the disks until the first read fails: a log takes what it
    /// cannot read then as damaged, or as never written.
    ///
    /// # Errors
    /// Why a disk cannot be read, or the store cannot be opened, as a message.
    pub async fn opening(
        &self,
        store: impl Future<Output = Result<(Store, OpenReport), StoreError>>,
    ) -> Result<(Store, OpenReport), String> {
        let failed = self.disks().map(|(name, disk)| async move { (name, disk.failed().await) });
        let mut failed: FuturesUnordered<_> = failed.collect();
        tokio::select! {
            biased;
            Some((name, why)) = failed.next() => Err(format!("disk {name}: {why}")),
            opened = store => opened.map_err(|e| e.to_string()),
        }
    }

    /// What the disks, once opened, lack of the state; `None` if nothing.
    pub fn lacking(&self, report: &OpenReport) -> Option<String> {
        self.disks().find_map(|(name, disk)| {
            if let Some((_, recovery)) = report.disks.iter().find(|(known, _)| known == name) {
                return disk.lacking(recovery);
            }
            let why = report.missing.iter().chain(&report.left_out).find(|(known, _)| known == name);
            Some(format!("disk {name}: {}", why.map_or("it is not a disk of the pool", |(_, why)| why)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_state_without_disks_is_an_error() {
        let opened = ImagePool::new(Vec::new()).opening(async { Err(StoreError::Unavailable("no disk".into())) }).await;
        assert!(opened.err().is_some_and(|e| e.contains("no disk")));
    }
}
