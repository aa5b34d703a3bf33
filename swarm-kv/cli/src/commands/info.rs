//! `swarm info`: what a pool is, what is in it, and who holds its memory.
//!
//! It takes no client slot and changes nothing, so that it is there when something is wrong.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use swarm_core::layout::LAYOUT_VERSION;
use swarm_core::node::{Configuration, NodeId, NodeState};
#[cfg(feature = "rdma")]
use swarm_kv::rdma::control::protocol::Status;
#[cfg(feature = "rdma")]
use swarm_kv::rdma::control::{ClientEpoch, Error as PlaneError, Holder, NodeEntry};
#[cfg(feature = "rdma")]
use swarm_kv::shm::ClockSource;
use swarm_kv::shm::{ClientInfo, ClientState, Frozen, frozen};
use swarm_kv::{ClientUsage, Estimate, Usage};
use swarm_worker::pool::{NearPool, Pool};

use crate::commands::verify;
use crate::common::args::ReadArgs;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::pool::absent_nodes;
use crate::common::units::{count, show_size};

#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    pub(crate) pool: ReadArgs,
    /// Count every key, however long it takes; else, what a large pool holds is estimated by a part of its index
    #[arg(long)]
    pub(crate) exact: bool,
    /// Look whether all of it is whole, each bucket and each key at every node, instead; changes nothing. Exit status 1: something is not
    #[arg(long, conflicts_with = "exact")]
    pub(crate) verify: bool,
}

/// Nanoseconds after which an operation under way is worth a word.
const LONG: u64 = 1_000_000_000;

/// Says what a pool is.
pub(crate) fn run(args: &InfoArgs, json: bool) -> Result<Answer, Failure> {
    let InfoArgs { pool: args, exact, verify } = args;
    if *verify {
        return verify::run(args, json);
    }
    let ReadArgs { pool: args, read_only } = args;
    // What is printed about nodes here is a part of the answer.
    let pool = Pool::open_to_read(&args.pool, args.degraded, *read_only)?;
    let (estimate, held) = accounts(&pool, *exact)?;
    let usage = estimate.usage;
    let holders = match &pool {
        Pool::Near(near) => held.map(|held| Holders::new(near, &held)),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => None,
    };
    let Shown { mut object, lines } = describe_pool(&pool, estimate)?;
    if json {
        if let Some(holders) = holders {
            holders.put(usage, &mut object);
            object.insert("memory_nodes".into(), nodes_as_json(&pool));
            object.insert("configuration".into(), json!(configuration(&pool)));
        }
        #[cfg(feature = "rdma")]
        if let Pool::Far(pool) = &pool {
            put_who(pool, &mut object)?;
        }
        print_line(Value::Object(object))?;
        return Ok(Answer::Yes);
    }
    for (name, text) in lines {
        print_line(format_args!("{name:<16}{text}"))?;
    }
    if let Some(holders) = holders {
        holders.print_line(&args.pool.display().to_string(), usage)?;
    }
    #[cfg(feature = "rdma")]
    if let Pool::Far(pool) = &pool {
        print_members(pool)?;
    }
    Ok(Answer::Yes)
}

/// Processor time for which keys are counted before the rest is estimated, nanoseconds.
const SOON: u64 = 30_000_000;

/// What the pool holds: all of it is counted, with a bar that shows how far, or as much as can be soon.
fn accounts(pool: &Pool, exact: bool) -> Result<(Estimate, Option<Vec<ClientUsage>>), Failure> {
    if !exact {
        let since = processor_ns();
        return pool.accounts_while(&mut |_, _| processor_ns() - since < SOON);
    }
    let style = ProgressStyle::with_template("counting keys {wide_bar} {percent} % {elapsed}");
    let bar = ProgressBar::new(0).with_style(style.expect("the template is well-formed"));
    let counted = pool.accounts_while(&mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
        true
    });
    bar.finish_and_clear();
    counted
}

