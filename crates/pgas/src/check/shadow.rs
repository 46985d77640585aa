//! The accesses to the memory of one unit that can still conflict: pure, without messages.
//!
//! For each range of bytes it keeps the last accesses of each unit, with their times. A new access
//! conflicts with an old one if its unit's clock does not cover the old one's time. After a put
//! only the put is kept: an access that conflicts with an older one conflicts with the put as well,
//! or was reported already.
//!
//! Source: FastTrack (Flanagan and Freund, PLDI 2009), on ranges instead of variables, and with a
//! list where FastTrack has one epoch: a program has few units, not thousands of threads.

use super::clock::Clock;
use super::report::{Access, AccessKind, Conflict};
use crate::Unit;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The memory of one unit.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    /// By number, for its latest use only.
    segments: HashMap<u16, Ranges<Known>>,
    /// Source locations, by the numbers that stand for them here.
    places: Vec<String>,
    numbers: HashMap<String, u32>,
    /// By unit, then by batch: the time at which that batch of implicit puts was complete.
    completed: Vec<Vec<u64>>,
    said: HashSet<(u16, Past, Past)>,
}

/// What is known of ranges of bytes of a segment, in one use of its number.
#[derive(Debug, Default)]
pub(super) struct Ranges<V> {
    generation: u8,
    /// By the first byte: the end, and the value. Ranges do not overlap.
    ranges: BTreeMap<u64, (u64, V)>,
}

/// The accesses to a range.
type Known = Vec<(Past, When)>;

/// An access without its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Past {
    unit: u32,
    kind: AccessKind,
    place: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// At this time of its unit.
    At(u64),
    /// When this batch of its unit was complete.
    Batch(usize),
}

/// A new access.
#[derive(Clone, Debug)]
pub(super) struct New<'a> {
    pub(super) owner: Unit,
    pub(super) segment: u16,
    /// Which use of the segment number.
    pub(super) generation: u8,
    /// Bytes.
    pub(super) ranges: &'a [Range<u64>],
    pub(super) element_bytes: u64,
    pub(super) unit: u32,
    pub(super) kind: AccessKind,
    pub(super) place: &'a str,
    pub(super) clock: &'a Clock,
}

impl Shadow {
    /// Records an access and returns the conflicts that it causes, each pair of source locations
    /// once.
    pub(super) fn access(&mut self, new: &New<'_>) -> Vec<Conflict> {
        let past = Past {
            unit: new.unit,
            kind: new.kind,
            place: self.number(new.place),
        };
        let when = match new.kind {
            AccessKind::ImplicitPut => When::Batch(self.batches(new.unit).len()),
            _ => When::At(new.clock.time(new.unit)),
        };
        let mut found: Vec<(Past, Range<u64>)> = Vec::new();
        for bytes in new.ranges {
            let completed = &self.completed;
            let segment = Ranges::of(&mut self.segments, new.segment, new.generation);
            segment.visit(bytes, |bytes, before| {
                for (old, at) in before.iter() {
                    if old.kind.conflicts_with(new.kind) && !is_before(completed, old, *at, new) {
                        note(&mut found, *old, bytes);
                    }
                }
                take_over(before, past, when);
            });
        }
        let mut conflicts = Vec::new();
        for (old, bytes) in found {
            if self.said.insert((new.segment, old, past)) {
                conflicts.push(self.conflict(new, old, &bytes));
            }
        }
        conflicts
    }

    /// Records that the implicit puts of a unit up to now were complete at this time of its clock.
    pub(super) fn complete(&mut self, unit: u32, time: u64) {
        self.batches(unit).push(time);
    }

    fn batches(&mut self, unit: u32) -> &mut Vec<u64> {
        let unit = unit as usize;
        if self.completed.len() <= unit {
            self.completed.resize(unit + 1, Vec::new());
        }
        &mut self.completed[unit]
    }

    fn number(&mut self, place: &str) -> u32 {
        if let Some(number) = self.numbers.get(place) {
            return *number;
        }
        let number = self.places.len() as u32;
        self.places.push(place.to_owned());
        self.numbers.insert(place.to_owned(), number);
        number
    }

