//! The nodes of a cluster and the links to them, in words.

use std::fmt::Write;

use serde_json::Value;

use super::duration;
use crate::config::human_size;

/// This node and the homes of channels.
pub fn cluster(cluster: &Value) -> String {
    let nodes = || cluster["nodes"].as_array().into_iter().flatten();
    let homes: Vec<&str> =
        nodes().filter(|node| node["home"] == true).filter_map(|node| node["name"].as_str()).collect();
    let name = cluster["name"].as_str().unwrap_or("?");
    let role = if homes.contains(&name) { "" } else { ", a front without disks" };
    format!("node {name} of {}{role}; homes: {}", nodes().count(), homes.join(", "))
}

/// The link to a node; `None` for this node itself.
pub fn link(node: &Value) -> Option<String> {
    let link = node.get("link").filter(|link| link.is_object())?;
    let text = |of: &Value| of.as_str().unwrap_or("?").to_owned();
    let number = |key: &str| link[key].as_u64().unwrap_or_default();
    let since = duration(number("since_s"));
    let standby = node["standby"].as_str();
    let state = if link["state"] == "up" {
        let round_trip = link["round_trip_us"].as_f64().map(|us| format!(", round trip {:.1} ms", us / 1e3));
        let waiting = human_size(number("outbox_bytes"));
        let at = standby.zip(link["peer"].as_str()).map(|(_, peer)| format!(", to the process at {peer}"));
        let (at, round_trip) = (at.unwrap_or_default(), round_trip.unwrap_or_default());
        format!("up for {since}{at}{round_trip}, {waiting} wait to be sent")
    } else {
        let why = link["error"].as_str().unwrap_or("this node waits for it to connect, and it has not since the start");
        format!("DOWN for {since}: {why}")
    };
    let also = standby.map(|address| format!(", standby at {address}")).unwrap_or_default();
    let mut out = format!("{} at {}{also}: {state}", text(&node["name"]), text(&node["address"]));
    if let Some(refused) = link.get("refused").filter(|refused| refused.is_object()) {
        let (address, ago) = (text(&refused["address"]), duration(refused["ago_s"].as_u64().unwrap_or_default()));
        let _ = write!(out, "; A SECOND PROCESS with this name, at {address}, was refused {ago} ago");
    }
    let differing: Vec<String> = link["differing_namespaces"].as_array().into_iter().flatten().map(namespace).collect();
    if !differing.is_empty() {
        let _ = write!(out, "; OTHER OPTIONS there for {}", differing.join(", "));
    }
    Some(out)
}

/// What the names of the channels of a namespace begin with, in words.
fn namespace(name: &Value) -> String {
    match name.as_str() {
        None | Some("") => "channels without a namespace".to_owned(),
        Some(name) => name.to_owned(),
    }
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
            {"name": "e", "address": "n5:7000", "home": false, "link": {"state": "up", "since_s": 5, "outbox_bytes": 0,
                "refused": {"address": "10.0.0.9:5000", "ago_s": 2}, "differing_namespaces": ["", "chat:"]}},
            {"name": "f", "address": "n6:7000", "standby": "n7:7000", "home": true,
                "link": {"state": "up", "since_s": 9, "peer": "n7:7000", "tenure": 2, "outbox_bytes": 0}},
        ]});
        assert_eq!(cluster(&nodes), "node a of 6; homes: a, b, f");
        let front = serde_json::json!({"name": "c", "nodes": nodes["nodes"]});
        assert_eq!(cluster(&front), "node c of 6, a front without disks; homes: a, b, f");
        assert_eq!(link(&nodes["nodes"][0]), None);
        let shown = |at: usize| link(&nodes["nodes"][at]).expect("a link");
        assert_eq!(shown(1), "b at n2:7000: up for 1 min 2 s, round trip 0.3 ms, 2 KiB wait to be sent");
        assert_eq!(shown(2), "c at n3:7000: DOWN for 5 s: no answer");
        assert_eq!(
            shown(3),
            "d at n4:7000: DOWN for 5 s: this node waits for it to connect, and it has not since the start"
        );
        assert_eq!(
            shown(4),
            "e at n5:7000: up for 5 s, 0 B wait to be sent; A SECOND PROCESS with this name, at 10.0.0.9:5000, was refused 2 s \
             ago; OTHER OPTIONS there for channels without a namespace, chat:"
        );
        assert_eq!(
            shown(5),
            "f at n6:7000, standby at n7:7000: up for 9 s, to the process at n7:7000, 0 B wait to be sent"
        );
    }
}
