//! A part of every day.

use steadfast_log::DayWindow;

use super::setting::{Input, Setting};

/// A part of every day in UTC, written as `"01:00-05:00 UTC"` (the zone is optional). One that ends
/// before it begins spans midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeOfDay(pub DayWindow);

const EXPECTED: &str = "expected a part of the day in UTC such as \"01:00-05:00 UTC\"";

impl std::str::FromStr for TimeOfDay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{EXPECTED}, found {text:?}");
        let minutes = |clock: &str| {
            let (hours, minutes) = clock.trim().split_once(':')?;
            let digits = |part: &str| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
            let (hours, minutes): (u16, u16) = (digits(hours) && digits(minutes))
                .then_some(())
                .and_then(|()| Some((hours.parse().ok()?, minutes.parse().ok()?)))?;
            // The end of a day may be written as 24:00.
            (minutes < 60 && hours * 60 + minutes <= 1440).then_some(hours * 60 + minutes)
        };
        let clocks = text.trim();
        let clocks = clocks.strip_suffix("UTC").or_else(|| clocks.strip_suffix('Z')).unwrap_or(clocks);
        let (from, to) = clocks.split_once('-').ok_or_else(wrong)?;
        match (minutes(from), minutes(to)) {
            (Some(1440), Some(_)) => Err(wrong()),
            (Some(from_min), Some(to_min)) if from_min == to_min => {
                Err(format!("{text:?} is no time at all: {EXPECTED}"))
            }
            (Some(from_min), Some(to_min)) => Ok(Self(DayWindow { from_min, to_min })),
            _ => Err(wrong()),
        }
    }
}

impl std::fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DayWindow { from_min, to_min } = self.0;
        write!(f, "{:02}:{:02}-{:02}:{:02} UTC", from_min / 60, from_min % 60, to_min / 60, to_min % 60)
    }
}

impl Setting for TimeOfDay {
    fn read(input: Input<'_>) -> Result<Self, String> {
        match input {
            Input::Text(text) => text.parse(),
            Input::Value(value) => value.as_str().ok_or_else(|| EXPECTED.to_owned())?.parse(),
        }
    }

    fn to_toml(&self) -> String {
        format!("\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_refuses_the_rest() {
        for (text, shown) in [
            ("01:00-05:00", "01:00-05:00 UTC"),
            ("22:30-2:00 UTC", "22:30-02:00 UTC"),
            (" 0:00 - 24:00Z", "00:00-24:00 UTC"),
        ] {
            let read: TimeOfDay = text.parse().expect("valid");
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse(), Ok(read));
        }
        for text in [
            "",
            "1-5",
            "01:00",
            "01:60-02:00",
            "25:00-26:00",
            "24:00-01:00",
            "03:00-03:00",
            "-1:00-2:00",
            "01:00-05:00 CET",
            "1:+0-2:00",
        ] {
            assert!(text.parse::<TimeOfDay>().is_err(), "{text}");
        }
    }
}
