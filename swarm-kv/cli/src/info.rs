//! `swarm info`: what a pool is, what is in it, and who holds its memory.
//!
//! It takes no client slot and changes nothing, so that it is there when something is wrong.

use indicatif::{ProgressBar, ProgressStyle};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use swarm_core::layout::LAYOUT_VERSION;
#[cfg(feature = "rdma")]
use swarm_kv::rdma::control::admin::Status;
#[cfg(feature = "rdma")]
use swarm_kv::rdma::control::{Error as PlaneError, Holder, NodeEntry, Standing};
#[cfg(feature = "rdma")]
use swarm_kv::shm::ClockSource;
use swarm_kv::shm::{Condition, Tenant};
use swarm_kv::{Estimate, Holding, Usage};
use swarm_worker::pool::{NearPool, Pool};

use super::args::InfoArgs;
use super::outcome::{Answer, Failure, say, tell};
use super::pools::absent_nodes;
use super::units::{count, show_size};

/// Nanoseconds after which an operation under way is worth a word.
const LONG: u64 = 1_000_000_000;

/// Says what a pool is.
pub(crate) fn run(args: &InfoArgs, json: bool) -> Result<Answer, Failure> {
    let InfoArgs { pool: args, exact } = args;
    // What is said of nodes here is a part of the answer.
    let pool = Pool::open(&args.pool, args.degraded)?;
    let (estimate, held) = accounts(&pool, *exact)?;
    let usage = estimate.usage;
    let holders = match &pool {
        Pool::Near(near) => held.map(|held| Holders::new(near, &held)),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => None,
    };
    let Told { mut object, lines } = pool_told(&pool, estimate)?;
    if json {
        if let Some(holders) = holders {
            holders.put(usage, &mut object);
            object.insert("memory_nodes".into(), nodes_told(&pool));
        }
        #[cfg(feature = "rdma")]
        if let Pool::Far(pool) = &pool {
            put_who(pool, &mut object)?;
        }
        say(Value::Object(object))?;
        return Ok(Answer::Yes);
    }
    for (name, told) in lines {
        say(format_args!("{name:<16}{told}"))?;
    }
    if let Some(holders) = holders {
        holders.say(&args.pool.display().to_string(), usage)?;
    }
    #[cfg(feature = "rdma")]
    if let Pool::Far(pool) = &pool {
        say_who(pool)?;
    }
    Ok(Answer::Yes)
}

/// Processor time for which keys are counted before the rest is estimated, nanoseconds.
const SOON: u64 = 30_000_000;

