//! Arrays that are longer than a chunk should be: one name, many chunks.
//!
//! ```text
//!   NAME                     the header, a chunk of two words: length, and length of a chunk
//!   NAME/7/0, NAME/7/1, ...  the chunks; 7 is the id of the header, so that those of an array that
//!                            was freed are not taken for those of the next one
//! ```
//! A chunk is created when a process first uses it, so that an array of very many chunks costs what
//! is used of it; what nobody has written is zeros. A process that frees the array removes the
//! header first. A process that has created a chunk looks at the header afterwards: it either finds
//! it, and then the chunk is found by the process that frees the array, or it removes the chunk.
//!
//! # Files
//! `mod` (the array) · `layout` (which elements are in which chunk) · `guards` (those of a range)

mod guards;
mod layout;

pub use self::guards::{VecGuard, VecRead, VecSnapshot, VecWrite};

use self::layout::{Layout, Piece};
use crate::chunk::{Chunk, Elem, kind_of};
use crate::dsm::Dsm;
use crate::error::{Error, Result};
use crate::guard::Snapshot;
use crate::protocol::{Kind, LONGEST_NAME, Policy, Version};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The bytes of a chunk, unless the caller chooses them or there would be more than [`FEW`].
const USUAL: u64 = 1 << 20;

/// The most chunks of an array whose chunks have more than [`USUAL`] bytes.
const FEW: u64 = 1024;

/// The most handles of chunks that one array keeps: each keeps the version that was read last.
const HANDLES: usize = 1 << 14;

/// The longest suffix of the name of a chunk: two numbers, each after a slash.
const SUFFIX: usize = 2 * 21;

/// A named array over many chunks, each of which is coherent for itself. Indices are of 64 bits.
/// Clones are the same. Thread: any.
///
/// ```
/// use samite_dsm::Dsm;
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// let dsm = Dsm::join(&fabric)?;
/// let field = dsm.alloc_vector::<f64>("field", 10_000, 1000)?; // elsewhere: lookup_vector("field")
/// field.put(1500, &[1.5; 1000], 7)?; // half of the second chunk, and half of the third one
///
/// let mut guard = field.update(0..2000)?; // the first two chunks, alone
/// guard[0] = guard[1999] + 1.0;
/// guard.commit(8)?;
///
/// let read = field.read(0..3000)?; // nobody writes these chunks now
/// assert_eq!((read[0], read[1499], read[2499]), (2.5, 0.0, 1.5));
/// assert_eq!(read.iter().sum::<f64>(), 2.5 + 1500.0);
/// assert_eq!(field.part(1, 4), 2000..5000); // whole chunks for each of 4 processes
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChunkedVec<T> {
    dsm: Dsm,
    header: Chunk<u64>,
    layout: Layout,
    handles: Arc<Mutex<HashMap<u64, Chunk<T>>>>,
}

impl Dsm {
    /// Returns the array of that name, or creates it, with `len` elements of zeros in chunks of
    /// `chunk_len`; the last one may be shorter. If `chunk_len` is 0, a chunk has 1 MiB, or as much
    /// as makes 1024 chunks of all.
    ///
    /// # Errors
    /// As [`Dsm::alloc`]; [`Error::Differs`] also if there is one with other chunks.
    pub fn alloc_vector<T: Elem>(
        &self,
        name: &str,
        len: u64,
        chunk_len: u64,
    ) -> Result<ChunkedVec<T>> {
        let size = (size_of::<T>() as u64).max(1);
        let chunk_len = match chunk_len {
            0 => (USUAL / size).max(len.div_ceil(FEW)).max(1),
            chosen => chosen,
        };
        let wanted = Layout { len, chunk_len };
        let header = self.header::<T>(name, true)?;
        let mut layout = layout_of(&header, header.snapshot()?)?;
        if layout.is_none() {
            // Of several processes, one says which layout it is.
            let mut guard = header.update()?;
            match guard.version() {
                Version(0) => {
                    guard.copy_from_slice(&[len, chunk_len]);
                    guard.commit(0)?;
                    layout = Some(wanted);
                }
                _ => {
                    drop(guard);
                    layout = layout_of(&header, header.snapshot()?)?;
                }
            }
        }
        let layout = layout.ok_or_else(|| nonsense(&header))?;
        match layout == wanted {
            true => Ok(ChunkedVec::new(self, header, layout)),
            false => Err(Error::Differs {
                chunk: name.to_owned(),
                kind: described::<T>(layout.chunk_len),
                len: layout.len,
                asked: format!("{len} of {}", described::<T>(chunk_len)),
            }),
        }
    }

