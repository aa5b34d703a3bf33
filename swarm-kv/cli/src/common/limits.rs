//! How long keys and values may be.

use swarm_core::layout::{MAX_KEY, MAX_VALUE};

/// Whether a key may be stored.
pub(crate) fn check_key(key: &[u8]) -> Result<(), String> {
    match key.len() {
        0 => Err("the key is empty; give it 1 to 255 bytes".to_owned()),
        1..=MAX_KEY => Ok(()),
        long => Err(format!("the key has {long} bytes; give it 1 to {MAX_KEY}")),
    }
}

/// Whether a value may be stored.
pub(crate) fn check_value(value: &[u8]) -> Result<(), String> {
    if value.len() <= MAX_VALUE {
        return Ok(());
    }
    Err(format!("the value has more than {MAX_VALUE} bytes; split it over several keys"))
}
