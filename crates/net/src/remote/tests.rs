//! What stores do, what they answer, and what the probe thinks of unfit ones.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use steadfast_flow::{BoxFuture, Env};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::s3::{PAGE, page_aligned};
use super::*;
use crate::{S3Credentials, Secret};

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    IgnoresCreate,
    IgnoresMatch,
    CreatesByReplace,
    /// Looks at the condition, and writes later.
    Raced,
    /// A GET has other entity tags than a PUT.
    OtherTags,
    OtherBytes,
    KeepsDeleted,
    /// Every third write has no clear answer, though it happened.
    LosesAnswers,
    /// Every third request is refused for now.
    Slow,
    /// Listings lack what was written last.
    Lags,
}

/// A store in memory.
#[derive(Debug)]
struct Model {
    objects: Mutex<BTreeMap<String, (Bytes, u64)>>,
    count: Mutex<u64>,
    fault: Fault,
}

impl Model {
    fn new(fault: Fault) -> Self {
        Self { objects: Mutex::default(), count: Mutex::new(0), fault }
    }

    fn next(&self) -> u64 {
        let mut count = self.count.lock();
        *count += 1;
        *count
    }

    fn slow(&self) -> RemoteResult<()> {
        match self.fault == Fault::Slow && self.next().is_multiple_of(3) {
            true => Err(RemoteError::Slow("503 SlowDown".into())),
            false => Ok(()),
        }
    }

    async fn put(
        &self,
        name: &str,
        body: Bytes,
        refused: impl Fn(Option<u64>) -> Option<RemoteError>,
    ) -> RemoteResult<EntityTag> {
        self.slow()?;
        let check = || refused(self.objects.lock().get(name).map(|(_, tag)| *tag));
        if self.fault == Fault::Raced {
            let checked = check();
            tokio::task::yield_now().await;
            checked.map_or(Ok(()), Err)?;
        }
        let mut objects = self.objects.lock();
        if self.fault != Fault::Raced
            && let Some(error) = refused(objects.get(name).map(|(_, tag)| *tag))
        {
            return Err(error);
        }
        let tag = self.next();
        objects.insert(name.to_owned(), (body, tag));
        if self.fault == Fault::LosesAnswers && self.next().is_multiple_of(3) {
            return Err(RemoteError::Unknown("lost".into()));
        }
        Ok(EntityTag(tag.to_string()))
    }
}

impl RemoteStore for Model {
    fn create<'a>(&'a self, name: &'a str, body: Vec<Bytes>) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        let fault = self.fault;
        let refused =
            move |now: Option<u64>| (now.is_some() && fault != Fault::IgnoresCreate).then_some(RemoteError::Exists);
        Box::pin(self.put(name, body.concat().into(), refused))
    }

    fn replace<'a>(
        &'a self,
        name: &'a str,
        body: Bytes,
        over: &'a EntityTag,
    ) -> BoxFuture<'a, RemoteResult<EntityTag>> {
        let fault = self.fault;
        let refused = move |now: Option<u64>| {
            let fits = match now {
                Some(now) => now.to_string() == over.0.trim_matches('"') || fault == Fault::IgnoresMatch,
                None => fault == Fault::CreatesByReplace,
            };
            (!fits).then_some(RemoteError::Changed)
        };
        Box::pin(self.put(name, body, refused))
    }

    fn read<'a>(
        &'a self,
        name: &'a str,
        range: Option<Range<u64>>,
        _: u64,
    ) -> BoxFuture<'a, RemoteResult<RemoteObject>> {
        Box::pin(async move {
            self.slow()?;
            let (body, tag) = self.objects.lock().get(name).cloned().ok_or(RemoteError::Missing)?;
            let size = body.len() as u64;
            let end = |at: u64| (at as usize).min(body.len());
            let mut body = range.map_or(body.clone(), |range| body.slice(end(range.start)..end(range.end)));
            if self.fault == Fault::OtherBytes {
                body = vec![0; body.len()].into();
            }
            let quotes = if self.fault == Fault::OtherTags { "\"" } else { "" };
            Ok(RemoteObject { body, tag: Some(EntityTag(format!("{quotes}{tag}{quotes}"))), size })
        })
    }

    fn list<'a>(&'a self, under: &'a str, after: &'a str) -> BoxFuture<'a, RemoteResult<Vec<RemoteEntry>>> {
        Box::pin(async move {
            self.slow()?;
            let objects = self.objects.lock();
            let prefix = if under.is_empty() { String::new() } else { format!("{under}/") };
            let lag = if self.fault == Fault::Lags { 3 } else { 0 };
            let newest = objects.values().map(|(_, tag)| *tag).max().unwrap_or(0);
            let there = objects
                .iter()
                .filter(|(name, (_, tag))| name.starts_with(&prefix) && ***name > *after && tag + lag <= newest);
            let entry = |(name, (body, _)): (&String, &(Bytes, u64))| RemoteEntry {
                name: name.clone(),
                size: body.len() as u64,
                modified_ms: 0,
            };
            Ok(there.take(REMOTE_PAGE).map(entry).collect())
        })
    }

    fn delete<'a>(&'a self, names: &'a [String]) -> BoxFuture<'a, RemoteResult<()>> {
        Box::pin(async move {
            self.slow()?;
            if self.fault != Fault::KeepsDeleted {
                self.objects.lock().retain(|name, _| !names.contains(name));
            }
            Ok(())
        })
    }

    fn describe(&self) -> String {
        "a store in memory".into()
    }
}

