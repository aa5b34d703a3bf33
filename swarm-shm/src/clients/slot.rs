//! Client slots: which clients may act on the pool, and which have ended.
//!
//! **Invariant (S7):** a slot has at most one live owner. It is held by a lock on its bytes in the
//! control file, which the kernel releases when the owner dies, so death is a fact here and never a
//! suspicion. Process ids are displayed, with their pid namespace, and never trusted: see
//! `process`. A child that the owner's process forks has no part in the slot: see `fork`.
//!
//! A client's *session* is its slot and the incarnation that it attached with. That never comes back, and
//! stays what it is when the client goes on under another incarnation. The slot's page says which session
//! has it, or had it last (O1).

use std::thread::sleep;
use std::time::Instant;

use swarm_core::quorum::Session;
use swarm_core::words::Incarnation;

use crate::clients::epoch_domain::ShmEpochs;
use crate::clients::incarnation::next_incarnation;
use crate::error::Error;
use crate::files::control::{self, Control};
use crate::files::range_lock;
use crate::fork::{Origin, OwnFile};
use crate::pool::Pool;
use crate::processes::process::ProcessId;
use crate::words::sync::{Ordering, fence};

/// A client slot that this client holds. Dropping it, or the death of the process, frees the slot.
///
/// It belongs to the process that opened it. A child that this process forks has no share in the
/// slot, even while it lives on after its parent, and dropping its copy changes nothing; the child
/// may [attach](Pool::attach) as a client of its own. (`_Fork` and a bare `clone` run no fork
/// handlers: such a child keeps the slot taken until it drops its copy, calls `exec`, or ends.)
#[derive(Debug)]
pub struct ClientSlot {
    pool: Pool,
    session: Session,
    /// The process that owns it.
    origin: Origin,
    /// The opening that the lock belongs to.
    lock: OwnFile,
}

impl Pool {
    /// Takes the lowest free client slot.
    ///
    /// # Errors
    /// All client slots are held, or the pool was destroyed, or its destruction has begun.
    pub fn attach(&self) -> Result<ClientSlot, Error> {
        ClientSlot::new(self)
    }

    /// Returns whether the client that attached to a slot as `session` has ended: the kernel has released
    /// the slot's lock, or another client has the slot. Once true, this stays true. What cannot be found
    /// out counts as no end. One system call at most.
    pub fn is_gone(&self, slot: usize, session: Incarnation) -> bool {
        let control = self.control();
        if slot >= self.geometry().max_clients {
            return false;
        }
        // O1: acquire: pairs with the release in `take`. A client stores its session before it does
        // anything, and only the next owner of its slot stores another one.
        let last = control.session(slot).load(Ordering::Acquire);
        // S11: what is in the place of a lost control file says nothing.
        fence(Ordering::SeqCst);
        if control.mapping().is_lost() {
            return false;
        }
        let is_anothers = last != 0 && last != session.0;
        let bytes = Control::slot_bytes(slot..slot + 1);
        is_anothers || range_lock::is_locked(control.file(), bytes).is_ok_and(|locked| !locked)
    }
}

impl ClientSlot {
    /// Takes the lowest free slot.
    fn new(pool: &Pool) -> Result<Self, Error> {
        let control = pool.control();
        if control.is_read_only() {
            return Err(Error::ReadOnly { pool: control.dir().to_path_buf() });
        }
        let refused = |error| Error::io(control.dir(), "register fork handlers for", error);
        let file = OwnFile::open(|| control.reopen(), refused)?;
        let limit = control.header().geometry.max_clients;
        let begun = Instant::now();
        loop {
            // Each refusal costs a call that walks all locks of the file.
            for client in (0..limit).filter(|&client| !pool.held().has(client)) {
                let taken = range_lock::try_lock(&file, Control::slot_bytes(client..client + 1))
                    .map_err(|error| Error::io(control.dir(), "lock a client slot in", error))?;
                if taken {
                    return Self::take(pool, client, file);
                }
            }
            // Clients that leave during the scan may free slots that it has passed: it scans again.
            if begun.elapsed() >= range_lock::PATIENCE {
                return Err(Error::Slots { pool: control.dir().to_path_buf(), limit });
            }
            sleep(range_lock::PAUSE);
        }
    }

