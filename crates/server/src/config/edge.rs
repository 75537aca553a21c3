//! Buckets with an origin, from which the media edge fetches their objects.

mod fresh;
mod space;
mod urls;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use steadfast_edge::{EdgeBounds, EdgeBucket, FillMode, OriginAddress, Retention};
use steadfast_net::{Addresses, S3Credentials, Secret, shown_url};
use toml::de::DeValue;

use super::error::nearest;
use super::kinds::{HIDDEN, SecretText, hidden, read_list};
use super::schema::check_range;
use super::setting::{Input, Setting, Size};
use super::settings::EdgeSection;
pub use fresh::FreshSpec;
pub use space::SpaceSpec;
use urls::{http_url, s3_place};

/// A bucket with an origin, as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeBucketSpec {
    /// Name of the bucket.
    pub bucket: String,
    /// URL of the origin: `s3://BUCKET[/PREFIX]`, `http://HOST[:PORT][/PATH]` or `https://`.
    pub origin: String,
    /// URL of the S3 endpoint. This key and the next four are for an origin in S3 only.
    pub endpoint: String,
    /// Region of the endpoint; empty: us-east-1.
    pub region: String,
    /// Access key; empty: requests are unsigned.
    pub access_key: String,
    /// Secret key.
    pub secret_key: SecretText,
    /// Session token of temporary credentials.
    pub session_token: SecretText,
    /// Headers of each request, for an origin over HTTP only.
    pub headers: BTreeMap<String, Secret>,
    /// Whether the origin may have a private address.
    pub allow_private: bool,
    /// Whether the objects can be read without a signature.
    pub public_read: bool,
    /// Which segments of an object are fetched.
    pub fill: Option<FillMode>,
    /// Size of a segment.
    pub segment: Size,
    /// Size of the largest object that is stored; `None`: the default.
    pub object_max: Option<Size>,
    /// How much of what came from the origin is kept.
    pub space: SpaceSpec,
    /// How long what came from the origin is served.
    pub fresh: FreshSpec,
    /// Time in which the origin must begin an answer, and send the next bytes of it.
    pub timeout: Duration,
}

/// All buckets with an origin: tables in a file. As text, BUCKET=ORIGIN pairs separated by commas,
/// or the list of tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EdgeBuckets(pub Vec<EdgeBucketSpec>);

const EXPECTED: &str =
    "a list of buckets with an origin such as [{ bucket = \"media\", origin = \"https://example.com/vod\" }]";
const KEYS: [&str; 23] = [
    "bucket",
    "origin",
    "endpoint",
    "region",
    "access_key",
    "secret_key",
    "secret_key_file",
    "secret_key_env",
    "session_token",
    "session_token_file",
    "session_token_env",
    "headers",
    "allow_private",
    "public_read",
    "fill",
    "segment",
    "object_max",
    "space",
    "age",
    "fresh",
    "stale_if_error",
    "negative",
    "timeout",
];

/// The region of an endpoint that has no other.
const REGION: &str = "us-east-1";
const SEGMENT: Size = Size::mib(8);
const SEGMENT_BYTES: (u64, u64) = (64 << 10, 64 << 20);
const SEGMENTS_MAX: u64 = 10_000;
const OBJECT_MAX: Size = Size::mib(64 << 10);
/// An object of the store has no more bytes.
const OBJECT_BYTES_MAX: u64 = 250 << 30;
const TIMEOUT: Duration = Duration::from_secs(30);
/// In microseconds.
const TIMEOUT_US: (u64, u64) = (100_000, 600_000_000);

/// Headers that belong to a connection or that the edge sets itself, besides all that begin with
/// `if-`.
const OWN_HEADERS: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
];

/// The environment variable with the secret key for a bucket's origin.
fn secret_variable(bucket: &str) -> String {
    format!("STEADFAST_EDGE_{}_SECRET_KEY", bucket.replace(['-', '.'], "_").to_uppercase())
}

/// Whether an environment variable is for the secret key of an origin.
pub(super) fn is_secret_variable(name: &str) -> bool {
    let of_edge = name.strip_prefix("STEADFAST_EDGE_").and_then(|rest| rest.strip_suffix("_SECRET_KEY"));
    of_edge.is_some_and(|bucket| !bucket.is_empty())
}

