//! A policy: the statements of a user or a bucket.

use crate::action::S3Action;
use crate::document::PolicyDocument;
use crate::principal::Principal;
use crate::request::AccessRequest;
use crate::statement::{Effect, PolicyStatement, PolicyUse};

/// The largest document of a policy, in bytes. Source: AWS's limit for the policy of a bucket.
pub const POLICY_BYTES_MAX: usize = 20 << 10;

/// Why a document is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

/// A policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    statements: Vec<PolicyStatement>,
}

impl Policy {
    /// Reads a document.
    ///
    /// # Errors
    /// The document is larger than [`POLICY_BYTES_MAX`], is not JSON, lacks an element, or has one
    /// that is unknown: nothing is ignored.
    pub fn parse(document: &[u8], used: PolicyUse<'_>) -> Result<Self, PolicyError> {
        if document.len() > POLICY_BYTES_MAX {
            return Err(PolicyError(format!("a policy has at most {POLICY_BYTES_MAX} bytes")));
        }
        let document: PolicyDocument = serde_json::from_slice(document).map_err(|e| PolicyError(e.to_string()))?;
        let variables = match document.version.as_deref() {
            Some("2012-10-17") => true,
            Some("2008-10-17") | None => false,
            Some(other) => return Err(PolicyError(format!("invalid version {other:?}: it is \"2012-10-17\""))),
        };
        let mut statements = Vec::with_capacity(document.statements.0.len());
        let mut sids: Vec<&str> = Vec::new();
        for (n, statement) in document.statements.0.iter().enumerate() {
            if let Some(sid) = statement.sid.as_deref().filter(|sid| !sid.is_empty()) {
                if sids.contains(&sid) {
                    return Err(PolicyError(format!("the Sid {sid:?} is there twice")));
                }
                sids.push(sid);
            }
            let parsed = PolicyStatement::parse(statement, used, variables);
            statements.push(parsed.map_err(|why| PolicyError(format!("statement {}: {why}", n + 1)))?);
        }
        if statements.is_empty() {
            return Err(PolicyError("missing required field Statement".into()));
        }
        Ok(Self { statements })
    }

    /// What it says of a request: `None` if no statement applies.
    pub fn effect_on(&self, request: &AccessRequest<'_>) -> Option<Effect> {
        let mut effect = None;
        for statement in &self.statements {
            // Another statement that allows it changes nothing.
            if (statement.effect == Effect::Deny || effect.is_none()) && statement.applies_to(request) {
                effect = Some(statement.effect);
                if statement.effect == Effect::Deny {
                    break;
                }
            }
        }
        effect
    }

    /// Whether it allows `principal` this action on some resource, under some condition.
    pub fn may_allow(&self, principal: Principal<'_>, action: S3Action) -> bool {
        self.statements.iter().any(|statement| statement.may_allow(principal, action))
    }

    /// The users that it names.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.statements.iter().flat_map(PolicyStatement::users)
    }

    /// Whether it allows something to everyone, wherever they are.
    pub fn is_public(&self) -> bool {
        self.statements.iter().any(PolicyStatement::is_public)
    }
}
