//! What goes to many sessions: encoded once for each way in which sessions want it, when the first one does.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use prost::Message;
use serde::de::IgnoredAny;
use steadfast_store::Publication as Stored;

use crate::deflate::Deflate;
use crate::fossil;
use crate::protocol::codec::{encode_push, encode_reply};
use crate::protocol::message::{Publication, Push, Reply};
use crate::protocol::{Encoding, Malformed};
use crate::websocket;

/// A publication as the store keeps it: all but what the store knows itself.
pub fn to_stored(publication: &Publication) -> Bytes {
    publication.encode_to_vec().into()
}

/// A publication to be submitted, encoded for the store once, however many channels get it.
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
    /// As the store keeps it.
    pub fn body(&self) -> Bytes {
        self.body.get_or_init(|| to_stored(&self.publication)).clone()
    }

    /// As it is.
    pub fn publication(&self) -> &Publication {
        &self.publication
    }
}

/// A publication from what the store kept.
///
/// # Errors
/// When it is not one.
pub fn from_stored(stored: &Stored) -> Result<Publication, Malformed> {
    let mut publication = Publication::decode(&stored.body[..]).map_err(|e| Malformed(e.to_string()))?;
    publication.offset = stored.offset;
    publication.time = stored.time_ms as i64;
    Ok(publication)
}

/// Whether data can be said in JSON; nothing can.
pub fn is_json(data: &[u8]) -> bool {
    // What is skipped by the library is not looked at as a text, so that is done first.
    let is_value = |text| serde_json::from_str::<IgnoredAny>(text).is_ok();
    data.is_empty() || std::str::from_utf8(data).is_ok_and(is_value)
}

/// Takes out what cannot be said to a session that speaks so. It may be another's, who speaks Protobuf: to end the session for it would end
/// it again each time that it comes back.
pub fn leave_out(encoding: Encoding, publications: &mut Vec<Publication>) {
    if encoding == Encoding::Json {
        publications.retain(|publication| is_json(&publication.data));
    }
}

/// How a subscription wants publications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Plain,
    /// Whole, where differences were agreed on: in JSON, data is a text then.
    Whole,
    /// As the difference to the one before.
    Delta,
}

type Frame = OnceLock<Option<Bytes>>;

/// A publication on its way to the subscribers of a channel.
pub struct Outgoing {
    /// The channel.
    pub channel: Arc<str>,
    /// Of the channel.
    pub epoch: u32,
    /// It, with its offset; 0 where there is no history.
    pub publication: Publication,
    /// The one before it, for differences; `None` where there is none in memory.
    previous: Option<Arc<Outgoing>>,
    /// By encoding and form,
    frames: [[Frame; 3]; 2],
    /// and for sessions that take them compressed.
    compressed: OnceLock<Box<[[Frame; 3]; 2]>>,
}

impl Outgoing {
    /// A publication in a channel. `previous` is the one before it, if differences may be wanted.
    pub fn new(channel: Arc<str>, epoch: u32, publication: Publication, previous: Option<Arc<Self>>) -> Self {
        Self { channel, epoch, publication, previous, frames: Default::default(), compressed: OnceLock::new() }
    }

    /// Lets go of the one before, so that not all of a channel's past hangs together.
    pub fn without_previous(&self) -> Self {
        Self::new(self.channel.clone(), self.epoch, self.publication.clone(), None)
    }

    /// Bytes that it holds, about.
    pub fn weight(&self) -> usize {
        self.publication.data.len() + self.channel.len() + 256
    }

    /// Its frame, of a session that takes it compressed or not; `None` when its data cannot be said in JSON.
    pub fn frame(&self, encoding: Encoding, form: Form, deflate: Option<Deflate>) -> Option<Bytes> {
        let form = if form == Form::Delta && self.previous.is_none() { Form::Whole } else { form };
        let form = if form == Form::Whole && encoding == Encoding::Protobuf { Form::Plain } else { form };
        let plain = &self.frames[encoding as usize][form as usize];
        let Some(deflate) = deflate else {
            return plain.get_or_init(|| Some(websocket::message(encoding, &self.encode(encoding, form)?))).clone();
        };
        let compressed = &self.compressed.get_or_init(Box::default)[encoding as usize][form as usize];
        compressed.get_or_init(|| shared(encoding, deflate, &self.encode(encoding, form)?, plain)).clone()
    }

