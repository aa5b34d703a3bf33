//! Probes RDMA devices, their ports, links and GIDs, as the kernel reports them.

use std::path::Path;

use super::finding::{Finding, line, names};

/// A packet of 4096 bytes, with its headers, fits into an Ethernet frame of this size.
const ROCE_FULL_MTU: u32 = 4200;
/// Packets of 1024 bytes fit into frames of this size; with smaller frames, RoCE uses smaller
/// packets.
const ETHERNET_MTU: u32 = 1500;

/// Probes all devices.
pub(super) fn probe(root: &Path) -> Vec<Finding> {
    let class = root.join("sys/class/infiniband");
    let devices = names(&class);
    if devices.is_empty() {
        return vec![Finding::bad(
            "devices",
            "there is no RDMA device",
            "load the card's driver (as in `modprobe mlx5_ib`); to try without a card: \
             `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev INTERFACE` (Soft-RoCE)",
        )];
    }
    let mut findings = vec![Finding::ok("devices", devices.join(", "))];
    let mut active = false;
    for device in &devices {
        let ports = class.join(device).join("ports");
        for port in names(&ports) {
            let (up, found) = look(root, device, &port, &ports.join(&port));
            active |= up;
            findings.extend(found);
        }
    }
    if !active {
        findings.push(Finding::bad(
            "ports",
            "no port of any device is active",
            "bring the link up: `ip link set INTERFACE up` (RoCE), or start a subnet manager, as in \
             opensm (InfiniBand)",
        ));
    }
    findings
}

/// Probes the command line's choice of device, port and GID, if there is a device.
#[cfg(feature = "rdma")]
pub(super) fn choice(root: &Path) -> Option<Finding> {
    if names(&root.join("sys/class/infiniband")).is_empty() {
        return None;
    }
    let probe = "device to use";
    Some(match swarm_worker::far::device().describe() {
        Ok(chosen) => Finding::ok(probe, chosen),
        Err(error) => Finding::bad(
            probe,
            error.to_string(),
            "name others by --device, --port and --gid-index, or none of them",
        ),
    })
}

/// Probes a port. Returns whether it is active, and the findings.
fn look(root: &Path, device: &str, port: &str, directory: &Path) -> (bool, Vec<Finding>) {
    let probe = format!("{device} port {port}");
    // As in `4: ACTIVE`.
    let state = line(&directory.join("state")).unwrap_or_else(|| "unknown".to_owned());
    let link = line(&directory.join("link_layer")).unwrap_or_else(|| "unknown link".to_owned());
    let rate = line(&directory.join("rate")).unwrap_or_else(|| "unknown rate".to_owned());
    let saw = format!("{state}, {link}, {rate}");
    if !state.ends_with("ACTIVE") {
        let advice =
            "no cable, an interface that is down, or no subnet manager; other ports may do";
        return (false, vec![Finding::warn(probe, saw, advice)]);
    }
    let gids = gids(directory);
    let mut findings = vec![Finding::ok(&probe, saw), table(&probe, &link, &gids)];
    let netdev = gids.iter().find_map(|gid| gid.netdev.clone());
    if let Some(netdev) = netdev.filter(|_| link == "Ethernet") {
        findings.extend(mtu(root, &probe, &netdev));
    }
    (true, findings)
}

/// An entry of a port's GID table.
struct Gid {
    index: String,
    kind: String,
    netdev: Option<String>,
    ipv4: bool,
}

fn gids(directory: &Path) -> Vec<Gid> {
    let attributes = directory.join("gid_attrs");
    let used = |index: &String| {
        let raw = line(&directory.join("gids").join(index))?;
        let empty = raw.bytes().all(|byte| byte == b'0' || byte == b':');
        let kind = line(&attributes.join("types").join(index));
        let netdev = line(&attributes.join("ndevs").join(index));
        let ipv4 = raw.starts_with("0000:0000:0000:0000:0000:ffff:");
        (!empty).then(|| Gid { index: index.clone(), kind: kind.unwrap_or_default(), netdev, ipv4 })
    };
    names(&directory.join("gids")).iter().filter_map(used).collect()
}

