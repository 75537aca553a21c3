//! An S3 service over a store in memory, and a client connected to it through a pipe.

pub mod signer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use signer::{Signer, encode, query_string, sha256_hex};
use steadfast_disk::{Disk, MemDisk};
use steadfast_flow::Env;
use steadfast_log::{FormatOptions, Log};
use steadfast_s3::{Observer, RequestRecord, S3Door, S3Options};
use steadfast_store::{IndexKind, Store, StoreOptions};

pub const HOST: &str = "s3.test";

pub async fn store() -> Store {
    store_with(StoreOptions::default()).await
}

pub async fn store_with(options: StoreOptions) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::fixed(256 << 20));
    Log::format(&disk, &Env::tokio(), &FormatOptions::default()).await.expect("a pool");
    let (store, _) = Store::open(disk, IndexKind::memory(), Env::tokio(), options).await.expect("a store");
    store
}

pub fn options() -> S3Options {
    S3Options {
        credentials: vec![("access".into(), "secret".into()), ("second".into(), "other".into())],
        domains: vec![HOST.into()],
        ..S3Options::default()
    }
}

/// Operation, status, bytes in, bytes out, complete.
pub type Seen = (String, u16, u64, u64, bool);

#[derive(Default)]
pub struct Records(pub Mutex<Vec<Seen>>);

impl Observer for Records {
    fn finished(&self, r: &RequestRecord) {
        self.0.lock().push((r.operation.into(), r.status, r.bytes_in, r.bytes_out, r.complete));
    }
}

pub struct Client {
    pub door: S3Door,
    pub records: Arc<Records>,
    pub signer: Signer,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    /// `Err` when the connection ended within the body.
    pub body: Result<Bytes, String>,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    pub fn bytes(&self) -> &[u8] {
        self.body.as_deref().expect("a whole body")
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).expect("text")
    }

    /// The text of the first element of this name.
    pub fn xml(&self, name: &str) -> &str {
        self.xml_all(name).first().copied().unwrap_or("")
    }

    pub fn xml_all(&self, name: &str) -> Vec<&str> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        self.text().split(open.as_str()).skip(1).map(|rest| rest.split(close.as_str()).next().unwrap()).collect()
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?}", self.body);
        self
    }

    /// Checks that the answer is an error of this status and code.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.xml("Code")), (status, code), "{:?}", self.body);
        self
    }
}

/// A request under construction.
pub struct Call<'a> {
    client: &'a Client,
    method: String,
    path: String,
    query: Vec<(String, String)>,
    headers: BTreeMap<String, String>,
    body: Bytes,
    payload: Option<String>,
    /// Headers added after signing.
    unsigned: Vec<(String, String)>,
    /// Headers that are sent as one line for each value.
    lines: Vec<String>,
}

impl Client {
    pub async fn new() -> Self {
        Self::with(options()).await
    }

    pub async fn with(options: S3Options) -> Self {
        Self::over(store().await, options)
    }

    pub fn over(store: Store, options: S3Options) -> Self {
        let records = Arc::new(Records::default());
        let door = S3Door::build(store, Env::tokio(), options, None, Some(records.clone())).expect("options");
        let signer = Signer {
            access_key: "access".into(),
            secret_key: "secret".into(),
            region: "any-region".into(),
            amz_date: amz_date(),
        };
        Self { door, records, signer }
    }

    /// `path` is decoded and may have a query after `?`.
    pub fn call(&self, method: &str, path: &str) -> Call<'_> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let query = query
            .split('&')
            .filter(|p| !p.is_empty())
            .map(|p| p.split_once('=').unwrap_or((p, "")))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        Call {
            client: self,
            method: method.into(),
            path: path.into(),
            query,
            headers: BTreeMap::from([("host".to_owned(), HOST.to_owned())]),
            body: Bytes::new(),
            payload: None,
            unsigned: Vec::new(),
            lines: Vec::new(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path).send().await
    }

    pub async fn put(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.call("PUT", path).body(body).send().await
    }

    pub async fn bucket(&self, name: &str) {
        self.put(&format!("/{name}"), "").await.expect(200);
    }
}

