// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! x-amz-date

use std::fmt::Write as _;

use arrayvec::ArrayString;

/// x-amz-date
#[derive(Debug, Clone)]
pub struct AmzDate {
    /// year
    year: u16,
    /// month
    month: u8,
    /// day
    day: u8,
    /// hour
    hour: u8,
    /// minute
    minute: u8,
    /// second
    second: u8,
}

/// [`AmzDate`] parse error
#[derive(Debug, thiserror::Error)]
#[error("ParseAmzDateError")]
pub struct ParseAmzDateError(());

impl AmzDate {
    /// Parses `AmzDate` from header
    ///
    /// # Errors
    /// Returns an error if the header is invalid
    pub fn parse(header: &str) -> Result<Self, ParseAmzDateError> {
        self::parser::parse(header).map_err(|_| ParseAmzDateError(()))
    }

    /// `{YYYY}{MM}{DD}T{HH}{MM}{SS}Z`
    ///
    /// # Panics
    ///
    /// `ArrayString<16>` has fixed capacity and the formatted value is exactly
    /// 16 bytes; `fmt::Write` cannot fail here. The lint is allowed so that a
    /// capacity regression panics instead of silently truncating.
    #[must_use]
    #[allow(clippy::unwrap_used)]
    pub fn fmt_iso8601(&self) -> ArrayString<16> {
        let mut buf = <ArrayString<16>>::new();
        let (y, m, d, hh, mm, ss) = (self.year, self.month, self.day, self.hour, self.minute, self.second);
        write!(&mut buf, "{y:04}{m:02}{d:02}T{hh:02}{mm:02}{ss:02}Z").unwrap();
        buf
    }

    /// `{YYYY}{MM}{DD}`
    ///
    /// # Panics
    ///
    /// `ArrayString<8>` has fixed capacity and the formatted value is exactly
    /// 8 bytes; `fmt::Write` cannot fail here. The lint is allowed so that a
    /// capacity regression panics instead of silently truncating.
    #[must_use]
    #[allow(clippy::unwrap_used)]
    pub fn fmt_date(&self) -> ArrayString<8> {
        let mut buf = <ArrayString<8>>::new();
        write!(&mut buf, "{:04}{:02}{:02}", self.year, self.month, self.day).unwrap();
        buf
    }

    /// Converts to a UTC timestamp; returns `None` for out-of-range calendar values.
    #[must_use]
    pub fn to_time(&self) -> Option<jiff::Timestamp> {
        let dt = jiff::civil::DateTime::new(
            i16::try_from(self.year).ok()?,
            i8::try_from(self.month).ok()?,
            i8::try_from(self.day).ok()?,
            i8::try_from(self.hour).ok()?,
            i8::try_from(self.minute).ok()?,
            i8::try_from(self.second).ok()?,
            0,
        )
        .ok()?;
        Some(dt.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    }
}

mod parser {
    use super::*;

    use crate::parser::{Error, digit2, digit4};

    macro_rules! ensure {
        ($cond:expr) => {
            if !$cond {
                return Err(Error);
            }
        };
    }

    pub fn parse(input: &str) -> Result<AmzDate, Error> {
        let x: &[u8; 16] = input.as_bytes().try_into().map_err(|_| Error)?;
        let (year, month, day, hour, minute, second) = parse_date_bytes(x)?;
        Ok(AmzDate {
            year,
            month,
            day,
            hour,
            minute,
            second,
        })
    }

    /// Parses the sixteen fixed bytes of an ISO 8601 date string.
    ///
    /// The length is guaranteed by the `&[u8; 16]` reference type; all byte
    /// accesses are array indexing, checked at compile time.
    fn parse_date_bytes(x: &[u8; 16]) -> Result<(u16, u8, u8, u8, u8, u8), Error> {
        let year = digit4([x[0], x[1], x[2], x[3]])?;
        let month = digit2([x[4], x[5]])?;
        let day = digit2([x[6], x[7]])?;
        ensure!(x[8] == b'T');

        let hour = digit2([x[9], x[10]])?;
        let minute = digit2([x[11], x[12]])?;
        let second = digit2([x[13], x[14]])?;
        ensure!(x[15] == b'Z');

        Ok((year, month, day, hour, minute, second))
    }
}