    /// Makes this client the owner of a slot, whose lock `file` holds.
    fn take(pool: &Pool, client: usize, file: OwnFile) -> Result<Self, Error> {
        let control = pool.control();
        // The pool may have been destroyed between the opening and the lock. From here on, a
        // destruction notices this client.
        control.check_alive()?;
        // H9: this opening may be older than what the nodes are by now.
        pool.take_up();
        // S10: before the first word that this client changes at a node: copies of the file that
        // were made until here are older then.
        pool.check_events()?;
        let session = Session { client, incarnation: next_incarnation(pool)? };
        control.slot(client).store(ProcessId::own().encode(), Ordering::Relaxed);
        // O1: while the lock is held, and before any other client learns of this session. Release: pairs
        // with the acquire in `is_gone`.
        control.session(client).store(session.incarnation.0, Ordering::Release);
        // Operations of a dead owner are over.
        control.mapping().words()[control::epoch_word(client)].store(0, Ordering::Release);
        pool.held().add(client);
        Ok(Self { pool: pool.clone(), session, origin: Origin::current(), lock: file })
    }

    /// Returns this client's session.
    pub fn session(&self) -> Session {
        self.session
    }

    /// Returns the pool's epoch table, in which this client shows that it is pinned. One for each
    /// client.
    pub fn domain(&self) -> ShmEpochs {
        ShmEpochs::new(self)
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        // If this is a child's copy, the slot is the parent's (S7).
        if self.origin.is_elsewhere() {
            return;
        }
        let client = self.session.client;
        let control = self.pool.control();
        // S10: copies that were made while this client worked lack what it did since. If a file is
        // no longer the current one, there is no count to raise. The same in a pool that is gone:
        // its devices may be another's by now.
        if control.check_alive().is_ok() {
            let _ = self.pool.raise_events();
        }
        self.pool.held().remove(client);
        control.slot(client).store(0, Ordering::Relaxed);
        // The lock ends here, whatever copies of the descriptor exist. If this fails, it ends with
        // the last of them.
        drop(range_lock::unlock(&self.lock, Control::slot_bytes(client..client + 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::create::CreateOptions;

    /// Each client used to ask for all slots below its own, one system call each, and each call
    /// walked the locks of all: opening a thousand took the cube of that.
    #[test]
    fn a_process_that_opens_many_asks_for_none_that_it_holds() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = CreateOptions { nodes: 1, capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        let slot = |attachment: &ClientSlot| attachment.session().client;
        let asked = || (0..options.max_clients).find(|&slot| !pool.held().has(slot));
        let mut attached: Vec<ClientSlot> = Vec::new();
        for client in 0..options.max_clients {
            assert_eq!(asked(), Some(client));
            attached.push(pool.attach().expect("a free slot"));
        }
        assert_eq!(asked(), None);
        assert!(matches!(pool.attach(), Err(Error::Slots { .. })));
        // A freed slot is the lowest, and another opening of the pool takes it as well.
        drop(attached.remove(5));
        let again = Pool::open(pool.path(), Default::default()).expect("open");
        assert_eq!(slot(&again.attach().expect("it was let go of")), 5);
        assert_eq!(slot(&pool.attach().expect("it was let go of")), 5);
    }

    /// The next client in the slot of one that had ended made that one seem alive.
    #[test]
    fn a_session_ends_with_its_client_whoever_has_its_slot_then() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = CreateOptions { nodes: 1, capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        let other = Pool::open(pool.path(), Default::default()).expect("open");
        let is_gone = |it: Session| {
            let all = [&pool, &other].map(|pool| pool.is_gone(it.client, it.incarnation));
            assert_eq!(all[0], all[1]);
            all[0]
        };
        let first = pool.attach().expect("a free slot");
        let session = first.session();
        assert!(!is_gone(session));
        drop(first);
        assert!(is_gone(session));
        let next = other.attach().expect("it is free");
        assert_eq!(next.session().client, session.client);
        assert!(is_gone(session) && !is_gone(next.session()));
        // Of another pool, or damaged.
        assert!(!pool.is_gone(options.max_clients, session.incarnation));
    }
}
