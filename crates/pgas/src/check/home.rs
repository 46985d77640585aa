//! What a unit records about its own memory for the checking mode, and the messages that query it.
//!
//! An atomic access sends two queries, one before and one after the operation itself. The first
//! records the access and stores the unit's clock with the element; the second fetches the clock
//! stored there. A unit that sees the effect of an operation queries after it, and so finds the
//! clock that was stored before it.
//!
//! A query says nothing about the unit that sends it: that is known from the message. For each of
//! its ranges, a query makes this unit store one clock, one for each gap between the pieces that
//! are recorded in it, and copies of those at its ends; over all queries these are about two clocks
//! per range. The place of an access and the name of a lock are stored, too. A query is compared
//! with each recorded piece of its ranges once.

use super::clock::Clock;
use super::report::{AccessKind, Conflict};
use super::shadow::{New, Ranges, Shadow};
use crate::Unit;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;

/// Where a clock is stored.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Key {
    /// An element, identified by its first byte.
    Element {
        segment: u16,
        generation: u8,
        offset: u64,
    },
    Lock(LockName),
}

/// The team of a lock, and its number there.
pub(super) type LockName = (u64, u64);

/// A query about a unit's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Question {
    /// An access is about to happen.
    Access {
        segment: u16,
        generation: u8,
        /// Bytes.
        ranges: Vec<Range<u64>>,
        element_bytes: u64,
        kind: AccessKind,
        place: String,
        clock: Clock,
    },
    /// Stores a clock with a lock. What this unit did so far happens before the actions of a unit
    /// that takes it.
    Leave { lock: LockName, clock: Clock },
    /// Fetches the clock stored under the key.
    Take { key: Key },
    /// The implicit puts of this unit are complete.
    Complete { clock: Clock },
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) conflicts: Vec<Conflict>,
    pub(super) clock: Clock,
}

/// The checker's record of the memory of one unit.
#[derive(Debug)]
pub(super) struct Home {
    owner: Unit,
    /// The number of times in a clock.
    units: usize,
    shadow: Shadow,
    /// The clocks of those that have updated elements, by segment.
    updated: HashMap<u16, Ranges<Clock>>,
    locks: HashMap<LockName, Clock>,
}

impl Home {
    pub(super) fn new(owner: Unit, units: usize) -> Home {
        Home {
            owner,
            units,
            shadow: Shadow::default(),
            updated: HashMap::new(),
            locks: HashMap::new(),
        }
    }

    /// Answers a query of `unit`.
    pub(super) fn answer(&mut self, unit: u32, question: Question) -> Answer {
        let mut answer = Answer::default();
        match question {
            Question::Access {
                segment,
                generation,
                ranges,
                element_bytes,
                kind,
                place,
                mut clock,
            } => {
                let ranges = merged(ranges);
                clock.limit(self.units);
                let new = New {
                    owner: self.owner,
                    segment,
                    generation,
                    ranges: &ranges,
                    element_bytes,
                    unit,
                    kind,
                    place: &place,
                    clock: &clock,
                };
                answer.conflicts = self.shadow.access(&new);
                // An atomic update publishes its unit's clock to units that later see the element.
                if kind.is_atomic() && kind.writes() {
                    let elements = Ranges::of(&mut self.updated, segment, generation);
                    for range in &ranges {
                        elements.visit(range, |_, left| left.join(&clock));
                    }
                }
            }
            Question::Leave { lock, mut clock } => {
                clock.limit(self.units);
                self.locks.entry(lock).or_default().join(&clock);
            }
            Question::Take { key } => {
                let left = match key {
                    Key::Lock(lock) => self.locks.get(&lock),
                    Key::Element {
                        segment,
                        generation,
                        offset,
                    } => {
                        let updated = self.updated.get(&segment);
                        updated.and_then(|updated| updated.at(generation, offset))
                    }
                };
                answer.clock = left.cloned().unwrap_or_default();
            }
            Question::Complete { clock } => self.shadow.complete(unit, clock.time(unit)),
        }
        answer
    }