async fn unfit(store: &dyn RemoteStore) -> Vec<&'static str> {
    let findings = probe(store, &Env::tokio()).await.expect("the probe ends");
    let unfit = findings.into_iter().filter(|finding| finding.verdict == ProbeVerdict::Unfit);
    unfit.map(|finding| finding.what).collect()
}

#[tokio::test]
async fn the_probe_finds_each_fault() {
    let (create, races) =
        ("create only what does not exist", ["one of many creates wins", "one of many replacements wins"]);
    for (fault, expected) in [
        (Fault::None, &[][..]),
        (Fault::IgnoresCreate, &[create, races[0]]),
        (Fault::IgnoresMatch, &["refuse an old entity tag", races[1]]),
        (Fault::CreatesByReplace, &["refuse to replace what does not exist"]),
        (Fault::Raced, &races),
        (Fault::OtherTags, &["one entity tag in all answers"]),
        (Fault::OtherBytes, &["read what was written", "read a range"]),
        (Fault::KeepsDeleted, &["delete"]),
        (Fault::LosesAnswers, &[]),
        (Fault::Slow, &[]),
        (Fault::Lags, &[]),
    ] {
        let found = unfit(&Model::new(fault)).await;
        // One fault may have several effects.
        assert!(expected.iter().all(|what| found.contains(what)), "{fault:?} {found:?}");
        assert_eq!(expected.is_empty(), found.is_empty(), "{fault:?} {found:?}");
    }
    let model = Model::new(Fault::None);
    unfit(&model).await;
    assert!(model.objects.lock().is_empty(), "the probe removes what it wrote");
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// What every store does.
async fn contract(store: &dyn RemoteStore) {
    let first = store.create("a/b", vec![bytes("fi"), Bytes::new(), bytes("rst")]).await.expect("created");
    assert_eq!(store.create("a/b", vec![bytes("other")]).await, Err(RemoteError::Exists));
    let read = store.read("a/b", None, 100).await.expect("read");
    assert_eq!((&read.body[..], read.tag.as_ref(), read.size), (&b"first"[..], Some(&first), 5));
    assert_eq!(store.read("a/b", Some(1..3), 100).await.expect("read").body[..], b"ir"[..]);
    assert_eq!(store.read("a/c", None, 100).await, Err(RemoteError::Missing));
    let second = store.replace("a/b", bytes("second"), &first).await.expect("replaced");
    assert_ne!(first, second);
    assert_eq!(store.replace("a/b", bytes("third"), &first).await, Err(RemoteError::Changed));
    assert_eq!(store.replace("a/c", bytes("third"), &first).await, Err(RemoteError::Changed));
    assert_eq!(store.read("a/b", None, 100).await.expect("read").body[..], b"second"[..]);
    for name in ["a.b", "a/b.c/d", "a/bb", "b"] {
        store.create(name, vec![bytes(name)]).await.expect("created");
    }
    let names = async |under: &str, after: &str| {
        let page = store.list(under, after).await.expect("listed");
        page.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    assert_eq!(names("", "").await, ["a.b", "a/b", "a/b.c/d", "a/bb", "b"]);
    assert_eq!(names("a", "").await, ["a/b", "a/b.c/d", "a/bb"]);
    assert_eq!(names("a", "a/b").await, ["a/b.c/d", "a/bb"]);
    assert_eq!(names("", "a/b.c/d").await, ["a/bb", "b"]);
    assert_eq!(names("", "b").await, [""; 0]);
    assert_eq!(names("x", "").await, [""; 0]);
    let gone = ["a/b".to_owned(), "a/b.c/d".to_owned(), "missing".to_owned()];
    store.delete(&gone).await.expect("deleted");
    assert_eq!(names("", "").await, ["a.b", "a/bb", "b"]);
    store.create("a/b.c/d", vec![bytes("again")]).await.expect("created");
    let answers = join_all((0..20).map(|n| store.create("race", vec![bytes(&n.to_string())]))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
}

#[tokio::test]
async fn a_store_in_memory_keeps_the_contract() {
    contract(&Model::new(Fault::None)).await;
}

#[tokio::test]
async fn a_directory_keeps_the_contract() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = DirectoryStore::new(dir.path(), Env::tokio()).expect("there");
    contract(&store).await;
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("readable").map(|e| e.expect("one").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".new.")), "{left:?}");
    assert_eq!(unfit(&store).await, [""; 0]);
    for name in ["../x", "", "a//b", ".lock"] {
        assert!(matches!(store.create(name, Vec::new()).await, Err(RemoteError::Refused(_))), "{name}");
    }
    assert!(matches!(store.create("b/x", Vec::new()).await, Err(RemoteError::Refused(_))), "an object is no directory");
    std::fs::create_dir(dir.path().join("lost+found")).expect("made");
    assert!(store.list("", "").await.is_ok_and(|page| page.iter().all(|entry| !entry.name.contains('+'))));
    assert!(matches!(store.read("b", None, 0).await, Err(RemoteError::Refused(_))), "too many bytes");
    assert!(matches!(store.read("b", Some(0..9), 9).await, Err(RemoteError::Refused(_))), "beyond the end");
    assert!(DirectoryStore::new(&dir.path().join("missing"), Env::tokio()).is_err());
    assert!(DirectoryStore::new(&dir.path().join("b"), Env::tokio()).is_err());
}

