//! Rules of a bucket that would take objects away from an archive.

use bytes::Bytes;

use super::probe::{ProbeFinding, ProbeVerdict};

/// A request for settings of a bucket, and what its answer means.
pub(super) struct BucketQuestion {
    pub(super) query: &'static str,
    what: &'static str,
    judge: fn(&str, &str) -> (ProbeVerdict, String),
}

/// The settings that matter.
pub(super) const QUESTIONS: [BucketQuestion; 2] = [
    BucketQuestion { query: "lifecycle=", what: "no rule deletes or moves objects", judge: lifecycle },
    BucketQuestion { query: "versioning=", what: "no versions are kept", judge: versioning },
];

impl BucketQuestion {
    /// The finding from an answer, or from the reason why there is none.
    pub(super) fn finding(&self, answer: Result<(u16, Bytes), String>, prefix: &str) -> ProbeFinding {
        let (verdict, detail) = match answer {
            Ok((200, body)) => (self.judge)(&String::from_utf8_lossy(&body), prefix),
            // No rules were ever set.
            Ok((404, _)) => (ProbeVerdict::Good, String::new()),
            Ok((status, _)) => (ProbeVerdict::Noted, format!("the bucket does not tell ({status})")),
            Err(why) => (ProbeVerdict::Noted, format!("the bucket does not tell ({why})")),
        };
        ProbeFinding { what: self.what, verdict, detail }
    }
}

/// The text between the first pair of tags.
fn between<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

fn lifecycle(document: &str, prefix: &str) -> (ProbeVerdict, String) {
    if !document.contains("LifecycleConfiguration") {
        return (ProbeVerdict::Noted, "the bucket does not tell".to_owned());
    }
    let under = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    for rule in document.split("<Rule").skip(1) {
        let of = between(rule, "Prefix").unwrap_or_default();
        let touches = of.starts_with(&under) || under.starts_with(of);
        // Of those for objects with tags, and for markers of deletes, an archive has none.
        let acts = ["Expiration", "Transition"].iter().filter_map(|action| between(rule, action));
        let acts = acts.into_iter().any(|action| action.contains("<Days>") || action.contains("<Date>"));
        if between(rule, "Status") == Some("Enabled") && touches && acts && !rule.contains("<Tag>") {
            let id = between(rule, "ID").unwrap_or("without a name");
            let detail = format!(
                "the lifecycle rule {id} deletes or moves objects that the archive needs: remove it, or use another prefix"
            );
            return (ProbeVerdict::Unfit, detail);
        }
    }
    (ProbeVerdict::Good, String::new())
}

fn versioning(document: &str, _prefix: &str) -> (ProbeVerdict, String) {
    if between(document, "Status") != Some("Enabled") {
        return (ProbeVerdict::Good, String::new());
    }
    let detail = "what the archive deletes and replaces stays as old versions, and is paid for: let a lifecycle rule end them \
                  (NoncurrentVersionExpiration)";
    (ProbeVerdict::Noted, detail.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: &[(&str, &str, &str)]) -> String {
        let rule = |(prefix, status, action): &(&str, &str, &str)| {
            format!(
                "<Rule><ID>r</ID><Filter><Prefix>{prefix}</Prefix></Filter><Status>{status}</Status>{action}</Rule>"
            )
        };
        format!("<LifecycleConfiguration>{}</LifecycleConfiguration>", rules.iter().map(rule).collect::<String>())
    }

    #[test]
    fn rules_under_the_prefix_make_a_bucket_unfit() {
        let (end, old) = (
            "<Expiration><Days>7</Days></Expiration>",
            "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>",
        );
        let moved = "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>";
        for (document, unfit) in [
            (rules(&[]), false),
            (rules(&[("", "Enabled", end)]), true),
            (rules(&[("chat", "Enabled", moved)]), true),
            (rules(&[("chat/a/old", "Enabled", end)]), true),
            (rules(&[("logs/", "Enabled", end)]), false),
            (rules(&[("chat/a-logs/", "Enabled", end)]), false),
            (
                rules(&[(
                    "",
                    "Enabled",
                    "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>",
                )]),
                false,
            ),
            (rules(&[("", "Enabled", &format!("<Tag><Key>k</Key></Tag>{end}"))]), false),
            (rules(&[("chat/a", "Disabled", end)]), false),
            (rules(&[("", "Enabled", old)]), false),
            (rules(&[("logs/", "Enabled", end), ("ch", "Enabled", end)]), true),
        ] {
            let found = QUESTIONS[0].finding(Ok((200, document.clone().into())), "chat/a");
            assert_eq!(found.verdict == ProbeVerdict::Unfit, unfit, "{document}");
        }
        assert_eq!(QUESTIONS[0].finding(Ok((404, Bytes::new())), "").verdict, ProbeVerdict::Good);
        assert_eq!(QUESTIONS[0].finding(Ok((403, Bytes::new())), "").verdict, ProbeVerdict::Noted);
    }

    #[test]
    fn versions_are_worth_knowing() {
        let answer = |text: &str| QUESTIONS[1].finding(Ok((200, text.to_owned().into())), "").verdict;
        assert_eq!(answer("<VersioningConfiguration/>"), ProbeVerdict::Good);
        assert_eq!(
            answer("<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"),
            ProbeVerdict::Noted
        );
    }
}
