//! Replacing a node of a pool in shared memory: where its configuration is decided, and where the
//! new memory comes from.

use std::cell::RefCell;

use swarm_core::error::Error as CoreError;
use swarm_core::fabric::Fabric;
use swarm_core::node::{Configuration, NodeId};
use swarm_core::register::Protocol;
use swarm_shm::{Pool, ReplaceOptions, Replacement, ShmFabric};

use super::Client;
use crate::error::Error;
use crate::ops::replace::{Membership, ReplaceError, ReplaceStep};
use crate::runtime::block_on::block_on;

/// Why a node was not replaced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReplaced {
    /// A file could not be written, or too few nodes are there.
    #[error(transparent)]
    Files(swarm_shm::Error),
    /// The configuration does not allow it, or it failed on the way.
    #[error(transparent)]
    Steps(ReplaceError),
}

/// How many clients a replacement takes at most.
const CLIENTS: usize = 4;

/// Replaces `node` by a new file, while others use the pool, as [`replace`] does with a replacement
/// of [its own](Pool::replace) and a client that `open` opens.
///
/// To move a key on that was left half-way takes memory. Clients that died may have left that client's slot
/// without a record to [claim](crate::Shortage::cannot_claim) any with, and no records are reclaimed while
/// a node is lost. Then this client keeps its slot, and a replacement begins anew with another one. So
/// `goes_on` may see the filling begin again.
///
/// # Errors
/// Those of [`Pool::replace`], of `open`, and of [`replace`].
pub fn replace_node<P: Protocol, F: Fabric>(
    pool: &Pool,
    node: NodeId,
    options: &ReplaceOptions,
    open: &mut dyn FnMut() -> Result<Client<P, F>, swarm_shm::Error>,
    goes_on: &mut dyn FnMut(ReplaceStep) -> bool,
) -> Result<bool, NotReplaced> {
    let mut unable = Vec::new();
    loop {
        let replacement = pool.replace(node, options).map_err(NotReplaced::Files)?;
        let client = open().map_err(NotReplaced::Files)?;
        match replace(&replacement, &client, goes_on) {
            Err(error) if error.is_of_the_client() && unable.len() + 1 < CLIENTS => {
                unable.push(client);
            }
            ended => return ended,
        }
    }
}

impl NotReplaced {
    /// Whether it failed for want of memory that another client may claim.
    fn is_of_the_client(&self) -> bool {
        let Self::Steps(ReplaceError::Failed(Error::Full(shortage))) = self else { return false };
        shortage.cannot_claim
    }
}

/// Fills the new file of a replacement, and lets it vote, while others use the pool. `client` is one
/// of [its pool](Replacement::pool)'s. Calls `goes_on` between steps, and gives up if it returns
/// `false`. Returns whether the node votes.
///
/// A replacement that was given up, or whose process died, leaves the node gone, if it came so far:
/// the pool goes on without it, and the next replacement begins anew.
///
/// # Errors
/// Those of [`replace_node`](crate::Client::replace_node). A file could not be written.
pub fn replace<P: Protocol, F: Fabric>(
    replacement: &Replacement,
    client: &Client<P, F>,
    goes_on: &mut dyn FnMut(ReplaceStep) -> bool,
) -> Result<bool, NotReplaced> {
    let members = Members { replacement, failed: RefCell::new(None) };
    let mut goes_on = |step: ReplaceStep| {
        if let ReplaceStep::Fills(filled) = step {
            replacement.note_filled(filled.done, filled.first_buckets);
        }
        goes_on(step)
    };
    let replaced = client.replace_node(&members, replacement.node(), &mut goes_on);
    block_on(replaced).map_err(|error| {
        // What failed says more than that there was no answer.
        members.failed.take().map_or(NotReplaced::Steps(error), NotReplaced::Files)
    })
}

/// The pool's configuration and the new file, as [`Membership`] has them.
struct Members<'r> {
    replacement: &'r Replacement,
    failed: RefCell<Option<swarm_shm::Error>>,
}

impl Membership for Members<'_> {
    type Joining = ShmFabric;

    fn configuration(&self) -> Configuration {
        self.replacement.pool().configuration()
    }

    async fn decide(&self, next: &Configuration) -> Result<bool, Error> {
        self.replacement.decide(next).map_err(|error| {
            self.failed.replace(Some(error));
            CoreError::NO_ANSWER.into()
        })
    }

    async fn join(&self, _: NodeId, life: u32) -> Result<ShmFabric, Error> {
        Ok(self.replacement.join(life))
    }
}
