//! Chains over shared words.
//!
//! **Invariant:** the verbs of one client take effect on a node in the order in which they were
//! posted, as seen by any other client. A single word is atomic; a READ or WRITE of several may
//! tear. So words are only accessed by relaxed accesses, and the order between *verbs* comes from
//! what is between them:
//!
//! | from    | to      | what keeps the order                                            |
//! | ------- | ------- | --------------------------------------------------------------- |
//! | READ    | any     | the fence after the READ                                        |
//! | CAS     | any     | the fence after the CAS                                         |
//! | WRITE   | CAS     | the CAS releases                                                |
//! | WRITE   | WRITE   | the release fence before the second                             |
//! | WRITE   | READ    | a full fence before the READ, unless a CAS came in between      |
//!
//! *Publication* (I1): a client WRITEs a buffer and then changes a word by a CAS that names it. A
//! client that READs that word sees the buffer in its next READ: the CAS (release) pairs with the
//! fence after the READ (acquire), even if others have changed the word by CAS since, as these
//! carry the release on. *Agreement* (I3): of two clients that each CAS a word and then READ the
//! other's, one sees the other: the full fences after the two CASes pair.
//!
//! On x86-64 all of this is plain loads and stores and one `lock cmpxchg` for a CAS; only a READ
//! that follows a WRITE with no CAS in between costs a fence.

use core::cell::Cell;
use core::mem;

use swarm_core::fabric::{NodeDown, Store, Swap, Verb};
use swarm_core::layout::HEADER_BYTES;
use swarm_core::node::Address;

use crate::words::sync::{Ordering, Word, fence, fence_behind_cas, fence_behind_read};

/// The first word that verbs may access: the header before it is not theirs.
pub const FIRST_WORD: u64 = HEADER_BYTES / 8;

/// Words of a cache line.
const LINE: usize = 8;

/// Words that a READ or a WRITE takes in one iteration of its loop.
const UNROLLED: usize = 8;

/// Runs `chain` on `memory`, a node's words from [`FIRST_WORD`] on, and stores the results of its
/// verbs in `reply`, which has exactly their length. `unfenced` says whether no fence followed the
/// client's last store.
///
/// # Errors
/// A verb lies outside of the memory. It touched nothing; the verbs before it took effect.
#[inline(always)]
pub fn run(
    memory: &[Word],
    chain: &[Verb<'_>],
    unfenced: &Cell<bool>,
    reply: &mut [u64],
) -> Result<(), NodeDown> {
    let mut rest = reply;
    for verb in chain {
        match *verb {
            Verb::Read { at, words } => {
                fetch(memory, at, take(&mut rest, words)?, unfenced)?;
            }
            Verb::Write { at, head, tail } => store(memory, Store { at, head, tail }, unfenced)?,
            Verb::Cas { at, expect, new } => {
                take(&mut rest, 1)?[0] = swap(memory, Swap { at, expect, new }, unfenced)?;
            }
        }
    }
    Ok(())
}

/// Returns the `words` words from `at` on.
#[inline(always)]
fn span(memory: &[Word], at: Address, words: usize) -> Result<&[Word], NodeDown> {
    // An address within the header wraps round to the far end of the address space, and a length
    // that overflows to an end before its start; `get` refuses both.
    let start = at.0.wrapping_sub(FIRST_WORD) as usize;
    memory.get(start..start.wrapping_add(words)).ok_or(NodeDown)
}

/// Calls `each` with the cache lines of `words` words from `at` on, by their first words. They may
/// lie outside of the memory.
#[inline(always)]
fn each_line(memory: &[Word], at: Address, words: usize, each: impl Fn(*const Word)) {
    let first = memory.as_ptr().wrapping_add(at.0.wrapping_sub(FIRST_WORD) as usize);
    let line = |number: usize| each(first.wrapping_add(number * LINE));
    // Up to three without a loop: a register with a short value has no more.
    line(0);
    if words > LINE {
        line(1);
    }
    if words > 2 * LINE {
        line(2);
        (3..words.div_ceil(LINE)).for_each(line);
    }
}

/// Prefetches the cache lines of `words` words from `at` on.
#[inline(always)]
pub(crate) fn prefetch(memory: &[Word], at: Address, words: usize) {
    each_line(memory, at, words, crate::words::sync::prefetch);
}

/// The same for lines that will be stored to.
#[inline(always)]
pub(crate) fn prefetch_change(memory: &[Word], at: Address, words: usize) {
    each_line(memory, at, words, crate::words::sync::prefetch_change);
}

/// Takes the next `words` words of the reply.
#[inline(always)]
fn take<'r>(rest: &mut &'r mut [u64], words: usize) -> Result<&'r mut [u64], NodeDown> {
    let (place, behind) = mem::take(rest).split_at_mut_checked(words).ok_or(NodeDown)?;
    *rest = behind;
    Ok(place)
}

/// Runs one READ of as many words as `place` holds.
///
/// # Errors
/// As [`run`].
#[inline(always)]
pub fn fetch(
    memory: &[Word],
    at: Address,
    place: &mut [u64],
    unfenced: &Cell<bool>,
) -> Result<(), NodeDown> {
    let words = span(memory, at, place.len())?;
    fence_behind_write(unfenced);
    read(words, place);
    Ok(())
}

/// Runs one READ of `N` words.
///
/// # Errors
/// As [`run`].
#[inline(always)]
pub fn load<const N: usize>(
    memory: &[Word],
    at: Address,
    unfenced: &Cell<bool>,
) -> Result<[u64; N], NodeDown> {
    let start = at.0.wrapping_sub(FIRST_WORD) as usize;
    let words = memory.get(start..).and_then(<[Word]>::first_chunk::<N>).ok_or(NodeDown)?;
    fence_behind_write(unfenced);
    let loaded = std::array::from_fn(|i| words[i].load(Ordering::Relaxed));
    fence_behind_read();
    Ok(loaded)
}