#[tokio::test]
async fn a_page_of_a_directory_ends_where_the_next_begins() {
    let dir = tempfile::tempdir().expect("a directory");
    for n in 0..2500 {
        let at = dir.path().join(format!("p/{}", n % 7));
        std::fs::create_dir_all(&at).expect("made");
        std::fs::write(at.join(format!("{n}")), "x").expect("written");
    }
    let store = DirectoryStore::new(dir.path(), Env::tokio()).expect("there");
    let (mut found, mut pages) = (Vec::<String>::new(), 0);
    loop {
        let page = store.list("p", found.last().map_or("", String::as_str)).await.expect("listed");
        if page.is_empty() {
            break;
        }
        found.extend(page.into_iter().map(|entry| entry.name));
        pages += 1;
    }
    assert!(found.is_sorted_by(|a, b| a < b));
    assert_eq!((found.len(), pages), (2500, 3));
}

/// An S3 endpoint that gives these answers, one to each request, and then none. Also the first
/// lines of the requests.
async fn scripted(answers: Vec<&'static str>) -> (S3Store, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://127.0.0.1:{}", listener.local_addr().expect("bound").port());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    Env::tokio().spawn("endpoint", async move {
        let mut answers = answers.into_iter();
        loop {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.expect("a head"));
            }
            let head = String::from_utf8(head).expect("text").to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |n| n.parse().expect("a number"));
            socket.read_exact(&mut vec![0; length]).await.expect("a body");
            seen.lock().push(head);
            let Some(answer) = answers.next() else {
                // It hangs.
                std::mem::forget(socket);
                continue;
            };
            socket.write_all(answer.as_bytes()).await.expect("sent");
        }
    });
    let (region, access_key, secret_key) = ("r".into(), "the-key".into(), Secret("the-secret".into()));
    let credentials = S3Credentials { region, access_key, secret_key, session_token: None };
    let place = S3Place { endpoint, bucket: "bucket".into(), prefix: "pre/fix".into(), credentials };
    (S3Store::new(place, Duration::from_millis(500), Env::tokio()).expect("valid"), requests)
}

fn kind<T>(result: &RemoteResult<T>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(RemoteError::Exists) => "exists",
        Err(RemoteError::Changed) => "changed",
        Err(RemoteError::Missing) => "missing",
        Err(RemoteError::Unknown(_)) => "unknown",
        Err(RemoteError::Slow(_)) => "slow",
        Err(RemoteError::Refused(_)) => "refused",
    }
}

