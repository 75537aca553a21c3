//! Metrics of several entities of a kind, distinguished by labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;

/// A field of each entity in the status, the name of the metric, its help text and its type.
pub type Field = (&'static str, &'static str, &'static str, MetricType);

/// Encodes the fields of entities. Each label has a name, and the field with its value.
pub fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    entities: &Value,
    fields: &[Field],
    labels: &[(&str, &str)],
) -> Result<(), fmt::Error> {
    let entities = entities.as_array().map(Vec::as_slice).unwrap_or_default();
    for (field, name, help, kind) in fields.iter().filter(|_| !entities.is_empty()) {
        let mut family = encoder.encode_descriptor(name, help, None, *kind)?;
        for entity in entities {
            let text = |field: &str| entity[field].as_str().unwrap_or("?").to_owned();
            let labels: Vec<(&str, String)> = labels.iter().map(|(label, field)| (*label, text(field))).collect();
            let value = match &entity[*field] {
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
