//! Texts of a configuration file that look like the name of a variable, which nothing replaces.

use serde_json::Value;
use steadfast_live::placeholders;

/// The places in a file, each with the name that stands there. Centrifugo's options in `[live]` are
/// left to their own check.
pub(super) fn find(text: &str) -> Vec<(String, String)> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let Ok(Value::Object(table)) = serde_json::to_value(table) else { return Vec::new() };
    let of_centrifugo = |place: &str| place.starts_with("live.") && setting(place) != place;
    placeholders(&table).into_iter().filter(|(place, _)| !of_centrifugo(place)).collect()
}

/// The setting that a place is in: `section.key`.
pub(super) fn setting(place: &str) -> &str {
    place.match_indices('.').nth(1).map_or(place, |(at, _)| &place[..at])
}

/// The warning of a place.
pub(crate) fn warning(place: &str, shown: &str) -> String {
    let instead = match place.starts_with("block.") || place.starts_with("buckets.") {
        true => "write the value itself".to_owned(),
        false => format!("set the variable STEADFAST_{} instead", setting(place).replace('.', "_").to_uppercase()),
    };
    format!("{place}: {shown} is taken as it stands, because no variables are replaced in the file: {instead}")
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, literal_warning, parse};

    #[test]
    fn names_of_variables_are_found_unless_the_setting_is_given_elsewhere() {
        let mut config: Config = parse(
            "[admin]\ntoken = \"${TOKEN}\"\n[s3]\ndomain = \"$DOMAIN\"\n[live.http_api]\nkey = \"${KEY}\"\n\
             [events]\nwebhooks = [{ name = \"app\", url = \"http://h/\", secret = \"${SECRET:-x}\" }]\n",
        )
        .expect("valid");
        let places = |config: &Config| config.literal.iter().map(|(place, _)| place.clone()).collect::<Vec<_>>();
        assert_eq!(places(&config), ["admin.token", "events.webhooks.app.secret", "s3.domain"]);
        let (place, shown) = &config.literal[1];
        let warning = literal_warning(place, shown);
        assert!(warning.starts_with("events.webhooks.app.secret: ${SECRET} is taken as it stands"), "{warning}");
        assert!(warning.ends_with("STEADFAST_EVENTS_WEBHOOKS instead"), "{warning}");
        config.set_text("admin.token", "a-token").expect("valid");
        assert_eq!(places(&config), ["events.webhooks.app.secret", "s3.domain"]);
    }
}