/// Runs a WRITE, a CAS and a READ of `N` words. Returns what the CAS found, and the words.
///
/// # Errors
/// As [`run`].
#[inline(always)]
pub fn write_cas_load<const N: usize>(
    memory: &[Word],
    write: Store<'_>,
    cas: Swap,
    at: Address,
    unfenced: &Cell<bool>,
) -> Result<(u64, [u64; N]), NodeDown> {
    store(memory, write, unfenced)?;
    let found = swap(memory, cas, unfenced)?;
    Ok((found, load(memory, at, unfenced)?))
}

/// Runs a WRITE and two CASes. Returns what the second one found.
///
/// # Errors
/// As [`run`].
#[inline(always)]
pub fn write_cas_cas(
    memory: &[Word],
    write: Store<'_>,
    [first, second]: [Swap; 2],
    unfenced: &Cell<bool>,
) -> Result<u64, NodeDown> {
    store(memory, write, unfenced)?;
    swap(memory, first, unfenced)?;
    swap(memory, second, unfenced)
}

/// Runs a WRITE, if there is one, and a CAS.
///
/// # Errors
/// As [`run`].
#[inline(always)]
pub fn write_cas(
    memory: &[Word],
    write: Option<Store<'_>>,
    cas: Swap,
    unfenced: &Cell<bool>,
) -> Result<(), NodeDown> {
    if let Some(write) = write {
        store(memory, write, unfenced)?;
    }
    swap(memory, cas, unfenced)?;
    Ok(())
}

/// Runs a WRITE of `N` zeros at each of these.
///
/// # Errors
/// As [`run`].
#[inline(always)]
pub fn clear<const N: usize>(
    memory: &[Word],
    at: &[Address],
    unfenced: &Cell<bool>,
) -> Result<(), NodeDown> {
    for &at in at {
        let start = at.0.wrapping_sub(FIRST_WORD) as usize;
        let words = memory.get(start..).and_then(<[Word]>::first_chunk::<N>).ok_or(NodeDown)?;
        // As before any WRITE.
        fence(Ordering::Release);
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        unfenced.set(true);
    }
    Ok(())
}

/// Runs one WRITE.
#[inline(always)]
fn store(
    memory: &[Word],
    Store { at, head, tail }: Store<'_>,
    unfenced: &Cell<bool>,
) -> Result<(), NodeDown> {
    write(span(memory, at, head.len() + tail.len().div_ceil(8))?, head, tail);
    unfenced.set(true);
    Ok(())
}

/// Runs one CAS. Returns what it found.
#[inline(always)]
fn swap(
    memory: &[Word],
    Swap { at, expect, new }: Swap,
    unfenced: &Cell<bool>,
) -> Result<u64, NodeDown> {
    let word = memory.get(at.0.wrapping_sub(FIRST_WORD) as usize).ok_or(NodeDown)?;
    let found = cas(word, expect, new);
    unfenced.set(false);
    Ok(found)
}

#[inline(always)]
fn read(words: &[Word], place: &mut [u64]) {
    let (groups, few) = words.as_chunks::<UNROLLED>();
    let (to_groups, to_few) = place.as_chunks_mut::<UNROLLED>();
    for (to, group) in to_groups.iter_mut().zip(groups) {
        *to = std::array::from_fn(|i| group[i].load(Ordering::Relaxed));
    }
    for (to, word) in to_few.iter_mut().zip(few) {
        *to = word.load(Ordering::Relaxed);
    }
    // I1: pairs with the release of the CAS that stored a word just read, and with the release
    // fence before a WRITE that did.
    fence_behind_read();
}

#[inline(always)]
fn write(words: &[Word], head: &[u64], tail: &[u8]) {
    // Pairs with the fence after a READ that sees one of the stores below: it then sees what this
    // client stored before.
    fence(Ordering::Release);
    let (first, rest) = words.split_at(head.len());
    for (word, &value) in first.iter().zip(head) {
        word.store(value, Ordering::Relaxed);
    }
    let (whole, end) = tail.as_chunks::<8>();
    let (groups, few) = whole.as_chunks::<UNROLLED>();
    let (to_groups, to_few) = rest.as_chunks::<UNROLLED>();
    for (to, group) in to_groups.iter().zip(groups) {
        for (word, bytes) in to.iter().zip(group) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }
    let to_few = if few.is_empty() { to_few } else { &rest[whole.len() - few.len()..] };
    for (word, bytes) in to_few.iter().zip(few) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if let Some(word) = rest.get(whole.len()) {
        let mut bytes = [0; 8];
        bytes[..end.len()].copy_from_slice(end);
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

#[inline(always)]
fn cas(word: &Word, expect: u64, new: u64) -> u64 {
    // I1: Release: pairs with the fence after a READ or a CAS that sees `new`; it then sees what
    // this client stored before. A failed CAS stores nothing that could release.
    let found = word.compare_exchange(expect, new, Ordering::Release, Ordering::Relaxed);
    // I3: pairs with the release of the CAS or WRITE that stored what was found, and with the same
    // fence of another client: one of the two sees the other's CAS.
    fence_behind_cas();
    found.unwrap_or_else(|found| found)
}

/// Orders the client's last store before its next loads. Otherwise the processor may do those
/// first.
#[inline(always)]
pub(crate) fn fence_behind_write(unfenced: &Cell<bool>) {
    if unfenced.get() {
        full_fence(unfenced);
    }
}

#[cold]
fn full_fence(unfenced: &Cell<bool>) {
    // Pairs with the full fence after another client's CAS or between its WRITE and its READ.
    fence(Ordering::SeqCst);
    unfenced.set(false);
}
