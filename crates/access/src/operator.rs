//! The operators of conditions, on single values.

use std::net::IpAddr;

use time::{Date, Month, Time, UtcOffset};

use crate::fact::Facts;
use crate::wildcard::Wildcard;

/// How a number or a time compares with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn holds<T: PartialOrd>(self, value: &T, limit: &T) -> bool {
        match self {
            Self::Equal => value == limit,
            Self::Less => value < limit,
            Self::LessOrEqual => value <= limit,
            Self::Greater => value > limit,
            Self::GreaterOrEqual => value >= limit,
        }
    }
}

/// What a condition tests of a value. The negated operators test that it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    StringEquals,
    StringEqualsIgnoreCase,
    StringLike,
    Numeric(Comparison),
    Date(Comparison),
    Bool,
    IpAddress,
    Arn,
    Null,
}

impl Operator {
    /// The operator of a name such as `StringNotLike`, and whether it is negated.
    pub(crate) fn parse(name: &str) -> Option<(Self, bool)> {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
        Some(match name {
            "StringEquals" => (Self::StringEquals, false),
            "StringNotEquals" => (Self::StringEquals, true),
            "StringEqualsIgnoreCase" => (Self::StringEqualsIgnoreCase, false),
            "StringNotEqualsIgnoreCase" => (Self::StringEqualsIgnoreCase, true),
            "StringLike" => (Self::StringLike, false),
            "StringNotLike" => (Self::StringLike, true),
            "NumericEquals" => (Self::Numeric(Equal), false),
            "NumericNotEquals" => (Self::Numeric(Equal), true),
            "NumericLessThan" => (Self::Numeric(Less), false),
            "NumericLessThanEquals" => (Self::Numeric(LessOrEqual), false),
            "NumericGreaterThan" => (Self::Numeric(Greater), false),
            "NumericGreaterThanEquals" => (Self::Numeric(GreaterOrEqual), false),
            "DateEquals" => (Self::Date(Equal), false),
            "DateNotEquals" => (Self::Date(Equal), true),
            "DateLessThan" => (Self::Date(Less), false),
            "DateLessThanEquals" => (Self::Date(LessOrEqual), false),
            "DateGreaterThan" => (Self::Date(Greater), false),
            "DateGreaterThanEquals" => (Self::Date(GreaterOrEqual), false),
            "Bool" => (Self::Bool, false),
            "IpAddress" => (Self::IpAddress, false),
            "NotIpAddress" => (Self::IpAddress, true),
            "ArnEquals" | "ArnLike" => (Self::Arn, false),
            "ArnNotEquals" | "ArnNotLike" => (Self::Arn, true),
            "Null" => (Self::Null, false),
            _ => return None,
        })
    }

    /// What a value of a condition with this operator means.
    ///
    /// # Errors
    /// Why `text` is no such value, in words. `variables`: the version of the policy has them.
    pub(crate) fn operand(self, text: &str, variables: bool) -> Result<Operand, String> {
        let wrong = |what: &str| format!("{text:?} is no {what}");
        let pattern = |wild| Wildcard::compile(text, wild, variables);
        Ok(match self {
            Self::StringEquals | Self::StringEqualsIgnoreCase => Operand::Text(pattern(false)?),
            Self::StringLike => Operand::Text(pattern(true)?),
            Self::Arn => {
                Operand::Arn(Some(pattern(true)?.split_parts()).filter(|p| p.len() == 6).ok_or_else(|| wrong("ARN"))?)
            }
            Self::Numeric(_) => Operand::Number(number(text).ok_or_else(|| wrong("number"))?),
            Self::Date(_) => Operand::Time(seconds(text).ok_or_else(|| wrong("date and time"))?),
            Self::Bool | Self::Null => Operand::Bool(truth(text).ok_or_else(|| wrong("truth value"))?),
            Self::IpAddress => {
                let (address, bits) = network(text).ok_or_else(|| wrong("range of IP addresses"))?;
                Operand::Network(address, bits)
            }
        })
    }

    /// Whether it holds between a value of the request and one of the policy.
    pub(crate) fn holds(self, value: &str, operand: &Operand, facts: &dyn Facts) -> bool {
        match (self, operand) {
            (Self::StringEquals, Operand::Text(text)) => text.text_in(facts).is_some_and(|text| text == value),
            (Self::StringEqualsIgnoreCase, Operand::Text(text)) => {
                text.text_in(facts).is_some_and(|text| text.to_lowercase() == value.to_lowercase())
            }
            (Self::StringLike, Operand::Text(pattern)) => pattern.matches_in(value, facts),
            // A wildcard does not reach over the colons between the six parts of an ARN. The last
            // part may have colons of its own.
            (Self::Arn, Operand::Arn(patterns)) => {
                let parts: Vec<&str> = value.splitn(6, ':').collect();
                parts.len() == 6 && patterns.iter().zip(parts).all(|(pattern, part)| pattern.matches_in(part, facts))
            }
            (Self::Numeric(comparison), Operand::Number(limit)) => {
                number(value).is_some_and(|value| comparison.holds(&value, limit))
            }
            (Self::Date(comparison), Operand::Time(limit)) => {
                seconds(value).is_some_and(|value| comparison.holds(&value, limit))
            }
            (Self::Bool, Operand::Bool(want)) => truth(value) == Some(*want),
            (Self::IpAddress, Operand::Network(address, bits)) => {
                value.parse().is_ok_and(|value: IpAddr| is_within(value, *address, *bits))
            }
            _ => false,
        }
    }
}

