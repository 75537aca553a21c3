//! Texts about super-disks and moves, with what the operator does.

use serde_json::Value;
use time::OffsetDateTime;

use super::fast::FastLeg;
use crate::config::human_size;

/// The meaning of a state and what to do; `None` for states that need no action.
pub fn advice(fast: &FastLeg) -> Option<String> {
    let why = fast.why().map(|why| format!(" ({why})")).unwrap_or_default();
    let text = match fast.state() {
        "missing" if fast.degraded() => format!(
            "the fast leg is missing{why}. The pool serves all requests, at its speed; no data is lost. What to do: attach \
             or replace the disk, or correct the configuration; restart; the server rebuilds the leg. For fast disks that are not \
             blank, or a stripe with a missing disk: `steadfast format --fast-only --force` recreates the leg and leaves the pool alone"
        ),
        "foreign" => format!(
            "the fast leg is not this pool's{why}, and is not touched. The pool serves all requests, at its speed. What to \
             do: if the configuration names the wrong disk, correct it; if the data on the disk may be lost, stop the server, run \
             `steadfast format --fast-only --force`, which leaves the pool alone, and start it again"
        ),
        "failed" => {
            let again =
                if fast.failed_at_start() { "the next start retries it" } else { "the server retries it at intervals" };
            format!(
                "the fast leg has failed{why}. The pool serves all requests, at its speed; no data is lost. What to do: check \
                 the disk (dmesg, smartctl -a); {again}; if it keeps failing, replace it"
            )
        }
        "stale" => {
            "the content of the fast leg is of another time than the pool, so none of it is used: the server rebuilds \
                    it. No action is needed"
                .to_owned()
        }
        _ => return None,
    };
    Some(text)
}

/// A time in UTC as text, from milliseconds since the Unix epoch.
pub fn utc(ms: u64) -> String {
    let at = i64::try_from(ms / 1000).ok().and_then(|unix| OffsetDateTime::from_unix_timestamp(unix).ok());
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, (hour, minute, second)) = (at.date(), at.to_hms());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// A super-disk in one line.
pub fn line(fast: &FastLeg) -> String {
    line_in(fast.status()).unwrap_or_default()
}

/// Super-disks in a line each, from a server's status; with their names if there are several.
pub fn lines_in(status: &Value) -> Vec<String> {
    let all = status.as_array().map_or(&[][..], Vec::as_slice);
    let named = |one: &Value| {
        let line = line_in(one)?;
        Some(if all.len() > 1 { format!("{}: {line}", one["disk"].as_str().unwrap_or("?")) } else { line })
    };
    all.iter().filter_map(named).collect()
}

/// A super-disk in one line, from a server's status; `None` without one.
pub fn line_in(status: &Value) -> Option<String> {
    let fast = FastLeg::from_status(status)?;
    let n = |key: &str| status[key].as_u64().unwrap_or_default();
    let state = fast.state();
    let rebuilding = matches!(state, "rebuilding" | "stale");
    let mut out = if fast.degraded() { "DEGRADED: ".to_owned() } else { String::new() };
    out.push_str(&format!("fast leg {state}"));
    if let Some(why) = fast.why() {
        out.push_str(&format!(" ({why})"));
    }
    if rebuilding {
        let percent = 100 * n("regions_clean") / n("regions_total").max(1);
        out.push_str(&format!(", {percent} % rebuilt, {}/s now", human_size(n("rebuild_bytes_s"))));
    }
    if n("regions_quarantined") > 0 {
        out.push_str(&format!(
            ", {} regions of {} OUT OF USE",
            n("regions_quarantined"),
            human_size(n("region_bytes"))
        ));
    }
    if let Some(percent) = (100 * n("reads_fast")).checked_div(n("reads_fast") + n("reads_durable")) {
        out.push_str(&format!(", {percent} % of reads from it"));
    }
    out.push_str(&format!(", healed {} on it and {} on the pool", n("healed_fast"), n("healed_durable")));
    Some(out)
}

/// The progress of a move in one line, from its status; `None` without a move.
pub fn moving(status: &Value) -> Option<String> {
    let number = |key: &str| status[key].as_u64().unwrap_or_default();
    let disk = status["disk"].as_str()?;
    let what = match status["kind"].as_str()? {
        "add" => format!("{disk} gets its share"),
        "replace" => format!("{disk} is replaced"),
        _ => format!("{disk} is drained"),
    };
    let bytes = format!("{} of about {}", human_size(number("copied_bytes")), human_size(number("bytes_total")));
    let end = match status["state"].as_str()? {
        "failed" => format!("; FAILED: {}", status["error"].as_str().unwrap_or("?")),
        "stopped" => "; interrupted".to_owned(),
        "done" => "; done".to_owned(),
        _ => format!("; {}", status["step"].as_str().unwrap_or_default()),
    };
    let slots = (number("slots_done"), number("slots_total"));
    Some(format!("{what}: {} of {} slots, {} entries, {bytes} copied{end}", slots.0, slots.1, number("copied")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn leg(fast: Value) -> FastLeg {
        let status = json!({"fast": fast, "configured": true, "regions_clean": 3, "regions_total": 4, "reads_fast": 3, "reads_durable": 1,
            "healed_fast": 7});
        FastLeg::from_status(&status).expect("a super-disk")
    }

    #[test]
    fn what_is_wrong_comes_with_what_to_do() {
        for state in ["missing", "foreign", "failed"] {
            let fast = leg(json!({"state": state, "why": "for a reason"}));
            let advice = advice(&fast).expect("something to do");
            assert!(advice.contains("What to do") && advice.contains("for a reason"), "{advice}");
            assert!(line(&fast).starts_with("DEGRADED"), "{}", line(&fast));
        }
        assert_eq!(advice(&leg(json!({"state": "clean"}))), None);
    }

    #[test]
    fn moments() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_795_323_599_999), "2026-11-22 04:59:59 UTC");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn a_line_for_people() {
        assert_eq!(
            line(&leg(json!({"state": "clean"}))),
            "fast leg clean, 75 % of reads from it, healed 7 on it and 0 on the pool"
        );
        assert!(line(&leg(json!({"state": "rebuilding"}))).contains("75 % rebuilt"));
        assert_eq!(line_in(&Value::Null), None);
    }

    #[test]
    fn no_fast_leg_is_missed_where_none_is_configured() {
        let fast =
            FastLeg::from_status(&json!({"fast": {"state": "missing"}, "configured": false})).expect("a super-disk");
        assert_eq!(advice(&fast), None);
        assert!(!line(&fast).contains("DEGRADED"));
    }
}
