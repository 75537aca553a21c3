//! The write cache of a device that loses power: writes that were not flushed are kept here, and a cut keeps
//! an arbitrary subset of their sectors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;

/// What a device writes at once: smaller pieces are never torn.
const SECTOR: usize = 512;

#[derive(Debug)]
struct Pending {
    offset: u64,
    data: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether writes stay here until they are flushed.
    on: bool,
    /// Whether the power is off: every request fails.
    off: bool,
    /// By inode, in the order of the writes.
    pending: BTreeMap<u64, (File, Vec<Pending>)>,
}

/// The write cache of all files of a mount.
#[derive(Debug, Default)]
pub struct Cache {
    state: Mutex<State>,
}

/// What became of the unflushed writes in a power cut.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Cut {
    /// Sectors that reached the medium.
    pub kept: u64,
    /// Sectors that did not.
    pub lost: u64,
}

impl Cache {
    /// Turns the cache on, or off with everything written through.
    ///
    /// # Errors
    /// What the backing file says.
    pub fn set(&self, on: bool) -> io::Result<()> {
        let mut state = self.state.lock();
        state.on = on;
        if !on {
            for (file, writes) in std::mem::take(&mut state.pending).into_values() {
                write_all(&file, &writes)?;
            }
        }
        Ok(())
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// Takes a write when the cache is on; `false` when the caller must write through.
    ///
    /// # Errors
    /// What the backing file says.
    pub fn write(&self, inode: u64, file: &File, offset: u64, data: &[u8]) -> io::Result<bool> {
        let mut state = self.state.lock();
        if !state.on {
            return Ok(false);
        }
        // The size is metadata, which this cache does not model: the file grows at once.
        if file.metadata()?.len() < offset + data.len() as u64 {
            file.set_len(offset + data.len() as u64)?;
        }
        let (_, writes) = match state.pending.entry(inode) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert((file.try_clone()?, Vec::new())),
        };
        writes.push(Pending { offset, data: data.to_vec() });
        Ok(true)
    }

    /// Lays unflushed writes over what was read from the medium.
    pub fn overlay(&self, inode: u64, offset: u64, data: &mut [u8]) {
        let state = self.state.lock();
        let Some((_, writes)) = state.pending.get(&inode) else { return };
        let end = offset + data.len() as u64;
        for write in writes {
            let from = write.offset.max(offset);
            let to = (write.offset + write.data.len() as u64).min(end);
            if from < to {
                let source = &write.data[(from - write.offset) as usize..(to - write.offset) as usize];
                data[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
    }

    /// Moves a file's writes to the medium.
    ///
    /// # Errors
    /// What the backing file says.
    pub fn flush(&self, inode: u64) -> io::Result<()> {
        // Under the lock, so that no read finds the writes in neither place.
        let mut state = self.state.lock();
        let taken = state.pending.remove(&inode);
        taken.map_or(Ok(()), |(file, writes)| write_all(&file, &writes))
    }

    /// Cuts the power: every sector not flushed is kept or lost as the seed decides, and every request fails from now on.
    ///
    /// # Errors
    /// What the backing files say.
    pub fn cut(&self, seed: u64) -> io::Result<Cut> {
        let mut state = self.state.lock();
        state.off = true;
        let mut random = seed | 1;
        let mut cut = Cut::default();
        for (file, writes) in std::mem::take(&mut state.pending).into_values() {
            for write in writes {
                // A write is lost whole, kept whole, or torn, each often enough to matter.
                let share = next(&mut random) % 3;
                for (number, sector) in write.data.chunks(SECTOR).enumerate() {
                    if share == 0 || (share == 1 && next(&mut random).is_multiple_of(2)) {
                        cut.lost += 1;
                    } else {
                        file.write_all_at(sector, write.offset + (number * SECTOR) as u64)?;
                        cut.kept += 1;
                    }
                }
            }
        }
        Ok(cut)
    }

    /// Turns the power on again.
    pub fn power_on(&self) {
        self.state.lock().off = false;
    }
}

fn write_all(file: &File, writes: &[Pending]) -> io::Result<()> {
    writes.iter().try_for_each(|write| file.write_all_at(&write.data, write.offset))
}

/// xorshift64*: repeatable and good enough to choose sectors.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("fusedisk-{}-{name}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }

    fn content(file: &File, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        file.read_exact_at(&mut data, 0).unwrap();
        data
    }

    #[test]
    fn reads_see_what_the_medium_does_not_have_yet() {
        let (cache, file) = (Cache::default(), scratch("overlay"));
        cache.set(true).unwrap();
        assert!(cache.write(1, &file, 0, &[7; 1024]).unwrap());
        assert_eq!(content(&file, 1024), vec![0; 1024]);
        let mut seen = vec![0; 100];
        cache.overlay(1, 1000, &mut seen);
        assert_eq!(seen, [vec![7; 24], vec![0; 76]].concat());
        cache.flush(1).unwrap();
        assert_eq!(content(&file, 1024), vec![7; 1024]);
    }

    #[test]
    fn a_cut_keeps_the_flushed_and_tears_the_rest_by_sectors() {
        let (cache, file) = (Cache::default(), scratch("cut"));
        cache.set(true).unwrap();
        cache.write(1, &file, 0, &[1; 4096]).unwrap();
        cache.flush(1).unwrap();
        for number in 1..64 {
            cache.write(1, &file, number * 4096, &[2; 4096]).unwrap();
        }
        let cut = cache.cut(42).unwrap();
        assert_eq!(cut.kept + cut.lost, 63 * 8);
        assert!(cut.kept > 50 && cut.lost > 50, "{cut:?}");
        assert!(cache.is_off());
        let data = content(&file, 64 * 4096);
        assert_eq!(data[..4096], [1; 4096]);
        assert!(data[4096..].chunks(SECTOR).all(|sector| sector == [2; 512] || sector == [0; 512]));
    }
}
