//! Centrifugo's options of the live port, from the tables in `[live]` or from a Centrifugo file.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use serde_json::{Map, Value};
use steadfast_live::{CentrifugoOptions, LiveConfig};

use super::{Config, ConfigError};

impl Config {
    /// The options of the live port, from the tables or the file, and from `CENTRIFUGO_*`
    /// variables.
    ///
    /// # Errors
    /// When both exist, or all options that are not supported.
    pub(crate) fn live_options(&self) -> Result<LiveConfig, ConfigError> {
        Ok(self.centrifugo_options()?.config)
    }

    /// The same, with the options that have no meaning here.
    ///
    /// # Errors
    /// Those of [`Config::live_options`].
    pub(crate) fn centrifugo_options(&self) -> Result<CentrifugoOptions, ConfigError> {
        match &self.live.config {
            Some(_) if self.channels != LiveConfig::default() => Err(ConfigError::new(
                "live.config names a Centrifugo file, and [live] has tables of Centrifugo's options too: keep one of them",
            )),
            Some(path) => of_file(path, variables()),
            None => match serde_json::to_value(&self.channels) {
                Ok(Value::Object(mut tables)) => {
                    if self.channels.http_server == LiveConfig::default().http_server {
                        // Tables without the section do not name a port.
                        tables.remove("http_server");
                    }
                    let read = CentrifugoOptions::read(tables, variables());
                    read.map_err(|e| ConfigError::new(e.to_string()))
                }
                _ => Err(ConfigError::new("[live] cannot be read")),
            },
        }
    }

    /// Takes the address of the live port from Centrifugo's `http_server`, unless `live.listen` is
    /// set to another one than its default.
    ///
    /// # Errors
    /// An address that cannot be resolved, and those of [`Config::live_options`].
    pub(crate) fn adopt_http_server(&mut self) -> Result<(), ConfigError> {
        let options = self.centrifugo_options()?;
        if options.names_port && self.live.listen == Self::default().live.listen {
            let http = &options.config.http_server;
            let address = address_of("http_server.address", &http.address, http.port).map_err(ConfigError::new)?;
            self.live.listen = Some(address);
            self.check()?;
        }
        Ok(())
    }
}

/// The environment variables that are UTF-8.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The address with this name and port; all addresses of the host if the name is empty. Errors name
/// the option.
pub(crate) fn address_of(option: &str, name: &str, port: u16) -> Result<SocketAddr, String> {
    match name {
        // An IPv6 socket serves both families.
        "" if UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() => Ok((Ipv6Addr::UNSPECIFIED, port).into()),
        "" => Ok((Ipv4Addr::UNSPECIFIED, port).into()),
        name => {
            let mut found = (name, port).to_socket_addrs().map_err(|e| format!("{option}: {name:?}: {e}"))?;
            found.next().ok_or_else(|| format!("{option}: {name:?} is no address"))
        }
    }
}

/// The options in the `[live]` section of a configuration, which is valid TOML.
///
/// # Errors
/// All options that are not supported, or the first other mistake.
pub(super) fn tables_of(text: &str) -> Result<LiveConfig, ConfigError> {
    let whole: toml::Table = text.parse().map_err(|e| ConfigError::new(format!("this is not TOML: {e}")))?;
    let mut options = Map::new();
    for (name, value) in whole.get("live").and_then(toml::Value::as_table).into_iter().flatten() {
        if value.is_table() {
            let value = serde_json::to_value(value).map_err(|e| ConfigError::new(e.to_string()))?;
            options.insert(name.clone(), value);
        }
    }
    let read = CentrifugoOptions::read(options, []).map_err(|e| ConfigError::new(e.to_string()))?;
    if read.unknown.is_empty() {
        Ok(read.config)
    } else {
        Err(ConfigError::new(format!("live: no such options: {}", read.unknown.join(", "))))
    }
}

/// Maximum size of a configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads YAML. The expansion of aliases is limited: a file of aliases of aliases is an error and
/// does not fill the memory.
fn of_yaml(text: &str) -> Result<Map<String, Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 64,
            flow_nesting_limit: 64,
            max_documents: 1,
            max_events: 200_000,
            max_nodes: 100_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_merge_keys: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 16,
            max_alias_expansions_per_anchor: 1_000,
        },
        // As in Centrifugo, `yes` is a text.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| e.to_string())
}

