//! Records how this process uses the ranges of a mapping, so that no two uses conflict.
//!
//! Offsets come from tables that other processes write, and from the agent, which grants extents.
//! Behind a lease there are references, so a range that is leased, or lies in this process's own
//! blocks, must not be accessed in another way. This is checked when a range is made, never on the
//! data path.
//!
//! # Invariants
//! K1 Own extents overlap nothing else. The heap that has them makes the ranges in them.
//! K2 A leased range overlaps no other leased range (one entry has one place) and no raw one.
//! K3 Raw ranges (tables, rings and words of others) may overlap each other: they are never behind
//!    a reference.

use crate::{Corrupt, Error, Span};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// This process cuts blocks from it.
    Own,
    /// Memory of another process that this one has a lease on.
    Leased,
    /// Copies and atomics.
    Raw,
}

/// The uses of one mapping.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Own and leased ranges, which do not overlap: from the start to the end and the use.
    apart: BTreeMap<u64, (u64, Use)>,
    raw: Vec<Span>,
}

impl Claims {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a use of a range; fails if that conflicts with another use.
    pub(crate) fn claim(&self, span: Span, what: Use) -> Result<(), Error> {
        if span.bytes == 0 {
            return Ok(());
        }
        let mut inner = self.lock();
        let before = inner.apart.range(..span.end()).next_back();
        let overlaps = before.is_some_and(|(_, (end, _))| *end > span.offset);
        let meets = |raw: &Span| raw.offset < span.end() && span.offset < raw.end();
        if overlaps || what != Use::Raw && inner.raw.iter().any(meets) {
            return Err(Error::Corrupt(Corrupt {
                what: "the beginning of a range that this process uses for something else",
                value: span.offset,
            }));
        }
        match what {
            Use::Raw => inner.raw.push(span),
            Use::Own | Use::Leased => {
                inner.apart.insert(span.offset, (span.end(), what));
            }
        }
        Ok(())
    }

    /// Ends a use.
    pub(crate) fn release(&self, span: Span, what: Use) {
        if span.bytes == 0 {
            return;
        }
        let mut inner = self.lock();
        match what {
            Use::Raw => {
                let found = inner.raw.iter().position(|raw| *raw == span);
                found.map(|index| inner.raw.swap_remove(index));
            }
            Use::Own | Use::Leased => {
                inner.apart.remove(&span.offset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_that_contradict_each_other_are_refused() {
        let claims = Claims::default();
        let span = |offset, bytes| Span { offset, bytes };
        claims.claim(span(0, 100), Use::Raw).unwrap();
        claims.claim(span(50, 100), Use::Raw).unwrap();
        claims.claim(span(200, 100), Use::Own).unwrap();
        claims.claim(span(300, 100), Use::Leased).unwrap();
        claims.claim(span(250, 0), Use::Leased).unwrap();
        for (offset, bytes, what) in [
            (149, 1, Use::Own),
            (149, 1, Use::Leased),
            (299, 1, Use::Raw),
            (150, 51, Use::Leased),
            (199, 300, Use::Own),
            (399, 1, Use::Raw),
            (300, 100, Use::Leased),
        ] {
            let refused = claims.claim(span(offset, bytes), what);
            assert!(refused.is_err(), "{offset}, {bytes}, {what:?}");
        }
        claims.release(span(300, 100), Use::Leased);
        claims.release(span(50, 100), Use::Raw);
        claims.claim(span(100, 100), Use::Own).unwrap();
        claims.claim(span(300, 1), Use::Raw).unwrap();
    }
}
