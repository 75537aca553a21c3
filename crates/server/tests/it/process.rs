//! The built binary as a process: ready line, admin port, stop, commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use steadfast_server::admin::table::TABLE;

/// Free ports, for servers that run in parallel.
const ANY_PORTS: [&str; 6] =
    ["--s3-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--live-listen", "127.0.0.1:0"];

fn steadfast(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("STEADFAST_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    steadfast(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server that is ready.
struct Server {
    process: Child,
    stdout: BufReader<std::process::ChildStdout>,
    before_ready: String,
    s3: String,
    admin: String,
}

impl Server {
    fn start(data: &Path, keys: Option<(&str, &str)>) -> Self {
        let data = data.to_str().expect("UTF-8");
        let mut command = steadfast(&["serve", "--data", data]);
        command.args(ANY_PORTS);
        command.args(["--set", "data.pool_size=256 MiB", "--set", "data.extent_size=8 MiB"]);
        if let Some((access, secret)) = keys {
            command.env("STEADFAST_ACCESS_KEY", access).env("STEADFAST_SECRET_KEY", secret);
        }
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let (s3, admin, before_ready) = (String::new(), String::new(), String::new());
        // From here on, the drop of `server` ends the process.
        let mut server = Self { process, stdout, before_ready, s3, admin };
        server.wait_ready();
        server
    }

    fn wait_ready(&mut self) {
        loop {
            let mut line = String::new();
            let read = self.stdout.read_line(&mut line).expect("text");
            assert!(read > 0, "it ended without being ready: {}", self.before_ready);
            if line.contains(" ready: ") {
                let address = |name: &str| {
                    let at = line.split_whitespace().find_map(|w| w.strip_prefix(name)).expect("an address");
                    at.strip_prefix("http://").expect("a URL").to_owned()
                };
                (self.s3, self.admin) = (address("s3="), address("admin="));
                return;
            }
            self.before_ready.push_str(&line);
        }
    }

    fn get(&self, address: &str, path: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(address).expect("it listens");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("answered");
        let status = answer.split_whitespace().nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    /// Sends a signal and waits for the end.
    fn end(mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a pid");
        kill_process(pid, signal).expect("it runs");
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("text");
        self.process.wait().expect("it ends").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The test may have ended it already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn serves_reports_its_status_and_stops() {
    let temp = tempfile::tempdir().expect("a directory");
    let data = temp.path().join("data");
    let server = Server::start(&data, Some(("access", "secretsecret")));
    assert!(!data.join("credentials.json").exists());

    assert_eq!(server.get(&server.admin, "/health/live"), (200, "live\n".into()));
    assert_eq!(server.get(&server.admin, "/health/ready"), (200, "ready\n".into()));
    let (status, body) = server.get(&server.s3, "/");
    assert!(status == 403 && body.contains("<Code>AccessDenied</Code>"), "{status} {body}");

    let (status, body) = server.get(&server.admin, "/status");
    assert_eq!(status, 200);
    let status_json: Value = serde_json::from_str(&body).expect("JSON");
    // The status has no moves before the first one, no edge without a bucket with an origin, no
    // links without a cluster, no archive unless it has a place, and it is no standby.
    let at_times = ["/store/moving/", "/edge/", "/cluster/", "/archive/", "/standby/"];
    let always = || TABLE.iter().filter(|metric| !at_times.iter().any(|path| metric.path.starts_with(path)));
    let missing: Vec<&str> = always().map(|m| m.path).filter(|path| status_json.pointer(path).is_none()).collect();
    assert!(missing.is_empty(), "metrics without a value in the status: {missing:?}");
    let (status, body) = server.get(&server.admin, "/metrics");
    assert_eq!(status, 200);
    for metric in always() {
        // In the text format the type line of a counter has the name of its samples.
        let typed = ["", "_total"].map(|end| body.contains(&format!("# TYPE steadfast_{}{end} ", metric.name)));
        assert!(typed.contains(&true), "{} is missing", metric.name);
    }
    let refused = "steadfast_s3_request_seconds_count{operation=\"ListBuckets\",status=\"403\"} 1";
    assert!(body.contains(refused), "{body}");

    let shown_status = run(&["status", "--admin", &format!("http://{}", server.admin)]);
    assert_eq!(shown_status.status.code(), Some(0), "{}", text(&shown_status.stderr));
    assert!(text(&shown_status.stdout).contains("ready        yes"), "{}", text(&shown_status.stdout));

    let dir = data.to_str().expect("UTF-8");
    let second = run(&[&["serve", "--data", dir], &ANY_PORTS[..]].concat());
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("another process"), "{}", text(&second.stderr));

    assert_eq!(server.end(Signal::TERM), Some(0));
    let verified = run(&["verify", "--data", dir, "--json"]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&verified.stdout).expect("JSON")["damage_total"], 0);
}

#[test]
fn credentials_are_generated_once() {
    let temp = tempfile::tempdir().expect("a directory");
    let first = Server::start(temp.path(), None);
    let kept: Value =
        serde_json::from_slice(&std::fs::read(temp.path().join("credentials.json")).expect("kept")).expect("JSON");
    let access = kept["access_key"].as_str().expect("text");
    assert!(first.before_ready.contains(access), "{}", first.before_ready);
    assert!(first.before_ready.contains("credentials.json"), "{}", first.before_ready);
    let secret = kept["secret_key"].as_str().expect("text");
    assert!(!first.before_ready.contains(secret), "standard output is not a terminal here, so it may be stored");
    assert_eq!(first.end(Signal::INT), Some(0));
    let second = Server::start(temp.path(), None);
    assert!(!second.before_ready.contains(access), "shown once only");
    assert_eq!(second.end(Signal::TERM), Some(0));
}

#[test]
fn an_index_without_its_pool_is_refused() {
    let temp = tempfile::tempdir().expect("a directory");
    assert_eq!(Server::start(temp.path(), None).end(Signal::TERM), Some(0));
    std::fs::rename(temp.path().join("pool"), temp.path().join("elsewhere")).expect("renamed");
    let dir = temp.path().to_str().expect("UTF-8");
    let refused = run(&[&["serve", "--data", dir], &ANY_PORTS[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("is missing"), "{}", text(&refused.stderr));
}

#[test]
fn formats_once() {
    let temp = tempfile::tempdir().expect("a directory");
    let dir = temp.path().to_str().expect("UTF-8");
    let format = |more: &[&str]| {
        let size = ["format", "--data", dir, "--size", "64 MiB", "--extent-size", "1 MiB"];
        run(&[&size[..], more].concat())
    };
    let done = format(&[]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(format(&[]).status.code(), Some(1));
    assert_eq!(format(&["--force"]).status.code(), Some(0));
    assert_eq!(run(&["verify", "--data", dir]).status.code(), Some(0));
}

#[test]
fn mistakes_are_named() {
    let temp = tempfile::tempdir().expect("a directory");
    let file = temp.path().join("steadfast.toml");
    std::fs::write(&file, "[s3]\nlisen = \"127.0.0.1:0\"\n").expect("written");
    let refused = run(&["serve", "--config", file.to_str().expect("UTF-8")]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("steadfast.toml:2:1: "), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("did you mean `listen`?"));

    assert_eq!(run(&["serve", "--nonsense"]).status.code(), Some(2));
    assert_eq!(run(&["verify", "--data", "/nonexistent/steadfast"]).status.code(), Some(1));
    let unreachable = run(&["status", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(unreachable.status.code(), Some(1));
    assert!(text(&unreachable.stderr).contains("is the server running"), "{}", text(&unreachable.stderr));
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = busy.local_addr().expect("bound").to_string();
    let data = temp.path().join("data");
    let data = data.to_str().expect("UTF-8");
    let ports = ["--s3-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--live-listen", &address];
    let refused = run(&[&["serve", "--data", data], &ports[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let stderr = text(&refused.stderr);
    assert!(
        stderr.contains(&format!("live.listen: {address} is in use")) && stderr.contains("--live-listen \"\""),
        "{stderr}"
    );
    let shown = run(&["serve", "--print-config", "--io", "threads"]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(text(&shown.stdout).contains("io = \"threads\""));
    assert!(text(&shown.stdout).contains("listen = \"127.0.0.1:8000\""), "the live port is on by default");
}
