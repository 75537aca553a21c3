//! Metrics of block devices, taken from the status; none without block devices.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;

/// A number of an export's status: JSON pointer, name of the metric, whether it is a counter,
/// scale, help.
type Number = (&'static str, &'static str, bool, f64, &'static str);

/// Metrics without a further label.
pub const NUMBERS: [Number; 9] = [
    ("/connections", "block_connections", false, 1.0, "Connections of clients"),
    ("/in_flight", "block_in_flight", false, 1.0, "Requests in progress at the disk"),
    ("/oldest_request_ms", "block_oldest_request_seconds", false, 1e-3, "Age of the oldest request in progress"),
    ("/bytes_in_flight", "block_bytes_in_flight", false, 1.0, "Bytes of replies and payloads in memory"),
    ("/bytes_in_flight_max", "block_bytes_in_flight_limit", false, 1.0, "Limit of these bytes"),
    ("/counts/connections_refused", "block_connections_refused", true, 1.0, "Connections refused above the limit"),
    ("/counts/refused", "block_requests_refused", true, 1.0, "Requests refused as malformed or out of range"),
    ("/counts/read_bytes", "block_read_bytes", true, 1.0, "Bytes read by clients"),
    ("/counts/written_bytes", "block_written_bytes", true, 1.0, "Bytes written by clients"),
];

/// The kinds of requests, for the label `kind`.
pub const KINDS: [&str; 5] = ["read", "write", "flush", "trim", "write_zeroes"];

/// Encodes the metrics, each with the name of the device as a label.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, status: &Value) -> Result<(), fmt::Error> {
    let devices = status["block"].as_array().map(Vec::as_slice).unwrap_or_default();
    if devices.is_empty() {
        return Ok(());
    }
    let name = |device: &Value| device["name"].as_str().unwrap_or("?").to_owned();
    for (path, metric, counter, scale, help) in NUMBERS {
        let kind = if counter { MetricType::Counter } else { MetricType::Gauge };
        let mut family = encoder.encode_descriptor(metric, help, None, kind)?;
        for device in devices {
            let value = device["export"].pointer(path).and_then(Value::as_f64).unwrap_or_default() * scale;
            let labels = [("device", name(device))];
            let to = family.encode_family(&labels)?;
            if counter {
                ConstCounter::new(value).encode(to)?;
            } else {
                ConstGauge::new(value).encode(to)?;
            }
        }
    }
    let help = "1 after an error of a write or a flush: writes are refused until the next start";
    let mut family = encoder.encode_descriptor("block_failed", help, None, MetricType::Gauge)?;
    for device in devices {
        let failed = f64::from(u8::from(device["export"]["failure"].is_string()));
        ConstGauge::new(failed).encode(family.encode_family(&[("device", name(device))])?)?;
    }
    let help = "Requests completed, by kind";
    let mut family = encoder.encode_descriptor("block_requests", help, None, MetricType::Counter)?;
    for device in devices {
        for kind in KINDS {
            let count = device["export"]["counts"]["requests"][kind].as_f64().unwrap_or_default();
            let labels = [("device", name(device)), ("kind", kind.to_owned())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Disk operations that failed, by kind (read or write)";
    let mut family = encoder.encode_descriptor("block_errors", help, None, MetricType::Counter)?;
    for device in devices {
        for (kind, field) in [("read", "read_errors"), ("write", "write_errors")] {
            let count = device["export"]["counts"][field].as_f64().unwrap_or_default();
            let labels = [("device", name(device)), ("kind", kind.to_owned())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::admin::collect::testing::metrics;

    #[test]
    fn a_block_device_has_its_export_and_its_legs() {
        let out = metrics(
            serde_json::json!({"block": [{"name": "db", "export": {"connections": 2, "oldest_request_ms": 1500,
            "failure": "it broke", "counts": {"read_bytes": 7, "requests": {"read": 3}, "write_errors": 1}},
            "superdisks": [{"disk": "/dev/sdb", "fast": {"state": "clean"}, "refused": "it was blank"}]}]}),
        );
        for line in [
            "steadfast_block_connections{device=\"db\"} 2",
            "steadfast_block_oldest_request_seconds{device=\"db\"} 1.5",
            "steadfast_block_failed{device=\"db\"} 1",
            "steadfast_block_requests_total{device=\"db\",kind=\"read\"} 3",
            "steadfast_block_errors_total{device=\"db\",kind=\"write\"} 1",
            "steadfast_superdisk_fast_refused{disk=\"/dev/sdb\"} 1",
        ] {
            assert!(out.contains(line), "{line} is not in\n{out}");
        }
    }
}
