//! Devices, ports, GIDs, and the choice among them.

use std::net::IpAddr;

use crate::error::Error;
use crate::verbs::Device;

/// Which device, port and GID to use. The defaults are the first active port and its first RoCE v2
/// GID of an IPv4 address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceChoice {
    /// The device's name.
    pub device: Option<String>,
    /// The port's number, from 1.
    pub port: Option<u8>,
    /// The GID's index in the port's table.
    pub gid_index: Option<u8>,
}

/// An RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// Whether a port is active.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// The port is active.
    Active,
    /// The port is not active; this is the state that the device reports.
    Other(u32),
}

/// A port of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it is active.
    pub state: PortState,
    /// Whether the link is Ethernet (RoCE) and not InfiniBand.
    pub ethernet: bool,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// Its GIDs.
    pub gids: Vec<GidInfo>,
}

/// The transport of a GID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// An InfiniBand port.
    InfiniBand,
    /// RoCE v1: a link-layer protocol that does not cross routers.
    RoceV1,
    /// RoCE v2: over UDP.
    RoceV2,
}

/// A GID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidInfo {
    /// Its index in the port's table.
    pub index: u8,
    /// Its transport.
    pub kind: GidKind,
    /// Its 16 bytes.
    pub raw: [u8; 16],
}

impl GidInfo {
    /// Returns the IP address that a RoCE GID encodes.
    pub fn address(&self) -> Option<IpAddr> {
        let address = std::net::Ipv6Addr::from(self.raw);
        match (self.kind, address.to_ipv4_mapped()) {
            (GidKind::InfiniBand, _) => None,
            (_, Some(four)) => Some(four.into()),
            (_, None) => Some(address.into()),
        }
    }
}

/// The device and address that a [`DeviceChoice`] resolves to.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) device: Device,
    /// The source address of connections. If `None`, the routes decide.
    pub(crate) from: Option<IpAddr>,
}

/// Returns the RDMA devices of this host.
///
/// # Errors
/// The host has none, or they cannot be opened.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let describe = |device: &Device| {
        let name = device.name();
        let count = device.attributes().map_err(|error| failed(&name, error))?.ports;
        let ports = (1..=count).map(|number| port(*device, &name, number));
        Ok(DeviceInfo { ports: ports.collect::<Result<_, Error>>()?, name })
    };
    opened()?.iter().map(describe).collect()
}

impl DeviceChoice {
    /// Describes the choice on this host for a reader: the device, and the address that it connects
    /// from.
    ///
    /// # Errors
    /// The choice matches no usable device, port or GID.
    pub fn describe(&self) -> Result<String, Error> {
        let Chosen { device, from } = self.resolve()?;
        let name = device.name();
        Ok(from.map_or(name.clone(), |address| format!("{name}, from {address}")))
    }

    /// Returns the device and the address to use.
    pub(crate) fn resolve(&self) -> Result<Chosen, Error> {
        let all = opened()?;
        let mut why = None;
        for &device in all {
            let name = device.name();
            if self.device.as_ref().is_some_and(|wanted| *wanted != name) {
                continue;
            }
            let count = device.attributes().map_err(|error| failed(&name, error))?.ports;
            for number in (1..=count).filter(|number| self.port.is_none_or(|port| port == *number))
            {
                match self.on(device, &port(device, &name, number)?, &name) {
                    Ok(chosen) => return Ok(chosen),
                    Err(error) => why = why.or(Some(error)),
                }
            }
            if why.is_none() {
                let port = self.port.unwrap_or_default();
                let text = format!("has no port {port}; its ports are 1 to {count}");
                why = Some(Error::Port { device: name, why: text });
            }
        }
        let there = || all.iter().map(|device| device.name()).collect();
        Err(why.unwrap_or_else(|| Error::NoSuchDevice {
            name: self.device.clone().unwrap_or_default(),
            there: there(),
        }))
    }