    /// Waits until a process has allocated an array of that name, and returns it.
    ///
    /// # Errors
    /// As [`Dsm::lookup`].
    pub fn lookup_vector<T: Elem>(&self, name: &str) -> Result<ChunkedVec<T>> {
        let header = self.header::<T>(name, false)?;
        let mut layout = layout_of(&header, header.snapshot()?)?;
        if layout.is_none() {
            // Its creator is about to say which layout it is.
            let mut commits = header.subscribe(Policy::Latest, Version::default())?;
            match commits.next_event() {
                Ok(_) => layout = layout_of(&header, header.snapshot()?)?,
                Err(Error::NoEvent { chunk, after, .. }) => {
                    return Err(Error::NotFound { chunk, after });
                }
                Err(error) => return Err(error),
            }
        }
        let layout = layout.ok_or_else(|| nonsense(&header))?;
        Ok(ChunkedVec::new(self, header, layout))
    }

    fn header<T: Elem>(&self, name: &str, creates: bool) -> Result<Chunk<u64>> {
        if name.is_empty() || name.len() + SUFFIX > LONGEST_NAME {
            return Err(Error::BadName(name.to_owned()));
        }
        let kind = Kind {
            name: format!("{} of an array over chunks", std::any::type_name::<T>()),
            size: 8,
        };
        let (header, _) = self.open(name, kind, creates.then_some(16))?;
        Ok(header)
    }
}

fn described<T>(chunk_len: u64) -> String {
    let name = std::any::type_name::<T>();
    format!("{name} in chunks of {chunk_len}")
}

fn nonsense(header: &Chunk<u64>) -> Error {
    Error::Nonsense(format!("the layout of \"{}\"", header.name()))
}

/// Returns the layout that a header contains; `None` before it was committed.
fn layout_of(header: &Chunk<u64>, content: Snapshot<u64>) -> Result<Option<Layout>> {
    match (content.version(), &content[..]) {
        (Version(0), _) => Ok(None),
        (_, [len, chunk_len]) if *chunk_len > 0 => Ok(Some(Layout {
            len: *len,
            chunk_len: *chunk_len,
        })),
        _ => Err(nonsense(header)),
    }
}

