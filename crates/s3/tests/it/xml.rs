//! Text in XML bodies and answers: names arrive unchanged, and every answer is well-formed.

use crate::common::Client;

/// Characters that XML 1.0 excludes.
const UNFIT: [char; 6] = ['\u{1}', '\u{8}', '\u{b}', '\u{1f}', '\u{fffe}', '\u{ffff}'];

/// Whether a parser of XML 1.0 would accept the characters of a document, references included.
fn is_fit(text: &str) -> bool {
    let reference = |part: &str| {
        let number = part.split_once(';')?.0;
        let code = match number.strip_prefix('x') {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        char::from_u32(code)
    };
    let fit = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    text.chars().all(fit) && text.split("&#").skip(1).all(|part| reference(part).is_some_and(fit))
}

fn tagging(value: &str) -> String {
    format!("<Tagging><TagSet><Tag><Key>k</Key><Value>{value}</Value></Tag></TagSet></Tagging>")
}

fn deletion(key: &str) -> String {
    format!("<Delete><Object><Key>{key}</Key></Object></Delete>")
}

#[tokio::test]
async fn text_in_pieces_is_one_text() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for (written, meant) in [
        ("<![CDATA[b & c]]>", "b &amp; c"),
        ("a<![CDATA[b]]>c", "abc"),
        ("<![CDATA[a]]><![CDATA[b]]>", "ab"),
        ("<![CDATA[a]]]]><![CDATA[>b]]>", "a]]&gt;b"),
        ("<![CDATA[&lt;]]>&lt;", "&amp;lt;&lt;"),
        ("<![CDATA[]]>a", "a"),
        ("a<!-- x -->b", "ab"),
        ("a<?x y?>b", "ab"),
        ("<!-- x -->a<!-- <y> --><![CDATA[b]]><?z?>&amp;c", "ab&amp;c"),
        ("&#38;&#x41;&#x1F600;", "&amp;A\u{1f600}"),
        ("&amp;&lt;&gt;&quot;&apos;", "&amp;&lt;&gt;&quot;&apos;"),
        ("a&#13;b&#xD;", "a&#13;b&#13;"),
        ("a&#9;b&#10;c", "a\tb\nc"),
    ] {
        let deleted = c.call("POST", "/bucket?delete").body(deletion(written)).send().await.expect(200);
        let read = deleted.xml("Key").to_owned();
        let plain = |text: &str| text.replace("&quot;", "\"").replace("&apos;", "'");
        assert_eq!(plain(&read), plain(meant), "{written}");
    }
}

#[tokio::test]
async fn invalid_text_is_malformed() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/k", "x").await.expect(200);
    c.put("/bucket/k?tagging", tagging("kept")).await.expect(200);
    let (raw, unfit): (Vec<String>, Vec<String>) =
        UNFIT.iter().map(|c| (c.to_string(), format!("&#{};", u32::from(*c)))).unzip();
    let sections = raw.iter().map(|raw| format!("<![CDATA[{raw}]]>")).collect::<Vec<_>>();
    let others = ["&nbsp;", "&a", "&", "&;", "&#;", "&#x;", "&#+65;", "&#x+41;", "&#-1;", "&#X41;", "&#6 5;"];
    let beyond = ["&#0;", "&#xD800;", "&#x110000;", "&#99999999999;", "<![CDATA[a", "<!-- a", "a<b/>c"];
    let all = raw.iter().chain(&unfit).chain(&sections).map(String::as_str).chain(others).chain(beyond);
    for wrong in all {
        c.put("/bucket/k?tagging", tagging(wrong)).await.refused(400, "MalformedXML");
    }
    assert_eq!(c.get("/bucket/k?tagging").await.expect(200).xml("Value"), "kept");
}

