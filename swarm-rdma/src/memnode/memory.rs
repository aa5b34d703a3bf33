//! Allocates or maps a node's memory, and registers it once.

use std::fs::{OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use crate::memnode::{MemorySource, ServeOptions};
use crate::verbs::{Area, Device, Domain, Region, Use};

/// Provides the memory that `options` ask for, registered with `device`.
pub(crate) fn register(
    device: Device,
    options: &ServeOptions,
) -> Result<(Arc<Domain>, Arc<Region>), Error> {
    let bytes = options.capacity;
    if bytes == 0 || !bytes.is_multiple_of(8) {
        return Err(Error::Options(format!(
            "a node's capacity is a positive multiple of 8 bytes, not {bytes}"
        )));
    }
    let failed = |action| move |source| Error::Device { device: device.name(), action, source };
    let limit = device.attributes().map_err(failed("ask what it can do"))?.max_region;
    let Some(length) = usize::try_from(bytes).ok().filter(|_| bytes <= limit) else {
        let source = io::Error::from_raw_os_error(libc::EINVAL);
        return Err(Error::Registration { device: device.name(), bytes, limit, source });
    };
    let area = match &options.memory {
        MemorySource::Allocated => allocate(length)?,
        MemorySource::File(path) => map(path, length)?,
    };
    let domain = Domain::new(device).map_err(failed("make a protection domain"))?;
    let region = Region::register(&domain, area, Use::Served)
        .map_err(|source| refused(device, bytes, limit, source))?;
    if let MemorySource::File(_) = options.memory {
        region.zero();
    }
    Ok((domain, region))
}

/// Returns why a registration was refused.
pub(crate) fn refused(device: Device, bytes: u64, limit: u64, source: io::Error) -> Error {
    let device = device.name();
    // The device pins registered memory, and the kernel counts it as locked.
    if source.raw_os_error() == Some(libc::ENOMEM)
        && let Some(limit) = locked_limit().filter(|&limit| limit < pinned().saturating_add(bytes))
    {
        return Error::Memlock { device, bytes, limit };
    }
    Error::Registration { device, bytes, limit, source }
}

/// Returns how many bytes this process may lock, if that is limited.
fn locked_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns how many bytes devices have pinned for this process. They count as locked.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

fn allocate(bytes: usize) -> Result<Area, Error> {
    let too_much = |source| Error::Memory { bytes: bytes as u64, source };
    // Registering allocates all pages at once. Beyond the available memory, the kernel would kill
    // processes.
    if available().is_some_and(|available| available < bytes as u64) {
        return Err(too_much(io::Error::from_raw_os_error(libc::ENOMEM)));
    }
    Area::allocate(bytes).map_err(too_much)
}

/// Returns the bytes of available memory, including huge pages.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let number = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let huge = number("HugePages_Free:")? * number("Hugepagesize:")?;
    Some((number("MemAvailable:")? + huge) * 1024)
}

fn map(path: &Path, bytes: usize) -> Result<Area, Error> {
    let wrong = |why: String| Error::File { file: path.to_owned(), why };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| wrong(error.to_string()))?;
    // The file is about to be erased, so no other node may use it.
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => wrong("it is another memory node's already".to_owned()),
        TryLockError::Error(error) => wrong(format!("it cannot be locked: {error}")),
    })?;
    let metadata = file.metadata().map_err(|error| wrong(error.to_string()))?;
    // A device file has no length; mapping it fails if it is too short.
    if !metadata.file_type().is_char_device() && metadata.len() < bytes as u64 {
        let length = metadata.len();
        return Err(wrong(format!(
            "it is {length} bytes long, and {bytes} are needed; lengthen it, or serve less"
        )));
    }
    Area::file(file, bytes).map_err(|error| wrong(error.to_string()))
}
