//! The status of a server as a table.

mod cluster;
mod edge;
mod table;

use std::fmt::Write;

use serde_json::Value;

use crate::config::human_size;
use crate::disks::words;
pub use edge::edge_bucket;
pub use table::table;

/// The block devices of a status, as lines of the table.
pub fn block_lines(status: &Value) -> String {
    let mut out = String::new();
    for device in status["block"].as_array().into_iter().flatten() {
        let (export, counts) = (&device["export"], &device["export"]["counts"]);
        let number = |of: &Value, key: &str| of[key].as_u64().unwrap_or_default();
        let text = |key: &str| device[key].as_str().unwrap_or("?");
        let _ = writeln!(
            out,
            "{:<12} {} at {}: {} in {} connections, {} read, {} written",
            "block",
            text("name"),
            text("listen"),
            human_size(number(&export["window"], "len")),
            number(export, "connections"),
            human_size(number(counts, "read_bytes")),
            human_size(number(counts, "written_bytes")),
        );
        if let Some(failure) = export["failure"].as_str() {
            let _ = writeln!(out, "{:<12} writes are refused after an error: {failure}", "  FAILED");
        }
        if number(export, "oldest_request_ms") >= 5000 {
            let seconds = number(export, "oldest_request_ms") / 1000;
            let _ = writeln!(out, "{:<12} a request has not been answered for {seconds} s", "  HANGS");
        }
        for superdisk in words::lines_in(&device["superdisks"]) {
            let _ = writeln!(out, "{:<12} {superdisk}", "super-disk");
        }
        for superdisk in device["superdisks"].as_array().into_iter().flatten() {
            let dirty = human_size(number(superdisk, "dirty_bytes"));
            let _ = writeln!(out, "{:<12} {dirty} would be copied after a crash", "dirty");
            if let Some(why) = superdisk["refused"].as_str() {
                let _ = writeln!(out, "{:<12} the fast leg was not used at the start: {why}", "");
            }
        }
        for leg in device["disks"].as_array().into_iter().flatten().filter_map(leg) {
            let _ = writeln!(out, "{:<12} {leg}", "leg");
        }
    }
    out
}

/// A duration in readable units.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// The upper bound of a `quantile` of a histogram: bucket `i` holds values below `2^(i+1)`.
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

/// A time in readable units, from microseconds.
fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// The requests and latencies of a device in a line, from its row of the status; `None` if they are
/// not measured.
fn leg(row: &Value) -> Option<String> {
    let latency = row["latency"].as_object()?;
    let text = |key: &str| row[key].as_str().unwrap_or("?");
    let mut out = format!("{} {}", text("role"), text("path"));
    for (name, key) in [("reads", "read_us"), ("writes", "write_us"), ("flushes", "flush_us")] {
        let counted = latency.get(key).unwrap_or(&Value::Null);
        let (count, max) = (counted["count"].as_u64().unwrap_or_default(), counted["max"].as_u64().unwrap_or_default());
        let separator = if key == "read_us" { ":" } else { ";" };
        let _ = write!(out, "{separator} {count} {name}");
        if let (Some(half), Some(most)) = (quantile(counted, 0.5), quantile(counted, 0.99)) {
            let [half, most, max] = [half.min(max), most.min(max), max].map(micros);
            let _ = write!(out, " (half within {half}, 99 % within {most}, all within {max})");
        }
    }
    Some(out)
}

/// The scrub in a line, from its status.
pub fn scrub(scrub: &Value) -> String {
    let n = |key: &str| scrub[key].as_u64().unwrap_or_default();
    let mut out = if scrub["running"] == Value::Bool(true) {
        let state = if scrub["paused"] == Value::Bool(true) { ", WAITING for scrub.window" } else { "" };
        let percent = 100 * n("extents_done") / n("extents_total").max(1);
        let mut pass =
            format!("{} of {} extents of this pass ({percent} %){state}", n("extents_done"), n("extents_total"));
        if let Some(end) = scrub["expected_end_ms"].as_u64() {
            let _ = write!(pass, ", ends about {}", words::utc(end));
        }
        pass
    } else {
        let mut passes = format!("{} passes", n("passes"));
        if let Some(last) = scrub["last_pass_ms"].as_u64() {
            let _ = write!(passes, ", the last ended {}", words::utc(last));
        }
        if let Some(next) = scrub["next_ms"].as_u64() {
            let _ = write!(passes, ", the next begins {}", words::utc(next));
        }
        passes
    };
    let _ = write!(out, ", {} read", human_size(n("read_bytes")));
    let copies = |at: usize| scrub["healed_copies"][at].as_u64().unwrap_or_default();
    if copies(0) + copies(1) > 0 {
        let _ = write!(
            out,
            ", healed {} on the pool (from the fast leg) and {} on the fast leg (from the pool)",
            copies(0),
            copies(1)
        );
    }
    match n("damaged") {
        0 => out.push_str(", no damage"),
        damaged => {
            let _ = write!(out, ", {damaged} DAMAGED");
        }
    }
    out
}

