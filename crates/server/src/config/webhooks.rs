//! Webhooks: the targets to which events of objects are posted.

use std::collections::{BTreeMap, BTreeSet};

use steadfast_net::shown_url;
use toml::de::DeValue;

use super::error::nearest;
use super::kinds::{HIDDEN, SecretText, read_list};
use super::setting::{Input, Setting};

/// A webhook. A secret may be given directly, or as the name of a file or environment variable that
/// holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Webhook {
    /// Its name in notifications of buckets.
    pub name: String,
    /// URL to which events are posted.
    pub url: String,
    /// Value of the `Authorization` header; empty: none.
    pub authorization: SecretText,
    /// Secret that signs the requests; empty: unsigned.
    pub secret: SecretText,
    /// Further headers of the requests.
    pub headers: BTreeMap<String, String>,
    /// Certificate authorities for the webhook's certificate, instead of the system's: PEM or a
    /// file name.
    pub server_ca_pem: String,
    /// Client certificate: PEM or a file name.
    pub cert_pem: String,
    /// Key of the client certificate: PEM or a file name.
    pub key_pem: String,
    /// Expected name in the webhook's certificate, instead of the host of the URL.
    pub server_name: String,
    /// Accepts any certificate. For trials.
    pub insecure_skip_verify: bool,
    /// The form of the events.
    pub format: WebhookFormat,
}

/// The form of the events that a webhook gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WebhookFormat {
    /// Records as Amazon S3 makes them.
    #[default]
    S3,
    /// Records as MinIO makes them, with content type and user metadata.
    Minio,
}

impl WebhookFormat {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "s3" => Ok(Self::S3),
            "minio" => Ok(Self::Minio),
            _ => Err(format!("format: expected \"s3\" or \"minio\", found {text:?}")),
        }
    }
}

/// All webhooks: tables in a file. As text, NAME=URL pairs separated by commas, or the list of
/// tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Webhooks(pub Vec<Webhook>);

const EXPECTED: &str = "a list of webhooks such as [{ name = \"app\", url = \"https://app.example.com/hook\", authorization = \"Bearer secret\" }]";
const KEYS: [&str; 15] = [
    "name",
    "url",
    "authorization",
    "authorization_file",
    "authorization_env",
    "secret",
    "secret_file",
    "secret_env",
    "headers",
    "server_ca_pem",
    "cert_pem",
    "key_pem",
    "server_name",
    "insecure_skip_verify",
    "format",
];

