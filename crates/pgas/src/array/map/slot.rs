//! The word of a slot: its state, and who may access the entry.
//!
//! ```text
//!   63........35  34.......3  2      1..0
//!   version       tag         chain  kind
//! ```
//! *kind*: empty (never used), busy (one unit reads or writes the entry), full, gone (removed).
//! *tag*: bits of the hash of the key, so that most other keys are skipped without reading them.
//! *version*: counts how often the slot stopped being busy, so that a reader notices that an entry
//! has changed. *chain*: a unit is adding a key whose search begins at this slot; the bit belongs
//! to the slot, not to the entry.

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Empty,
    Busy,
    Full,
    Gone,
}

/// The word of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(pub(super) u64);

const KIND: u64 = 0b11;
const CHAIN: u64 = 1 << 2;
const TAG_SHIFT: u32 = 3;
const TAG: u64 = 0xffff_ffff << TAG_SHIFT;
const VERSION: u64 = 1 << 35;

/// Added to the word of a busy slot to make it full. The other bits of the word may change
/// meanwhile.
pub(super) const FILL: u64 = VERSION + 1;
/// Added to the word of a busy slot to mark its entry as removed.
pub(super) const EMPTY_OUT: u64 = VERSION + 2;
/// Added to the word of a slot whose chain is held to release the chain.
pub(super) const RELEASE: u64 = CHAIN.wrapping_neg();

impl State {
    pub(super) fn kind(self) -> Kind {
        match self.0 & KIND {
            0 => Kind::Empty,
            1 => Kind::Busy,
            2 => Kind::Full,
            _ => Kind::Gone,
        }
    }

    pub(super) fn has_tag(self, tag: u32) -> bool {
        self.0 & TAG == u64::from(tag) << TAG_SHIFT
    }

    pub(super) fn is_held(self) -> bool {
        self.0 & CHAIN != 0
    }

    /// Returns the same state with the chain held.
    pub(super) fn held(self) -> State {
        State(self.0 | CHAIN)
    }

    /// Returns the same state, busy.
    pub(super) fn busy(self) -> State {
        State(self.0 & !KIND | 1)
    }

    /// Returns the state of a free slot after it is taken for a key with this tag.
    pub(super) fn taken(self, tag: u32) -> State {
        State(self.busy().0 & !TAG | u64::from(tag) << TAG_SHIFT)
    }

    /// Returns true if the entry did not change between two reads of the word.
    pub(super) fn is_unchanged(self, later: State) -> bool {
        (self.0 ^ later.0) & !CHAIN == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_of_a_slot() {
        let empty = State(0);
        assert_eq!(empty.kind(), Kind::Empty);
        let busy = empty.taken(0xdead_beef).held();
        assert_eq!(busy.kind(), Kind::Busy);
        assert!(busy.has_tag(0xdead_beef) && !busy.has_tag(0xdead_beee) && busy.is_held());
        let full = State(busy.0.wrapping_add(FILL).wrapping_add(RELEASE));
        assert_eq!(full.kind(), Kind::Full);
        assert!(full.has_tag(0xdead_beef) && !full.is_held());
        assert!(full.is_unchanged(full.held()));
        let again = State(full.busy().0.wrapping_add(FILL));
        assert_eq!(again.kind(), Kind::Full);
        assert!(!full.is_unchanged(again));
        let gone = State(again.busy().held().0.wrapping_add(EMPTY_OUT));
        assert_eq!(gone.kind(), Kind::Gone);
        assert!(gone.is_held());
        let other = State(gone.taken(7).0.wrapping_add(FILL));
        assert!(other.has_tag(7) && other.kind() == Kind::Full && other.is_held());
    }

    #[test]
    fn versions_wrap_into_nothing() {
        let mut word = State(0).taken(u32::MAX).held().0;
        for _ in 0..3 {
            word = State(word | !(VERSION - 1)).busy().0.wrapping_add(FILL);
            let state = State(word);
            assert!(state.kind() == Kind::Full && state.has_tag(u32::MAX) && state.is_held());
        }
    }
}
