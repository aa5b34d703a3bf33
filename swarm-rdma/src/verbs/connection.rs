//! Queue pairs and their connections.

use std::io;
use std::iter::successors;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::Arc;

use rdma_sys::{
    ibv_modify_qp, ibv_post_send, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, rdma_accept, rdma_conn_param,
    rdma_connect, rdma_create_qp, rdma_destroy_qp, rdma_disconnect,
};

use swarm_core::fabric::MAX_VERBS;

use super::checked;
use super::domain::{Domain, Region};
use super::manager::{Id, IdKey};
use super::queue::{CompletionQueue, LAST};
use super::slots::{Slot, Slots};

/// The most work requests that one call posts: a chain's and those of a deferred chain.
pub(crate) const MAX_TOGETHER: usize = 2 * MAX_VERBS;

/// Limits of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// In-flight work requests.
    pub(crate) queue: u32,
    /// Bytes that may be posted inline.
    pub(crate) inline: u32,
    /// In-flight READs and atomics.
    pub(crate) asked: u8,
    /// READs and atomics of the other end that it answers at a time.
    pub(crate) answered: u8,
    /// Retransmissions of a packet.
    pub(crate) retries: u8,
}

/// One work request of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work<'a> {
    /// READs `bytes` bytes at `remote` into the slot, at its byte `at`.
    Read { remote: u64, at: usize, bytes: usize },
    /// WRITEs `bytes` bytes of the slot, from its byte `at`, to `remote`.
    Write { remote: u64, at: usize, bytes: usize },
    /// WRITEs `head`, then `tail`, its last word padded with zero bytes, to `remote`; inline.
    Inline { remote: u64, head: &'a [u64], tail: &'a [u8] },
    /// Compares-and-swaps the word at `remote`; its old value goes into the slot, at its byte `at`.
    Cas { remote: u64, at: usize, expect: u64, new: u64 },
}

/// A queue pair and its connection.
pub(crate) struct Connection {
    // Dropped in this order: the identifier, then what its queue pair depends on.
    id: Id,
    limits: Limits,
    _queue: Arc<CompletionQueue>,
    _region: Arc<Region>,
    _domain: Arc<Domain>,
}

/// The pieces of local memory of a work request.
type Pieces = [ibv_sge; 3];

/// Pads a value's last word.
static ZEROS: [u8; 8] = [0; 8];

impl Connection {
    /// Makes a queue pair for `id`, whose work completes at `queue`. `region` is this process's
    /// memory that work requests of either end access.
    ///
    /// # Errors
    /// The device refuses the queue pair; the identifier is returned with the error.
    pub(crate) fn new(
        id: Id,
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        region: &Arc<Region>,
        limits: Limits,
    ) -> Result<Self, (Id, io::Error)> {
        if id.device() != Some(domain.device()) {
            let error = io::Error::other("the address belongs to another RDMA device");
            return Err((id, error));
        }
        // Devices do not report their inline limit, and refuse a queue pair with a larger one.
        let halves = successors(Some(limits.inline), |&bytes| (bytes > 0).then_some(bytes / 2));
        let mut refused = None;
        for inline in halves {
            match create(&id, domain, queue, Limits { inline, ..limits }) {
                Ok(inline) => {
                    return Ok(Self {
                        id,
                        limits: Limits { inline, ..limits },
                        _queue: Arc::clone(queue),
                        _region: Arc::clone(region),
                        _domain: Arc::clone(domain),
                    });
                }
                Err(error) => refused = Some(error),
            }
        }
        Err((id, refused.unwrap_or_else(io::Error::last_os_error)))
    }

    /// Returns how many READs and atomics the device may have in flight.
    #[cfg(test)]
    pub(crate) fn asks(&self) -> u8 {
        self.query(ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC).max_rd_atomic
    }

    /// Returns the device's timeout for acknowledgments and its retries.
    #[cfg(test)]
    pub(crate) fn retransmission(&self) -> (u8, u8) {
        let mask = ibv_qp_attr_mask::IBV_QP_TIMEOUT | ibv_qp_attr_mask::IBV_QP_RETRY_CNT;
        let attributes = self.query(mask);
        (attributes.timeout, attributes.retry_cnt)
    }

