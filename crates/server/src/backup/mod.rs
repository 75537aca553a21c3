//! Snapshots outside of the pool: exported to a directory or to S3, and restored from there.
//!
//! An export is a folder (or a prefix) named like its snapshot, with a manifest of JSON lines and files that hold the bodies one after
//! another (`docs/backup-format.md`). The manifest comes last and at once: without it there is no export, only what was begun of one.

pub mod dir;
pub mod export;
pub mod manifest;
pub mod place;
pub mod restore;
pub mod s3;
pub mod sign;

#[cfg(test)]
mod tests;

/// Why an export or a restore did not come about, and what to do: for people.
pub type Result<T> = std::result::Result<T, String>;

/// The manifest of an export.
pub const MANIFEST: &str = "manifest.jsonl";
/// There while an export is not finished.
pub const UNFINISHED: &str = "unfinished";

/// The name of a file of bodies.
pub fn data_file(number: u64) -> String {
    format!("data/{number:08}")
}

/// Refuses a name of an export that is none: it becomes part of paths.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(fits) {
        return Err(format!("{name:?} cannot be the name of an export: it is called like its snapshot"));
    }
    Ok(())
}