impl<T: Elem> ChunkedVec<T> {
    fn new(dsm: &Dsm, header: Chunk<u64>, layout: Layout) -> ChunkedVec<T> {
        ChunkedVec {
            dsm: dsm.clone(),
            header,
            layout,
            handles: Arc::default(),
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        self.header.name()
    }

    /// Returns the number of its elements.
    pub fn len(&self) -> u64 {
        self.layout.len
    }

    /// Returns true if it has no elements.
    pub fn is_empty(&self) -> bool {
        self.layout.len == 0
    }

    /// Returns the number of elements of a chunk; the last one may have fewer.
    pub fn chunk_len(&self) -> u64 {
        self.layout.chunk_len
    }

    /// Returns the number of its chunks.
    pub fn chunks(&self) -> u64 {
        self.layout.chunks()
    }

    /// Returns the number of the chunk that has an element.
    pub fn chunk_of(&self, index: u64) -> u64 {
        index / self.layout.chunk_len
    }

    /// Returns the elements of a chunk.
    pub fn elements_of(&self, chunk: u64) -> Range<u64> {
        self.layout.elements_of(chunk)
    }

    /// Returns the elements of which process `rank` of `ranks` takes care: whole chunks, side by
    /// side, about as many for each.
    pub fn part(&self, rank: u64, ranks: u64) -> Range<u64> {
        self.layout.part(rank, ranks)
    }

    /// Returns a chunk, to subscribe to it or for anything else that a [`Chunk`] does.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Freed`]; as [`Dsm::alloc`].
    pub fn chunk(&self, number: u64) -> Result<Chunk<T>> {
        let elements = self.elements_of(number);
        if elements.is_empty() {
            return Err(self.out_of_range(elements.start..elements.start.saturating_add(1)));
        }
        let known = || self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chunk) = known().get(&number) {
            return Ok(chunk.clone());
        }
        let bytes = (elements.end - elements.start).saturating_mul(size_of::<T>() as u64);
        let (chunk, version) = self
            .dsm
            .open(&self.name_of(number), kind_of::<T>(), Some(bytes))?;
        // One that was written was found by the process that wrote it.
        if version == Version::default()
            && let Err(error) = self.header.snapshot()
        {
            if matches!(error, Error::Freed { .. }) {
                chunk.free()?;
            }
            return Err(error);
        }
        let mut handles = known();
        if handles.len() >= HANDLES {
            handles.clear();
        }
        handles.insert(number, chunk.clone());
        Ok(chunk)
    }

    fn name_of(&self, chunk: u64) -> String {
        format!("{}{chunk}", self.prefix())
    }

    /// Returns what the names of its chunks begin with.
    fn prefix(&self) -> String {
        format!("{}/{}/", self.name(), self.header.origin().0)
    }

    /// Waits until nobody writes the chunks of a range, and returns guards of all of them. They are
    /// acquired in one order, in which all processes acquire them: a process sees either all that
    /// another one has committed to several chunks by one [`VecWrite`], or nothing of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; as [`Chunk::read`].
    pub fn read(&self, range: Range<u64>) -> Result<VecRead<T>> {
        self.acquire(range, |chunk, _| chunk.read())
    }

    /// Waits until nobody else has a guard of the chunks of a range, and returns guards to write
    /// them, acquired as by [`ChunkedVec::read`]. What the elements of the range are at first is
    /// unspecified; those of the same chunks beyond the range stay what they are.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; as [`Chunk::write`].
    pub fn write(&self, range: Range<u64>) -> Result<VecWrite<T>> {
        self.acquire(range, |chunk, piece| match piece.is_whole {
            true => chunk.write(),
            false => chunk.update(),
        })
    }

    /// As [`ChunkedVec::write`], and the guards contain the last committed versions.
    ///
    /// # Errors
    /// As [`ChunkedVec::write`].
    pub fn update(&self, range: Range<u64>) -> Result<VecWrite<T>> {
        self.acquire(range, |chunk, _| chunk.update())
    }

    /// Returns the last committed versions of the chunks of a range, without waiting for any guard.
    /// They are not of one moment: a later chunk may have a commit that came after one which an
    /// earlier chunk does not have yet. [`ChunkedVec::read`] has no such gaps.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; as [`Chunk::snapshot`].
    pub fn snapshot(&self, range: Range<u64>) -> Result<VecSnapshot<T>> {
        self.acquire(range, |chunk, _| chunk.snapshot())
    }

    fn acquire<G>(
        &self,
        range: Range<u64>,
        mut guard_of: impl FnMut(&Chunk<T>, &Piece) -> Result<G>,
    ) -> Result<VecGuard<G>> {
        self.check(&range)?;
        let pieces = self.layout.pieces(range.clone());
        let chunks = pieces.map(|piece| Ok((self.chunk(piece.chunk)?, piece)));
        let mut chunks: Vec<(Chunk<T>, Piece)> = chunks.collect::<Result<_>>()?;
        // The order of `Chunk::acquire_all`.
        chunks.sort_by_key(|(chunk, _)| chunk.origin());
        let guards = chunks.into_iter().map(|(chunk, piece)| {
            let guard = guard_of(&chunk, &piece)?;
            Ok((piece, guard))
        });
        let mut guards: Vec<(Piece, G)> = guards.collect::<Result<_>>()?;
        guards.sort_by_key(|(piece, _)| piece.at);
        Ok(VecGuard::new(range, guards))
    }