/// What the pool holds: all of it is counted, with a bar that shows how far, or as much as can be soon.
fn accounts(pool: &Pool, exact: bool) -> Result<(Estimate, Option<Vec<Holding>>), Failure> {
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
struct Told {
    object: Map<String, Value>,
    lines: Vec<(&'static str, String)>,
}

fn pool_told(pool: &Pool, estimate: Estimate) -> Result<Told, Failure> {
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
        let told = format!(
            "by {:.2} % of the index; keys may be off by {}; --exact counts all",
            100.0 * estimate.share,
            2 * estimate.keys_error
        );
        lines.push(("estimated", told));
    }
    let object = object.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(Told { object, lines })
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
fn nodes_told(pool: &Pool) -> Value {
    let absent = absent_nodes(pool);
    let nodes = (0..pool.geometry().nodes).map(|node| {
        let wrong = absent.iter().find(|absent| absent.node.index() == node);
        json!({ "name": format!("node-{node}"), "wrong": wrong.map(|it| it.why.to_string()) })
    });
    nodes.collect()
}

/// Who holds a near pool's memory.
struct Holders {
    epoch: u64,
    /// Nanoseconds for which it has been that epoch, at least.
    age: Option<u64>,
    /// Of each slot that is or was held or holds memory: by slot; last, what clients share.
    slots: Vec<(Option<Tenant>, Holding)>,
}

impl Holders {
    fn new(pool: &NearPool, held: &[Holding]) -> Self {
        // Epochs first: who begins something meanwhile is not behind.
        let (epoch, age, tenants) = (pool.epoch(), pool.epoch_age(), pool.census());
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
    fn behind(&self, tenant: Tenant) -> Option<u64> {
        Some(self.epoch.saturating_sub(tenant.since?))
    }

    /// For how many nanoseconds, at least, the holder has kept what others replace from coming back.
    fn held_up(&self, tenant: Tenant) -> Option<u64> {
        self.age.filter(|_| self.behind(tenant).is_some_and(|epochs| epochs > 0))
    }

    fn aside_bytes(&self) -> u64 {
        self.slots.iter().map(|(_, holding)| holding.aside_bytes).sum()
    }

    /// Of what is set aside, bytes that neither keys nor the index take.
    fn not_live(&self, usage: Usage) -> u64 {
        self.aside_bytes().saturating_sub(usage.live_bytes + usage.index_bytes)
    }

    /// For programs.
    fn put(&self, usage: Usage, object: &mut Map<String, Value>) {
        object.insert("set_aside_bytes".into(), json!(self.aside_bytes()));
        object.insert("not_live_bytes".into(), json!(self.not_live(usage)));
        object.insert("epoch".into(), json!(self.epoch));
        let holder = |&(tenant, holding): &(Option<Tenant>, Holding)| {
            json!({
                "client": slot(tenant, holding),
                "state": state(tenant, holding),
                "process": tenant.map(|tenant| tenant.process),
                "elsewhere": tenant.is_some_and(|tenant| tenant.elsewhere),
                "chunks": holding.chunks,
                "held_bytes": holding.held_bytes,
                "set_aside_bytes": holding.aside_bytes,
                "live_bytes": holding.live_bytes,
                "not_live_bytes": garbage(holding),
                "since_epoch": tenant.and_then(|tenant| tenant.since),
                "epochs_behind": tenant.and_then(|tenant| self.behind(tenant)),
                "held_up_ns": tenant.and_then(|tenant| self.held_up(tenant)),
            })
        };
        object.insert("holders".into(), self.slots.iter().map(holder).collect());
    }

    /// For people.
    fn say(&self, pool: &str, usage: Usage) -> Result<(), Failure> {
        say(format_args!("{:<16}{}", "epoch", self.epoch))?;
        if self.slots.is_empty() {
            return Ok(());
        }
        say(format_args!(
            "\n{:>6}{:>8}  {:<9}{:>7}{:>11}{:>11}{:>11}  under way",
            "client", "process", "state", "chunks", "held", "set aside", "garbage"
        ))?;
        for &(tenant, holding) in &self.slots {
            let slot = slot(tenant, holding).map_or("-".to_owned(), |slot| slot.to_string());
            let process = tenant.map_or("-".to_owned(), |tenant| tenant.process.to_string());
            let under_way = match tenant.and_then(|tenant| self.behind(tenant)) {
                None => "-".to_owned(),
                Some(0) => "this epoch".to_owned(),
                Some(epochs) => format!("{} ago", count(epochs, "epoch")),
            };
            say(format_args!(
                "{slot:>6}{process:>8}  {:<9}{:>7}{:>11}{:>11}{:>11}  {under_way}",
                state(tenant, holding),
                holding.chunks,
                show_size(holding.held_bytes),
                show_size(holding.aside_bytes),
                show_size(garbage(holding)),
            ))?;
        }
        let (aside, not_live) = (self.aside_bytes(), self.not_live(usage));
        say(format_args!(
            "\nset aside: objects that were given out, {} in all: {} in use,\n{} garbage or waiting for \
             their next use",
            show_size(aside),
            show_size(aside - not_live),
            show_size(not_live),
        ))?;
        for tenant in self.slots.iter().filter_map(|(tenant, _)| *tenant) {
            if tenant.condition == Condition::Stopped && tenant.since.is_some() {
                let Tenant { slot, process, .. } = tenant;
                tell(format_args!(
                    "client {slot}, process {process}, was stopped in the middle of an operation: what \
                     is replaced meanwhile does not come back until it goes on (kill -CONT {process}) \
                     or is ended (swarm evict {pool} {slot})"
                ));
            } else if let Some(age) = self.held_up(tenant).filter(|&age| age >= LONG) {
                let Tenant { slot, process, .. } = tenant;
                tell(format_args!(
                    "client {slot}, process {process}, has had an operation under way for {} s at least: what \
                     is replaced meanwhile does not come back until its program polls the operation's future \
                     to the end or drops it, or is ended (swarm evict {pool} {slot})",
                    age / 1_000_000_000
                ));
            }
        }
        Ok(())
    }
}

/// Of what a holder has set aside, bytes that are garbage or wait for their next use.
fn garbage(holding: Holding) -> u64 {
    holding.aside_bytes.saturating_sub(holding.live_bytes.unwrap_or(0))
}

/// The slot, unless it is what clients share.
fn slot(tenant: Option<Tenant>, holding: Holding) -> Option<usize> {
    tenant.map(|tenant| tenant.slot).or(holding.client)
}

/// How a slot's holder is, in a word.
fn state(tenant: Option<Tenant>, holding: Holding) -> &'static str {
    match tenant {
        None if holding.client.is_none() => "shared",
        None => "detached",
        Some(Tenant { condition: Condition::Dead, .. }) => "dead",
        Some(Tenant { condition: Condition::Stopped, .. }) => "stopped",
        Some(Tenant { elsewhere: true, .. }) => "elsewhere",
        Some(_) => "alive",
    }
}

/// What the nodes' daemons know of the epoch.
#[cfg(feature = "rdma")]
struct Epochs {
    epoch: u64,
    standings: Vec<Standing>,
}

#[cfg(feature = "rdma")]
impl Epochs {
    fn of(nodes: &[(NodeEntry, Result<Status, PlaneError>)]) -> Self {
        let told = || nodes.iter().filter_map(|(_, status)| status.as_ref().ok());
        let epoch = told().map(|status| status.epoch).max().unwrap_or(0);
        Self { epoch, standings: told().flat_map(|status| status.standings.clone()).collect() }
    }

    /// How many epochs a client is behind. One is usual: it is told after it happens.
    fn behind(&self, client: &Holder) -> u64 {
        let same = |it: &&Standing| (it.slot, it.incarnation) == (client.slot, client.incarnation);
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
    object.insert("holders".into(), holders.collect());
    Ok(())
}

/// Says which nodes and clients a far pool has: they have names there.
#[cfg(feature = "rdma")]
fn say_who(pool: &swarm_worker::far::FarPool) -> Result<(), Failure> {
    let nodes = pool.nodes();
    let epochs = Epochs::of(&nodes);
    say(format_args!("{:<16}{}", "epoch", epochs.epoch))?;
    for (number, (node, status)) in nodes.into_iter().enumerate() {
        let wrong = status.err().map(|wrong| format!(": {wrong}")).unwrap_or_default();
        say(format_args!("node {number:<11}{} at {}{wrong}", node.name, node.address))?;
    }
    for client in pool.clients()? {
        let (slot, life) = (client.slot, client.incarnation);
        let behind = match epochs.behind(&client) {
            0 | 1 => String::new(),
            epochs => {
                format!(", {} behind: no memory comes back meanwhile", count(epochs, "epoch"))
            }
        };
        say(format_args!("client {slot:<9}{} (incarnation {life}{behind})", client.label))?;
    }
    Ok(())
}