impl EdgeBucketSpec {
    fn new(bucket: &str, origin: &str) -> Self {
        Self {
            bucket: bucket.to_owned(),
            origin: origin.to_owned(),
            endpoint: String::new(),
            region: String::new(),
            access_key: String::new(),
            secret_key: SecretText::default(),
            session_token: SecretText::default(),
            headers: BTreeMap::new(),
            allow_private: false,
            public_read: false,
            fill: None,
            segment: SEGMENT,
            object_max: None,
            space: SpaceSpec::default(),
            fresh: FreshSpec::default(),
            timeout: TIMEOUT,
        }
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let (bucket, origin) = text.split_once('=').ok_or_else(|| format!("{text:?}: expected BUCKET=ORIGIN"))?;
        Ok(Self::new(bucket.trim(), origin.trim()))
    }

    fn from_value(value: &DeValue<'_>) -> Result<Self, String> {
        let table = match value {
            DeValue::String(text) => return Self::from_text(text),
            DeValue::Table(table) => table,
            _ => return Err(format!("expected {EXPECTED}")),
        };
        let mut this = Self::new("", "");
        for (key, value) in table {
            let key = key.get_ref().as_ref();
            this.set(key, value.get_ref()).map_err(|why| match KEYS.contains(&key) {
                true => format!("{key}: {why}"),
                false => why,
            })?;
        }
        Ok(this)
    }

    fn set(&mut self, key: &str, value: &DeValue<'_>) -> Result<(), String> {
        let input = Input::Value(value);
        let field = match key {
            "bucket" => &mut self.bucket,
            "origin" => &mut self.origin,
            "endpoint" => &mut self.endpoint,
            "region" => &mut self.region,
            "access_key" => &mut self.access_key,
            "secret_key" => &mut self.secret_key.text,
            "secret_key_file" => &mut self.secret_key.file,
            "secret_key_env" => &mut self.secret_key.env,
            "session_token" => &mut self.session_token.text,
            "session_token_file" => &mut self.session_token.file,
            "session_token_env" => &mut self.session_token.env,
            "headers" => return self.set_headers(value),
            "allow_private" => return bool::read(input).map(|allow| self.allow_private = allow),
            "public_read" => return bool::read(input).map(|public| self.public_read = public),
            "fill" => return self.set_fill(&String::read(input)?),
            "segment" => {
                self.segment = Size::read(input)?;
                return check_range(&self.segment, SEGMENT_BYTES);
            }
            key if space::KEYS.contains(&key) => return self.space.set(key, input),
            key if fresh::KEYS.contains(&key) => return self.fresh.set(key, input),
            "object_max" => return Option::<Size>::read(input).map(|max| self.object_max = max),
            "timeout" => {
                self.timeout = Duration::read(input)?;
                return check_range(&self.timeout, TIMEOUT_US);
            }
            other => {
                let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                let near = near.unwrap_or_else(|| format!("; it has {}", KEYS.join(", ")));
                return Err(format!("a bucket with an origin has no `{other}`{near}"));
            }
        };
        *field = String::read(input)?;
        Ok(())
    }

    fn set_fill(&mut self, text: &str) -> Result<(), String> {
        self.fill = Some(match text {
            "whole" => FillMode::Whole,
            "wanted" => FillMode::Wanted,
            _ => return Err(format!("expected \"whole\" or \"wanted\", found {text:?}")),
        });
        Ok(())
    }

    /// Clients without keys cannot make the server fetch what they do not read.
    fn fill_mode(&self) -> FillMode {
        self.fill.unwrap_or(if self.public_read { FillMode::Wanted } else { FillMode::Whole })
    }

    fn set_headers(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        let DeValue::Table(headers) = value else {
            return Err("expected a table such as { Authorization = \"Bearer secret\" }".to_owned());
        };
        for (name, value) in headers {
            let text = String::read(Input::Value(value.get_ref()))?;
            let wrong = || format!("{:?} or its value has characters that no header can have", name.get_ref());
            let name: http::HeaderName = name.get_ref().parse().map_err(|_| wrong())?;
            http::HeaderValue::from_str(&text).map_err(|_| wrong())?;
            if OWN_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("if-") {
                return Err(format!("{name} cannot be set here"));
            }
            if text == HIDDEN {
                return Err(format!("{name}: {}", hidden()));
            }
            if self.headers.insert(name.to_string(), Secret(text)).is_some() {
                return Err(format!("{name} stands there twice"));
            }
        }
        Ok(())
    }

    /// Size of the largest object that is stored, in bytes.
    fn object_bytes_max(&self) -> u64 {
        self.object_max.unwrap_or(OBJECT_MAX).0.min(self.object_bytes_limit())
    }

    fn object_bytes_limit(&self) -> u64 {
        (self.segment.0 * SEGMENTS_MAX).min(OBJECT_BYTES_MAX)
    }

