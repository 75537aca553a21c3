//! A minimal client, which can also send what no real client would.

use std::path::Path;

use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub const GO: u32 = 7;
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;
pub const FUA: u16 = 1;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;

pub struct Client {
    pub stream: UnixStream,
    pub size: u64,
    pub flags: u16,
    structured: bool,
    cookie: u64,
}

impl Client {
    /// Connects and reads the greeting.
    pub async fn greet(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).await.expect("connected");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await.expect("a greeting");
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_u32(3).await.expect("sent");
        Self { stream, size: 0, flags: 0, structured: false, cookie: 0 }
    }

    /// Sends an option and collects its replies up to the last one, as type and data.
    pub async fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data).await;
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.stream.read_u64().await.expect("magic"), 0x0003_e889_0455_65a9);
            assert_eq!(self.stream.read_u32().await.expect("option"), option);
            let kind = self.stream.read_u32().await.expect("type");
            let mut data = vec![0; self.stream.read_u32().await.expect("length") as usize];
            self.stream.read_exact(&mut data).await.expect("data");
            replies.push((kind, data));
            if kind == 1 || kind >= 1 << 31 {
                return replies;
            }
        }
    }

    pub async fn send_option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = Vec::new();
        bytes.put_slice(b"IHAVEOPT");
        bytes.put_u32(option);
        bytes.put_u32(data.len() as u32);
        bytes.put_slice(data);
        self.stream.write_all(&bytes).await.expect("sent");
    }

    /// Connects to an export.
    pub async fn connect(path: &Path, name: &str, structured: bool) -> Self {
        let mut client = Self::greet(path).await;
        if structured {
            assert_eq!(client.option(8, b"").await, [(1, vec![])]);
            client.structured = true;
        }
        let replies = client.option(GO, &info(name, &[])).await;
        assert_eq!(replies.last().expect("a reply").0, 1, "{replies:?}");
        let export = &replies[0].1;
        client.size = u64::from_be_bytes(export[2..10].try_into().expect("size"));
        client.flags = u16::from_be_bytes(export[10..12].try_into().expect("flags"));
        client
    }

    /// Sends a request without waiting and returns its cookie.
    pub async fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> u64 {
        self.cookie += 1;
        let mut bytes = Vec::with_capacity(28 + payload.len());
        bytes.put_u32(0x2560_9513);
        bytes.put_u16(flags);
        bytes.put_u16(command);
        bytes.put_u64(self.cookie);
        bytes.put_u64(offset);
        bytes.put_u32(length);
        bytes.put_slice(payload);
        self.stream.write_all(&bytes).await.expect("sent");
        self.cookie
    }

    /// Receives the next reply. `length` bytes of data follow a simple reply without an error.
    pub async fn reply(&mut self, length: usize) -> (u64, Result<Vec<u8>, u32>) {
        let magic = self.stream.read_u32().await.expect("a reply");
        if magic == 0x6744_6698 {
            let error = self.stream.read_u32().await.expect("error");
            let cookie = self.stream.read_u64().await.expect("cookie");
            let mut data = vec![0; if error == 0 { length } else { 0 }];
            self.stream.read_exact(&mut data).await.expect("data");
            return (cookie, if error == 0 { Ok(data) } else { Err(error) });
        }
        assert_eq!(magic, 0x668e_33ef);
        assert!(self.structured);
        assert_eq!(self.stream.read_u16().await.expect("flags"), 1);
        let kind = self.stream.read_u16().await.expect("type");
        let cookie = self.stream.read_u64().await.expect("cookie");
        let mut data = vec![0; self.stream.read_u32().await.expect("length") as usize];
        self.stream.read_exact(&mut data).await.expect("data");
        match kind {
            0 => (cookie, Ok(Vec::new())),
            1 => (cookie, Ok(data.split_off(8))),
            0x8001 => (cookie, Err(u32::from_be_bytes(data[..4].try_into().expect("error")))),
            other => panic!("chunk type {other}"),
        }
    }

    async fn call(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> Result<Vec<u8>, u32> {
        let cookie = self.send(command, flags, offset, length, data).await;
        let expected = if command == READ && !self.structured { length as usize } else { 0 };
        let (replied, result) = self.reply(expected).await;
        assert_eq!(replied, cookie);
        result
    }

    pub async fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.call(READ, 0, offset, length, b"").await
    }

    pub async fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.call(WRITE, flags, offset, data.len() as u32, data).await.map(drop)
    }

    pub async fn command(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> Result<(), u32> {
        self.call(command, flags, offset, length, b"").await.map(drop)
    }

    /// Whether the server closes the connection, perhaps after some bytes.
    pub async fn closed(mut self) -> bool {
        let mut rest = Vec::new();
        // A reset counts: the server closed with bytes of the client unread.
        let _ = self.stream.read_to_end(&mut rest).await;
        true
    }
}

/// The data of the options INFO and GO.
pub fn info(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u16(wanted.len() as u16);
    for kind in wanted {
        data.put_u16(*kind);
    }
    data
}
