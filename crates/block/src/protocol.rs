//! The bytes of the NBD protocol: constants, parsing and encoding. This module does no I/O.
//!
//! The names follow `doc/proto.md` of the NBD project, without their prefixes. All numbers are
//! big-endian.

use bytes::BufMut;

/// The first eight bytes from the server.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Begins every option of the client, and the second eight bytes from the server.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option's header: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 28;
/// The longest string (name or description) of the protocol, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

/// Flags of the handshake, the same bits from the server (16 bits) and the client (32 bits).
pub mod handshake_flag {
    /// The server answers unknown options.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The reply to `EXPORT_NAME` ends without 124 zeros.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the client.
pub mod option {
    /// Choose an export and begin transmission, without any error reply.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
}

/// Types of replies to options.
pub mod option_reply {
    /// The option succeeded.
    pub const ACK: u32 = 1;
    /// One export of the list.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// The server refuses by its own policy.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// No export has this name.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Types of information on an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// Description for humans.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum size of a request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod transmission_flag {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag `FUA` is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag `DF` is served.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush covers what any connection of the export has written.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Flags of requests.
pub mod command_flag {
    /// The server replies once the written data is durable.
    pub const FUA: u16 = 1;
    /// The server must write zeros instead of deallocating.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The server replies to a read with one chunk.
    pub const DF: u16 = 1 << 2;
}

/// Flags and types of the chunks of structured replies.
pub mod chunk {
    /// The chunk is the last one of its reply.
    pub const DONE: u16 = 1;
    /// The end of a reply without content.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// An error, with a text.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read a range.
    Read,
    /// Write the payload that follows the header.
    Write,
    /// End the session.
    Disconnect,
    /// Make earlier writes durable.
    Flush,
    /// Discard a range.
    Trim,
    /// Write zeros.
    WriteZeroes,
    /// A number that the server does not know.
    Unknown(u16),
}

impl Command {
    fn of(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            6 => Self::WriteZeroes,
            other => Self::Unknown(other),
        }
    }

    /// The flags that a request of this kind may have.
    fn flags(self, structured: bool) -> u16 {
        let own = match self {
            Self::Read if structured => command_flag::DF,
            Self::WriteZeroes => command_flag::NO_HOLE,
            _ => 0,
        };
        // The protocol allows FUA with every command; a read ignores it.
        own | command_flag::FUA
    }
}

/// Errors of the protocol, with its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted.
    Perm = 1,
    /// Input or output failed.
    Io = 5,
    /// The request is malformed.
    Invalid = 22,
    /// No space.
    NoSpace = 28,
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`command_flag`].
    pub flags: u16,
    /// The operation.
    pub command: Command,
    /// The client's identifier of the request, repeated in the reply.
    pub cookie: u64,
    /// Offset in the export in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

impl Request {
    /// Parses a header; `None` when the magic is wrong.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: reader.u16()?,
            command: Command::of(reader.u16()?),
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    }

    /// Whether the server must reply only once the written data is durable.
    pub fn fua(&self) -> bool {
        self.flags & command_flag::FUA != 0
    }

    /// Checks the request against an export of `size` bytes.
    ///
    /// # Errors
    /// The error of the reply. The payload of a refused write still follows.
    pub fn check(&self, size: u64, read_only: bool, structured: bool, length_max: u32) -> Result<(), Errno> {
        let changes = matches!(self.command, Command::Write | Command::Trim | Command::WriteZeroes);
        let carries_data = matches!(self.command, Command::Read | Command::Write);
        let past_the_end = self.offset.checked_add(u64::from(self.length)).is_none_or(|end| end > size);
        match self.command {
            Command::Unknown(_) => Err(Errno::Invalid),
            _ if self.flags & !self.command.flags(structured) != 0 => Err(Errno::Invalid),
            _ if changes && read_only => Err(Errno::Perm),
            _ if carries_data && self.length > length_max => Err(Errno::Invalid),
            Command::Flush if self.offset != 0 || self.length != 0 => Err(Errno::Invalid),
            Command::Write | Command::WriteZeroes if past_the_end => Err(Errno::NoSpace),
            Command::Read | Command::Trim if past_the_end => Err(Errno::Invalid),
            _ => Ok(()),
        }
    }
}

