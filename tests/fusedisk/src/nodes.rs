//! Inode numbers and the paths that they stand for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The number of the root directory.
const ROOT: u64 = 1;

/// Inode numbers given out so far. Never reused, so that a number means one file for good.
#[derive(Debug)]
pub struct Nodes {
    paths: HashMap<u64, PathBuf>,
    numbers: HashMap<PathBuf, u64>,
    next: u64,
}

impl Default for Nodes {
    fn default() -> Self {
        let root = PathBuf::new();
        Self { paths: HashMap::from([(ROOT, root.clone())]), numbers: HashMap::from([(root, ROOT)]), next: ROOT + 1 }
    }
}

impl Nodes {
    /// The path of a number, below the mount; `None` when its file is gone.
    pub fn path(&self, number: u64) -> Option<PathBuf> {
        self.paths.get(&number).cloned()
    }

    /// The path of a name in a directory.
    pub fn child(&self, parent: u64, name: &OsStr) -> Option<PathBuf> {
        self.paths.get(&parent).map(|path| path.join(name))
    }

    /// The number of a path; a new one the first time.
    pub fn number(&mut self, path: &Path) -> u64 {
        if let Some(&number) = self.numbers.get(path) {
            return number;
        }
        let number = self.next;
        self.next += 1;
        self.paths.insert(number, path.to_path_buf());
        self.numbers.insert(path.to_path_buf(), number);
        number
    }

    /// Forgets a removed path. Handles that are open on it keep working.
    pub fn remove(&mut self, path: &Path) {
        if let Some(number) = self.numbers.remove(path) {
            self.paths.remove(&number);
        }
    }

    /// Follows a rename, with everything below it.
    pub fn rename(&mut self, from: &Path, to: &Path) {
        self.remove(to);
        let moved: Vec<(PathBuf, u64)> = self
            .numbers
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, &number)| (path.clone(), number))
            .collect();
        for (old, number) in moved {
            let Ok(rest) = old.strip_prefix(from) else { continue };
            let new = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            self.numbers.remove(&old);
            self.numbers.insert(new.clone(), number);
            self.paths.insert(number, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_takes_what_is_below_along() {
        let mut nodes = Nodes::default();
        let directory = nodes.number(Path::new("a"));
        let file = nodes.number(Path::new("a/b"));
        let other = nodes.number(Path::new("ab"));
        nodes.rename(Path::new("a"), Path::new("c"));
        assert_eq!(nodes.path(directory), Some("c".into()));
        assert_eq!(nodes.path(file), Some("c/b".into()));
        assert_eq!(nodes.path(other), Some("ab".into()));
        assert_eq!(nodes.number(Path::new("c/b")), file);
        assert_ne!(nodes.number(Path::new("a/b")), file);
    }
}
