//! The format of backups: `docs/BACKUP.md` has it to the byte.
//!
//! The invariant: *whatever was changed, cut off, left out, doubled or put elsewhere is noticed before a key of that block is
//! handed out*. Each block says what it is, how long, and its number, and has a checksum for that and one for its body,
//! both seeded with what this backup alone is called; the last one says how many keys and bytes there were.

use std::fmt;
use std::io::{self, ErrorKind, Read};

use swarm_core::layout::{MAX_KEY, MAX_VALUE};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The version of the format that this program writes. It reads the earlier ones, too: version 1 has no deadlines.
pub const VERSION: u32 = 2;

/// What a backup begins with. No text does, and a transfer that takes it for text changes it.
const MAGIC: [u8; 8] = *b"\x89SWMBAK\n";
/// Bytes of the header.
const HEADER: usize = 64;
/// Those of them that are the same in every version: magic, version, and their checksum.
const FRONT: usize = 24;
/// Bytes of a block in front of its body.
const HEAD: usize = 32;
/// Bytes of a pair in front of its key: lengths of key and value.
const LENGTHS: usize = 4;
/// The bit of them that says that a deadline follows, from version 2 on.
const EXPIRES: u32 = 1 << 31;
/// Bytes of a deadline.
const DEADLINE: usize = 8;
/// A body is no longer than this, but for one of a single pair.
const BODY: usize = 256 << 10;
/// Nor is such a one longer than this.
const LONGEST: usize = LENGTHS + DEADLINE + MAX_KEY + MAX_VALUE;
/// Bytes of the last block's body.
const END_BODY: usize = 24;

const DATA: [u8; 4] = *b"data";
const END: [u8; 4] = *b"end.";

/// How much there is in a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

impl Counts {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.keys += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

/// Makes the bytes of a backup, in memory.
pub struct Encoder {
    name: u64,
    number: u64,
    counts: Counts,
    /// The block under way, its head to be filled in.
    block: Vec<u8>,
    /// What is whole, and was not taken yet.
    whole: Vec<u8>,
}

impl Encoder {
    /// Of a backup that is begun now, in nanoseconds since 1970, under a name that no other has.
    pub fn new(name: u64, begun: u64) -> Self {
        let mut whole = Vec::with_capacity(2 * BODY);
        whole.extend(MAGIC);
        whole.extend(VERSION.to_le_bytes());
        whole.extend([0; 4]);
        whole.extend(xxh3_64_with_seed(&whole, 0).to_le_bytes());
        whole.extend(name.to_le_bytes());
        whole.extend(begun.to_le_bytes());
        whole.resize(HEADER - 8, 0);
        whole.extend(xxh3_64_with_seed(&whole, 0).to_le_bytes());
        Self { name, number: 0, counts: Counts::default(), block: vec![0; HEAD], whole }
    }

    /// Takes in a pair. A key has 1 to [`MAX_KEY`] bytes, a value [`MAX_VALUE`] at most; `expires` says when it expires, if
    /// it does, in nanoseconds since 1970.
    pub fn push(&mut self, key: &[u8], value: &[u8], expires: Option<u64>) {
        assert!((1..=MAX_KEY).contains(&key.len()) && value.len() <= MAX_VALUE, "a store's pair");
        let length = LENGTHS + expires.map_or(0, |_| DEADLINE) + key.len() + value.len();
        if self.block.len() > HEAD && self.block.len() - HEAD + length > BODY {
            self.end_block(DATA);
        }
        let flag = expires.map_or(0, |_| EXPIRES);
        let lengths = flag | ((value.len() as u32) << 8) | key.len() as u32;
        self.block.extend_from_slice(&lengths.to_le_bytes());
        self.block.extend(expires.iter().flat_map(|expires| expires.to_le_bytes()));
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.counts.add(key, value);
    }

    /// How much was taken in.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The bytes that are to be written next.
    pub fn whole(&self) -> &[u8] {
        &self.whole
    }

    /// They were written.
    pub fn written(&mut self) {
        self.whole.clear();
    }

    /// There are no more pairs: makes whole what is left, and the end, at `ended` nanoseconds since 1970.
    pub fn end(&mut self, ended: u64) {
        if self.block.len() > HEAD {
            self.end_block(DATA);
        }
        let Counts { keys, bytes } = self.counts;
        for word in [keys, bytes, ended] {
            self.block.extend(word.to_le_bytes());
        }
        self.end_block(END);
    }

