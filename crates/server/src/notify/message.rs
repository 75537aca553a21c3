//! Events in the JSON of S3 ("Event message structure" in the user guide of Amazon S3), and in the
//! form that MinIO posts to webhooks.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};
use steadfast_live::protocol::message::Publication;
use steadfast_store::{Attributes, Event, EventKind};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The rule of channels that mirror a bucket.
pub(super) const MIRROR: &str = "mirror";

/// Content type of an object that was stored without one.
const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

/// The tag of a publication that names the event.
const ID: &str = "id";

/// An event as a rule sends it.
pub(super) struct Message<'a> {
    pub(super) event: &'a Event,
    pub(super) rule: &'a str,
    pub(super) region: &'a str,
}

/// The name of the event in S3, without the prefix `s3:`.
pub(super) fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Put => "ObjectCreated:Put",
        EventKind::Copy => "ObjectCreated:Copy",
        EventKind::Complete => "ObjectCreated:CompleteMultipartUpload",
        EventKind::Delete => "ObjectRemoved:Delete",
    }
}

/// A key in form encoding, with plain slashes, as in events of S3.
fn encoded(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => out.push(byte as char),
            b' ' => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The header that carries user metadata of this name, spelled as MinIO does.
fn header(name: &str) -> String {
    let mut out = "X-Amz-Meta-".to_owned();
    for c in name.chars() {
        out.push(if out.ends_with('-') { c.to_ascii_uppercase() } else { c });
    }
    out
}

/// A point of time, exact to the millisecond.
pub(crate) fn rfc3339(ms: u64) -> String {
    let time =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    // Always with milliseconds, as S3 writes it.
    let text = time.replace_nanosecond(0).ok().and_then(|whole| whole.format(&Rfc3339).ok()).unwrap_or_default();
    format!("{}.{:03}Z", text.trim_end_matches('Z'), ms % 1000)
}

impl Message<'_> {
    fn id(&self) -> String {
        let Event { slot, position, .. } = self.event;
        Id { outbox: format!("{slot:04X}-{:08X}-{}", position.epoch, self.rule), offset: position.offset }.to_string()
    }

    fn record(&self) -> Value {
        let Event { position, time_ms, event, .. } = self.event;
        let mut object = json!({"key": encoded(&event.key), "sequencer": format!("{:016X}", position.offset)});
        if event.kind != EventKind::Delete {
            object["size"] = json!(event.size);
            object["eTag"] = json!(event.etag);
        }
        json!({
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "awsRegion": self.region,
            "eventTime": rfc3339(*time_ms),
            "eventName": name(event.kind),
            "userIdentity": {"principalId": event.cause.as_ref().map_or("steadfast", |cause| &cause.principal)},
            "requestParameters": {"sourceIPAddress": ""},
            "responseElements": {"x-amz-request-id": self.id(), "x-amz-id-2": ""},
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": self.rule,
                "bucket": {
                    "name": event.bucket,
                    "ownerIdentity": {"principalId": "steadfast"},
                    "arn": format!("arn:aws:s3:::{}", event.bucket),
                },
                "object": object,
            },
        })
    }

    /// The record with the address of the client. Channels get it without: their subscribers are
    /// clients themselves.
    fn record_with_address(&self) -> Value {
        let mut record = self.record();
        if let Some(address) = self.event.event.cause.as_ref().and_then(|cause| cause.address) {
            record["requestParameters"]["sourceIPAddress"] = json!(address.to_string());
        }
        record
    }

    /// The event as S3 sends it, for channels.
    pub(super) fn records(&self) -> String {
        json!({"Records": [self.record()]}).to_string()
    }

    /// The event as webhooks get it: with MinIO's name and key in front.
    pub(super) fn posted(&self) -> String {
        self.with_name(self.record_with_address())
    }

    /// The event as MinIO posts it to webhooks. `attributes` are those of the object, if it is
    /// still the one of the event.
    pub(super) fn posted_as_minio(&self, attributes: Option<&Attributes>) -> String {
        let mut record = self.record_with_address();
        record["eventVersion"] = json!("2.0");
        record["eventSource"] = json!("minio:s3");
        record["eventName"] = json!(format!("s3:{}", name(self.event.event.kind)));
        if let Some(attributes) = attributes {
            let content_type = attributes.system.get("content-type").map_or(DEFAULT_CONTENT_TYPE, |text| text);
            let mut metadata: BTreeMap<String, &str> =
                attributes.user.iter().map(|(name, value)| (header(name), value.as_str())).collect();
            metadata.insert("content-type".to_owned(), content_type);
            record["s3"]["object"]["contentType"] = json!(content_type);
            record["s3"]["object"]["userMetadata"] = json!(metadata);
        }
        self.with_name(record)
    }

    fn with_name(&self, record: Value) -> String {
        let event = &self.event.event;
        json!({
            "EventName": format!("s3:{}", name(event.kind)),
            "Key": format!("{}/{}", event.bucket, event.key),
            "Records": [record],
        })
        .to_string()
    }

    /// Tags for the filters of subscriptions.
    pub(super) fn tags(&self) -> BTreeMap<String, String> {
        [(ID.to_owned(), self.id()), ("event".to_owned(), name(self.event.event.kind).to_owned())].into()
    }
}