#[tokio::test]
async fn a_status_has_one_meaning_and_each_request_is_sent_once() {
    const TAGGED: &str = "200 OK\r\netag: \"e1\"";
    const MOVED: &str = "302 M\r\nlocation: http://x/";
    for (status, body, create, replace, read) in [
        (TAGGED, "", "ok", "ok", "ok"),
        ("200 OK", "", "unknown", "unknown", "ok"),
        ("412 P", "", "exists", "changed", "changed"),
        ("409 C", "", "unknown", "unknown", "unknown"),
        ("404 N", "", "refused", "changed", "missing"),
        ("404 N", "<e><Code>NoSuchBucket</Code></e>", "refused", "refused", "refused"),
        ("403 F", "", "refused", "refused", "refused"),
        ("400 B", "", "refused", "refused", "refused"),
        ("429 T", "", "slow", "slow", "slow"),
        ("503 S", "", "unknown", "unknown", "unknown"),
        ("503 S", "<e><Code>SlowDown</Code></e>", "slow", "slow", "slow"),
        ("501 N", "", "refused", "refused", "refused"),
        ("500 I", "", "unknown", "unknown", "unknown"),
        (MOVED, "", "refused", "refused", "refused"),
        ("", "", "unknown", "unknown", "unknown"),
        ("", "garbage", "unknown", "unknown", "unknown"),
    ] {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let answer: &'static str = if status.is_empty() { body } else { format!("{head}{body}").leak() };
        let (store, requests) = scripted(vec![answer; 3]).await;
        let created = store.create("n", vec![bytes("body")]).await;
        let replaced = store.replace("n", bytes("body"), &EntityTag("\"e0\"".into())).await;
        let got = store.read("n", None, 100).await;
        assert_eq!(
            [kind(&created), kind(&replaced), kind(&got)],
            [create, replace, read],
            "{answer:?} {created:?} {replaced:?} {got:?}"
        );
        let requests = requests.lock();
        assert_eq!(requests.len(), 3, "{answer:?}: {requests:?}");
        assert!(
            requests[0].starts_with("put /bucket/pre/fix/n ") && requests[0].contains("if-none-match: *"),
            "{requests:?}"
        );
        assert!(requests[1].contains("if-match: \"e0\""), "{requests:?}");
        let texts = format!("{created:?} {replaced:?} {got:?} {store:?} {}", store.describe());
        assert!(!texts.contains("the-secret") && !texts.contains("the-key"), "{texts}");
    }
}

#[tokio::test]
async fn a_body_that_is_cut_off_or_of_another_range_is_no_answer() {
    let head = "HTTP/1.1 206 P\r\netag: \"e\"\r\nlast-modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n";
    for (rest, expected) in [
        ("content-range: bytes 0-3/9\r\ncontent-length: 4\r\nconnection: close\r\n\r\nabcd", "ok"),
        ("content-range: bytes 0-3/9\r\ncontent-length: 4\r\nconnection: close\r\n\r\nab", "unknown"),
        ("content-range: bytes 1-4/9\r\ncontent-length: 4\r\nconnection: close\r\n\r\nabcd", "unknown"),
        ("content-range: bytes 0-2/9\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc", "unknown"),
        ("content-range: bytes 0-3/9\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc", "unknown"),
    ] {
        let answer: &'static str = format!("{head}{rest}").leak();
        let (store, requests) = scripted(vec![answer]).await;
        let read = store.read("n", Some(0..4), 100).await;
        assert_eq!(kind(&read), expected, "{rest:?} {read:?}");
        assert!(requests.lock()[0].contains("range: bytes=0-3"));
    }
}

#[tokio::test]
async fn an_endpoint_that_hangs_gives_no_clear_answer() {
    let (store, requests) = scripted(vec![]).await;
    assert_eq!(kind(&store.create("n", vec![bytes("body")]).await), "unknown");
    assert_eq!(kind(&store.list("", "").await), "unknown");
    assert_eq!(kind(&store.delete(&["n".to_owned()]).await), "unknown");
    assert_eq!(requests.lock().len(), 3);
    let findings = store.bucket_findings().await;
    assert!(findings.iter().all(|finding| finding.verdict == ProbeVerdict::Noted), "{findings:?}");
}

#[test]
fn a_body_begins_at_a_page_and_has_room() {
    for len in [0, 1, PAGE, 8 << 20] {
        let body = page_aligned(len);
        assert!((body.as_ptr() as usize).is_multiple_of(PAGE) && body.is_empty() && body.capacity() >= len, "{len}");
    }
}