#[tokio::test]
async fn keys_in_sections_of_cdata() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for key in ["a", "a&b", "&amp;", "<b>"] {
        c.put(&format!("/bucket/{key}"), "x").await.expect(200);
    }
    let delete = "<Delete><Object><Key>a<![CDATA[&b]]></Key></Object>\
        <Object><Key><![CDATA[&amp;]]></Key></Object></Delete>";
    let deleted = c.call("POST", "/bucket?delete").body(delete).send().await.expect(200);
    assert_eq!(deleted.xml_all("Key"), ["a&amp;b", "&amp;amp;"]);
    let listed = c.get("/bucket?list-type=2").await.expect(200);
    assert_eq!(listed.xml_all("Key"), ["&lt;b&gt;", "a"]);
    // Text is refused where the schema has none.
    let delete = "<Delete><![CDATA[<Object><Key>a</Key></Object>]]><Object><Key>b</Key></Object></Delete>";
    c.call("POST", "/bucket?delete").body(delete).send().await.expect(200);
    assert_eq!(c.get("/bucket?list-type=2").await.expect(200).xml_all("Key"), ["&lt;b&gt;", "a"]);
}

#[tokio::test]
async fn ends_of_lines_in_keys() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for key in ["a\nb", "a\r\nb", "a\rb"] {
        c.put(&format!("/bucket/{key}"), "x").await.expect(200);
    }
    // As text each of them is a line feed.
    for key in ["a\r\nb", "a\rb", "<![CDATA[a\r\nb]]>"] {
        let delete = format!("<Delete><Object><Key>{key}</Key></Object></Delete>");
        let deleted = c.call("POST", "/bucket?delete").body(delete).send().await.expect(200);
        assert_eq!(deleted.xml("Key"), "a\nb", "{key:?}");
    }
    assert_eq!(c.get("/bucket?list-type=2").await.expect(200).xml_all("Key"), ["a&#13;\nb", "a&#13;b"]);
    let delete = "<Delete><Object><Key>a&#13;&#10;b</Key></Object><Object><Key>a&#xD;b</Key></Object></Delete>";
    c.call("POST", "/bucket?delete").body(delete).send().await.expect(200);
    assert_eq!(c.get("/bucket?list-type=2").await.expect(200).xml("Key"), "");
}

#[tokio::test]
async fn keys_that_no_answer_can_name_are_not_deleted() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    c.put("/bucket/ok", "x").await.expect(200);
    for unfit in UNFIT {
        let key = format!("a{unfit}b");
        c.put(&format!("/bucket/{key}"), "x").await.expect(200);
        for written in [key.clone(), format!("a&#{};b", u32::from(unfit)), format!("<![CDATA[{key}]]>")] {
            for quiet in [true, false] {
                let delete = format!(
                    "<Delete><Object><Key>ok</Key></Object><Object><Key>{written}</Key></Object>\
                     <Quiet>{quiet}</Quiet></Delete>"
                );
                c.call("POST", "/bucket?delete").body(delete).send().await.refused(400, "MalformedXML");
            }
        }
        c.get("/bucket/ok").await.expect(200);
        // A single delete works, because its answer does not name the key.
        c.call("DELETE", &format!("/bucket/{key}")).send().await.expect(204);
        c.get(&format!("/bucket/{key}")).await.refused(404, "NoSuchKey");
    }
    let delete = "<Delete><Object><Key>a&#0;</Key></Object></Delete>";
    c.call("POST", "/bucket?delete").body(delete).send().await.refused(400, "MalformedXML");
    c.put("/bucket/\u{1f600}", "x").await.expect(200);
    let delete = "<Delete><Object><Key>&#x1F600;</Key></Object></Delete>";
    assert_eq!(c.call("POST", "/bucket?delete").body(delete).send().await.expect(200).xml("Key"), "\u{1f600}");
}

