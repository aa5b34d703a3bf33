//! Objects of one kind that came back, and when they may be used again.
//!
//! What is retired in one epoch nobody holds any more when the epoch has moved on [`GRACE`] times. Buffers
//! are used again as they are: their next write has a larger number. All else is reset first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use swarm_core::epoch::GRACE;
use swarm_core::layout::Class;
use swarm_core::words::Pointer;

use super::Kind;
use super::ledger::{Found, Ledgers};

/// Retired buffers for which there is room without another allocation.
const ROOM: usize = 16 << 10;

/// For fewer objects than these a collection is not worth it.
const MUCH: usize = 64;

/// Objects of one kind that came back.
pub(super) struct Shelf {
    pub(super) kind: Kind,
    /// Retired buffers, and in which epoch; the earliest first.
    pub(super) retired: VecDeque<(u64, Pointer)>,
    /// Nobody holds these buffers any more. Their locks keep their place.
    pub(super) ready: Vec<Pointer>,
    /// The last of those, if it is known where it lies.
    next: Option<Found>,
    /// Retired objects that are to be reset; the earliest first.
    pub(super) swept: VecDeque<(u64, Pointer)>,
    /// As good as memory that was never used. The first one in memory is used first: what is in use comes to lie close
    /// together, and chunks behind it to be [empty](super::leave).
    fresh: BinaryHeap<Reverse<Pointer>>,
    /// How many there were when garbage was collected last, and came in chunks since.
    had: usize,
}

impl Shelf {
    pub(super) fn new(kind: Kind) -> Self {
        let (swept, fresh, next) = Default::default();
        // Buffers come back on the data path, which allocates nothing.
        let room = if let Class::Homed { .. } = kind.class { 0 } else { ROOM };
        let (retired, ready) = (VecDeque::with_capacity(room), Vec::with_capacity(room));
        Self { kind, retired, ready, next, swept, fresh, had: 0 }
    }

    fn len(&self) -> usize {
        self.retired.len() + self.ready.len() + self.swept.len() + self.fresh.len()
    }

    /// There is another chunk, with so many of them.
    pub(super) fn comes_to(&mut self, more: usize) {
        self.had += more;
    }

    /// Garbage was collected; besides, the chunk at hand has so many.
    pub(super) fn is_collected(&mut self, unused: usize) {
        self.had = self.len() + unused;
    }

    /// Whether most of what there was is used up. What has chunks of its own gives those back by itself.
    pub(super) fn is_used_up(&self, unused: impl Fn(Kind) -> usize) -> bool {
        let is_little = |left| left <= self.had / 4 && left + MUCH <= self.had;
        self.kind.class != Class::Run
            && is_little(self.len())
            && is_little(self.len() + unused(self.kind))
    }

    /// A buffer that came back, where it is [found](Ledgers::buffer); `expect` is told of the one that comes next.
    #[inline(always)]
    pub(super) fn take_found(
        &mut self,
        ledgers: &Ledgers,
        expect: impl FnOnce(&Found),
    ) -> Option<Found> {
        let &buffer = self.ready.last()?;
        let known = self.next.take().filter(|next| next.buffer == buffer);
        let taken = known.or_else(|| ledgers.buffer(buffer))?;
        self.ready.pop();
        if let Some(&next) = self.ready.last()
            && let Some(next) = ledgers.buffer(next)
        {
            expect(&next);
            self.next = Some(next);
        }
        Some(taken)
    }

    /// Takes in an object that is to be reset, retired in this epoch, or no earlier than the last one before.
    pub(super) fn sweep(&mut self, epoch: u64, object: Pointer) {
        let last = self.swept.back().map_or(0, |&(retired, _)| retired);
        self.swept.push_back((epoch.max(last), object));
    }

    /// How many are to be reset.
    pub(super) fn to_reset(&self) -> usize {
        self.swept.len()
    }

    /// How many are at hand.
    pub(super) fn at_hand(&self) -> usize {
        self.ready.len() + self.fresh.len()
    }

    /// How many of those are as good as never used.
    pub(super) fn fresh(&self) -> usize {
        self.fresh.len()
    }

    /// One of those.
    pub(super) fn take_fresh(&mut self) -> Option<Pointer> {
        self.fresh.pop().map(|Reverse(object)| object)
    }

    /// Takes in some that are as good as never used.
    pub(super) fn renewed(&mut self, objects: impl Iterator<Item = Pointer>) {
        self.fresh.extend(objects.map(Reverse));
    }

    /// Takes in the buffers that nobody holds any more in `epoch`, if those are at least so many, and calls
    /// `each` with each. Yields how many there were.
    pub(super) fn reclaim(&mut self, epoch: u64, least: usize, each: impl Fn(Pointer)) -> usize {
        let over = are_over(&self.retired, epoch);
        if over < least {
            return 0;
        }
        for (_, buffer) in self.retired.drain(..over) {
            each(buffer);
            self.ready.push(buffer);
        }
        over
    }

    /// Takes out what is to be reset and nobody holds any more in `epoch`, at most `most`.
    pub(super) fn due(&mut self, epoch: u64, most: usize) -> Vec<Pointer> {
        let over = are_over(&self.swept, epoch).min(most);
        self.swept.drain(..over).map(|(_, object)| object).collect()
    }

    /// Whether something comes back when the epoch moves on from `epoch`; `is_reset`: what is to be reset can be.
    pub(super) fn waits(&self, epoch: u64, is_reset: bool) -> bool {
        let last = [self.retired.back(), self.swept.back().filter(|_| is_reset)];
        last.into_iter().flatten().any(|&(retired, _)| !is_over(retired, epoch))
    }

    /// Retired objects that somebody may still hold in `epoch`.
    pub(super) fn held(&self, epoch: u64) -> impl Iterator<Item = Pointer> {
        let held = move |all: &VecDeque<(u64, Pointer)>| are_over(all, epoch);
        let retired = self.retired.range(held(&self.retired)..);
        retired.chain(self.swept.range(held(&self.swept)..)).map(|&(_, object)| object)
    }

    /// Keeps these objects only.
    pub(super) fn keep(&mut self, is_own: impl Fn(Pointer) -> bool) {
        let before = self.len();
        self.retired.retain(|&(_, object)| is_own(object));
        self.swept.retain(|&(_, object)| is_own(object));
        self.had = self.had.saturating_sub(before - self.len());
        self.keep_at_hand(is_own);
    }

    /// Keeps these only of the objects that are at hand.
    pub(super) fn keep_at_hand(&mut self, is_kept: impl Fn(Pointer) -> bool) {
        let before = self.len();
        self.ready.retain(|&object| is_kept(object));
        // Its chunk may be another ledger's by the time the pointer comes back.
        self.next = None;
        self.fresh.retain(|&Reverse(object)| is_kept(object));
        self.had = self.had.saturating_sub(before - self.len());
    }
}

/// How many of these, the earliest, nobody holds any more in `epoch`.
fn are_over(retired: &VecDeque<(u64, Pointer)>, epoch: u64) -> usize {
    retired.partition_point(|&(retired, _)| is_over(retired, epoch))
}

/// Whether nobody holds in `epoch` what was `retired` then.
fn is_over(retired: u64, epoch: u64) -> bool {
    retired + GRACE <= epoch
}
