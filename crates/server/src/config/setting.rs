//! The types of settings, with reading and writing.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

/// An input value: from a file, or text from the environment or the command line.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// From a TOML file.
    Value(&'a DeValue<'a>),
    /// From an environment variable or a flag.
    Text(&'a str),
}

/// A type of setting. Errors are messages with the expected form.
pub trait Setting: Sized {
    /// Reads a value.
    ///
    /// # Errors
    /// The expected form and the value found.
    fn read(input: Input<'_>) -> Result<Self, String>;

    /// The value as TOML.
    fn to_toml(&self) -> String;

    /// The value in its smallest unit, for types with a range.
    fn magnitude(&self) -> Option<u64> {
        None
    }

    /// A magnitude as TOML.
    fn show(magnitude: u64) -> String {
        magnitude.to_string()
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Reads a value that is a string in a file.
fn text<'a>(input: &Input<'a>, expected: &str) -> Result<&'a str, String> {
    match input {
        Input::Text(text) => Ok(text),
        Input::Value(value) => {
            value.as_str().ok_or_else(|| format!("expected {expected}, found {}", article(value.type_str())))
        }
    }
}

fn article(kind: &str) -> String {
    if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { format!("an {kind}") } else { format!("a {kind}") }
}

fn integer(input: &Input<'_>, expected: &str) -> Result<u64, String> {
    let parsed = match input {
        Input::Text(text) => text.trim().replace('_', "").parse::<u64>().ok(),
        Input::Value(value) => match value.as_integer() {
            Some(int) => u64::from_str_radix(&int.as_str().replace(['_', '+'], ""), int.radix()).ok(),
            None => return Err(format!("expected {expected}, found {}", article(value.type_str()))),
        },
    };
    parsed.ok_or_else(|| format!("expected {expected}"))
}

impl Setting for bool {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let found = match input {
            Input::Value(value) => value.as_bool(),
            Input::Text(text) => text.trim().parse().ok(),
        };
        found.ok_or_else(|| "expected true or false".to_owned())
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for usize {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let value = integer(&input, "a whole number")?;
        usize::try_from(value).map_err(|_| "the number is too large".to_owned())
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }

    fn magnitude(&self) -> Option<u64> {
        Some(*self as u64)
    }
}

impl Setting for String {
    fn read(input: Input<'_>) -> Result<Self, String> {
        text(&input, "a string").map(str::to_owned)
    }

    fn to_toml(&self) -> String {
        quoted(self)
    }
}

impl Setting for PathBuf {
    fn read(input: Input<'_>) -> Result<Self, String> {
        match text(&input, "a path in quotes")? {
            "" => Err("the path is empty".to_owned()),
            path => Ok(PathBuf::from(path)),
        }
    }

