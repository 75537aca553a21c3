//! Output for many sessions: encoded once for each form, when the first session needs it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use prost::Message;
use serde::de::IgnoredAny;
use steadfast_store::Publication as Stored;

use crate::deflate::Deflate;
use crate::fossil;
use crate::protocol::codec::{encode_publication, encode_reply};
use crate::protocol::message::{Publication, Push, Reply};
use crate::protocol::{Encoding, Malformed, Payload};
use crate::websocket;

/// A publication as the store keeps it, without the fields that the store has itself.
pub fn to_stored(publication: &Publication) -> Bytes {
    publication.encode_to_vec().into()
}

/// A publication to submit, encoded once for the store, however many channels get it.
pub struct Encoded {
    publication: Publication,
    body: OnceLock<Bytes>,
}

impl From<Publication> for Encoded {
    fn from(publication: Publication) -> Self {
        Self { publication, body: OnceLock::new() }
    }
}

impl Encoded {
    /// The encoding for the store.
    pub fn body(&self) -> Bytes {
        self.body.get_or_init(|| to_stored(&self.publication)).clone()
    }

    /// The publication.
    pub fn publication(&self) -> &Publication {
        &self.publication
    }
}

/// A publication from the store.
///
/// # Errors
/// When the stored bytes are not a publication.
pub fn from_stored(stored: &Stored) -> Result<Publication, Malformed> {
    // Its data is a part of the stored bytes.
    let mut publication = Publication::decode(stored.body.clone()).map_err(|e| Malformed(e.to_string()))?;
    publication.offset = stored.offset;
    publication.time = stored.time_ms as i64;
    Ok(publication)
}

/// Whether JSON can represent the data. Empty data counts.
pub fn is_json(data: &[u8]) -> bool {
    // The library does not check UTF-8 in ignored values, so that comes first.
    let is_value = |text| serde_json::from_str::<IgnoredAny>(text).is_ok();
    data.is_empty() || std::str::from_utf8(data).is_ok_and(is_value)
}

/// Drops publications that a JSON session cannot receive. A Protobuf client may have published
/// them; ending the session would repeat at each reconnect.
pub fn drop_unencodable(encoding: Encoding, publications: &mut Vec<Publication>) {
    if encoding == Encoding::Json {
        publications.retain(|publication| is_json(&publication.data));
    }
}

/// The form in which a subscription gets publications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Unchanged.
    Plain,
    /// Whole, on a subscription with deltas: in JSON the data is then a string.
    Whole,
    /// As a delta to the previous publication.
    Delta,
}

type Frame = OnceLock<Option<Bytes>>;

/// A publication in delivery to the subscribers of a channel.
pub struct Outgoing {
    /// Name of the channel.
    pub channel: Arc<str>,
    /// Epoch of the channel.
    pub epoch: u32,
    /// The publication with its offset; 0: the channel keeps no history.
    pub publication: Publication,
    /// The previous publication, the base of deltas; `None` if it is not in memory.
    previous: Option<Arc<Outgoing>>,
    /// Frames, by encoding and form.
    frames: [[Frame; 3]; 2],
    /// The same for sessions with compression.
    compressed: OnceLock<Box<[[Frame; 3]; 2]>>,
}

impl Outgoing {
    /// A publication in a channel. `previous` is the publication before it, if deltas may be
    /// needed.
    pub fn new(channel: Arc<str>, epoch: u32, publication: Publication, previous: Option<Arc<Self>>) -> Self {
        Self { channel, epoch, publication, previous, frames: Default::default(), compressed: OnceLock::new() }
    }

    /// A copy without the previous publication, so that a channel's past does not stay in memory.
    pub fn without_previous(&self) -> Self {
        Self::new(self.channel.clone(), self.epoch, self.publication.clone(), None)
    }

    /// Approximate memory, bytes.
    pub fn weight(&self) -> usize {
        self.publication.data.len() + self.channel.len() + 256
    }

