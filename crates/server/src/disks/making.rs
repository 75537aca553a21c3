//! That a pool of several disks is being made: a file in the data directory says so for as long as it takes, so that what a kill leaves
//! half done is known as that, and is finished. Nothing is acknowledged before the file is gone.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{Config, DiskSet};
use crate::datadir::DataDir;

/// What is being made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Making {
    /// On which disks.
    disks: Vec<PathBuf>,
    /// Whether over whatever was there: then what is there may still be the old.
    force: bool,
}

/// How far an earlier making of this pool came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// None was begun, or it came to its end.
    No,
    /// It was interrupted: what is on the disks is of it.
    Yes,
    /// It was interrupted while it overwrote what was there.
    Forced,
}

fn file(data: &Path) -> PathBuf {
    data.join("making")
}

fn durable(config: &Config) -> Vec<PathBuf> {
    config.disk_sets().into_iter().flat_map(|set: DiskSet| set.durable).collect()
}

/// Whether making this pool was begun and not finished.
///
/// # Errors
/// When that of another pool was, or the file cannot be read.
pub fn begun(config: &Config) -> Result<Begun, String> {
    let path = file(&config.data.dir);
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Begun::No),
        Err(e) => return Err(fail(&e)),
    };
    // One that was cut off while it was written: nothing had been made.
    let Ok(making) = serde_json::from_slice::<Making>(&text) else { return Ok(Begun::No) };
    if making.disks != durable(config) {
        let disks: Vec<String> = making.disks.iter().map(|disk| disk.display().to_string()).collect();
        return Err(format!(
            "making a pool on {} was interrupted, and the configuration names other disks now: name those again, and the next start or `steadfast \
             format` finishes it; or give it up by removing {}",
            disks.join(", "),
            path.display()
        ));
    }
    Ok(if making.force { Begun::Forced } else { Begun::Yes })
}

/// Says durably that making begins.
///
/// # Errors
/// What the file system says.
pub fn begin(config: &Config, data: &DataDir, force: bool) -> Result<(), String> {
    let path = file(data.path());
    let making = Making { disks: durable(config), force };
    let write = || -> std::io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        file.write_all(&serde_json::to_vec(&making)?)?;
        file.sync_all()?;
        data.sync()
    };
    write().map_err(|e| format!("{}: {e}", path.display()))
}

/// Says durably that it has come to its end.
///
/// # Errors
/// What the file system says.
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
