//! Marks the creation of a pool of several disks with a file in the data directory. After a kill,
//! the next start finds the mark and completes the creation. No write is acknowledged before the
//! file is removed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{Config, DiskSet};
use crate::datadir::DataDir;

/// The pool being created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Making {
    /// Its disks.
    disks: Vec<PathBuf>,
    /// Whether existing data is overwritten; after an interruption disks may then hold old data.
    force: bool,
}

/// State of an earlier creation of this pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// None was begun, or it completed.
    No,
    /// It was interrupted; the content of the disks is its own.
    Yes,
    /// It was interrupted while it overwrote existing data.
    Forced,
}

fn file(data: &Path) -> PathBuf {
    data.join("making")
}

fn durable(config: &Config) -> Vec<PathBuf> {
    config.disk_sets().into_iter().flat_map(|set: DiskSet| set.durable).collect()
}

/// Whether the creation of this pool was begun and not completed.
///
/// # Errors
/// When the creation of another pool was, or the file cannot be read.
pub fn begun(config: &Config) -> Result<Begun, String> {
    let path = file(&config.data.dir);
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Begun::No),
        Err(e) => return Err(fail(&e)),
    };
    // A partial file: the creation had not begun.
    let Ok(making) = serde_json::from_slice::<Making>(&text) else { return Ok(Begun::No) };
    if making.disks != durable(config) {
        let disks: Vec<String> = making.disks.iter().map(|disk| disk.display().to_string()).collect();
        return Err(format!(
            "the creation of a pool on {} was interrupted, and the configuration names other disks now: name those again, and the \
             next start or `steadfast format` completes it; or remove {} to give it up",
            disks.join(", "),
            path.display()
        ));
    }
    Ok(if making.force { Begun::Forced } else { Begun::Yes })
}

/// Durably marks the beginning of the creation.
///
/// # Errors
/// The file system's error.
pub fn begin(config: &Config, data: &DataDir, force: bool) -> Result<(), String> {
    let path = file(data.path());
    let making = Making { disks: durable(config), force };
    let write = || -> std::io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(&serde_json::to_vec(&making)?)?;
        file.sync_all()?;
        data.sync()
    };
    write().map_err(|e| format!("{}: {e}", path.display()))
}

/// Durably marks the end of the creation.
///
/// # Errors
/// The file system's error.
pub fn end(data: &DataDir) -> Result<(), String> {
    let path = file(data.path());
    match std::fs::remove_file(&path) {
        Ok(()) => data.sync().map_err(|e| format!("{}: {e}", data.path().display())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_known_until_its_end() {
        let temp = tempfile::tempdir().expect("a directory");
        let data = DataDir::create(temp.path()).expect("made");
        let config = |disks: &str| {
            let mut config = Config::default();
            config.data.dir = temp.path().into();
            config.set_text("data.disks", disks).expect("valid");
            config
        };
        let (mine, other) = (config("a,b"), config("a,c"));
        assert_eq!(begun(&mine), Ok(Begun::No));
        begin(&mine, &data, false).expect("written");
        assert_eq!(begun(&mine), Ok(Begun::Yes));
        assert!(begun(&other).expect_err("another pool").contains("name those again"));
        begin(&mine, &data, true).expect("written");
        assert_eq!(begun(&mine), Ok(Begun::Forced));
        end(&data).expect("removed");
        end(&data).expect("nothing to remove");
        assert_eq!(begun(&other), Ok(Begun::No));
        std::fs::write(temp.path().join("making"), b"{\"dis").expect("written");
        assert_eq!(begun(&mine), Ok(Begun::No), "cut off: nothing was made yet");
    }
}
