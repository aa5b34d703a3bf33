//! NUMA: on which of a machine's memory nodes a pool's memory lies. (A *NUMA node* is a part of one
//! machine's memory, close to some of its processors, and has nothing to do with the pool's memory
//! nodes.)

use std::io;
use std::ptr;

use crate::error::Error;
use crate::files::mapping::Mapping;

/// On which NUMA nodes memory is to lie.
///
/// On tmpfs the policy belongs to the file, and the kernel keeps it for as long as the file exists:
/// a page is allocated there, whichever process needs it. hugetlbfs does the same, but what a
/// creation reserves there follows the process's own policy (`numactl`). Disks' file systems and
/// DAX devices ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numa {
    /// No policy is set: the file's previous policy stays, and without one a page lies near the
    /// processor that touches it first.
    #[default]
    Default,
    /// On all nodes in turn. For clients all over the machine.
    Interleave,
    /// On this node only. Check first whether it has room (`numactl --hardware`): if memory that is
    /// bound to a node runs out, the kernel ends a process.
    Bind(u32),
    /// On this node while there is room, then on others.
    Preferred(u32),
}

/// `linux/mempolicy.h`: move pages that only this process has mapped.
const MPOL_MF_MOVE: libc::c_int = 1 << 1;
/// `linux/mempolicy.h`: return the nodes that a policy may name.
const MPOL_F_MEMS_ALLOWED: libc::c_int = 1 << 2;

/// Bits of a node mask: as many as any kernel has (`CONFIG_NODES_SHIFT` is 10 at most).
const NODES: usize = 1024;
type Mask = [u64; NODES / 64];

impl Numa {
    /// Returns the mode's number, and the nodes of `allowed` that it applies to. `None` if no
    /// policy is to be set.
    fn policy(self, allowed: &Mask) -> Option<(libc::c_int, Mask)> {
        let only = |node: u32| {
            let mut mask = [0; NODES / 64];
            mask[node as usize / 64] = 1 << (node % 64);
            mask
        };
        match self {
            Self::Default => None,
            Self::Interleave => Some((libc::MPOL_INTERLEAVE, *allowed)),
            Self::Bind(node) => Some((libc::MPOL_BIND, only(node))),
            Self::Preferred(node) => Some((libc::MPOL_PREFERRED, only(node))),
        }
    }

    /// Refuses a node that does not exist, before anything is done.
    pub(crate) fn check(self) -> Result<(), Error> {
        let (Self::Bind(node) | Self::Preferred(node)) = self else { return Ok(()) };
        let allowed = allowed()?;
        let nodes: Vec<u32> = (0..NODES as u32).filter(|&node| has(&allowed, node)).collect();
        if nodes.contains(&node) { Ok(()) } else { Err(Error::NoNumaNode { node, nodes }) }
    }

    /// Sets the policy of the memory of `mapping`, and moves pages of it that only this process has
    /// mapped.
    pub(crate) fn apply(self, mapping: &Mapping) -> Result<(), Error> {
        if self == Self::Default {
            return Ok(());
        }
        self.check()?;
        let Some((mode, mask)) = self.policy(&allowed()?) else { return Ok(()) };
        // The kernel uses one bit less than this number.
        let (bits, move_pages) = (NODES + 1, MPOL_MF_MOVE);
        // SAFETY: the range is the mapping, and the mask has as many bits as stated; both are
        // alive. Only the place of its contents in physical memory changes, which no access can
        // observe.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                mapping.start(),
                mapping.bytes(),
                mode,
                mask.as_ptr(),
                bits,
                move_pages,
            )
        };
        done(answer)
    }
}

fn has(mask: &Mask, node: u32) -> bool {
    mask[node as usize / 64] >> (node % 64) & 1 == 1
}

fn done(answer: libc::c_long) -> Result<(), Error> {
    if answer == 0 {
        return Ok(());
    }
    Err(Error::NumaRefused { source: io::Error::last_os_error() })
}