/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Headers that the server sets itself.
const OWN_HEADERS: [&str; 8] = [
    "authorization",
    "connection",
    "content-length",
    "host",
    "transfer-encoding",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

impl Webhook {
    fn from_text(text: &str) -> Result<Self, String> {
        let (name, url) = text.split_once('=').ok_or_else(|| format!("{text:?}: expected NAME=URL"))?;
        Ok(Self { name: name.trim().to_owned(), url: url.trim().to_owned(), ..Self::default() })
    }

    fn from_value(value: &DeValue<'_>) -> Result<Self, String> {
        let table = match value {
            DeValue::String(text) => return Self::from_text(text),
            DeValue::Table(table) => table,
            _ => return Err(format!("expected {EXPECTED}")),
        };
        let mut this = Self::default();
        for (key, value) in table {
            let field = match key.get_ref().as_ref() {
                "name" => &mut this.name,
                "url" => &mut this.url,
                "authorization" => &mut this.authorization.text,
                "authorization_file" => &mut this.authorization.file,
                "authorization_env" => &mut this.authorization.env,
                "secret" => &mut this.secret.text,
                "secret_file" => &mut this.secret.file,
                "secret_env" => &mut this.secret.env,
                "server_ca_pem" => &mut this.server_ca_pem,
                "cert_pem" => &mut this.cert_pem,
                "key_pem" => &mut this.key_pem,
                "server_name" => &mut this.server_name,
                "insecure_skip_verify" => {
                    this.insecure_skip_verify = bool::read(Input::Value(value.get_ref()))?;
                    continue;
                }
                "format" => {
                    this.format = WebhookFormat::parse(&String::read(Input::Value(value.get_ref()))?)?;
                    continue;
                }
                "headers" => {
                    let DeValue::Table(headers) = value.get_ref() else {
                        return Err("headers: expected a table such as { \"X-Tenant\" = \"a\" }".to_owned());
                    };
                    for (name, value) in headers {
                        let text = String::read(Input::Value(value.get_ref()))?;
                        this.headers.insert(name.get_ref().to_string(), text);
                    }
                    continue;
                }
                other => {
                    let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                    return Err(format!(
                        "a webhook has no `{other}`{}",
                        near.unwrap_or_else(|| format!("; it has {}", KEYS.join(", ")))
                    ));
                }
            };
            *field = String::read(Input::Value(value.get_ref()))?;
        }
        Ok(this)
    }

    fn check(&self) -> Result<(), String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(allowed) {
            return Err(format!(
                "{:?} is not a name for a webhook: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'",
                self.name
            ));
        }
        let fail = |why: String| Err(format!("webhook {}: {why}", self.name));
        let url: Result<http::Uri, _> = self.url.parse();
        let valid = url.is_ok_and(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some());
        if !valid {
            return fail(format!("{:?} is not a URL that begins with http:// or https://", shown_url(&self.url)));
        }
        if http::HeaderValue::from_str(&self.authorization.text).is_err() {
            return fail("the authorization has characters that no header can have".to_owned());
        }
        self.authorization.check("authorization").or_else(&fail)?;
        self.secret.check("secret").or_else(&fail)?;
        for (name, value) in &self.headers {
            let known: Result<http::HeaderName, _> = name.parse();
            match known {
                Ok(name) if OWN_HEADERS.contains(&name.as_str()) => {
                    return fail(format!("headers: {name} cannot be set here"));
                }
                Ok(_) if http::HeaderValue::from_str(value).is_ok() => {}
                _ => return fail(format!("headers: {name:?} or its value has characters that no header can have")),
            }
        }
        if self.cert_pem.is_empty() != self.key_pem.is_empty() {
            return fail("cert_pem and key_pem go together, and one of them is not set".to_owned());
        }
        Ok(())
    }

    fn to_toml(&self) -> String {
        let mut all = vec![format!("name = {}, url = {}", self.name.to_toml(), shown_url(&self.url).to_toml())];
        self.authorization.to_toml("authorization", &mut all);
        self.secret.to_toml("secret", &mut all);
        if !self.headers.is_empty() {
            let one = |name: &String| format!("{} = {}", name.to_toml(), HIDDEN.to_owned().to_toml());
            all.push(format!("headers = {{ {} }}", self.headers.keys().map(one).collect::<Vec<_>>().join(", ")));
        }
        // The value may be the key itself.
        let key = if self.key_pem.contains("-----") { HIDDEN } else { &self.key_pem };
        for (name, text) in [
            ("server_ca_pem", &self.server_ca_pem[..]),
            ("cert_pem", &self.cert_pem),
            ("key_pem", key),
            ("server_name", &self.server_name),
        ] {
            if !text.is_empty() {
                all.push(format!("{name} = {}", text.to_owned().to_toml()));
            }
        }
        if self.insecure_skip_verify {
            all.push("insecure_skip_verify = true".to_owned());
        }
        if self.format == WebhookFormat::Minio {
            all.push("format = \"minio\"".to_owned());
        }
        format!("{{ {} }}", all.join(", "))
    }
}

