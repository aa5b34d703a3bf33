//! The clock's line: measured once a boot, and the same for all clients.

#![cfg(not(loom))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::fs::{self, OpenOptions as File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use common::pool;
use swarm_core::clock::Clock;
use swarm_shm::{OpenOptions, Pool};

/// Where the control file keeps the lines of the last boots.
const LINES: std::ops::Range<usize> = 1024..1536;
const LINE: usize = 64;
const LINE_USED: usize = 56;

fn open(path: &Path) -> Pool {
    Pool::open(path, OpenOptions::default()).expect("the pool is there")
}

fn lines(path: &Path) -> Vec<u8> {
    fs::read(path.join("control")).expect("the control file")[LINES].to_vec()
}

fn set_lines(path: &Path, lines: &[u8]) {
    let control = File::new().write(true).open(path.join("control")).expect("the control file");
    control.write_all_at(lines, LINES.start as u64).expect("room for them");
}

/// The clock's speed is measured in a few milliseconds, so it is off by a little; a mistake in the
/// arithmetic would put it off by a lot.
#[test]
fn it_runs_at_the_speed_of_time() {
    let (_dir, pool) = pool();
    let clock = pool.clock();
    assert!(clock.now() < 60_000_000_000, "counts from the pool's creation");
    // Between two readings of the other clock, however long other processes run in between.
    let look = || (Instant::now(), clock.now(), Instant::now());
    let (outer_begin, before, inner_begin) = look();
    thread::sleep(Duration::from_millis(200));
    let (inner_end, after, outer_end) = look();
    let measured = after - before;
    let nanoseconds = |span: Duration| span.as_nanos() as u64;
    let least = nanoseconds(inner_end - inner_begin) / 100 * 99;
    let most = nanoseconds(outer_end - outer_begin) / 100 * 101;
    assert!((least..=most).contains(&measured), "{measured}, not {least} to {most}");
}

#[test]
fn openings_that_race_to_measure_it_end_with_one_line() {
    let (_dir, pool) = pool();
    for _ in 0..5 {
        set_lines(pool.path(), &[0; LINES.end - LINES.start]);
        let together = Barrier::new(6);
        let measure = || {
            together.wait();
            format!("{:?}", open(pool.path()).clock())
        };
        let found: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(measure)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(found.iter().all(|clock| *clock == found[0]), "{found:?}");
        let lines = lines(pool.path());
        assert!(lines[..LINE_USED].iter().any(|&byte| byte != 0));
        assert!(lines[LINE..].iter().all(|&byte| byte == 0), "one line was left");
    }
}

#[test]
fn a_damaged_line_is_measured_anew() {
    let (_dir, pool) = pool();
    let clock = pool.clock();
    let whole = lines(pool.path());
    for at in (0..LINE_USED).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        set_lines(pool.path(), &damaged);
        let anew = open(pool.path()).clock();
        assert_ne!(format!("{anew:?}"), format!("{clock:?}"), "byte {at}");
        assert!(anew.now().abs_diff(clock.now()) < 100_000_000, "byte {at}");
    }
}

/// After a restart the counter starts anew, so a line from before must not be used; after many
/// restarts the oldest is replaced.
#[test]
fn every_boot_has_a_line_of_its_own() {
    let (_dir, pool) = pool();
    let ours = lines(pool.path())[..LINE].to_vec();
    let mut full: Vec<u8> = Vec::new();
    for boot in 1..=8_u8 {
        let mut line = vec![boot; LINE];
        // When the line was measured: the fourth is the oldest.
        let age = if boot == 4 { 1 } else { 1000 + u64::from(boot) };
        line[32..40].copy_from_slice(&age.to_le_bytes());
        full.extend(line);
    }
    set_lines(pool.path(), &full);
    let clock = open(pool.path()).clock();
    assert!(clock.now().abs_diff(pool.clock().now()) < 100_000_000);
    let after = lines(pool.path());
    for place in 0..8 {
        let (before, after) = (&full[place * LINE..][..LINE], &after[place * LINE..][..LINE]);
        if place == 3 {
            assert_eq!(after[..16], ours[..16], "this boot's line is there");
        } else {
            assert_eq!(before, after, "line {place} stays");
        }
    }
    assert_eq!(format!("{:?}", open(pool.path()).clock()), format!("{clock:?}"));
}