    /// The frame for a session with or without compression; `None` if JSON cannot represent its
    /// data.
    pub fn frame(&self, encoding: Encoding, form: Form, deflate: Option<Deflate>) -> Option<Bytes> {
        let form = if form == Form::Delta && self.previous.is_none() { Form::Whole } else { form };
        let form = if form == Form::Whole && encoding == Encoding::Protobuf { Form::Plain } else { form };
        let plain = &self.frames[encoding as usize][form as usize];
        let Some(deflate) = deflate else {
            return plain.get_or_init(|| Some(websocket::framed(encoding, self.encode(encoding, form)?))).clone();
        };
        let compressed = &self.compressed.get_or_init(Box::default)[encoding as usize][form as usize];
        compressed.get_or_init(|| Some(shared(encoding, deflate, self.encode(encoding, form)?, plain))).clone()
    }

    fn encode(&self, encoding: Encoding, form: Form) -> Option<Payload> {
        if form == Form::Plain {
            return encode_publication(encoding, &self.channel, &self.publication).ok();
        }
        let base = self.previous.as_ref().filter(|_| form == Form::Delta).map(|p| &p.publication.data[..]);
        let publication = in_form(&self.publication, encoding, form, base)?;
        encode_publication(encoding, &self.channel, &publication).ok()
    }
}

/// The frame for sessions with compression: the plain frame if compression does not help.
fn shared(encoding: Encoding, deflate: Deflate, payload: Payload, plain: &Frame) -> Bytes {
    match (websocket::compressed(encoding, deflate, payload.bytes()), plain.get()) {
        (Some(compressed), _) => compressed,
        (None, Some(Some(frame))) => frame.clone(),
        (None, _) => {
            let frame = websocket::framed(encoding, payload);
            // Another thread may have been first: then both have the same bytes.
            plain.get_or_init(|| Some(frame.clone())).clone().unwrap_or(frame)
        }
    }
}

/// A publication in a form; `base` is the base of a delta.
pub fn in_form(publication: &Publication, encoding: Encoding, form: Form, base: Option<&[u8]>) -> Option<Publication> {
    // A string could hold data that is not JSON, but the client parses the string as JSON.
    if form != Form::Plain && encoding == Encoding::Json && !is_json(&publication.data) {
        return None;
    }
    let mut publication = publication.clone();
    if let Some(base) = base {
        let delta = fossil::create(base, &publication.data);
        // A delta that cuts a character is not UTF-8, which JSON needs: send the whole data
        // instead, and also where it is no longer than the delta.
        let fits = encoding != Encoding::Json || std::str::from_utf8(&delta).is_ok();
        if fits && delta.len() < publication.data.len() {
            publication.data = delta.into();
            publication.delta = true;
        }
    }
    if form != Form::Plain && encoding == Encoding::Json {
        let text = std::str::from_utf8(&publication.data).ok()?;
        publication.data = serde_json::to_vec(text).ok()?.into();
    }
    Some(publication)
}

/// Bytes of a join or leave push beyond the channel's name and the client's information.
const PUSH_BYTES: usize = 128;

/// Approximate bytes of a push.
pub(crate) fn bytes_of(push: &Push) -> usize {
    let presence = push.join.as_ref().or(push.leave.as_ref());
    let info = presence.and_then(|presence| presence.info.as_ref());
    let info = info.map_or(0, |info| info.user.len() + info.conn_info.len() + info.chan_info.len());
    PUSH_BYTES + push.channel.len() + info
}

/// Joins and leaves for the subscribers of a channel.
pub struct ChannelPush {
    /// Name of the channel.
    pub channel: Arc<str>,
    /// The pushes, in order.
    pub(crate) pushes: Vec<Push>,
    frames: [Frame; 2],
    compressed: [Frame; 2],
}

impl ChannelPush {
    /// Pushes for the subscribers of `channel`.
    pub fn new(channel: Arc<str>, pushes: Vec<Push>) -> Self {
        Self { channel, pushes, frames: Default::default(), compressed: Default::default() }
    }

