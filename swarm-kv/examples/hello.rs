//! Opens a pool, and uses it.

use swarm_kv::shm;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = std::env::args().nth(1).ok_or("usage: hello POOL")?;
    let client = shm::open_path(pool)?;

    // Every operation is an `async fn` of the client, and has a blocking twin:
    let store = client.blocking();
    store.put(b"color", b"green")?;
    if !store.insert(b"color", b"red")? {
        println!("there is a color already");
    }
    match store.get(b"color")? {
        Some(color) => println!("the color is {}", String::from_utf8_lossy(&color)),
        None => println!("another process has deleted it already"),
    }
    store.delete(b"color")?;
    Ok(())
}