/// The header of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// A number of [`option`], or an unknown one.
    pub option: u32,
    /// Bytes of data behind the header.
    pub length: u32,
}

impl OptionHeader {
    /// Parses a header; `None` when the magic is wrong.
    pub fn parse(bytes: &[u8; OPTION_HEADER_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u64()? != OPTION_MAGIC {
            return None;
        }
        Some(Self { option: reader.u32()?, length: reader.u32()? })
    }
}

/// The data of the options `INFO` and `GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest {
    /// The name of the export; empty for the default one.
    pub name: String,
    /// Numbers of [`info`] that the client requests; some may be unknown.
    pub wanted: Vec<u16>,
}

impl InfoRequest {
    /// Parses the data of the option; `None` when it is malformed.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let mut reader = Reader(data);
        let length = usize::try_from(reader.u32()?).ok()?;
        let name = export_name(reader.take(length)?)?;
        let count = usize::from(reader.u16()?);
        if reader.0.len() != count * 2 {
            return None;
        }
        let wanted = (0..count).map_while(|_| reader.u16()).collect();
        Some(Self { name, wanted })
    }

    /// Whether the client requests this kind of information.
    pub fn wants(&self, kind: u16) -> bool {
        self.wanted.contains(&kind)
    }
}

/// Parses the name of an export; `None` when it is too long or not UTF-8.
pub fn export_name(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    (bytes.len() <= STRING_BYTES_MAX).then(|| text.to_owned())
}

/// The greeting of the server: both magics and its flags.
pub fn greeting() -> Vec<u8> {
    let mut out = Vec::with_capacity(18);
    out.put_u64(INIT_MAGIC);
    out.put_u64(OPTION_MAGIC);
    out.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    out
}

/// Appends a reply to an option. `data` is far below 4 GiB: strings are at most
/// [`STRING_BYTES_MAX`] bytes.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
    out.put_slice(data);
}

/// Encodes the data of a reply `SERVER`: one export of the list.
pub fn list_entry(name: &str, description: &str) -> Vec<u8> {
    let mut data = Vec::with_capacity(4 + name.len() + description.len());
    data.put_u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
    data.put_slice(name.as_bytes());
    data.put_slice(description.as_bytes());
    data
}

/// The longest header of a reply in bytes: a chunk's header and the offset of its data, or an error
/// without its text.
const REPLY_HEADER_BYTES_MAX: usize = 28;

/// The encoded header of a reply, which the writer sends before the payload.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHeader {
    bytes: [u8; REPLY_HEADER_BYTES_MAX],
    length: usize,
}

impl ReplyHeader {
    fn new(fill: impl FnOnce(&mut &mut [u8])) -> Self {
        let mut bytes = [0; REPLY_HEADER_BYTES_MAX];
        let mut rest = &mut bytes[..];
        fill(&mut rest);
        let length = REPLY_HEADER_BYTES_MAX - rest.len();
        Self { bytes, length }
    }

    /// A simple reply. After a success, the data of a read follows.
    pub fn simple(cookie: u64, error: Option<Errno>) -> Self {
        Self::new(|out| {
            out.put_u32(SIMPLE_REPLY_MAGIC);
            out.put_u32(error.map_or(0, |error| error as u32));
            out.put_u64(cookie);
        })
    }

    /// The only chunk of a structured reply, with `length` bytes of data from `offset` behind it.
    pub fn data(cookie: u64, offset: u64, length: u32) -> Self {
        if length == 0 {
            // The protocol forbids a data chunk without data.
            return Self::new(|out| put_chunk(out, chunk::NONE, cookie, 0));
        }
        Self::new(|out| {
            put_chunk(out, chunk::OFFSET_DATA, cookie, length.saturating_add(8));
            out.put_u64(offset);
        })
    }

    /// The only chunk of a structured reply to a failed request.
    pub fn error(cookie: u64, error: Errno) -> Self {
        Self::new(|out| {
            put_chunk(out, chunk::ERROR, cookie, 6);
            out.put_u32(error as u32);
            out.put_u16(0);
        })
    }

