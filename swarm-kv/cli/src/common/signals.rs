//! Signals that are to end this process: ^C, SIGTERM and SIGHUP.

use std::io;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// From now on such signals end nothing: `act` is called for each, in a thread of its own, and for several that come at
/// the same time at least once.
///
/// # Errors
/// The system refuses the handler or the thread.
pub(crate) fn on_signal(mut act: impl FnMut() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let waits = move || signals.forever().for_each(|_| act());
    thread::Builder::new().name("swarm-signals".to_owned()).spawn(waits).map(drop)
}
