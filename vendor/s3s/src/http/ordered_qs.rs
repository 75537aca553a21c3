// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

#![deny(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]
//! Ordered query strings

use crate::utils::stable_sort_by_first;

/// Immutable query string container
#[derive(Debug, Default, Clone)]
pub struct OrderedQs {
    /// Ascending query strings
    qs: Vec<(String, String)>,
}

/// [`OrderedQs`]
#[derive(Debug, thiserror::Error)]
#[error("ParseOrderedQsError: {inner}")]
pub struct ParseOrderedQsError {
    /// url decode error
    inner: serde_urlencoded::de::Error,
}

/// Result of a single-pass [`OrderedQs::lookup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QsLookup<'a> {
    /// Key absent.
    Absent,
    /// Exactly one value.
    Single(&'a str),
    /// More than one value.
    Duplicate,
}

impl OrderedQs {
    /// Constructs [`OrderedQs`] from vec
    ///
    /// + strings must be url-decoded
    #[cfg(test)]
    #[must_use]
    pub fn from_vec_unchecked(mut v: Vec<(String, String)>) -> Self {
        stable_sort_by_first(&mut v);
        Self { qs: v }
    }

    /// Parses [`OrderedQs`] from query
    ///
    /// # Errors
    /// Returns [`ParseOrderedQsError`] if query cannot be decoded
    pub fn parse(query: &str) -> Result<Self, ParseOrderedQsError> {
        let result = serde_urlencoded::from_str::<Vec<(String, String)>>(query);
        let mut v = result.map_err(|e| ParseOrderedQsError { inner: e })?;
        stable_sort_by_first(&mut v);
        Ok(Self { qs: v })
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.qs.binary_search_by_key(&name, |x| x.0.as_str()).is_ok()
    }

    /// Gets query values by name. Time `O(logn)`
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &str> + use<'_> {
        let qs = self.qs.as_slice();

        let lower_bound = qs.partition_point(|x| x.0.as_str() < name);
        let upper_bound = qs.partition_point(|x| x.0.as_str() <= name);

        // `partition_point` returns `0..=len`, so the slice bounds are always
        // valid; the empty fallback is unreachable.
        qs.get(lower_bound..upper_bound).unwrap_or(&[]).iter().map(|x| x.1.as_str())
    }

    pub fn get_unique(&self, name: &str) -> Option<&str> {
        let qs = self.qs.as_slice();
        let lower_bound = qs.partition_point(|x| x.0.as_str() < name);

        // `partition_point` returns `0..=len`, so the slice bound is always
        // valid; the empty fallback is unreachable.
        let mut iter = qs.get(lower_bound..).unwrap_or(&[]).iter();
        let pair = iter.next()?;

        if let Some(following) = iter.next()
            && following.0 == name
        {
            return None;
        }

        (pair.0.as_str() == name).then_some(pair.1.as_str())
    }

    /// Single-pass lookup: finds `name` and reports duplicates in one
    /// traversal, equivalent to `get_all(name).count()` plus `get_unique(name)`
    /// but without repeated binary searches.
    ///
    /// Query vectors are tiny (typically a handful of entries), where a linear
    /// scan with predictable branches beats multiple `partition_point`
    /// binary searches.
    pub(crate) fn lookup(&self, name: &str) -> QsLookup<'_> {
        let mut iter = self.qs.iter().filter(|(k, _)| k.as_str() == name);
        match iter.next() {
            None => QsLookup::Absent,
            Some((_, v)) => {
                if iter.next().is_some() {
                    QsLookup::Duplicate
                } else {
                    QsLookup::Single(v)
                }
            }
        }
    }
}

impl AsRef<[(String, String)]> for OrderedQs {
    fn as_ref(&self) -> &[(String, String)] {
        self.qs.as_ref()
    }
}