    fn to_toml(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

/// The mistake of text that begins like a list and does not end like one, or has items without
/// quotes.
pub(super) fn no_list(expected: &str) -> String {
    format!(
        "this begins like a list and is not one: expected {expected}, with each item in quotes; a shell removes quotes"
    )
}

/// A list in a file, where a single item may omit the brackets. Text separates items by commas, or
/// is a list as in a file. No item is empty.
pub(super) fn list(input: &Input<'_>, expected: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("expected {expected}");
    match input {
        Input::Text(text) if text.trim_start().starts_with(['[', '"', '\'']) => {
            let table: toml::Table = format!("items = {text}").parse().map_err(|_| no_list(expected))?;
            let items = match table.get("items") {
                Some(toml::Value::Array(items)) if table.len() == 1 => items.clone(),
                Some(item) if table.len() == 1 => vec![item.clone()],
                _ => return Err(wrong()),
            };
            let item = |item: &toml::Value| item.as_str().filter(|part| !part.is_empty()).map(str::to_owned);
            items.iter().map(item).collect::<Option<_>>().ok_or_else(wrong)
        }
        Input::Text(text) => {
            Ok(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect())
        }
        Input::Value(DeValue::Array(items)) => items
            .iter()
            .map(|item| item.get_ref().as_str().filter(|part| !part.is_empty()).map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(wrong),
        Input::Value(_) => {
            Ok(Some(text(input, expected)?).filter(|part| !part.is_empty()).map(str::to_owned).into_iter().collect())
        }
    }
}

/// Origins of web pages, each `https://host:port` or `*`: a list in a file, separated by commas as
/// text. Empty: none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(pub Vec<String>);

impl Setting for Origins {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let parts = list(&input, "a list of origins such as [\"https://app.example.com\"]")?;
        for part in &parts {
            let place = part.split_once("://").map_or("", |(_, place)| place);
            if part != "*" && (place.is_empty() || place.contains(['/', '*'])) {
                return Err(format!(
                    "{part:?} is not an origin: write one as https://app.example.com, without a path, or \"*\" for all"
                ));
            }
        }
        Ok(Self(parts))
    }

    fn to_toml(&self) -> String {
        let all: Vec<String> = self.0.iter().map(Setting::to_toml).collect();
        format!("[{}]", all.join(", "))
    }
}

/// Several paths: a list in a file, separated by commas as text. Empty: none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths(pub Vec<PathBuf>);

impl Setting for Paths {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let parts = list(&input, "a list of paths such as [\"/dev/sdb\", \"/dev/sdc\"]")?;
        let paths: Vec<PathBuf> = parts.into_iter().map(PathBuf::from).collect();
        for (at, path) in paths.iter().enumerate() {
            if paths[..at].contains(path) {
                return Err(format!("{} stands there twice", path.display()));
            }
        }
        Ok(Self(paths))
    }

    fn to_toml(&self) -> String {
        let all: Vec<String> = self.0.iter().map(Setting::to_toml).collect();
        format!("[{}]", all.join(", "))
    }
}

impl Setting for SocketAddr {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let text = text(&input, "an address such as \"127.0.0.1:9000\"")?;
        let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        local.as_deref().unwrap_or(text).parse().map_err(|_| {
            format!("expected an IP address with a port, such as \"127.0.0.1:9000\" or \"[::]:9000\", found {text:?}")
        })
    }

    fn to_toml(&self) -> String {
        quoted(&self.to_string())
    }
}

/// An optional value; an empty string means none.
impl<T: Setting> Setting for Option<T> {
    fn read(input: Input<'_>) -> Result<Self, String> {
        match input {
            Input::Text("") => Ok(None),
            Input::Value(value) if value.as_str() == Some("") => Ok(None),
            _ => T::read(input).map(Some),
        }
    }

    fn to_toml(&self) -> String {
        self.as_ref().map_or_else(|| "\"\"".to_owned(), T::to_toml)
    }

    fn magnitude(&self) -> Option<u64> {
        self.as_ref().and_then(T::magnitude)
    }

    fn show(magnitude: u64) -> String {
        T::show(magnitude)
    }
}

/// A number of bytes, written with a unit: `"64 MiB"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// Kibibytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// Mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The size in bytes, as a length in memory.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

const SIZE_UNITS: [(&str, u64); 12] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in &SIZE_UNITS[..4] {
            if self.0 >= *bytes && self.0.is_multiple_of(*bytes) {
                return write!(f, "{} {unit}", self.0 / bytes);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Splits a number from the unit that follows it.
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let number = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim()))
}

/// A readable size with about three digits.
pub fn human_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || bytes.is_multiple_of(1024) && Size(bytes).to_string().len() <= 8 {
        Size(bytes).to_string()
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a size such as \"64 MiB\" or \"10 GB\", found {text:?}");
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        let scale = match unit {
            "" | "B" => 1,
            unit => SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?.1,
        };
        number.checked_mul(scale).map(Size).ok_or_else(|| format!("{text:?} is more than can be counted"))
    }
}

impl Setting for Size {
    fn read(input: Input<'_>) -> Result<Self, String> {
        if let Input::Value(value) = input
            && value.is_integer()
        {
            return integer(&input, "a size such as \"64 MiB\"").map(Size);
        }
        text(&input, "a size such as \"64 MiB\"")?.parse()
    }

    fn to_toml(&self) -> String {
        quoted(&self.to_string())
    }

    fn magnitude(&self) -> Option<u64> {
        Some(self.0)
    }

    fn show(magnitude: u64) -> String {
        quoted(&Size(magnitude).to_string())
    }
}

const TIME_UNITS: [(&str, u64); 8] = [
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
    ("m", 60_000_000),
    ("sec", 1_000_000),
    ("d", 86_400_000_000),
];

