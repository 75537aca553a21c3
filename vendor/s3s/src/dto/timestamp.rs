// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: 2023-2026 The s3s Authors

//! timestamp

use std::io;
use std::num::ParseIntError;
use std::time::SystemTime;

use time::format_description::FormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(time::OffsetDateTime);

impl serde::Serialize for Timestamp {
    fn serialize<S>(&self, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        use serde::ser::Error;
        let mut buf = Vec::new();
        self.format(TimestampFormat::DateTime, &mut buf).map_err(S::Error::custom)?;
        let s = std::str::from_utf8(&buf).map_err(S::Error::custom)?;
        serializer.serialize_str(s)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D>(deserializer: D) -> Result<Self, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        use serde::de::Error;
        let s = String::deserialize(deserializer)?;
        Self::parse(TimestampFormat::DateTime, &s).map_err(D::Error::custom)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampFormat {
    DateTime,
    HttpDate,
    EpochSeconds,
}

impl From<time::OffsetDateTime> for Timestamp {
    fn from(value: time::OffsetDateTime) -> Self {
        Self(value)
    }
}

impl From<Timestamp> for time::OffsetDateTime {
    fn from(value: Timestamp) -> Self {
        value.0
    }
}

impl From<SystemTime> for Timestamp {
    fn from(value: SystemTime) -> Self {
        Self(time::OffsetDateTime::from(value))
    }
}

impl Default for Timestamp {
    fn default() -> Self {
        Self(time::OffsetDateTime::UNIX_EPOCH)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ParseTimestampError {
    #[error("time: {0}")]
    Time(#[from] time::error::Parse),
    #[error("int: {0}")]
    Int(#[from] ParseIntError),
    #[error("time overflow")]
    Overflow,
    #[error("component range: {0}")]
    ComponentRange(#[from] time::error::ComponentRange),
}

#[derive(Debug, thiserror::Error)]
pub enum FormatTimestampError {
    #[error("time: {0}")]
    Time(#[from] time::error::Format),
    #[error("io: {0}")]
    Io(#[from] io::Error),
}

/// See <https://github.com/time-rs/time/issues/498>
const RFC1123: &[FormatItem<'_>] =
    format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");

/// See <https://github.com/minio/minio-java/issues/1419>
const RFC3339: &[FormatItem<'_>] = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// steadfast patch 13: the other forms of dates (RFC 9110, section 5.6.7), and what clients make of
/// them: a day of one digit, names in any case, `UTC` or `+0000` for `GMT`.
fn parse_other_http_date(s: &str) -> Option<time::OffsetDateTime> {
    let mut tokens = s.split([' ', ',', '-', '\t']).filter(|token| !token.is_empty()).peekable();
    // The day of the week is not compared.
    let _ = tokens.next_if(|token| token.chars().all(char::is_alphabetic) && parse_month(token).is_none());
    let asctime = tokens.peek()?.starts_with(char::is_alphabetic);
    let (first, second) = (tokens.next()?, tokens.next()?);
    let (day, month) = if asctime { (second, first) } else { (first, second) };
    let (time, year) = match (asctime, tokens.next()?, tokens.next()?) {
        (true, time, year) => (time, year),
        (false, year, time) => (time, year),
    };
    let zone = tokens.next();
    // The zone `-0000` has lost its sign above.
    let known = |zone: &str| ["GMT", "UTC", "UT", "Z", "+0000", "0000"].iter().any(|known| zone.eq_ignore_ascii_case(known));
    if tokens.next().is_some() || !zone.map_or(asctime, known) {
        return None;
    }
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let fits = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        if fits { text.parse::<u16>().ok() } else { None }
    };
    let mut clock = time.split(':').map(|part| number(part, 2..=2).and_then(|n| u8::try_from(n).ok()));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if clock.next().is_some() || second > 60 {
        return None;
    }
    let year = match year.len() {
        2 => full_year(number(year, 2..=2)?),
        _ => number(year, 4..=4)?,
    };
    let day = u8::try_from(number(day, 1..=2)?).ok()?;
    let date = time::Date::from_calendar_date(i32::from(year), parse_month(month)?, day).ok()?;
    // A leap second counts as the second before.
    Some(time::PrimitiveDateTime::new(date, time::Time::from_hms(hour, minute, second.min(59)).ok()?).assume_utc())
}

/// steadfast patch 13: a year of two digits is at most 50 years ahead.
fn full_year(short: u16) -> u16 {
    let now = u16::try_from(time::OffsetDateTime::now_utc().year()).unwrap_or(2000);
    let year = now - now % 100 + short;
    if year > now + 50 { year - 100 } else { year }
}

/// steadfast patch 13
fn parse_month(text: &str) -> Option<time::Month> {
    let months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let text = text.to_ascii_lowercase();
    let found = months.iter().position(|month| *month == text)?;
    time::Month::try_from(u8::try_from(found + 1).ok()?).ok()
}

impl Timestamp {
    /// Parses `Timestamp` from string
    ///
    /// # Errors
    /// Returns an error if the string is invalid
    pub fn parse(format: TimestampFormat, s: &str) -> Result<Self, ParseTimestampError> {
        let ans = match format {
            TimestampFormat::DateTime => time::OffsetDateTime::parse(s, &Rfc3339)?,
            TimestampFormat::HttpDate => match time::PrimitiveDateTime::parse(s, RFC1123) {
                Ok(date) => date.assume_utc(),
                // steadfast patch 13
                Err(err) => parse_other_http_date(s).ok_or(err)?,
            },
            TimestampFormat::EpochSeconds => match s.split_once('.') {
                Some((secs, frac)) => {
                    let secs: i64 = secs.parse()?;
                    let val: u32 = frac.parse::<u32>()?;
                    let mul: u32 = match frac.len() {
                        1 => 100_000_000,
                        2 => 10_000_000,
                        3 => 1_000_000,
                        4 => 100_000,
                        5 => 10000,
                        6 => 1000,
                        7 => 100,
                        8 => 10,
                        9 => 1,
                        _ => return Err(ParseTimestampError::Overflow),
                    };
                    let nanos_part = i128::from(val * mul);
                    // In Smithy epoch-seconds format, the fractional part is always positive.
                    // For example, "-1.5" means -1 seconds + 0.5 fractional = -0.5 seconds total.
                    let nanos = i128::from(secs) * 1_000_000_000 + nanos_part;
                    time::OffsetDateTime::from_unix_timestamp_nanos(nanos)?
                }
                None => {
                    let secs: i64 = s.parse()?;
                    time::OffsetDateTime::from_unix_timestamp(secs)?
                }
            },
        };
        Ok(Self(ans))
    }

    /// Formats `Timestamp` into a writer
    ///
    /// # Errors
    /// Returns an error if the formatting fails
    pub fn format(&self, format: TimestampFormat, w: &mut impl io::Write) -> Result<(), FormatTimestampError> {
        match format {
            TimestampFormat::DateTime => {
                self.0.format_into(w, RFC3339)?;
            }
            TimestampFormat::HttpDate => {
                self.0.format_into(w, RFC1123)?;
            }
            TimestampFormat::EpochSeconds => {
                let val = self.0.unix_timestamp_nanos();

                #[allow(clippy::cast_precision_loss)] // FIXME: accurate conversion?
                {
                    let secs = (val / 1_000_000_000) as f64;
                    let nanos = (val % 1_000_000_000) as f64 / 1_000_000_000.0;
                    let ts = secs + nanos;
                    write!(w, "{ts}")?;
                }
            }
        }
        Ok(())
    }
}
