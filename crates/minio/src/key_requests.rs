//! Requests about access keys, which MinIO also calls service accounts.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use steadfast_access::Grant;
use steadfast_flow::Env;
use steadfast_users::{
    KeyChange, KeyPair, KeyState, KeySummary, NewKey, Permissions, UserAction, UserError, UserSummary, Users,
};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::call::AdminCall;
use crate::failure::Failure;

/// What a key of the root identity may do unless it has a policy.
const ROOT_POLICY: &str = "readwrite";

/// The first moment of Go's calendar.
const GO_ZERO: &str = "0001-01-01T00:00:00Z";

/// A request about keys. A key of a user may do what the user may. A key of the root identity is a
/// user of that name: the root identity itself has one pair.
pub(crate) struct KeyRequests<'a> {
    pub(crate) users: &'a Users,
    pub(crate) env: &'a Env,
    pub(crate) call: &'a AdminCall,
}

/// The body of `add-service-account`. Source: `AddServiceAccountReq` of madmin-go. A field that is
/// not known is refused: the key could do more without it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AddedKey {
    policy: Option<Box<RawValue>>,
    target_user: Option<String>,
    access_key: Option<String>,
    secret_key: Option<String>,
    expiration: Option<String>,
    // Not kept.
    #[serde(rename = "name")]
    _name: Option<IgnoredAny>,
    #[serde(rename = "description")]
    _description: Option<IgnoredAny>,
    #[serde(rename = "comment")]
    _comment: Option<IgnoredAny>,
    // A new key works.
    #[serde(rename = "status")]
    _status: Option<IgnoredAny>,
}

/// The body of `update-service-account`. Source: `UpdateServiceAccountReq` of madmin-go.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdatedKey {
    new_policy: Option<Box<RawValue>>,
    new_secret_key: Option<String>,
    new_status: Option<String>,
    new_expiration: Option<String>,
    // Not kept.
    #[serde(rename = "newName")]
    _name: Option<IgnoredAny>,
    #[serde(rename = "newDescription")]
    _description: Option<IgnoredAny>,
}