    /// Checks rules that concern several keys.
    fn check(&self) -> Result<(), String> {
        if !steadfast_s3::is_bucket_name(&self.bucket) {
            return Err(format!("{:?} is not a name for a bucket", self.bucket));
        }
        let found = match self.origin.split_once("://") {
            Some(("s3", rest)) => self.check_s3(rest),
            Some(("http" | "https", _)) => self.check_http(),
            // The URL may have a password.
            Some((scheme, _)) => Err(format!("origin: there is no {scheme}://: use s3://, http:// or https://")),
            None => Err(format!("origin: {:?} is not a URL: use s3://, http:// or https://", shown_url(&self.origin))),
        };
        found.and_then(|()| self.check_object_max()).map_err(|why| format!("bucket {}: {why}", self.bucket))
    }

    fn check_object_max(&self) -> Result<(), String> {
        let limit = Size(self.object_bytes_limit());
        match self.object_max {
            Some(max) if max.0 == 0 || max > limit => {
                Err(format!("object_max is {max}: use 1 B to {limit} ({SEGMENTS_MAX} segments, at most 250 GiB)"))
            }
            _ => Ok(()),
        }
    }

    fn check_s3(&self, rest: &str) -> Result<(), String> {
        s3_place(rest).map_err(|why| format!("origin: {why}"))?;
        if self.endpoint.is_empty() {
            return Err("an origin in S3 needs an endpoint such as \"https://s3.example.com\"".to_owned());
        }
        let endpoint = http_url(&self.endpoint).map_err(|why| format!("endpoint: {why}"))?;
        if endpoint.path().len() > 1 {
            return Err(format!("endpoint: {:?} has a path: give the endpoint alone", self.endpoint));
        }
        if !self.headers.is_empty() {
            return Err("headers are for an origin over HTTP, not for S3".to_owned());
        }
        for (key, text) in [("region", &self.region), ("access_key", &self.access_key)] {
            if !text.bytes().all(|b| b.is_ascii_graphic() && b != b'/') {
                return Err(format!("{key}: {text:?} has characters that it cannot have"));
            }
        }
        self.secret_key.check("secret_key")?;
        self.session_token.check("session_token")?;
        if self.access_key.is_empty() && !(self.secret_key.is_empty() && self.session_token.is_empty()) {
            return Err("secret_key and session_token need an access_key".to_owned());
        }
        Ok(())
    }

    fn check_http(&self) -> Result<(), String> {
        http_url(&self.origin).map_err(|why| format!("origin: {why}"))?;
        for (key, empty) in [
            ("endpoint", self.endpoint.is_empty()),
            ("region", self.region.is_empty()),
            ("access_key", self.access_key.is_empty()),
            ("secret_key", self.secret_key.is_empty()),
            ("session_token", self.session_token.is_empty()),
        ] {
            if !empty {
                return Err(format!("{key} is for an origin in S3, not over HTTP"));
            }
        }
        Ok(())
    }

    /// Whether the configuration itself holds a secret.
    pub fn has_secret(&self) -> bool {
        !self.secret_key.text.is_empty() || !self.session_token.text.is_empty() || !self.headers.is_empty()
    }