/// A value of a condition in a policy.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Text(Wildcard),
    /// The six parts of an ARN.
    Arn(Vec<Wildcard>),
    Number(f64),
    /// Seconds since the Unix epoch.
    Time(f64),
    Bool(bool),
    /// An address and the number of its bits that count.
    Network(IpAddr, u8),
}

/// A finite number.
pub(crate) fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    text.parse().ok().filter(|number: &f64| plain && number.is_finite())
}

/// `true` or `false`, in any case.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// A time in seconds since the Unix epoch, of a text as in ISO 8601 or of a number of seconds.
pub(crate) fn seconds(text: &str) -> Option<f64> {
    if let Some(seconds) = number(text).filter(|_| !text[1..].contains('-')) {
        // A year alone is a date.
        return if text.len() == 4 { seconds_of(&format!("{text}-01-01T00:00:00Z")) } else { Some(seconds) };
    }
    match text.len() {
        7 => seconds_of(&format!("{text}-01T00:00:00Z")),
        10 => seconds_of(&format!("{text}T00:00:00Z")),
        _ => seconds_of(text),
    }
}

/// Of a text such as `2026-11-29T02:13:07.5+01:00`; the seconds may be missing.
fn seconds_of(text: &str) -> Option<f64> {
    let (date, time) = text.split_once('T')?;
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let is_plain = |part: &str, len: usize| part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.next().is_some() || !is_plain(year, 4) || !is_plain(month, 2) || !is_plain(day, 2) {
        return None;
    }
    let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
    let date = Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()?;
    let (time, offset) = match time.strip_suffix('Z') {
        Some(time) => (time, UtcOffset::UTC),
        None => {
            let at = time.rfind(['+', '-'])?;
            let (hours, minutes) = time[at + 1..].split_once(':')?;
            if !is_plain(hours, 2) || !is_plain(minutes, 2) {
                return None;
            }
            let sign = if time.as_bytes()[at] == b'-' { -1 } else { 1 };
            let (hours, minutes): (i8, i8) = (hours.parse().ok()?, minutes.parse().ok()?);
            (&time[..at], UtcOffset::from_hms(sign * hours, sign * minutes, 0).ok()?)
        }
    };
    let (clock, fraction) = match time.split_once('.') {
        Some((clock, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            (clock, format!("0.{digits}").parse().ok()?)
        }
        Some(_) => return None,
        None => (time, 0.0),
    };
    let mut parts = clock.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next().unwrap_or("00"));
    if parts.next().is_some() || !is_plain(hour, 2) || !is_plain(minute, 2) || !is_plain(second, 2) {
        return None;
    }
    let time = Time::from_hms(hour.parse().ok()?, minute.parse().ok()?, second.parse().ok()?).ok()?;
    let whole = date.with_time(time).assume_offset(offset).unix_timestamp();
    Some(whole as f64 + fraction)
}

/// An address, and the number of its bits that count: all, where the text does not say.
pub(crate) fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
            bits.parse().ok().filter(|bits| *bits <= all)?
        }
        Some(_) => return None,
        None => all,
    };
    Some((address, bits))
}

/// Whether the first `bits` of both addresses are equal. An IPv4 address within IPv6 counts as the
/// IPv4 address.
fn is_within(value: IpAddr, address: IpAddr, bits: u8) -> bool {
    match (value.to_canonical(), address) {
        (IpAddr::V4(value), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            value.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(value), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            value.to_bits() & mask == address.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_in_iso_8601() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", 0.0),
            ("1970-01-01T00:01Z", 60.0),
            ("1970-01-01T01:00:00+01:00", 0.0),
            ("1970-01-01T00:00:00.25Z", 0.25),
            ("1970-01-02", 86_400.0),
            ("1970-02", 2_678_400.0),
            ("1971", 31_536_000.0),
            ("1700000000", 1_700_000_000.0),
            ("-5", -5.0),
        ] {
            assert_eq!(seconds(text), Some(want), "{text}");
        }
        for text in [
            "",
            "today",
            "1970-13-01",
            "1970-01-01T25:00:00Z",
            "1970-01-01T00:00:00",
            "1970-1-1",
            "nan",
            "inf",
            "ü",
            "1970-01-01T00:00:00.Z",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn networks_hold_their_addresses() {
        let within = |value: &str, text: &str| {
            let (address, bits) = network(text).expect("a network");
            is_within(value.parse().expect("an address"), address, bits)
        };
        assert!(within("10.1.2.3", "10.0.0.0/8"));
        assert!(!within("11.1.2.3", "10.0.0.0/8"));
        assert!(within("11.1.2.3", "0.0.0.0/0"));
        assert!(within("::ffff:10.1.2.3", "10.0.0.0/8"));
        assert!(within("2001:db8::1", "2001:db8::/32"));
        assert!(!within("2001:db9::1", "2001:db8::/32"));
        assert!(within("2001:db9::1", "::/0"));
        assert!(!within("10.1.2.3", "::/0"));
        for text in ["10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "10.0.0.0/+8", "::/129", "x"] {
            assert!(network(text).is_none(), "{text}");
        }
    }
}
