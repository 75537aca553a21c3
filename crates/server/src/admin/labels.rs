//! Metrics of several things of a kind, told apart by labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;

/// A field of each thing in the status, the metric's name, what it says, and whether it counts.
pub type Field = (&'static str, &'static str, &'static str, MetricType);

/// Puts the fields of things into the answer. Each label is a name, and the field that has its value.
pub fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    things: &Value,
    fields: &[Field],
    labels: &[(&str, &str)],
) -> Result<(), fmt::Error> {
    let things = things.as_array().map(Vec::as_slice).unwrap_or_default();
    for (field, name, help, kind) in fields.iter().filter(|_| !things.is_empty()) {
        let mut family = encoder.encode_descriptor(name, help, None, *kind)?;
        for thing in things {
            let text = |field: &str| thing[field].as_str().unwrap_or("?").to_owned();
            let labels: Vec<(&str, String)> = labels.iter().map(|(label, field)| (*label, text(field))).collect();
            let value = match &thing[*field] {
                Value::Bool(set) => f64::from(u8::from(*set)),
                value => value.as_f64().unwrap_or_default(),
            };
            let encoder = family.encode_family(&labels)?;
            match kind {
                MetricType::Gauge => ConstGauge::new(value).encode(encoder)?,
                _ => ConstCounter::new(value).encode(encoder)?,
            }
        }
    }
    Ok(())
}