impl Call<'_> {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// A header that the signature does not cover.
    pub fn unsigned(mut self, name: &str, value: &str) -> Self {
        self.unsigned.push((name.into(), value.into()));
        self
    }

    /// A header whose values, separated by commas, are one line each. The signature joins them.
    pub fn lines(mut self, name: &str, value: &str) -> Self {
        self.lines.push(name.into());
        self.header(name, value)
    }

    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets `x-amz-content-sha256`, instead of the hash of the body.
    pub fn payload(mut self, payload: &str) -> Self {
        self.payload = Some(payload.into());
        self
    }

    pub async fn send(mut self) -> Answer {
        let payload = self.payload.clone().unwrap_or_else(|| sha256_hex(&self.body));
        self.client.signer.sign(&self.method, &self.path, &self.query, &mut self.headers, &payload);
        self.send_unsigned().await
    }

    /// Moves the headers into the query string, as SDKs do when they presign.
    pub fn headers_in_url(mut self) -> Self {
        let moved = std::mem::take(&mut self.headers);
        for (name, value) in moved {
            match name.as_str() {
                "host" => drop(self.headers.insert(name, value)),
                _ => self.query.push((name, value)),
            }
        }
        self
    }

    /// Signs by the query string, as a presigned URL.
    pub async fn send_presigned(mut self, expires: u32) -> Answer {
        let signer = &self.client.signer;
        let credential = format!("{}/{}", signer.access_key, signer.scope());
        for (name, value) in [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", &signer.amz_date),
            ("X-Amz-Expires", &expires.to_string()),
            ("X-Amz-SignedHeaders", "host"),
        ] {
            self.query.push((name.into(), value.into()));
        }
        let signed = BTreeMap::from([("host".to_owned(), self.headers["host"].clone())]);
        let signature = signer.signature(&self.method, &self.path, &self.query, &signed, "UNSIGNED-PAYLOAD");
        self.query.push(("X-Amz-Signature".into(), signature));
        self.send_unsigned().await
    }

    /// Signs with version 2 by the query string, as boto3 presigns: headers are signed and moved
    /// into the query string.
    pub async fn send_presigned_v2(self, expires: u64) -> Answer {
        self.send_presigned_v2_with(expires, &[]).await
    }

    /// As [`Call::send_presigned_v2`], with parameters that are not signed.
    pub async fn send_presigned_v2_with(mut self, expires: u64, unsigned: &[(&str, &str)]) -> Answer {
        let signature = self.signature_v2(&expires.to_string());
        self = self.headers_in_url();
        let access_key = self.client.signer.access_key.clone();
        for (name, value) in
            [("AWSAccessKeyId", access_key), ("Expires", expires.to_string()), ("Signature", signature)]
        {
            self.query.push((name.into(), value));
        }
        self.query.extend(unsigned.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self.send_unsigned().await
    }

    /// Signs with version 2 in the header.
    pub async fn send_v2(self) -> Answer {
        let path = self.path.clone();
        self.send_v2_as(&path).await
    }

    /// As [`Call::send_v2`], with a signature for `path`.
    pub async fn send_v2_as(mut self, path: &str) -> Answer {
        let sent = std::mem::replace(&mut self.path, path.to_owned());
        let mut date = Vec::new();
        let now = s3s::dto::Timestamp::from(SystemTime::now());
        now.format(s3s::dto::TimestampFormat::HttpDate, &mut date).expect("a date");
        let date = String::from_utf8(date).expect("text");
        let signature = self.signature_v2(&date);
        self.path = sent;
        self.headers.insert("date".into(), date);
        self.headers.insert("authorization".into(), format!("AWS {}:{signature}", self.client.signer.access_key));
        self.send_unsigned().await
    }

    fn signature_v2(&self, date: &str) -> String {
        let header = |name: &str| self.headers.get(name).map_or("", String::as_str);
        let mut text = format!("{}\n{}\n{}\n{date}\n", self.method, header("content-md5"), header("content-type"));
        for (name, value) in self.headers.iter().filter(|(name, _)| name.starts_with("x-amz-")) {
            text += &format!("{name}:{value}\n");
        }
        text += &encode(&self.path, true);
        let mut query = self.query.clone();
        query.sort();
        for (i, (name, value)) in query.iter().enumerate() {
            text += if i == 0 { "?" } else { "&" };
            text += name;
            if !value.is_empty() {
                text += &format!("={value}");
            }
        }
        signer::signature_v2(&self.client.signer.secret_key, &text)
    }

    /// Signs a body whose `chunks` are signed one by one, as SDKs do over plain HTTP.
    pub async fn send_chunks(mut self, chunks: &[&[u8]], change: impl FnOnce(&mut Vec<u8>)) -> Answer {
        let decoded: usize = chunks.iter().map(|c| c.len()).sum();
        let payload = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
        self.headers.insert("content-encoding".into(), "aws-chunked".into());
        self.headers.insert("x-amz-decoded-content-length".into(), decoded.to_string());
        let seed = self.client.signer.sign(&self.method, &self.path, &self.query, &mut self.headers, payload);
        let mut body = self.client.signer.chunked_body(&seed, chunks);
        change(&mut body);
        self.body = body.into();
        self.send_unsigned().await
    }

    pub async fn send_unsigned(self) -> Answer {
        let (near, far) = tokio::io::duplex(64 << 10);
        let serving = tokio::spawn(self.client.door.connection(far));
        let (mut send, connection) = http1::handshake(TokioIo::new(near)).await.expect("handshake");
        let driving = tokio::spawn(connection);
        let mut uri = encode(&self.path, true);
        if !self.query.is_empty() {
            uri = format!("{uri}?{}", query_string(&self.query));
        }
        let mut request = http::Request::builder().method(self.method.as_str()).uri(uri);
        for (name, value) in self.headers.iter().chain(self.unsigned.iter().map(|(n, v)| (n, v))) {
            let lines = if self.lines.contains(name) { value.split(',').collect() } else { vec![value.as_str()] };
            request = lines.into_iter().fold(request, |request, line| request.header(name, line));
        }
        let request = request.body(Full::new(self.body)).expect("a request");
        let response = send.send_request(request).await.expect("a response");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map(|b| b.to_bytes()).map_err(|e| e.to_string());
        drop(send);
        let _ = driving.await;
        let _ = serving.await;
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }
}

/// The current time in the format of signatures.
pub fn amz_date() -> String {
    let secs = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    amz_date_of(secs)
}

pub fn amz_date_of(secs: u64) -> String {
    // HTTP dates are `Sun, 06 Nov 1994 08:49:37 GMT`.
    let mut text = Vec::new();
    let time = s3s::dto::Timestamp::from(UNIX_EPOCH + std::time::Duration::from_secs(secs));
    time.format(s3s::dto::TimestampFormat::DateTime, &mut text).expect("a date");
    let text = String::from_utf8(text).expect("text");
    let digits: String = text[..19].chars().filter(|c| *c != '-' && *c != ':').collect();
    format!("{digits}Z")
}

/// The MD5 of `data` in hexadecimal.
pub fn md5_hex(data: &[u8]) -> String {
    hex::encode(<md5::Md5 as md5::Digest>::digest(data))
}
