//! A model of registers that are reclaimed by eras beside a stopped writer, or not at all
//! (ARCHITECTURE, "A stopped client pins what others retire").
//!
//! One key, whose register is at three nodes. The *writer* S posts its stamp to node 0, and then to
//! node 1, of the register that was listed when it began. The *others* write and move the key,
//! whole operations at a time. A move freezes two nodes, lists a new register that names its
//! predecessor and the largest stamp found (its origin), and retires the old register. If S finds
//! a frozen node, it walks back from the listed register to the one that replaced its own, and goes
//! by the origin there (V4, V5). S has announced the era in which it began. Every interleaving is
//! played.

use std::collections::{HashMap, VecDeque};

/// Room for registers.
const PLACES: usize = 3;
const WRITES: u8 = 2;
const MOVES: u8 = 4;
const MOVE: &str = "others freeze 0, 1, move";

/// Where a register lies, and its number, which no other has.
type Name = (u8, u8);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Register {
    number: u8,
    stamps: [u8; 3],
    frozen: [bool; 3],
    predecessor: Option<Name>,
    origin: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Free,
    /// Born in this era.
    Listed(u8),
    /// Created and retired in these eras.
    Retired(u8, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Idle,
    /// It posts to this node of this register.
    Posts(usize, Name),
    FindsOut(Name),
    WritesAgain,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    era: u8,
    registers: [Register; PLACES],
    places: [Place; PLACES],
    listed: u8,
    /// The largest stamp of the others, of all, and of the last write that was complete.
    numbers: u8,
    clock: u8,
    current: u8,
    writes: u8,
    moves: u8,
    writer: Writer,
    /// The stamps of S: at first, and when it writes again.
    own: [u8; 2],
    /// The era that it has announced.
    announced: u8,
    /// The write that was complete when it began.
    before: u8,
    /// Its value was the key's at some time.
    was_current: bool,
    broken: Option<Broken>,
}

/// What no order of the operations explains.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Broken {
    /// S returned, and what was complete before it began is the value.
    Lost,
    /// The value of S was overwritten, and is the value again.
    Twice,
}

/// What keeps a retired register beside S.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The epoch, as it is.
    Epochs,
    /// Only an announced era in which it lived.
    Eras,
}

/// What all interleavings showed.
#[derive(Default)]
struct Shown {
    /// The shortest schedule that breaks something, if one does.
    broken: Option<(Broken, Vec<&'static str>)>,
    /// A move found no room for a register while S was in its operation.
    refused: bool,
}

impl State {
    fn start() -> Self {
        let none = Register {
            number: 0,
            stamps: [0; 3],
            frozen: [false; 3],
            predecessor: None,
            origin: 0,
        };
        let mut registers = [none; PLACES];
        registers[0] = Register { number: 1, stamps: [1; 3], origin: 1, ..none };
        let mut places = [Place::Free; PLACES];
        places[0] = Place::Listed(0);
        Self {
            era: 1,
            registers,
            places,
            listed: 0,
            numbers: 1,
            clock: 1,
            current: 1,
            writes: WRITES,
            moves: MOVES,
            writer: Writer::Idle,
            own: [0; 2],
            announced: 0,
            before: 0,
            was_current: false,
            broken: None,
        }
    }

    fn listed(&self) -> Name {
        (self.listed, self.registers[usize::from(self.listed)].number)
    }

    /// The register of that name, if its place was not used again.
    fn find(&self, (place, number): Name) -> Option<&Register> {
        Some(&self.registers[usize::from(place)]).filter(|it| it.number == number)
    }

    /// A stamp is complete, or the origin of the listed register: readers return its value.
    fn complete(&mut self, stamp: u8) {
        let is_own = self.own.contains(&stamp);
        if is_own && self.was_current && !self.own.contains(&self.current) {
            self.broken = Some(Broken::Twice);
        }
        self.was_current |= is_own;
        self.current = stamp;
    }

    fn end(mut self) -> Self {
        if self.current == self.before {
            self.broken = Some(Broken::Lost);
        }
        self.writer = Writer::Done;
        self
    }

    /// Another client writes, where no move is half-way.
    fn write(mut self) -> Self {
        self.clock += 1;
        self.writes -= 1;
        // S holds its stamp at one node at most by now, or is complete.
        self.registers[usize::from(self.listed)].stamps[1..].fill(self.clock);
        self.complete(self.clock);
        self
    }

    /// Another client moves the key. It freezes all nodes but `without`.
    fn move_on(mut self, without: usize, to: usize) -> Self {
        let old = self.listed();
        let register = &mut self.registers[usize::from(old.0)];
        let frozen = (0..3).filter(|node| *node != without);
        frozen.clone().for_each(|node| register.frozen[node] = true);
        let origin = frozen.map(|node| register.stamps[node]).max().expect("two nodes");
        self.numbers += 1;
        self.registers[to] = Register {
            number: self.numbers,
            stamps: [origin; 3],
            frozen: [false; 3],
            predecessor: Some(old),
            origin,
        };
        let Place::Listed(created_at) = self.places[usize::from(old.0)] else {
            unreachable!("it was listed")
        };
        self.places[usize::from(old.0)] = Place::Retired(created_at, self.era);
        self.era += 1;
        self.places[to] = Place::Listed(self.era);
        self.listed = to as u8;
        self.moves -= 1;
        if origin != self.current {
            self.complete(origin);
        }
        self
    }

