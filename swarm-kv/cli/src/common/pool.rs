//! How a command opens the pool that it is given.

use swarm_kv::shm::AbsentNode;
use swarm_worker::pool::Pool;

use crate::common::args::{PoolArgs, ReadArgs};
use crate::common::exit::{Failure, eprint_line};

/// Opens the pool that a command line names, and reports nodes that the command goes on without.
pub(crate) fn open_given(args: &PoolArgs) -> Result<Pool, Failure> {
    report_absent_nodes(Pool::open(&args.pool, args.degraded)?)
}

/// The same for a command that changes nothing, which goes on without the right to, or is not to
/// make use of it.
pub(crate) fn open_to_read(args: &ReadArgs) -> Result<Pool, Failure> {
    let &ReadArgs { pool: ref args, read_only } = args;
    let pool = Pool::open_to_read(&args.pool, args.degraded, read_only)?;
    if pool.reader().is_some() && !read_only {
        eprint_line(format_args!(
            "reading alone: {} may not be written by this user, or lies on a read-only mount",
            args.pool.display()
        ));
    }
    report_absent_nodes(pool)
}

fn report_absent_nodes(pool: Pool) -> Result<Pool, Failure> {
    for absent in absent_nodes(&pool) {
        eprint_line(format_args!("going on without {}: {}", absent.node, absent.why));
    }
    Ok(pool)
}

/// The nodes that an opening of a near pool goes on without.
pub(crate) fn absent_nodes(pool: &Pool) -> &[AbsentNode] {
    match pool {
        Pool::Near(near) => near.absent_nodes(),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => &[],
    }
}
