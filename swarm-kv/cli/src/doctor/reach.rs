//! Probes whether etcd and the memory nodes can be reached.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use super::finding::Finding;
use crate::doctor::args::DoctorArgs;

/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most of an answer that is read.
const MAX_ANSWER: u64 = 64 << 10;

/// Probes the peers that the command line names.
pub(super) fn probe(args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut nodes = args.node.clone();
    if let Some(members) = &args.etcd {
        findings.extend(members.split(',').map(|member| etcd(member.trim())));
        #[cfg(feature = "rdma")]
        match registered(members) {
            Ok((finding, found)) => {
                findings.push(finding);
                nodes.extend(found);
            }
            Err(finding) => findings.push(finding),
        }
    }
    match args.static_file.as_deref().map(listed) {
        Some(Ok(listed)) => nodes.extend(listed),
        Some(Err(finding)) => findings.push(finding),
        None => {}
    }
    let mut asked = HashSet::new();
    findings.extend(nodes.into_iter().filter(|&address| asked.insert(address)).map(node));
    findings
}

/// Returns the nodes that are registered in etcd.
#[cfg(feature = "rdma")]
fn registered(members: &str) -> Result<(Finding, Vec<SocketAddr>), Finding> {
    use swarm_kv::rdma::control::{Etcd, parse_members};

    let probe = "memory nodes in etcd";
    let bad = |why: String| Finding::bad(probe, why, "see above: etcd's members");
    let members = parse_members(members).map_err(bad)?;
    let nodes = Etcd::connect(&members).and_then(|etcd| etcd.nodes());
    let nodes = nodes.map_err(|error| bad(error.to_string()))?;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let saw = if names.is_empty() { "none yet".to_owned() } else { names.join(", ") };
    Ok((Finding::ok(probe, saw), nodes.iter().map(|node| node.address).collect()))
}

/// Returns the nodes that a file lists.
fn listed(file: &Path) -> Result<Vec<SocketAddr>, Finding> {
    let probe = "list of memory nodes";
    #[cfg(feature = "rdma")]
    return match swarm_kv::rdma::control::StaticPool::read(file) {
        Ok(fixed) => Ok(fixed.nodes().to_vec()),
        Err(error) => Err(Finding::bad(probe, error.to_string(), "mend the file, or name another")),
    };
    #[cfg(not(feature = "rdma"))]
    return Err(Finding::bad(
        probe,
        format!("reading {} takes RDMA", file.display()),
        "give the addresses as --node ADDR",
    ));
}

fn etcd(member: &str) -> Finding {
    let member = member.trim_start_matches("http://").trim_end_matches('/');
    let has_port = member.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let member = if has_port { member.to_owned() } else { format!("{member}:2379") };
    let probe = format!("etcd {member}");
    let advice = "start etcd there, or open the way: it listens where --listen-client-urls says";
    match health(&member) {
        Ok(answer) if answer.contains("\"health\":\"true\"") => Finding::ok(probe, "healthy"),
        Ok(answer) if answer.contains("\"health\"") => {
            Finding::bad(probe, "it has no leader, or no room", "look into its log")
        }
        Ok(_) => Finding::bad(probe, "what listens there is no etcd", advice),
        Err(error) => Finding::bad(probe, error.to_string(), advice),
    }
}

fn health(member: &str) -> std::io::Result<String> {
    let none = || std::io::Error::other("the name has no address");
    let address = member.to_socket_addrs()?.next().ok_or_else(none)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET /health HTTP/1.0\r\nHost: {member}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    // A peer that keeps the connection open has answered, too, if any byte arrived.
    let read = stream.take(MAX_ANSWER).read_to_end(&mut answer);
    if answer.is_empty() && read.is_err() {
        let why = format!("no answer within {} s", PATIENCE.as_secs());
        return Err(std::io::Error::other(why));
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(not(feature = "rdma"))]
fn node(address: SocketAddr) -> Finding {
    let probe = format!("memory node {address}");
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => Finding::warn(
            probe,
            "something listens there",
            "ask again with a swarm that is built with RDMA: it connects a queue pair",
        ),
        Err(error) => Finding::bad(probe, error.to_string(), "start `swarm memnode` there"),
    }
}