    fn encode(&self, encoding: Encoding, form: Form) -> Option<Vec<u8>> {
        let base = self.previous.as_ref().filter(|_| form == Form::Delta).map(|p| &p.publication.data[..]);
        let publication = in_form(&self.publication, encoding, form, base)?;
        let push =
            Push { channel: self.channel.as_ref().to_owned(), publication: Some(publication), ..Push::default() };
        encode_push(encoding, push).ok()
    }
}

/// The frame of sessions that take it compressed: that of the others, if it is better sent as it is.
fn shared(encoding: Encoding, deflate: Deflate, payload: &[u8], plain: &Frame) -> Option<Bytes> {
    let compressed = websocket::compressed(encoding, deflate, payload);
    compressed.or_else(|| plain.get_or_init(|| Some(websocket::message(encoding, payload))).clone())
}

/// A publication in a form; `base` is what a difference is made to.
pub fn in_form(publication: &Publication, encoding: Encoding, form: Form, base: Option<&[u8]>) -> Option<Publication> {
    // As a text, anything could be said that is one; but the client takes the text for JSON.
    if form != Form::Plain && encoding == Encoding::Json && !is_json(&publication.data) {
        return None;
    }
    let mut publication = publication.clone();
    if let Some(base) = base {
        let delta = fossil::create(base, &publication.data);
        // One that is cut within a character is no text, which it is to be in JSON: then the whole goes.
        if encoding != Encoding::Json || std::str::from_utf8(&delta).is_ok() {
            publication.data = delta;
            publication.delta = true;
        }
    }
    if form != Form::Plain && encoding == Encoding::Json {
        let text = std::str::from_utf8(&publication.data).ok()?;
        publication.data = serde_json::to_vec(text).ok()?;
    }
    Some(publication)
}

/// Bytes of a push of who came or went, beside the channel's name and what is said of the client.
const PUSH_BYTES: usize = 128;

/// Bytes that a push takes, about.
pub(crate) fn bytes_of(push: &Push) -> usize {
    let presence = push.join.as_ref().or(push.leave.as_ref());
    let info = presence.and_then(|presence| presence.info.as_ref());
    let said = info.map_or(0, |info| info.user.len() + info.conn_info.len() + info.chan_info.len());
    PUSH_BYTES + push.channel.len() + said
}

/// Something else that goes to the subscribers of a channel: who came, who went.
pub struct ChannelPush {
    /// The channel.
    pub channel: Arc<str>,
    /// One after another.
    pub(crate) pushes: Vec<Push>,
    frames: [Frame; 2],
    compressed: [Frame; 2],
}

impl ChannelPush {
    /// To the subscribers of the channel that the pushes name.
    pub fn new(channel: Arc<str>, pushes: Vec<Push>) -> Self {
        Self { channel, pushes, frames: Default::default(), compressed: Default::default() }
    }

    /// Bytes that it holds, about.
    pub fn weight(&self) -> usize {
        self.pushes.iter().map(bytes_of).sum()
    }

