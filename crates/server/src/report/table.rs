//! The table: a line for each part of the server.

use std::fmt::Write;

use serde_json::Value;

use super::{block_lines, cluster, damage, duration, edge_bucket, leg, live, quantile, scrub};
use crate::config::human_size;
use crate::disks::words;

/// Maximum number of damaged places in the table.
const DAMAGE_SHOWN_MAX: usize = 10;

/// The status as a table.
pub fn table(status: &Value) -> String {
    let mut table = Table(String::new());
    table.server(status);
    table.pool_disks(status);
    table.devices(status);
    table.space(status);
    table.compaction(status);
    table.scrub(status);
    table.commits(status);
    table.archive(status);
    table.standby(status);
    table.live(status);
    table.webhooks(status);
    table.edge(status);
    table.cluster(status);
    table.bounds(status);
    table.memory(status);
    table.0.push_str(&block_lines(status));
    table.0
}

/// A number at a JSON pointer of the status.
fn number(status: &Value, path: &str) -> Option<u64> {
    status.pointer(path).and_then(Value::as_u64)
}

/// A text at a JSON pointer of the status; `?` if it has none.
fn text(status: &Value, path: &str) -> String {
    status.pointer(path).and_then(Value::as_str).unwrap_or("?").to_owned()
}

/// The lines so far. Each method adds those of its part.
struct Table(String);

impl Table {
    fn line(&mut self, name: &str, value: String) {
        let _ = writeln!(self.0, "{name:<12} {value}");
    }

    /// The state that is served read-only, or how far the archive is.
    fn archive(&mut self, status: &Value) {
        if let Some(time_ms) = number(status, "/point/time_ms") {
            let from = text(status, "/point/from");
            self.line("serves", format!("the state of {} from {from}, read-only", words::utc(time_ms)));
        }
        let archive = &status["archive"];
        if archive.is_null() {
            return;
        }
        let seconds = |key: &str| duration(archive[key].as_f64().unwrap_or_default() as u64);
        let behind =
            format!("{} and {} behind", seconds("lag_seconds"), human_size(number(archive, "/lag_bytes").unwrap_or(0)));
        let state = match archive["state"].as_str().unwrap_or("?") {
            "claiming" => "waiting for the store".to_owned(),
            "copying" => format!("the first copy is being made, {behind}: NOTHING CAN BE RESTORED YET"),
            "following" => behind,
            state => format!("{}: {}", state.to_uppercase(), text(archive, "/error")),
        };
        self.line("archive", format!("{}: {state}", text(archive, "/to")));
        if let Some(why) = archive["failing"].as_str() {
            self.line("", format!("requests have failed for {}: {why}", seconds("failing_seconds")));
        }
    }

    /// How far a standby is.
    fn standby(&mut self, status: &Value) {
        let standby = &status["standby"];
        let Some(from) = standby["from"].as_str() else { return };
        let seconds = |key: &str| duration(standby[key].as_f64().unwrap_or_default() as u64);
        let left = human_size(number(standby, "/lag_bytes").unwrap_or(0));
        self.line("standby", format!("of {from}: {} behind, {left} are left to be copied", seconds("lag_seconds")));
        if let Some(time_ms) = number(standby, "/copied_ms") {
            self.line("", format!("it has the state of {}", words::utc(time_ms)));
        }
        if let Some(why) = standby["failing"].as_str() {
            self.line("", format!("requests have failed for {}: {why}", seconds("failing_seconds")));
        }
        if let Some(why) = standby["error"].as_str() {
            self.line("", why.to_owned());
        }
    }

    /// The version, and whether the server is ready.
    fn server(&mut self, status: &Value) {
        self.line("version", text(status, "/version"));
        self.line("up", duration(number(status, "/uptime_s").unwrap_or_default()));
        let ready = if status["ready"] == Value::Bool(true) {
            "yes".to_owned()
        } else {
            format!("NO: {}", text(status, "/not_ready"))
        };
        self.line("ready", ready);
    }

