//! Event counts: no current file is taken for another, while any clients raise its count.

use loom::sync::Arc;
use loom::thread;
use swarm_shm::{Standing, Word, raise, standing};

use super::explore;

/// The count's words in the control file and in a node's header.
struct Counts {
    control: Word,
    header: Word,
}

impl Counts {
    fn new(control: u64, header: u64) -> Arc<Self> {
        Arc::new(Self { control: Word::new(control), header: Word::new(header) })
    }

    fn raise(&self) {
        assert_eq!(raise(&self.control, &self.header), Standing::Current);
    }

    fn look(&self) {
        assert_eq!(standing(&self.control, &self.header), Standing::Current);
    }
}

/// Two clients attach while a third opens the pool. The one before them was killed after each step
/// of its raise: completed counts are even numbers in the control file, pending ones odd.
#[test]
fn the_current_file_is_taken_for_the_current_one() {
    for (control, header) in [(0, 0), (3, 0), (3, 1)] {
        explore(Some(3), move || {
            let counts = Counts::new(control, header);
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let counts = Arc::clone(&counts);
                    thread::spawn(move || counts.raise())
                })
                .collect();
            counts.look();
            for other in others {
                other.join().expect("another client");
            }
            counts.look();
        });
    }
}

/// A copy from before a client attached is older than the node once the client is there.
#[test]
fn a_copy_of_before_is_older() {
    explore(None, || {
        let counts = Counts::new(0, 0);
        let other = {
            let counts = Arc::clone(&counts);
            thread::spawn(move || counts.raise())
        };
        counts.raise();
        let copy = Word::new(0);
        assert!(matches!(standing(&counts.control, &copy), Standing::Older { .. }));
        other.join().expect("another client");
    });
}
