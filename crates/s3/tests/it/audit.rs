//! Entries for the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_s3::{AuditEntry, AuditSink, S3Options};
use tokio::io::AsyncWriteExt;

use crate::common::signer::sha256_hex;
use crate::common::{Client, HOST, options};

#[derive(Default)]
struct Entries(Mutex<Vec<AuditEntry>>);

impl AuditSink for Entries {
    fn ended(&self, entry: AuditEntry) {
        self.0.lock().push(entry);
    }
}

async fn client() -> (Client, Arc<Entries>) {
    let entries = Arc::<Entries>::default();
    let c = Client::with(S3Options { audit: Some(entries.clone()), ..options() }).await;
    c.bucket("media").await;
    (c, entries)
}

#[tokio::test]
async fn the_style_of_the_address_makes_no_difference() {
    let (c, entries) = client().await;
    c.put("/media/a b/ü", "data").await.expect(200);
    c.call("GET", "/a b/ü").header("host", "media.s3.test").send().await.expect(200);
    c.call("GET", "/media/none").send_presigned(60).await.expect(404);
    let seen: Vec<_> =
        entries.0.lock().iter().map(|e| (e.operation, e.bucket.clone(), e.key.clone(), e.status)).collect();
    let of = |operation, key: &str, status| (operation, "media".to_owned(), key.to_owned(), status);
    let put = of("PutObject", "a b/ü", 200);
    assert_eq!(seen, [of("CreateBucket", "", 200), put, of("GetObject", "a b/ü", 200), of("GetObject", "none", 404)]);
    assert!(entries.0.lock().iter().all(|e| e.complete && e.user.as_deref() == Some("root")));
    assert!(entries.0.lock().iter().all(|e| e.access_key.as_deref() == Some("access") && e.time_ms > 0));
}

#[tokio::test]
async fn a_request_whose_client_goes_away_has_an_entry() {
    let (c, entries) = client().await;
    let mut headers = BTreeMap::from([("host".to_owned(), HOST.to_owned())]);
    c.signer.sign("PUT", "/media/k", &[], &mut headers, &sha256_hex(b"0123456789"));
    let before = c.door.gate_status().granted;
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let serving = tokio::spawn(c.door.connection(far));
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("PUT /media/k HTTP/1.1\r\n{lines}content-length: 10\r\n\r\n012");
    near.write_all(head.as_bytes()).await.expect("written");
    // While it waits for its body, a request gives its place back.
    while c.door.gate_status().granted == before || c.door.gate_status().used > 0 {
        tokio::task::yield_now().await;
    }
    serving.abort();
    let _ = serving.await;
    let entry = entries.0.lock().last().cloned().expect("an entry");
    assert_eq!((entry.operation, entry.status, entry.complete), ("PutObject", 499, false));
    assert_eq!((entry.key.as_str(), entry.user.as_deref()), ("k", Some("root")));
}
