//! What a keeper has spilled: ranges of one file. A file for each buffer would be a descriptor for each.

use range_alloc::RangeAllocator;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Ranges begin and end at pages, so that all of a freed one can be given back to the file system.
const PAGE: u64 = 4096;

/// More than any file has: the keeper's budget is what ends first.
const END: u64 = 1 << 60;

#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    /// Made with the first range. Without a name in any folder: it goes with this process.
    file: Option<File>,
    free: RangeAllocator<u64>,
}

/// Where the bytes of a buffer are in the file. Given back by [`Disk::free`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    range: Range<u64>,
    bytes: u64,
}

impl Disk {
    pub(super) fn new(folder: PathBuf) -> Disk {
        Disk {
            folder,
            file: None,
            free: RangeAllocator::new(0..END),
        }
    }

    /// Finds a place for so many bytes.
    pub(super) fn take(&mut self, bytes: u64) -> io::Result<Place> {
        if self.file.is_none() {
            self.file = Some(tempfile::tempfile_in(&self.folder)?);
        }
        let length = bytes.max(1).checked_next_multiple_of(PAGE);
        let range = length.and_then(|length| self.free.allocate_range(length).ok());
        let range = range.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(Place { range, bytes })
    }

    /// Writes a part of a buffer.
    pub(super) fn write(&self, place: &Place, offset: u64, part: &[u8]) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.write_all_at(part, place.range.start + offset)
    }

    /// Reads a part of a buffer.
    ///
    /// # Errors
    /// A part that does not lie inside.
    pub(super) fn read(&self, place: &Place, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= place.bytes);
        if !inside {
            let of = place.bytes;
            return Err(io::Error::other(format!(
                "bytes {offset}+{len} lie outside of a buffer of {of}"
            )));
        }
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, place.range.start + offset)?;
        Ok(bytes)
    }

    /// Gives a place back, and its blocks to the file system.
    pub(super) fn free(&mut self, place: Place) {
        let range = place.range;
        let length = range.end - range.start;
        self.free.free_range(range.clone());
        let Some(file) = &self.file else {
            return;
        };
        let given_back = if self.free.is_empty() {
            file.set_len(0)
        } else {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            retry_on_intr(|| fallocate(file, hole, range.start, length)).map_err(io::Error::from)
        };
        if let Err(error) = given_back {
            // Then the place is used again, and the file becomes no longer than it was at its fullest.
            tracing::debug!(%error, "the file of what is spilled keeps its blocks");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn blocks(disk: &Disk) -> u64 {
        disk.file
            .as_ref()
            .map_or(0, |file| file.metadata().unwrap().blocks())
    }

    #[test]
    fn what_is_freed_is_given_back_and_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(folder.path().to_owned());
        let bytes = 3 * PAGE - 5;
        let pattern = |of: u64| {
            (0..bytes)
                .map(|at| (at * 7 + of * 13) as u8)
                .collect::<Vec<_>>()
        };
        let mut places: Vec<Place> = (0..4).map(|_| disk.take(bytes).unwrap()).collect();
        for (of, place) in (0..).zip(&places) {
            disk.write(place, 0, &pattern(of)[..100]).unwrap();
            disk.write(place, 100, &pattern(of)[100..]).unwrap();
        }
        let full = blocks(&disk);
        disk.free(places.remove(1));
        assert!(blocks(&disk) < full, "the hole has its blocks still");
        let again = disk.take(bytes).unwrap();
        assert_eq!(again.range.start, 3 * PAGE, "the hole is used again");
        disk.write(&again, 0, &pattern(9)).unwrap();
        places.push(again);
        for (of, place) in [0, 2, 3, 9].into_iter().zip(&places) {
            assert_eq!(disk.read(place, 0, bytes).unwrap(), pattern(of));
            let part = &pattern(of)[5000..5007];
            assert_eq!(disk.read(place, 5000, 7).unwrap(), part);
        }
        assert!(disk.read(&places[0], bytes - 1, 2).is_err());
        assert!(disk.read(&places[0], u64::MAX, 2).is_err());
        places.into_iter().for_each(|place| disk.free(place));
        assert_eq!(blocks(&disk), 0);
    }
}