fn table(probe: &str, link: &str, gids: &[Gid]) -> Finding {
    let probe = format!("{probe} GIDs");
    if gids.is_empty() {
        return Finding::bad(
            probe,
            "the GID table is empty",
            "give the interface an address: `ip address add 10.0.0.1/24 dev INTERFACE`",
        );
    }
    let shown: Vec<String> =
        gids.iter().map(|gid| format!("{}: {}", gid.index, gid.kind)).collect();
    let saw = shown.join(", ");
    let is_v2 = |gid: &&Gid| gid.kind == "RoCE v2";
    if link != "Ethernet" {
        return Finding::ok(probe, saw);
    }
    match gids.iter().filter(is_v2).find(|gid| gid.ipv4) {
        Some(gid) => Finding::ok(
            probe,
            format!("{saw}; {} is taken unless an option names another", gid.index),
        ),
        None if gids.iter().any(|gid| is_v2(&gid)) => Finding::warn(
            probe,
            saw,
            "no RoCE v2 GID of an IPv4 address: memory nodes can be reached over IPv6 alone; give \
             the interface an IPv4 address if yours have such",
        ),
        None => Finding::bad(
            probe,
            saw,
            "no RoCE v2 GID; the connection manager would use RoCE v1, which no router passes: \
             `cma_roce_mode -d DEVICE -p PORT -m 2`, and give the interface an IP address",
        ),
    }
}

fn mtu(root: &Path, probe: &str, netdev: &str) -> Option<Finding> {
    let mtu: u32 = line(&root.join("sys/class/net").join(netdev).join("mtu"))?.parse().ok()?;
    let (probe, saw) = (format!("{probe} MTU"), format!("{netdev} has {mtu}"));
    let raise = format!("`ip link set {netdev} mtu {ROCE_FULL_MTU}`, on all hosts and switches");
    Some(match mtu {
        ROCE_FULL_MTU.. => Finding::ok(probe, saw),
        ETHERNET_MTU.. => Finding::warn(
            probe,
            format!("{saw}: packets carry 1024 bytes, enough for small values"),
            format!("for values of kilobytes: {raise}"),
        ),
        _ => Finding::warn(probe, format!("{saw}: packets are small"), raise),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::super::finding::Verdict;
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path: PathBuf = root.join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        fs::write(path, format!("{text}\n")).expect("there is room");
    }

    fn roce(root: &Path, state: &str, gids: &[(&str, &str)]) {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        write(root, &format!("{port}/state"), state);
        write(root, &format!("{port}/link_layer"), "Ethernet");
        write(root, &format!("{port}/rate"), "100 Gb/sec (4X EDR)");
        write(root, "sys/class/net/eth0/mtu", "1500");
        let empty = "0000:0000:0000:0000:0000:0000:0000:0000";
        for (index, (raw, kind)) in gids.iter().chain([&(empty, "RoCE v2")]).enumerate() {
            write(root, &format!("{port}/gids/{index}"), raw);
            write(root, &format!("{port}/gid_attrs/types/{index}"), kind);
            write(root, &format!("{port}/gid_attrs/ndevs/{index}"), "eth0");
        }
    }

    fn verdicts(root: &Path) -> Vec<(String, Verdict)> {
        probe(root).into_iter().map(|finding| (finding.probe, finding.verdict)).collect()
    }

    const LOCAL: &str = "fe80:0000:0000:0000:0250:56ff:fe00:0001";
    const FOUR: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";

    #[test]
    fn a_host_without_devices_is_unfit() {
        let root = tempfile::tempdir().expect("there is room");
        assert_eq!(verdicts(root.path()), [("devices".to_owned(), Verdict::Bad)]);
    }

    #[test]
    fn a_card_with_a_link_and_an_address_is_fit() {
        let root = tempfile::tempdir().expect("there is room");
        roce(root.path(), "4: ACTIVE", &[(LOCAL, "IB/RoCE v1"), (FOUR, "RoCE v2")]);
        let found = probe(root.path());
        assert!(found.iter().all(|finding| finding.verdict != Verdict::Bad), "{found:?}");
        let table = found.iter().find(|finding| finding.probe.ends_with("GIDs")).expect("a table");
        assert!(table.saw.contains("1 is taken unless an option names another"), "{table:?}");
        let mtu = found.iter().find(|finding| finding.probe.ends_with("MTU")).expect("an MTU");
        assert_eq!(mtu.verdict, Verdict::Warn, "{mtu:?}");
    }

    #[test]
    fn a_link_that_is_down_and_a_table_without_roce_v2_are_reported() {
        let root = tempfile::tempdir().expect("there is room");
        roce(root.path(), "1: DOWN", &[(LOCAL, "RoCE v2")]);
        assert!(verdicts(root.path()).contains(&("ports".to_owned(), Verdict::Bad)));
        let root = tempfile::tempdir().expect("there is room");
        roce(root.path(), "4: ACTIVE", &[(LOCAL, "IB/RoCE v1")]);
        let found = verdicts(root.path());
        assert!(found.contains(&("mlx5_0 port 1 GIDs".to_owned(), Verdict::Bad)), "{found:?}");
    }
}
