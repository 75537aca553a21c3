use steadfast_edge::Fresh;

use super::*;
use crate::config::{Config, parse};

fn section(text: &str) -> Result<EdgeSection, String> {
    parse(text).map(|config| config.edge).map_err(|e| e.to_string())
}

/// One bucket `media`, with these keys besides its name.
fn with(keys: &str) -> Result<EdgeSection, String> {
    section(&format!("[[edge.buckets]]\nbucket = \"media\"\n{keys}\n"))
}

fn none(_: &str) -> Option<String> {
    None
}

const S3: &str = "origin = \"s3://acme-origin/vod\"\nendpoint = \"https://s3.example.com/\"";

#[test]
fn buckets_are_read_and_written() {
    let text = r#"[edge]
fills = 7
memory = "128 MiB"
[[edge.buckets]]
bucket = "media"
origin = "s3://acme-origin/vod"
endpoint = "https://s3.eu-central-1.amazonaws.com"
region = "eu-central-1"
access_key = "key"
secret_key_file = "/run/\"s\""
session_token_env = "TOKEN"
allow_private = true
public_read = true
fill = "wanted"
segment = "64 KiB"
object_max = "600 MiB"
space = "2 TiB"
age = "30 d"
timeout = "1500 ms"
[[edge.buckets]]
bucket = "web"
origin = "https://example.com:8443/a%20b"
"#;
    let config = parse(text).expect("valid");
    assert_eq!(parse(&config.to_toml()), Ok(config.clone()));
    let edge = config.edge;
    assert_eq!(edge.public_read().collect::<Vec<_>>(), ["media"]);
    let space = edge.buckets.0[0].space;
    assert_eq!((space.space.0, space.age), (2 << 40, Some(Duration::from_secs(30 * 24 * 3600))));
    assert_eq!((edge.bounds(25).fills, edge.bounds(25).memory_bytes), (7, 128 << 20));
    assert_eq!(EdgeBounds { fills: 1024, memory_bytes: 256 << 20, ..edge.bounds(25) }, EdgeBounds::default());
    let list = edge.buckets.to_toml();
    assert_eq!(EdgeBuckets::read(Input::Text(&list)), Ok(edge.buckets), "as text");
    let pairs = EdgeBuckets::read(Input::Text("web=http://h:1/x, tube = https://h")).expect("valid");
    assert_eq!((&pairs.0[0].origin[..], &pairs.0[1].bucket[..]), ("http://h:1/x", "tube"));
    assert_eq!(section("[edge]\nbuckets = \"\""), Ok(EdgeSection::default()));
    assert_eq!(section("[edge]\nbuckets = \"web=http://h\"").expect("valid").buckets.0.len(), 1);
}

#[test]
fn the_example_in_the_documentation_is_valid() {
    let text = include_str!("../../../../../docs/s3.md");
    let (_, example) = text.split_once("```toml\n").expect("the example");
    let (example, _) = example.split_once("```").expect("its end");
    assert_eq!(section(example).expect("valid").buckets.0.len(), 2);
}

#[test]
fn defaults_are_those_of_the_edge() {
    assert_eq!(EdgeSection::default().bounds(25), EdgeBounds::default());
    let [bucket] = &with("origin = \"http://h\"").expect("valid").edge_buckets(&none).expect("no secrets")[..] else {
        panic!("one bucket");
    };
    let expected = EdgeBucket {
        bucket: "media".to_owned(),
        origin: OriginAddress::Http { url: "http://h/".to_owned(), headers: Vec::new() },
        addresses: Addresses::Public,
        fill: FillMode::Whole,
        segment_bytes: 8 << 20,
        object_bytes_max: 64 << 30,
        retention: Retention::default(),
        fresh: Fresh::Origin,
        stale_if_error: Duration::from_secs(24 * 3600),
        negative: Duration::from_secs(10),
        timeout: Duration::from_secs(30),
    };
    assert_eq!(bucket, &expected);
    let small = with("origin = \"http://h\"\nsegment = \"1 MiB\"").expect("valid").edge_buckets(&none).expect("valid");
    assert_eq!(small[0].object_bytes_max, 10_000 << 20, "10,000 segments");
}

