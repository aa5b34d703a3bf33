//! A memory node's daemon, until a signal stops it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::json;
use swarm_core::node::NodeId;
use swarm_kv::rdma::control::{
    Etcd, FenceAgent, Id, Membership, NodeEntry, PoolDescriptor, Registration, Server, StaticPool,
    parse_members, parse_name,
};
use swarm_rdma::{ClientId, MemoryNode, MemorySource, NodeReport, PoolId, ServeOptions};
use swarm_worker::far;

use crate::commands::memnode::MemnodeArgs;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::signals::on_signal;
use crate::common::units::show_size;

/// How often the daemon looks for evictions that were not reported to it.
const LOOK: Duration = Duration::from_secs(1);

/// Queue pairs and memory, as the control plane moves them.
struct Memory(Arc<MemoryNode>);

impl FenceAgent for Memory {
    fn join(&mut self, record: &PoolDescriptor, node: u8) -> Result<(), String> {
        self.0.enlist(PoolId(record.id.0), NodeId(node));
        Ok(())
    }

    fn release(&mut self) -> Result<Id, String> {
        self.0.release().map_err(|error| error.to_string())?;
        Ok(Id(self.0.life().0))
    }

    fn fence(&mut self, client: usize, incarnation: u64) -> usize {
        self.0.fence(ClientId { slot: client as u32, incarnation })
    }
}

/// Serves until SIGTERM or ^C.
pub(crate) fn run(args: &MemnodeArgs, json: bool) -> Result<Answer, Failure> {
    let (stop, stopped) = mpsc::channel();
    // A second signal finds nobody listening, and ends nothing that has not ended.
    let signal = move || {
        let _ = stop.send(());
    };
    on_signal(signal).map_err(|error| Failure::because("cannot wait for signals", error))?;
    let name = name(args)?;
    if args.listen.ip().is_unspecified() {
        return Err(Failure::Usage(format!(
            "{} is no address that clients could reach; listen at the one of the RDMA device's \
             network interface",
            args.listen
        )));
    }
    let registry = args.etcd.as_deref().map(connect).transpose()?;
    let memory = args.memory.clone().map_or(MemorySource::Allocated, MemorySource::File);
    let mut options = ServeOptions::new(args.listen, args.capacity);
    (options.memory, options.device) = (memory, far::device());
    let node = Arc::new(MemoryNode::serve(&options).map_err(|e| Failure::Failed(e.to_string()))?);
    let entry = NodeEntry {
        name,
        address: node.address(),
        life: Id(node.life().0),
        capacity: args.capacity,
    };
    let server = Server::start(Membership::new(entry.clone(), Memory(Arc::clone(&node))))?;
    // In the registry only once it answers; from then on it may become a pool's.
    let registration: Option<Registration> =
        registry.as_ref().map(|etcd| etcd.register(&entry)).transpose()?;
    ready(&entry, &node.report(), json)?;
    let mut daemon = Daemon {
        server: &server,
        registry,
        registration,
        known: HashSet::new(),
        silent: false,
        twin: false,
    };
    let (mut reported, mut at) = (node.report(), Instant::now());
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
        if node.is_removed() {
            // The system waits for all that have it open.
            return Err(Failure::Failed(format!(
                "memory node {}: its RDMA device was removed; what it held can no longer be reached",
                entry.name
            )));
        }
        daemon.look();
        if at.elapsed() >= args.report && node.report() != reported {
            (reported, at) = (node.report(), Instant::now());
            report(&entry, &reported, json);
        }
    }
    // Nobody finds it any more, then nobody reaches it.
    drop(daemon);
    drop(server);
    report(&entry, &node.report(), json);
    Ok(Answer::Yes)
}

/// The node's name: its own in etcd, its address in a file.
fn name(args: &MemnodeArgs) -> Result<String, Failure> {
    if let Some(name) = &args.name {
        return parse_name(name).map_err(Failure::Usage);
    }
    if let Some(file) = &args.static_file
        && !StaticPool::read(file)?.nodes().contains(&args.listen)
    {
        return Err(Failure::Usage(format!(
            "{} does not list {}; clients would not find this node",
            file.display(),
            args.listen
        )));
    }
    Ok(args.listen.to_string())
}

fn connect(members: &str) -> Result<Etcd, Failure> {
    Ok(Etcd::connect(&parse_members(members).map_err(Failure::Usage)?)?)
}

struct Daemon<'a> {
    server: &'a Server<Memory>,
    registry: Option<Etcd>,
    registration: Option<Registration>,
    /// Evictions that were carried out.
    known: HashSet<(Id, usize, u64)>,
    /// Whether etcd did not answer when it was last asked.
    silent: bool,
    /// Whether another memory node had this one's name when that was last looked at.
    twin: bool,
}

impl Daemon<'_> {
    /// Looks at what may have changed in etcd.
    fn look(&mut self) {
        let twin = self.registration.as_ref().is_some_and(Registration::is_lost);
        if twin && !self.twin {
            eprint_line(format_args!(
                "another memory node has taken the name {} in etcd, as this one could not renew it; \
                 this one goes on in its pool, new pools get the other one",
                self.server.membership().entry().name
            ));
        }
        self.twin = twin;
        self.evict();
    }

    /// Carries out evictions that did not reach this daemon as it was cut off.
    fn evict(&mut self) {
        let Some(etcd) = &mut self.registry else { return };
        let pool = self.server.membership().pool().map(|(pool, _)| (pool.id, pool.name.clone()));
        let Some((id, name)) = pool else { return };
        let evictions = match etcd.evictions(&name) {
            Ok(evictions) => evictions,
            Err(error) => {
                if !self.silent {
                    eprint_line(format_args!("{error}; the node serves on meanwhile"));
                }
                self.silent = true;
                // If nobody else answers either, this one is asked again.
                let _ = etcd.turn_elsewhere();
                return;
            }
        };
        self.silent = false;
        for (slot, incarnation) in evictions {
            if self.known.insert((id, slot, incarnation)) {
                // A pool that has gone meanwhile has no clients.
                let _ = self.server.membership().fence(id, slot, incarnation);
            }
        }
    }
}

fn ready(entry: &NodeEntry, report: &NodeReport, json: bool) -> Result<(), Failure> {
    let NodeEntry { name, address, life, capacity } = entry;
    if json {
        return print_line(json!({
            "ready": true,
            "name": name,
            "address": address.to_string(),
            "life": life.to_string(),
            "capacity_bytes": capacity,
            "huge_pages": report.huge_pages,
        }));
    }
    let pages = if report.huge_pages { " in huge pages" } else { "" };
    print_line(format_args!(
        "ready: memory node {name} at {address} with {}{pages}",
        show_size(*capacity)
    ))
}

fn report(entry: &NodeEntry, report: &NodeReport, json: bool) {
    let &NodeReport { connections, accepted, refused, fenced, registrations, .. } = report;
    let printed = if json {
        print_line(json!({
            "name": entry.name,
            "connections": connections,
            "accepted": accepted,
            "refused": refused,
            "fenced": fenced,
            "registrations": registrations,
        }))
    } else {
        print_line(format_args!(
            "memory node {}: {connections} connections now, {accepted} accepted, {refused} refused, \
             {fenced} fenced, {registrations} memory registrations",
            entry.name
        ))
    };
    // The reader of its reports may have gone, or the disk be full: it holds a pool's memory still.
    let _ = printed;
}
