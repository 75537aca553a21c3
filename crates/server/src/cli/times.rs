//! Times on the command line.

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// Reads a time such as `2026-11-26T10:00`, `2026-11-26 10:00:30` or
/// `2026-11-26T10:00:00+01:00`, in milliseconds since the Unix epoch. Without an offset it is in
/// UTC; without a time of the day it is the beginning of the day.
///
/// # Errors
/// The accepted forms.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a time: write 2026-11-26T10:00, 2026-11-26T10:00:30Z or with +01:00 at the end");
    let mut whole = text.trim().trim_end_matches(" UTC").replacen(' ', "T", 1);
    if !whole.contains('T') {
        whole.push_str("T00:00");
    }
    let clock_begins = whole.find('T').unwrap_or(0);
    let offset_begins = whole[clock_begins..].find(['Z', 'z', '+', '-']).map_or(whole.len(), |at| clock_begins + at);
    let (clock, offset) = whole.split_at(offset_begins);
    let seconds = if clock.matches(':').count() == 1 { ":00" } else { "" };
    let offset = if offset.is_empty() { "Z" } else { offset };
    let at = OffsetDateTime::parse(&format!("{clock}{seconds}{offset}"), &Rfc3339).map_err(|_| wrong())?;
    let ms = at.to_offset(UtcOffset::UTC).unix_timestamp_nanos() / 1_000_000;
    u64::try_from(ms).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_several_forms() {
        let ten = 1_795_946_400_000;
        for text in [
            "2026-11-29T10:00",
            "2026-11-29 10:00",
            "2026-11-29 10:00:00 UTC",
            "2026-11-29T10:00:00Z",
            "2026-11-29T11:00+01:00",
            "2026-11-29T09:30:00-00:30",
        ] {
            assert_eq!(parse(text), Ok(ten), "{text}");
        }
        assert_eq!(parse("2026-11-29"), Ok(ten - 36_000_000));
        assert_eq!(parse("2026-11-29T10:00:00.250Z"), Ok(ten + 250));
        for text in ["", "yesterday", "2026-13-01", "2026-11-29T25:00", "1795946400000", "1960-01-01T00:00", "T", "é"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
