//! Checks the paths of disks, so that a start with a wrong one makes no file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::config::Config;

/// Checks that the disks of a pool that exists can be opened, or that a new pool can be made. A
/// disk of several, and a fast disk, may be missing from a pool that exists.
///
/// # Errors
/// The first path that cannot be used, with the reason.
pub fn check(config: &Config) -> Result<(), String> {
    let sets = config.disk_sets();
    let new = sets.iter().flat_map(|set| &set.durable).all(|path| !path.exists());
    for set in &sets {
        // `steadfast format` makes stripes.
        let made_here = new && set.durable.len() == 1;
        for path in &set.durable {
            if made_here {
                can_make(path, &config.data.dir)?;
            } else if !config.is_many() {
                can_open(path)?;
            }
        }
        // A server without its fast device is slower, and no more.
        let files = set.fast.iter().filter(|path| made_here && !path.exists() && !path.starts_with("/dev"));
        for path in files {
            can_make(path, &config.data.dir)?;
        }
    }
    config.block.iter().try_for_each(|device| can_open(&device.durable))
}

/// An error with the path that it concerns.
pub fn named(path: &Path, error: &io::Error) -> String {
    let (text, shown) = (error.to_string(), path.display().to_string());
    if text.contains(&shown) { text } else { format!("{shown}: {text}") }
}

fn can_open(path: &Path) -> Result<(), String> {
    let meta = std::fs::metadata(path).map_err(|e| named(path, &e))?;
    if !meta.is_file() && !meta.file_type().is_block_device() {
        return Err(format!("{}: neither a regular file nor a block device", path.display()));
    }
    File::open(path).map(drop).map_err(|e| named(path, &e))
}

fn can_make(path: &Path, data: &Path) -> Result<(), String> {
    let shown = path.display();
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        return Err(format!("{shown}: no such device"));
    }
    let mut folder = path.parent().unwrap_or(Path::new(""));
    if folder == data {
        // The start makes this folder.
        folder = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new(""));
    }
    let there = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !there.is_dir() {
        return Err(format!("{shown}: there is no folder {}: make it, or correct the path", there.display()));
    }
    access(there, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|e| format!("{shown}: it cannot be made in {}: {}", there.display(), io::Error::from(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(dir: &Path, settings: &[(&str, &str)]) -> Result<(), String> {
        let mut config = Config::default();
        config.data.dir = dir.into();
        for (name, value) in settings {
            config.set_text(name, value).expect("valid");
        }
        check(&config)
    }

    #[test]
    fn a_new_pool_needs_folders_and_a_pool_that_exists_needs_its_disk() {
        let temp = tempfile::tempdir().expect("a folder");
        let dir = temp.path().join("data");
        for settings in [
            &[][..],
            &[("data.disks", "a,b")],
            &[("data.disks", "a + f,b")],
            &[("superdisk.fast", "f")],
            &[("superdisk.fast", "/dev/no-such")],
        ] {
            assert_eq!(checked(&dir, settings), Ok(()), "{settings:?}");
        }
        for (name, value, wrong) in [
            ("data.pool", "no/pool", "no/pool: there is no folder"),
            ("data.disks", "a,no/b", "no/b: there is no folder"),
            ("data.disks", "a + no/f,b", "no/f: there is no folder"),
            ("superdisk.fast", "no/f", "no/f: there is no folder"),
            ("data.pool", "/dev/no-such", "/dev/no-such: no such device"),
            ("data.stripe", "a,b", "a: No such file"),
            ("data.pool", "/", "/: neither"),
        ] {
            let error = checked(&dir, &[(name, value)]).expect_err(value);
            assert!(error.contains(wrong), "{error}");
        }
        assert!(!dir.exists(), "a check makes nothing");
        std::fs::create_dir(&dir).expect("made");
        std::fs::write(dir.join("a"), "").expect("written");
        let settings = [("data.disks", "a,no/b")];
        assert_eq!(checked(&dir, &settings), Ok(()), "a disk may be missing");
        assert_eq!(checked(&dir, &[("data.pool", "a")]), Ok(()));
    }
}