    /// Returns `device` and its source address if this port is usable.
    fn on(&self, device: Device, port: &PortInfo, name: &str) -> Result<Chosen, Error> {
        let place = format!("{name} port {}", port.number);
        if let PortState::Other(state) = port.state {
            let why = format!("the port is not active (state {state}); bring its link up");
            return Err(Error::Port { device: place, why });
        }
        if !device.attributes().map_err(|error| failed(name, error))?.atomics {
            let why = "the device has no atomic operations, which SWARM needs".to_owned();
            return Err(Error::Port { device: place, why });
        }
        let usable = |gid: &&GidInfo| port.ethernet && gid.kind == GidKind::RoceV2;
        let Some(index) = self.gid_index else {
            if !port.ethernet {
                return Ok(Chosen { device, from: None });
            }
            let four = |gid: &&GidInfo| gid.address().is_some_and(|address| address.is_ipv4());
            let found = port.gids.iter().filter(usable).find(four);
            let found =
                found.or_else(|| port.gids.iter().filter(usable).find(|gid| !gid.is_local()));
            return match found {
                Some(gid) => Ok(Chosen { device, from: gid.address() }),
                None => Err(Error::Port {
                    device: place,
                    why: "has no RoCE v2 GID but link-local ones; give its network interface an \
                          IP address"
                        .to_owned(),
                }),
            };
        };
        let wrong = |why: &str| {
            let usable = port.gids.iter().filter(usable).filter(|gid| !gid.is_local());
            let usable: Vec<_> = usable.map(GidInfo::to_string).collect();
            let why = format!("{why}; usable are {}", usable.join(", "));
            Error::Gid { device: place.clone(), index, why }
        };
        match port.gids.iter().find(|gid| gid.index == index) {
            None => Err(wrong("is empty or does not exist")),
            Some(gid) if gid.kind == GidKind::InfiniBand => Ok(Chosen { device, from: None }),
            Some(gid) if gid.kind == GidKind::RoceV1 => Err(wrong("is RoCE v1, which is not used")),
            Some(gid) if gid.is_local() => {
                Err(wrong("is a link-local address, from which no other host is reached"))
            }
            Some(gid) => Ok(Chosen { device, from: gid.address() }),
        }
    }
}

impl GidInfo {
    /// Returns whether this is a link-local IPv6 address.
    fn is_local(&self) -> bool {
        self.raw[0] == 0xfe && self.raw[1] & 0xc0 == 0x80
    }
}

impl std::fmt::Display for GidInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.address() {
            Some(address) => write!(f, "{} ({address})", self.index),
            None => write!(f, "{}", self.index),
        }
    }
}

fn opened() -> Result<&'static [Device], Error> {
    let none = |why: String| Error::NoDevice { why };
    if Device::names().map_err(|error| none(error.to_string()))?.is_empty() {
        return Err(none("libibverbs lists none".to_owned()));
    }
    let all = Device::all().map_err(|source| Error::Manager { source })?;
    if all.is_empty() { Err(none("none could be opened".to_owned())) } else { Ok(all) }
}

fn port(device: Device, name: &str, number: u8) -> Result<PortInfo, Error> {
    let port = device.port(number).map_err(|error| failed(name, error))?;
    // A connection's own tables hold indices as bytes, too.
    let entries = u8::try_from(port.gids).unwrap_or(u8::MAX);
    let gids = (0..entries).filter_map(|index| {
        let raw = device.gid(number, index).ok().filter(|raw| *raw != [0; 16])?;
        let kind = if port.ethernet { roce_kind(name, number, index) } else { GidKind::InfiniBand };
        Some(GidInfo { index, kind, raw })
    });
    let state = if port.is_active() { PortState::Active } else { PortState::Other(port.state) };
    Ok(PortInfo { number, state, ethernet: port.ethernet, mtu: port.mtu, gids: gids.collect() })
}

/// Returns the RoCE version of a GID of an Ethernet port.
fn roce_kind(device: &str, port: u8, index: u8) -> GidKind {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    match std::fs::read_to_string(path) {
        Ok(kind) if kind.trim() == "RoCE v2" => GidKind::RoceV2,
        _ => GidKind::RoceV1,
    }
}

fn failed(device: &str, source: std::io::Error) -> Error {
    Error::Device { device: device.to_owned(), action: "ask what it can do", source }
}
