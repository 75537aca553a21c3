//! Who makes a request, and whom a statement names.

use sha2::{Digest, Sha256};

use crate::document::PrincipalField;

/// The account that all users belong to. ARNs of users name it.
pub const ACCOUNT: &str = "000000000000";

/// The canonical id of a user, or of the root identity: 64 hexadecimal digits, which access control
/// lists name it by. Two servers have the same id for the same name.
pub fn canonical_id(user: Option<&str>) -> String {
    let named = user.map_or_else(|| "steadfast root".to_owned(), |name| format!("steadfast user {name}"));
    hex::encode(Sha256::digest(named))
}

/// Who makes a request. The root identity is not among them: no policy binds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Principal<'a> {
    /// Unknown: the request has no signature.
    Anonymous,
    /// The user of this name.
    User(&'a str),
}

impl Principal<'_> {
    /// Its ARN; `None` for an anonymous one.
    pub fn arn(self) -> Option<String> {
        match self {
            Self::Anonymous => None,
            Self::User(name) => Some(format!("arn:aws:iam::{ACCOUNT}:user/{name}")),
        }
    }
}

/// One entry of the principals of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Everyone,
    /// The account: in a statement that denies, each of its users; in one that allows, the root
    /// identity, which needs no permission.
    Account,
    User(String),
}

/// The principals of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principals(Vec<Named>);

impl Principals {
    /// # Errors
    /// An entry that is no principal here, in words.
    pub(crate) fn parse(field: &PrincipalField) -> Result<Self, String> {
        let named: Result<Vec<Named>, String> = match field {
            PrincipalField::Everyone => Ok(vec![Named::Everyone]),
            PrincipalField::Aws(entries) => entries.iter().map(|entry| parse_entry(entry)).collect(),
        };
        let named = named?;
        if named.is_empty() { Err("Principal is empty".into()) } else { Ok(Self(named)) }
    }

    /// Whether `principal` is among them, in a statement that denies or one that allows.
    pub(crate) fn include(&self, principal: Principal<'_>, denies: bool) -> bool {
        self.0.iter().any(|named| match (named, principal) {
            (Named::Everyone, _) => true,
            (Named::Account, Principal::User(_)) => denies,
            (Named::User(name), Principal::User(user)) => name == user,
            (Named::Account | Named::User(_), Principal::Anonymous) => false,
        })
    }

    /// Whether they include everyone.
    pub(crate) fn include_everyone(&self) -> bool {
        self.0.contains(&Named::Everyone)
    }

    /// The users that they name.
    pub(crate) fn users(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|named| match named {
            Named::User(name) => Some(name.as_str()),
            Named::Everyone | Named::Account => None,
        })
    }
}

fn parse_entry(entry: &str) -> Result<Named, String> {
    let unknown = || format!("{entry:?} is no principal here: use \"*\" or arn:aws:iam::{ACCOUNT}:user/NAME");
    if entry == "*" {
        return Ok(Named::Everyone);
    }
    if entry == ACCOUNT {
        return Ok(Named::Account);
    }
    let (account, name) =
        entry.strip_prefix("arn:aws:iam::").and_then(|rest| rest.split_once(':')).ok_or_else(unknown)?;
    if !(account == ACCOUNT || account.is_empty()) {
        return Err(unknown());
    }
    match name.strip_prefix("user/") {
        Some(name) if !name.is_empty() && !name.contains(['*', '?', '$']) => Ok(Named::User(name.into())),
        _ if name == "root" => Ok(Named::Account),
        _ => Err(unknown()),
    }
}