    /// Writes elements, and commits them under a tag: chunk by chunk, each as a whole. A chunk that
    /// is written as a whole takes one request.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; as [`Chunk::put`]: then the chunks before have been committed.
    pub fn put(&self, at: u64, elements: &[T], tag: u64) -> Result<()> {
        let range = self.range_of(at, elements)?;
        let mut rest = elements;
        for piece in self.layout.pieces(range) {
            let chunk = self.chunk(piece.chunk)?;
            let (now, later) = rest.split_at(piece.inside.len());
            rest = later;
            if piece.is_whole {
                chunk.put(now, tag)?;
                continue;
            }
            let mut guard = chunk.update()?;
            guard[piece.inside].copy_from_slice(now);
            guard.commit(tag)?;
        }
        Ok(())
    }

    /// Copies elements, as [`ChunkedVec::snapshot`] gets them, one chunk at a time.
    ///
    /// # Errors
    /// As [`ChunkedVec::snapshot`].
    pub fn get(&self, at: u64, into: &mut [T]) -> Result<()> {
        let range = self.range_of(at, into)?;
        let mut rest = into;
        for piece in self.layout.pieces(range) {
            let (now, later) = rest.split_at_mut(piece.inside.len());
            rest = later;
            now.copy_from_slice(&self.chunk(piece.chunk)?.snapshot()?[piece.inside]);
        }
        Ok(())
    }

    /// Calls `f` with the elements of a range and the index of the first of them, chunk by chunk,
    /// each under a read guard.
    ///
    /// # Errors
    /// As [`ChunkedVec::read`]; that of `f`, which ends it.
    pub fn for_each_chunk(
        &self,
        range: Range<u64>,
        mut f: impl FnMut(u64, &[T]) -> Result<()>,
    ) -> Result<()> {
        self.check(&range)?;
        for piece in self.layout.pieces(range) {
            let guard = self.chunk(piece.chunk)?.read()?;
            f(piece.at, &guard[piece.inside])?;
        }
        Ok(())
    }

    /// Calls `f` with the elements of a range and the index of the first of them, to change them,
    /// chunk by chunk; each is committed under the tag.
    ///
    /// # Errors
    /// As [`ChunkedVec::update`]; that of `f`, which ends it: the chunks before are committed.
    pub fn update_each_chunk(
        &self,
        range: Range<u64>,
        tag: u64,
        mut f: impl FnMut(u64, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        self.check(&range)?;
        for piece in self.layout.pieces(range) {
            let mut guard = self.chunk(piece.chunk)?.update()?;
            f(piece.at, &mut guard[piece.inside])?;
            guard.commit(tag)?;
        }
        Ok(())
    }

    /// Removes the array and its chunks for all processes ([`Chunk::free`]): each server removes
    /// those of which it is the home. The chunks of a home that is lost are gone.
    ///
    /// # Errors
    /// [`Error::Freed`]: another process was first. Those of the fabric: then the chunks of the
    /// other homes are removed all the same.
    pub fn free(self) -> Result<()> {
        let prefix = self.prefix();
        self.header.free()?;
        self.dsm.client().free_all(&prefix)
    }

    fn range_of(&self, at: u64, elements: &[T]) -> Result<Range<u64>> {
        let range = at..at.saturating_add(elements.len() as u64);
        self.check(&range).map(|()| range)
    }

    fn check(&self, range: &Range<u64>) -> Result<()> {
        match range.start <= range.end && range.end <= self.len() {
            true => Ok(()),
            false => Err(self.out_of_range(range.clone())),
        }
    }

    fn out_of_range(&self, range: Range<u64>) -> Error {
        Error::OutOfRange {
            chunk: self.name().to_owned(),
            begin: range.start,
            end: range.end,
            len: self.len(),
        }
    }
}
