//! Access control lists: what a bucket or an object gives to whom, beside all policies.

use serde::{Deserialize, Serialize};

use crate::action::S3Action;
use crate::principal::Principal;

/// Grants of a list, at most. Source: S3.
pub const ACL_GRANTS_MAX: usize = 100;

/// Whom a grant of a list names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grantee {
    /// The root identity, which owns all buckets and objects, and may do everything without a
    /// grant.
    Owner,
    /// Every client, also without a signature.
    Everyone,
    /// Every user.
    Authenticated,
    /// The user of this name.
    User(String),
}

impl Grantee {
    /// Whether `principal` is among those that it names.
    fn includes(&self, principal: Principal<'_>) -> bool {
        match (self, principal) {
            (Self::Everyone, _) | (Self::Authenticated, Principal::User(_)) => true,
            (Self::User(name), Principal::User(user)) => name == user,
            (Self::Owner | Self::Authenticated | Self::User(_), _) => false,
        }
    }

    /// Whether it names a group, as S3's block of public access means it.
    fn is_public(&self) -> bool {
        matches!(self, Self::Everyone | Self::Authenticated)
    }
}

/// What a grant of a list gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AclPermission {
    /// All others.
    FullControl,
    /// To list the bucket, or to read the object.
    Read,
    /// To write and delete objects of the bucket.
    Write,
    /// To read the list.
    ReadAcp,
    /// To set the list.
    WriteAcp,
}

impl AclPermission {
    /// All permissions.
    pub const ALL: [Self; 5] = [Self::FullControl, Self::Read, Self::Write, Self::ReadAcp, Self::WriteAcp];

    /// Its name in S3.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FullControl => "FULL_CONTROL",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::ReadAcp => "READ_ACP",
            Self::WriteAcp => "WRITE_ACP",
        }
    }
}

/// The permission that lets a principal take an action, and on whose list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedPermission {
    /// One on the list of the bucket.
    OfBucket(AclPermission),
    /// One on the list of the object.
    OfObject(AclPermission),
}

impl ListedPermission {
    /// The permission for an action; `None`: no list gives the action. Source: S3, "Mapping of ACL
    /// permissions and access policy permissions".
    pub fn to(action: S3Action) -> Option<Self> {
        match action.name() {
            "ListBucket" | "ListBucketVersions" | "ListBucketMultipartUploads" => {
                Some(Self::OfBucket(AclPermission::Read))
            }
            "PutObject" | "DeleteObject" => Some(Self::OfBucket(AclPermission::Write)),
            "GetBucketAcl" => Some(Self::OfBucket(AclPermission::ReadAcp)),
            "PutBucketAcl" => Some(Self::OfBucket(AclPermission::WriteAcp)),
            "GetObject" | "GetObjectVersion" => Some(Self::OfObject(AclPermission::Read)),
            "GetObjectAcl" | "GetObjectVersionAcl" => Some(Self::OfObject(AclPermission::ReadAcp)),
            "PutObjectAcl" | "PutObjectVersionAcl" => Some(Self::OfObject(AclPermission::WriteAcp)),
            _ => None,
        }
    }
}

/// An access control list. Its text is the list of its grants as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccessList {
    grants: Vec<(Grantee, AclPermission)>,
}

impl Default for AccessList {
    /// The list that gives nothing to anyone but the owner.
    fn default() -> Self {
        Self { grants: vec![(Grantee::Owner, AclPermission::FullControl)] }
    }
}

impl AccessList {
    /// A list of these grants, [`ACL_GRANTS_MAX`] at most.
    pub fn new(grants: Vec<(Grantee, AclPermission)>) -> Self {
        assert!(grants.len() <= ACL_GRANTS_MAX, "the number of grants is checked where they are read");
        Self { grants }
    }

    /// Reads the text of a list.
    ///
    /// # Errors
    /// `text` is no list, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| format!("an access control list is damaged: {e}"))
    }

    /// Its text; `None` for the [default](Self::default).
    pub fn text(&self) -> Option<String> {
        let text = || serde_json::to_string(self).unwrap_or_else(|e| unreachable!("a list has a text: {e}"));
        (*self != Self::default()).then(text)
    }

    /// Its grants, in the order in which they were set.
    pub fn grants(&self) -> &[(Grantee, AclPermission)] {
        &self.grants
    }

    /// Whether it gives something to a group.
    pub fn is_public(&self) -> bool {
        self.grants.iter().any(|(grantee, _)| grantee.is_public())
    }

    /// The list without what it gives to groups.
    #[must_use]
    pub fn without_public(self) -> Self {
        Self { grants: self.grants.into_iter().filter(|(grantee, _)| !grantee.is_public()).collect() }
    }

    /// Whether it gives `permission` to `principal`.
    pub fn gives(&self, principal: Principal<'_>, permission: AclPermission) -> bool {
        let covers = |given: AclPermission| given == permission || given == AclPermission::FullControl;
        self.grants.iter().any(|(grantee, given)| covers(*given) && grantee.includes(principal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINCIPALS: [Principal<'_>; 3] = [Principal::Anonymous, Principal::User("ada"), Principal::User("bob")];

    #[test]
    fn a_grant_gives_its_permission_to_its_grantee() {
        let expected = [
            (Grantee::Owner, [false, false, false]),
            (Grantee::Everyone, [true, true, true]),
            (Grantee::Authenticated, [false, true, true]),
            (Grantee::User("ada".into()), [false, true, false]),
        ];
        for (grantee, receives) in expected {
            for given in AclPermission::ALL {
                let list = AccessList::new(vec![(grantee.clone(), given)]);
                for (principal, receives) in PRINCIPALS.into_iter().zip(receives) {
                    for permission in AclPermission::ALL {
                        let covers = given == permission || given == AclPermission::FullControl;
                        assert_eq!(list.gives(principal, permission), receives && covers, "{list:?} {principal:?}");
                    }
                }
                let public = matches!(grantee, Grantee::Everyone | Grantee::Authenticated);
                assert_eq!(list.is_public(), public);
                assert_eq!(list.clone().without_public().grants().is_empty(), public);
            }
        }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let grantees = [Grantee::Owner, Grantee::Everyone, Grantee::Authenticated, Grantee::User("\"a,b\"/é".into())];
        let grants = grantees.into_iter().flat_map(|grantee| AclPermission::ALL.map(|given| (grantee.clone(), given)));
        let list = AccessList::new(grants.collect());
        assert_eq!(AccessList::parse(&list.text().expect("not the default")), Ok(list));
        assert_eq!(AccessList::new(Vec::new()).text().as_deref(), Some("[]"));
        assert_eq!(AccessList::default().text(), None);
        assert_eq!(
            AccessList::new(vec![(Grantee::User("ada".into()), AclPermission::ReadAcp)]).text().as_deref(),
            Some(r#"[[{"user":"ada"},"read-acp"]]"#),
            "pools have such texts"
        );
        for damaged in ["", "{}", "[[]]", r#"[["owner"]]"#, r#"[["anyone","read"]]"#, r#"[["owner","readd"]]"#] {
            AccessList::parse(damaged).expect_err(damaged);
        }
    }

    #[test]
    fn a_permission_gives_its_actions() {
        let given =
            |wanted| S3Action::all().filter(move |action| ListedPermission::to(*action) == Some(wanted)).count();
        let (bucket, object) = (ListedPermission::OfBucket, ListedPermission::OfObject);
        let all = AclPermission::ALL.map(|permission| (given(bucket(permission)), given(object(permission))));
        assert_eq!(all, [(0, 0), (3, 2), (2, 0), (1, 2), (1, 2)]);
    }
}