    /// Reads the secrets. `variable` looks up an environment variable.
    fn credentials(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<S3Credentials>, String> {
        if self.access_key.is_empty() {
            return Ok(None);
        }
        let name = secret_variable(&self.bucket);
        let secret_key = match variable(&name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()) {
            Some(text) => Some(text),
            None => self.secret_key.read().map_err(|why| format!("secret_key: {why}"))?,
        };
        let secret_key = secret_key.ok_or_else(|| {
            format!("access_key has no secret: set secret_key, secret_key_file, secret_key_env or the variable {name}")
        })?;
        let session_token = self.session_token.read().map_err(|why| format!("session_token: {why}"))?;
        if session_token.as_ref().is_some_and(|token| http::HeaderValue::from_str(token).is_err()) {
            return Err("session_token has characters that no header can have".to_owned());
        }
        Ok(Some(S3Credentials {
            region: if self.region.is_empty() { REGION.to_owned() } else { self.region.clone() },
            access_key: self.access_key.clone(),
            secret_key: Secret(secret_key),
            session_token: session_token.map(Secret),
        }))
    }

    fn address(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<OriginAddress, String> {
        let Some(rest) = self.origin.strip_prefix("s3://") else {
            let slash = if self.origin.ends_with('/') { "" } else { "/" };
            let headers = self.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            return Ok(OriginAddress::Http { url: format!("{}{slash}", self.origin), headers });
        };
        let (bucket, prefix) = s3_place(rest)?;
        Ok(OriginAddress::S3 {
            endpoint: self.endpoint.trim_end_matches('/').to_owned(),
            bucket: bucket.to_owned(),
            prefix,
            credentials: self.credentials(variable)?,
        })
    }

    fn to_toml(&self) -> String {
        let mut all = vec![format!("bucket = {}, origin = {}", self.bucket.to_toml(), self.origin.to_toml())];
        for (key, text) in [("endpoint", &self.endpoint), ("region", &self.region), ("access_key", &self.access_key)] {
            if !text.is_empty() {
                all.push(format!("{key} = {}", text.to_toml()));
            }
        }
        self.secret_key.to_toml("secret_key", &mut all);
        self.session_token.to_toml("session_token", &mut all);
        if !self.headers.is_empty() {
            let one = |name: &String| format!("{} = {}", name.to_toml(), HIDDEN.to_owned().to_toml());
            all.push(format!("headers = {{ {} }}", self.headers.keys().map(one).collect::<Vec<_>>().join(", ")));
        }
        if self.allow_private {
            all.push("allow_private = true".to_owned());
        }
        if self.public_read {
            all.push("public_read = true".to_owned());
        }
        if let Some(mode) = self.fill {
            let text = if mode == FillMode::Wanted { "wanted" } else { "whole" };
            all.push(format!("fill = \"{text}\""));
        }
        if self.segment != SEGMENT {
            all.push(format!("segment = {}", self.segment.to_toml()));
        }
        if let Some(max) = self.object_max {
            all.push(format!("object_max = {}", max.to_toml()));
        }
        self.space.to_toml(&mut all);
        self.fresh.to_toml(&mut all);
        if self.timeout != TIMEOUT {
            all.push(format!("timeout = {}", self.timeout.to_toml()));
        }
        format!("{{ {} }}", all.join(", "))
    }
}

impl Setting for EdgeBuckets {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let specs = read_list(input, EXPECTED, EdgeBucketSpec::from_text, EdgeBucketSpec::from_value)?;
        let mut names = BTreeSet::new();
        for spec in &specs {
            spec.check()?;
            if !names.insert(&spec.bucket) {
                return Err(format!("bucket {} stands there twice", spec.bucket));
            }
        }
        Ok(Self(specs))
    }

    /// Does not print secrets.
    fn to_toml(&self) -> String {
        format!("[{}]", self.0.iter().map(EdgeBucketSpec::to_toml).collect::<Vec<_>>().join(", "))
    }
}

impl EdgeSection {
    /// The buckets with an origin, with their secrets. `variable` looks up an environment variable.
    ///
    /// # Errors
    /// The secret that is missing or cannot be read.
    pub fn edge_buckets(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Vec<EdgeBucket>, String> {
        let one = |spec: &EdgeBucketSpec| {
            let origin = spec.address(variable);
            let origin = origin.map_err(|why| format!("edge.buckets: bucket {}: {why}", spec.bucket))?;
            Ok(EdgeBucket {
                bucket: spec.bucket.clone(),
                origin,
                addresses: if spec.allow_private { Addresses::Any } else { Addresses::Public },
                fill: spec.fill_mode(),
                segment_bytes: spec.segment.0,
                object_bytes_max: spec.object_bytes_max(),
                retention: Retention { space_bytes: spec.space.space.0, age: spec.space.age },
                fresh: spec.fresh.fresh,
                stale_if_error: spec.fresh.stale_if_error,
                negative: spec.fresh.negative,
                timeout: spec.timeout,
            })
        };
        self.buckets.0.iter().map(one).collect()
    }

    /// The buckets whose objects can be read without a signature.
    pub fn public_read(&self) -> impl Iterator<Item = String> {
        self.buckets.0.iter().filter(|spec| spec.public_read).map(|spec| spec.bucket.clone())
    }

    /// The bounds of all these buckets together. `address_share` is the percentage that one client
    /// has of most of them.
    pub fn bounds(&self, address_share: usize) -> EdgeBounds {
        EdgeBounds {
            fills: self.fills,
            origin_connections: self.origin_connections,
            passed: self.passed,
            waiting: self.waiting,
            client_share_percent: address_share,
            memory_bytes: self.memory.0,
            last_use_bytes: self.last_use_memory.0,
            ..EdgeBounds::default()
        }
    }

    /// Checks rules that concern several settings.
    ///
    /// # Errors
    /// The first contradiction.
    pub(super) fn check(&self) -> Result<(), String> {
        let largest = self.buckets.0.iter().max_by_key(|spec| spec.segment);
        match largest {
            Some(spec) if self.memory.0 < 2 * spec.segment.0 => Err(format!(
                "edge.memory is {}: bucket {} has a segment of {}, and two must fit",
                self.memory, spec.bucket, spec.segment
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
