//! Media types of keys, for origins that do not know them.

/// Types by extension.
const TYPES: [(&str, &str); 17] = [
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("mpd", "application/dash+xml"),
    ("m4s", "video/iso.segment"),
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("cmfv", "video/mp4"),
    ("m4a", "audio/mp4"),
    ("cmfa", "audio/mp4"),
    ("ts", "video/mp2t"),
    ("aac", "audio/aac"),
    ("mp3", "audio/mpeg"),
    ("webm", "video/webm"),
    ("vtt", "text/vtt"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("png", "image/png"),
    ("webp", "image/webp"),
];
/// Types that servers send if they do not know better.
const UNKNOWN: [&str; 2] = ["application/octet-stream", "binary/octet-stream"];

/// The type of an object in place of the one that its origin gives; `None` if that one stays.
pub(super) fn instead_of(given: Option<&str>, key: &str) -> Option<&'static str> {
    let essence = given.map(|given| given.split(';').next().unwrap_or_default().trim());
    if essence.is_some_and(|given| !UNKNOWN.iter().any(|unknown| given.eq_ignore_ascii_case(unknown))) {
        return None;
    }
    let (_, name) = key.rsplit_once('/').unwrap_or(("", key));
    let (_, extension) = name.rsplit_once('.')?;
    TYPES.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known)).map(|(_, found)| *found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_types_are_replaced() {
        for given in [None, Some("application/octet-stream"), Some("Binary/Octet-Stream; charset=x")] {
            assert_eq!(instead_of(given, "vod/1/init.mp4"), Some("video/mp4"), "{given:?}");
        }
        for given in ["text/plain", "video/mp4", "application/octet-stream-x"] {
            assert_eq!(instead_of(Some(given), "vod/1/init.m4s"), None, "{given}");
        }
    }

    #[test]
    fn the_extension_is_the_end_of_the_name() {
        let of = |key| instead_of(None, key);
        assert_eq!(of("a.b/Film.TS"), Some("video/mp2t"));
        assert_eq!(of("seg.1.m4s"), Some("video/iso.segment"));
        assert_eq!(of("sub.vtt"), Some("text/vtt"));
        for key in ["mp4", "a.mp4/b", "a.mp4/", "a.", "", "enc.key", "a.mp4.gz", "a.mp4?x"] {
            assert_eq!(of(key), None, "{key}");
        }
    }
}