    /// Its frame, of a session that takes it compressed or not, without what cannot be said in JSON; `None` when that is all.
    pub fn frame(&self, encoding: Encoding, deflate: Option<Deflate>) -> Option<Bytes> {
        let plain = &self.frames[encoding as usize];
        let encode = || {
            let mut out = Vec::new();
            for push in &self.pushes {
                let reply = Reply { push: Some(push.clone()), ..Reply::default() };
                // What cannot be said leaves nothing behind.
                let _ = encode_reply(encoding, &reply, &mut out);
            }
            (!out.is_empty()).then_some(out)
        };
        match deflate {
            None => plain.get_or_init(|| Some(websocket::message(encoding, &encode()?))).clone(),
            Some(deflate) => {
                let compressed = &self.compressed[encoding as usize];
                compressed.get_or_init(|| shared(encoding, deflate, &encode()?, plain)).clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::inflate;

    fn outgoing(data: &[u8], previous: Option<Arc<Outgoing>>) -> Arc<Outgoing> {
        let publication = Publication { data: data.to_vec(), offset: 3, ..Publication::default() };
        Arc::new(Outgoing::new("c".into(), 1, publication, previous))
    }

    fn text(frame: Option<Bytes>) -> String {
        String::from_utf8_lossy(&frame.expect("encoded")[2..]).into_owned()
    }

    #[test]
    fn each_form_is_made_once_and_said_as_sdks_expect() {
        let first = outgoing(b"{\"long\":\"0123456789012345678901234567890123456789\"}", None);
        let plain = first.frame(Encoding::Json, Form::Plain, None).expect("encoded");
        assert_eq!(plain.as_ptr(), first.frame(Encoding::Json, Form::Plain, None).expect("encoded").as_ptr());
        let whole = text(first.frame(Encoding::Json, Form::Whole, None));
        assert!(whole.contains(r#""data":"{\"long\":\"0123"#), "{whole}");
        assert_eq!(text(first.frame(Encoding::Json, Form::Delta, None)), whole, "nothing to make a difference to");
        let second = outgoing(&first.publication.data.clone(), Some(first.clone()));
        let delta = text(second.frame(Encoding::Json, Form::Delta, None));
        assert!(delta.contains(r#""delta":true"#) && delta.len() < whole.len(), "{delta}");
        assert!(
            second.frame(Encoding::Protobuf, Form::Whole, None) == second.frame(Encoding::Protobuf, Form::Plain, None)
        );
    }

    #[test]
    fn a_difference_that_is_no_text_goes_whole() {
        let first = outgoing("{\"t\":\"0123456789abcdef д\"}".as_bytes(), None);
        let second = outgoing("{\"t\":\"0123456789abcdef м\"}".as_bytes(), Some(first.clone()));
        let delta = fossil::create(&first.publication.data, &second.publication.data);
        assert!(std::str::from_utf8(&delta).is_err(), "the characters share a byte");
        let said = text(second.frame(Encoding::Json, Form::Delta, None));
        assert!(said.contains('м') && !said.contains("delta"), "{said}");
        let compact = second.frame(Encoding::Protobuf, Form::Delta, None).expect("encoded");
        assert!(compact.len() < said.len(), "bytes are no matter there");
    }

    #[test]
    fn what_is_no_text_is_not_json() {
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
    fn each_form_is_compressed_once_and_only_if_that_helps() {
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
    fn pushes_go_together_without_what_cannot_be_said() {
        let of = |publications: &[&[u8]]| {
            let publication = |data: &&[u8]| Publication { data: data.to_vec(), ..Publication::default() };
            let push = |data| Push { channel: "c".into(), publication: Some(publication(data)), ..Push::default() };
            ChannelPush::new("c".into(), publications.iter().map(push).collect())
        };
        let said = text(of(&[&[0xff], b"1", &[0xfe], b"2"]).frame(Encoding::Json, None));
        assert_eq!(said.lines().count(), 2, "{said}");
        assert_eq!(said, text(of(&[b"1", b"2"]).frame(Encoding::Json, None)));
        assert!(of(&[&[0xff]]).frame(Encoding::Json, None).is_none());
        assert!(of(&[&[0xff]]).frame(Encoding::Protobuf, None).is_some());
    }

    #[test]
    fn the_store_keeps_all_that_the_publisher_said() {
        let tags = [("a".to_owned(), "b".to_owned())].into();
        let publication = Publication { data: b"1".to_vec(), tags, ..Publication::default() };
        let stored = Stored { offset: 7, time_ms: 9, body: to_stored(&publication) };
        assert_eq!(from_stored(&stored), Ok(Publication { offset: 7, time: 9, ..publication }));
    }
}
