//! What machines keep beside their disks.

use std::io;

use parking_lot::Mutex;
use steadfast_archive::StateKeeper;

/// Bytes that are kept beside the disks of a machine, such as its owner numbers.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Option<Vec<u8>>>);

impl Kept {
    /// Forgets what was kept.
    pub(crate) fn clear(&self) {
        *self.0.lock() = None;
    }
}

impl StateKeeper for Kept {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().clone())
    }

    fn save(&self, bytes: &[u8]) -> io::Result<()> {
        *self.0.lock() = Some(bytes.to_vec());
        Ok(())
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }
}