    /// Approximate memory, bytes.
    pub fn weight(&self) -> usize {
        self.pushes.iter().map(bytes_of).sum()
    }

    /// The frame for a session with or without compression, without pushes that JSON cannot
    /// represent; `None` if none is left.
    pub fn frame(&self, encoding: Encoding, deflate: Option<Deflate>) -> Option<Bytes> {
        let plain = &self.frames[encoding as usize];
        let encode = || {
            let mut out = Payload::default();
            for push in &self.pushes {
                let reply = Reply { push: Some(push.clone()), ..Reply::default() };
                // A failed encoding leaves no bytes behind.
                let _ = encode_reply(encoding, &reply, &mut out);
            }
            (!out.bytes().is_empty()).then_some(out)
        };
        match deflate {
            None => plain.get_or_init(|| Some(websocket::framed(encoding, encode()?))).clone(),
            Some(deflate) => {
                let compressed = &self.compressed[encoding as usize];
                compressed.get_or_init(|| Some(shared(encoding, deflate, encode()?, plain))).clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::inflate;

    fn outgoing(data: &[u8], previous: Option<Arc<Outgoing>>) -> Arc<Outgoing> {
        let publication = Publication { data: data.to_vec().into(), offset: 3, ..Publication::default() };
        Arc::new(Outgoing::new("c".into(), 1, publication, previous))
    }

    fn text(frame: Option<Bytes>) -> String {
        String::from_utf8_lossy(&frame.expect("encoded")[2..]).into_owned()
    }

    #[test]
    fn each_form_is_encoded_once_as_sdks_expect() {
        let first = outgoing(b"{\"long\":\"0123456789012345678901234567890123456789\"}", None);
        let plain = first.frame(Encoding::Json, Form::Plain, None).expect("encoded");
        assert_eq!(plain.as_ptr(), first.frame(Encoding::Json, Form::Plain, None).expect("encoded").as_ptr());
        let whole = text(first.frame(Encoding::Json, Form::Whole, None));
        assert!(whole.contains(r#""data":"{\"long\":\"0123"#), "{whole}");
        assert_eq!(text(first.frame(Encoding::Json, Form::Delta, None)), whole, "it has no base");
        let second = outgoing(&first.publication.data.clone(), Some(first.clone()));
        let delta = text(second.frame(Encoding::Json, Form::Delta, None));
        assert!(delta.contains(r#""delta":true"#) && delta.len() < whole.len(), "{delta}");
        assert!(
            second.frame(Encoding::Protobuf, Form::Whole, None) == second.frame(Encoding::Protobuf, Form::Plain, None)
        );
    }

    #[test]
    fn a_delta_that_is_no_shorter_is_sent_whole() {
        let second = outgoing(b"\"zz\"", Some(outgoing(b"[1]", None)));
        for encoding in Encoding::ALL {
            assert_eq!(second.frame(encoding, Form::Delta, None), second.frame(encoding, Form::Whole, None));
        }
    }

    #[test]
    fn a_delta_that_is_not_utf8_is_sent_whole() {
        let first = outgoing("{\"t\":\"0123456789abcdef д\"}".as_bytes(), None);
        let second = outgoing("{\"t\":\"0123456789abcdef м\"}".as_bytes(), Some(first.clone()));
        let delta = fossil::create(&first.publication.data, &second.publication.data);
        assert!(std::str::from_utf8(&delta).is_err(), "the characters share a byte");
        let whole = text(second.frame(Encoding::Json, Form::Delta, None));
        assert!(whole.contains('м') && !whole.contains("delta"), "{whole}");
        let compact = second.frame(Encoding::Protobuf, Form::Delta, None).expect("encoded");
        assert!(compact.len() < whole.len(), "Protobuf carries any bytes");
    }

    #[test]
    fn invalid_utf8_is_not_json() {
        for (data, is) in [
            (&b"{\"a\":[1,null]}"[..], true),
            (b"", true),
            (b"\"\xc3\xbc\"", true),
            (b"\"\xff\"", false),
            (b"{\"a\":\"\xff\"}", false),
            (b"{\"\xff\":1}", false),
            (b"{", false),
        ] {
            assert_eq!(is_json(data), is, "{data:?}");
        }
    }

    #[test]
    fn each_form_is_compressed_once_if_that_helps() {
        let deflate = Some(Deflate { level: 1, min_bytes: 10, bytes_max: 1 << 20 });
        let long = outgoing(br#"{"long":"0123456789 0123456789 0123456789 0123456789"}"#, None);
        for (encoding, form) in
            [(Encoding::Json, Form::Plain), (Encoding::Json, Form::Whole), (Encoding::Protobuf, Form::Plain)]
        {
            let short = long.frame(encoding, form, deflate).expect("encoded");
            assert_eq!(short.as_ptr(), long.frame(encoding, form, deflate).expect("encoded").as_ptr());
            let plain = long.frame(encoding, form, None).expect("encoded");
            assert_eq!(short[0], plain[0] | 0x40);
            assert_eq!(inflate(&short[2..], 1000).expect("compressed"), plain[2..]);
        }
        let brief = outgoing(b"1", None);
        let as_it_is = brief.frame(Encoding::Protobuf, Form::Plain, deflate).expect("encoded");
        assert_eq!(as_it_is.as_ptr(), brief.frame(Encoding::Protobuf, Form::Plain, None).expect("encoded").as_ptr());
        let push = Push { channel: "c".repeat(50), ..Push::default() };
        let push = ChannelPush::new("c".into(), vec![push]);
        let (short, plain) = (push.frame(Encoding::Json, deflate), push.frame(Encoding::Json, None).expect("encoded"));
        assert_eq!(inflate(&short.expect("encoded")[2..], 1000).expect("compressed"), plain[2..]);
        assert!(outgoing(&[0xff; 100], None).frame(Encoding::Json, Form::Plain, deflate).is_none());
    }

    #[test]
    fn binary_data_has_no_frame_in_json() {
        let binary = outgoing(&[0xff, 0xfe], None);
        assert!(binary.frame(Encoding::Json, Form::Plain, None).is_none());
        assert!(binary.frame(Encoding::Protobuf, Form::Plain, None).is_some());
    }

    #[test]
    fn pushes_share_a_frame_without_unencodable_ones() {
        let of = |publications: &[&[u8]]| {
            let publication = |data: &&[u8]| Publication { data: data.to_vec().into(), ..Publication::default() };
            let push = |data| Push { channel: "c".into(), publication: Some(publication(data)), ..Push::default() };
            ChannelPush::new("c".into(), publications.iter().map(push).collect())
        };
        let sent = text(of(&[&[0xff], b"1", &[0xfe], b"2"]).frame(Encoding::Json, None));
        assert_eq!(sent.lines().count(), 2, "{sent}");
        assert_eq!(sent, text(of(&[b"1", b"2"]).frame(Encoding::Json, None)));
        assert!(of(&[&[0xff]]).frame(Encoding::Json, None).is_none());
        assert!(of(&[&[0xff]]).frame(Encoding::Protobuf, None).is_some());
    }

    #[test]
    fn the_store_keeps_all_fields_of_the_publisher() {
        let tags = [("a".to_owned(), "b".to_owned())].into();
        let publication = Publication { data: b"1".to_vec().into(), tags, ..Publication::default() };
        let stored = Stored { offset: 7, time_ms: 9, body: to_stored(&publication) };
        let found = from_stored(&stored).expect("a publication");
        assert!(stored.body.as_ptr_range().contains(&found.data.as_ptr()), "its data is not copied");
        assert_eq!(found, Publication { offset: 7, time: 9, ..publication });
    }
}
