//! The memory in which an owner writes the versions of a long chunk: drafts that its home has given
//! it. It lets others read a version without the home, and takes the memory of an old one back when
//! nobody reads it.

use crate::protocol::GuardId;
use samite_fabric::{Borrowed, Fabric, Published, SegmentKey};

/// The most drafts that an owner keeps beside those that others read.
const MOST: usize = 4;

/// The number of a draft, and its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftAt {
    pub(crate) id: GuardId,
    pub(crate) key: SegmentKey,
}

/// The drafts that an owner has and does not write.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    all: Vec<(DraftAt, State)>,
    /// The one that is the content of the last version.
    last: Option<GuardId>,
    /// Those that cannot be borrowed any more.
    spoilt: Vec<DraftAt>,
}

#[derive(Debug)]
enum State {
    /// Nobody reads it, and it can be borrowed.
    Unused,
    /// It is, or was, the content of a version.
    Read(Published),
}

impl Drafts {
    /// Returns a draft that nobody reads, to be written; `None` if there is none. Only after the
    /// owner has begun a version, and owns the chunk still: otherwise the home may be about to take
    /// what would be taken back here.
    pub(super) fn take(&mut self, fabric: &Fabric) -> Option<(DraftAt, Borrowed)> {
        for at in (0..self.all.len()).rev() {
            if self.is_last(at) {
                continue;
            }
            let (draft, state) = self.all.swap_remove(at);
            let borrowed = match state {
                State::Unused => fabric.borrow(draft.key).ok().flatten(),
                State::Read(published) => match published.retract() {
                    Ok(borrowed) => Some(borrowed),
                    Err(published) => {
                        self.all.push((draft, State::Read(published)));
                        continue;
                    }
                },
            };
            match borrowed {
                Some(borrowed) => return Some((draft, borrowed)),
                None => self.spoilt.push(draft),
            }
        }
        None
    }

    fn is_last(&self, at: usize) -> bool {
        Some(self.all[at].0.id) == self.last
    }

    /// Keeps a draft that is not borrowed. Returns false if there are enough.
    pub(super) fn keep(&mut self, draft: DraftAt) -> bool {
        let is_unused = |(_, state): &&(DraftAt, State)| matches!(state, State::Unused);
        let has_room = self.all.iter().filter(is_unused).count() < MOST;
        if has_room {
            self.all.push((draft, State::Unused));
        }
        has_room
    }

    /// Returns a draft that is not needed, or of no use. When [`Drafts::take`] may be called.
    pub(super) fn surplus(&mut self, fabric: &Fabric) -> Option<DraftAt> {
        let unused = match self.all.len() > MOST {
            true => self.take(fabric).map(|(draft, _)| draft),
            false => None,
        };
        unused.or_else(|| self.spoilt.pop())
    }

    /// A draft is the content of the last version.
    pub(super) fn committed(&mut self, draft: DraftAt, published: Published) {
        self.last = Some(draft.id);
        self.all.push((draft, State::Read(published)));
    }

    /// Gives all of them up. Returns those that are to be released: `but_last`, the home still
    /// takes the content of the last version.
    pub(super) fn end(&mut self, but_last: bool) -> Vec<DraftAt> {
        let last = self.last.filter(|_| but_last);
        let all = std::mem::take(&mut self.all).into_iter();
        let all = all.map(|(draft, _)| draft).chain(self.spoilt.drain(..));
        all.filter(|draft| Some(draft.id) != last).collect()
    }
}
