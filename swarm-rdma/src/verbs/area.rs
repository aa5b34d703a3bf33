//! Memory for devices: allocated, in huge pages where there are any, or a file's.

use std::fs::File;
use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// A huge page.
const HUGE: usize = 2 << 20;

/// Memory that stays where it is until it is dropped.
pub(crate) struct Area {
    map: MmapRaw,
    huge: bool,
    /// What is mapped, if it is a file: a lock on it stays as long.
    _file: Option<File>,
}

impl Area {
    /// Zeroed memory, in huge pages if `bytes` nearly fills a number of them and there are enough. What
    /// does not would lock up to a page more than it says, and clients may lock little.
    pub(crate) fn allocate(bytes: usize) -> io::Result<Self> {
        let whole = bytes.next_multiple_of(HUGE);
        if whole - bytes <= bytes / 16
            && let Ok(map) = MmapOptions::new().len(whole).huge(Some(21)).map_anon()
        {
            return Ok(Self { map: map.into(), huge: true, _file: None });
        }
        let map = MmapOptions::new().len(bytes).map_anon()?;
        // Transparent huge pages are as good, where the kernel has some; if not, small ones will do.
        let _ = map.advise(Advice::HugePage);
        Ok(Self { map: map.into(), huge: false, _file: None })
    }

    /// The first `bytes` bytes of a file or DAX device, shared.
    pub(crate) fn file(file: File, bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Self { map, huge: false, _file: Some(file) })
    }

    /// Whether it lies in huge pages that were set aside for such use.
    pub(crate) fn huge(&self) -> bool {
        self.huge
    }

    /// Bytes of it.
    pub(crate) fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Where it begins.
    pub(super) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}
