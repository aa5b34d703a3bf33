//! The connection manager: event channels, identifiers, events.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::{
    rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event, rdma_cm_event_type as event_type, rdma_cm_id,
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_event_channel, rdma_get_cm_event, rdma_get_src_port, rdma_listen, rdma_port_space,
    rdma_reject, rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};

use super::checked;
use super::device::Device;

/// An event channel.
#[derive(Debug)]
pub(crate) struct Channel(NonNull<rdma_event_channel>);

// SAFETY: librdmacm's calls on a channel may be made from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Makes a channel whose events are taken without blocking.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: the call has no preconditions.
        let raw = NonNull::new(unsafe { rdma_create_event_channel() })
            .ok_or_else(io::Error::last_os_error)?;
        let channel = Self(raw);
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Returns a descriptor that is readable when an event is pending.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel exists until this is dropped.
        unsafe { self.0.as_ref() }.fd
    }

    /// Takes the next event, if one is pending.
    pub(crate) fn next(self: &Arc<Self>) -> io::Result<Option<Event>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open, and there is room for the answer.
        if unsafe { rdma_get_cm_event(self.0.as_ptr(), &raw mut raw) } != 0 {
            let error = io::Error::last_os_error();
            let none =
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if none { Ok(None) } else { Err(error) };
        }
        let Some(raw) = NonNull::new(raw) else { return Ok(None) };
        // SAFETY: the event is valid until it is acknowledged below; all of it is copied.
        let event = unsafe { Event::copy(self, raw.as_ref()) };
        // SAFETY: it was taken from this library and is acknowledged once.
        unsafe { rdma_ack_cm_event(raw.as_ptr()) };
        Ok(Some(event))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: identifiers keep their channel alive, so there are none on it.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// Distinguishes identifiers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct IdKey(usize);

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventKind {
    AddressResolved,
    RouteResolved,
    Request,
    Established,
    Rejected,
    Disconnected,
    DeviceRemoved,
    /// An attempt failed; names the stage.
    Failed(&'static str),
    /// An event that needs no action.
    Other,
}

/// The private data of a message.
#[derive(Clone, Copy)]
pub(crate) struct Private {
    bytes: [u8; 255],
    used: u8,
}

impl Private {
    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.used)]
    }
}

/// An event, copied.
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    /// The identifier that it concerns; for a request, the listener.
    pub(crate) key: IdKey,
    /// The new identifier of a request.
    pub(crate) request: Option<Id>,
    /// An error number or a reason.
    pub(crate) status: i32,
    /// READs and atomics that a request's client will have in flight.
    pub(crate) asks: u8,
    pub(crate) private: Private,
}

impl Event {
    /// # Safety
    /// `raw` is an event of `channel` that is not acknowledged yet.
    unsafe fn copy(channel: &Arc<Channel>, raw: &rdma_cm_event) -> Self {
        let kind = match raw.event {
            event_type::RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddressResolved,
            event_type::RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
            event_type::RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::Request,
            event_type::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
            event_type::RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
            event_type::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
            event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoved,
            event_type::RDMA_CM_EVENT_ADDR_ERROR => EventKind::Failed("its address leads nowhere"),
            event_type::RDMA_CM_EVENT_ROUTE_ERROR => EventKind::Failed("no route leads there"),
            event_type::RDMA_CM_EVENT_CONNECT_ERROR => EventKind::Failed("connecting failed"),
            event_type::RDMA_CM_EVENT_UNREACHABLE => EventKind::Failed("it does not answer"),
            _ => EventKind::Other,
        };
        let mut private = Private { bytes: [0; 255], used: 0 };
        let mut asks = 0;
        let carries =
            matches!(kind, EventKind::Request | EventKind::Established | EventKind::Rejected);
        if carries {
            // SAFETY: these events, of connections, carry the connection's parameters.
            let parameters = unsafe { &raw.param.conn };
            asks = parameters.responder_resources;
            if !parameters.private_data.is_null() {
                private.used = parameters.private_data_len;
                // SAFETY: the private data is that long; a byte's length fits into 255 bytes.
                unsafe {
                    private.bytes.as_mut_ptr().copy_from_nonoverlapping(
                        parameters.private_data.cast(),
                        usize::from(parameters.private_data_len),
                    );
                }
            }
        }
        let request = (kind == EventKind::Request).then(|| NonNull::new(raw.id)).flatten();
        let request = request.map(|raw| Id { raw, _channel: Arc::clone(channel) });
        let key = IdKey(if request.is_some() { raw.listen_id } else { raw.id } as usize);
        Self { kind, key, request, status: raw.status, asks, private }
    }
}

/// An identifier: a listener, or one end of a connection.
#[derive(Debug)]
pub(crate) struct Id {
    raw: NonNull<rdma_cm_id>,
    /// The channel of its events, which must outlive it.
    _channel: Arc<Channel>,
}

