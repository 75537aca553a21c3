//! The handshake: the client's options, until the client has chosen an export.

use std::io;
use std::sync::Arc;

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Export;
use crate::connection::Session;
use crate::protocol::{
    self, InfoRequest, OPTION_HEADER_BYTES, OptionHeader, STRING_BYTES_MAX, handshake_flag, info, option,
    option_reply as reply,
};

/// The longest option data that is parsed, in bytes: a name, and more kinds of information than the
/// protocol has.
const OPTION_BYTES_MAX: usize = STRING_BYTES_MAX + 1024;
/// Longer data is skipped up to this length. Above it the connection is closed.
const SKIPPED_BYTES_MAX: u32 = 1 << 20;
/// The minimum request size advertised to clients, in bytes. Smaller ones are served.
const BLOCK_BYTES_MIN: u32 = 512;

/// Negotiates with a client. `None` when the client ended the session or chose no available export.
///
/// # Errors
/// The socket's; `InvalidData` when the client breaks the protocol.
pub(crate) async fn negotiate(
    input: &mut (impl AsyncRead + Unpin),
    output: &mut (impl AsyncWrite + Unpin),
    exports: &[Arc<Export>],
) -> io::Result<Option<Session>> {
    output.write_all(&protocol::greeting()).await?;
    let flags = input.read_u32().await?;
    let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    if flags & !u32::from(known) != 0 {
        return Err(malformed("unknown flags of the client"));
    }
    let zeroes = flags & u32::from(handshake_flag::NO_ZEROES) == 0;
    let mut handshake = Handshake { exports, structured: false, zeroes };
    loop {
        let mut header = [0; OPTION_HEADER_BYTES];
        if let Err(error) = input.read_exact(&mut header).await {
            return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
        }
        let Some(header) = OptionHeader::parse(&header) else {
            return Err(malformed("an option with a wrong magic"));
        };
        let mut out = Vec::new();
        let next = match read_data(input, header).await? {
            Some(data) => handshake.answer(header.option, &data, &mut out),
            None => {
                protocol::put_option_reply(&mut out, header.option, reply::ERR_TOO_BIG, b"the option is too long");
                Next::Option
            }
        };
        output.write_all(&out).await?;
        match next {
            Next::Option => {}
            Next::Transmission(session) => return Ok(Some(session)),
            Next::Close => return Ok(None),
        }
    }
}

/// Reads an option's data; `None` when the data was too long and has been skipped.
async fn read_data(input: &mut (impl AsyncRead + Unpin), header: OptionHeader) -> io::Result<Option<Vec<u8>>> {
    let length = header.length as usize;
    if length > OPTION_BYTES_MAX {
        // EXPORT_NAME has no error reply.
        if header.length > SKIPPED_BYTES_MAX || header.option == option::EXPORT_NAME {
            return Err(malformed("an option that is far too long"));
        }
        let skipped = tokio::io::copy(&mut input.take(u64::from(header.length)), &mut tokio::io::sink()).await?;
        return if skipped < u64::from(header.length) { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
    }
    let mut data = vec![0; length];
    input.read_exact(&mut data).await?;
    Ok(Some(data))
}

/// The state after an option.
enum Next {
    Option,
    Transmission(Session),
    Close,
}

struct Handshake<'a> {
    exports: &'a [Arc<Export>],
    structured: bool,
    /// Whether 124 zeros end the reply to `EXPORT_NAME`.
    zeroes: bool,
}

impl Handshake<'_> {
    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        let mut put = |kind, data: &[u8]| protocol::put_option_reply(out, option, kind, data);
        match option {
            option::EXPORT_NAME => return self.export_name(data, out),
            option::INFO | option::GO => return self.info(option, data, out),
            option::ABORT => {
                put(reply::ACK, b"");
                return Next::Close;
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                put(reply::ERR_INVALID, b"the option has no data");
            }
            option::LIST => {
                for export in self.exports {
                    put(reply::SERVER, &protocol::list_entry(export.name(), export.description()));
                }
                put(reply::ACK, b"");
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                put(reply::ACK, b"");
            }
            _ => put(reply::ERR_UNSUP, b"the server does not know this option"),
        }
        Next::Option
    }

    /// Finds an export by name. The empty name means the first export, unless an export has that
    /// name.
    fn find(&self, name: &str) -> Option<&Arc<Export>> {
        let named = self.exports.iter().find(|export| export.name() == name);
        named.or_else(|| self.exports.first().filter(|_| name.is_empty()))
    }

    fn export_name(&self, data: &[u8], out: &mut Vec<u8>) -> Next {
        // `EXPORT_NAME` has no error reply: the protocol closes the connection instead.
        let export = protocol::export_name(data).and_then(|name| self.find(&name));
        let Some((export, place)) = export.and_then(|export| Some((export, export.enter()?))) else {
            return Next::Close;
        };
        out.put_u64(export.size());
        out.put_u16(export.flags(self.structured));
        out.put_bytes(0, if self.zeroes { 124 } else { 0 });
        Next::Transmission(Session { place, structured: self.structured })
    }

    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Next {
        let mut put = |kind, data: &[u8]| protocol::put_option_reply(out, option, kind, data);
        let Some(request) = InfoRequest::parse(data) else {
            put(reply::ERR_INVALID, b"the option is malformed");
            return Next::Option;
        };
        let Some(export) = self.find(&request.name) else {
            put(reply::ERR_UNKNOWN, b"there is no export of this name");
            return Next::Option;
        };
        let place = match option {
            option::GO => match export.enter() {
                Some(place) => Some(place),
                None => {
                    put(reply::ERR_POLICY, b"the export has reached its maximum number of connections");
                    return Next::Option;
                }
            },
            _ => None,
        };
        for data in describe(export, &request, self.structured) {
            put(reply::INFO, &data);
        }
        put(reply::ACK, b"");
        place.map_or(Next::Option, |place| Next::Transmission(Session { place, structured: self.structured }))
    }
}

/// Encodes the requested information on an export.
fn describe(export: &Export, request: &InfoRequest, structured: bool) -> Vec<Vec<u8>> {
    let new = |kind: u16| {
        let mut data = Vec::new();
        data.put_u16(kind);
        data
    };
    let mut size = new(info::EXPORT);
    size.put_u64(export.size());
    size.put_u16(export.flags(structured));
    let mut all = vec![size];
    for (kind, text) in [(info::NAME, export.name()), (info::DESCRIPTION, export.description())] {
        if request.wants(kind) && (kind == info::NAME || !text.is_empty()) {
            let mut data = new(kind);
            data.put_slice(text.as_bytes());
            all.push(data);
        }
    }
    if request.wants(info::BLOCK_SIZE) {
        let mut data = new(info::BLOCK_SIZE);
        data.put_u32(BLOCK_BYTES_MIN);
        data.put_u32(steadfast_disk::BLOCK as u32);
        data.put_u32(export.limits.request_bytes_max);
        all.push(data);
    }
    all
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
