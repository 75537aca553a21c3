//! What goes to many sessions: encoded once for each way in which sessions want it, when the first one does.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use prost::Message;
use steadfast_store::Publication as Stored;

use crate::fossil;
use crate::protocol::codec::encode_push;
use crate::protocol::message::{Publication, Push};
use crate::protocol::{Encoding, Malformed};
use crate::websocket;

/// A publication as the store keeps it: all but what the store knows itself.
pub fn to_stored(publication: &Publication) -> Bytes {
    publication.encode_to_vec().into()
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
    frames: [[Frame; 3]; 2],
}

impl Outgoing {
    /// A publication in a channel. `previous` is the one before it, if differences may be wanted.
    pub fn new(channel: Arc<str>, epoch: u32, publication: Publication, previous: Option<Arc<Self>>) -> Self {
        Self { channel, epoch, publication, previous, frames: Default::default() }
    }

    /// Lets go of the one before, so that not all of a channel's past hangs together.
    pub fn without_previous(&self) -> Self {
        Self::new(self.channel.clone(), self.epoch, self.publication.clone(), None)
    }

    /// Bytes that it holds, about.
    pub fn weight(&self) -> usize {
        self.publication.data.len() + self.channel.len() + 256
    }

    /// Its frame; `None` when its data cannot be said in JSON.
    pub fn frame(&self, encoding: Encoding, form: Form) -> Option<Bytes> {
        let form = if form == Form::Delta && self.previous.is_none() { Form::Whole } else { form };
        let form = if form == Form::Whole && encoding == Encoding::Protobuf { Form::Plain } else { form };
        self.frames[encoding as usize][form as usize].get_or_init(|| self.encode(encoding, form)).clone()
    }

    fn encode(&self, encoding: Encoding, form: Form) -> Option<Bytes> {
        let base = self.previous.as_ref().filter(|_| form == Form::Delta).map(|p| &p.publication.data[..]);
        let publication = in_form(&self.publication, encoding, form, base)?;
        let push =
            Push { channel: self.channel.as_ref().to_owned(), publication: Some(publication), ..Push::default() };
        Some(websocket::message(encoding, &encode_push(encoding, push).ok()?))
    }
}

/// A publication in a form; `base` is what a difference is made to.
pub fn in_form(publication: &Publication, encoding: Encoding, form: Form, base: Option<&[u8]>) -> Option<Publication> {
    let mut publication = publication.clone();
    if let Some(base) = base {
        publication.data = fossil::create(base, &publication.data);
        publication.delta = true;
    }
    if form != Form::Plain && encoding == Encoding::Json {
        let text = std::str::from_utf8(&publication.data).ok()?;
        publication.data = serde_json::to_vec(text).ok()?;
    }
    Some(publication)
}

/// Something else that goes to the subscribers of a channel: who came, who went.
pub struct ChannelPush {
    /// The channel.
    pub channel: Arc<str>,
    push: Push,
    frames: [Frame; 2],
}

impl ChannelPush {
    /// To the subscribers of the channel that the push names.
    pub fn new(channel: Arc<str>, push: Push) -> Self {
        Self { channel, push, frames: Default::default() }
    }

    /// Its frame; `None` when it cannot be said in JSON.
    pub fn frame(&self, encoding: Encoding) -> Option<Bytes> {
        let encode = || Some(websocket::message(encoding, &encode_push(encoding, self.push.clone()).ok()?));
        self.frames[encoding as usize].get_or_init(encode).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let plain = first.frame(Encoding::Json, Form::Plain).expect("encoded");
        assert_eq!(plain.as_ptr(), first.frame(Encoding::Json, Form::Plain).expect("encoded").as_ptr());
        let whole = text(first.frame(Encoding::Json, Form::Whole));
        assert!(whole.contains(r#""data":"{\"long\":\"0123"#), "{whole}");
        assert_eq!(text(first.frame(Encoding::Json, Form::Delta)), whole, "nothing to make a difference to");
        let second = outgoing(&first.publication.data.clone(), Some(first.clone()));
        let delta = text(second.frame(Encoding::Json, Form::Delta));
        assert!(delta.contains(r#""delta":true"#) && delta.len() < whole.len(), "{delta}");
        assert!(second.frame(Encoding::Protobuf, Form::Whole) == second.frame(Encoding::Protobuf, Form::Plain));
    }

    #[test]
    fn binary_data_has_no_frame_in_json() {
        let binary = outgoing(&[0xff, 0xfe], None);
        assert!(binary.frame(Encoding::Json, Form::Plain).is_none());
        assert!(binary.frame(Encoding::Protobuf, Form::Plain).is_some());
    }

    #[test]
    fn the_store_keeps_all_that_the_publisher_said() {
        let tags = [("a".to_owned(), "b".to_owned())].into();
        let publication = Publication { data: b"1".to_vec(), tags, ..Publication::default() };
        let stored = Stored { offset: 7, time_ms: 9, body: to_stored(&publication) };
        assert_eq!(from_stored(&stored), Ok(Publication { offset: 7, time: 9, ..publication }));
    }
}
