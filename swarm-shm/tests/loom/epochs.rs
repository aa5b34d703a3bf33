//! The epoch's words: what an operation found is not reused before it is over.

use loom::sync::Arc;
use loom::thread;
use swarm_core::epoch::GRACE;
use swarm_shm::{Word, advance, epoch, generation, pin, pin_beside, remain, renew, unpin};

use super::{Client, Node, cas, explore, read, write};

/// The words of a control file: the epoch, the generation, and one for each of two clients.
struct Control {
    epoch: Word,
    generation: Word,
    clients: [Word; 2],
}

impl Control {
    fn new() -> Arc<Self> {
        let [epoch, generation, first, second] = [0; 4].map(Word::new);
        Arc::new(Self { epoch, generation, clients: [first, second] })
    }

    fn advance(&self, times: u64) {
        for _ in 0..times {
            advance(&self.epoch, self.clients.iter(), |_| false);
        }
    }
}

/// A node's words: a pointer to an object, or 0, and the object.
const NAME: u64 = 0;
const OBJECT: u64 = 1;
/// The object's value once it is reused.
const USED_AGAIN: u64 = 9;

/// An operation that follows the pointer to the object.
fn look(client: &Client, node: &Node, control: &Control) {
    pin(&control.epoch, &control.clients[1]);
    find(client, node);
    unpin(&control.clients[1]);
}

fn find(client: &Client, node: &Node) {
    let [name] = client.post(node, &[read(NAME, 1)]);
    if name != 0 {
        let [object] = client.post(node, &[read(OBJECT, 1)]);
        assert_ne!(object, USED_AGAIN, "it is used again under an operation that found it");
    }
}

/// A client unlinks an object and retires it, advances the epoch `moves` times, and reuses the
/// object if [`GRACE`] epochs have begun since.
fn use_again(node: &Node, control: &Control, moves: u64) {
    let client = Client::default();
    pin(&control.epoch, &control.clients[0]);
    let [found] = client.post(node, &[cas(NAME, 1, 0)]);
    assert_eq!(found, 1, "nobody else changes the name");
    unpin(&control.clients[0]);
    let retired = epoch(&control.epoch);
    control.advance(moves);
    if epoch(&control.epoch) >= retired + GRACE {
        let [] = client.post(node, &[write(OBJECT, &[USED_AGAIN])]);
    }
}

fn named() -> (Node, Arc<Control>) {
    let node = Node::new(2);
    let [_] = Client::default().post(&node, &[cas(NAME, 0, 1)]);
    (node, Control::new())
}

/// Two operations, one after the other: the second may begin in another epoch.
#[test]
fn what_an_operation_found_is_not_used_again_under_it() {
    explore(Some(3), || {
        let (node, control) = named();
        let (theirs, words) = (node.clone(), Arc::clone(&control));
        let other = thread::spawn(move || use_again(&theirs, &words, GRACE));
        let client = Client::default();
        look(&client, &node, &control);
        look(&client, &node, &control);
        other.join().expect("the other client");
    });
}

/// A third client advances the epoch, which has observed nothing of either.
#[test]
fn nor_if_somebody_else_moves_the_epoch_on() {
    explore(Some(3), || {
        let (node, control) = named();
        let (theirs, words) = (node.clone(), Arc::clone(&control));
        let other = thread::spawn(move || use_again(&theirs, &words, 0));
        let words = Arc::clone(&control);
        let third = thread::spawn(move || words.advance(GRACE));
        look(&Client::default(), &node, &control);
        other.join().expect("the other client");
        third.join().expect("the third client");
    });
}

/// An operation begins beside an older one of its client, in a later epoch, and continues when that
/// one is over.
#[test]
fn nor_under_one_that_began_beside_an_older_one() {
    explore(Some(3), || {
        let (node, control) = named();
        let own = &control.clients[1];
        let first = pin(&control.epoch, own);
        let (theirs, words) = (node.clone(), Arc::clone(&control));
        let other = thread::spawn(move || use_again(&theirs, &words, 1));
        let words = Arc::clone(&control);
        thread::spawn(move || words.advance(1)).join().expect("the third client");
        let second = pin_beside(&control.epoch);
        if second != first {
            remain(own, second);
        }
        find(&Client::default(), &node);
        unpin(own);
        other.join().expect("the other client");
    });
}

/// A client that pins in a later epoch than was read after the start of a generation observes that
/// generation.
#[test]
fn a_client_that_begins_later_meets_the_generation() {
    explore(None, || {
        let control = Control::new();
        let words = Arc::clone(&control);
        let other = thread::spawn(move || {
            words.advance(1);
            let began = pin(&words.epoch, &words.clients[1]);
            let met = generation(&words.generation);
            unpin(&words.clients[1]);
            (began, met)
        });
        renew(&control.generation);
        let announced = epoch(&control.epoch);
        let (began, met) = other.join().expect("the other client");
        assert!(began <= announced || met == 1, "it began in {began}, after {announced}");
    });
}
