//! A queue of jobs that loses none, whichever workers are killed, and counts each once.
//!
//! ```sh
//! cargo run --release -- create /dev/shm/pool
//! cargo run --release --manifest-path examples/Cargo.toml --bin job-queue /dev/shm/pool [KILLS]
//! ```
//!
//! A queue is one value: the jobs to do, and the results of those that are done. A worker does the first job while it holds the queue's lock,
//! and takes it out in the change that adds its result. One that is killed before that leaves the job where it is, and the lock to the next
//! worker: a job may be begun more than once, and its result counts once. Here workers are killed one after the other.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::parent_id;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use swarm_kv::shm;

const WORKERS: usize = 4;
const QUEUES: u64 = 4;
/// More jobs than that do not wait in a queue.
const LONGEST: usize = 16;
/// Is there once all jobs were added.
const OVER: &[u8] = b"jobs:over";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [pool] => kills_workers(pool, 30),
        [pool, "worker"] => works(pool),
        [pool, kills] => kills_workers(pool, kills.parse()?),
        _ => Err("usage: job-queue POOL [KILLS]".into()),
    }
}

/// A queue: how many jobs are done, the sum of their results, and those that are to be done. A job is a number, and its
/// result the number's square.
#[derive(Default)]
struct Queue {
    done: u64,
    sum: u64,
    jobs: Vec<u64>,
}

impl Queue {
    fn name(number: u64) -> Vec<u8> {
        format!("jobs:queue {number}").into_bytes()
    }

    fn parse(value: Option<&[u8]>) -> Self {
        let text = String::from_utf8_lossy(value.unwrap_or_default());
        let mut numbers = text.split_whitespace().map(|word| word.parse().expect("a number"));
        let (done, sum) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Self { done, sum, jobs: numbers.collect() }
    }

    fn text(&self) -> Vec<u8> {
        let jobs: String = self.jobs.iter().map(|job| format!(" {job}")).collect();
        format!("{} {}{jobs}", self.done, self.sum).into_bytes()
    }
}

/// Does jobs until all are done, or it is killed.
fn works(pool: &str) -> Result<(), Box<dyn Error>> {
    let client = shm::open_path(pool)?;
    let (store, parent) = (client.blocking(), parent_id());
    loop {
        // Looked for before the queues: the process that puts it has added all jobs.
        let is_over = store.get(OVER)?.is_some() || parent_id() != parent;
        let mut were_empty = true;
        for number in 0..QUEUES {
            let name = Queue::name(number);
            let lock = store.lock(format!("jobs:lock {number}").as_bytes());
            let Some(guard) = lock.acquire_within(Duration::from_millis(1))? else {
                were_empty = false;
                continue;
            };
            if let Some(&job) = Queue::parse(store.get(&name)?.as_deref()).jobs.first() {
                were_empty = false;
                // It takes its time.
                thread::sleep(Duration::from_micros(200));
                let result = job * job;
                store.update_with(&name, |queue| {
                    let mut queue = Queue::parse(queue);
                    // Of a worker that was stopped, and evicted, another one has done the job.
                    if queue.jobs.first() == Some(&job) {
                        queue.jobs.remove(0);
                        queue.done += 1;
                        queue.sum += result;
                    }
                    Some(queue.text())
                })?;
            }
            guard.release()?;
        }
        if were_empty && is_over {
            return Ok(());
        }
    }
}

fn kills_workers(pool: &str, kills: u64) -> Result<(), Box<dyn Error>> {
    let client = shm::open_path(pool)?;
    let store = client.blocking();
    store.delete(OVER)?;
    for number in 0..QUEUES {
        store.put(&Queue::name(number), &Queue::default().text())?;
    }
    let program = std::env::current_exe()?;
    let start = || Command::new(&program).args([pool, "worker"]).spawn();
    let mut workers = (0..WORKERS).map(|_| start()).collect::<Result<Vec<Child>, _>>()?;
    let (random, mut jobs) = (RandomState::new(), 0);
    for kill in 0..kills {
        for number in 0..QUEUES {
            let queue = store.update_with(&Queue::name(number), |queue| {
                let mut queue = Queue::parse(queue);
                if queue.jobs.len() < LONGEST {
                    queue.jobs.push(jobs + 1);
                }
                Some(queue.text())
            })?;
            jobs += u64::from(Queue::parse(queue.as_deref()).jobs.last() == Some(&(jobs + 1)));
        }
        // Whatever it is at.
        thread::sleep(Duration::from_micros(random.hash_one(kill) % 5_000));
        let worker = &mut workers[kill as usize % WORKERS];
        worker.kill()?;
        worker.wait()?;
        *worker = start()?;
    }
    store.put(OVER, b"")?;
    for worker in &mut workers {
        if !worker.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    let (mut done, mut sum) = (0, 0);
    for number in 0..QUEUES {
        let queue = Queue::parse(store.get(&Queue::name(number))?.as_deref());
        (done, sum) = (done + queue.done, sum + queue.sum);
    }
    if done != jobs || sum != (1..=jobs).map(|job| job * job).sum() {
        return Err(format!("{jobs} jobs, {done} results, whose sum is {sum}").into());
    }
    println!("{kills} workers were killed, and each of {jobs} jobs has its result once");
    Ok(())
}
