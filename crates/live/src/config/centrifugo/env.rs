//! `CENTRIFUGO_*` variables, as Centrifugo reads them: over the file, empty values count as unset.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::rules::Rule;
use super::{SECRETS, element, template, version5};

const PREFIX: &str = "CENTRIFUGO_";

/// The lists whose items have variables with the item's name.
const NAMED: [&str; 3] = ["channel.namespaces", "rpc.namespaces", "proxies"];

/// Sets the options of the variables. Returns the variables that Centrifugo does not know.
///
/// # Errors
/// A value that should be JSON and is not, with the name of the variable.
pub(super) fn overlay(
    options: &mut Map<String, Value>,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<String>, String> {
    let mut given: BTreeMap<String, String> = variables
        .into_iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?.to_owned(), value)))
        .filter(|(name, value)| !value.is_empty() && !name.starts_with("VAR_"))
        .collect();
    let mut leaves = Vec::new();
    leaves_of("", &Value::Object(template()), &mut leaves);
    leaves.extend(Rule::paths().map(|path| (path.to_owned(), Value::Null)));
    let sections: BTreeSet<String> =
        leaves.iter().filter_map(|(path, _)| Some(path.rsplit_once('.')?.0.to_owned())).collect();
    let below = |section: String| Rule::ends().map(move |end| (format!("{section}.{end}"), Value::Null));
    leaves.extend(sections.into_iter().flat_map(below));
    for list in NAMED {
        let is_names = |text: &String| !text.trim_start().starts_with(['[', '{']);
        if let Some(names) = given.get(&variable_of(list)).filter(|text| is_names(text)) {
            add_named(options, list, names);
            given.remove(&variable_of(list));
        }
    }
    take(&mut given, "", &leaves, options)?;
    for list in NAMED {
        let mut leaves = Vec::new();
        leaves_of("", &element(list).unwrap_or_default(), &mut leaves);
        leaves.extend(Rule::ends().map(|end| (end.to_owned(), Value::Null)));
        let pointer = format!("/{}", list.replace('.', "/"));
        let mut whole = Value::Object(std::mem::take(options));
        for item in whole.pointer_mut(&pointer).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(item) = item.as_object_mut() else { continue };
            let name = item.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            take(&mut given, &variable_of(&format!("{list}.{name}.")), &leaves, item)?;
        }
        if let Value::Object(map) = whole {
            *options = map;
        }
    }
    // Kubernetes sets such variables for a service of this name.
    given.retain(|name, _| !name.contains("_PORT") && !name.starts_with("PORT") && !name.contains("SERVICE_"));
    let shown = |name: String| match version5::has(&name.to_lowercase()) {
        true => format!("{PREFIX}{name} (of Centrifugo version 5 or older; see {})", version5::MIGRATION),
        false => format!("{PREFIX}{name}"),
    };
    Ok(given.into_keys().map(shown).collect())
}

/// Adds items with these names, separated by blanks, to those that the list has.
fn add_named(options: &mut Map<String, Value>, list: &str, names: &str) {
    let mut items = at(options, list).and_then(Value::as_array).cloned().unwrap_or_default();
    items.extend(names.split_whitespace().map(|name| json!({"name": name})));
    set(options, list, Value::Array(items));
}

/// The value at a path.
fn at<'a>(options: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => options.get(path),
        Some((first, rest)) => at(options.get(first)?.as_object()?, rest),
    }
}

/// The options below a value, with their defaults.
fn leaves_of(path: &str, value: &Value, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves_of(&path, value, leaves);
                if SECRETS.contains(&name.as_str()) {
                    leaves.push((format!("{path}_file"), Value::from("")));
                }
            }
        }
        value => leaves.push((path.to_owned(), value.clone())),
    }
}

/// The variable of a path, without the prefix.
fn variable_of(path: &str) -> String {
    path.replace(['.', '-'], "_").to_uppercase()
}

/// The variable of a path, with the prefix.
pub(super) fn full_variable_of(path: &str) -> String {
    format!("{PREFIX}{}", variable_of(path))
}

/// Moves the variables of these options into a section. A variable below an option that the server
/// does not have sets a part of it.
fn take(
    given: &mut BTreeMap<String, String>,
    prefix: &str,
    leaves: &[(String, Value)],
    section: &mut Map<String, Value>,
) -> Result<(), String> {
    for (path, default) in leaves {
        let variable = format!("{prefix}{}", variable_of(path));
        if let Some(value) = given.remove(&variable) {
            let value = parse(path, default, value).map_err(|e| format!("{PREFIX}{variable}: {e}"))?;
            set(section, path, value);
        } else if default.is_null() {
            let below = format!("{variable}_");
            let parts: Vec<String> = given.keys().filter(|name| name.starts_with(&below)).cloned().collect();
            for part in parts {
                let value = given.remove(&part).unwrap_or_default();
                set(section, &format!("{path}.{}", part[below.len()..].to_lowercase()), Value::from(value));
            }
        }
    }
    Ok(())
}

/// The value of an option: lists of texts are separated by blanks, other lists and maps are JSON.
fn parse(path: &str, default: &Value, text: String) -> Result<Value, String> {
    match default {
        Value::Array(_) if element(path).is_none() => Ok(text.split(' ').filter(|part| !part.is_empty()).collect()),
        Value::Array(_) | Value::Object(_) => serde_json::from_str(&text).map_err(|e| format!("this is not JSON: {e}")),
        _ => Ok(Value::from(text)),
    }
}

fn set(section: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(section.insert(path.to_owned(), value)),
        Some((first, rest)) => {
            let inner = section.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            if let Some(inner) = inner.as_object_mut() {
                set(inner, rest, value);
            }
        }
    }
}
