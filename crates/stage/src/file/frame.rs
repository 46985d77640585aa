//! The bytes of a frame: a head of [`ALIGN`] bytes, the content, and zeros to the next multiple of
//! [`ALIGN`].
//!
//! ```text
//!   byte  0  "samite\r\n"        magic: reveals a transfer that changed line ends
//!         8  version, kind       two u32
//!        16  step                u64; 0 if there is none
//!        24  length              u64, bytes of the content
//!        32  checksum            u64, xxh3 of the content; 0 for DATA, whose blocks have their own in the record
//!        40  id                  u64, random, the same in all frames of a file: distinguishes leftovers of an older file
//!        48  place               u64, offset of the frame in the file
//!        56  checksum of the head, u64, xxh3 of the 56 bytes before
//!        64  zeros; in the first head of a file, which process writes it (`claim`)
//! ```

use super::error::{FileError, io};
use crc32c::crc32c_append;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::ErrorKind::{InvalidInput, PermissionDenied, UnexpectedEof};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Version of the format. Any change of the types in frames needs a new one.
pub(super) const VERSION: u32 = 2;
/// Frames and blocks begin at multiples of this, as blocks do in buffers.
pub(super) const ALIGN: u64 = crate::protocol::ALIGN;
/// Bytes of a head that are used.
pub(super) const HEAD: usize = 64;
const MAGIC: [u8; 8] = *b"samite\r\n";
/// Maximum bytes of one read or write: they stay in the L2 cache, so that the checksum costs less.
/// (The kernel's limit is 0x7ffff000.)
const PIECE: usize = 256 << 10;
/// Maximum length of an index: a damaged head must not cause a large allocation.
const MOST_INDEX: u64 = 1 << 30;
/// Maximum length of other content that is not data, which is as in a message: it may decode to
/// many times as much.
const MOST_CONTENT: u64 = crate::protocol::LONGEST as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    Header = 1,
    Layout = 2,
    Data = 3,
    Record = 4,
    Index = 5,
    End = 6,
}

impl Kind {
    /// Returns the maximum length of its content, if it is not data.
    fn most(self) -> u64 {
        match self {
            Kind::Index => MOST_INDEX,
            _ => MOST_CONTENT,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        use Kind::*;
        [Header, Layout, Data, Record, Index, End]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) step: u64,
    pub(super) length: u64,
    pub(super) checksum: u64,
    pub(super) id: u64,
    pub(super) at: u64,
}

impl Head {
    /// Returns where the content begins.
    pub(super) fn content(&self) -> u64 {
        self.at + ALIGN
    }

    /// Returns where the next frame begins; `None` beyond 64 bits.
    pub(super) fn end(&self) -> Option<u64> {
        let end = self.at.checked_add(ALIGN)?.checked_add(self.length)?;
        end.checked_next_multiple_of(ALIGN)
    }

    pub(super) fn bytes(&self) -> [u8; ALIGN as usize] {
        let kind = u64::from(VERSION) | (self.kind as u64) << 32;
        let words = [
            kind,
            self.step,
            self.length,
            self.checksum,
            self.id,
            self.at,
        ];
        let mut bytes = [0; ALIGN as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes[..HEAD - 8]);
        bytes[HEAD - 8..HEAD].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Returns `None` if there is no head of this offset.
    fn from_bytes(bytes: &[u8; HEAD], at: u64) -> Result<Option<Self>, u32> {
        let word = |index| word(bytes, index);
        if bytes[..8] != MAGIC || word(7) != xxh3_64(&bytes[..HEAD - 8]) || word(6) != at {
            return Ok(None);
        }
        let (version, kind) = (word(1) as u32, (word(1) >> 32) as u32);
        if version != VERSION {
            return Err(version);
        }
        Ok(Kind::from_number(kind).map(|kind| Head {
            kind,
            step: word(2),
            length: word(3),
            checksum: word(4),
            id: word(5),
            at,
        }))
    }
}

/// Returns a number of a head.
pub(super) fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// A file of frames. All access is by offset: there is no cursor.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    pub(super) file: Arc<File>,
    pub(super) path: PathBuf,
}

impl Frames {
    pub(super) fn new(file: File, path: &Path) -> Self {
        Frames {
            file: Arc::new(file),
            path: path.to_owned(),
        }
    }