// SAFETY: librdmacm's calls on an identifier may be made from any thread.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    /// Makes an identifier for reliable connections.
    pub(crate) fn new(channel: &Arc<Channel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open, and there is room for the answer.
        checked(unsafe {
            rdma_create_id(
                channel.0.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                rdma_port_space::RDMA_PS_TCP,
            )
        })?;
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, _channel: Arc::clone(channel) })
    }

    pub(crate) fn key(&self) -> IdKey {
        IdKey(self.raw.as_ptr() as usize)
    }

    pub(super) fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Returns the device that it is bound to, if any.
    pub(crate) fn device(&self) -> Option<Device> {
        // SAFETY: the identifier exists until this is dropped.
        Device::of(unsafe { (*self.raw()).verbs })
    }

    /// Binds to a local address.
    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut address = Address::new(address);
        // SAFETY: the address is a whole socket address of its family.
        checked(unsafe { rdma_bind_addr(self.raw(), address.pointer()) })
    }

    /// Returns the local port.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the identifier exists until this is dropped.
        u16::from_be(unsafe { rdma_get_src_port(self.raw()) })
    }

    /// Starts to listen.
    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: as above.
        checked(unsafe { rdma_listen(self.raw(), backlog) })
    }

    /// Starts to resolve an address, from a local one if given.
    pub(crate) fn resolve_address(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        time: Duration,
    ) -> io::Result<()> {
        let mut from = from.map(|ip| Address::new(SocketAddr::new(ip, 0)));
        let from = from.as_mut().map_or(ptr::null_mut(), Address::pointer);
        let mut to = Address::new(to);
        // SAFETY: the addresses are whole socket addresses of their families, or null.
        checked(unsafe { rdma_resolve_addr(self.raw(), from, to.pointer(), milliseconds(time)) })
    }

    /// Starts to resolve the route to the address.
    pub(crate) fn resolve_route(&self, time: Duration) -> io::Result<()> {
        // SAFETY: the identifier exists until this is dropped.
        checked(unsafe { rdma_resolve_route(self.raw(), milliseconds(time)) })
    }

    /// Sets how long the queue pair waits for an acknowledgment: 4.096 µs times 2 to this power.
    pub(crate) fn set_ack_timeout(&self, power: u8) -> io::Result<()> {
        const LEVEL_ID: i32 = 0;
        const ACK_TIMEOUT: i32 = 3;
        let mut power = power;
        // SAFETY: the option's value is one byte.
        checked(unsafe {
            rdma_set_option(self.raw(), LEVEL_ID, ACK_TIMEOUT, (&raw mut power).cast(), 1)
        })
    }

    /// Rejects a request.
    pub(crate) fn reject(self, private: &[u8]) -> io::Result<()> {
        let length = u8::try_from(private.len()).unwrap_or(u8::MAX);
        // SAFETY: the private data is that long, and is copied by the call.
        checked(unsafe { rdma_reject(self.raw(), private.as_ptr().cast(), length) })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the identifier is this value's own; a connection destroys its queue pair first.
        // All events that were taken are acknowledged, so the call does not wait.
        unsafe { rdma_destroy_id(self.raw()) };
    }
}

/// A socket address in the form that system calls take.
struct Address(MaybeUninit<libc::sockaddr_storage>);

impl Address {
    fn new(address: SocketAddr) -> Self {
        let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let place = storage.as_mut_ptr();
        // SAFETY: storage has room and alignment for an address of either family.
        unsafe {
            match address {
                SocketAddr::V4(four) => {
                    let place = place.cast::<libc::sockaddr_in>();
                    (*place).sin_family = libc::AF_INET as libc::sa_family_t;
                    (*place).sin_port = four.port().to_be();
                    (*place).sin_addr.s_addr = u32::from_ne_bytes(four.ip().octets());
                }
                SocketAddr::V6(six) => {
                    let place = place.cast::<libc::sockaddr_in6>();
                    (*place).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    (*place).sin6_port = six.port().to_be();
                    (*place).sin6_addr.s6_addr = six.ip().octets();
                    (*place).sin6_scope_id = six.scope_id();
                }
            }
        }
        Self(storage)
    }

    fn pointer<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}

/// Returns the local address that `id` is bound to.
pub(crate) fn local_address(id: &Id) -> Option<SocketAddr> {
    // SAFETY: the identifier exists; its route holds a socket address, zeroed before it is bound.
    unsafe {
        let raw = &*id.raw();
        let union = &raw.route.addr.src_addr_union;
        let port = id.port();
        match i32::from(union.src_addr.sa_family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(union.src_sin.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip.into(), port))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(union.src_sin6.sin6_addr.s6_addr);
                let scope = union.src_sin6.sin6_scope_id;
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

/// Makes `fd` non-blocking.
pub(super) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: these calls take any file descriptor.
    let returned = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sleeps until one of `fds` is readable, at most for `time`.
pub(crate) fn wait_readable(fds: &[RawFd], time: Duration) -> io::Result<()> {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 4];
    for (place, &fd) in polled.iter_mut().zip(fds) {
        place.fd = fd;
    }
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the array has `count` entries; negative descriptors are ignored.
    let returned = unsafe { libc::ppoll(polled.as_mut_ptr(), count, &raw const time, ptr::null()) };
    let error = io::Error::last_os_error();
    if returned < 0 && error.kind() != io::ErrorKind::Interrupted { Err(error) } else { Ok(()) }
}

const _: () = assert!(mem::size_of::<libc::sockaddr_storage>() >= 128);
