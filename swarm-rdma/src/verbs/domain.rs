//! Protection domains and registered memory.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{
    ibv_access_flags, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_mr, ibv_pd, ibv_reg_mr,
};

use super::area::Area;
use super::checked;
use super::device::Device;

/// A protection domain: the objects of a device that may be used together.
pub(crate) struct Domain {
    raw: NonNull<ibv_pd>,
    device: Device,
}

// SAFETY: libibverbs's calls on a domain may be made from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Allocates a domain on `device`.
    pub(crate) fn new(device: Device) -> io::Result<Arc<Self>> {
        // SAFETY: the device's context is open.
        let raw = NonNull::new(unsafe { ibv_alloc_pd(device.raw()) })
            .ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { raw, device }))
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all objects on the domain keep it alive, so none is left on it.
        let returned = unsafe { ibv_dealloc_pd(self.raw()) };
        debug_assert_eq!(returned, 0, "something still stands on a protection domain");
    }
}

/// How registered memory is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Payload and replies of this process's work requests.
    Own,
    /// READ, WRITE and CAS by other processes.
    Served,
}

/// Registered memory.
pub(crate) struct Region {
    raw: NonNull<ibv_mr>,
    area: Area,
    _domain: Arc<Domain>,
}

// SAFETY: the region's memory is accessed through tokens and devices only, which ensure exclusion;
// its keys never change.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers all of `area`.
    pub(crate) fn register(domain: &Arc<Domain>, area: Area, how: Use) -> io::Result<Arc<Self>> {
        let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        if how == Use::Served {
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_READ;
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        }
        let (start, bytes) = (area.start().cast(), area.bytes());
        // SAFETY: the memory is mapped, and `area` keeps it mapped as long as it is registered.
        let raw = unsafe { ibv_reg_mr(domain.raw(), start, bytes, access.0 as libc::c_int) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { raw, area, _domain: Arc::clone(domain) }))
    }

    /// Returns the memory.
    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    /// Returns the address of its first byte, in the device's address space.
    pub(crate) fn base(&self) -> u64 {
        self.area.start() as u64
    }

    /// Returns the key for other processes.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the registration exists until this is dropped.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// Returns the key for this process's own work requests.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// Zeroes the memory. The caller ensures that no other process has a connection to it:
    /// concurrent writes would be lost.
    pub(crate) fn zero(&self) {
        // SAFETY: the memory is mapped and writable, and no reference into a served region exists:
        // this process accesses it here only.
        unsafe { self.area.start().write_bytes(0, self.area.bytes()) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: queue pairs that could use the region keep it alive, so there are none. The
        // memory is unmapped after this.
        let returned = checked(unsafe { ibv_dereg_mr(self.raw.as_ptr()) });
        debug_assert!(returned.is_ok(), "a memory region is still in use");
    }
}
