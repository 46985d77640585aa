//! What a unit records about its own memory for the checking mode, and the messages that query it.
//!
//! An atomic access sends two queries, one before and one after the operation itself. The first
//! records the access and stores the unit's clock with the element; the second fetches the clock
//! stored there. A unit that sees the effect of an operation queries after it, and so finds the
//! clock that was stored before it.

use super::clock::Clock;
use super::report::{AccessKind, Conflict};
use super::shadow::{New, Shadow};
use crate::Unit;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;

/// Where a clock is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Key {
    /// An element, identified by its first byte.
    Element {
        segment: u16,
        generation: u8,
        offset: u64,
    },
    Lock {
        team: u64,
        number: u64,
    },
}

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
        unit: u32,
        kind: AccessKind,
        place: String,
        clock: Clock,
    },
    /// Stores a clock under the key. What this unit did so far happens before the actions of a unit
    /// that takes it.
    Leave { key: Key, clock: Clock },
    /// Fetches the clock stored under the key.
    Take { key: Key },
    /// The implicit puts of a unit are complete.
    Complete { unit: u32, clock: Clock },
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
    shadow: Shadow,
    left: HashMap<Key, Clock>,
}

impl Home {
    pub(super) fn new(owner: Unit) -> Home {
        Home {
            owner,
            shadow: Shadow::default(),
            left: HashMap::new(),
        }
    }

    pub(super) fn answer(&mut self, question: Question) -> Answer {
        let mut answer = Answer::default();
        match question {
            Question::Access {
                segment,
                generation,
                ranges,
                element_bytes,
                unit,
                kind,
                place,
                clock,
            } => {
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
                    let starts = ranges.into_iter().flat_map(|range| {
                        let step = (element_bytes as usize).max(1);
                        range.step_by(step)
                    });
                    for offset in starts {
                        let key = Key::Element {
                            segment,
                            generation,
                            offset,
                        };
                        self.leave(key, &clock);
                    }
                }
            }
            Question::Leave { key, clock } => self.leave(key, &clock),
            Question::Take { key } => {
                answer.clock = self.left.get(&key).cloned().unwrap_or_default();
            }
            Question::Complete { unit, clock } => self.shadow.complete(unit, clock.time(unit)),
        }
        answer
    }

    fn leave(&mut self, key: Key, clock: &Clock) {
        self.left.entry(key).or_default().join(clock);
    }

    /// Returns the answer as a message, or `None` if the message is not a query.
    pub(super) fn answer_message(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let question = serde_json::from_slice(bytes).ok()?;
        serde_json::to_vec(&self.answer(question)).ok()
    }
}