    fn conflict(&self, new: &New<'_>, old: Past, bytes: &Range<u64>) -> Conflict {
        let size = new.element_bytes.max(1);
        Conflict {
            owner: new.owner.into(),
            segment: new.segment,
            elements: bytes.start / size..bytes.end.div_ceil(size),
            element_bytes: new.element_bytes,
            earlier: Access {
                unit: Unit(old.unit).into(),
                kind: old.kind,
                place: self.places[old.place as usize].clone(),
            },
            later: Access {
                unit: Unit(new.unit).into(),
                kind: new.kind,
                place: new.place.to_owned(),
            },
        }
    }
}

/// Returns true if an old access happened before a new one.
fn is_before(completed: &[Vec<u64>], old: &Past, at: When, new: &New<'_>) -> bool {
    let time = match at {
        When::At(time) => Some(time),
        When::Batch(batch) => completed[old.unit as usize].get(batch).copied(),
    };
    if new.clock.is_buried(old.unit) {
        return true;
    }
    // An incomplete put is ordered before nothing, not even accesses of its own unit.
    time.is_some_and(|time| old.unit == new.unit || time <= new.clock.time(old.unit))
}

/// Adds a range to those found for the same past access.
fn note(found: &mut Vec<(Past, Range<u64>)>, old: Past, bytes: &Range<u64>) {
    match found.iter_mut().find(|(past, _)| *past == old) {
        Some((_, range)) => {
            range.start = range.start.min(bytes.start);
            range.end = range.end.max(bytes.end);
        }
        None => found.push((old, bytes.clone())),
    }
}

/// Adds a new access, and removes those that it supersedes.
fn take_over(before: &mut Known, past: Past, when: When) {
    if past.kind.writes() && !past.kind.is_atomic() {
        before.clear();
    } else {
        let class = |kind: AccessKind| (kind.writes(), kind.is_atomic());
        before.retain(|(old, _)| old.unit != past.unit || class(old.kind) != class(past.kind));
    }
    before.push((past, when));
}

impl<V: Clone + Default + PartialEq> Ranges<V> {
    /// Returns those of this use of a segment's number.
    pub(super) fn of(all: &mut HashMap<u16, Self>, segment: u16, generation: u8) -> &mut Self {
        let found = all.entry(segment).or_default();
        if found.generation != generation {
            // The memory of the earlier use is gone, and what is known of it is forgotten.
            *found = Ranges {
                generation,
                ..Ranges::default()
            };
        }
        found
    }

    /// Returns the value of the range that a byte is in, in this use of a segment's number.
    pub(super) fn at(&self, generation: u8, byte: u64) -> Option<&V> {
        let mut before = self.ranges.range(..=byte);
        let (_, (end, value)) = before
            .next_back()
            .filter(|_| generation == self.generation)?;
        (byte < *end).then_some(value)
    }

    /// Changes the values of a range piece by piece, and merges pieces that are equal afterwards.
    pub(super) fn visit(
        &mut self,
        bytes: &Range<u64>,
        mut change: impl FnMut(&Range<u64>, &mut V),
    ) {
        if bytes.is_empty() {
            return;
        }
        self.cut(bytes.start);
        self.cut(bytes.end);
        let inside: Vec<u64> = self
            .ranges
            .range(bytes.clone())
            .map(|(at, _)| *at)
            .collect();
        // Cover the whole range: gaps between the known pieces become pieces with empty values.
        let mut at = bytes.start;
        let mut pieces: Vec<(Range<u64>, V)> = Vec::new();
        for start in inside {
            let Some((end, known)) = self.ranges.remove(&start) else {
                continue;
            };
            if at < start {
                pieces.push((at..start, V::default()));
            }
            pieces.push((start..end, known));
            at = end;
        }
        if at < bytes.end {
            pieces.push((at..bytes.end, V::default()));
        }
        let mut last: Option<(Range<u64>, V)> = None;
        for (range, mut known) in pieces {
            change(&range, &mut known);
            match &mut last {
                Some((before, same)) if *same == known => before.end = range.end,
                _ => {
                    self.keep(last.take());
                    last = Some((range, known));
                }
            }
        }
        self.keep(last);
    }

