//! Which process has which extent of the arena, and how much is left. Pure: no IO.

use super::Life;
use range_alloc::RangeAllocator;
use samite_mem::{Error, Span};

/// Extents are multiples of a huge page.
const GRAIN: u64 = 2 << 20;

/// The book of extents.
#[derive(Debug)]
pub(crate) struct Book {
    free: RangeAllocator<u64>,
    taken: Vec<(Life, Span)>,
    budget: u64,
    used: u64,
}

impl Book {
    /// Creates a book in which all of `extents` is free; together they are the budget.
    pub(crate) fn new(extents: Span) -> Self {
        let free = RangeAllocator::new(extents.offset..extents.end());
        Book {
            free,
            taken: Vec::new(),
            budget: extents.bytes,
            used: 0,
        }
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn grant(&mut self, to: Life, bytes: u64) -> Result<Span, Error> {
        let refusal = Error::Budget {
            asked: bytes,
            used: self.used,
            budget: self.budget,
        };
        let Some(rounded) = bytes.max(1).checked_next_multiple_of(GRAIN) else {
            return Err(refusal);
        };
        if rounded > self.budget - self.used {
            return Err(refusal);
        }
        let range = self.free.allocate_range(rounded).map_err(|_| refusal)?;
        let span = Span {
            offset: range.start,
            bytes: rounded,
        };
        self.taken.push((to, span));
        self.used += rounded;
        Ok(span)
    }

    /// Takes back one extent; returns `false` if that incarnation of a peer does not have it.
    pub(crate) fn give_back(&mut self, from: Life, span: Span) -> bool {
        let Some(index) = self.taken.iter().position(|entry| *entry == (from, span)) else {
            return false;
        };
        self.taken.swap_remove(index);
        self.free.free_range(span.offset..span.end());
        self.used -= span.bytes;
        true
    }

    /// Returns the extents of one incarnation of a peer.
    pub(crate) fn of(&self, life: Life) -> Vec<Span> {
        self.taken
            .iter()
            .filter(|(owner, _)| *owner == life)
            .map(|(_, span)| *span)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Slot;
    use proptest::prelude::*;

    proptest! {
        /// Extents never overlap, the budget is never exceeded, and returned extents can be granted
        /// again.
        #[test]
        fn the_book_balances(sizes in proptest::collection::vec((0u32..4, 1u64..9 << 20, any::<bool>()), 1..60)) {
            let mut book = Book::new(Span { offset: 32 << 20, bytes: 32 << 20 });
            let mut held: Vec<(Life, Span)> = Vec::new();
            for (peer, bytes, back) in sizes {
                if back && !held.is_empty() {
                    let (life, span) = held.remove(0);
                    prop_assert!(book.give_back(life, span));
                    prop_assert!(!book.give_back(life, span));
                } else if let Ok(span) = book.grant((Slot(peer % 2), peer / 2), bytes) {
                    for (_, other) in &held {
                        prop_assert!(span.end() <= other.offset || other.end() <= span.offset);
                    }
                    held.push(((Slot(peer % 2), peer / 2), span));
                }
                let sum: u64 = held.iter().map(|(_, span)| span.bytes).sum();
                prop_assert_eq!(sum, book.used());
                prop_assert!(book.used() <= book.budget());
            }
        }
    }

    #[test]
    fn an_absurd_request_is_a_refusal() {
        let mut book = Book::new(Span {
            offset: 0,
            bytes: 64 << 20,
        });
        assert!(matches!(
            book.grant((Slot(0), 1), u64::MAX),
            Err(Error::Budget { .. })
        ));
    }
}
