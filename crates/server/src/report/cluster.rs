//! The nodes of a cluster and the links to them, in words.

use serde_json::Value;

use super::duration;
use crate::config::human_size;

/// This node and the homes of channels.
pub fn cluster(cluster: &Value) -> String {
    let nodes = || cluster["nodes"].as_array().into_iter().flatten();
    let homes: Vec<&str> =
        nodes().filter(|node| node["home"] == true).filter_map(|node| node["name"].as_str()).collect();
    format!("node {} of {}; homes: {}", cluster["name"].as_str().unwrap_or("?"), nodes().count(), homes.join(", "))
}

/// The link to a node; `None` for this node itself.
pub fn link(node: &Value) -> Option<String> {
    let link = node.get("link").filter(|link| link.is_object())?;
    let text = |of: &Value| of.as_str().unwrap_or("?").to_owned();
    let number = |key: &str| link[key].as_u64().unwrap_or_default();
    let since = duration(number("since_s"));
    let state = if link["state"] == "up" {
        let round_trip = link["round_trip_us"].as_f64().map(|us| format!(", round trip {:.1} ms", us / 1e3));
        let waiting = human_size(number("outbox_bytes"));
        format!("up for {since}{}, {waiting} wait to be sent", round_trip.unwrap_or_default())
    } else {
        let why = link["error"].as_str().unwrap_or("the node has not connected since the start");
        format!("DOWN for {since}: {why}")
    };
    Some(format!("{} at {}: {state}", text(&node["name"]), text(&node["address"])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_words() {
        let nodes = serde_json::json!({"name": "a", "nodes": [
            {"name": "a", "address": "n1:7000", "home": true, "link": null},
            {"name": "b", "address": "n2:7000", "home": true,
                "link": {"state": "up", "since_s": 62, "round_trip_us": 340, "outbox_bytes": 2048}},
            {"name": "c", "address": "n3:7000", "home": false, "link": {"state": "down", "since_s": 5, "error": "no answer"}},
            {"name": "d", "address": "n4:7000", "home": false, "link": {"state": "down", "since_s": 5, "error": null}},
        ]});
        assert_eq!(cluster(&nodes), "node a of 4; homes: a, b");
        assert_eq!(link(&nodes["nodes"][0]), None);
        let shown = |at: usize| link(&nodes["nodes"][at]).expect("a link");
        assert_eq!(shown(1), "b at n2:7000: up for 1 min 2 s, round trip 0.3 ms, 2 KiB wait to be sent");
        assert_eq!(shown(2), "c at n3:7000: DOWN for 5 s: no answer");
        assert_eq!(shown(3), "d at n4:7000: DOWN for 5 s: the node has not connected since the start");
    }
}
