//! Guards to read a chunk where it lies: for code that goes to the home, in the place of the
//! content coming here.

use super::{Chunk, Elem};
use crate::chunk::given::Given;
use crate::error::Result;
use crate::guard::Snapshot;
use crate::protocol::{self, Mode, Version};
use samite_fabric::SegmentKey;

/// A guard to read a chunk at its home: as long as it exists, nothing is committed to the chunk.
/// The content was not fetched.
pub struct HomeGuard<T: Elem>(Given<T>);

impl<T: Elem> std::fmt::Debug for HomeGuard<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HomeGuard")
            .field("version", &self.version())
            .field("segment", &self.segment())
            .finish_non_exhaustive()
    }
}

impl<T: Elem> HomeGuard<T> {
    /// Returns the version: the number of commits before it.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Returns the tag that the version was committed with; 0 before the first commit.
    pub fn tag(&self) -> u64 {
        self.0.tag
    }

    /// Returns the segment of the home that is the content, from its first byte on. `None` if the
    /// content is in no memory that a segment names: a short chunk, or one that was never
    /// committed. Then [`HomeGuard::fetch`] costs little.
    pub fn segment(&self) -> Option<SegmentKey> {
        match &self.0.content {
            protocol::Content::Segment(key) => Some(*key),
            protocol::Content::Zeros | protocol::Content::Inline(_) => None,
        }
    }

    /// Fetches the content.
    ///
    /// # Errors
    /// [`Error::Fenced`](crate::Error::Fenced) if this process was stopped for so long that the
    /// guard has been revoked; those of the fabric.
    pub fn fetch(&self) -> Result<Snapshot<T>> {
        let chunk = &self.0.held.chunk;
        self.0.snapshot()?.ok_or_else(|| chunk.fenced())
    }
}

impl<T: Elem> Chunk<T> {
    /// As [`Chunk::read`], at the home of the chunk, and without fetching the content. A process
    /// that owns the chunk gives it back to its home for that.
    ///
    /// # Errors
    /// As [`Chunk::read`].
    pub fn read_at_home(&self) -> Result<HomeGuard<T>> {
        self.wherever(|chunk| Ok(HomeGuard(chunk.acquire_at_home(Mode::Read)?)))
    }
}