    fn end_block(&mut self, kind: [u8; 4]) {
        let (head, body) = self.block.split_at_mut(HEAD);
        head.copy_from_slice(
            &Head { kind, length: body.len(), number: self.number }.encode(body, self.name),
        );
        self.whole.append(&mut self.block);
        self.block.resize(HEAD, 0);
        self.number += 1;
    }
}

/// What a block says of itself.
struct Head {
    kind: [u8; 4],
    length: usize,
    number: u64,
}

impl Head {
    fn encode(&self, body: &[u8], name: u64) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&self.kind);
        head[4..8].copy_from_slice(&(self.length as u32).to_le_bytes());
        head[8..16].copy_from_slice(&self.number.to_le_bytes());
        head[16..24].copy_from_slice(&xxh3_64_with_seed(body, name).to_le_bytes());
        let sum = xxh3_64_with_seed(&head[..24], name);
        head[24..].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// The head, and its body's checksum. `None` if it is damaged, or of another backup.
    fn decode(head: &[u8; HEAD], name: u64) -> Option<(Self, u64)> {
        if word(&head[24..]) != xxh3_64_with_seed(&head[..24], name) {
            return None;
        }
        let [a, b, c, d, e, f, g, h, ..] = *head;
        let length = u32::from_le_bytes([e, f, g, h]) as usize;
        Some((Self { kind: [a, b, c, d], length, number: word(&head[8..]) }, word(&head[16..])))
    }
}

/// The first eight bytes, as a number.
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Why a backup is not taken.
#[derive(Debug)]
pub enum Bad {
    /// It cannot be read.
    Unreadable(io::Error),
    /// It is none.
    Other,
    /// It is of another version of the format.
    Version(u32),
    /// Its header is damaged or cut off.
    Header,
    /// It ends before its end mark.
    Cut(Position),
    /// Something in it is not as it was written.
    Damaged(Position, &'static str),
}

/// A place in a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The block, counted from 0.
    pub block: u64,
    /// The byte at which that begins.
    pub byte: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}, which begins at byte {}", self.block, self.byte)
    }
}

impl Bad {
    /// Where.
    pub fn position(&self) -> Option<Position> {
        match self {
            Self::Cut(position) | Self::Damaged(position, _) => Some(*position),
            _ => None,
        }
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => write!(f, "cannot be read: {why}"),
            Self::Other => f.write_str("is no backup of swarm's"),
            Self::Version(version) => {
                write!(
                    f,
                    "is a backup of version {version} of the format; this swarm reads 1 to {VERSION}"
                )
            }
            Self::Header => f.write_str("is damaged or cut off in its first 64 bytes"),
            Self::Cut(position) => {
                write!(f, "is cut off: it ends within {position}, before its end mark")
            }
            Self::Damaged(position, what) => write!(f, "is damaged: {what} {position}"),
        }
    }
}

/// Reads a backup, block by block.
pub struct Decoder<'r> {
    input: Box<dyn Read + 'r>,
    version: u32,
    name: u64,
    begun: u64,
    position: Position,
    counts: Counts,
    body: Vec<u8>,
}