/// Processor time of this thread so far: on a busy machine as much is counted as on an idle one.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The same thing for programs and for people.
struct Shown {
    object: Map<String, Value>,
    lines: Vec<(&'static str, String)>,
}

fn describe_pool(pool: &Pool, estimate: Estimate) -> Result<Shown, Failure> {
    let geometry = pool.geometry();
    let clients = pool.clients()?;
    let Usage { used_bytes, keys, live_bytes, index_bytes, .. } = estimate.usage;
    let exact = estimate.share >= 1.0;
    let clock = match pool {
        Pool::Near(near) => near.clock().source(),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => ClockSource::Wall,
    };
    let free_bytes = geometry.capacity.saturating_sub(used_bytes);
    let object = [
        ("nodes", json!(geometry.nodes)),
        ("capacity_bytes", json!(geometry.capacity)),
        ("used_bytes", json!(used_bytes)),
        ("free_bytes", json!(free_bytes)),
        ("live_bytes", json!(live_bytes)),
        ("index_bytes", json!(index_bytes)),
        ("keys", json!(keys)),
        ("keys_error", json!(estimate.keys_error)),
        ("counted_share", json!(estimate.share)),
        ("exact", json!(exact)),
        ("clients", json!(clients)),
        ("max_clients", json!(geometry.max_clients)),
        ("slots", json!(geometry.slots)),
        ("clock", json!(clock.to_string())),
        ("layout_version", json!(LAYOUT_VERSION)),
    ];
    let about = if exact { "" } else { "about " };
    let mut lines = vec![("memory nodes", nodes_there(pool))];
    lines.extend(absent_nodes(pool).iter().map(|absent| ("  left out", absent.why.to_string())));
    lines.extend(replaced(pool).map(|text| ("replaced", text)));
    lines.extend([
        ("capacity", format!("{} each", show_size(geometry.capacity))),
        ("used", format!("{}: in chunks that have an owner", show_size(used_bytes))),
        ("free", show_size(free_bytes)),
        ("keys", format!("{about}{keys}, which take {about}{}", show_size(live_bytes))),
        ("index", format!("{about}{}", show_size(index_bytes))),
        ("clients", format!("{clients}, at most {}", geometry.max_clients)),
        ("stamp slots", geometry.slots.to_string()),
        ("clock", clock.to_string()),
        ("layout version", LAYOUT_VERSION.to_string()),
    ]);
    if !exact {
        let text = format!(
            "by {:.2} % of the index; keys may be off by {}; --exact counts all",
            100.0 * estimate.share,
            2 * estimate.keys_error
        );
        lines.push(("estimated", text));
    }
    let object = object.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(Shown { object, lines })
}

/// How many nodes there are, and which of them are there, if not all are.
fn nodes_there(pool: &Pool) -> String {
    let (nodes, absent) = (pool.geometry().nodes, absent_nodes(pool));
    if absent.is_empty() {
        return nodes.to_string();
    }
    let there = (0..nodes).filter(|&node| absent.iter().all(|a| a.node.index() != node));
    let there: Vec<_> = there.map(|node| node.to_string()).collect();
    format!("{nodes}, of which {} are there", there.join(", "))
}

/// The nodes of a near pool, and what is wrong with those that are left out, for programs.
fn nodes_as_json(pool: &Pool) -> Value {
    let absent = absent_nodes(pool);
    let now = configured(pool);
    let nodes = (0..pool.geometry().nodes).map(|node| {
        let wrong = absent.iter().find(|absent| absent.node.index() == node);
        let wrong = wrong.map(|it| it.why.to_string());
        let id = NodeId(node as u8);
        let (life, state) = (now.map(|now| now.life(id)), now.map(|now| node_state(&now, id)));
        json!({
            "name": format!("node-{node}"),
            "wrong": wrong,
            "replaced": life,
            "state": state,
            "filled": now.and_then(|now| filled(pool, &now, id)),
        })
    });
    nodes.collect()
}

/// A near pool's configuration.
fn configured(pool: &Pool) -> Option<Configuration> {
    match pool {
        Pool::Near(near) => Some(near.configuration()),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => None,
    }
}

/// The number of a near pool's configuration.
fn configuration(pool: &Pool) -> Option<u64> {
    configured(pool).map(|now| now.number())
}

/// What a node does.
fn node_state(now: &Configuration, node: NodeId) -> &'static str {
    match now.state(node) {
        NodeState::Votes => "votes",
        NodeState::Filling => "filling",
    }
}

