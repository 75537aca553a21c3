//! Mistakes in a configuration, with their position.

use std::fmt;

/// A mistake in the configuration: its position and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, environment variable or flag, when known.
    pub source: Option<String>,
    /// Line and column in the file, from 1, when known.
    pub position: Option<(usize, usize)>,
    /// The mistake and what to do.
    pub message: String,
}

impl ConfigError {
    /// A mistake without a position.
    pub fn new(message: impl Into<String>) -> Self {
        Self { source: None, position: None, message: message.into() }
    }

    /// Adds the position of the byte `offset` in `text`.
    #[must_use]
    pub fn at(mut self, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        self.position = Some((line, column));
        self
    }

    /// Adds the file, variable or flag.
    #[must_use]
    pub fn from(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.source, self.position) {
            (Some(source), Some((line, column))) => write!(f, "{source}:{line}:{column}: ")?,
            (Some(source), None) => write!(f, "{source}: ")?,
            (None, Some((line, column))) => write!(f, "line {line}, column {column}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// The name in `names` nearest to `typo`, if it is near enough.
pub fn nearest<'a>(typo: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near_enough = (typo.chars().count() / 2).clamp(1, 4);
    names
        .into_iter()
        .map(|name| (distance(&typo.to_lowercase(), name), name))
        .min()
        .filter(|(distance, _)| *distance <= near_enough)
        .map(|(_, name)| name)
}

/// Levenshtein's distance; adjacent transpositions count as one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    // A longer text is not a typo of a name; this bounds the work on hostile input.
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let width = b.len() + 1;
    let mut table = vec![0usize; (a.len() + 1) * width];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i * width + j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replace = table[(i - 1) * width + j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let shift = (table[(i - 1) * width + j] + 1).min(table[i * width + j - 1] + 1);
                let mut best = replace.min(shift);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[(i - 2) * width + j - 2] + 1);
                }
                best
            };
        }
    }
    table[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("listen", "listne"), 1);
        assert_eq!(distance("cache", "cach"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn nearest_names_what_was_meant_and_nothing_else() {
        let names = ["listen", "region", "etag"];
        assert_eq!(nearest("lisen", names), Some("listen"));
        assert_eq!(nearest("Region", names), Some("region"));
        assert_eq!(nearest("colour", names), None);
    }
}
