//! Blocks in the memory of this process until the commit sends or writes them, or longer if the
//! step is kept.

use crate::Region;
use crate::last::WrittenSlot;

/// A block in the memory of this process.
pub(crate) struct Staged {
    pub(crate) variable: usize,
    pub(crate) number: u64,
    pub(crate) region: Region,
    pub(crate) bytes: u64,
    /// Words, so that the data are aligned for every type.
    pub(crate) words: Vec<u64>,
    /// The slot number if the step is kept; `None` for a block that was put.
    pub(crate) kept_as: Option<usize>,
}

impl Staged {
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes as usize]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes as usize]
    }
}

/// Takes the memory in which blocks were allocated, in that order.
pub(crate) fn own_slots(staged: &mut Vec<Staged>) -> Vec<WrittenSlot> {
    let mut allocated: Vec<Staged> = std::mem::take(staged);
    allocated.retain(|staged| staged.kept_as.is_some());
    allocated.sort_by_key(|staged| staged.kept_as);
    let words = allocated.into_iter().map(|staged| staged.words);
    words
        .map(|words| WrittenSlot::Own(vec![(0, words)]))
        .collect()
}