/// Returns the nodes that this process may have memory on.
fn allowed() -> Result<Mask, Error> {
    let mut mask = [0; NODES / 64];
    let (mode, address) = (ptr::null_mut::<libc::c_int>(), ptr::null::<u8>());
    // SAFETY: the mask has as many bits as stated, and the other two may be null.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            mode,
            mask.as_mut_ptr(),
            NODES,
            address,
            MPOL_F_MEMS_ALLOWED,
        )
    };
    done(answer).map(|()| mask)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    /// Maps a file of 1 MiB on tmpfs, without a page.
    fn mapping() -> Arc<Mapping> {
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
        let file: File = file.expect("a file");
        file.set_len(1 << 20).expect("its length");
        Mapping::new(&file, Path::new("a file"), 1 << 20).expect("mapped")
    }

    /// Returns the policy of a mapped address: mode and nodes.
    fn policy_at(address: *mut u8) -> (libc::c_int, Mask) {
        const MPOL_F_ADDR: libc::c_int = 1 << 1;
        let (mut mode, mut mask) = (-1, [0; NODES / 64]);
        // SAFETY: mode and mask are alive, and the mask has as many bits as stated. The address is
        // only looked up.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut mode,
                mask.as_mut_ptr(),
                NODES,
                address,
                MPOL_F_ADDR,
            )
        };
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
        (mode, mask)
    }

    /// Returns the existing nodes, if the kernel has policies.
    fn nodes() -> Option<Mask> {
        let nodes = allowed();
        if let Err(error) = &nodes {
            eprintln!("SKIPPED: {error}");
        }
        nodes.ok()
    }

    #[test]
    fn a_policy_is_that_of_every_mapped_address() {
        let Some(nodes) = nodes() else { return };
        let node = (0..NODES as u32).find(|&node| has(&nodes, node)).expect("a node");
        let mut only = [0; NODES / 64];
        only[node as usize / 64] = 1 << (node % 64);
        for (numa, mode, mask) in [
            (Numa::Default, libc::MPOL_DEFAULT, [0; NODES / 64]),
            (Numa::Interleave, libc::MPOL_INTERLEAVE, nodes),
            (Numa::Bind(node), libc::MPOL_BIND, only),
            (Numa::Preferred(node), libc::MPOL_PREFERRED, only),
        ] {
            let mapping = mapping();
            mapping.store(0, &[1]);
            numa.apply(&mapping).expect("a policy");
            let last = mapping.start().wrapping_add(mapping.bytes() - 1);
            for address in [mapping.start(), last] {
                assert_eq!(policy_at(address), (mode, mask), "{numa:?}");
            }
            assert_eq!(mapping.load(0), [1], "what it holds is as it was");
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        let Some(nodes) = nodes() else { return };
        let mapping = mapping();
        let absent = (0..NODES as u32).find(|&node| !has(&nodes, node)).expect("not 1024 nodes");
        for node in [absent, NODES as u32 - 1, NODES as u32, u32::MAX] {
            for numa in [Numa::Bind(node), Numa::Preferred(node)] {
                let error = numa.apply(&mapping).expect_err("no such node");
                assert!(
                    matches!(&error, Error::NoNumaNode { node: named, nodes } if *named == node && !nodes.is_empty()),
                    "{error}"
                );
                assert!(numa.check().is_err());
            }
        }
        assert_eq!(policy_at(mapping.start()).0, libc::MPOL_DEFAULT, "nothing was done");
    }

    #[test]
    fn what_the_kernel_refuses_is_reported() {
        assert!(done(0).is_ok());
        // A system call that no kernel has.
        // SAFETY: it does nothing.
        let error = done(unsafe { libc::syscall(-1) }).expect_err("refused");
        assert!(matches!(error, Error::NumaRefused { .. }) && error.to_string().contains("NUMA"));
    }
}
