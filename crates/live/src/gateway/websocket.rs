//! WebSockets that a worker cannot serve itself: those over TLS, and unidirectional ones.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use steadfast_flow::Env;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::emulation::Emulation;
use super::frames::{Frame, Frames};
use super::stream::{FrameEncoder, FrameKind, connect_command};
use crate::protocol::Encoding;
use crate::protocol::Transport;
use crate::protocol::codes;
use crate::websocket::{self, Incoming, Reader};

/// Bytes per read.
const COPY_BYTES: usize = 4 << 10;

/// How long a client may take to close after the end of its session.
const LINGER: Duration = Duration::from_secs(2);

/// Copies bytes between a client and a worker until either closes.
pub(crate) async fn bridge(client: impl AsyncRead + AsyncWrite + Unpin, gateway: UnixStream, env: &Env) {
    let (from_client, mut to_client) = tokio::io::split(client);
    let (from_worker, mut to_worker) = gateway.into_split();
    let mut from_client = BufReader::with_capacity(COPY_BYTES, from_client);
    let mut from_worker = BufReader::with_capacity(COPY_BYTES, from_worker);
    let mut up = std::pin::pin!(tokio::io::copy_buf(&mut from_client, &mut to_worker));
    let down = async {
        tokio::io::copy_buf(&mut from_worker, &mut to_client).await?;
        to_client.shutdown().await
    };
    // The result does not matter: the worker and the client each see their socket close.
    tokio::select! {
        _ = up.as_mut() => {}
        ended = down => if ended.is_ok() {
            let _ = env.timeout(LINGER, up).await;
        },
    }
}

/// Serves a unidirectional WebSocket until it ends.
///
/// # Errors
/// The client has closed the connection.
pub(crate) async fn unidirectional(
    client: impl AsyncRead + AsyncWrite + Unpin,
    mut leftover: Vec<u8>,
    message_max: usize,
    gateway: UnixStream,
    name: Arc<str>,
    all: &Arc<Emulation>,
) -> io::Result<()> {
    let (mut from, mut to) = tokio::io::split(client);
    let (read, write) = gateway.into_split();
    let emulated = all.enter(name, Transport::UniWebSocket, Encoding::Json, write);
    let mut frames = Frames::new(read);
    let mut encoder = FrameEncoder::new(Transport::UniWebSocket, Encoding::Json);
    let (mut reader, mut connected) = (Reader::default(), false);
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let len = leftover.len().min(buffer.len());
        if len > 0 {
            buffer[..len].copy_from_slice(&leftover[..len]);
            leftover.drain(..len);
        }
        let read = tokio::select! {
            biased;
            read = async { if len > 0 { Ok(len) } else { from.read(&mut buffer).await } } => read?,
            frame = frames.next() => {
                if send_frames(frame?, &mut frames, &mut encoder, &emulated.commands, &mut to).await? {
                    return Ok(());
                }
                continue;
            }
        };
        if read == 0 {
            return Ok(());
        }
        let mut arrived = Vec::new();
        let fed = reader.feed(&mut buffer[..read], message_max, |incoming| {
            let is_open = incoming != Incoming::Close;
            arrived.push(incoming);
            is_open
        });
        for incoming in arrived {
            match incoming {
                // Only the first message has a meaning.
                Incoming::Message(_) if connected => {}
                Incoming::Message(request) => {
                    connected = true;
                    let Some(command) = connect_command(&request) else {
                        let why = codes::BAD_PROTOCOL;
                        return to.write_all(&websocket::close(why.code, &why.reason)).await;
                    };
                    if !emulated.commands.send(&command).await {
                        return Ok(());
                    }
                }
                Incoming::Ping(payload) => to.write_all(&websocket::pong(&payload)).await?,
                Incoming::Close => return to.write_all(&websocket::closed()).await,
            }
        }
        if let Err(violation) = fed {
            let reason = "the server does not support this frame";
            return to.write_all(&websocket::close(violation.code(), reason)).await;
        }
    }
}

/// Sends a frame and those buffered behind it to the client; `true` at the end of the session.
async fn send_frames(
    mut frame: Option<Frame>,
    frames: &mut Frames,
    encoder: &mut FrameEncoder,
    commands: &super::emulation::Commands,
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<bool> {
    let mut out = BytesMut::new();
    let mut ended = frame.is_none();
    while let Some(one) = frame {
        match encoder.encode(&one, &mut out) {
            FrameKind::Data => {}
            FrameKind::Ping => commands.pong(),
            FrameKind::End => ended = true,
        }
        frame = if ended { None } else { frames.ready() };
    }
    to.write_all(&out).await?;
    to.flush().await?;
    if ended {
        to.shutdown().await?;
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::gateway::pair;

    #[tokio::test]
    async fn a_bridge_ends_when_either_side_does() {
        let env = Env::tokio();
        let (mut worker, gateway) = pair().expect("descriptors");
        let (mut client, server) = tokio::io::duplex(64);
        worker.write_all(b"sent before the end").expect("buffer space");
        drop(worker);
        let mut received = Vec::new();
        // The client sees the end and never closes.
        let (read, ()) = tokio::join!(client.read_to_end(&mut received), bridge(server, gateway, &env));
        assert!(read.is_ok() && received == b"sent before the end");

        let (mut worker, gateway) = pair().expect("descriptors");
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"command").await.expect("buffer space");
        drop(client);
        bridge(server, gateway, &env).await;
        let mut commands = Vec::new();
        assert!(worker.read_to_end(&mut commands).is_ok() && commands == b"command");
    }
}