/// Which part of a node that is filling was filled, and whether a process is at it.
fn filled(pool: &Pool, now: &Configuration, node: NodeId) -> Option<Value> {
    match pool {
        Pool::Near(_) if now.state(node) == NodeState::Votes => None,
        Pool::Near(near) => {
            let (done, all) = near.filled(node);
            Some(json!({ "done": done, "of": all, "is_at_work": near.is_being_filled(node) }))
        }
        #[cfg(feature = "rdma")]
        Pool::Far(_) => None,
    }
}

/// Which nodes were replaced, or are being, for people; `None` if none was.
fn replaced(pool: &Pool) -> Option<String> {
    let now = configured(pool)?;
    let nodes = (0..pool.geometry().nodes as u8).map(NodeId);
    let text = nodes.filter(|&node| now.life(node) > 0).map(|node| {
        let times = count(u64::from(now.life(node)), "time");
        match filled(pool, &now, node) {
            Some(filled) => format!(
                "node {} {times}, {} of {} parts filled{}",
                node.0,
                filled["done"],
                filled["of"],
                if filled["is_at_work"] == true { "" } else { " (interrupted)" }
            ),
            None => format!("node {} {times}", node.0),
        }
    });
    let text: Vec<_> = text.collect();
    (!text.is_empty()).then(|| text.join(", "))
}

/// Who holds a near pool's memory.
struct Holders {
    epoch: u64,
    /// Nanoseconds for which it has been that epoch, at least.
    age: Option<u64>,
    /// Of each slot that is or was held or holds memory: by slot; last, what clients share.
    slots: Vec<(Option<ClientInfo>, ClientUsage)>,
}

impl Holders {
    fn new(pool: &NearPool, held: &[ClientUsage]) -> Self {
        // Epochs first: a client that begins something meanwhile is not behind.
        let (epoch, age, tenants) = (pool.epoch(), pool.epoch_age(), pool.clients());
        let of = |slot| {
            let tenant = tenants.iter().find(|tenant| tenant.slot == slot).copied();
            let holding = held.iter().find(|holding| holding.client == Some(slot)).copied();
            (tenant.is_some() || holding.is_some()).then(|| (tenant, holding.unwrap_or_default()))
        };
        let shared = held.iter().filter(|holding| holding.client.is_none());
        let shared = shared.map(|holding| (None, *holding));
        let slots = (0..pool.geometry().max_clients).filter_map(of).chain(shared).collect();
        Self { epoch, age, slots }
    }

    /// How many epochs ago the holder's oldest operation began that is under way.
    fn behind(&self, tenant: ClientInfo) -> Option<u64> {
        Some(self.epoch.saturating_sub(tenant.since?))
    }

    /// For how many nanoseconds, at least, the holder has kept what others replace from coming back.
    fn held_up(&self, tenant: ClientInfo) -> Option<u64> {
        self.age.filter(|_| self.behind(tenant).is_some_and(|epochs| epochs > 0))
    }

    /// Reports by what a client is frozen, since when, and what to do. One that has nothing under way holds nobody up.
    fn report_frozen(&self, pool: &str, tenant: ClientInfo) {
        let ClientInfo { slot, process, since, .. } = tenant;
        let Frozen { thaw, at_most, .. } = frozen(process).unwrap_or_default();
        let seconds = |nanoseconds: u64| nanoseconds / 1_000_000_000;
        let least = self.held_up(tenant).map(|age| format!(", for {} s at least", seconds(age)));
        let most = at_most.map(|it| format!(", for {} s at most", it.as_secs()));
        let files = thaw.iter().map(|(file, thaw)| format!("echo {thaw} > {}", file.display()));
        let files: Vec<_> = files.collect();
        let thaw = match files.len() {
            0 => "its container is unpaused from outside".to_owned(),
            _ => format!("it is thawed ({})", files.join("; ")),
        };
        let holds = match since {
            Some(_) => "while pinned: no memory is reclaimed",
            None => "not pinned; it keeps its slot",
        };
        eprint_line(format_args!(
            "client {slot}, process {process}, is frozen with its control group{}{}, {holds} until {thaw} or it is \
             evicted (swarm evict {pool} {slot})",
            least.unwrap_or_default(),
            most.unwrap_or_default(),
        ));
    }

    fn allocated_bytes(&self) -> u64 {
        self.slots.iter().map(|(_, holding)| holding.allocated_bytes).sum()
    }

