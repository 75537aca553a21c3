//! Backups of snapshots: exports to a directory or to S3, and restores.
//!
//! An export is a folder (or a prefix) named like its snapshot. It has a manifest of JSON lines,
//! and files that hold the bodies one after another (`docs/backup-format.md`). The manifest appears
//! last and atomically: without it the export is incomplete.

mod bodies;
pub mod dir;
pub mod export;
pub mod manifest;
pub mod place;
mod read_ahead;
pub mod restore;
pub mod s3;

#[cfg(test)]
mod tests;

/// The error of an export or restore is a message with what to do.
pub type Result<T> = std::result::Result<T, String>;

/// The manifest of an export.
pub const MANIFEST: &str = "manifest.jsonl";
/// Exists while an export is incomplete.
pub const UNFINISHED: &str = "unfinished";

/// The name of a file of bodies.
pub fn data_file(number: u64) -> String {
    format!("data/{number:08}")
}

/// Checks the name of an export, which becomes part of paths.
///
/// # Errors
/// When the name is not allowed.
pub fn check_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(fits) {
        return Err(format!("{name:?} cannot be the name of an export: use the name of its snapshot"));
    }
    Ok(())
}
