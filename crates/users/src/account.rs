//! A user as requests meet it.

use steadfast_access::{Policy, Principal};

/// A user, with what it may do.
#[derive(Debug)]
pub struct Account {
    name: String,
    policies: Vec<Policy>,
}

impl Account {
    pub(crate) fn new(name: &str, policies: Vec<Policy>) -> Self {
        Self { name: name.to_owned(), policies }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its own policies allow and deny.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The principal that policies judge.
    pub fn principal(&self) -> Principal<'_> {
        Principal::User(&self.name)
    }
}