#[test]
fn freshness_is_read_and_written() {
    for (keys, fresh, stale_if_error_s, negative_s) in [
        ("fresh = \"origin\"", Fresh::Origin, 24 * 3600, 10),
        ("fresh = \"forever\", stale_if_error = \"0\"", Fresh::Forever, 0, 10),
        ("fresh = \"2 h\", negative = \"1 min\"", Fresh::Fallback(Duration::from_secs(7200)), 24 * 3600, 60),
    ] {
        let section = with(&format!("origin = \"http://h\"\n{}", keys.replace(", ", "\n"))).expect(keys);
        let bucket = section.edge_buckets(&none).expect(keys).remove(0);
        let times = (bucket.stale_if_error.as_secs(), bucket.negative.as_secs());
        assert_eq!((bucket.fresh, times), (fresh, (stale_if_error_s, negative_s)), "{keys}");
        let shown = section.buckets.to_toml();
        assert_eq!(EdgeBuckets::read(Input::Text(&shown)).expect("read again"), section.buckets, "{shown}");
    }
}

#[test]
fn origins_become_addresses() {
    let address = |keys: &str| with(keys).expect(keys).edge_buckets(&none).expect(keys).remove(0).origin;
    let s3 = |prefix: &str| OriginAddress::S3 {
        endpoint: "https://s3.example.com".to_owned(),
        bucket: "acme-origin".to_owned(),
        prefix: prefix.to_owned(),
        credentials: None,
    };
    for (origin, prefix) in [("", ""), ("/", ""), ("/vod", "vod/"), ("/vod/", "vod/"), ("/a/b", "a/b/")] {
        let keys = format!("origin = \"s3://acme-origin{origin}\"\nendpoint = \"https://s3.example.com\"");
        assert_eq!(address(&keys), s3(prefix), "{origin}");
    }
    let headers = "origin = \"http://h/x\"\nheaders = { Authorization = \"Bearer t\", X-Tenant = \"a\" }";
    let headers = match address(headers) {
        OriginAddress::Http { headers, .. } => headers,
        OriginAddress::S3 { .. } => Vec::new(),
    };
    let secret = |text: &str| Secret(text.to_owned());
    assert_eq!(headers, [("authorization".to_owned(), secret("Bearer t")), ("x-tenant".to_owned(), secret("a"))]);
}

