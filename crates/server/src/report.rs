//! The status of a server as a table for people.

use std::fmt::Write;

use serde_json::Value;

use crate::config::Size;
use crate::disks::words;

/// A size for people: three digits or so.
pub fn size(bytes: u64) -> String {
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

/// A duration for people.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// The value below which a `quantile` of a histogram's counts lie, as an upper bound: bucket `i` holds values below `2^(i+1)`.
pub fn quantile(histogram: &Value, quantile: f64) -> Option<u64> {
    let counts: Vec<u64> = histogram["buckets"].as_array()?.iter().filter_map(Value::as_u64).collect();
    let total: u64 = counts.iter().sum();
    let rank = (total as f64 * quantile).ceil() as u64;
    let mut seen = 0;
    counts
        .iter()
        .position(|count| {
            seen += count;
            total > 0 && seen >= rank
        })
        .map(|bucket| 2u64.saturating_pow(bucket as u32 + 1))
}

/// The table.
pub fn table(status: &Value) -> String {
    let mut out = String::new();
    let number = |path: &str| status.pointer(path).and_then(Value::as_u64);
    let text = |path: &str| status.pointer(path).and_then(Value::as_str).unwrap_or("?").to_owned();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {value}");
    };
    line("version", text("/version"));
    line("up", duration(number("/uptime_s").unwrap_or_default()));
    let ready =
        if status["ready"] == Value::Bool(true) { "yes".to_owned() } else { format!("NO: {}", text("/not_ready")) };
    line("ready", ready);
    line("disk", text("/disk/description"));
    let disks = status.pointer("/store/disks").and_then(Value::as_array).filter(|disks| disks.len() > 1);
    for disk in disks.into_iter().flatten() {
        let text = |key: &str| disk[key].as_str().unwrap_or("?");
        let objects = disk["objects"].as_u64().map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
        let mut value =
            format!("{}: {objects} objects, {} of {} slots", text("name"), disk["slots"], disk["slots_total"]);
        if let Some(trouble) = disk["trouble"].as_str() {
            let _ = write!(value, ", {}: {trouble}", text("state").to_uppercase().replace('_', "-"));
        }
        line("  of it", value);
    }
    if let Some(superdisk) = words::line_in(&status["superdisk"]) {
        line("super-disk", superdisk);
    }
    if let (Some(used), Some(limit)) = (number("/disk/len_bytes"), number("/disk/geometry/capacity_bytes")) {
        line("pool", format!("{} of at most {}", size(used), size(limit)));
    }
    if let Some(extents) = status.pointer("/store/log/extents").and_then(Value::as_object) {
        let counts: Vec<String> = extents
            .iter()
            .filter_map(|(name, value)| {
                let value = value.as_u64()?;
                let shown = if name.ends_with("_bytes") { size(value) } else { value.to_string() };
                Some(format!("{} {shown}", name.trim_end_matches("_bytes").replace('_', " ")))
            })
            .collect();
        line("extents", counts.join(", "));
    }
    if let Some(compaction) = status.pointer("/store/log/compaction") {
        let n = |key: &str| compaction[key].as_u64().unwrap_or_default();
        let mut value = format!("{} extents won back, {} moved", n("recycled"), size(n("moved_bytes")));
        if n("waiting_for_checkpoint") > 0 {
            let _ = write!(value, ", {} waiting for the index", n("waiting_for_checkpoint"));
        }
        if compaction["space_low"] == Value::Bool(true) {
            value.push_str(", SPACE IS LOW");
        }
        if let Some(stuck) = compaction["stuck"].as_array().filter(|stuck| !stuck.is_empty()) {
            let _ = write!(value, ", {} STUCK", stuck.len());
        }
        line("compaction", value);
    }
    if let Some(scrub) = status.pointer("/store/log/scrub") {
        let n = |key: &str| scrub[key].as_u64().unwrap_or_default();
        let pass = if scrub["running"] == Value::Bool(true) {
            format!("{} of {} extents of this pass", n("extents_done"), n("extents_total"))
        } else {
            format!("{} passes", n("passes"))
        };
        let found = if n("damaged") == 0 { "no damage".to_owned() } else { format!("{} DAMAGED", n("damaged")) };
        line("scrub", format!("{pass}, {} read, {found}", size(n("read_bytes"))));
    }
    if let (Some(accepted), Some(durable)) = (number("/store/log/accepted_lsn"), number("/store/log/durable_lsn")) {
        line("commits", format!("LSN {durable} durable, {} on their way", accepted.saturating_sub(durable)));
    }
    if let Some(flush) = status.pointer("/store/log/flush_us")
        && let (Some(half), Some(most)) = (quantile(flush, 0.5), quantile(flush, 0.99))
    {
        line("flush", format!("{} so far; half below {half} us, 99 % below {most} us", flush["count"]));
    }
    if let Some(group) = status.pointer("/store/log/group_size")
        && let (Some(half), Some(most)) = (quantile(group, 0.5), quantile(group, 0.99))
    {
        line("group", format!("half below {half} commits a flush, 99 % below {most}"));
    }
    if let Some(bounds) = status["bounds"].as_array() {
        for bound in bounds {
            let n = |key: &str| bound[key].as_u64().unwrap_or_default();
            line(
                "bound",
                format!(
                    "{}: {} of {}, {} waiting, {} refused",
                    bound["name"].as_str().unwrap_or("?"),
                    n("used"),
                    n("limit"),
                    n("waiting"),
                    n("refused")
                ),
            );
        }
    }
    if let (Some(open), Some(limit)) = (number("/connections/open"), number("/connections/limit")) {
        line("connections", format!("{open} of {limit}"));
    }
    if let Some(bytes) = number("/memory/resident_bytes") {
        line(
            "memory",
            format!("{} (at most {})", size(bytes), size(number("/memory/resident_bytes_max").unwrap_or(bytes))),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_people() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size(1_500_000), "1.4 MiB");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(3_700), "1 h 1 min");
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let histogram = serde_json::json!({"buckets": [0, 0, 5, 4, 1], "count": 10, "sum": 90});
        assert_eq!(quantile(&histogram, 0.5), Some(8));
        assert_eq!(quantile(&histogram, 0.9), Some(16));
        assert_eq!(quantile(&histogram, 1.0), Some(32));
        assert_eq!(quantile(&serde_json::json!({"buckets": []}), 0.5), None);
    }

    #[test]
    fn whatever_a_server_says_gives_a_table() {
        assert!(table(&serde_json::json!({})).contains("ready        NO"));
        assert!(table(&serde_json::json!({"ready": true, "disk": 7, "bounds": [1, {"name": "x"}]})).contains("yes"));
    }
}