/// Reads a duration such as `10 ms`.
///
/// # Errors
/// The expected form.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected a time such as \"10 ms\" or \"30 s\", found {text:?}");
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let (_, scale) = TIME_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    number.checked_mul(*scale).map(Duration::from_micros).ok_or_else(|| format!("{text:?} is too long"))
}

impl Setting for Duration {
    fn read(input: Input<'_>) -> Result<Self, String> {
        parse_duration(text(&input, "a time such as \"10 ms\" or \"30 s\"")?)
    }

    fn to_toml(&self) -> String {
        Self::show(u64::try_from(self.as_micros()).unwrap_or(u64::MAX))
    }

    /// In microseconds.
    fn magnitude(&self) -> Option<u64> {
        u64::try_from(self.as_micros()).ok()
    }

    fn show(magnitude: u64) -> String {
        let (unit, scale) = TIME_UNITS[..5]
            .iter()
            .find(|(_, scale)| magnitude >= *scale && magnitude.is_multiple_of(*scale))
            .unwrap_or(&("s", 1_000_000));
        quoted(&format!("{} {unit}", magnitude / scale))
    }
}

/// Declares an enumeration with a word for each value.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vmeta])* $variant,)+ }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("expected one of {}, found {text:?}", [$($word),+].map(|w| format!("{w:?}")).join(", "))),
                }
            }
        }

        impl Setting for $name {
            fn read(input: Input<'_>) -> Result<Self, String> {
                text(&input, &[$($word),+].map(|w| format!("{w:?}")).join(" or "))?.parse()
            }

            fn to_toml(&self) -> String {
                match self { $(Self::$variant => quoted($word),)+ }
            }
        }
    };
}

words! {
    /// I/O method of a disk.
    IoMode {
        /// io_uring if the kernel allows it, else threads.
        Auto = "auto",
        /// io_uring, or an error.
        Uring = "uring",
        /// A bounded pool of threads.
        Threads = "threads",
    }
}

words! {
    /// Format of log lines.
    LogFormat {
        /// Text lines.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

words! {
    /// Kind of entity tags.
    EtagKind {
        /// MD5 of the content, as most clients expect.
        Md5 = "md5",
        /// A random tag, without the cost of MD5.
        Fast = "fast",
    }
}

words! {
    /// When a write is answered.
    Acknowledge {
        /// When the pool's own disks have it.
        Local = "local",
        /// When the archive has it too.
        Archived = "archived",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_text() {
        let read = |text: &str| list(&Input::Text(text), "a list");
        let expected = Ok(vec!["a b".to_owned(), "https://c".to_owned()]);
        for text in ["a b,https://c", " a b , https://c,", "[\"a b\", 'https://c']", " [ \"a b\" , \"https://c\", ] "] {
            assert_eq!(read(text), expected, "{text}");
        }
        assert_eq!(read("\"a,b\""), Ok(vec!["a,b".to_owned()]));
        assert_eq!((read(""), read("[]")), (Ok(Vec::new()), Ok(Vec::new())));
        for wrong in ["[7]", "[\"\"]", "\"a\"\nb = 1", "[\"a\"]\n[b]"] {
            assert_eq!(read(wrong), Err("expected a list".to_owned()), "{wrong}");
        }
        for wrong in ["[a, b]", "[\"a\"", "[/a,/b]", "\"a"] {
            assert_eq!(read(wrong), Err(no_list("a list")), "{wrong}");
        }
    }

    #[test]
    fn sizes_and_times_read_what_they_write() {
        for bytes in [0, 1, 1023, 1024, 4096, 3 << 20, 1 << 30, 5 << 40, 1_000_000, u64::MAX] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        for us in [0, 1, 999, 1_000, 1_500, 2_000_000, 60_000_000, 7_200_000_000, 90_000_000] {
            let time = Duration::from_micros(us);
            let text = time.to_toml();
            assert_eq!(parse_duration(text.trim_matches('"')), Ok(time), "{text}");
        }
        assert_eq!("10GB".parse(), Ok(Size(10_000_000_000)));
        assert_eq!("10 g".parse(), Ok(Size(10 << 30)));
        assert!("10 GX".parse::<Size>().is_err());
        assert!("".parse::<Size>().is_err());
        assert!("99999999999999999999".parse::<Size>().is_err());
        assert!("99999999999 TiB".parse::<Size>().is_err());
        assert!(parse_duration("10").is_err(), "a time without a unit is ambiguous");
    }
}