    /// Returns how many allocated bytes neither keys nor the index take.
    fn reclaimable(&self, usage: Usage) -> u64 {
        self.allocated_bytes().saturating_sub(usage.live_bytes + usage.index_bytes)
    }

    /// For programs.
    fn put(&self, usage: Usage, object: &mut Map<String, Value>) {
        object.insert("allocated_bytes".into(), json!(self.allocated_bytes()));
        object.insert("reclaimable_bytes".into(), json!(self.reclaimable(usage)));
        object.insert("epoch".into(), json!(self.epoch));
        let holder = |&(tenant, holding): &(Option<ClientInfo>, ClientUsage)| {
            json!({
                "client": slot(tenant, holding),
                "state": state(tenant, holding),
                "process": tenant.map(|tenant| tenant.process),
                "elsewhere": tenant.is_some_and(|tenant| tenant.elsewhere),
                "chunks": holding.chunks,
                "owned_bytes": holding.owned_bytes,
                "allocated_bytes": holding.allocated_bytes,
                "live_bytes": holding.live_bytes,
                "reclaimable_bytes": reclaimable(holding),
                "pinned_epoch": tenant.and_then(|tenant| tenant.since),
                "epochs_behind": tenant.and_then(|tenant| self.behind(tenant)),
                "held_up_ns": tenant.and_then(|tenant| self.held_up(tenant)),
                "frozen_by": frozen_by(tenant),
            })
        };
        object.insert("owners".into(), self.slots.iter().map(holder).collect());
    }

    /// For people.
    fn print_line(&self, pool: &str, usage: Usage) -> Result<(), Failure> {
        print_line(format_args!("{:<16}{}", "epoch", self.epoch))?;
        if self.slots.is_empty() {
            return Ok(());
        }
        print_line(format_args!(
            "\n{:>6}{:>8}  {:<9}{:>7}{:>11}{:>11}{:>13}  pinned",
            "client", "process", "state", "chunks", "owned", "allocated", "reclaimable"
        ))?;
        for &(tenant, holding) in &self.slots {
            let slot = slot(tenant, holding).map_or("-".to_owned(), |slot| slot.to_string());
            let process = tenant.map_or("-".to_owned(), |tenant| tenant.process.to_string());
            let pinned = match tenant.and_then(|tenant| self.behind(tenant)) {
                None => "-".to_owned(),
                Some(0) => "this epoch".to_owned(),
                Some(epochs) => format!("{} ago", count(epochs, "epoch")),
            };
            print_line(format_args!(
                "{slot:>6}{process:>8}  {:<9}{:>7}{:>11}{:>11}{:>13}  {pinned}",
                state(tenant, holding),
                holding.chunks,
                show_size(holding.owned_bytes),
                show_size(holding.allocated_bytes),
                show_size(reclaimable(holding)),
            ))?;
        }
        let (allocated, reclaimable) = (self.allocated_bytes(), self.reclaimable(usage));
        print_line(format_args!(
            "\nallocated: objects handed out to clients, {} in all: {} in use,\n{} reclaimable, that is garbage \
             or free",
            show_size(allocated),
            show_size(allocated - reclaimable),
            show_size(reclaimable),
        ))?;
        for tenant in self.slots.iter().filter_map(|(tenant, _)| *tenant) {
            if tenant.condition == ClientState::Frozen {
                self.report_frozen(pool, tenant);
            } else if tenant.condition == ClientState::Stopped && tenant.since.is_some() {
                let ClientInfo { slot, process, .. } = tenant;
                eprint_line(format_args!(
                    "client {slot}, process {process}, is stopped while pinned: no memory is reclaimed until it \
                     continues (kill -CONT {process}) or is evicted (swarm evict {pool} {slot})"
                ));
            } else if let Some(age) = self.held_up(tenant).filter(|&age| age >= LONG) {
                let ClientInfo { slot, process, .. } = tenant;
                eprint_line(format_args!(
                    "client {slot}, process {process}, has been pinned for {} s at least: no memory is reclaimed \
                     until its program polls the operation's future to its end or drops it, or the client is \
                     evicted (swarm evict {pool} {slot})",
                    age / 1_000_000_000
                ));
            }
        }
        Ok(())
    }
}

