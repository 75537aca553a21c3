//! Options of Centrifugo v6, from its configuration file and its environment variables.
//!
//! The options that this server has are taken over. Those without a meaning here are listed. Those
//! whose absence would change the behaviour or the security are refused, all in one message. What
//! Centrifugo itself does not know, it ignores with a warning, and so does this server.

mod env;
mod rules;
#[cfg(test)]
mod tests;
mod version5;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use self::rules::{Effect, Rule};
use super::placeholder::placeholders;
use super::proxy::{ProxyConfig, StatusTransform};
use super::rpc::RpcNamespace;
use super::{GoDuration, LiveConfig, LiveConfigError, Namespace};

/// Options of Centrifugo, read.
#[derive(Debug, Clone, PartialEq)]
pub struct CentrifugoOptions {
    /// The options that this server has.
    pub config: LiveConfig,
    /// Whether they name the address or the port to listen on.
    pub names_port: bool,
    /// Options that are set and have no meaning here, each with the setting to use instead.
    pub ignored: Vec<String>,
    /// Options and variables that Centrifugo does not know.
    pub unknown: Vec<String>,
    /// Warnings of texts that look like the name of a variable, which nothing replaces.
    pub literal: Vec<String>,
}

impl CentrifugoOptions {
    /// Reads options, and `CENTRIFUGO_*` among the variables over them.
    ///
    /// # Errors
    /// All options that are refused or have a value of another type, or the first other mistake.
    pub fn read(
        options: Map<String, Value>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, LiveConfigError> {
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        let mut options = lowercase(options);
        version5::refuse(&options).map_err(LiveConfigError)?;
        let unknown = env::overlay(&mut options, variables.clone()).map_err(LiveConfigError)?;
        let literal = literal(&options);
        read_secrets("", &mut options)?;
        let http = options.get("http_server").and_then(Value::as_object);
        let names_port = http
            .is_some_and(|http| ["address", "port"].iter().any(|name| http.get(*name).is_some_and(|v| !v.is_null())));
        let mut sorter = Sorter { variables, unknown, ..Sorter::default() };
        let known = sorter.section("", "", options, &template());
        if !sorter.mistakes.is_empty() {
            return Err(LiveConfigError(sorter.mistakes.join("; ")));
        }
        let config: LiveConfig =
            serde_json::from_value(Value::Object(known)).map_err(|e| LiveConfigError(e.to_string()))?;
        config.check()?;
        Ok(Self { config, names_port, ignored: sorter.ignored, unknown: sorter.unknown, literal })
    }
}

/// A warning of each text that looks like the name of a variable.
fn literal(options: &Map<String, Value>) -> Vec<String> {
    let is_map = |place: &str| MAPS.iter().any(|map| place.contains(&format!(".{map}.")));
    let is_replaced = |place: &str, shown: &str| is_map(place) && shown.starts_with("${CENTRIFUGO_VAR_");
    // The prefix of private channels is a dollar sign, perhaps with letters.
    let is_meant = |(place, shown): &(String, String)| place == "channel.private_prefix" || is_replaced(place, shown);
    placeholders(options)
        .into_iter()
        .filter(|found| !is_meant(found))
        .map(|(place, shown)| {
            let instead = match is_map(&place) {
                true => "write ${CENTRIFUGO_VAR_...} there, and set that variable".to_owned(),
                false => format!("set the variable {} instead", env::full_variable_of(&place)),
            };
            format!("{place}: {shown} is taken as it stands, because Centrifugo replaces no variables in its file: {instead}")
        })
        .collect()
}

/// Secrets, which may also be in a file: `key_file` names the file of `key`.
const SECRETS: [&str; 4] = ["hmac_secret_key", "hmac_previous_secret_key", "key", "credentials_value"];

/// Maximum size of a file with a secret, in bytes.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// The names of maps whose keys are not options.
const MAPS: [&str; 2] = ["static_headers", "static_metadata"];

/// All options of the server, with their defaults.
fn template() -> Map<String, Value> {
    match serde_json::to_value(LiveConfig::default()) {
        Ok(Value::Object(options)) => options,
        _ => Map::new(),
    }
}

/// The options of the items of a list, by its path; `None` if the items are texts.
fn element(path: &str) -> Option<Value> {
    let item = match path {
        "channel.namespaces" => serde_json::to_value(Namespace::default()),
        "rpc.namespaces" => serde_json::to_value(RpcNamespace::default()),
        "proxies" => serde_json::to_value(ProxyConfig::default()),
        path if path.ends_with("status_to_code_transforms") => serde_json::to_value(StatusTransform::default()),
        _ => return None,
    };
    item.ok()
}

/// Names of options in lower case, as Centrifugo takes them.
fn lowercase(options: Map<String, Value>) -> Map<String, Value> {
    let lower = |value: Value| match value {
        Value::Object(map) => Value::Object(lowercase(map)),
        Value::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Value::Object(map) => Value::Object(lowercase(map)),
                item => item,
            })
            .collect(),
        value => value,
    };
    options
        .into_iter()
        .map(|(name, value)| {
            let name = name.to_lowercase();
            let value = if MAPS.contains(&name.as_str()) { value } else { lower(value) };
            (name, value)
        })
        .collect()
}