impl Setting for Webhooks {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let hooks = read_list(input, EXPECTED, Webhook::from_text, Webhook::from_value)?;
        let mut names = BTreeSet::new();
        for hook in &hooks {
            hook.check()?;
            if !names.insert(&hook.name) {
                return Err(format!("there are two webhooks of the name {:?}", hook.name));
            }
        }
        Ok(Self(hooks))
    }

    /// Does not print secrets.
    fn to_toml(&self) -> String {
        format!("[{}]", self.0.iter().map(Webhook::to_toml).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<Webhooks, String> {
        let config = crate::config::parse(&format!("[events]\nwebhooks = {value}")).map_err(|e| e.to_string())?;
        Ok(config.events.webhooks)
    }

    #[test]
    fn webhooks_are_read_and_written() {
        let tables = r#"[{ name = "a", url = "http://h:1/x" }, { name = "b", url = "https://h", authorization_file = "/run/\"s\"" },
            { name = "c", url = "https://h", secret_env = "HOOK", headers = { "X-Tenant" = "t" }, server_ca_pem = "ca.pem", cert_pem = "c.pem", key_pem = "k.pem",
              server_name = "n", insecure_skip_verify = true, format = "minio" }]"#;
        let hooks = parse(tables).expect("valid");
        assert_eq!((&hooks.0[0].url[..], &hooks.0[1].authorization.file[..]), ("http://h:1/x", "/run/\"s\""));
        assert_eq!((&hooks.0[2].headers["X-Tenant"][..], hooks.0[2].insecure_skip_verify), ("t", true));
        let printed = hooks.to_toml();
        assert_eq!(parse(&printed.replace("(not shown)", "t")).expect("valid"), hooks, "{printed}");
        let text = Webhooks::read(Input::Text("a=http://h/?x=1, b = https://h")).expect("valid");
        assert_eq!((&text.0[0].url[..], &text.0[1].name[..]), ("http://h/?x=1", "b"));
        assert_eq!(Webhooks::read(Input::Text(tables)).expect("as text"), hooks);
        assert_eq!(parse("\"a=http://h\"").expect("valid").0.len(), 1);
        assert_eq!(parse("[]").expect("valid"), Webhooks::default());
    }

    #[test]
    fn secrets_are_not_printed_and_are_read_from_where_they_are() {
        let hooks = parse(
            r#"[{ name = "a", url = "https://me:s3cret@h/x?key=s3cret", authorization = "Bearer s3cret", secret = "whsec_s3cret", headers = { "X-Key" = "s3cret" } }]"#,
        );
        let hooks = hooks.expect("valid");
        assert!(
            !hooks.to_toml().contains("s3cret") && hooks.to_toml().contains("authorization = "),
            "{}",
            hooks.to_toml()
        );
        assert_eq!(hooks.0[0].authorization.read(), Ok(Some("Bearer s3cret".to_owned())));
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("secret");
        std::fs::write(&file, "of a file\n").expect("written");
        let named = SecretText { file: file.to_str().expect("text").to_owned(), ..SecretText::default() };
        assert_eq!(named.read(), Ok(Some("of a file".to_owned())));
        std::fs::write(&file, "\n").expect("written");
        assert!(named.read().expect_err("nothing in it").contains("empty"));
        let missing = SecretText { env: "STEADFAST_NO_SUCH".into(), ..SecretText::default() };
        assert!(missing.read().expect_err("not set").contains("STEADFAST_NO_SUCH"));
        assert_eq!(SecretText::default().read(), Ok(None));
    }

    #[test]
    fn mistakes_are_named() {
        for (value, expected) in [
            ("7", "a list of webhooks"),
            ("[\"a\"]", "NAME=URL"),
            ("[{ name = \"a\" }]", "is not a URL"),
            ("[{ name = \"a\", url = \"ftp://h\" }]", "is not a URL"),
            ("[{ name = \"a b\", url = \"http://h\" }]", "is not a name"),
            ("[{ nam = \"a\", url = \"http://h\" }]", "did you mean `name`"),
            ("[{ name = \"a\", url = \"http://h\", authorization = \"a\\nb\" }]", "no header"),
            (
                "[{ name = \"a\", url = \"http://h\", secret = \"s\", secret_file = \"f\" }]",
                "one of secret, secret_file",
            ),
            ("[{ name = \"a\", url = \"http://h\", headers = { Host = \"x\" } }]", "cannot be set here"),
            ("[{ name = \"a\", url = \"http://h\", headers = { \"a b\" = \"x\" } }]", "no header"),
            ("[{ name = \"a\", url = \"http://h\", headers = 7 }]", "expected a table"),
            ("[{ name = \"a\", url = \"http://h\", cert_pem = \"c\" }]", "go together"),
            ("[{ name = \"a\", url = \"http://h\", insecure_skip_verify = 7 }]", "true or false"),
            ("[{ name = \"a\", url = \"http://h\", format = \"MinIO\" }]", "expected \"s3\" or \"minio\""),
            ("[\"a=http://h\", \"a=http://i\"]", "two webhooks"),
        ] {
            let error = parse(value).expect_err(value);
            assert!(error.contains(expected), "{value}: {error}");
        }
    }
}
