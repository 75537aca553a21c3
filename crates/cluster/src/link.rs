//! One link: its incoming frames, signs of life and measurements.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use steadfast_flow::Env;

use crate::events::LinkEvents;
use crate::frame::{Frame, FrameDecoder, Kind, Ping};
use crate::outbox::Outbox;
use crate::roster::NodeIndex;
use crate::status::LinkCounters;

/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// A link on which nothing arrives for this long is dead.
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// The frames that arrive on a link.
pub(crate) struct Incoming {
    bytes: BoxStream<'static, Result<Bytes, String>>,
    decoder: FrameDecoder,
}

impl Incoming {
    pub(crate) fn new(bytes: BoxStream<'static, Result<Bytes, String>>) -> Self {
        Self { bytes, decoder: FrameDecoder::default() }
    }

    /// The handshake has ended.
    pub(crate) fn established(&mut self) {
        self.decoder.established();
    }

    /// The next frame. The end of the stream is an error.
    pub(crate) async fn frame(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return Ok(frame);
            }
            match self.bytes.next().await {
                Some(bytes) => self.decoder.push(&bytes?),
                None => return Err("the other node closed the link".to_owned()),
            }
        }
    }
}

fn now_us(env: &Env) -> u64 {
    env.now().as_micros() as u64
}

/// Sends pings until the link ends.
pub(crate) async fn ping(env: Env, outbox: Outbox) {
    while outbox.send(Kind::Ping(Ping { sent_us: now_us(&env) }).to_bytes()) {
        tokio::select! {
            () = env.sleep(PING_INTERVAL) => {}
            () = outbox.closed() => return,
        }
    }
}

/// A link that is up.
pub(crate) struct Serving<'a> {
    pub(crate) node: NodeIndex,
    pub(crate) outbox: &'a Outbox,
    pub(crate) events: &'a Arc<dyn LinkEvents>,
    pub(crate) counters: &'a LinkCounters,
}

fn closed_here(outbox: &Outbox) -> String {
    match outbox.is_overrun() {
        true => "its outbox is full, because the other node reads too slowly".to_owned(),
        false => "this node closed the link".to_owned(),
    }
}

/// Reads a link until it ends, and returns why it did.
pub(crate) async fn run(env: &Env, incoming: &mut Incoming, link: &Serving<'_>) -> String {
    let Serving { node, outbox, events, counters } = link;
    loop {
        // Frames that are not read stay with the other node, whose outbox is bounded.
        if let Some(keep_up) = events.keep_up() {
            tokio::select! {
                biased;
                () = outbox.closed() => return closed_here(outbox),
                () = keep_up => {}
            }
        }
        let frame = tokio::select! {
            biased;
            () = outbox.closed() => return closed_here(outbox),
            frame = env.timeout(DEAD_AFTER, incoming.frame()) => frame,
        };
        let kind = match frame {
            Some(Ok(frame)) => frame.kind,
            Some(Err(why)) => return why,
            None => return format!("nothing arrived for {} s", DEAD_AFTER.as_secs()),
        };
        counters.received();
        let handled = match kind {
            Some(Kind::Ping(ping)) => {
                outbox.send(Kind::Pong(ping).to_bytes());
                Ok(())
            }
            Some(Kind::Pong(ping)) => {
                counters.round_trip(now_us(env).saturating_sub(ping.sent_us));
                Ok(())
            }
            Some(Kind::Refused(refused)) => Err(format!("the other node refuses the link: {}", refused.reason)),
            Some(Kind::Hello(_) | Kind::Proof(_)) => Err("the other node repeated the handshake".to_owned()),
            Some(kind) => events.on_frame(*node, outbox, kind),
            None => Err("the other node sent an unknown frame".to_owned()),
        };
        if let Err(why) = handled {
            return why;
        }
    }
}
