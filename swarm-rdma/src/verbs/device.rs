//! Devices, as librdmacm opens them.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rdma_sys::{
    ___ibv_query_port, __ibv_get_device_list, ibv_context, ibv_device_attr, ibv_free_device_list,
    ibv_get_device_name, ibv_gid, ibv_port_attr, ibv_query_device, ibv_query_gid, rdma_get_devices,
};

use super::checked;

/// An open device. librdmacm opens each device once and keeps it open until the process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device(NonNull<ibv_context>);

// SAFETY: a context may be used from any thread (libibverbs is thread-safe), and is never closed.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The capabilities of a device that this crate uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) max_region: u64,
    pub(crate) max_queue: u32,
    pub(crate) max_completions: u32,
    /// READs and atomics that each queue pair answers at a time.
    pub(crate) max_answered: u8,
    /// READs and atomics that each queue pair has in flight at a time.
    pub(crate) max_asked: u8,
    pub(crate) atomics: bool,
    pub(crate) ports: u8,
}

/// The attributes of a port.
pub(crate) struct Port {
    pub(crate) state: u32,
    pub(crate) ethernet: bool,
    pub(crate) mtu: u32,
    pub(crate) gids: i32,
}

const PORT_ACTIVE: u32 = 4;

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == PORT_ACTIVE
    }
}

impl Device {
    /// Returns the names of all devices. A host without any may return an error, too.
    pub(crate) fn names() -> io::Result<Vec<String>> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for the number of devices.
        let list = unsafe { __ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let names = (0..usize::try_from(count).unwrap_or(0)).map(|index| {
            // SAFETY: the list has `count` entries, each a device whose name is a C string.
            unsafe { CStr::from_ptr(ibv_get_device_name(*list.add(index))) }
                .to_string_lossy()
                .into_owned()
        });
        let names = names.collect();
        // SAFETY: the list is from libibverbs, and nothing of it is used any more.
        unsafe { ibv_free_device_list(list) };
        Ok(names)
    }

    /// Opens all devices.
    pub(crate) fn all() -> io::Result<&'static [Self]> {
        static ALL: OnceLock<Vec<Device>> = OnceLock::new();
        if let Some(all) = ALL.get() {
            return Ok(all);
        }
        let mut count = 0;
        // SAFETY: `count` is a valid place for the number of devices.
        let list = unsafe { rdma_get_devices(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let all = (0..usize::try_from(count).unwrap_or(0))
            // SAFETY: the list has `count` entries. It is never freed, so the contexts stay open.
            .filter_map(|index| NonNull::new(unsafe { *list.add(index) }).map(Self))
            .collect();
        Ok(ALL.get_or_init(|| all))
    }

    /// Returns the device of a context that librdmacm names.
    pub(super) fn of(context: *mut ibv_context) -> Option<Self> {
        NonNull::new(context).map(Self)
    }

    pub(super) fn raw(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// Returns its name.
    pub(crate) fn name(self) -> String {
        // SAFETY: the context is open, its device exists as long, and names are C strings.
        unsafe { CStr::from_ptr(ibv_get_device_name((*self.raw()).device)) }
            .to_string_lossy()
            .into_owned()
    }

    /// Returns its capabilities.
    pub(crate) fn attributes(self) -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and there is room for the answer.
        checked(unsafe { ibv_query_device(self.raw(), attributes.as_mut_ptr()) })?;
        // SAFETY: the call has filled it in; it is plain numbers, for which zeroes would do.
        let attributes = unsafe { attributes.assume_init() };
        let small = |number: i32| number.clamp(0, 128) as u8;
        Ok(Attributes {
            max_region: attributes.max_mr_size,
            max_queue: attributes.max_qp_wr.max(0) as u32,
            max_completions: attributes.max_cqe.max(0) as u32,
            max_answered: small(attributes.max_qp_rd_atom),
            max_asked: small(attributes.max_qp_init_rd_atom),
            atomics: attributes.atomic_cap != rdma_sys::ibv_atomic_cap::IBV_ATOMIC_NONE,
            ports: attributes.phys_port_cnt,
        })
    }

    /// Returns the attributes of port `number`.
    pub(crate) fn port(self, number: u8) -> io::Result<Port> {
        let mut port = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and there is room for the answer.
        checked(unsafe { ___ibv_query_port(self.raw(), number, port.as_mut_ptr()) })?;
        // SAFETY: the call has filled it in; it is plain numbers, for which zeroes would do.
        let port = unsafe { port.assume_init() };
        const ETHERNET: u8 = 2;
        Ok(Port {
            state: port.state,
            ethernet: port.link_layer == ETHERNET,
            mtu: 128_u32.checked_shl(port.active_mtu).unwrap_or(0),
            gids: port.gid_tbl_len,
        })
    }

    /// Returns GID `index` of port `number`.
    pub(crate) fn gid(self, number: u8, index: u8) -> io::Result<[u8; 16]> {
        let mut gid = MaybeUninit::<ibv_gid>::zeroed();
        // SAFETY: the context is open, and there is room for the answer.
        let returned =
            unsafe { ibv_query_gid(self.raw(), number, i32::from(index), gid.as_mut_ptr()) };
        checked(returned)?;
        // SAFETY: all of a GID's 16 bytes are initialized, as zeroes at least.
        Ok(unsafe { gid.assume_init().raw })
    }
}
