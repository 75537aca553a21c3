//! API results as JSON, written straight to bytes. The data of publications is copied as is: parsed
//! values would take about ninety times the memory.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use steadfast_store::Position;

use super::{Answer, Done, Info};
use crate::protocol::codes::ClientError;
use crate::protocol::epoch_text;
use crate::protocol::message::{ClientInfo, Publication};

/// The body of a reply to one method.
#[derive(Serialize)]
pub(super) struct ReplyBody<T> {
    pub(super) result: T,
}

/// The result of a batch.
#[derive(Serialize)]
pub(super) struct BatchResult {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) replies: Vec<BatchReply>,
}

/// The result of one command of a batch, with its method.
pub(super) struct BatchReply(pub(super) String, pub(super) Answer);

impl Serialize for BatchReply {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(1))?;
        match &self.1 {
            Ok(done) => map.serialize_entry(&self.0, &MethodResult(done))?,
            Err(error) => map.serialize_entry("error", &error_json(error))?,
        }
        map.end()
    }
}

/// The result of a method.
pub(super) struct MethodResult<'a>(pub(super) &'a Done);

impl Serialize for MethodResult<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Done::Nothing => json!({}).serialize(s),
            Done::Published(position) => position_json(*position).serialize(s),
            Done::Broadcast(positions) => {
                let response = |position: &Result<Position, ClientError>| match position {
                    Ok(position) => json!({"result": position_json(*position)}),
                    Err(error) => json!({"error": error_json(error)}),
                };
                json!({"responses": positions.iter().map(response).collect::<Vec<_>>()}).serialize(s)
            }
            Done::Presence(clients) => PresenceJson { presence: clients }.serialize(s),
            Done::PresenceStats(stats) => {
                json!({"num_clients": stats.num_clients, "num_users": stats.num_users}).serialize(s)
            }
            Done::History { history, truncated } => {
                let publications = history.publications.iter().map(PublicationJson::of).collect();
                let (epoch, offset) = (&history.epoch[..], history.offset);
                HistoryJson { publications, epoch, offset, truncated: *truncated }.serialize(s)
            }
            Done::Channels(found) => {
                let channels: Map<String, Value> =
                    found.iter().map(|(name, count)| (name.clone(), json!({"num_clients": count}))).collect();
                json!({"channels": channels}).serialize(s)
            }
            Done::Info(nodes) => {
                let node = |info: &Info| {
                    json!({
                        "uid": info.name, "name": info.name, "version": info.version, "num_clients": info.clients,
                        "num_users": info.users, "num_channels": info.channels, "num_subs": info.subs,
                        "uptime": info.uptime,
                    })
                };
                json!({"nodes": nodes.iter().map(node).collect::<Vec<_>>()}).serialize(s)
            }
        }
    }
}

#[derive(Serialize)]
struct PresenceJson<'a> {
    presence: &'a BTreeMap<String, ClientInfo>,
}

#[derive(Serialize)]
struct HistoryJson<'a> {
    publications: Vec<PublicationJson<'a>>,
    epoch: &'a str,
    offset: u64,
    /// Steadfast's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// A publication. Data that is not JSON is written as Base64.
#[derive(Serialize)]
struct PublicationJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b64data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<&'a ClientInfo>,
    #[serde(skip_serializing_if = "is_zero")]
    offset: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_zero")]
    time: i64,
}

impl<'a> PublicationJson<'a> {
    fn of(publication: &'a Publication) -> Self {
        let bytes = &publication.data[..];
        let data = serde_json::from_slice::<&RawValue>(bytes).ok();
        let b64data = (data.is_none() && !bytes.is_empty()).then(|| STANDARD.encode(bytes));
        let (info, offset) = (publication.info.as_ref(), publication.offset);
        Self { data, b64data, info, offset, tags: &publication.tags, time: publication.time }
    }
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An error in the form of all replies.
pub(crate) fn error_json(error: &ClientError) -> Value {
    json!({"code": error.code, "message": error.message})
}

fn position_json(position: Position) -> Value {
    match position.offset {
        0 => json!({}),
        offset => json!({"offset": offset, "epoch": epoch_text(position.epoch)}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::{HistoryResult, PresenceStatsResult};

    #[test]
    fn data_is_shown_as_it_is_and_binary_data_as_base64() {
        let info = ClientInfo { conn_info: b"[7]".to_vec(), ..ClientInfo::default() };
        let publication =
            |data: &[u8], offset| Publication { data: data.to_vec().into(), offset, ..Publication::default() };
        let publications = vec![
            publication(b"{\"b\": 1,\n \"a\":1.0}", 1),
            Publication { info: Some(info), ..publication(&[0xff, 0], 2) },
            publication(b"", 3),
        ];
        let history = HistoryResult { publications, epoch: "e".into(), offset: 3 };
        let shown = serde_json::to_string(&MethodResult(&Done::History { history, truncated: false })).expect("JSON");
        let expected = concat!(
            r#"{"publications":[{"data":{"b": 1,"#,
            "\n",
            r#" "a":1.0},"offset":1},{"b64data":"/wA=","info":{"user":"","client":"","conn_info":[7]},"offset":2},"#,
            r#"{"offset":3}],"epoch":"e","offset":3}"#,
        );
        assert_eq!(shown, expected);
    }

    /// The fields of `api.proto` that Centrifugo writes even if they are empty.
    #[test]
    fn fields_without_omitempty_are_always_written() {
        let info =
            Info { name: "n".into(), version: "v".into(), clients: 0, users: 0, channels: 0, subs: 0, uptime: 0 };
        let node = json!({"uid": "n", "name": "n", "version": "v", "num_clients": 0, "num_users": 0, "num_channels": 0,
            "num_subs": 0, "uptime": 0});
        let clients = BTreeMap::from([("c".to_owned(), ClientInfo::default())]);
        for (done, expected) in [
            (Done::Nothing, json!({})),
            (Done::Published(Position::default()), json!({})),
            (Done::Presence(BTreeMap::new()), json!({"presence": {}})),
            (Done::Presence(clients), json!({"presence": {"c": {"user": "", "client": ""}}})),
            (Done::PresenceStats(PresenceStatsResult::default()), json!({"num_clients": 0, "num_users": 0})),
            (
                Done::History { history: HistoryResult::default(), truncated: false },
                json!({"publications": [], "epoch": "", "offset": 0}),
            ),
            (
                Done::History { history: HistoryResult::default(), truncated: true },
                json!({"publications": [], "epoch": "", "offset": 0, "truncated": true}),
            ),
            (Done::Channels(BTreeMap::new()), json!({"channels": {}})),
            (Done::Info(vec![info]), json!({"nodes": [node]})),
        ] {
            assert_eq!(serde_json::to_value(MethodResult(&done)).expect("JSON"), expected);
        }
        let empty = BatchResult { replies: Vec::new() };
        assert_eq!(serde_json::to_value(&empty).expect("JSON"), json!({}), "a batch without commands");
    }
}
