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

/// The block devices of a status, for people.
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
            size(number(&export["window"], "len")),
            number(export, "connections"),
            size(number(counts, "read_bytes")),
            size(number(counts, "written_bytes")),
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
            let dirty = size(number(superdisk, "dirty_bytes"));
            let _ = writeln!(out, "{:<12} {dirty} would be copied after a crash", "dirty");
            if let Some(why) = superdisk["refused"].as_str() {
                let _ = writeln!(out, "{:<12} the fast leg did not count at the start: {why}", "");
            }
        }
        for leg in device["disks"].as_array().into_iter().flatten().filter_map(leg) {
            let _ = writeln!(out, "{:<12} {leg}", "leg");
        }
    }
    out
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

/// A time for people, from microseconds.
fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// What a device of a leg did and how long that took, in a line, from its row of the status; `None` where that is not measured.
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

/// Damaged places that the table shows.
const DAMAGE_SHOWN_MAX: usize = 10;

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
    let _ = write!(out, ", {} read", size(n("read_bytes")));
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

/// A damaged place in a line: what it concerns, where it is, what is wrong.
pub fn damage(damage: &Value) -> String {
    let concerns: Vec<&str> = damage["concerns"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let concerns = if concerns.is_empty() { "what it concerns cannot be told".to_owned() } else { concerns.join(", ") };
    let disk = damage["disk"].as_str().unwrap_or("?");
    format!(
        "{concerns}: extent {} at {} of {disk}: {}",
        damage["extent"],
        damage["offset"],
        damage["what"].as_str().unwrap_or("?")
    )
}

/// The live door in a line, from its status.
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
        let _ = write!(out, "; {} wait for {} sessions", size(n("queued_bytes")), n("queued_sessions"));
    }
    if n("slow") > 0 {
        let _ = write!(out, "; {} ended as slow", n("slow"));
    }
    out
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
    if let Some(moving) = status.pointer("/store/moving").and_then(words::moving) {
        line("moving", moving);
    }
    let disks = status.pointer("/store/disks").and_then(Value::as_array).into_iter().flatten();
    for disk in disks.filter(|disk| disk["full"] == Value::Bool(true)) {
        line("  FULL", format!("{} has no room for new data", disk["name"].as_str().unwrap_or("?")));
    }
    for row in status["disks"].as_array().into_iter().flatten().filter(|row| row["state"] == "hangs") {
        let age = |key: &str| row["stats"][key].as_u64().unwrap_or_default();
        let ms = age("oldest_read_ms").max(age("oldest_write_ms"));
        line(
            "  HANGS",
            format!("{} has not answered a request for {} s", row["path"].as_str().unwrap_or("?"), ms / 1000),
        );
    }
    for superdisk in words::lines_in(&status["superdisks"]) {
        line("super-disk", superdisk);
    }
    for leg in status["disks"].as_array().into_iter().flatten().filter_map(leg) {
        line("leg", leg);
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
    if let Some(uploads) = number("/store/uploads").filter(|uploads| *uploads > 0) {
        line("uploads", format!("{uploads} in parts, neither completed nor aborted: they keep what they have stored"));
    }
    if let Some(snapshots) =
        status.pointer("/store/snapshots").and_then(Value::as_array).filter(|list| !list.is_empty())
    {
        let kept = number("/store/log/extents/held_bytes").unwrap_or_default();
        let oldest = snapshots[0]["name"].as_str().unwrap_or("?");
        line("snapshots", format!("{}, the oldest is {oldest}; they keep {}", snapshots.len(), size(kept)));
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
        line("scrub", self::scrub(scrub));
        let all = scrub["damage"].as_array().map_or(&[][..], Vec::as_slice);
        for one in all.iter().take(DAMAGE_SHOWN_MAX) {
            line("  DAMAGED", damage(one));
        }
        if all.len() > DAMAGE_SHOWN_MAX {
            line(
                "  DAMAGED",
                format!("... and {} more places: `steadfast scrub status`", all.len() - DAMAGE_SHOWN_MAX),
            );
        }
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
    if let Some(live) = status.get("live") {
        line("live", self::live(live));
    }
    for hook in status["webhooks"].as_array().into_iter().flatten() {
        let n = |key: &str| hook[key].as_u64().unwrap_or_default();
        let now = if hook["failing"] == true { "; failing now" } else { "" };
        let name = hook["name"].as_str().unwrap_or("?");
        let [delivered, failures, dropped, dead] = ["delivered", "failures", "dropped", "dead"].map(n);
        let text = format!("{delivered} delivered, {failures} failures, {dropped} dropped, {dead} dead letters");
        line("webhook", format!("{name}: {text}{now}"));
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
    if let (Some(used), Some(limit)) = (number("/store/cache/bytes"), number("/store/cache/bytes_max")) {
        line("read cache", format!("{} of {}", size(used), size(limit)));
    }
    if let Some(bytes) = number("/memory/resident_bytes") {
        line(
            "memory",
            format!("{} (at most {})", size(bytes), size(number("/memory/resident_bytes_max").unwrap_or(bytes))),
        );
    }
    out.push_str(&block_lines(status));
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
    fn a_leg_says_how_long_its_device_takes() {
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
    fn the_scrub_says_how_far_it_is_what_it_healed_and_what_is_lost() {
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
    fn the_live_door_says_who_is_there_and_who_was_slow() {
        let json = serde_json::json!({"sessions": 3, "subscriptions": 5, "channels": 2, "publications": 7, "deliveries": 9,
            "sessions_by": [{"encoding": "json", "transport": "websocket", "sessions": 3},
                            {"encoding": "protobuf", "transport": "websocket", "sessions": 0}],
            "queued_sessions": 1, "queued_bytes": 2048, "slow": 4});
        let expected = "3 sessions (3 websocket json), 5 subscriptions, 2 channels; 7 publications, 9 deliveries; \
                        2 KiB wait for 1 sessions; 4 ended as slow";
        assert_eq!(live(&json), expected);
    }

    #[test]
    fn whatever_a_server_says_gives_a_table() {
        assert!(table(&serde_json::json!({})).contains("ready        NO"));
        let cache = serde_json::json!({"store": {"cache": {"bytes": 4096, "bytes_max": 1 << 30}}});
        assert!(table(&cache).contains("read cache   4 KiB of 1 GiB"));
        assert!(table(&serde_json::json!({"ready": true, "disk": 7, "bounds": [1, {"name": "x"}]})).contains("yes"));
        let hook = serde_json::json!({"name": "app", "delivered": 5, "failures": 2, "dropped": 0, "failing": true});
        let shown = table(&serde_json::json!({"webhooks": [hook, 7]}));
        assert!(shown.contains("app: 5 delivered, 2 failures, 0 dropped, 0 dead letters; failing now"), "{shown}");
    }
}