    #[cfg(test)]
    fn query(&self, what: ibv_qp_attr_mask) -> ibv_qp_attr {
        let mask = what.0 as libc::c_int;
        // SAFETY: the structures are plain numbers and pointers, for which zeroes are valid.
        let (mut attributes, mut initial): (ibv_qp_attr, ibv_qp_init_attr) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        // SAFETY: the queue pair exists until this is dropped, and there is room for the answers.
        let returned = unsafe {
            let queue_pair = (*self.id.raw()).qp;
            rdma_sys::ibv_query_qp(queue_pair, &raw mut attributes, mask, &raw mut initial)
        };
        checked(returned).expect("the device answers");
        attributes
    }

    pub(crate) fn key(&self) -> IdKey {
        self.id.key()
    }

    /// Returns the limits of the queue pair.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    fn parameters(&self, private: &[u8]) -> rdma_conn_param {
        // SAFETY: the structure is plain numbers and a pointer, for which zeroes are valid.
        let mut parameters: rdma_conn_param = unsafe { mem::zeroed() };
        parameters.private_data = private.as_ptr().cast();
        parameters.private_data_len = u8::try_from(private.len()).unwrap_or(u8::MAX);
        parameters.responder_resources = self.limits.answered;
        parameters.initiator_depth = self.limits.asked;
        parameters.retry_count = self.limits.retries;
        parameters.rnr_retry_count = 7;
        parameters
    }

    /// Asks the other end for a connection.
    pub(crate) fn connect(&self, private: &[u8]) -> io::Result<()> {
        let mut parameters = self.parameters(private);
        // SAFETY: the parameters and their private data are copied by the call.
        checked(unsafe { rdma_connect(self.id.raw(), &raw mut parameters) })
    }

    /// Accepts the other end's request.
    pub(crate) fn accept(&self, private: &[u8]) -> io::Result<()> {
        let mut parameters = self.parameters(private);
        // SAFETY: the parameters and their private data are copied by the call.
        checked(unsafe { rdma_accept(self.id.raw(), &raw mut parameters) })
    }

    /// Ends the connection: all in-flight work requests complete as failed.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier exists until this is dropped. A failure means that the connection
        // has ended already, or was never established.
        unsafe { rdma_disconnect(self.id.raw()) };
        let _ = self.deafen();
    }

    /// Takes the access flags off: the other end's work requests fail from now on, without effect.
    pub(crate) fn forbid(&self) -> io::Result<()> {
        self.modify(ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS, |attributes| {
            attributes.qp_access_flags = 0;
        })
    }

    /// Ends this end of the connection without a message to the other.
    pub(crate) fn deafen(&self) -> io::Result<()> {
        self.modify(ibv_qp_attr_mask::IBV_QP_STATE, |attributes| {
            attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        })
    }

    fn modify(&self, what: ibv_qp_attr_mask, set: impl FnOnce(&mut ibv_qp_attr)) -> io::Result<()> {
        // SAFETY: the structure is plain numbers, for which zeroes are valid.
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        set(&mut attributes);
        // SAFETY: the queue pair exists until this is dropped.
        checked(unsafe {
            ibv_modify_qp((*self.id.raw()).qp, &raw mut attributes, what.0 as libc::c_int)
        })
    }

    /// Posts a chain with one call; only its last work request is signalled. The slot moves to the
    /// device, which returns it with that completion.
    ///
    /// Work requests with `true` carry the fence flag: they wait until all earlier READs and
    /// atomics are done.
    ///
    /// # Errors
    /// The device did not accept all of it. The part that it accepted runs; the slot leaks.
    #[inline]
    pub(crate) fn post(
        &self,
        slots: &Slots,
        slot: Slot,
        key: u32,
        chain: &[(Work<'_>, bool)],
    ) -> io::Result<()> {
        let count = chain.len();
        assert!(
            (1..=MAX_TOGETHER).contains(&count),
            "at most {MAX_TOGETHER} work requests go together"
        );
        let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; MAX_TOGETHER];
        let mut pieces = [const { MaybeUninit::<Pieces>::uninit() }; MAX_TOGETHER];
        let first = requests.as_mut_ptr().cast::<ibv_send_wr>();
        for (n, ((work, fenced), pieces)) in chain.iter().zip(&mut pieces).enumerate() {
            let last = n + 1 == count;
            // SAFETY: `n` is below `count`. The structure is plain numbers, pointers and unions of
            // such, for which zeroes are valid.
            let request = unsafe {
                first.add(n).write(mem::zeroed());
                &mut *first.add(n)
            };
            let pieces = pieces.write([ibv_sge { addr: 0, length: 0, lkey: 0 }; 3]);
            request.wr_id = u64::from(slot.index()) | if last { LAST } else { 0 };
            // SAFETY: only the requests before the last one have a successor in the array.
            request.next = if last { ptr::null_mut() } else { unsafe { first.add(n + 1) } };
            let mut flags = if last { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
            if *fenced {
                flags |= ibv_send_flags::IBV_SEND_FENCE.0;
            }
            flags |= fill(request, pieces, work, slots, &slot, key);
            request.send_flags = flags;
        }
        // The device owns the slot from here on: this call consumes its token, and polling the last
        // work request's completion remakes it.
        let mut bad = ptr::null_mut();
        // SAFETY: the requests are linked and initialized. They name memory of the slot, which the
        // device owns now and which lies in a region that the queue pair keeps alive, or memory
        // that this call copies inline.
        checked(unsafe { ibv_post_send((*self.id.raw()).qp, first, &raw mut bad) })
    }
}

/// Makes the queue pair. Returns how many bytes it takes inline.
fn create(id: &Id, domain: &Domain, queue: &CompletionQueue, limits: Limits) -> io::Result<u32> {
    // SAFETY: the structure is plain numbers and pointers, for which zeroes are valid.
    let mut wanted: ibv_qp_init_attr = unsafe { mem::zeroed() };
    wanted.send_cq = queue.raw();
    wanted.recv_cq = queue.raw();
    wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
    wanted.cap.max_send_wr = limits.queue;
    wanted.cap.max_recv_wr = 1;
    wanted.cap.max_send_sge = 3;
    wanted.cap.max_recv_sge = 1;
    wanted.cap.max_inline_data = limits.inline;
    // SAFETY: identifier, domain and queue are alive, and the connection that is made of them keeps
    // them so until the queue pair is destroyed.
    checked(unsafe { rdma_create_qp(id.raw(), domain.raw(), &raw mut wanted) })?;
    Ok(wanted.cap.max_inline_data)
}

/// Fills in the fields of one kind of work request. Returns the flags that it needs.
#[inline]
fn fill(
    request: &mut ibv_send_wr,
    pieces: &mut Pieces,
    work: &Work<'_>,
    slots: &Slots,
    slot: &Slot,
    key: u32,
) -> u32 {
    let piece = |at, bytes: usize| {
        let (addr, lkey) = slots.reach(slot, at, bytes);
        ibv_sge { addr, length: bytes as u32, lkey }
    };
    request.sg_list = pieces.as_mut_ptr();
    request.num_sge = 1;
    match *work {
        Work::Read { remote, at, bytes } => {
            request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            request.wr.rdma = rdma_sys::rdma_t { remote_addr: remote, rkey: key };
            pieces[0] = piece(at, bytes);
        }
        Work::Write { remote, at, bytes } => {
            request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            request.wr.rdma = rdma_sys::rdma_t { remote_addr: remote, rkey: key };
            pieces[0] = piece(at, bytes);
        }
        Work::Inline { remote, head, tail } => {
            request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            request.wr.rdma = rdma_sys::rdma_t { remote_addr: remote, rkey: key };
            let padding = tail.len().next_multiple_of(8) - tail.len();
            let sources = [
                (head.as_ptr() as u64, head.len() * 8),
                (tail.as_ptr() as u64, tail.len()),
                (ZEROS.as_ptr() as u64, padding),
            ];
            let mut used = 0;
            for (addr, bytes) in sources.into_iter().filter(|&(_, bytes)| bytes > 0) {
                pieces[used] = ibv_sge { addr, length: bytes as u32, lkey: 0 };
                used += 1;
            }
            request.num_sge = used as i32;
            return ibv_send_flags::IBV_SEND_INLINE.0;
        }
        Work::Cas { remote, at, expect, new } => {
            request.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            request.wr.atomic = rdma_sys::atomic_t {
                remote_addr: remote,
                compare_add: expect,
                swap: new,
                rkey: key,
            };
            pieces[0] = piece(at, 8);
        }
    }
    0
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the queue pair is this value's own, and nothing posts to it any more.
        unsafe { rdma_destroy_qp(self.id.raw()) };
    }
}
