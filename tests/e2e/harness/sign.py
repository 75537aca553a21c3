"""AWS signature version 4, written out, for requests that no SDK would send."""

import datetime
import hashlib
import hmac
import urllib.parse

ACCESS, SECRET, REGION = "test-access", "test-secret-0123456789", "us-east-1"
UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


def amz_date(when=None):
    return (when or datetime.datetime.now(datetime.timezone.utc)).strftime("%Y%m%dT%H%M%SZ")


def quote(text):
    return urllib.parse.quote(text, safe="-_.~")


def quote_path(path):
    return urllib.parse.quote(path, safe="-_.~/")


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signing_key(date, secret=SECRET, region=REGION):
    key = _hmac(("AWS4" + secret).encode(), date[:8])
    return _hmac(_hmac(_hmac(key, region), "s3"), "aws4_request")


def scope(date, region=REGION):
    return f"{date[:8]}/{region}/s3/aws4_request"


def canonical_query(query):
    return "&".join(f"{quote(k)}={quote(v)}" for k, v in sorted(query.items()))


def signature(method, path, query, headers, payload_hash, date, secret=SECRET):
    """The signature over all of `headers` (lower-case names); `path` is already quoted."""
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    canonical = "\n".join([method, path, canonical_query(query), lines, names, payload_hash])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", date, scope(date), hashlib.sha256(canonical.encode()).hexdigest()])
    return hmac.new(signing_key(date, secret), to_sign.encode(), hashlib.sha256).hexdigest()


def headers_for(method, host, path, query=None, headers=None, payload_hash=UNSIGNED, date=None, access=ACCESS,
                secret=SECRET):
    """Headers of a signed request."""
    date = date or amz_date()
    out = {k.lower(): v for k, v in (headers or {}).items()}
    out.update({"host": host, "x-amz-date": date, "x-amz-content-sha256": payload_hash})
    value = signature(method, quote_path(path), query or {}, out, payload_hash, date, secret)
    names = ";".join(sorted(out))
    out["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access}/{scope(date)}, SignedHeaders={names}, Signature={value}")
    return out


def presigned_query(method, host, path, query=None, expires_s=60, date=None):
    """The query string of a presigned URL, with parameters of its own; only `host` is a signed
    header."""
    date = date or amz_date()
    query = {**(query or {}), "X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{ACCESS}/{scope(date)}",
             "X-Amz-Date": date, "X-Amz-Expires": str(expires_s), "X-Amz-SignedHeaders": "host"}
    value = signature(method, quote_path(path), query, {"host": host}, UNSIGNED, date)
    return canonical_query(query) + "&X-Amz-Signature=" + value


def chunked_body(chunks, seed, date, trailer=None):
    """An aws-chunked body whose chunks are signed in a chain from `seed`; `trailer` is (name,
    value)."""
    key, previous, out = signing_key(date), seed, b""
    for chunk in [*chunks, b""]:
        to_sign = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", date, scope(date), previous, EMPTY_SHA256,
                             hashlib.sha256(chunk).hexdigest()])
        previous = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
        out += f"{len(chunk):x};chunk-signature={previous}\r\n".encode()
        if chunk:
            out += chunk + b"\r\n"
    if trailer:
        line = f"{trailer[0]}:{trailer[1]}\n"
        to_sign = "\n".join(["AWS4-HMAC-SHA256-TRAILER", date, scope(date), previous,
                             hashlib.sha256(line.encode()).hexdigest()])
        mac = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
        out += f"{trailer[0]}:{trailer[1]}\r\nx-amz-trailer-signature:{mac}\r\n".encode()
    return out + b"\r\n"


def unsigned_chunked_body(chunks, trailer=None):
    """An aws-chunked body without chunk signatures."""
    out = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks) + b"0\r\n"
    if trailer:
        out += f"{trailer[0]}:{trailer[1]}\r\n".encode()
    return out + b"\r\n"