impl KeyRequests<'_> {
    pub(crate) async fn add(&self) -> Result<Vec<u8>, Failure> {
        let added: AddedKey = self.call.body()?;
        let expires_ms = self.expiration(added.expiration.as_deref())?;
        let mut key = NewKey {
            access_key: given(added.access_key),
            secret_key: given(added.secret_key),
            lifetime_ms: expires_ms.flatten().map(|end| end.saturating_sub(self.env.wall_ms())),
        };
        let policy = policy_of(added.policy.as_deref());
        let user = given(added.target_user).filter(|user| *user != self.call.access_key);
        let made = match (user, policy) {
            (None, policy) => {
                let name = match key.access_key.clone() {
                    Some(name) => name,
                    None => KeyPair::generate().map_err(Failure::internal)?.access_key,
                };
                key.access_key = Some(name.clone());
                let attached = if policy.is_none() { vec![ROOT_POLICY.to_owned()] } else { Vec::new() };
                let permissions = Permissions { policy, attached, ..Permissions::default() };
                let made = self.users.run(UserAction::Create { name, permissions, key: Some(key) }).await?;
                made["key"].clone()
            }
            (Some(user), None) => self.users.run(UserAction::KeyCreate { user, key }).await?,
            (Some(_), Some(_)) => return Err(no_key_policies()),
        };
        let mut credentials = json!({ "accessKey": made["access_key"], "secretKey": made["secret_key"] });
        if let Some(end) = expires_ms.flatten() {
            credentials["expiration"] = json!(timestamp(end));
        }
        Ok(json!({ "credentials": credentials }).to_string().into_bytes())
    }

    pub(crate) async fn update(&self) -> Result<(), Failure> {
        let access_key = self.call.parameter("accessKey");
        let updated: UpdatedKey = self.call.body()?;
        let disabled = match given(updated.new_status).as_deref() {
            None => None,
            Some("on" | "enabled") => Some(false),
            Some("off" | "disabled") => Some(true),
            Some(other) => return Err(Failure::invalid(format!("the status {other:?} is neither on nor off"))),
        };
        let secret_key = given(updated.new_secret_key);
        let expires_ms = self.expiration(updated.new_expiration.as_deref())?;
        if policy_of(updated.new_policy.as_deref()).is_some() {
            return Err(no_key_policies());
        }
        self.users.change_key_to(&access_key, KeyChange { secret_key, disabled, expires_ms }).await?;
        Ok(())
    }

    /// Removes a further key. The key with the name of its user is the user's, which
    /// `mc admin user remove` removes.
    pub(crate) async fn remove(&self) -> Result<(), Failure> {
        let access_key = self.call.parameter("accessKey");
        if self.users.get_key(&access_key)?.user == access_key {
            return Err(Failure::is_user(&access_key));
        }
        self.users.run(UserAction::KeyRemove { access_key }).await?;
        Ok(())
    }

    pub(crate) fn get(&self) -> Result<Vec<u8>, Failure> {
        let key = self.users.get_key(&self.call.parameter("accessKey"))?;
        let user = self.users.get(&key.user)?;
        let mut shown = shown(&key);
        shown["policy"] = Value::String(self.document(&user)?.to_string());
        Ok(shown.to_string().into_bytes())
    }

    /// There are no temporary keys. `mc` asks for one when it finds no other.
    pub(crate) fn get_temporary(&self) -> Result<Vec<u8>, Failure> {
        Err(UserError::NoSuchKey(self.call.parameter("accessKey")).into())
    }

    pub(crate) fn list_of_user(&self) -> Result<Vec<u8>, Failure> {
        let name = self.call.parameter("user");
        let accounts = match name.is_empty() || name == self.call.access_key {
            true => Vec::new(),
            false => further_keys(&self.users.get(&name)?),
        };
        Ok(json!({ "accounts": accounts }).to_string().into_bytes())
    }

    pub(crate) fn list(&self) -> Result<Vec<u8>, Failure> {
        let list_type = self.call.parameter("listType");
        let names: Vec<String> = self.call.parameters("users").collect();
        let all = self.call.parameter("all") == "true";
        let mut found = Map::new();
        let mut add = |name: &str, keys: Vec<Value>| match &*list_type {
            "users-only" => _ = found.insert(name.to_owned(), json!({})),
            "svcacc-only" if keys.is_empty() => {}
            "svcacc-only" | "all" | "" => _ = found.insert(name.to_owned(), json!({ "serviceAccounts": keys })),
            // There are no temporary keys.
            _ => {}
        };
        if all || names.is_empty() {
            add(&self.call.access_key, Vec::new());
        }
        for user in self.users.all()?.iter().filter(|user| all || names.contains(&user.name)) {
            add(&user.name, further_keys(user));
        }
        Ok(Value::Object(found).to_string().into_bytes())
    }

    /// All that a user may do, as one policy.
    fn document(&self, user: &UserSummary) -> Result<Value, Failure> {
        let grants: Result<Vec<Grant>, String> = user.grants.iter().map(|grant| Grant::parse(grant)).collect();
        let grants = grants.map_err(Failure::internal)?;
        let mut documents: Vec<Value> = user.policy.clone().into_iter().collect();
        let parse = |text: &str| serde_json::from_str(text).map_err(|e| Failure::internal(e.to_string()));
        documents.push(parse(&Grant::document(&grants))?);
        for name in &user.attached {
            documents.push(parse(&self.users.policies().get(name)?.policy)?);
        }
        let statements = documents.iter().flat_map(|document| match &document["Statement"] {
            Value::Array(statements) => statements.clone(),
            one => vec![one.clone()],
        });
        Ok(json!({ "Version": "2012-10-17", "Statement": statements.collect::<Vec<Value>>() }))
    }

    /// When a key stops to work, in milliseconds since 1970; `Some(None)`: never, for which MinIO's
    /// clients send the first moments of two calendars.
    fn expiration(&self, text: Option<&str>) -> Result<Option<Option<u64>>, Failure> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        let end = OffsetDateTime::parse(text, &Rfc3339)
            .map_err(|e| Failure::invalid(format!("the expiration {text:?} cannot be read: {e}")))?;
        if end == OffsetDateTime::UNIX_EPOCH || text == GO_ZERO {
            return Ok(Some(None));
        }
        match u64::try_from(end.unix_timestamp_nanos() / 1_000_000) {
            Ok(end_ms) if end_ms > self.env.wall_ms() => Ok(Some(Some(end_ms))),
            _ => Err(Failure::invalid("the expiration is in the past")),
        }
    }
}

/// A text that is not empty.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn no_key_policies() -> Failure {
    Failure::not_implemented(
        "A key may do what its user may, and has no policy of its own: make a user with the policy for it.",
    )
}

/// The policy of a request; `None`: there is none, or it is the empty one that some clients send.
fn policy_of(policy: Option<&RawValue>) -> Option<String> {
    let text = policy?.get();
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    let fields: Option<Map<String, Value>> = serde_json::from_str(text).ok();
    // The text itself is parsed, which refuses a field given twice.
    (!fields.is_some_and(|fields| fields.values().all(is_empty))).then(|| text.to_owned())
}

/// The keys of a user that do not have its name.
fn further_keys(user: &UserSummary) -> Vec<Value> {
    user.keys.iter().filter(|key| key.access_key != user.name).map(shown).collect()
}

/// `ServiceAccountInfo` of madmin-go. `mc` crashes without a time; that of a key which never
/// expires is the first moment of 1970.
fn shown(key: &KeySummary) -> Value {
    json!({
        "parentUser": key.user,
        "accountStatus": if key.state == KeyState::Active { "on" } else { "off" },
        "impliedPolicy": true,
        "accessKey": key.access_key,
        "expiration": timestamp(key.expires_ms.unwrap_or(0)),
    })
}

/// A time in milliseconds since 1970, as RFC 3339 writes it.
pub(crate) fn timestamp(ms: u64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    time.ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "9999-12-31T23:59:59Z".to_owned())
}
