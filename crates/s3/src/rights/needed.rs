//! What an operation needs, in the terms of policies.

use steadfast_access::S3Action;

/// The action of this name; the compiler refuses a name that S3 does not have.
pub(crate) const fn action(name: &str) -> S3Action {
    match S3Action::named(name) {
        Some(action) => action,
        None => panic!("S3 has no such action"),
    }
}

/// What the action is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResourceKind {
    Service,
    Bucket,
    Object,
}

/// The actions that a caller must be allowed to use an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needed {
    pub(crate) on: ResourceKind,
    pub(crate) action: S3Action,
    /// A second action.
    also: Option<S3Action>,
    /// The actions in place of these for a request that names a version.
    versioned: Option<S3Action>,
    also_versioned: Option<S3Action>,
    /// The operation judges itself, by what is in its body. Before the body is read, the caller
    /// must only be allowed the action somewhere.
    pub(crate) late: bool,
    /// Only an identity of the account can have it: no policy of a bucket gives it to everyone.
    pub(crate) of_account: bool,
}

impl Needed {
    const fn new(on: ResourceKind, name: &str) -> Self {
        Self {
            on,
            action: action(name),
            also: None,
            versioned: None,
            also_versioned: None,
            late: false,
            of_account: false,
        }
    }

    /// An action on no bucket, or on one that does not exist yet.
    pub(crate) const fn service(name: &str) -> Self {
        Self::new(ResourceKind::Service, name).of_account()
    }

    /// An action on a bucket.
    pub(crate) const fn bucket(name: &str) -> Self {
        Self::new(ResourceKind::Bucket, name)
    }

    /// An action on an object.
    pub(crate) const fn object(name: &str) -> Self {
        Self::new(ResourceKind::Object, name)
    }

    /// A request that names a version needs this action instead.
    pub(crate) const fn or_version(mut self, name: &str) -> Self {
        self.versioned = Some(action(name));
        self
    }

    /// A second action is needed, and another in its place for a request that names a version.
    pub(crate) const fn and(mut self, name: &str, versioned: &str) -> Self {
        self.also = Some(action(name));
        self.also_versioned = Some(action(versioned));
        self
    }

    /// The operation judges itself; see [`Needed::late`].
    pub(crate) const fn late(mut self) -> Self {
        self.late = true;
        self
    }

    /// Only an identity of the account can have it.
    pub(crate) const fn of_account(mut self) -> Self {
        self.of_account = true;
        self
    }

    /// The actions that a request needs.
    pub(crate) fn actions(&self, names_version: bool) -> impl Iterator<Item = S3Action> {
        let (first, second) = match names_version {
            true => (self.versioned.unwrap_or(self.action), self.also_versioned.or(self.also)),
            false => (self.action, self.also),
        };
        std::iter::once(first).chain(second)
    }
}
