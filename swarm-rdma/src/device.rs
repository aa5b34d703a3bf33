//! Devices, ports, GIDs, and choosing among them.

use std::net::IpAddr;

use crate::error::Error;

/// Which device, port and GID to use. What is left open is chosen: the first active port, and
/// there the first RoCE v2 GID of an IPv4 address.
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

/// Whether a port is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// It is.
    Active,
    /// It is not; the number is what the device says.
    Other(u32),
}

/// A port of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it is in use.
    pub state: PortState,
    /// Whether the link is Ethernet (RoCE), and not InfiniBand.
    pub ethernet: bool,
    /// Bytes of a packet.
    pub mtu: u32,
    /// Its GIDs.
    pub gids: Vec<GidInfo>,
}

/// What a GID stands for.
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
    /// What it stands for.
    pub kind: GidKind,
    /// Its 16 bytes.
    pub raw: [u8; 16],
}

impl GidInfo {
    /// The IP address that a RoCE GID stands for.
    pub fn address(&self) -> Option<IpAddr> {
        let address = std::net::Ipv6Addr::from(self.raw);
        match (self.kind, address.to_ipv4_mapped()) {
            (GidKind::InfiniBand, _) => None,
            (_, Some(four)) => Some(four.into()),
            (_, None) => Some(address.into()),
        }
    }
}

/// The RDMA devices of this host.
///
/// # Errors
/// There are none.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    Err(Error::NoDevice { why: "not looked for".to_owned() })
}