#[tokio::test]
async fn listings_of_keys_that_xml_cannot_carry() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for key in ["a/plain", "b/return\r", "b/tab\tline\n", "c/one\u{1}", "d/\u{1f}/x", "e/\u{ffff}"] {
        c.put(&format!("/bucket/{key}"), "x").await.expect(200);
    }
    // Text that XML can carry arrives whole. A carriage return needs a reference, or a parser would
    // make a line feed of it.
    let listed = c.get("/bucket?list-type=2&prefix=b/").await.expect(200);
    assert_eq!(listed.xml_all("Key"), ["b/return&#13;", "b/tab\tline\n"]);
    for query in [
        "list-type=2",
        "list-type=2&prefix=c/",
        "prefix=d/",
        "delimiter=/&prefix=d/",
        "list-type=2&prefix=e/",
        // Parameters that the answer would repeat.
        "list-type=2&prefix=\u{1}",
        "list-type=2&prefix=a/&delimiter=\u{2}",
        "list-type=2&prefix=f/&start-after=\u{3}",
        "prefix=a/&marker=\u{fffe}",
        "prefix=\u{1}&max-keys=0",
        "uploads&prefix=\u{4}",
        "uploads&key-marker=\u{4}",
        "uploads&delimiter=\u{ffff}",
    ] {
        let refused = c.get(&format!("/bucket?{query}")).await.refused(400, "InvalidArgument");
        assert!(refused.xml("Message").contains("encoding-type=url"), "{query:?}");
        assert!(is_fit(refused.text()), "{query:?}");
        c.get(&format!("/bucket?{query}&encoding-type=url")).await.expect(200);
    }
    let listed = c.get("/bucket?list-type=2&encoding-type=url").await.expect(200);
    assert_eq!(
        listed.xml_all("Key"),
        ["a/plain", "b/return%0D", "b/tab%09line%0A", "c/one%01", "d/%1F/x", "e/%EF%BF%BF"]
    );
}

#[tokio::test]
async fn uploads_that_no_answer_can_name_are_refused() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for unfit in UNFIT {
        c.call("POST", &format!("/bucket/a{unfit}?uploads")).send().await.refused(400, "InvalidArgument");
        // For an upload in one piece, or a copy, no answer names the key.
        c.put(&format!("/bucket/a{unfit}"), "x").await.expect(200);
        let copy = c.call("PUT", &format!("/bucket/b{unfit}"));
        let source = crate::common::signer::encode(&format!("bucket/a{unfit}"), true);
        assert!(is_fit(copy.header("x-amz-copy-source", &source).send().await.expect(200).text()));
    }
    assert_eq!(c.get("/bucket?uploads").await.expect(200).xml_all("Upload").len(), 0);
    // Characters that an XML parser would change come back unchanged.
    let key = "a\r\nb\rc\td";
    let begun = c.call("POST", &format!("/bucket/{key}?uploads")).send().await.expect(200);
    assert_eq!(begun.xml("Key"), "a&#13;\nb&#13;c\td");
    assert_eq!(c.get("/bucket?uploads").await.expect(200).xml("Key"), "a&#13;\nb&#13;c\td");
}

#[tokio::test]
async fn tags_that_xml_cannot_carry() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for tags in ["a=%01", "%1F=b", "a=b%EF%BF%BE"] {
        c.call("PUT", "/bucket/k").header("x-amz-tagging", tags).send().await.refused(400, "InvalidTag");
        c.call("POST", "/bucket/k?uploads").header("x-amz-tagging", tags).send().await.refused(400, "InvalidTag");
    }
    c.call("PUT", "/bucket/k").header("x-amz-tagging", "a=%0D%09").send().await.refused(400, "InvalidTag");
}

#[tokio::test]
async fn every_error_is_well_formed_xml() {
    let c = Client::new().await;
    c.bucket("bucket").await;
    for unfit in UNFIT {
        for path in [
            format!("/bucket/{unfit}"),
            format!("/bucket?max-keys={unfit}"),
            format!("/bucket/k?versionId={unfit}"),
            format!("/bucket?list-type=2&continuation-token={unfit}"),
            format!("/bucket?encoding-type={unfit}"),
            format!("/b{unfit}/k"),
        ] {
            let answer = c.get(&path).await;
            assert!(answer.status >= 400 && is_fit(answer.text()), "{path:?}: {answer:?}");
        }
        let answer = c.get(&format!("/?prefix={unfit}")).await.expect(200);
        assert!(is_fit(answer.text()), "{answer:?}");
    }
}