    fn keep(&mut self, piece: Option<(Range<u64>, V)>) {
        if let Some((range, known)) = piece {
            self.ranges.insert(range.start, (range.end, known));
        }
    }

    /// Splits the range that reaches across `at`, if any.
    fn cut(&mut self, at: u64) {
        let Some((start, (end, known))) = self.ranges.range_mut(..at).next_back() else {
            return;
        };
        debug_assert!(*start < at);
        if *end > at {
            let rest = (std::mem::replace(end, at), known.clone());
            self.ranges.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AccessKind::{Get, ImplicitPut, Load, Put, Update};
    use super::*;
    use proptest::prelude::*;

    /// Units with their clocks that access the memory of unit 9.
    struct World {
        shadow: Shadow,
        clocks: Vec<Clock>,
    }

    impl World {
        fn new(units: u32) -> World {
            World {
                shadow: Shadow::default(),
                clocks: (0..units).map(Clock::of).collect(),
            }
        }

        fn access(&mut self, unit: u32, kind: AccessKind, bytes: Range<u64>) -> Vec<Conflict> {
            let place = format!("{unit}{kind:?}");
            self.shadow.access(&New {
                owner: Unit(9),
                segment: 4,
                generation: 1,
                ranges: &[bytes],
                element_bytes: 8,
                unit,
                kind,
                place: &place,
                clock: &self.clocks[unit as usize],
            })
        }

        fn is_fine(&mut self, unit: u32, kind: AccessKind, bytes: Range<u64>) {
            assert_eq!(self.access(unit, kind, bytes), []);
        }

        /// Orders what `from` did so far before what `to` does from now on.
        fn order(&mut self, from: u32, to: u32) {
            let told = self.clocks[from as usize].clone();
            self.clocks[to as usize].join(&told);
            self.clocks[from as usize].tick(from);
        }

        fn complete(&mut self, unit: u32) {
            let time = self.clocks[unit as usize].time(unit);
            self.shadow.complete(unit, time);
        }
    }

    #[test]
    fn a_conflict_names_both_sides() {
        let mut world = World::new(2);
        world.is_fine(0, Put, 0..80);
        let found = world.access(1, Get, 44..100);
        let side = |unit, kind, place: &str| Access {
            unit: Unit(unit).into(),
            kind,
            place: place.to_owned(),
        };
        let expected = Conflict {
            owner: Unit(9).into(),
            segment: 4,
            elements: 5..10,
            element_bytes: 8,
            earlier: side(0, Put, "0Put"),
            later: side(1, Get, "1Get"),
        };
        assert_eq!(found, [expected]);
        let text = found[0].to_string();
        for part in [
            "elements 5..10",
            "unit 9",
            "a put by unit 0 at 0Put",
            "a get by unit 1 at 1Get",
        ] {
            assert!(text.contains(part), "{text}");
        }
        world.is_fine(1, Get, 40..48);
    }

    #[test]
    fn order_makes_it_right() {
        let mut world = World::new(3);
        world.is_fine(0, Put, 0..80);
        world.order(0, 1);
        world.is_fine(1, Get, 0..80);
        world.is_fine(1, Put, 0..40);
        // 2 is ordered after 0, but not after 1.
        world.order(0, 2);
        world.is_fine(2, Get, 40..80);
        assert_eq!(world.access(2, Get, 32..48).len(), 1);
        // Transitively, also after what 0 did.
        world.order(1, 2);
        world.is_fine(2, Put, 0..40);
    }

    #[test]
    fn an_order_of_the_past_says_nothing_of_what_follows() {
        let mut world = World::new(2);
        world.is_fine(0, Put, 0..8);
        world.order(0, 1);
        world.is_fine(0, Put, 0..8);
        assert_eq!(world.access(1, Get, 0..8).len(), 1);
    }

    #[test]
    fn reads_of_several_are_all_remembered() {
        let mut world = World::new(3);
        world.is_fine(0, Get, 0..8);
        world.is_fine(1, Get, 0..8);
        world.order(1, 2);
        let found = world.access(2, Put, 0..8);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].earlier.unit, Unit(0));
    }

