//! The weak read: one READ of a majority of a register's replicas.
//!
//! This is the *weak* read of the paper's appendix: only a minority may hold the stamp that it
//! returns. One roundtrip.

use super::in_n_out::post_read;
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::layout::has_key;
use crate::node::{NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::register::handle::{Check, Register};
use crate::register::replicas::{COMPLETIONS, Failed, Votes, complete};
use crate::words::Stamp;

/// The result of one READ of a majority.
pub struct WeakRead<R> {
    /// The largest stamp.
    pub(crate) max: Stamp,
    /// The nodes that hold it, verified or not.
    pub(crate) holders: NodeSet,
    /// The nodes that voted.
    pub(crate) voters: NodeSet,
    /// The nodes that lack the register.
    pub(crate) missing: NodeSet,
    /// The home node's READ, if it voted.
    pub(crate) home: Option<R>,
    /// The register belongs to another key.
    pub(crate) other_key: bool,
}

/// What the replies so far show.
struct Seen<R> {
    votes: Votes,
    home: Option<R>,
    same_key: bool,
}

impl<R: core::ops::Deref<Target = [u64]>> Seen<R> {
    #[inline(always)]
    fn new(check: Check<'_>) -> Self {
        // A header that is being written may show the identity before the key. A majority has it
        // complete, since the register's creation was committed. So if the key matches, one voter
        // shows it.
        Self { votes: Votes::new(), home: None, same_key: matches!(check, Check::Identity) }
    }

    #[inline(always)]
    fn step<'f, F: Fabric<Reply<'f> = R>, C: Clock>(
        &mut self,
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        node: NodeId,
        reply: Option<R>,
    ) -> Next<F::Completion<'f>> {
        let Some(reply) = reply else {
            return Next::Post(post_read(group, node, register, check));
        };
        let Some(max) = self.votes.read(register, group.slot(), node, &reply) else {
            return Next::Missing;
        };
        self.votes.count(node, max);
        if let Check::Key(key) = check {
            let header = register.shape().header_at(node == register.home());
            self.same_key |= reply.get(header..).is_some_and(|read| has_key(read, key));
        }
        if node == register.home() {
            self.home = Some(reply);
        }
        Next::Vote
    }

    #[inline(always)]
    fn conclude<F: Fabric, C: Clock>(
        self,
        group: &Group<F, C>,
        register: &mut Register,
        voters: NodeSet,
    ) -> Result<WeakRead<R>, Failed> {
        let Self { votes, home, same_key } = self;
        let max = votes.largest().map_err(Failed::from)?;
        let holders = votes.holders;
        if !group.format().is_deleted(max) {
            register.observe(max);
        }
        let missing = votes.missing;
        Ok(WeakRead { max, holders, voters, missing, home, other_key: !same_key })
    }
}

/// Does a weak read, and backfills the replicas that lack the register.
pub(crate) async fn read_once<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
) -> Result<WeakRead<F::Reply<'f>>, Error> {
    for _ in 0..COMPLETIONS {
        let mut seen = Seen::new(check);
        let preferred = group.preferred(register.home());
        let step = |node, reply| seen.step(group, register, check, node, reply);
        let looked = match group.collect_votes(preferred, group.majority(), step).await {
            Ok(voters) => seen.conclude(group, register, voters),
            Err(error) => Err(Failed { error, missing: seen.votes.missing }),
        };
        match looked {
            Ok(read_once) => {
                if !read_once.missing.is_empty() {
                    complete(group, register, read_once.voters, read_once.missing).await;
                }
                return Ok(read_once);
            }
            Err(failed) => failed.complete(group, register).await?,
        }
    }
    Err(Error::NoMajority { answered: 0, needed: group.majority() })
}

/// What a register that was found by its key's hash turns out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confirmed {
    /// Another key's.
    OtherKey,
    /// This key's.
    Key,
    /// This key's, and some node shows that it was deleted: perhaps too few for a complete delete.
    Deleted,
}

/// Checks that a register that was found by its key's hash belongs to this key, and learns what its
/// slots hold. One roundtrip.
///
/// # Errors
/// [`Error::Gone`] if a majority holds another register there; [`Error::NoMajority`].
pub async fn confirm<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    key: &[u8],
) -> Result<Confirmed, Error> {
    let read_once = read_once(group, register, Check::Key(key)).await?;
    Ok(match read_once.other_key {
        true => Confirmed::OtherKey,
        false if group.format().is_deleted(read_once.max) => Confirmed::Deleted,
        false => Confirmed::Key,
    })
}
