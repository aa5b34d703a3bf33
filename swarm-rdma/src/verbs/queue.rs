//! Completion queues.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq,
    ibv_wc, ibv_wc_status, ibv_wc_status_str,
};

use super::device::Device;
use super::slots::{Slot, Slots};

/// The most completions that one call takes.
const BATCH: usize = 16;

/// Marks the last work request of a chain, in its id.
pub(super) const LAST: u64 = 1 << 63;

/// A completion queue with a channel for events.
pub(crate) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs's calls on a queue may be made from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// A completion.
pub(crate) struct Done {
    /// The index of the chain's slot.
    pub(crate) index: u32,
    /// The slot, returned by the device, if this was the chain's last work request.
    pub(crate) slot: Option<Slot>,
    /// The status of the work request: 0 if it succeeded.
    pub(crate) status: u32,
}

impl CompletionQueue {
    /// Makes a queue for `entries` completions.
    pub(crate) fn new(device: Device, entries: u32) -> io::Result<Arc<Self>> {
        // SAFETY: the device's context is open.
        let channel = NonNull::new(unsafe { ibv_create_comp_channel(device.raw()) })
            .ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the channel was just made.
        let fd = unsafe { channel.as_ref() }.fd;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: context and channel are open; the channel is closed after the queue.
        let raw =
            unsafe { ibv_create_cq(device.raw(), entries, ptr::null_mut(), channel.as_ptr(), 0) };
        let (Some(raw), Ok(())) = (NonNull::new(raw), super::manager::set_nonblocking(fd)) else {
            let error = io::Error::last_os_error();
            // SAFETY: nothing uses the channel.
            unsafe { ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        Ok(Arc::new(Self { raw, channel }))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Takes available completions and returns how many. `slots` are those whose chains use this
    /// queue.
    #[inline]
    pub(crate) fn poll(&self, slots: &Slots, mut take: impl FnMut(Done)) -> io::Result<usize> {
        let mut found: [MaybeUninit<ibv_wc>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        // SAFETY: there is room for `BATCH` completions.
        let count = unsafe { ibv_poll_cq(self.raw(), BATCH as i32, found.as_mut_ptr().cast()) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for entry in &found[..count] {
            // SAFETY: the call has filled in `count` completions.
            let (id, status) = unsafe { ((*entry.as_ptr()).wr_id, (*entry.as_ptr()).status) };
            let index = id as u32;
            // SAFETY: the device completes a queue pair's work requests in order, each once. The
            // marked one was the chain's last, so the device is done with the slot.
            let slot = (id & LAST != 0).then(|| unsafe { slots.back(index) });
            take(Done { index, slot, status });
        }
        Ok(count)
    }

    /// Requests an event at the next completion.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists until this is dropped.
        super::checked(unsafe { ibv_req_notify_cq(self.raw(), 0) })
    }

    /// Sleeps until the requested event arrives, at most for `time`.
    pub(crate) fn sleep(&self, time: Duration) -> io::Result<()> {
        super::manager::wait_readable(&[self.fd()], time)?;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open and does not block; there is room for the answers.
        let returned =
            unsafe { ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context) };
        if returned == 0 {
            // SAFETY: one event of this queue was taken.
            unsafe { ibv_ack_cq_events(self.raw(), 1) };
        }
        Ok(())
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the channel exists until this is dropped.
        unsafe { self.channel.as_ref() }.fd
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep their queue alive, so there are none; events were acknowledged.
        unsafe {
            ibv_destroy_cq(self.raw());
            ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// Describes a completion's status.
pub(crate) fn status_text(status: u32) -> String {
    const RETRIES: u32 = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
    if status == RETRIES {
        return "the node does not answer (transport retry counter exceeded)".to_owned();
    }
    // SAFETY: the call takes any number and returns a static C string.
    let text = unsafe { CStr::from_ptr(ibv_wc_status_str(status)) };
    format!("{} (status {status})", text.to_string_lossy())
}
