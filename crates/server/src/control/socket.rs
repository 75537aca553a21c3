//! The server's side of the socket.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use steadfast_flow::Env;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use super::{COMMAND_BYTES_MAX, Command, Commands, ProgressReporter, Reply, SOCKET};

/// Maximum number of commands at a time; further ones wait.
const COMMANDS: usize = 16;

/// Time in which a client must send its command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Time in which a client must read a line.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A path of the socket in `dir` that fits a socket address, however long the path of the directory
/// is. The path is valid while the returned file is open.
///
/// # Errors
/// When the directory cannot be opened.
pub(super) fn address(dir: &Path) -> io::Result<(PathBuf, File)> {
    let open = File::open(dir)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd())), open))
}

/// The socket, removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A socket left behind does no harm: the next server replaces it.
        let _ = fs::remove_file(&self.path);
    }
}

impl ControlSocket {
    /// Creates the socket in a data directory whose lock this process holds, in place of one that a
    /// killed server left.
    ///
    /// # Errors
    /// The operating system's error, as a message.
    pub fn bind(dir: &Path) -> Result<Self, String> {
        let path = dir.join(SOCKET);
        let fail = |e: io::Error| format!("{}: cannot be created: {e}", path.display());
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
            _ => {}
        }
        let (address, _open) = address(dir).map_err(fail)?;
        let listener = UnixListener::bind(address).map_err(fail)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(fail)?;
        Ok(Self { listener, path })
    }

    /// Serves until `stop` is set, and drops the running commands then.
    pub async fn run(self, env: Env, commands: Arc<dyn Commands>, mut stop: watch::Receiver<bool>) {
        let slots = Arc::new(Semaphore::new(COMMANDS));
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                accepted = async {
                    // The semaphore is never closed.
                    let slot = slots.clone().acquire_owned().await.ok();
                    (self.listener.accept().await, slot)
                } => accepted,
            };
            let (Ok((socket, _)), slot) = accepted else {
                env.sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (inner, commands, mut stop) = (env.clone(), commands.clone(), stop.clone());
            env.spawn("control", async move {
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => {}
                    ended = serve(socket, &inner, &*commands) => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a control connection ended");
                        }
                    }
                }
                drop(slot);
            });
        }
    }
}

async fn serve(mut socket: UnixStream, env: &Env, commands: &dyn Commands) -> io::Result<()> {
    let peer = socket.peer_cred()?.uid();
    let (read, mut write) = socket.split();
    let mut read = BufReader::new(read);
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        return send_reply(&mut write, env, Reply::Error("only the server's user may command it".to_owned())).await;
    }
    let mut line = Vec::new();
    let mut bounded = (&mut read).take(COMMAND_BYTES_MAX as u64);
    env.timeout(COMMAND_TIMEOUT, bounded.read_until(b'\n', &mut line)).await.ok_or(io::ErrorKind::TimedOut)??;
    let command = match serde_json::from_slice::<Command>(&line) {
        Ok(command) => command,
        Err(e) => {
            let why =
                format!("not a command of this server ({e}); does the command have the same version as the server?");
            return send_reply(&mut write, env, Reply::Error(why)).await;
        }
    };
    tracing::debug!(?command, "a command");
    let (sender, mut updates) = watch::channel(Value::Null);
    let mut work = commands.run(command, ProgressReporter(sender));
    let mut byte = [0];
    let result = loop {
        let progress = tokio::select! {
            biased;
            result = &mut work => break result,
            Ok(()) = updates.changed() => updates.borrow_and_update().clone(),
            // A client sends nothing more: it has disconnected.
            _ = read.read(&mut byte) => return Ok(()),
        };
        send_reply(&mut write, env, Reply::Progress(progress)).await?;
    };
    send_reply(&mut write, env, result.map_or_else(Reply::Error, Reply::Done)).await
}

async fn send_reply(write: &mut (impl AsyncWriteExt + Unpin), env: &Env, reply: Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    env.timeout(READ_TIMEOUT, write.write_all(&line)).await.ok_or(io::ErrorKind::TimedOut)?
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use steadfast_flow::BoxFuture;
    use tokio::sync::Notify;

    use super::*;
    use crate::control::client::ask;

    /// Reports that it is half done, and ends on notification.
    #[derive(Default)]
    struct Half {
        end: Notify,
        gone: Arc<Notify>,
    }

    struct NotifyOnDrop(Arc<Notify>);

    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }

    impl Commands for Half {
        fn run(&self, _command: Command, reporter: ProgressReporter) -> BoxFuture<'_, Result<Value, String>> {
            Box::pin(async move {
                let _gone = NotifyOnDrop(self.gone.clone());
                reporter.progress(Value::from(50));
                self.end.notified().await;
                Ok(Value::from("whole"))
            })
        }
    }

    fn start(dir: &Path) -> (Arc<Half>, watch::Sender<bool>) {
        let (stop, stopped) = watch::channel(false);
        let half = Arc::new(Half::default());
        let socket = ControlSocket::bind(dir).expect("bound");
        Env::tokio().spawn("control", socket.run(Env::tokio(), half.clone(), stopped));
        (half, stop)
    }

    #[tokio::test]
    async fn a_command_reports_progress_and_result_in_a_deep_directory() {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = temp.path().join("d".repeat(120));
        fs::create_dir(&dir).expect("made");
        drop(UnixListener::bind(temp.path().join(SOCKET)).expect("bound"));
        fs::rename(temp.path().join(SOCKET), dir.join(SOCKET)).expect("one that a killed server has left");
        let (half, stop) = start(&dir);
        assert_eq!(fs::metadata(dir.join(SOCKET)).expect("there").permissions().mode() & 0o777, 0o600);
        let (there, ending) = (dir.clone(), half.clone());
        let env = Env::tokio();
        let outcome = env.blocking(move || {
            let mut seen = Vec::new();
            let result = ask(&there, &Command::Status {}, |progress| {
                seen.push(progress.clone());
                ending.end.notify_one();
            });
            (result, seen)
        });
        let (result, seen) = outcome.await.expect("no panic");
        assert_eq!((result, seen), (Ok(Value::from("whole")), vec![Value::from(50)]));
        stop.send(true).expect("running");
        while dir.join(SOCKET).exists() {
            tokio::task::yield_now().await;
        }
        let none = env.blocking(move || ask(&dir, &Command::Status {}, |_| {})).await.expect("no panic");
        assert!(none.expect_err("no server").contains("no server runs"));
    }

    #[tokio::test]
    async fn what_is_no_command_is_refused_and_a_client_that_goes_away_ends_the_watching() {
        let temp = tempfile::tempdir().expect("a directory");
        let (half, _stop) = start(temp.path());
        let path = temp.path().join(SOCKET);
        let env = Env::tokio();
        let refused = env.blocking(move || {
            let mut answers = Vec::new();
            for line in [&b"\n"[..], b"{\"command\":\"stauts\"}\n", b"[]\n", &[0xff; COMMAND_BYTES_MAX]] {
                let mut socket = std::os::unix::net::UnixStream::connect(&path).expect("connected");
                socket.write_all(line).expect("sent");
                let mut answer = String::new();
                socket.read_to_string(&mut answer).expect("answered");
                answers.push(answer);
            }
            let mut socket = std::os::unix::net::UnixStream::connect(&path).expect("connected");
            socket.write_all(b"{\"command\":\"status\"}\n").expect("sent");
            socket.read_exact(&mut [0]).expect("some progress");
            answers
        });
        for answer in refused.await.expect("no panic") {
            assert!(answer.starts_with("{\"error\":\"not a command"), "{answer}");
        }
        half.gone.notified().await;
    }
}
