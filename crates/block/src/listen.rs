//! The listening addresses of a server.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};

/// Connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 64;

/// A listening address: `unix:PATH`, or `ADDRESS:PORT` on loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket that only the server's own user can open.
    Unix(PathBuf),
    /// A port on a loopback address; 0 for any free port.
    Tcp(SocketAddr),
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The text is neither of the two forms.
    #[error("cannot listen on {0:?}: write unix:PATH, or ADDRESS:PORT such as 127.0.0.1:10809")]
    Malformed(String),
    /// The address is not on loopback; NBD has neither keys nor encryption here.
    #[error(
        "cannot listen on {0}: NBD has no passwords and no encryption here, so it listens on loopback and Unix sockets \
         only. For other machines, put a TLS proxy such as stunnel in front of 127.0.0.1:{port}, or use `ssh -L \
         {port}:127.0.0.1:{port} HOST` on the client",
        port = .0.port()
    )]
    NotLoopback(SocketAddr),
    /// Another server uses the socket.
    #[error("cannot listen on {0}: another server listens there")]
    InUse(String),
    /// The path belongs to a file that is not a socket. The server keeps that file.
    #[error("cannot listen on {0}: there is a file that is no socket")]
    NoSocket(String),
    /// No exports were given, or two have the same name.
    #[error("cannot serve NBD: there are no exports, or two have the name {0:?}")]
    Exports(String),
    /// The operating system reports an error.
    #[error("cannot listen on {0}: {1}")]
    Io(String, #[source] io::Error),
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let address: SocketAddr = text.parse().map_err(|_| ListenError::Malformed(text.to_owned()))?;
        if !address.ip().to_canonical().is_loopback() {
            return Err(ListenError::NotLoopback(address));
        }
        Ok(Self::Tcp(address))
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// A listening socket.
pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// A connection.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(..))
    }

    pub(crate) async fn bind(listen: &Listen) -> Result<Self, ListenError> {
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(listen.to_string()),
            _ => ListenError::Io(listen.to_string(), error),
        };
        match listen {
            Listen::Tcp(address) if !address.ip().to_canonical().is_loopback() => {
                Err(ListenError::NotLoopback(*address))
            }
            Listen::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address).await.map_err(fail)?)),
            Listen::Unix(path) => {
                remove_stale(path).await.map_err(|error| match error.kind() {
                    io::ErrorKind::InvalidInput => ListenError::NoSocket(listen.to_string()),
                    _ => fail(error),
                })?;
                let (listener, file) = bind_unix(path).map_err(fail)?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    pub(crate) fn local(&self) -> io::Result<Listen> {
        match self {
            Self::Unix(_, file) => Ok(Listen::Unix(file.path.clone())),
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

/// The file of a Unix socket. Dropping it removes the file, unless another socket has taken the
/// path.
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let same = fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if same && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let found = fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), identity: (found.dev(), found.ino()) };
    // The mode is set before `listen`, so that other users can never connect.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok((socket.listen(BACKLOG)?, file))
}

/// Removes the socket of a server that has ended.
async fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(io::ErrorKind::InvalidInput.into()),
        Ok(_) => match UnixStream::connect(path).await {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            Err(error) => Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_sockets_are_taken() {
        assert_eq!("unix:/run/nbd".parse::<Listen>().expect("valid"), Listen::Unix("/run/nbd".into()));
        for text in ["127.0.0.1:10809", "[::1]:10809", "127.9.9.9:1"] {
            assert_eq!(text.parse::<Listen>().expect("loopback").to_string(), text);
        }
        for text in ["0.0.0.0:10809", "[::]:10809", "192.168.0.1:10809"] {
            let error = text.parse::<Listen>().expect_err("refused").to_string();
            assert!(error.contains("stunnel") && error.contains("ssh -L 10809:127.0.0.1:10809"), "{error}");
        }
        for text in ["", "unix:", "10809", "localhost"] {
            assert!(matches!(text.parse::<Listen>(), Err(ListenError::Malformed(_))), "{text}");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("socket");
        let listen = Listen::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        let live = Listener::bind(&listen).await.expect("the stale one is removed");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(matches!(Listener::bind(&listen).await, Err(ListenError::InUse(_))));
        drop(live);
        assert!(!path.exists());
        fs::write(&path, "a file").expect("written");
        assert!(matches!(Listener::bind(&listen).await, Err(ListenError::NoSocket(_))));
        assert!(path.exists());
    }
}
