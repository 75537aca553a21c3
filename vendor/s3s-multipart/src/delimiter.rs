// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! Boundary delimiter patterns and the data-phase search for them.

use memchr::memmem;

/// Chunks at or below this size keep the old fixed-tail behavior.
const ADAPTIVE_TAIL_THRESHOLD: usize = 2048;

#[derive(Debug, Clone, Copy)]
pub enum DataSearch {
    Found { index: usize },
    Emit { end: usize },
    KeepAll,
}

pub fn search_data(haystack: &[u8], delimiter_finder: &memmem::Finder<'static>) -> DataSearch {
    if let Some(index) = delimiter_finder.find(haystack) {
        return DataSearch::Found { index };
    }

    let delimiter = delimiter_finder.needle();
    let keep = delimiter.len().saturating_sub(1);
    let retain = if haystack.len() > ADAPTIVE_TAIL_THRESHOLD {
        // Keep only the longest suffix that could become a delimiter prefix.
        // The check is limited to the last delimiter-1 bytes and uses a cheap
        // first-byte prefilter before doing any slice comparison.
        delimiter_prefix_suffix_len(haystack, delimiter)
    } else {
        keep
    };
    if haystack.len() > retain {
        DataSearch::Emit {
            end: haystack.len() - retain,
        }
    } else {
        DataSearch::KeepAll
    }
}

fn delimiter_prefix_suffix_len(haystack: &[u8], delimiter: &[u8]) -> usize {
    // Unreachable: `make_delimiter` always produces `\r\n--` plus at least one
    // boundary byte, so the delimiter is never empty. The guard keeps an empty
    // slice out of the window arithmetic below.
    let Some(&first) = delimiter.first() else {
        return 0;
    };
    let max = delimiter.len().saturating_sub(1);
    let start = haystack.len().saturating_sub(max);
    let window = &haystack[start..];
    if memchr::memchr(first, window).is_none() {
        return 0;
    }
    for rel in memchr::memchr_iter(first, window) {
        let idx = start.saturating_add(rel);
        let len = haystack.len() - idx;
        if len <= max && haystack[idx..] == delimiter[..len] {
            return len;
        }
    }
    0
}

pub fn make_first_boundary(boundary: &[u8]) -> Box<[u8]> {
    let mut pattern = Vec::with_capacity(boundary.len().saturating_add(2));
    pattern.extend_from_slice(b"--");
    pattern.extend_from_slice(boundary);
    pattern.into_boxed_slice()
}

pub fn make_delimiter(boundary: &[u8]) -> Box<[u8]> {
    let mut pattern = Vec::with_capacity(boundary.len().saturating_add(4));
    pattern.extend_from_slice(b"\r\n--");
    pattern.extend_from_slice(boundary);
    pattern.into_boxed_slice()
}

pub fn make_delimiter_finder(boundary: &[u8]) -> Box<memmem::Finder<'static>> {
    // Build the searcher once so data-path chunks do not reconstruct it on
    // every call. Boxing keeps the parser state compact for s3s future sizes.
    Box::new(memmem::FinderBuilder::new().build_forward_owned(make_delimiter(boundary)))
}