    /// The encoded bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

fn put_chunk(out: &mut &mut [u8], kind: u16, cookie: u64, length: u32) {
    out.put_u32(STRUCTURED_REPLY_MAGIC);
    out.put_u16(chunk::DONE);
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u32(length);
}

/// Reads numbers from the front of a slice; `None` when the slice ends too early.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(command: Command, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 7, offset, length }
    }

    #[test]
    fn headers_have_the_bytes_of_the_protocol() {
        assert_eq!(greeting(), b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!(ReplyHeader::simple(7, Some(Errno::Io)).as_slice(), b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x07");
        assert_eq!(
            ReplyHeader::data(7, 512, 4).as_slice(),
            b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\x0c\0\0\0\0\0\0\x02\0"
        );
        assert_eq!(ReplyHeader::data(7, 512, 0).as_slice(), b"\x66\x8e\x33\xef\0\x01\0\0\0\0\0\0\0\0\0\x07\0\0\0\0");
        assert_eq!(
            ReplyHeader::error(7, Errno::Invalid).as_slice(),
            b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x06\0\0\0\x16\0\0"
        );
    }

    #[test]
    fn requests_are_checked_against_the_export() {
        let max = 1 << 20;
        let check = |request: Request| request.check(10 << 20, false, true, max);
        assert_eq!(check(request(Command::Read, command_flag::DF, 0, max)), Ok(()));
        assert_eq!(check(request(Command::Read, 0, 0, max + 1)), Err(Errno::Invalid));
        assert_eq!(check(request(Command::Read, 0, 10 << 20, 1)), Err(Errno::Invalid));
        assert_eq!(check(request(Command::Read, 0, u64::MAX, 1)), Err(Errno::Invalid));
        assert_eq!(check(request(Command::Write, 0, 10 << 20, 1)), Err(Errno::NoSpace));
        assert_eq!(check(request(Command::Write, command_flag::DF, 0, 1)), Err(Errno::Invalid));
        assert_eq!(check(request(Command::WriteZeroes, command_flag::NO_HOLE, 0, 10 << 20)), Ok(()));
        assert_eq!(check(request(Command::WriteZeroes, 1 << 4, 0, 1)), Err(Errno::Invalid));
        assert_eq!(check(request(Command::Trim, 0, 0, 10 << 20)), Ok(()));
        assert_eq!(check(request(Command::Trim, 0, 1, 10 << 20)), Err(Errno::Invalid));
        assert_eq!(check(request(Command::Flush, 0, 1, 0)), Err(Errno::Invalid));
        assert_eq!(check(request(Command::Unknown(5), 0, 0, 0)), Err(Errno::Invalid));
        let refused = request(Command::Write, 0, 0, 1).check(10 << 20, true, true, max);
        assert_eq!(refused, Err(Errno::Perm));
        let plain = request(Command::Read, command_flag::DF, 0, 1).check(10 << 20, false, false, max);
        assert_eq!(plain, Err(Errno::Invalid));
    }

    #[test]
    fn info_requests_must_be_whole() {
        let data = b"\0\0\0\x02ab\0\x02\0\x01\0\x03";
        let request = InfoRequest::parse(data).expect("well formed");
        assert_eq!(request, InfoRequest { name: "ab".to_owned(), wanted: vec![1, 3] });
        for cut in 0..data.len() {
            assert_eq!(InfoRequest::parse(&data[..cut]), None, "{cut}");
        }
        assert_eq!(InfoRequest::parse(b"\xff\xff\xff\xff\0\0"), None);
        assert_eq!(InfoRequest::parse(b"\0\0\0\x01\xff\0\0"), None);
        assert_eq!(InfoRequest::parse(b"\0\0\0\0\0\0\0"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(data in proptest::collection::vec(any::<u8>(), 0..64)) {
            InfoRequest::parse(&data);
            if let Some(header) = data.first_chunk() {
                Request::parse(header);
            }
            if let Some(header) = data.first_chunk() {
                OptionHeader::parse(header);
            }
        }
    }
}
