//! The fuzz target: bytes of a client, through handshake and transmission, over a disk in memory.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use steadfast_disk::{BLOCK, Disk, MemDisk};
use steadfast_flow::{Connection, Env};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use crate::peer::Peer;
use crate::protocol::{OPTION_MAGIC, REQUEST_MAGIC, option};
use crate::server::serve_stream;
use crate::{Export, ExportOptions, Limits};

const SIZE: u64 = 16 * BLOCK as u64;

/// The bytes that bring a client to transmission with structured replies.
fn opening() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(3);
    for (kind, data) in [(option::STRUCTURED_REPLY, &b""[..]), (option::GO, b"\0\0\0\0\0\x01\0\x03")] {
        bytes.put_u64(OPTION_MAGIC);
        bytes.put_u32(kind);
        bytes.put_u32(u32::try_from(data.len()).unwrap_or(0));
        bytes.put_slice(data);
    }
    bytes
}

fn put_request(out: &mut Vec<u8>, command: u16, flags: u16, offset: u64, length: u32) {
    out.put_u32(REQUEST_MAGIC);
    out.put_u16(flags);
    out.put_u16(command);
    out.put_u64(1);
    out.put_u64(offset);
    out.put_u32(length);
}

/// Valid sessions. An even first byte means that the remaining bytes follow the handshake.
pub fn nbd_corpus() -> Vec<Vec<u8>> {
    let mut requests = vec![0];
    put_request(&mut requests, 1, 1, 500, 20);
    requests.put_bytes(7, 20);
    put_request(&mut requests, 0, 4, 500, 5000);
    put_request(&mut requests, 3, 0, 0, 0);
    put_request(&mut requests, 4, 1, 100, 9000);
    put_request(&mut requests, 6, 2, 100, 9000);
    put_request(&mut requests, 2, 0, 0, 0);
    let mut handshake = vec![1];
    handshake.extend(opening());
    let mut list = vec![1];
    list.put_u32(1);
    for kind in [option::LIST, option::ABORT] {
        list.put_u64(OPTION_MAGIC);
        list.put_u32(kind);
        list.put_u32(0);
    }
    vec![requests, handshake, list]
}

/// Runs one session. Returns a signature of the replies and of the counters.
pub fn fuzz_nbd(data: &[u8]) -> u64 {
    let Some((first, rest)) = data.split_first() else { return 0 };
    let mut bytes = if first % 2 == 0 { opening() } else { Vec::new() };
    bytes.extend_from_slice(rest);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return 0 };
    runtime.block_on(session(bytes))
}

async fn session(bytes: Vec<u8>) -> u64 {
    let env = Env::tokio();
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::fixed(SIZE));
    let limits = Limits {
        requests_in_flight_max: 4,
        request_bytes_max: 32 << 10,
        connection_bytes_max: 16 << 10,
        large_bytes_max: 64 << 10,
        handshake_timeout: Duration::from_secs(2),
        stall_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let options = ExportOptions { limits, ..ExportOptions::new("a") };
    let Ok(export) = Export::new(options, disk, env.clone()) else { return 0 };
    let exports = [export];
    let (client, server) = tokio::io::duplex(4096);
    let (input, output) = tokio::io::split(server);
    let (mut replies, mut requests) = tokio::io::split(client);
    let (_stop, stopped) = watch::channel(false);
    let send = async move {
        // The send fails when the server has closed the connection, which it may do.
        let _ = requests.write_all(&bytes).await;
        let _ = requests.shutdown().await;
    };
    let receive = async move {
        let mut replied = Vec::new();
        let _ = replies.read_to_end(&mut replied).await;
        replied
    };
    let (peer, connection) = (Peer::unknown(), Connection::alone([127, 0, 0, 1].into(), env.clone()));
    let serve = serve_stream(input, output, (&peer, &connection), &exports, &limits, &env, stopped);
    let (result, (), replied) = futures::join!(serve, send, receive);
    let mut hash = DefaultHasher::new();
    hash.write_u8(u8::from(result.is_err()));
    let [export] = &exports;
    let counts = export.status().counts;
    let requests = counts.requests;
    for count in [requests.read, requests.write, requests.trim, requests.write_zeroes, counts.refused] {
        hash.write_u64(count.min(3));
    }
    hash.write_usize(replied.len().min(1024) / 8);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_sessions_have_outcomes_of_their_own() {
        let outcomes: std::collections::BTreeSet<u64> = nbd_corpus().iter().map(|input| fuzz_nbd(input)).collect();
        assert_eq!(outcomes.len(), nbd_corpus().len());
    }

    proptest! {
        #[test]
        fn damaged_sessions_end(
            which in 0..nbd_corpus().len(),
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut input = nbd_corpus().swap_remove(which);
            for (at, byte) in flips {
                let at = at.index(input.len());
                input[at] = byte;
            }
            input.truncate(cut.index(input.len()) + 1);
            fuzz_nbd(&input);
        }
    }
}
