//! The client side of the socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use super::socket::address;
use super::{Command, LINE_BYTES_MAX, Reply};

/// Sends a command to the server of a data directory and waits for its result. `progress` gets the
/// progress reports.
///
/// # Errors
/// When no server runs there, or the command failed, as a message.
pub fn ask(dir: &Path, command: &Command, mut progress: impl FnMut(&Value)) -> Result<Value, String> {
    let shown = dir.display();
    let lost = |e: io::Error| format!("{shown}: the server went away ({e}); {}", command.cut_off());
    let (path, _open) =
        address(dir).map_err(|e| format!("{shown}: {e}; give the directory of a server with --data"))?;
    let mut socket = UnixStream::connect(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "{shown}: no server runs on this directory, or it is still starting; this command needs the running server: start it \
             with `steadfast serve`, then try again"
        ),
        _ => format!("{shown}: the server cannot be reached: {e}; run this command as the server's user"),
    })?;
    let mut line = serde_json::to_vec(command).map_err(|e| e.to_string())?;
    line.push(b'\n');
    socket.write_all(&line).map_err(lost)?;
    let mut read = BufReader::new(socket);
    loop {
        line.clear();
        (&mut read).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).map_err(lost)?;
        if line.is_empty() {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
        match serde_json::from_slice(&line) {
            Ok(Reply::Progress(value)) => progress(&value),
            Ok(Reply::Done(value)) => return Ok(value),
            Ok(Reply::Error(why)) => return Err(why),
            Err(e) => {
                return Err(format!("{shown}: the server's answer cannot be read: {e}; is it of the same version?"));
            }
        }
    }
}