#[test]
fn secrets_are_read_from_where_they_are() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    std::fs::write(&file, "of a file\n").expect("written");
    let read = |keys: &str, variable: &dyn Fn(&str) -> Option<String>| {
        let buckets = with(&format!("{S3}\naccess_key = \"key\"\n{keys}")).expect(keys).edge_buckets(variable)?;
        match buckets.into_iter().next().map(|bucket| bucket.origin) {
            Some(OriginAddress::S3 { credentials: Some(credentials), .. }) => Ok(credentials),
            other => Err(format!("{other:?}")),
        }
    };
    let direct = read("secret_key = \"direct\"\nsession_token = \"token\"", &none).expect("given");
    let expected = S3Credentials {
        region: "us-east-1".to_owned(),
        access_key: "key".to_owned(),
        secret_key: Secret("direct".to_owned()),
        session_token: Some(Secret("token".to_owned())),
    };
    assert_eq!(direct, expected);
    let of_file = format!("secret_key_file = {:?}\nregion = \"eu-west-1\"", file.to_str().expect("text"));
    let found = read(&of_file, &none).expect("of the file");
    assert_eq!((&found.secret_key.0[..], &found.region[..]), ("of a file", "eu-west-1"));
    let variable = |name: &str| (name == "STEADFAST_EDGE_MEDIA_SECRET_KEY").then(|| "of the environment\n".to_owned());
    for keys in ["", &of_file] {
        assert_eq!(read(keys, &variable).expect("of the environment").secret_key.0, "of the environment");
    }
    let missing = read("", &none).expect_err("no secret");
    assert!(missing.contains("bucket media: access_key has no secret: set secret_key,"), "{missing}");
    assert!(read("secret_key_env = \"STEADFAST_NO_SUCH\"", &none).expect_err("not set").contains("STEADFAST_NO_SUCH"));
    assert!(
        read("secret_key = \"s\"\nsession_token = \"a\\nb\"", &none).expect_err("a line end").contains("no header")
    );

    assert_eq!(secret_variable("my-media.tv"), "STEADFAST_EDGE_MY_MEDIA_TV_SECRET_KEY");
    let apply = |name: &str| Config::default().apply_env([(name.to_owned(), "x".to_owned())]);
    assert_eq!(apply("STEADFAST_EDGE_MEDIA_SECRET_KEY"), Ok(()));
    for wrong in ["STEADFAST_EDGE_SECRET_KEY", "STEADFAST_EDGE__SECRET_KEY", "STEADFAST_EDGE_MEDIA_SECRETKEY"] {
        assert!(apply(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let config = parse(&format!(
        "[[edge.buckets]]\nbucket = \"one\"\n{S3}\naccess_key = \"key\"\nsecret_key = \"s3cret\"\nsession_token = \"s3cret\"\n\
         [[edge.buckets]]\nbucket = \"two\"\norigin = \"http://h\"\nheaders = {{ Authorization = \"Bearer s3cret\" }}\n"
    ));
    let config = config.expect("valid");
    assert!(config.edge.buckets.0.iter().all(EdgeBucketSpec::has_secret));
    let shown = config.to_toml();
    assert!(!shown.contains("s3cret") && shown.contains("access_key = \"key\", secret_key = "), "{shown}");
    assert!(shown.contains("headers = { \"authorization\" = \"(not shown)\" }"), "{shown}");
    assert!(!format!("{config:?} {:?}", config.edge.edge_buckets(&none)).contains("s3cret"));
    assert!(parse(&shown).expect_err("not taken for the secrets").to_string().contains("give the secret itself"));
}

#[test]
fn mistakes_are_named() {
    let http = |keys: &str| format!("origin = \"http://h\"\n{keys}");
    let s3 = |keys: &str| format!("{S3}\n{keys}");
    let origin = |url: &str| format!("origin = \"{url}\"\nendpoint = \"https://h\"");
    let endpoint = |url: &str| format!("origin = \"s3://b\"\nendpoint = \"{url}\"");
    for (keys, expected) in [
        ("".to_owned(), "bucket media: origin: \"\" is not a URL"),
        (origin("h/x"), "is not a URL"),
        (origin("ftp://u:s3cret@h"), "there is no ftp://: use s3://, http:// or https://"),
        (http("orign = \"x\""), "a bucket with an origin has no `orign`: did you mean `origin`?"),
        (http("colour = 7"), "it has bucket, origin,"),
        (http("fill = \"some\""), "fill: expected \"whole\" or \"wanted\", found \"some\""),
        (http("allow_private = 7"), "allow_private: expected true or false"),
        (http("segment = \"63 KiB\""), "segment: \"63 KiB\" is out of range: use \"64 KiB\" to \"64 MiB\""),
        (http("segment = \"65 MiB\""), "out of range"),
        (http("timeout = \"99 ms\""), "timeout: \"99 ms\" is out of range: use \"100 ms\" to \"10 min\""),
        (http("timeout = \"11 min\""), "out of range"),
        (http("object_max = \"79 GiB\""), "object_max is 79 GiB: use 1 B to 80000 MiB"),
        (http("object_max = \"0 B\""), "object_max is 0 B"),
        (http("space = \"1023 KiB\""), "space: 1023 KiB is too little"),
        (http("age = \"500 ms\""), "age: \"500 ms\" is out of range"),
        (http("segment = \"64 MiB\"\nobject_max = \"251 GiB\""), "use 1 B to 250 GiB"),
        ("origin = \"http://\"".to_owned(), "is not a URL"),
        ("origin = \"http://h/a b\"".to_owned(), "is not a URL"),
        ("origin = \"http://h/\u{e4}\"".to_owned(), "is not a URL"),
        ("origin = \"http://h:x\"".to_owned(), "a wrong port"),
        ("origin = \"http://h:\"".to_owned(), "a wrong port"),
        ("origin = \"http://h:0\"".to_owned(), "a wrong port"),
        ("origin = \"http://h/?a=b\"".to_owned(), "a query or a fragment"),
        ("origin = \"https://h/#a\"".to_owned(), "a query or a fragment"),
        ("origin = \"https://u:s3cret@h\"".to_owned(), "no user and password"),
        (origin("s3://"), "is not the name of a bucket"),
        (origin("s3:///vod"), "is not the name of a bucket"),
        (origin("s3://a:9000/b"), "is not the name of a bucket"),
        (origin("s3://key:s3cret@b"), "no user and password"),
        (origin("s3://b/v?x"), "a query or a fragment"),
        (origin("s3://b/v#x"), "a query or a fragment"),
        ("origin = \"s3://b\"".to_owned(), "needs an endpoint"),
        (endpoint("h:9000"), "endpoint: \"h:9000\" is not a URL"),
        (endpoint("https://h/b"), "has a path"),
        (endpoint("https://h/?a"), "a query or a fragment"),
        (endpoint("https://u:s3cret@h"), "no user and password"),
        (s3("headers = { A = \"b\" }"), "headers are for an origin over HTTP"),
        (s3("region = \"eu west\""), "region: \"eu west\" has characters"),
        (s3("access_key = \"a/b\""), "access_key: \"a/b\" has characters"),
        (s3("secret_key = \"s\""), "need an access_key"),
        (s3("session_token_env = \"T\""), "need an access_key"),
        (s3("access_key = \"k\"\nsecret_key = \"s\"\nsecret_key_file = \"f\""), "one of secret_key, secret_key_file"),
        (http("endpoint = \"http://h\""), "endpoint is for an origin in S3"),
        (http("region = \"r\""), "region is for"),
        (http("access_key = \"k\""), "access_key is for"),
        (http("secret_key_file = \"f\""), "secret_key is for"),
        (http("session_token = \"t\""), "session_token is for"),
        (http("headers = 7"), "headers: expected a table"),
        (http("headers = { \"a b\" = \"x\" }"), "no header can have"),
        (http("headers = { a = \"x\\ny\" }"), "no header can have"),
        (http("headers = { a = \"x\", A = \"y\" }"), "a stands there twice"),
        (http("bucket = \"tv\""), "duplicate key"),
        (http("fresh = \"often\""), "or use \"origin\" or \"forever\""),
        (http("stale_if_error = \"-1 s\""), "stale_if_error"),
        (http("negative = \"1000000 h\""), "negative"),
    ] {
        let error = with(&keys).expect_err(&keys);
        assert!(error.contains(expected) && !error.contains("s3cret"), "{keys}: {error}");
    }
    for name in OWN_HEADERS.into_iter().chain(["Host", "If-Match", "if-range", "If-None-Match"]) {
        let error = with(&http(&format!("headers = {{ {name} = \"x\" }}"))).expect_err(name);
        assert!(error.contains("cannot be set here"), "{name}: {error}");
    }
}

#[test]
fn mistakes_in_the_section_are_named() {
    for (text, expected) in [
        ("[edge]\nbuckets = 7", "edge.buckets: expected a list of buckets with an origin"),
        ("[edge]\nbuckets = [\"a\"]", "BUCKET=ORIGIN"),
        ("[edge]\nbuckets = [\"media=http://h\", \"media=http://i\"]", "bucket media stands there twice"),
        ("[edge]\nbuckets = [\"Media=http://h\"]", "\"Media\" is not a name for a bucket"),
        ("[edge]\nbuckets = [\"m=http://h\"]", "\"m\" is not a name for a bucket"),
        ("[edge]\nbuckets = [\"m_1=http://h\"]", "is not a name for a bucket"),
        (
            "[edge]\nmemory = \"15 MiB\"\nbuckets = \"media=http://h\"",
            "edge.memory is 15 MiB: bucket media has a segment of 8 MiB",
        ),
        ("[edge]\nmemory = \"1 KiB\"", "out of range"),
        ("[edge]\nfills = 0", "use 1 to 65536"),
        ("[edge]\norigin_connections = 3", "use 4 to 1024"),
        ("[edge]\nwaiting = 0", "use 1 to 1048576"),
        ("[edge]\nfils = 1", "did you mean `fills`?"),
    ] {
        let error = section(text).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(section("[edge]\nmemory = \"16 MiB\"\nbuckets = \"media=http://h\"").is_ok());
    let error = section("[edge]\nbuckets = \"media=ftp://h\"").expect_err("no such scheme");
    assert!(error.starts_with("line 2, column 11: edge.buckets: bucket media: "), "{error}");
    let error = section("[edge]\nfills = 1\n[[edge.buckets]]\nbucket = \"media\"\n").expect_err("no origin");
    assert!(error.starts_with("line 3, column 1: edge.buckets: bucket media: origin: "), "{error}");
}
