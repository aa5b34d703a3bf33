//! Client slots: who may act as a client of the pool.
//!
//! The invariant: a slot has at most one live holder. It is held by a lock on its bytes in the
//! control file, which the kernel lets go of when the holder dies, so death is a fact here and
//! never a suspicion. Process ids are shown to people, beside the pid namespace that they are of, and
//! trusted by nobody: see `holder`. A child that the holder's process forks has no part in it: see `fork`.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Instant;

use swarm_core::layout::MAX_CLIENTS;
use swarm_core::quorum::Session;
use swarm_core::words::{Incarnation, WriteNumber};

use crate::board::PoolBoard;
use crate::control::{self, Control};
use crate::error::Error;
use crate::fork::{Origin, OwnFile};
use crate::holder::Name;
use crate::lock;
use crate::pool::Pool;
use crate::sync::Ordering;

/// A client slot, held. Dropping it, or the death of the process, lets go of the slot.
///
/// It is the process's alone that opened it. A child that this forks has no share in the slot, even
/// while it lives on after its parent, and dropping its copy of this changes nothing; the child may
/// [attach](Pool::attach) as a client of its own. (`_Fork` and a bare `clone` run no fork handlers: such a
/// child keeps the slot from being free until it drops its copy, calls `exec`, or ends.)
#[derive(Debug)]
pub struct Attachment {
    pool: Pool,
    session: Session,
    /// Whose it is.
    origin: Origin,
    /// The opening that the lock belongs to.
    lock: OwnFile,
}

impl Attachment {
    /// Takes the lowest free slot.
    pub(crate) fn new(pool: &Pool) -> Result<Self, Error> {
        let control = pool.control();
        let refused = |error| Error::io(control.dir(), "register fork handlers for", error);
        let file = OwnFile::open(|| control.reopen(), refused)?;
        let limit = control.header().geometry.max_clients;
        let begun = Instant::now();
        loop {
            // Each refusal costs a call that goes over all locks of the file.
            for client in (0..limit).filter(|&client| !pool.held().has(client)) {
                let taken = lock::try_lock(&file, Control::slot_bytes(client..client + 1))
                    .map_err(|error| Error::io(control.dir(), "lock a client slot in", error))?;
                if taken {
                    return Self::take(pool, client, file);
                }
            }
            // Those who leave while one is looking may take a slot that comes later.
            if begun.elapsed() >= lock::PATIENCE {
                return Err(Error::Slots { pool: control.dir().to_path_buf(), limit });
            }
            sleep(lock::PAUSE);
        }
    }

    /// Makes a slot this client's, whose lock `file` holds.
    fn take(pool: &Pool, client: usize, file: OwnFile) -> Result<Self, Error> {
        let control = pool.control();
        // The pool may have been destroyed between the opening and the lock. From here on nobody
        // destroys it without noticing this client.
        control.check_alive()?;
        let session = Session { client, incarnation: next_incarnation(control)? };
        control.slot(client).store(Name::own().encode(), Ordering::Relaxed);
        // What a dead holder had under way is over.
        control.mapping().words()[control::board(client)].store(0, Ordering::Release);
        pool.held().add(client);
        Ok(Self { pool: pool.clone(), session, origin: Origin::here(), lock: file })
    }

    /// Who this client is.
    pub fn session(&self) -> Session {
        self.session
    }

    /// The pool's board, on which this client shows what it has under way. One for each client.
    pub fn board(&self) -> PoolBoard {
        PoolBoard::new(self)
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // The slot is the parent's where this is a child's copy.
        if self.origin.is_elsewhere() {
            return;
        }
        let client = self.session.client;
        self.pool.held().remove(client);
        self.pool.control().slot(client).store(0, Ordering::Relaxed);
        // The lock ends here, whoever has a copy of the descriptor. If this fails it ends with the last of
        // them.
        drop(lock::unlock(&self.lock, Control::slot_bytes(client..client + 1)));
    }
}

/// Which slots attachments of one open pool hold, so that whoever opens many does not ask the kernel for each of them
/// again.
///
/// A slot enters behind its lock and leaves before that ends: one that is in here is one that the kernel would refuse. A
/// child's copy says nothing, as its parent may have let go of them since.
#[derive(Debug)]
pub(crate) struct Held {
    origin: Origin,
    slots: [AtomicU64; MAX_CLIENTS.div_ceil(64)],
}

impl Held {
    pub(crate) fn new() -> Self {
        Self {
            origin: Origin::here(),
            slots: [const { AtomicU64::new(0) }; MAX_CLIENTS.div_ceil(64)],
        }
    }

    // Relaxed throughout: the lock decides. Who looks while a slot leaves may pass over it, as if he had looked before.
    fn has(&self, slot: usize) -> bool {
        let is_in = self.slots[slot / 64].load(Relaxed) & (1 << (slot % 64)) != 0;
        is_in && !self.origin.is_elsewhere()
    }

    fn add(&self, slot: usize) {
        self.slots[slot / 64].fetch_or(1 << (slot % 64), Relaxed);
    }

    fn remove(&self, slot: usize) {
        self.slots[slot / 64].fetch_and(!(1 << (slot % 64)), Relaxed);
    }
}

/// An incarnation that nobody had. Relaxed: the word alone decides.
pub(crate) fn next_incarnation(control: &Control) -> Result<Incarnation, Error> {
    let next = |last: u64| (last < WriteNumber::LAST_INCARNATION.0).then(|| last + 1);
    control
        .incarnation()
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .map(|last| Incarnation(last + 1))
        .map_err(|_| Error::Incarnations { pool: control.dir().to_path_buf() })
}

/// The slots that have a live holder. A slot that cannot be looked at counts as held.
pub(crate) fn live_clients(file: &File, slots: usize) -> Vec<usize> {
    let held = |slots| lock::is_locked(file, Control::slot_bytes(slots)).unwrap_or(true);
    if !held(0..slots) {
        return Vec::new();
    }
    (0..slots).filter(|&slot| held(slot..slot + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::CreateOptions;

    /// Each client asked for all slots in front of its own, one call of the kernel each, and each call went over
    /// the locks of all: opening a thousand took the cube of that.
    #[test]
    fn who_opens_many_asks_for_none_that_it_holds() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = CreateOptions { nodes: 1, capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        let slot = |attachment: &Attachment| attachment.session().client;
        let asked = || (0..options.max_clients).find(|&slot| !pool.held().has(slot));
        let mut attached: Vec<Attachment> = Vec::new();
        for client in 0..options.max_clients {
            assert_eq!(asked(), Some(client));
            attached.push(pool.attach().expect("a free slot"));
        }
        assert_eq!(asked(), None);
        assert!(matches!(pool.attach(), Err(Error::Slots { .. })));
        // One that is free again is the lowest, and another opening of the pool takes it as well.
        drop(attached.remove(5));
        let again = Pool::open(pool.path(), Default::default()).expect("open");
        assert_eq!(slot(&again.attach().expect("it was let go of")), 5);
        assert_eq!(slot(&pool.attach().expect("it was let go of")), 5);
    }
}