    #[test]
    fn atomics_race_with_others_only() {
        let mut world = World::new(3);
        world.is_fine(0, Update, 0..8);
        world.is_fine(1, Update, 0..8);
        world.is_fine(2, Load, 0..8);
        assert_eq!(world.access(2, Get, 0..8).len(), 2);
        world.order(0, 2);
        world.order(1, 2);
        world.is_fine(2, Put, 0..8);
        assert_eq!(world.access(1, Load, 0..8).len(), 1);
    }

    #[test]
    fn what_is_not_complete_is_before_nothing() {
        let mut world = World::new(2);
        world.is_fine(0, ImplicitPut, 0..8);
        world.is_fine(0, ImplicitPut, 8..16);
        world.order(0, 1);
        assert_eq!(world.access(1, Get, 0..8).len(), 1);
        assert_eq!(
            world.access(0, Get, 0..8).len(),
            1,
            "not even of its own unit"
        );
        world.complete(0);
        assert_eq!(world.access(1, Get, 8..16).len(), 0, "known already");
        world.order(0, 1);
        world.is_fine(1, Put, 8..16);
        // The next batch is separate.
        world.order(1, 0);
        world.is_fine(0, ImplicitPut, 8..16);
        world.order(0, 1);
        assert_eq!(world.access(1, Put, 8..16).len(), 1);
    }

    #[test]
    fn memory_that_is_used_anew_forgets() {
        let mut world = World::new(2);
        world.is_fine(0, Put, 0..8);
        let (clock, range) = (world.clocks[1].clone(), 0..8);
        let again = New {
            owner: Unit(9),
            segment: 4,
            generation: 2,
            ranges: std::slice::from_ref(&range),
            element_bytes: 8,
            unit: 1,
            kind: Put,
            place: "",
            clock: &clock,
        };
        assert_eq!(world.shadow.access(&again), []);
    }

    proptest! {
        /// Compares with a table that has one entry per byte and never forgets anything.
        #[test]
        fn it_finds_what_a_table_of_all_accesses_finds(
            steps in proptest::collection::vec((0u32..3, 0u32..4, 0u64..24, 1u64..9, 0u32..3), 1..60)
        ) {
            let mut world = World::new(3);
            let mut table: Vec<Vec<(u32, AccessKind, u64)>> = vec![Vec::new(); 40];
            for (unit, what, start, len, other) in steps {
                if what == 3 {
                    if other != unit {
                        world.order(unit, other);
                    }
                    continue;
                }
                let kind = [Put, Get, Update][what as usize];
                let clock = world.clocks[unit as usize].clone();
                let unordered = |(of, old, time): &(u32, AccessKind, u64)| {
                    *of != unit && old.conflicts_with(kind) && *time > clock.time(*of)
                };
                let bytes = start..start + len;
                let any = bytes.clone().any(|at| table[at as usize].iter().any(unordered));
                // Reported pairs of source locations are not compared: the shadow forgets what a
                // put hides.
                world.shadow.said.clear();
                let found = !world.access(unit, kind, bytes.clone()).is_empty();
                // A conflict that was reported once may be hidden behind the put that it was
                // reported for.
                prop_assert!(!found || any, "a conflict out of nothing");
                if any && !found {
                    let hidden = bytes.clone().all(|at| {
                        let past = &table[at as usize];
                        let unordered = past.iter().enumerate().filter(|(_, old)| unordered(old));
                        let put = |after: &[(u32, AccessKind, u64)]| after.iter().any(|(_, kind, _)| *kind == Put);
                        let mut unordered = unordered;
                        unordered.all(|(place, _)| put(&past[place + 1..]))
                    });
                    prop_assert!(hidden, "a conflict was missed");
                }
                for at in bytes {
                    table[at as usize].push((unit, kind, clock.time(unit)));
                }
            }
        }
    }
}
