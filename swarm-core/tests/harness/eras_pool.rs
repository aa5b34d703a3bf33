//! A model of a pool that is written over beside a client that was stopped in a get, were its
//! buffers reclaimed by eras (ARCHITECTURE, "A stopped client pins what others retire").
//!
//! Keys have a register and a buffer each, and are updated in turn. An update takes a buffer,
//! retires the former one, and begins an era. From `lasts` ticks after its birth on a register has
//! no timestamp left: its key moves first. The old register waits for the epoch, which waits for
//! the stopped client (`eras_lines.rs` shows what else would happen). That is all that the stopped
//! client costs here: it announced one era before it stopped, read nothing, and never had to read
//! again.

/// A register that no update outlasts.
const FOR_EVER: usize = usize::MAX;

/// What the stopped client keeps of others' buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Keeps {
    /// Those that lived in the era that it announced: eras by interval, by hazard, wait-free.
    ItsEra,
    /// The one that it is to fetch: were that known before it reads.
    ItsBuffer,
    Nothing,
}

#[derive(Clone, Copy)]
struct Key {
    /// The era in which its buffer was handed out.
    buffer: usize,
    /// The tick at which its register was created.
    register: usize,
}

/// Writes a pool over ten times that has room for so many objects beside registers. Each update
/// takes a tick. Returns how many updates were done before one was refused, if one was.
fn refused_after(room: usize, keys: usize, lasts: usize, keeps: Keeps) -> Option<usize> {
    let mut listed = vec![Key { buffer: 0, register: 0 }; keys];
    let (announced, mut era) = (1, 2);
    let mut free = room.checked_sub(keys).expect("there is room for the keys");
    // Births, and whether it is the one that the stopped client is to fetch.
    let mut retired: Vec<(usize, bool)> = Vec::new();
    let is_kept = |&(created_at, is_its): &(usize, bool)| match keeps {
        // Retired after the client stopped: it lived in that era if it was created by then.
        Keeps::ItsEra => created_at <= announced,
        Keeps::ItsBuffer => is_its,
        Keeps::Nothing => false,
    };
    let mut take = |retired: &mut Vec<(usize, bool)>| {
        if free == 0 {
            free = retired.extract_if(.., |it| !is_kept(it)).count();
        }
        free = free.checked_sub(1)?;
        Some(())
    };
    for update in 0..10 * room {
        let key = update % keys;
        if update - listed[key].register >= lasts {
            if take(&mut retired).is_none() {
                return Some(update);
            }
            listed[key].register = update;
        }
        if take(&mut retired).is_none() {
            return Some(update);
        }
        retired.push((listed[key].buffer, update == 0));
        listed[key].buffer = era;
        era += 1;
    }
    None
}

/// Each key needs a second buffer once, for the one that was there when the client stopped. No kind
/// of eras tells these from the one that it is to fetch.
#[test]
fn a_pool_that_is_half_full_is_not_written_over_by_eras() {
    for keys in 1..=20 {
        for room in keys..=3 * keys + 2 {
            let refused = |keeps| refused_after(room, keys, FOR_EVER, keeps);
            let by_eras = (room <= 2 * keys).then_some(room - keys);
            assert_eq!(refused(Keeps::ItsEra), by_eras, "{keys} keys, room for {room}");
            assert_eq!(refused(Keeps::ItsBuffer).is_some(), room <= keys + 1);
            assert_eq!(refused(Keeps::Nothing).is_some(), room == keys);
        }
    }
}

/// Even where buffers cost nothing: each move keeps a register, and a register lasts for so many
/// ticks, however large the pool is.
#[test]
fn a_pool_whose_registers_end_is_not_written_over_beside_a_stopped_client() {
    // Half full. A register has to last for twenty updates of each key.
    for keys in [2, 10, 50] {
        let refused = |rounds| refused_after(2 * keys, keys, rounds * keys, Keeps::Nothing);
        let after = [1, 3, 10, 18].map(|rounds| {
            let after = refused(rounds).expect("updates are refused");
            println!("{keys} keys, registers of {rounds} rounds: refused after {after} updates");
            after / (2 * keys)
        });
        assert!(after.is_sorted() && after[3] < 10);
        assert_eq!(refused(20), None, "the pool is written over ten times");
    }
    // One key in a pool that is as good as empty.
    assert!(refused_after(1000, 1, 5, Keeps::Nothing).is_some());
}
