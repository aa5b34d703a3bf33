//! Why an operation on an object failed.

use crate::error::Error;
use crate::objects::kind::ObjectKind;

/// Why an operation on an object failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The store failed. A place that was being taken is given up by the next operation of this client on any
    /// object, if not at once, or with the client.
    #[error(transparent)]
    Store(#[from] Error),
    /// The key holds something else; `None` if that is no object. Nothing was changed.
    #[error(
        "the key is to be {wanted}, and holds {}; use another name, or delete the key",
        found.map_or_else(|| "a value that is no object".to_owned(), |kind| kind.to_string())
    )]
    OtherKind {
        /// What it was opened as.
        wanted: ObjectKind,
        /// What it is.
        found: Option<ObjectKind>,
    },
    /// The object was made with another number: of a semaphore's permits, or a barrier's parties. Nothing was changed.
    #[error("it was made with {found}, and is to be used with {wanted}")]
    OtherNumber {
        /// What it was opened with.
        wanted: u32,
        /// What it was made with.
        found: u32,
    },
    /// A barrier has as many members as there is room for.
    #[error("the barrier has {max} members, and no room for more", max = crate::objects::MAX_MEMBERS)]
    Crowded,
    /// This member was taken out of its barrier: it was evicted, or the key was written or deleted.
    #[error(
        "this member was taken out of the barrier, and the others go on without it; join again"
    )]
    Evicted,
    /// What this holder had was taken away before it was released: it was evicted, or the key was written or deleted.
    #[error(
        "what was held with token {token} was taken away meanwhile: others may have held it since; check what was done \
         under it"
    )]
    TakenAway {
        /// The holder's token.
        token: u64,
    },
}

impl From<swarm_core::error::Error> for ObjectError {
    fn from(error: swarm_core::error::Error) -> Self {
        Self::Store(error.into())
    }
}