    pub(super) fn length(&self) -> Result<u64, FileError> {
        let metadata = self.file.metadata().map_err(io("inspect", &self.path))?;
        Ok(metadata.len())
    }

    /// Returns true if the file is at this path now.
    pub(super) fn is_at(&self, path: &Path) -> Result<bool, FileError> {
        let own = self.file.metadata().map_err(io("inspect", &self.path))?;
        match std::fs::metadata(path) {
            Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io("inspect", path)(error)),
        }
    }

    /// Returns the next intact frame of this kind and id, from `at` on; skips everything before it.
    pub(super) fn find(&self, kind: Kind, id: u64, mut at: u64) -> Result<Option<Head>, FileError> {
        let length = self.length()?;
        let mut bytes = vec![0; PIECE];
        while at.checked_add(ALIGN).is_some_and(|end| end <= length) {
            let piece = (length - at).min(PIECE as u64) / ALIGN * ALIGN;
            let bytes = &mut bytes[..piece as usize];
            self.read(at, bytes)?;
            for (place, head) in (at..)
                .step_by(ALIGN as usize)
                .zip(bytes.chunks(ALIGN as usize))
            {
                if head.starts_with(&MAGIC)
                    && let Some(head) = self.head(place)?
                    && (head.kind, head.id) == (kind, id)
                {
                    return Ok(Some(head));
                }
            }
            at += piece;
        }
        Ok(None)
    }

    pub(super) fn corrupt(&self, at: u64, what: &'static str) -> FileError {
        let path = self.path.clone();
        FileError::Corrupt { path, at, what }
    }

    /// Returns the head at this offset; `None` if there is none (yet).
    pub(super) fn head(&self, at: u64) -> Result<Option<Head>, FileError> {
        let mut bytes = [0; HEAD];
        let length = self.length()?;
        if at.checked_add(ALIGN).is_none_or(|end| end > length) {
            return Ok(None);
        }
        match self.read(at, &mut bytes) {
            // A writer that resumes or gives up a step has truncated the file since.
            Err(FileError::Io { source, .. }) if source.kind() == UnexpectedEof => return Ok(None),
            read => read?,
        }
        Head::from_bytes(&bytes, at).map_err(|version| FileError::Version {
            path: self.path.clone(),
            version,
            known: VERSION,
        })
    }

