//! Durations in Go's notation, as in Centrifugo's configuration.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

/// A duration in Go's notation: `300s`, `1h30m`, `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    pub(super) const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Whether a text is a duration.
    pub(super) fn is(text: &str) -> bool {
        Self::parse(text).is_some()
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self::default());
        }
        let mut total = 0f64;
        let mut rest = text;
        while !rest.is_empty() {
            let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let unit_end = rest[number..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |n| number + n);
            let factor = match &rest[number..unit_end] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
            total += rest[..number].parse::<f64>().ok()? * factor;
            rest = &rest[unit_end..];
        }
        (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok().map(Self))?
    }
}

impl Serialize for GoDuration {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}ms", self.0.as_millis()))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"300s\" or \"1h30m\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                GoDuration::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        d.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_go_writes_them() {
        for (text, ms) in [("300s", 300_000), ("1h30m", 5_400_000), ("250ms", 250), ("1.5s", 1500), ("0", 0), ("0s", 0)]
        {
            assert_eq!(GoDuration::parse(text), Some(GoDuration(Duration::from_millis(ms))), "{text}");
        }
        for text in ["", "5", "s", "1x", "-1s", "1h30"] {
            assert_eq!(GoDuration::parse(text), None, "{text}");
        }
    }
}
