//! URLs of origins.

use steadfast_net::shown_url;

/// Checks the URL of an HTTP server.
pub(super) fn http_url(text: &str) -> Result<http::Uri, String> {
    let wrong = || format!("{:?} is not a URL that begins with http:// or https://", shown_url(text));
    let url: http::Uri = text.parse().map_err(|_| wrong())?;
    let host = url.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(wrong());
    }
    let authority = url.authority().map_or("", http::uri::Authority::as_str);
    if authority.contains('@') {
        // The URL may have a password.
        return Err("a URL has no user and password here: give them as a header".to_owned());
    }
    if authority != host && url.port_u16().is_none_or(|port| port == 0) {
        return Err(format!("{text:?} has a wrong port"));
    }
    if text.contains(['?', '#']) {
        return Err(format!("{:?} has a query or a fragment: keys are appended to the URL", shown_url(text)));
    }
    Ok(url)
}

/// The bucket and the prefix in `s3://BUCKET[/PREFIX]`, without the scheme.
pub(super) fn s3_place(rest: &str) -> Result<(&str, String), String> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        return Err("s3:// has no user and password: use access_key and secret_key".to_owned());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if bucket.is_empty() || !bucket.chars().all(allowed) {
        return Err(format!("{bucket:?} is not the name of a bucket: use s3://BUCKET or s3://BUCKET/PREFIX"));
    }
    if rest.contains(['?', '#']) {
        return Err(format!("s3://{rest:?} has a query or a fragment"));
    }
    let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
    Ok((bucket, format!("{prefix}{slash}")))
}