/// Asks the daemon for its status, then connects a queue pair without a client slot. A rejection
/// shows how far it came.
#[cfg(feature = "rdma")]
fn node(address: SocketAddr) -> Finding {
    use crate::common::units::show_size;
    use swarm_kv::rdma::control::protocol;
    use swarm_rdma::{ClientId, ConnectOptions, Endpoint, Fault, PoolId, RdmaFabric};
    use swarm_worker::far;

    let probe = format!("memory node {address}");
    let status = match protocol::who(address) {
        Ok(status) => status,
        Err(error) => {
            return Finding::bad(probe, error.to_string(), "start `swarm memnode` there");
        }
    };
    let pool = status.pool.as_ref();
    let (name, capacity) = (&status.entry.name, show_size(status.entry.capacity));
    let whose = pool.map_or("no pool".to_owned(), |pool| format!("pool {}", pool.name));
    let saw = format!("{name}, {capacity}, of {whose}, {} clients", status.clients.len());
    // A node accepts connections only under its number in its pool.
    let number = usize::from(status.node);
    let count = pool.map_or(1, |pool| pool.nodes.len());
    let nodes = vec![Endpoint { address, life: None }; count];
    let id = PoolId(pool.map_or(0, |pool| pool.id.0));
    let mut options = ConnectOptions::new(id, ClientId::NOBODY, status.entry.capacity / 8);
    options.device = far::device();
    let reached = match RdmaFabric::connect(&options, &nodes) {
        Ok(fabric) => fabric.status().into_iter().nth(number).and_then(|node| node.fault),
        Err(error) => {
            return Finding::bad(probe, format!("{saw}; {error}"), "see above: this host's device");
        }
    };
    match reached {
        None | Some(Fault::NoPool { .. }) => {
            Finding::ok(probe, format!("{saw}; a queue pair works"))
        }
        Some(fault) => Finding::bad(
            probe,
            format!("{saw}; its daemon answers, but no queue pair connects: {fault}"),
            "the address must be one of the interfaces of RDMA devices on both sides, and UDP port \
             4791 (RoCE v2) must be open between them",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::super::finding::Verdict;
    use super::*;

    fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are ports");
        let address = listener.local_addr().expect("it listens").to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let mut asked = [0; 512];
            stream.read(&mut asked).and_then(|_| stream.write_all(answer.as_bytes()))
        });
        address
    }

    #[test]
    fn etcd_is_told_from_others_and_from_nobody() {
        let verdict = |member: &str| etcd(member).verdict;
        let well = answering("HTTP/1.0 200 OK\r\n\r\n{\"health\":\"true\"}");
        assert_eq!(verdict(&well), Verdict::Ok);
        let ill = answering("HTTP/1.0 503 No\r\n\r\n{\"health\":\"false\"}");
        assert_eq!(verdict(&ill), Verdict::Bad);
        let other = answering("220 mail\r\n");
        assert!(etcd(&other).saw.contains("no etcd"), "{:?}", etcd(&other));
        let mute = TcpListener::bind("127.0.0.1:0").expect("there are ports");
        let address = mute.local_addr().expect("it listens").to_string();
        assert!(etcd(&address).saw.contains("no answer within"), "{:?}", etcd(&address));
        let nobody = TcpListener::bind("127.0.0.1:0").expect("there are ports");
        let address = nobody.local_addr().expect("it listens").to_string();
        drop(nobody);
        assert_eq!(verdict(&address), Verdict::Bad);
        assert_eq!(etcd("[::1]").probe, "etcd [::1]:2379", "an address without a port");
    }

    #[test]
    fn a_list_that_cannot_be_read_is_a_finding_and_not_the_end() {
        let found = listed(Path::new("/nowhere/nodes.toml")).expect_err("it is not there");
        assert_eq!(found.verdict, Verdict::Bad);
        assert!(found.saw.contains("/nowhere/nodes.toml"), "{found:?}");
    }
}