/// Replaces `key_file` by `key` with the content of the file, without the end of its last line.
fn read_secrets(place: &str, options: &mut Map<String, Value>) -> Result<(), LiveConfigError> {
    for name in SECRETS {
        let Some(Value::String(path)) = options.remove(&format!("{name}_file")) else { continue };
        if path.is_empty() {
            continue;
        }
        let fail = |why: String| LiveConfigError(format!("{}_file: {why}", join(place, name)));
        if options.get(name).and_then(Value::as_str).is_some_and(|secret| !secret.is_empty()) {
            return Err(fail(format!("{name} is set too: keep one of them")));
        }
        let secret = read_secret(&path).map_err(|e| fail(format!("{path:?}: {e}")))?;
        options.insert(name.to_owned(), Value::from(secret));
    }
    for (name, value) in options {
        match value {
            Value::Object(map) => read_secrets(&join(place, name), map)?,
            Value::Array(items) => {
                for item in items.iter_mut().filter_map(Value::as_object_mut) {
                    read_secrets(&join(place, name), item)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn read_secret(path: &str) -> Result<String, std::io::Error> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(SECRET_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Sorts options into those that the server has and the others.
#[derive(Default)]
struct Sorter {
    variables: BTreeMap<String, String>,
    ignored: Vec<String>,
    unknown: Vec<String>,
    mistakes: Vec<String>,
}

impl Sorter {
    /// The options of a section that the server has. `path` is without the names of list items,
    /// `place` has them.
    fn section(
        &mut self,
        path: &str,
        place: &str,
        options: Map<String, Value>,
        template: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut found = Map::new();
        // `null` is as if absent.
        for (name, value) in options.into_iter().filter(|(_, value)| !value.is_null()) {
            let (path, place) = (join(path, &name), join(place, &name));
            match template.get(&name) {
                Some(known) => drop(found.insert(name, self.known(&path, &place, value, known))),
                // Centrifugo takes such a name for an option of a section.
                None if name.contains('.') => self.mistakes.push(format!("{place}: write the section without a dot")),
                None => self.other(&path, place, &value),
            }
        }
        found
    }

    fn known(&mut self, path: &str, place: &str, value: Value, known: &Value) -> Value {
        match (known, value) {
            (Value::Object(template), Value::Object(options)) if !template.is_empty() => {
                Value::Object(self.section(path, place, options, template))
            }
            (Value::Object(template), Value::Object(map)) if template.is_empty() => self.expanded(place, map),
            (Value::Array(_), Value::Array(items)) => items
                .into_iter()
                .map(|item| match (element(path), item) {
                    (Some(Value::Object(template)), Value::Object(options)) => {
                        let name = options.get("name").and_then(Value::as_str).unwrap_or_default();
                        let place = format!("{place}.{name}");
                        Value::Object(self.section(path, &place, options, &template))
                    }
                    (_, item) => item,
                })
                .collect(),
            (known, value) => {
                // It may be absent in proxies, so it has no default.
                let known = if path.ends_with(".enabled") { &Value::Bool(false) } else { known };
                let value = coerce(known, value);
                // Centrifugo takes an empty value for the default. Port 0 is any free port here.
                if is_unset(&value) && !is_unset(known) && path != "grpc_api.port" {
                    return known.clone();
                }
                if let Some(expected) = differs(known, &value) {
                    let found =
                        if value.is_array() || value.is_object() { String::new() } else { format!(", found {value}") };
                    self.mistakes.push(format!("{place}: expected {expected}{found}"));
                }
                value
            }
        }
    }

    /// An option that the server does not have.
    fn other(&mut self, path: &str, place: String, value: &Value) {
        let Some(rule) = Rule::of(path) else {
            return self.unknown.push(place);
        };
        if is_unset(value) || (!rule.default.is_empty() && text(value) == rule.default) {
            return;
        }
        match rule.effect {
            Effect::Ignored("") => self.ignored.push(place),
            Effect::Ignored(note) => self.ignored.push(format!("{place} ({note})")),
            Effect::Refused(why) => self.mistakes.push(format!("{place}: {why}")),
        }
    }

    /// The values of a map, with `${CENTRIFUGO_VAR_...}` replaced by the variables.
    fn expanded(&mut self, place: &str, map: Map<String, Value>) -> Value {
        let mut expanded = Map::new();
        for (name, value) in map {
            let value = text(&value);
            let (mut out, mut rest) = (String::new(), value.as_str());
            while let Some(start) = rest.find("${CENTRIFUGO_VAR_") {
                let Some(len) = rest[start..].find('}') else { break };
                let variable = &rest[start + 2..start + len];
                out.push_str(&rest[..start]);
                match self.variables.get(variable) {
                    Some(found) => out.push_str(found),
                    None => self.mistakes.push(format!("{place}.{name}: the variable {variable} is not set")),
                }
                rest = &rest[start + len + 1..];
            }
            out.push_str(rest);
            expanded.insert(name, Value::from(out));
        }
        Value::Object(expanded)
    }
}

/// Whether a value turns nothing on.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => matches!(text.as_str(), "" | "0" | "0s" | "false"),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => {
            let is = |name: &str, values: &[&str]| map.get(name).is_some_and(|v| values.contains(&text(v).as_str()));
            let off = is("enabled", &["false"]) || is("type", &["", "memory"]);
            off || is("endpoint", &[""]) || is("mode", &[""]) || map.values().all(is_unset)
        }
    }
}

/// A value as text, without the quotes of a string.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Converts a value to the type of the option, as Centrifugo does: variables are texts, and so are
/// many values in files.
fn coerce(known: &Value, value: Value) -> Value {
    match (known, value) {
        (Value::Bool(_), Value::String(text)) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Value::Bool(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Value::Bool(false),
            _ => Value::String(text),
        },
        (Value::Bool(_), Value::Number(number)) => Value::Bool(number.as_f64() != Some(0.0)),
        (Value::Number(_), Value::String(text)) => {
            let trimmed = text.trim();
            let parsed = match trimmed.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => trimmed.parse().ok(),
            };
            parsed.map_or(Value::String(text), Value::from)
        }
        (Value::Number(_), Value::Bool(value)) => Value::from(u8::from(value)),
        // Centrifugo takes other numbers for nanoseconds, which is never meant.
        (Value::String(known), value @ Value::Number(_)) if GoDuration::is(known) => match is_unset(&value) {
            true => Value::from("0s"),
            false => value,
        },
        (Value::String(_), value @ (Value::Number(_) | Value::Bool(_))) => Value::from(text(&value)),
        (Value::Array(_), Value::String(text)) if text.is_empty() => Value::Array(Vec::new()),
        (Value::Array(_), value @ Value::String(_)) => Value::Array(vec![value]),
        (_, value) => value,
    }
}

const DURATION: &str = "a duration such as 300s or 1h30m";

/// What an option expects, if the value is something else.
fn differs(known: &Value, value: &Value) -> Option<&'static str> {
    match (known, value) {
        (Value::String(known), Value::String(text)) if GoDuration::is(known) => {
            (!GoDuration::is(text)).then_some(DURATION)
        }
        (Value::String(known), _) if GoDuration::is(known) => Some(DURATION),
        (Value::Null, _)
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_))
        | (Value::Array(_), Value::Array(_))
        | (Value::Object(_), Value::Object(_)) => None,
        (Value::Bool(_), _) => Some("true or false"),
        (Value::Number(_), _) => Some("a number"),
        (Value::String(_), _) => Some("a text"),
        (Value::Array(_), _) => Some("a list"),
        (Value::Object(_), _) => Some("a section with options"),
    }
}
