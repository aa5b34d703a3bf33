//! The nodes' files that an opening of a pool has mapped, by the [configuration] that it took up
//! last.
//!
//! A pool is opened once, and goes on while nodes are replaced: an opening then maps the new file
//! and lets go of the former one. A client does so when it begins an operation in another
//! generation (H7), so that no operation pays for it.
//!
//! **Invariant (H9):** a node's file here is that of the life which the configuration says, and it
//! voted in it when it was mapped. What is mapped of a former life stays mapped for as long as a
//! client's fabric has it, and is no node's any more.
//!
//! [configuration]: crate::files::configuration

use std::fs::File;
use std::sync::Arc;

use swarm_core::node::{MAX_NODES, NodeId, NodeSet};

use crate::error::Error;
use crate::events::{self, Standing};
use crate::files::configuration::{NodeState, decode_life, own_life};
use crate::files::control::{CONTROL, Control};
use crate::files::header::{EVENTS, FileRole};
use crate::files::mapping::{Access, Mapping};
use crate::files::node;
use crate::words::sync::{Ordering, fence};

/// How often an opening begins again because a node was replaced meanwhile.
const TRIES: usize = 100;

/// A node that an opening of a pool goes on without.
#[derive(Debug)]
#[non_exhaustive]
pub struct AbsentNode {
    /// Which one.
    pub node: NodeId,
    /// What is wrong with its file.
    pub why: Error,
}

/// How an opening maps files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) access: Access,
    /// Whether memory that is gone [ends no process](crate::sigbus).
    pub(crate) guarded: bool,
}

/// The nodes of an opening.
#[derive(Debug)]
pub(crate) struct Members {
    /// The control file's words for lives and states, as they were taken up.
    words: [u64; MAX_NODES],
    nodes: [Option<Arc<Member>>; MAX_NODES],
}

#[derive(Debug)]
struct Member {
    mapping: Arc<Mapping>,
    /// The opening of the file that says that this pool is open (S17): none if it is opened to read
    /// only.
    _present: Option<File>,
}

impl Members {
    /// Maps all nodes' files that vote, and lists those that it goes on without. A node that does
    /// not vote is left out by whichever opening; any other one if `degraded`.
    pub(crate) fn open(
        control: &Control,
        how: How,
        degraded: bool,
    ) -> Result<(Self, Vec<AbsentNode>), Error> {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let words = control.life_words();
            let opened = Self::open_as(control, how, degraded, words);
            // H9: a file that was in its place may be of a former life by now, and an error a
            // matter of the moment.
            if control.life_words() == words || tries == 0 {
                return opened;
            }
        }
    }

    fn open_as(
        control: &Control,
        how: How,
        degraded: bool,
        words: [u64; MAX_NODES],
    ) -> Result<(Self, Vec<AbsentNode>), Error> {
        let mut nodes = [const { None }; MAX_NODES];
        let mut absent = Vec::new();
        for node in NodeSet::all(control.header().geometry.nodes) {
            let member = match decode_life(words[node.index()]) {
                (life, NodeState::Votes) => Member::open(control, node, life, how),
                (_, NodeState::Filling) => {
                    Err(Error::NotVoting { pool: control.dir().to_path_buf(), node })
                }
            };
            match member {
                Ok(member) => nodes[node.index()] = Some(Arc::new(member)),
                Err(why) if is_the_files(&why) => absent.push(AbsentNode { node, why }),
                Err(why) => return Err(why),
            }
        }
        check_majority(control, &mut absent)?;
        let is_amiss = |absent: &AbsentNode| !matches!(absent.why, Error::NotVoting { .. });
        if !degraded && let Some(at) = absent.iter().position(is_amiss) {
            return Err(absent.swap_remove(at).why);
        }
        Ok((Self { words, nodes }, absent))
    }

    /// Returns the nodes by the configuration that stands now: `None` if these are those. A node's
    /// file that cannot be mapped is one of a node that is down.
    pub(crate) fn taken_up(&self, control: &Control, how: How) -> Option<Self> {
        let words = control.life_words();
        // S11: zeros in the place of a lost control file say nothing of lives.
        fence(Ordering::SeqCst);
        if words == self.words || control.mapping().is_lost() {
            return None;
        }
        let nodes = std::array::from_fn(|at| {
            if words[at] == self.words[at] {
                return self.nodes[at].clone();
            }
            let (life, state) = decode_life(words[at]);
            // H7: what is filling is down.
            if state != NodeState::Votes {
                return None;
            }
            let member = Member::open(control, NodeId(at as u8), life, how).ok()?;
            // S17: this opening is present at the new file before the control file is seen to be
            // in its place. If another one is made anew, that is before, and seen, or waits.
            control.fate().is_none().then(|| Arc::new(member))
        });
        Some(Self { words, nodes })
    }

    /// Returns the control file's words that it goes by.
    pub(crate) fn words(&self) -> &[u64; MAX_NODES] {
        &self.words
    }

    /// Returns a node's memory, if there is such a node, it votes, and its file was there.
    pub(crate) fn mapping(&self, node: usize) -> Option<&Arc<Mapping>> {
        Some(&self.nodes.get(node)?.as_ref()?.mapping)
    }

    /// Returns all memory that is there.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = (NodeId, &Arc<Mapping>)> {
        let all = (0..MAX_NODES as u8).map(NodeId);
        all.filter_map(|node| Some((node, self.mapping(node.index())?)))
    }

    /// Returns whether the configuration has for a node what it had when this was taken up.
    pub(crate) fn is_as_configured(&self, control: &Control, node: NodeId) -> bool {
        control.life_word(node) == self.words[node.index()]
    }

    /// Returns how a node's file here relates to the control file, if its memory is there and the
    /// node was not replaced since. Loads only.
    pub(crate) fn standing(&self, control: &Control, node: NodeId) -> Option<Standing> {
        let mapping = self.mapping(node.index())?;
        let standing = events::standing(control.events(node), &mapping.words()[EVENTS]);
        self.checked_standing(control, node, standing)
    }

    /// Returns how a node's file was found to relate to the control file, if that means anything.
    ///
    /// H9: a file of a former life is no older copy; and a client that finds the count of the next life
    /// finds that life, which was stored before. S11: zeros in place of lost memory are no count.
    pub(crate) fn checked_standing(
        &self,
        control: &Control,
        node: NodeId,
        found: Standing,
    ) -> Option<Standing> {
        let is_lost = || {
            let mapping = self.mapping(node.index());
            mapping.is_none_or(|mapping| mapping.is_lost()) || control.mapping().is_lost()
        };
        (self.is_as_configured(control, node) && !is_lost()).then_some(found)
    }
}

