//! Memory for devices: allocated, in huge pages if available, or mapped from a file.

use std::fs::File;
use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Memory that keeps its address until it is dropped.
pub(crate) struct Area {
    map: MmapRaw,
    huge: bool,
    /// The mapped file, if any: its lock lasts as long as the mapping.
    _file: Option<File>,
}

impl Area {
    /// Allocates zeroed memory. It uses huge pages if `bytes` fills a whole number of them up to
    /// one sixteenth, and enough are free. Otherwise the last page would lock up to a huge page
    /// more than requested, and clients may lock little memory.
    pub(crate) fn allocate(bytes: usize) -> io::Result<Self> {
        let whole = bytes.next_multiple_of(HUGE);
        if whole - bytes <= bytes / 16
            && let Ok(map) = MmapOptions::new().len(whole).huge(Some(21)).map_anon()
        {
            return Ok(Self { map: map.into(), huge: true, _file: None });
        }
        let map = MmapOptions::new().len(bytes).map_anon()?;
        // Transparent huge pages do as well. If the kernel has none, small pages do.
        let _ = map.advise(Advice::HugePage);
        Ok(Self { map: map.into(), huge: false, _file: None })
    }

    /// Maps the first `bytes` bytes of a file or DAX device, shared.
    pub(crate) fn file(file: File, bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Self { map, huge: false, _file: Some(file) })
    }

    /// Returns whether it lies in preallocated huge pages.
    pub(crate) fn huge(&self) -> bool {
        self.huge
    }

    /// Returns its length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Returns its address.
    pub(super) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}
