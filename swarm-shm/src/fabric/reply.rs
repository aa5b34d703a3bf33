//! Replies: words that the fabric owns and lends out.
//!
//! Buffers are pooled: a chain takes one from a free list, and dropping its reply returns it, last
//! in, first out, so that few of them stay hot in the cache. Once the lists are warm nothing is
//! allocated. A reply that is leaked (`mem::forget`) costs its buffer and nothing else.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::mem;
use core::ops::Deref;

/// Buffers of this many words serve all replies that fit. Longer ones have a list of their own, so
/// that a few long values do not enlarge every buffer.
pub(crate) const SHORT_WORDS: usize = 128;
/// How many free short buffers are kept.
const SHORT_KEPT: usize = 1024;
/// How many free long buffers are kept.
const LONG_KEPT: usize = 64;
/// How many short buffers are allocated at the start.
const SHORT_AT_FIRST: usize = 32;

/// The free buffers of a fabric.
pub(crate) struct Replies {
    /// The short buffer that was returned last.
    last: Cell<Option<Box<[u64]>>>,
    short: RefCell<Vec<Box<[u64]>>>,
    long: RefCell<Vec<Box<[u64]>>>,
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").finish_non_exhaustive()
    }
}

impl Replies {
    pub(crate) fn new() -> Self {
        let mut short = Vec::with_capacity(SHORT_KEPT);
        short.extend((0..SHORT_AT_FIRST).map(|_| allocate(SHORT_WORDS)));
        let long = RefCell::new(Vec::with_capacity(LONG_KEPT));
        Self { last: Cell::default(), short: RefCell::new(short), long }
    }

    /// Takes a buffer of at least `words` words.
    #[inline(always)]
    pub(crate) fn take(&self, words: usize) -> Box<[u64]> {
        match self.last.take() {
            Some(buffer) if buffer.len() >= words => buffer,
            last => {
                self.last.set(last);
                self.take_other(words)
            }
        }
    }

    fn take_other(&self, words: usize) -> Box<[u64]> {
        let list = if words <= SHORT_WORDS { &self.short } else { &self.long };
        let free = list.borrow_mut().pop();
        match free {
            Some(buffer) if buffer.len() >= words => buffer,
            _ => allocate(words),
        }
    }

    /// Lends out the first `words` words of `buffer`.
    #[inline(always)]
    pub(crate) fn lend(&self, buffer: Box<[u64]>, words: usize) -> Reply<'_> {
        Reply { buffer, words, home: self }
    }

    /// Returns a buffer that was not lent out.
    #[cold]
    pub(crate) fn take_back(&self, buffer: Box<[u64]>) {
        self.give_back(buffer);
    }

    #[inline(always)]
    fn give_back(&self, buffer: Box<[u64]>) {
        let other = match buffer.len() <= SHORT_WORDS {
            true => self.last.replace(Some(buffer)),
            false => Some(buffer),
        };
        if let Some(other) = other {
            self.keep(other);
        }
    }

    fn keep(&self, buffer: Box<[u64]>) {
        let list = if buffer.len() <= SHORT_WORDS { &self.short } else { &self.long };
        let mut list = list.borrow_mut();
        // Lists never grow, so that returning a buffer never allocates.
        if list.len() < list.capacity() {
            list.push(buffer);
        } else {
            discard(buffer);
        }
    }
}

#[cold]
fn allocate(words: usize) -> Box<[u64]> {
    let room = if words <= SHORT_WORDS { SHORT_WORDS } else { words.next_power_of_two() };
    vec![0; room].into_boxed_slice()
}

#[cold]
fn discard(buffer: Box<[u64]>) {
    drop(buffer);
}

/// The results of a chain's verbs. Dropping it returns the buffer to the fabric.
pub struct Reply<'f> {
    buffer: Box<[u64]>,
    words: usize,
    home: &'f Replies,
}

impl Deref for Reply<'_> {
    type Target = [u64];

    #[inline(always)]
    fn deref(&self) -> &[u64] {
        &self.buffer[..self.words]
    }
}

impl Drop for Reply<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.home.give_back(mem::take(&mut self.buffer));
    }
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