/// The identity of an event in the server; recognises an event that is redelivered after a crash.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Id {
    /// Its outbox and its rule.
    pub(super) outbox: String,
    /// Its offset in the outbox.
    pub(super) offset: u64,
}

impl Id {
    /// The identity of a publication's event, if it has one.
    pub(super) fn of(publication: &Publication) -> Option<Self> {
        let (offset, outbox) = publication.tags.get(ID)?.split_once('-')?;
        Some(Self { outbox: outbox.to_owned(), offset: u64::from_str_radix(offset, 16).ok()? })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}-{}", self.offset, self.outbox)
    }
}

#[cfg(test)]
mod tests {
    use steadfast_store::{Cause, ObjectEvent, Position};

    use super::*;

    fn event(kind: EventKind) -> Event {
        let event = ObjectEvent {
            kind,
            bucket: "b".into(),
            key: "a dir/ü+1.png".into(),
            size: 7,
            etag: "e".into(),
            targets: Vec::new(),
            cause: Some(Cause { principal: "ada".into(), address: "192.0.2.1".parse().ok() }),
        };
        let position = Position { epoch: 1, offset: 255 };
        Event { slot: 3, position, time_ms: 1_700_000_000_042, event, maybe_redelivered: false }
    }

    #[test]
    fn an_event_has_the_form_of_s3() {
        let event = event(EventKind::Put);
        let message = Message { event: &event, rule: "r", region: "us-east-1" };
        let record = &serde_json::from_str::<Value>(&message.records()).expect("JSON")["Records"][0];
        assert_eq!(record["eventName"], "ObjectCreated:Put");
        assert_eq!(record["eventTime"], "2023-11-14T22:13:20.042Z");
        assert_eq!(record["s3"]["configurationId"], "r");
        assert_eq!(record["userIdentity"]["principalId"], "ada");
        assert_eq!(record["requestParameters"]["sourceIPAddress"], "", "channels get no address");
        assert_eq!(
            record["s3"]["object"],
            json!({"key": "a+dir/%C3%BC%2B1.png", "size": 7, "eTag": "e", "sequencer": "00000000000000FF"})
        );
        assert_eq!(message.tags()["event"], "ObjectCreated:Put");
        let publication = Publication { tags: message.tags(), ..Publication::default() };
        let id = Id::of(&publication).expect("one");
        assert_eq!(record["responseElements"]["x-amz-request-id"], id.to_string());
        assert_eq!((id.offset, &id.outbox[..]), (255, "0003-00000001-r"));
        assert_eq!(Id::of(&Publication::default()), None);
    }

    #[test]
    fn a_webhook_gets_what_minio_posts() {
        let event = event(EventKind::Delete);
        let message = Message { event: &event, rule: "r", region: "us-east-1" };
        let posted: Value = serde_json::from_str(&message.posted()).expect("JSON");
        assert_eq!(
            (&posted["EventName"], &posted["Key"]),
            (&json!("s3:ObjectRemoved:Delete"), &json!("b/a dir/ü+1.png"))
        );
        assert!(posted["Records"][0]["s3"]["object"].get("size").is_none());
        assert_eq!(posted["Records"][0]["requestParameters"]["sourceIPAddress"], "192.0.2.1");
        let mut old = event.clone();
        old.event.cause = None;
        let posted: Value = serde_json::from_str(&Message { event: &old, ..message }.posted()).expect("JSON");
        assert_eq!(posted["Records"][0]["userIdentity"]["principalId"], "steadfast");
        assert_eq!(posted["Records"][0]["requestParameters"]["sourceIPAddress"], "");
    }

    #[test]
    fn a_webhook_may_get_all_fields_of_minio() {
        let event = event(EventKind::Put);
        let message = Message { event: &event, rule: "r", region: "us-east-1" };
        let mut attributes = Attributes::default();
        attributes.system.insert("content-type".into(), "image/png".into());
        attributes.user.insert("taken-by".into(), "ann".into());
        let posted: Value = serde_json::from_str(&message.posted_as_minio(Some(&attributes))).expect("JSON");
        let record = &posted["Records"][0];
        assert_eq!((&record["eventName"], &record["eventSource"]), (&posted["EventName"], &json!("minio:s3")));
        assert_eq!(record["s3"]["object"]["contentType"], "image/png");
        let metadata = json!({"content-type": "image/png", "X-Amz-Meta-Taken-By": "ann"});
        assert_eq!(record["s3"]["object"]["userMetadata"], metadata);
        let without: Value = serde_json::from_str(&message.posted_as_minio(None)).expect("JSON");
        assert!(without["Records"][0]["s3"]["object"].get("userMetadata").is_none());
    }
}
