//! Disks added while the server ran, recorded in the data directory: a restart finds them before
//! the operator adds them to the configuration. They are hints: the pool itself records its disks.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file in the data directory.
const FILE: &str = "disks";

const HEADER: &str =
    "# Disks that were added while the server ran. Put them into data.disks; the server then removes them here.\n";

/// The recorded disks; none if the file cannot be read. The start then names the missing disk.
pub fn read(dir: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(dir.join(FILE)).unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut found: Vec<PathBuf> = Vec::new();
    for line in lines.map(PathBuf::from) {
        if !found.contains(&line) {
            found.push(line);
        }
    }
    found
}

/// Records these disks durably.
///
/// # Errors
/// The file system's error, or a path that does not fit a line, as a message.
pub fn write(dir: &Path, disks: &[PathBuf]) -> Result<(), String> {
    let path = dir.join(FILE);
    let fail = |e: io::Error| format!("{}: {e}", path.display());
    let mut text = HEADER.to_owned();
    for disk in disks {
        let line = disk.to_str().filter(|line| !line.contains('\n') && !line.starts_with('#') && line.trim() == *line);
        text.push_str(line.ok_or_else(|| format!("{}: this path cannot be written as a line", disk.display()))?);
        text.push('\n');
    }
    let unfinished = dir.join(format!("{FILE}.new"));
    let mut file = File::create(&unfinished).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
    fs::rename(&unfinished, &path).map_err(fail)?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_is_nothing() {
        let temp = tempfile::tempdir().expect("a directory");
        assert!(read(temp.path()).is_empty());
        let disks = [PathBuf::from("/dev/sdx"), PathBuf::from("/srv/a disk")];
        write(temp.path(), &disks).expect("written");
        assert_eq!(read(temp.path()), disks);
        assert!(write(temp.path(), &["/a\nb".into()]).is_err());
        write(temp.path(), &[]).expect("written");
        assert!(read(temp.path()).is_empty());
    }
}
