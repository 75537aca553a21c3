//! Entry points of the configuration fuzzers: no text may cause a panic. Not part of the interface.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::config::{Config, parse, parse_duration};

/// The initial corpus. The first byte selects how the rest is read: 0 a file, 1 lines of
/// `section.key=value`, 2 environment variables.
pub fn config_corpus() -> Vec<Vec<u8>> {
    let config = Config::default();
    let file = config.to_toml();
    let settings: Vec<_> = config.shown().iter().map(|s| (s.section, s.key)).collect();
    let values = ["12", "1 MiB", "1500 ms", "true", "127.0.0.1:80", "/dev/sdx", "info"];
    let lines = |make: fn(&str, &str) -> String| {
        let lines = settings.iter().zip(values.iter().cycle());
        lines.map(|((section, key), value)| format!("{}={value}", make(section, key))).collect::<Vec<_>>().join("\n")
    };
    let texts = lines(|section, key| format!("{section}.{key}"));
    let variables = lines(|section, key| format!("STEADFAST_{section}_{key}").to_uppercase());
    let filled: String = file.lines().map(|line| line.trim_start_matches("# ").to_owned() + "\n").collect();
    [(0, file), (0, filled), (1, texts), (2, variables)]
        .into_iter()
        .map(|(mode, text)| [&[mode], text.as_bytes()].concat())
        .collect()
}

/// Reads a configuration. An accepted configuration must read back equal from its own dump.
///
/// # Panics
/// When it does not, which the fuzzer looks for.
pub fn fuzz_config(data: &[u8]) -> u64 {
    let Some((mode, rest)) = data.split_first() else { return 0 };
    let text = String::from_utf8_lossy(rest);
    let mut seen = DefaultHasher::new();
    let pairs = || text.lines().filter_map(|line| line.split_once('='));
    let config = match mode % 3 {
        0 => parse(&text),
        1 => {
            let mut config = Config::default();
            for (name, value) in pairs() {
                let outcome = config.set_text(name, value);
                outcome.map_err(|e| kind(&e.message)).hash(&mut seen);
                parse_duration(value).is_ok().hash(&mut seen);
            }
            config.check().map(|()| config)
        }
        _ => {
            let mut config = Config::default();
            let outcome = config.apply_env(pairs().map(|(name, value)| (name.to_owned(), value.to_owned())));
            outcome.and_then(|()| config.check()).map(|()| config)
        }
    };
    match config {
        Ok(config) => {
            let dump = config.to_toml();
            assert_eq!(parse(&dump).as_ref(), Ok(&config), "the dump does not read back:\n{dump}");
            "valid".hash(&mut seen);
        }
        Err(error) => {
            // The position must lie in the text.
            if let Some((line, column)) = error.position {
                assert!(line >= 1 && column >= 1 && line <= text.matches('\n').count() + 1, "{error}");
            }
            kind(&error.message).hash(&mut seen);
        }
    }
    seen.finish()
}

/// The letters of a message, without its variable parts.
fn kind(message: &str) -> String {
    message.chars().filter(|c| c.is_ascii_alphabetic()).take(24).collect()
}