impl<'r> Decoder<'r> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is no backup that this program reads.
    pub fn new(mut input: Box<dyn Read + 'r>) -> Result<Self, Bad> {
        let mut header = [0; HEADER];
        let length = fill(&mut *input, &mut header)?;
        let front = &header[..FRONT];
        if length < MAGIC.len() && MAGIC.starts_with(&header[..length]) && length > 0 {
            return Err(Bad::Header);
        }
        if !front.starts_with(&MAGIC) {
            return Err(Bad::Other);
        }
        if length < FRONT || word(&front[FRONT - 8..]) != xxh3_64_with_seed(&front[..FRONT - 8], 0)
        {
            return Err(Bad::Header);
        }
        let version = word(&front[8..]) as u32;
        if !(1..=VERSION).contains(&version) {
            return Err(Bad::Version(version));
        }
        if length < HEADER
            || word(&header[HEADER - 8..]) != xxh3_64_with_seed(&header[..HEADER - 8], 0)
        {
            return Err(Bad::Header);
        }
        let (name, begun) = (word(&header[FRONT..]), word(&header[FRONT + 8..]));
        let position = Position { block: 0, byte: HEADER as u64 };
        let (counts, body) = Default::default();
        Ok(Self { input, version, name, begun, position, counts, body })
    }

    /// When the backup was begun, nanoseconds since 1970.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// How much was in the blocks so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How many bytes were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.position.byte
    }

    /// The pairs of the next block, which is whole. `None` behind the last one, if the backup is whole.
    ///
    /// # Errors
    /// The block is damaged, or not all there.
    pub fn next_block(&mut self) -> Result<Option<Pairs<'_>>, Bad> {
        let position = self.position;
        let damaged = |what| Err(Bad::Damaged(position, what));
        let mut head = [0; HEAD];
        if fill(&mut *self.input, &mut head)? < HEAD {
            return Err(Bad::Cut(position));
        }
        let Some((Head { kind, length, number }, sum)) = Head::decode(&head, self.name) else {
            return damaged("what says how long it is, in");
        };
        if number != position.block {
            return damaged("another block is in the place of");
        }
        if !matches!(kind, DATA | END) || length > LONGEST {
            return damaged("there is nothing of this version in");
        }
        self.body.resize(length, 0);
        if fill(&mut *self.input, &mut self.body)? < length {
            return Err(Bad::Cut(position));
        }
        if sum != xxh3_64_with_seed(&self.body, self.name) {
            return damaged("the checksum does not agree with");
        }
        self.position =
            Position { block: number + 1, byte: position.byte + (HEAD + length) as u64 };
        if kind == END {
            self.end(position)?;
            return Ok(None);
        }
        let pairs = Pairs { rest: &self.body, have_deadlines: self.version > 1 };
        let mut all = pairs.clone();
        for (key, value, _) in &mut all {
            self.counts.add(key, value);
        }
        if !all.rest.is_empty() {
            return damaged("something else than keys and values is in");
        }
        Ok(Some(pairs))
    }

    /// Whether what the last block says agrees with what came before, and nothing follows it.
    fn end(&mut self, position: Position) -> Result<(), Bad> {
        let Counts { keys, bytes } = self.counts;
        if self.body.len() != END_BODY || [keys, bytes] != [word(&self.body), word(&self.body[8..])]
        {
            return Err(Bad::Damaged(
                position,
                "more or fewer keys came before than are counted in",
            ));
        }
        if fill(&mut *self.input, &mut [0])? > 0 {
            return Err(Bad::Damaged(position, "something follows the end mark, which is"));
        }
        Ok(())
    }
}

/// Reads as many bytes as there are, up to the length of `into`.
fn fill(input: &mut dyn Read, into: &mut [u8]) -> Result<usize, Bad> {
    let mut filled = 0;
    while filled < into.len() {
        match input.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Bad::Unreadable(error)),
        }
    }
    Ok(filled)
}

/// The keys and values of a block, and when each expires, if it does, in nanoseconds since 1970.
#[derive(Clone)]
pub struct Pairs<'b> {
    rest: &'b [u8],
    have_deadlines: bool,
}

impl<'b> Iterator for Pairs<'b> {
    type Item = (&'b [u8], &'b [u8], Option<u64>);

