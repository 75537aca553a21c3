//! Files with secrets, which only their owner can read.

use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The text of a file; `None`: there is none.
///
/// # Errors
/// The file cannot be read, or other users can read it too, as a message.
pub fn read(path: &Path) -> Result<Option<String>, String> {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{shown}: cannot be read: {e}")),
    };
    let mode = std::fs::metadata(path).map_err(|e| format!("{shown}: {e}"))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!("other users can read {shown} (mode {:o}): chmod 600 {shown}", mode & 0o777));
    }
    Ok(Some(text))
}

/// Writes a line atomically, readable by the owner only.
///
/// # Errors
/// The file cannot be written, as a message.
pub fn store(path: &Path, line: &str) -> Result<(), String> {
    store_bytes(path, format!("{line}\n").as_bytes()).map_err(|e| format!("{}: cannot be written: {e}", path.display()))
}

/// Writes a file atomically, readable by the owner only. Durable when it returns.
///
/// # Errors
/// The file system's error.
pub fn store_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::File::open(parent)?.sync_all(),
        _ => std::fs::File::open(".")?.sync_all(),
    }
}