    /// Returns the content of a frame that is not data.
    pub(super) fn content<T: DeserializeOwned>(&self, head: &Head) -> Result<T, FileError> {
        let wrong = |what| self.corrupt(head.at, what);
        let length = self.length()?;
        let is_there = head.length <= head.kind.most()
            && head.end().is_some()
            && head.content() + head.length <= length;
        if !is_there {
            return Err(wrong("a frame is longer than the file"));
        }
        let mut bytes = vec![0; head.length as usize];
        self.read(head.content(), &mut bytes)?;
        if xxh3_64(&bytes) != head.checksum {
            return Err(wrong("a checksum differs"));
        }
        crate::protocol::decode(&bytes).ok_or_else(|| wrong("a frame cannot be decoded"))
    }

    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), FileError> {
        self.file
            .read_exact_at(bytes, at)
            .map_err(io("read", &self.path))
    }

    /// Writes a complete frame. Returns where the next one begins.
    ///
    /// # Errors
    /// A content that is too long to be read again; the system refuses.
    pub(super) fn write<T: Serialize>(
        &self,
        kind: Kind,
        step: u64,
        id: u64,
        at: u64,
        content: &T,
    ) -> Result<u64, FileError> {
        let content = crate::protocol::encode(content);
        if content.len() as u64 > kind.most() {
            let text = format!(
                "the {kind:?} frame has {} bytes, and at most {} can be read again: write fewer variables, blocks or attributes in a step",
                content.len(),
                kind.most()
            );
            let too_long = std::io::Error::new(std::io::ErrorKind::FileTooLarge, text);
            return Err(io("write", &self.path)(too_long));
        }
        let head = Head {
            kind,
            step,
            length: content.len() as u64,
            checksum: xxh3_64(&content),
            id,
            at,
        };
        let mut bytes = head.bytes().to_vec();
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(ALIGN as usize), 0);
        self.put(at, &bytes)?;
        Ok(at + bytes.len() as u64)
    }

    /// Writes the head of a data frame, whose blocks follow by [`write_block`](Self::write_block).
    pub(super) fn write_head(&self, head: &Head) -> Result<(), FileError> {
        self.reserve(head)?;
        self.put(head.at, &head.bytes())
    }

    /// Reserves disk space for a frame at once: this is cheaper than piece by piece, and a full
    /// disk is detected before anything is written. The length of the file does not change:
    /// unwritten bytes do not exist.
    fn reserve(&self, head: &Head) -> Result<(), FileError> {
        if head.length < PIECE as u64 {
            return Ok(());
        }
        let (keep, length) = (FallocateFlags::KEEP_SIZE, ALIGN + head.length);
        let room = retry_on_intr(|| fallocate(&self.file, keep, head.at, length));
        match room {
            // Not every file system supports it.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(io("reserve space in", &self.path)(error.into())),
        }
    }

    /// Writes a block; returns its checksum, if requested.
    pub(super) fn write_block(
        &self,
        at: u64,
        block: &[u8],
        is_summed: bool,
    ) -> Result<Option<u32>, FileError> {
        let mut sum = is_summed.then_some(0);
        for piece in pieces(at, block.len()) {
            let bytes = &block[piece.clone()];
            sum = sum.map(|sum| crc32c_append(sum, bytes));
            self.put(at + piece.start as u64, bytes)?;
        }
        Ok(sum)
    }

    /// Reads a block; returns its checksum, if requested.
    pub(super) fn read_block(
        &self,
        at: u64,
        block: &mut [u8],
        is_summed: bool,
    ) -> Result<Option<u32>, FileError> {
        let mut sum = is_summed.then_some(0);
        for piece in pieces(at, block.len()) {
            let bytes = &mut block[piece.clone()];
            self.read(at + piece.start as u64, bytes)?;
            sum = sum.map(|sum| crc32c_append(sum, bytes));
        }
        Ok(sum)
    }

    pub(super) fn put(&self, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file
            .write_all_at(bytes, at)
            .map_err(io("write", &self.path))
    }

    /// Truncates the file at `at`.
    pub(super) fn cut(&self, at: u64) -> Result<(), FileError> {
        self.file.set_len(at).map_err(io("truncate", &self.path))
    }

    pub(super) fn sync(&self) -> Result<(), FileError> {
        self.file.sync_data().map_err(io("sync", &self.path))
    }

    /// Returns when the name of the file is on the disk, too: its folder, and the names of that and
    /// of the folder of all streams, which a writer may have created.
    pub(super) fn sync_name(&self) -> Result<(), FileError> {
        let path = std::path::absolute(&self.path).map_err(io("resolve", &self.path))?;
        for folder in path.ancestors().skip(1).take(3) {
            let opened = match File::open(folder) {
                // A folder that cannot be read is older.
                Err(error) if error.kind() == PermissionDenied => continue,
                opened => opened.map_err(io("open", folder))?,
            };
            match opened.sync_all() {
                // Not every file system supports it.
                Err(error) if error.kind() == InvalidInput => {}
                synced => synced.map_err(io("sync", folder))?,
            }
        }
        Ok(())
    }
}

/// Returns the pieces of `length` bytes at `at` in a file. They end at multiples of their length in
/// the file: a piece that ends inside a page of the page cache costs microseconds more.
fn pieces(at: u64, length: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    let first = PIECE - (at % PIECE as u64) as usize;
    std::iter::from_fn(move || {
        let end = if start == 0 { first } else { start + PIECE };
        let piece = start..end.min(length);
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_pages_do() {
        for (at, length) in [
            (0, 0),
            (0, 1),
            (64, PIECE),
            (1152, 5 * PIECE + 7),
            (PIECE as u64, 2 * PIECE),
        ] {
            let all: Vec<Range<usize>> = pieces(at, length).collect();
            let mut next = 0;
            for piece in &all {
                assert_eq!(piece.start, next);
                next = piece.end;
                let end = at + next as u64;
                assert!(
                    piece.len() <= PIECE && (next == length || end.is_multiple_of(PIECE as u64))
                );
            }
            assert_eq!(next, length, "{at} {length}");
        }
    }
}