    fn next(&mut self) -> Option<Self::Item> {
        let (lengths, mut rest) = self.rest.split_first_chunk::<LENGTHS>()?;
        let mut lengths = u32::from_le_bytes(*lengths);
        let mut expires = None;
        if self.have_deadlines && lengths & EXPIRES != 0 {
            let (deadline, after) = rest.split_first_chunk::<DEADLINE>()?;
            (expires, rest) = (Some(u64::from_le_bytes(*deadline)), after);
            lengths &= !EXPIRES;
        }
        let (key, value) = ((lengths & 0xff) as usize, (lengths >> 8) as usize);
        if key == 0 || value > MAX_VALUE {
            return None;
        }
        let (key, rest) = rest.split_at_checked(key)?;
        let (value, rest) = rest.split_at_checked(value)?;
        self.rest = rest;
        Some((key, value, expires))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (Vec<u8>, Vec<u8>, Option<u64>);

    fn encoded(pairs: &[Pair]) -> Vec<u8> {
        let mut encoder = Encoder::new(0x1234_5678_9abc_def0, 77);
        pairs.iter().for_each(|(key, value, expires)| encoder.push(key, value, *expires));
        encoder.end(78);
        encoder.whole().to_vec()
    }

    /// All that is handed out, and what comes in the end.
    fn decoded(file: &[u8]) -> (Vec<Pair>, Result<(), Bad>) {
        let mut pairs = Vec::new();
        let mut decoder = match Decoder::new(Box::new(file)) {
            Ok(decoder) => decoder,
            Err(bad) => return (pairs, Err(bad)),
        };
        loop {
            match decoder.next_block() {
                Ok(Some(block)) => {
                    pairs.extend(block.map(|(k, v, expires)| (k.to_vec(), v.to_vec(), expires)));
                }
                Ok(None) => {
                    assert_eq!(decoder.counts().keys, pairs.len() as u64);
                    assert_eq!(decoder.bytes_read(), file.len() as u64);
                    return (pairs, Ok(()));
                }
                Err(bad) => return (pairs, Err(bad)),
            }
        }
    }

    /// Pairs of several blocks, the last ones short. Every other one expires.
    fn some(values: &[usize]) -> Vec<Pair> {
        let pair = |(at, &length): (usize, &usize)| {
            let expires = (at % 2 == 1).then_some(!(at as u64) << 7);
            (vec![at as u8; 1 + 127 * at % 255], vec![!at as u8; length], expires)
        };
        values.iter().enumerate().map(pair).collect()
    }

    #[test]
    fn what_goes_in_comes_out() {
        for values in [
            &[][..],
            &[0],
            &[5, 0, 9],
            &[MAX_VALUE, 3, MAX_VALUE, MAX_VALUE],
            &[BODY - 5, 1, 1, BODY, BODY - 200, BODY / 2, BODY / 2, 7],
        ] {
            let pairs = some(values);
            let (found, end) = decoded(&encoded(&pairs));
            assert!(found == pairs, "{values:?}");
            end.expect("it is whole");
        }
        let pairs: Vec<Pair> =
            (0..30_000_u32).map(|n| (n.to_le_bytes().to_vec(), vec![7; 24], None)).collect();
        let file = encoded(&pairs);
        assert!(decoded(&file).0 == pairs);
        // Bodies are nearly full.
        assert!(file.len() <= pairs.len() * 32 + 5 * HEAD + HEADER + END_BODY, "{}", file.len());
    }

    /// The layout is a promise: this is what `docs/BACKUP.md` says, byte by byte.
    #[test]
    fn the_bytes_are_those_that_are_documented() {
        let file = encoded(&[
            (b"k".to_vec(), b"value".to_vec(), None),
            (b"e".to_vec(), b"".to_vec(), Some(0x0102)),
        ]);
        assert_eq!(file[..12], *b"\x89SWMBAK\n\x02\0\0\0");
        assert_eq!(file[12..16], [0; 4]);
        let sum = |bytes: &[u8], seed| xxh3_64_with_seed(bytes, seed).to_le_bytes();
        let name: u64 = 0x1234_5678_9abc_def0;
        assert_eq!(file[16..24], sum(&file[..16], 0));
        assert_eq!(file[24..32], name.to_le_bytes());
        assert_eq!(file[32..40], 77_u64.to_le_bytes());
        assert_eq!(file[40..56], [0; 16]);
        assert_eq!(file[56..64], sum(&file[..56], 0));
        let (block, end) = file[64..].split_at(32 + 10 + 13);
        assert_eq!(block[..16], *b"data\x17\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(block[32..], *b"\x01\x05\0\0kvalue\x01\0\0\x80\x02\x01\0\0\0\0\0\0e");
        assert_eq!(end[..16], *b"end.\x18\0\0\0\x01\0\0\0\0\0\0\0");
        let words = [2_u64, 7, 78].map(u64::to_le_bytes).concat();
        assert_eq!(end[32..], words);
        for block in [block, end] {
            assert_eq!(block[16..24], sum(&block[32..], name));
            assert_eq!(block[24..32], sum(&block[..24], name));
        }
    }

    /// Wherever it is cut off it is refused, and all that is handed out before was there.
    #[test]
    fn a_backup_that_is_cut_off_anywhere_is_refused() {
        let mut encoder = Encoder::new(5, 0);
        let pairs = some(&[9, 0, 30, 2, 60]);
        for (key, value, expires) in &pairs {
            encoder.push(key, value, *expires);
            encoder.end_block(DATA);
        }
        encoder.end(0);
        let file = encoder.whole();
        assert!(decoded(file).1.is_ok());
        for end in 0..file.len() {
            let (found, bad) = decoded(&file[..end]);
            assert!(found == pairs[..found.len()], "{end}");
            let bad = bad.expect_err("it is cut off");
            match &bad {
                Bad::Other => assert_eq!(end, 0),
                Bad::Header => assert!(end < HEADER, "{end}"),
                Bad::Cut(position) => {
                    assert!((HEADER..=end).contains(&(position.byte as usize)), "{end}: {bad}");
                    assert_eq!(position.block, found.len() as u64, "{end}: {bad}");
                }
                bad => panic!("{end}: {bad}"),
            }
        }
        let (_, more) = decoded(&[file, b"x"].concat());
        assert!(matches!(more, Err(Bad::Damaged(..))), "{more:?}");
    }

    /// Each bit counts, and a block that has one changed is not handed out.
    #[test]
    fn a_bit_that_is_changed_anywhere_is_noticed_in_its_block() {
        let pairs = some(&[9, 0, 12]);
        let mut encoder = Encoder::new(6, 1);
        for (key, value, expires) in &pairs {
            encoder.push(key, value, *expires);
            encoder.end_block(DATA);
        }
        encoder.end(0);
        let mut file = encoder.whole().to_vec();
        for bit in 0..8 * file.len() {
            file[bit / 8] ^= 1 << (bit % 8);
            let (found, bad) = decoded(&file);
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(found == pairs[..found.len()], "bit {bit}");
            match bad.expect_err("it is changed") {
                Bad::Other => assert!(bit < 64),
                Bad::Header => assert!(bit < 8 * HEADER),
                Bad::Damaged(position, _) => {
                    assert!(position.byte as usize <= bit / 8, "bit {bit}: {position}");
                    assert_eq!(position.block, found.len() as u64, "bit {bit}: {position}");
                }
                bad => panic!("bit {bit}: {bad}"),
            }
        }
    }

    #[test]
    fn blocks_that_are_missing_doubled_swapped_or_another_backups_are_noticed() {
        let of = |name| {
            let mut encoder = Encoder::new(name, 1);
            for (key, value, _) in some(&[9, 9, 9]) {
                encoder.push(&key[..1], &value, None);
                encoder.end_block(DATA);
            }
            encoder.end(0);
            encoder.whole().to_vec()
        };
        let (file, other) = (of(1), of(2));
        let block = HEAD + LENGTHS + 1 + 9;
        let at = |file: &[u8], number: usize| file[HEADER + number * block..][..block].to_vec();
        let end = |file: &[u8]| file[HEADER + 3 * block..].to_vec();
        let header = file[..HEADER].to_vec();
        let [first, second, third] = [0, 1, 2].map(|number| at(&file, number));
        let whole = [&header, &first, &second, &third, &end(&file)].map(|part| &part[..]).concat();
        assert!(decoded(&whole).1.is_ok());
        let cases = [
            vec![&header, &first, &third],
            vec![&header, &first, &first, &second, &third],
            vec![&header, &second, &first, &third],
            vec![&header, &first, &second],
        ];
        for case in cases {
            let mut changed: Vec<u8> = case.into_iter().flatten().copied().collect();
            changed.extend(end(&file));
            assert!(matches!(decoded(&changed).1, Err(Bad::Damaged(..))));
        }
        let strange = [header, first, at(&other, 1), third, end(&file)].concat();
        let bad = decoded(&strange).1.expect_err("a block is another's");
        assert_eq!(bad.position(), Some(Position { block: 1, byte: (HEADER + block) as u64 }));
    }

    /// The same file, as if another version had written it.
    fn of_version(mut file: Vec<u8>, version: u32) -> Vec<u8> {
        file[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = xxh3_64_with_seed(&file[..16], 0);
        file[16..24].copy_from_slice(&sum.to_le_bytes());
        let sum = xxh3_64_with_seed(&file[..HEADER - 8], 0);
        file[HEADER - 8..HEADER].copy_from_slice(&sum.to_le_bytes());
        file
    }

    /// What version 1 wrote is as it is now where nothing expires. There a value that would expire is one that is too long.
    #[test]
    fn what_version_1_wrote_is_read() {
        let pair = |expires| vec![(b"key".to_vec(), b"value".to_vec(), expires)];
        let file = of_version(encoded(&pair(None)), 1);
        let (pairs, end) = decoded(&file);
        assert_eq!(pairs, pair(None));
        end.expect("it is whole");
        let (pairs, end) = decoded(&of_version(encoded(&pair(Some(5))), 1));
        assert!(pairs.is_empty() && matches!(end, Err(Bad::Damaged(..))));
        let (_, end) = decoded(&of_version(encoded(&pair(None)), 0));
        assert!(matches!(end, Err(Bad::Version(0))));
    }

    /// What a later version writes is refused by its number, whatever else is in it.
    #[test]
    fn a_version_of_the_future_is_reported() {
        let mut file = of_version(encoded(&some(&[9])), 3);
        file.truncate(30);
        let bad = decoded(&file).1.expect_err("it is of version 3");
        assert!(matches!(bad, Bad::Version(3)), "{bad}");
        assert!(bad.to_string().contains("version 3"), "{bad}");
        // A version that is damaged is not one.
        file[8] = 4;
        assert!(matches!(decoded(&file).1, Err(Bad::Header)));
        assert!(matches!(decoded(b"key\tvalue\n").1, Err(Bad::Other)));
        assert!(matches!(decoded(b"").1, Err(Bad::Other)));
    }
}