/// What a holder is frozen by, for programs: the files, and what thaws it if it is written to them.
fn frozen_by(tenant: Option<ClientInfo>) -> Option<Value> {
    let tenant = tenant.filter(|tenant| tenant.condition == ClientState::Frozen)?;
    let files = frozen(tenant.process)?.thaw.into_iter();
    Some(files.map(|(file, thaw)| json!({ "file": file, "thaw": thaw })).collect())
}

/// Returns how many bytes that a client has allocated are garbage or free.
fn reclaimable(holding: ClientUsage) -> u64 {
    holding.allocated_bytes.saturating_sub(holding.live_bytes.unwrap_or(0))
}

/// The slot, unless it is what clients share.
fn slot(tenant: Option<ClientInfo>, holding: ClientUsage) -> Option<usize> {
    tenant.map(|tenant| tenant.slot).or(holding.client)
}

/// How a slot's holder is, in a word.
fn state(tenant: Option<ClientInfo>, holding: ClientUsage) -> &'static str {
    match tenant {
        None if holding.client.is_none() => "shared",
        None => "detached",
        Some(ClientInfo { condition: ClientState::Dead, .. }) => "dead",
        Some(ClientInfo { condition: ClientState::Stopped, .. }) => "stopped",
        Some(ClientInfo { condition: ClientState::Frozen, .. }) => "frozen",
        Some(ClientInfo { elsewhere: true, .. }) => "elsewhere",
        Some(_) => "alive",
    }
}

/// What the nodes' daemons know of the epoch.
#[cfg(feature = "rdma")]
struct Epochs {
    epoch: u64,
    standings: Vec<ClientEpoch>,
}

#[cfg(feature = "rdma")]
impl Epochs {
    fn of(nodes: &[(NodeEntry, Result<Status, PlaneError>)]) -> Self {
        let text = || nodes.iter().filter_map(|(_, status)| status.as_ref().ok());
        let epoch = text().map(|status| status.epoch).max().unwrap_or(0);
        Self { epoch, standings: text().flat_map(|status| status.standings.clone()).collect() }
    }

    /// How many epochs a client is behind. One is usual: it learns of an epoch after that began.
    fn behind(&self, client: &Holder) -> u64 {
        let same =
            |it: &&ClientEpoch| (it.slot, it.incarnation) == (client.slot, client.incarnation);
        let reached = self.standings.iter().filter(same).map(|it| it.reached).max().unwrap_or(0);
        self.epoch.saturating_sub(reached)
    }
}

/// Which nodes and clients a far pool has, for programs.
#[cfg(feature = "rdma")]
fn put_who(
    pool: &swarm_worker::far::FarPool,
    object: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let nodes = pool.nodes();
    let epochs = Epochs::of(&nodes);
    let nodes = nodes.into_iter().map(|(node, status)| {
        let wrong = status.err().map(|error| error.to_string());
        json!({ "name": node.name, "address": node.address.to_string(), "wrong": wrong })
    });
    let holders = pool.clients()?.into_iter().map(|client| {
        json!({
            "client": client.slot,
            "incarnation": client.incarnation,
            "holder": client.label,
            "epochs_behind": epochs.behind(&client),
        })
    });
    object.insert("epoch".into(), json!(epochs.epoch));
    object.insert("memory_nodes".into(), nodes.collect());
    object.insert("owners".into(), holders.collect());
    Ok(())
}

/// Prints which nodes and clients a far pool has: they have names there.
#[cfg(feature = "rdma")]
fn print_members(pool: &swarm_worker::far::FarPool) -> Result<(), Failure> {
    let nodes = pool.nodes();
    let epochs = Epochs::of(&nodes);
    print_line(format_args!("{:<16}{}", "epoch", epochs.epoch))?;
    for (number, (node, status)) in nodes.into_iter().enumerate() {
        let wrong = status.err().map(|wrong| format!(": {wrong}")).unwrap_or_default();
        print_line(format_args!("node {number:<11}{} at {}{wrong}", node.name, node.address))?;
    }
    for client in pool.clients()? {
        let (slot, life) = (client.slot, client.incarnation);
        let behind = match epochs.behind(&client) {
            0 | 1 => String::new(),
            epochs => {
                format!(", {} behind: no memory comes back meanwhile", count(epochs, "epoch"))
            }
        };
        print_line(format_args!("client {slot:<9}{} (incarnation {life}{behind})", client.label))?;
    }
    Ok(())
}