    /// The disks of the pool, the move between them, and those that are full.
    fn pool_disks(&mut self, status: &Value) {
        if let Some(disk) = status.pointer("/disk/description").and_then(Value::as_str) {
            self.line("disk", disk.to_owned());
        }
        let disks = status.pointer("/store/disks").and_then(Value::as_array).filter(|disks| disks.len() > 1);
        for disk in disks.into_iter().flatten() {
            let text = |key: &str| disk[key].as_str().unwrap_or("?");
            let objects = disk["objects"].as_u64().map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
            let mut value =
                format!("{}: {objects} objects, {} of {} slots", text("name"), disk["slots"], disk["slots_total"]);
            if let Some(failure) = disk["failure"].as_str() {
                let _ = write!(value, ", {}: {failure}", text("state").to_uppercase().replace('_', "-"));
            }
            self.line("  of it", value);
        }
        if let Some(moving) = status.pointer("/store/moving").and_then(words::moving) {
            self.line("moving", moving);
        }
        let disks = status.pointer("/store/disks").and_then(Value::as_array).into_iter().flatten();
        for disk in disks.filter(|disk| disk["full"] == Value::Bool(true)) {
            self.line("  FULL", format!("{} has no space for new data", disk["name"].as_str().unwrap_or("?")));
        }
    }

    /// The devices that hang, the super-disks, and the requests of each leg.
    fn devices(&mut self, status: &Value) {
        for row in status["disks"].as_array().into_iter().flatten().filter(|row| row["state"] == "hangs") {
            let age = |key: &str| row["stats"][key].as_u64().unwrap_or_default();
            let ms = age("oldest_read_ms").max(age("oldest_write_ms"));
            self.line(
                "  HANGS",
                format!("{} has not answered a request for {} s", row["path"].as_str().unwrap_or("?"), ms / 1000),
            );
        }
        for superdisk in words::lines_in(&status["superdisks"]) {
            self.line("super-disk", superdisk);
        }
        for leg in status["disks"].as_array().into_iter().flatten().filter_map(leg) {
            self.line("leg", leg);
        }
    }

    /// The size of the pool, its extents, and the uploads that keep space.
    fn space(&mut self, status: &Value) {
        if let (Some(used), Some(limit)) =
            (number(status, "/disk/len_bytes"), number(status, "/disk/geometry/capacity_bytes"))
        {
            self.line("pool", format!("{} of at most {}", human_size(used), human_size(limit)));
        }
        if let Some(extents) = status.pointer("/store/log/extents").and_then(Value::as_object) {
            let counts: Vec<String> = extents
                .iter()
                .filter_map(|(name, value)| {
                    let value = value.as_u64()?;
                    let shown = if name.ends_with("_bytes") { human_size(value) } else { value.to_string() };
                    Some(format!("{} {shown}", name.trim_end_matches("_bytes").replace('_', " ")))
                })
                .collect();
            self.line("extents", counts.join(", "));
        }
        if let Some(uploads) = number(status, "/store/uploads").filter(|uploads| *uploads > 0) {
            self.line("uploads", format!("{uploads} multipart, neither completed nor aborted: they keep their parts"));
        }
    }

    /// The compaction, and whether space is low.
    fn compaction(&mut self, status: &Value) {
        let Some(compaction) = status.pointer("/store/log/compaction") else { return };
        let n = |key: &str| compaction[key].as_u64().unwrap_or_default();
        let mut value = format!("{} extents reclaimed, {} moved", n("recycled"), human_size(n("moved_bytes")));
        if n("waiting_for_checkpoint") > 0 {
            let _ = write!(value, ", {} waiting for the index", n("waiting_for_checkpoint"));
        }
        if compaction["space_low"] == Value::Bool(true) {
            value.push_str(", SPACE IS LOW");
        }
        if let Some(stuck) = compaction["stuck"].as_array().filter(|stuck| !stuck.is_empty()) {
            let _ = write!(value, ", {} STUCK", stuck.len());
        }
        self.line("compaction", value);
    }

