//! Users that the configuration declares.

use std::collections::BTreeSet;
use std::path::PathBuf;

use steadfast_users::Permissions;
use toml::de::DeValue;

use super::error::nearest;
use super::kinds::{SecretText, read_list};
use super::setting::{Input, Setting, list, no_list};

/// A user that is created at the start if it does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserSpec {
    /// Its name.
    pub name: String,
    /// Grants, such as `read:media/public/*`.
    pub grants: Vec<String>,
    /// A file with a policy; empty: none.
    pub policy_file: PathBuf,
    /// The access key; empty: the user is created without a key.
    pub access_key: String,
    /// The secret key.
    pub secret_key: SecretText,
}

/// All declared users: tables in a file; as text the list of tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserSpecs(pub Vec<UserSpec>);

const EXPECTED: &str = "a list of users such as [{ name = \"app\", grants = [\"read-write:uploads\"], access_key = \"app\", secret_key_file = \"/run/app\" }]";
const KEYS: [&str; 7] =
    ["name", "grants", "policy_file", "access_key", "secret_key", "secret_key_file", "secret_key_env"];

impl UserSpec {
    fn from_text(_: &str) -> Result<Self, String> {
        Err(no_list(EXPECTED))
    }

    fn from_value(value: &DeValue<'_>) -> Result<Self, String> {
        let DeValue::Table(table) = value else { return Err(no_list(EXPECTED)) };
        let mut this = Self::default();
        for (key, value) in table {
            let input = Input::Value(value.get_ref());
            let field = match key.get_ref().as_ref() {
                "grants" => {
                    this.grants = list(&input, "a list of grants such as [\"read:media\"]")?;
                    continue;
                }
                "policy_file" => {
                    this.policy_file = PathBuf::read(input)?;
                    continue;
                }
                "name" => &mut this.name,
                "access_key" => &mut this.access_key,
                "secret_key" => &mut this.secret_key.text,
                "secret_key_file" => &mut this.secret_key.file,
                "secret_key_env" => &mut this.secret_key.env,
                other => {
                    let near = nearest(other, KEYS).map(|near| format!(": did you mean `{near}`?"));
                    let near = near.unwrap_or_else(|| format!("; it has {}", KEYS.join(", ")));
                    return Err(format!("a user has no `{other}`{near}"));
                }
            };
            *field = String::read(input)?;
        }
        this.check().map_err(|why| format!("user {:?}: {why}", this.name))?;
        Ok(this)
    }

    fn check(&self) -> Result<(), String> {
        steadfast_users::check_name(&self.name)?;
        Permissions { grants: self.grants.clone(), ..Permissions::default() }.check()?;
        self.secret_key.check("secret_key")?;
        if self.access_key.is_empty() != self.secret_key.is_empty() {
            return Err("access_key and secret_key go together, and one of them is not set".to_owned());
        }
        Ok(())
    }

    fn to_toml(&self) -> String {
        let mut all = vec![format!("name = {}", self.name.to_toml())];
        let grants: Vec<String> = self.grants.iter().map(Setting::to_toml).collect();
        all.push(format!("grants = [{}]", grants.join(", ")));
        if !self.policy_file.as_os_str().is_empty() {
            all.push(format!("policy_file = {}", self.policy_file.to_toml()));
        }
        if !self.access_key.is_empty() {
            all.push(format!("access_key = {}", self.access_key.to_toml()));
        }
        self.secret_key.to_toml("secret_key", &mut all);
        format!("{{ {} }}", all.join(", "))
    }
}

impl Setting for UserSpecs {
    fn read(input: Input<'_>) -> Result<Self, String> {
        let users = read_list(input, EXPECTED, UserSpec::from_text, UserSpec::from_value)?;
        let mut names = BTreeSet::new();
        match users.iter().find(|user| !names.insert(&user.name)) {
            Some(again) => Err(format!("there are two users of the name {:?}", again.name)),
            None => Ok(Self(users)),
        }
    }

    /// Does not print secrets.
    fn to_toml(&self) -> String {
        format!("[{}]", self.0.iter().map(UserSpec::to_toml).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<UserSpecs, String> {
        crate::config::parse(text).map(|config| config.access.users).map_err(|e| e.to_string())
    }

    #[test]
    fn users_are_read_and_written_without_their_secrets() {
        let text = r#"
[[access.users]]
name = "app"
grants = ["read-write:uploads", "read:media/public/*"]
access_key = "app-key"
secret_key = "s3cret-s3cret"

[[access.users]]
name = "reports"
policy_file = "/etc/reports.json"
"#;
        let users = parse(text).expect("valid");
        assert_eq!((users.0.len(), &users.0[0].grants[1][..]), (2, "read:media/public/*"));
        let printed = users.to_toml();
        assert!(!printed.contains("s3cret"), "{printed}");
        let again = UserSpecs::read(Input::Text(&printed.replace("(not shown)", "s3cret-s3cret"))).expect("valid");
        assert_eq!(again, users, "{printed}");
        assert_eq!(UserSpecs::read(Input::Text("")), Ok(UserSpecs::default()));
    }

    #[test]
    fn mistakes_are_named() {
        for (value, expected) in [
            ("7", "a list of users"),
            ("[\"app\"]", "a list of users"),
            ("[{ name = \"a/b\" }]", "the name of a user"),
            ("[{ grants = [\"read\"] }]", "the name of a user"),
            ("[{ name = \"app\", grants = [\"fly\"] }]", "no grant"),
            ("[{ name = \"app\", grant = [\"read\"] }]", "did you mean `grants`"),
            ("[{ name = \"app\", access_key = \"app\" }]", "go together"),
            ("[{ name = \"app\", access_key = \"app\", secret_key = \"s\", secret_key_env = \"E\" }]", "give one of"),
            ("[{ name = \"app\" }, { name = \"app\" }]", "two users"),
        ] {
            let error = parse(&format!("[access]\nusers = {value}")).expect_err(value);
            assert!(error.contains(expected), "{value}: {error}");
        }
    }
}