    /// Room for a register.
    fn room(&mut self, rule: Rule) -> Option<usize> {
        let is_in_operation = !matches!(self.writer, Writer::Idle | Writer::Done);
        let announced = self.announced;
        for place in &mut self.places {
            if let Place::Retired(created_at, end) = *place {
                let is_kept = match rule {
                    Rule::Epochs => true,
                    Rule::Eras => (created_at..=end).contains(&announced),
                };
                if !(is_in_operation && is_kept) {
                    *place = Place::Free;
                }
            }
        }
        self.places.iter().position(|place| *place == Place::Free)
    }

    /// Whether S's write took effect, by the origin of the register that replaced `own` (V4); `None`
    /// as the origin: no walk leads there.
    fn stands(&self, own: Name, is_verified: bool) -> bool {
        let mut at = self.listed();
        let origin = loop {
            let Some(before) = self.find(at).and_then(|it| it.predecessor) else { break None };
            if before == own {
                break self.find(at).map(|it| it.origin);
            }
            at = before;
        };
        match origin {
            Some(origin) if origin <= self.own[0] => origin == self.own[0],
            // It came before, with its lock. No reader has locked a guess here.
            _ => is_verified,
        }
    }
}

/// Plays all interleavings of S, whose stamp is a guess or verified, with the others.
fn play(rule: Rule, is_verified: bool) -> Shown {
    let start = State::start();
    let (mut came, mut open) = (HashMap::from([(start, None)]), VecDeque::from([start]));
    let mut shown = Shown::default();
    while let Some(state) = open.pop_front() {
        if let Some(broken) = state.broken {
            let back = |at: &(State, &'static str)| came[&at.0];
            let steps = std::iter::successors(came[&state], back).map(|(_, step)| step);
            let mut steps: Vec<_> = steps.collect();
            steps.reverse();
            shown.broken = Some((broken, steps));
            break;
        }
        let mut next = Vec::new();
        if state.writes > 0 {
            next.push(("others write", state.write()));
        }
        if state.moves > 0 {
            let mut state = state;
            let names = ["others freeze 1, 2, move", "others freeze 0, 2, move", MOVE];
            match state.room(rule) {
                Some(to) => {
                    let move_on = |node| (names[node], state.move_on(node, to));
                    next.extend([2, 1, 0].map(move_on));
                }
                None => shown.refused = true,
            }
        }
        next.extend(writer_goes_on(state, is_verified));
        for (step, after) in next {
            came.entry(after).or_insert_with(|| {
                open.push_back(after);
                Some((state, step))
            });
        }
    }
    println!("{} states", came.len());
    shown
}

/// The next step of S, and what is so after it.
fn writer_goes_on(mut state: State, is_verified: bool) -> Option<(&'static str, State)> {
    let step = match state.writer {
        Writer::Idle => {
            state.clock += 1;
            state.own[0] = state.clock;
            (state.announced, state.before) = (state.era, state.current);
            state.writer = Writer::Posts(0, state.listed());
            "S begins"
        }
        Writer::Posts(node, own @ (place, _)) => {
            // Its own register lived when it began: by either rule it is there.
            let stamp = state.own[0];
            let register = &mut state.registers[usize::from(place)];
            if register.frozen[node] {
                state.writer = Writer::FindsOut(own);
                "S finds a frozen node"
            } else {
                register.stamps[node] = register.stamps[node].max(stamp);
                let is_largest = register.stamps[node] == stamp;
                state.writer = Writer::Posts(1, own);
                if node == 1 {
                    if is_largest && state.listed() == own {
                        state.complete(stamp);
                    }
                    return Some(("S posts, and returns", state.end()));
                }
                "S posts"
            }
        }
        Writer::FindsOut(own) if state.stands(own, is_verified) => {
            return Some(("S walks, and returns", state.end()));
        }
        Writer::FindsOut(_) => {
            state.writer = Writer::WritesAgain;
            "S walks"
        }
        Writer::WritesAgain => {
            state.clock += 1;
            state.own[1] = state.clock;
            state.registers[usize::from(state.listed)].stamps.fill(state.clock);
            state.complete(state.clock);
            return Some(("S writes again, and returns", state.end()));
        }
        Writer::Done => return None,
    };
    Some((step, state))
}

/// A writer that is overtaken by moves finds out what became of its write, and the others find no room.
#[test]
fn registers_that_epochs_keep_show_a_writer_what_became_of_its_write() {
    for is_verified in [false, true] {
        let shown = play(Rule::Epochs, is_verified);
        assert_eq!(shown.broken, None);
        assert!(shown.refused);
    }
}

/// The others find room, and the line that a walk would follow is broken: the register that
/// replaced that of S was created and retired after S announced its era. A guess, which the first move
/// took along, is written again. A verified stamp, which no move found, counts as written.
#[test]
fn registers_that_are_used_again_by_eras_lose_a_write_or_apply_it_twice() {
    let guess = play(Rule::Eras, false);
    let steps = [
        &["S begins", "S posts", MOVE, "others write", MOVE, MOVE][..],
        &["S finds a frozen node", "S walks", "S writes again, and returns"],
    ];
    assert_eq!(guess.broken, Some((Broken::Twice, steps.concat())));
    let verified = play(Rule::Eras, true);
    let steps = ["S begins", MOVE, MOVE, MOVE, "S finds a frozen node", "S walks, and returns"];
    assert_eq!(verified.broken, Some((Broken::Lost, steps.to_vec())));
    assert!(!guess.refused && !verified.refused);
}