impl Member {
    /// Maps the file of a node that votes in this life.
    fn open(control: &Control, node: NodeId, life: u32, how: How) -> Result<Self, Error> {
        let path = node::path(control.dir(), node);
        let Some(file) = node::open(&path, how.access)? else {
            return Err(Error::Missing { file: path, node });
        };
        let is_present = how.access == Access::Write;
        if is_present && !node::enter(&file, &path)? {
            return Err(Error::BeingRepaired { pool: control.dir().to_path_buf() });
        }
        let role = control.header().of(FileRole::Node(node));
        let mapping = node::map(&file, &path, &role, how.access, how.guarded)?;
        let standing = events::standing(control.events(node), &mapping.words()[EVENTS]);
        let (found, state) = own_life(&mapping);
        mapping.check(&file, &path)?;
        control.check()?;
        // H3: whatever its event count is.
        if found < life {
            return Err(Error::FormerLife { file: path, node, found, current: life });
        }
        if state != NodeState::Votes {
            return Err(Error::Unfilled { file: path, node });
        }
        is_current(control, node, standing)?;
        // H9: it was replaced since the configuration was read, or is about to vote.
        if found > life {
            return Err(Error::NotVoting { pool: control.dir().to_path_buf(), node });
        }
        Ok(Self { mapping, _present: is_present.then_some(file) })
    }
}

/// Returns an error with what is wrong with each absent node if these are a majority.
fn check_majority(control: &Control, absent: &mut Vec<AbsentNode>) -> Result<(), Error> {
    let (pool, nodes) = (control.dir().to_path_buf(), control.header().geometry.nodes);
    if 2 * absent.len() <= nodes {
        return Ok(());
    }
    let newer = absent.iter().filter(|absent| matches!(absent.why, Error::Newer { .. })).count();
    let whys = absent.drain(..).map(|absent| absent.why).collect();
    // One older control file is likelier than that many newer node files.
    if 2 * newer > nodes {
        return Err(Error::OlderControl { file: pool.join(CONTROL), nodes, whys });
    }
    Err(Error::MajorityGone { pool, nodes, whys })
}

/// Returns an error if a node's file is not the current one.
pub(crate) fn is_current(control: &Control, node: NodeId, standing: Standing) -> Result<(), Error> {
    let file = node::path(control.dir(), node);
    match standing {
        Standing::Current => Ok(()),
        Standing::Older { found, known } => Err(Error::Older { file, node, found, known }),
        Standing::Newer { found, known } => Err(Error::Newer { file, node, found, known }),
    }
}

/// S9: returns whether the fault lies in the node's file. Any other error is this process's or
/// program's: it lacks rights or descriptors, or does not know the pool's layout. Other processes
/// would go on with a node that this one leaves out for good.
pub(crate) fn is_the_files(why: &Error) -> bool {
    matches!(
        why,
        Error::Missing { .. }
            | Error::Length { .. }
            | Error::MemoryLost { .. }
            | Error::Foreign { .. }
            | Error::Damaged { .. }
            | Error::OtherPool { .. }
            | Error::WrongNode { .. }
            | Error::Older { .. }
            | Error::Newer { .. }
            | Error::FormerLife { .. }
            | Error::Unfilled { .. }
            | Error::NotVoting { .. }
            | Error::Unsuited { .. }
    )
}