    /// The scrub and the first damaged places.
    fn scrub(&mut self, status: &Value) {
        let Some(status) = status.pointer("/store/log/scrub") else { return };
        self.line("scrub", scrub(status));
        let all = status["damage"].as_array().map_or(&[][..], Vec::as_slice);
        for one in all.iter().take(DAMAGE_SHOWN_MAX) {
            self.line("  DAMAGED", damage(one));
        }
        if all.len() > DAMAGE_SHOWN_MAX {
            self.line(
                "  DAMAGED",
                format!("... and {} more places: `steadfast scrub status`", all.len() - DAMAGE_SHOWN_MAX),
            );
        }
    }

    /// The commits of the log, its flushes, and the size of its groups.
    fn commits(&mut self, status: &Value) {
        if let (Some(accepted), Some(durable)) =
            (number(status, "/store/log/accepted_lsn"), number(status, "/store/log/durable_lsn"))
        {
            self.line("commits", format!("LSN {durable} durable, {} pending", accepted.saturating_sub(durable)));
        }
        if let Some(flush) = status.pointer("/store/log/flush_us")
            && let (Some(half), Some(most)) = (quantile(flush, 0.5), quantile(flush, 0.99))
        {
            self.line("flush", format!("{} so far; half below {half} us, 99 % below {most} us", flush["count"]));
        }
        if let Some(group) = status.pointer("/store/log/group_size")
            && let (Some(half), Some(most)) = (quantile(group, 0.5), quantile(group, 0.99))
        {
            self.line("group", format!("half below {half} commits a flush, 99 % below {most}"));
        }
    }

    /// The live port, if the server has one.
    fn live(&mut self, status: &Value) {
        if let Some(status) = status.get("live") {
            self.line("live", live(status));
        }
    }

    /// The deliveries of each webhook.
    fn webhooks(&mut self, status: &Value) {
        for hook in status["webhooks"].as_array().into_iter().flatten() {
            let n = |key: &str| hook[key].as_u64().unwrap_or_default();
            let now = if hook["failing"] == true { "; failing now" } else { "" };
            let name = hook["name"].as_str().unwrap_or("?");
            let [delivered, failures, dropped, dead] = ["delivered", "failures", "dropped", "dead"].map(n);
            let text = format!("{delivered} delivered, {failures} failures, {dropped} dropped, {dead} dead letters");
            self.line("webhook", format!("{name}: {text}{now}"));
        }
    }

    /// Each bucket with an origin.
    fn edge(&mut self, status: &Value) {
        for bucket in status["edge"]["buckets"].as_array().into_iter().flatten() {
            self.line("edge", edge_bucket(bucket));
        }
    }

    /// The nodes of the cluster and the links to them.
    fn cluster(&mut self, status: &Value) {
        let Some(of) = status.get("cluster") else { return };
        self.line("cluster", cluster::cluster(of));
        for link in of["nodes"].as_array().into_iter().flatten().filter_map(cluster::link) {
            self.line("link", link);
        }
    }

    /// The bounds of the server, and its connections.
    fn bounds(&mut self, status: &Value) {
        if let Some(bounds) = status["bounds"].as_array() {
            for bound in bounds {
                let n = |key: &str| bound[key].as_u64().unwrap_or_default();
                self.line(
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
        if let (Some(open), Some(limit)) = (number(status, "/connections/open"), number(status, "/connections/limit")) {
            self.line("connections", format!("{open} of {limit}"));
        }
    }

    /// The read cache, and the memory of the process.
    fn memory(&mut self, status: &Value) {
        if let (Some(used), Some(limit)) =
            (number(status, "/store/cache/bytes"), number(status, "/store/cache/bytes_max"))
        {
            self.line("read cache", format!("{} of {}", human_size(used), human_size(limit)));
        }
        if let Some(bytes) = number(status, "/memory/resident_bytes") {
            let max = number(status, "/memory/resident_bytes_max").unwrap_or(bytes);
            self.line("memory", format!("{} (at most {})", human_size(bytes), human_size(max)));
        }
    }
}
