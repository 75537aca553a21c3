//! `steadfast status`.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::Failure;
use crate::control::{Command, client};

/// Arguments of `status`.
#[derive(Args, Debug)]
#[command(
    after_help = "Prints the state of disks, pool, channels and limits. Exit code 3 if the server is not ready.\n\n\
Examples:\n  steadfast status --data /var/lib/steadfast\n  steadfast status --admin http://127.0.0.1:9001 --json"
)]
pub struct StatusArgs {
    /// URL of the server's admin port
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9001", conflicts_with = "data")]
    admin: String,

    /// Data directory of a server on this machine; uses its socket instead of the admin port
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Print the server's whole status as JSON
    #[arg(long)]
    json: bool,
}

/// Time limit of connecting, and of each read and write.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let status = match &args.data {
        Some(dir) => client::ask(dir, &Command::Status {}, |_| {})?,
        None => ask(&args.admin)?,
    };
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        put!("{}", crate::report::table(&status));
    }
    if status["ready"] == Value::Bool(true) { Ok(()) } else { Err(Failure::Found) }
}

/// The status of the server with this admin port.
///
/// # Errors
/// The reason, as a message.
pub fn ask(url: &str) -> Result<Value, String> {
    let body = get(url, "/status")?;
    serde_json::from_slice(&body).map_err(|e| format!("{url} is not the admin port of a Steadfast server: {e}"))
}

/// A GET of HTTP/1.0, which needs no client library: the answer ends with the connection.
fn get(url: &str, path: &str) -> Result<Vec<u8>, String> {
    let host = url.trim_end_matches('/');
    let host = host.strip_prefix("http://").unwrap_or(host);
    if host.contains("://") || host.contains('/') {
        return Err(format!("--admin {url}: expected http://HOST:PORT"));
    }
    let fail =
        |e: std::io::Error| format!("no answer from {url}: {e}; is the server running, and is this its admin port?");
    let mut addresses = host.to_socket_addrs().map_err(|e| format!("--admin {url}: {e}"))?;
    let address = addresses.next().ok_or_else(|| format!("--admin {url}: no such host"))?;
    let mut socket = TcpStream::connect_timeout(&address, TIMEOUT).map_err(fail)?;
    socket.set_read_timeout(Some(TIMEOUT)).map_err(fail)?;
    socket.set_write_timeout(Some(TIMEOUT)).map_err(fail)?;
    // The variable of the setting `admin.token`.
    let token = std::env::var("STEADFAST_ADMIN_TOKEN").ok().filter(|token| !token.is_empty());
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    write!(socket, "GET {path} HTTP/1.0\r\nHost: {host}\r\n{token}Connection: close\r\n\r\n").map_err(fail)?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(fail)?;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let head = String::from_utf8_lossy(&answer[..end.unwrap_or(0)]).into_owned();
    let line = head.lines().next().unwrap_or_default();
    match (end, line.split_whitespace().nth(1)) {
        (Some(end), Some("200")) => Ok(answer.split_off(end + 4)),
        (Some(_), Some("401")) => {
            Err(format!("{url} requires a token: set STEADFAST_ADMIN_TOKEN to the value of admin.token, or use --data"))
        }
        (Some(_), Some(_)) => Err(format!("{url}{path} answered {line:?}; is this its admin port?")),
        _ => Err(format!("{url} does not speak HTTP")),
    }
}