/// A damaged place in a line: what it concerns, its place, the fault.
pub fn damage(damage: &Value) -> String {
    let concerns: Vec<&str> = damage["concerns"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let concerns = if concerns.is_empty() { "unknown data".to_owned() } else { concerns.join(", ") };
    let disk = damage["disk"].as_str().unwrap_or("?");
    format!(
        "{concerns}: extent {} at {} of {disk}: {}",
        damage["extent"],
        damage["offset"],
        damage["what"].as_str().unwrap_or("?")
    )
}

/// The live port in a line, from its status.
pub fn live(live: &Value) -> String {
    let n = |key: &str| live[key].as_u64().unwrap_or_default();
    let kinds = live["sessions_by"].as_array().into_iter().flatten().filter(|kind| kind["sessions"] != 0);
    let text = |kind: &Value, key: &str| kind[key].as_str().unwrap_or("?").to_owned();
    let kinds =
        kinds.map(|kind| format!("{} {} {}", kind["sessions"], text(kind, "transport"), text(kind, "encoding")));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let mut out = format!("{} sessions", n("sessions"));
    if !kinds.is_empty() {
        let _ = write!(out, " ({kinds})");
    }
    let _ = write!(
        out,
        ", {} subscriptions, {} channels; {} publications, {} deliveries",
        n("subscriptions"),
        n("channels"),
        n("publications"),
        n("deliveries")
    );
    if n("queued_sessions") > 0 {
        let _ = write!(out, "; {} wait for {} sessions", human_size(n("queued_bytes")), n("queued_sessions"));
    }
    if n("slow") > 0 {
        let _ = write!(out, "; {} ended as slow", n("slow"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_units() {
        assert_eq!(human_size(0), "0 B");
        assert_eq!(human_size(64 << 20), "64 MiB");
        assert_eq!(human_size(1_500_000), "1.4 MiB");
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
    fn a_leg_shows_the_latency_of_its_device() {
        let row = serde_json::json!({"role": "fast", "path": "/dev/b", "latency": {
            "read_us": {"buckets": [0, 0, 0, 0, 0, 98, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], "count": 100, "sum": 9, "max": 1_300_000},
            "write_us": {"buckets": [0, 0, 3], "count": 3, "sum": 15, "max": 5},
            "flush_us": {"buckets": [], "count": 0, "sum": 0, "max": 0}}});
        let expected = "fast /dev/b: 100 reads (half within 64 us, 99 % within 8.2 ms, all within 1.3 s); \
                        3 writes (half within 5 us, 99 % within 5 us, all within 5 us); 0 flushes";
        assert_eq!(leg(&row).as_deref(), Some(expected));
        assert_eq!(leg(&serde_json::json!({"role": "durable", "latency": null})), None);
        assert!(table(&serde_json::json!({"disks": [row, 7]})).contains("leg          fast /dev/b: 100 reads"));
    }

    #[test]
    fn the_scrub_shows_progress_repairs_and_damage() {
        let json = serde_json::json!({"running": true, "paused": true, "extents_done": 3, "extents_total": 12, "read_bytes": 4096,
            "expected_end_ms": 951_782_400_000u64, "healed_copies": [2, 5], "damaged": 1});
        let line = scrub(&json);
        for word in [
            "3 of 12",
            "25 %",
            "WAITING for scrub.window",
            "2000-02-29 00:00:00 UTC",
            "healed 2 on the pool (from the fast leg) and 5",
            "1 DAMAGED",
        ] {
            assert!(line.contains(word), "{word}: {line}");
        }
        let line = scrub(&serde_json::json!({"passes": 2, "next_ms": 0}));
        assert!(line.contains("2 passes, the next begins 1970-01-01") && line.contains("no damage"), "{line}");
        let line = damage(
            &serde_json::json!({"disk": "/dev/x", "extent": 7, "offset": 4096, "what": "zeros", "concerns": ["object b/k"]}),
        );
        assert_eq!(line, "object b/k: extent 7 at 4096 of /dev/x: zeros");
    }

    #[test]
    fn the_live_port_shows_sessions_and_slow_clients() {
        let json = serde_json::json!({"sessions": 3, "subscriptions": 5, "channels": 2, "publications": 7, "deliveries": 9,
            "sessions_by": [{"encoding": "json", "transport": "websocket", "sessions": 3},
                            {"encoding": "protobuf", "transport": "websocket", "sessions": 0}],
            "queued_sessions": 1, "queued_bytes": 2048, "slow": 4});
        let expected = "3 sessions (3 websocket json), 5 subscriptions, 2 channels; 7 publications, 9 deliveries; \
                        2 KiB wait for 1 sessions; 4 ended as slow";
        assert_eq!(live(&json), expected);
    }

    #[test]
    fn any_status_gives_a_table() {
        assert!(table(&serde_json::json!({})).contains("ready        NO"));
        let cache = serde_json::json!({"store": {"cache": {"bytes": 4096, "bytes_max": 1 << 30}}});
        assert!(table(&cache).contains("read cache   4 KiB of 1 GiB"));
        assert!(table(&serde_json::json!({"ready": true, "disk": 7, "bounds": [1, {"name": "x"}]})).contains("yes"));
        let hook = serde_json::json!({"name": "app", "delivered": 5, "failures": 2, "dropped": 0, "failing": true});
        let shown = table(&serde_json::json!({"webhooks": [hook, 7]}));
        assert!(shown.contains("app: 5 delivered, 2 failures, 0 dropped, 0 dead letters; failing now"), "{shown}");
    }
}