    /// Returns the answer to `unit` as a message, or `None` if its message is not a query.
    pub(super) fn answer_message(&mut self, unit: u32, bytes: &[u8]) -> Option<Vec<u8>> {
        let question = serde_json::from_slice(bytes).ok()?;
        serde_json::to_vec(&self.answer(unit, question)).ok()
    }
}

/// Merges ranges that overlap or touch, so that each byte is visited once.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let is_part = next.start <= last.end;
        last.end = if is_part {
            last.end.max(next.end)
        } else {
            last.end
        };
        is_part
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(home: &mut Home, unit: u32, question: &str) -> Answer {
        let answer = home.answer_message(unit, question.as_bytes());
        serde_json::from_slice(&answer.expect("it is a query")).expect("it is an answer")
    }

    fn access(unit: u32, kind: &str, end: u64, clock: &str) -> String {
        format!(
            r#"{{"Access":{{"segment":1,"generation":0,"ranges":[{{"start":0,"end":{end}}}],
                "element_bytes":1,"unit":{unit},"kind":"{kind}","place":"","clock":{clock}}}}}"#
        )
    }

    /// Only a unit itself completes its puts.
    #[test]
    fn a_unit_speaks_for_itself() {
        let home = &mut Home::new(Unit(0), 3);
        answer(home, 0, &access(0, "ImplicitPut", 8, "[1]"));
        answer(home, 1, r#"{"Complete":{"unit":0,"clock":[1,1]}}"#);
        let found = answer(home, 1, &access(1, "Get", 8, "[5,5]"));
        assert_eq!(found.conflicts.len(), 1);
        answer(home, 0, r#"{"Complete":{"unit":0,"clock":[1,1]}}"#);
        let found = answer(home, 1, &access(1, "Put", 8, "[5,6]"));
        assert_eq!(found.conflicts.len(), 0);
    }

    /// An update of as many elements as there can be costs no more than one of a few.
    #[test]
    fn an_update_of_everything_is_one_range() {
        let home = &mut Home::new(Unit(0), 3);
        answer(home, 1, &access(1, "Update", u64::MAX, "[0,3]"));
        answer(home, 2, &access(2, "Update", 8, "[0,0,4]"));
        let mut take = |offset: u64, generation: u8| {
            let key = format!(r#""segment":1,"generation":{generation},"offset":{offset}"#);
            let question = format!(r#"{{"Take":{{"key":{{"Element":{{{key}}}}}}}}}"#);
            let clock = answer(home, 0, &question).clock;
            [1, 2].map(|unit| clock.time(unit))
        };
        assert_eq!(take(7, 0), [3, 4]);
        assert_eq!(take(8, 0), [3, 0]);
        assert_eq!(take(1 << 60, 0), [3, 0]);
        // The number stands for other memory. Nothing has been recorded of that, and a query does
        // not change what has.
        assert_eq!(take(7, 1), [0, 0]);
        assert_eq!(take(7, 0), [3, 4]);
    }

    /// A query names each byte once, and times of units that there are.
    #[test]
    fn a_query_is_limited() {
        let home = &mut Home::new(Unit(0), 3);
        answer(home, 1, &access(1, "Update", 8, "[0,3,0,9,9]"));
        let lock = r#""lock":[1,1]"#;
        answer(
            home,
            1,
            &format!(r#"{{"Leave":{{{lock},"clock":[0,3,0,9]}}}}"#),
        );
        for key in [
            r#"{"Element":{"segment":1,"generation":0,"offset":0}}"#,
            r#"{"Lock":[1,1]}"#,
        ] {
            let clock = answer(home, 0, &format!(r#"{{"Take":{{"key":{key}}}}}"#)).clock;
            assert_eq!([1, 3].map(|unit| clock.time(unit)), [3, 0], "{key}");
        }
        let ranges = vec![20..30, 8..16, 9..9, 0..10, 16..17, 3..4];
        assert_eq!(merged(ranges), [0..17, 20..30]);
    }
}