/// The options in a Centrifugo configuration file, in JSON, TOML or YAML, and in variables.
///
/// # Errors
/// When the file cannot be read, or all options that are not supported.
pub(crate) fn of_file(
    path: &Path,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<CentrifugoOptions, ConfigError> {
    let shown = path.display().to_string();
    let unreadable = |e: std::io::Error| ConfigError::new(format!("cannot be read: {e}")).from(shown.clone());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let most = FILE_BYTES_MAX >> 20;
        return Err(ConfigError::new(format!("it is longer than {most} MiB, too long for a configuration")).from(shown));
    }
    let parsed = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => serde_json::from_str::<Map<String, Value>>(&text).map_err(|e| format!("this is not JSON: {e}")),
        Some("toml") => toml::from_str::<Map<String, Value>>(&text).map_err(|e| format!("this is not TOML: {e}")),
        Some("yaml" | "yml") => of_yaml(&text).map_err(|e| format!("this is not YAML: {e}")),
        _ => Err("expected a file that ends with .json, .toml, .yaml or .yml".to_owned()),
    };
    let options = parsed.map_err(|e| ConfigError::new(e).from(shown.clone()))?;
    CentrifugoOptions::read(options, variables).map_err(|e| ConfigError::new(e.to_string()).from(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_file(name: &str, text: &str) -> Result<LiveConfig, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        let read = of_file(&path, []).map_err(|e| e.to_string())?;
        if read.unknown.is_empty() { Ok(read.config) } else { Err(read.unknown.join(", ")) }
    }

    #[test]
    fn all_three_formats_are_equivalent() {
        let yaml = r#"# Centrifugo's
client:
  allowed_origins: ["http://localhost:3000", *]
  token: &token
    hmac_secret_key: "s: #1"
    audience: ~x
http_api:
  key: no
channel:
  namespaces:
    - name: chat
      presence: true
      history_size: 1_0
      history_ttl: 300s
"#
        .replace(", *]", ", \"*\"]")
        .replace("1_0", "10");
        let toml = r#"
[client]
allowed_origins = ["http://localhost:3000", "*"]
token = { hmac_secret_key = "s: #1", audience = "~x" }
[http_api]
key = "no"
[[channel.namespaces]]
name = "chat"
presence = true
history_size = 10
history_ttl = "300s"
"#;
        let json = r##"{"client": {"allowed_origins": ["http://localhost:3000", "*"], "token": {"hmac_secret_key": "s: #1", "audience": "~x"}},
            "http_api": {"key": "no"},
            "channel": {"namespaces": [{"name": "chat", "presence": true, "history_size": 10, "history_ttl": "300s"}]}}"##;
        let expected = read_file("live.json", json).expect("valid");
        assert_eq!(expected.channel.namespaces[0].options.history_size, 10);
        assert_eq!(read_file("live.toml", toml).as_ref(), Ok(&expected));
        for name in ["live.yaml", "live.yml"] {
            assert_eq!(read_file(name, &yaml).as_ref(), Ok(&expected));
        }
    }

    #[test]
    fn mistakes_in_yaml_are_named() {
        for (text, expected) in [
            ("client: [", "not YAML"),
            ("client:\n  insecure: true\n  insecure: false\n", "insecure"),
            ("client:\n  insecure: yes\n", "yes"),
            ("clint: {}\n", "clint"),
            ("channel:\n  without_namespace:\n    history_ttl: 300\n", "300"),
            ("- 1\n", "not YAML"),
            ("a: *b\n", "not YAML"),
            ("--- {}\n--- {}\n", "not YAML"),
            ("client: !!python/object {}\nother: 1\n", "other"),
        ] {
            let error = read_file("live.yaml", text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = read_file("live.ini", "").expect_err("no such format");
        assert!(error.contains(".yaml"), "{error}");
        assert!(read_file("live.json", &" ".repeat(5 << 20)).expect_err("long").contains("4 MiB"));
    }

    #[test]
    fn a_file_that_is_made_to_hang_is_an_error() {
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let before = vec![format!("*a{}", n - 1); 10].join(", ");
            laughs += &format!("a{n}: &a{n} [{before}]\n");
        }
        let merges: String = (1..2000).map(|n| format!("m{n}: &m{n}\n  <<: *m{}\n  k{n}: 1\n", n - 1)).collect();
        let files = [
            laughs,
            format!("m0: &m0 {{k0: 1}}\n{merges}"),
            format!("a: {}", "[".repeat(1 << 20)),
            format!("a: {}{}", "[".repeat(1 << 16), "]".repeat(1 << 16)),
            format!("a: {}", "{a: ".repeat(1 << 16)),
            (0..20_000).map(|n| format!("{}a:\n", " ".repeat(n % 4_000))).take(4_000).collect::<String>()[..3 << 20]
                .to_owned(),
            "- ".repeat(1 << 20),
            format!("a: {}", "!x ".repeat(1 << 20)),
            "a: *a".repeat(1 << 18),
            "a: &a *a".to_owned(),
        ];
        for file in &files {
            let shown: String = file.chars().take(40).collect();
            assert!(read_file("live.yaml", file).is_err(), "{shown}");
        }
    }
}
