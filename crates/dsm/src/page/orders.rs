//! The protocol of a page in every order of its steps: an owner that commits, a home that ends the
//! ownership at any time, a reader that takes a guard, and one that takes a snapshot. Each access
//! to shared memory is a step, and all see the steps in one order, as the code makes sure.
//!
//! # Rules
//! O1 What the owner takes for committed, the home has taken over.
//! O2 Nothing is committed, by the owner or the home, while the reader has a guard.
//! O3 A guard and a snapshot have one version, whole: the last one when it was looked for, or a
//!    later one. The home takes it over.

use stateright::{Checker, Model, Property};

/// The versions that the owner commits.
const VERSIONS: u8 = 3;

/// What the home writes to `ended` before it has read the last version.
const ENDING: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Memory {
    /// Whether the home's word says that the owner owns the chunk.
    is_owned: bool,
    begun: u8,
    version: u8,
    ended: u8,
    /// Each slot in two halves, which are written and read one after the other.
    slots: [[u8; 2]; 2],
    /// The guards that the reader counts.
    count: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Idle,
    /// It has begun; it has seen that it is the owner; it has seen that nobody reads.
    Begun,
    Owns,
    Unread,
    /// It has written a half of the slot, and the other one.
    Half,
    Written,
    /// It has committed, and looks whether that was in time.
    Committed,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Home {
    Owned,
    /// Its word says that nobody owns the chunk; it has seen what was begun.
    Recalled,
    Begun(u8),
    /// It ends the ownership; it has read the last version.
    Ending,
    Last(u8),
    /// It has taken that version over, and has committed the next one.
    Ended(u8),
    Committed(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reader {
    Begins,
    Counted,
    /// It has seen what was begun, and that this is the version.
    Begun(u8),
    Idle(u8),
    /// It has read a half of the slot, and the other one, and whether they are of that version.
    Half(u8, bool),
    Read(u8, bool),
    Guard(u8),
    /// It does not count any more.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Snapshot {
    Begins,
    Version(u8),
    /// As those of a reader; then it has seen that the version is the same.
    Half(u8, bool),
    Read(u8, bool),
    Checked(u8, bool),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    memory: Memory,
    owner: Owner,
    home: Home,
    reader: Reader,
    snapshot: Snapshot,
    /// The last version that the owner takes for committed.
    acknowledged: u8,
    /// The last one when the reader, or the snapshot, has begun to look.
    least: [u8; 2],
    /// The newest version that was read.
    seen: u8,
    /// Whether a rule is broken that a step can tell.
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Owner,
    /// The owner gives up what it has begun: a guard without a commit.
    TakeBack,
    Home,
    /// The owner is stopped for too long, or lost: the home does not wait for it.
    Force,
    Reader,
    Snapshot,
}

struct Orders;

impl Memory {
    /// Returns true if a half of the slot of that version is of that version.
    fn half(&self, version: u8, half: usize) -> bool {
        self.slots[usize::from(version % 2)][half] == version
    }
}

impl State {
    fn owner_steps(&mut self) -> bool {
        let memory = &mut self.memory;
        let next = memory.version + 1;
        let slot = usize::from(next % 2);
        let (take_back, stops) = (memory.version, Owner::Ended);
        self.owner = match self.owner {
            Owner::Idle if next > VERSIONS => return false,
            Owner::Idle => {
                memory.begun = next;
                Owner::Begun
            }
            Owner::Begun if memory.is_owned => Owner::Owns,
            Owner::Owns if memory.count == 0 => Owner::Unread,
            // Then it asks the home.
            Owner::Begun | Owner::Owns => {
                memory.begun = take_back;
                stops
            }
            Owner::Unread => {
                self.is_broken |= matches!(self.reader, Reader::Guard(_));
                memory.slots[slot][0] = next;
                Owner::Half
            }
            Owner::Half => {
                memory.slots[slot][1] = next;
                Owner::Written
            }
            Owner::Written => {
                memory.version = next;
                Owner::Committed
            }
            Owner::Committed => match memory.ended {
                0 => {
                    self.acknowledged = memory.version;
                    Owner::Idle
                }
                ENDING => return false, // It looks again.
                last => {
                    if memory.version <= last - 2 {
                        self.acknowledged = memory.version;
                    }
                    stops
                }
            },
            Owner::Ended => return false,
        };
        true
    }

    fn home_steps(&mut self, is_forced: bool) -> bool {
        let memory = &mut self.memory;
        self.home = match self.home {
            Home::Owned => {
                memory.is_owned = false;
                Home::Recalled
            }
            Home::Recalled if is_forced => {
                memory.ended = ENDING;
                Home::Ending
            }
            Home::Recalled => Home::Begun(memory.begun),
            Home::Begun(begun) => match begun == memory.version {
                true => {
                    memory.ended = ENDING;
                    Home::Ending
                }
                false => Home::Recalled, // It is told when the owner has stopped.
            },
            Home::Ending => Home::Last(memory.version),
            Home::Last(last) => {
                memory.ended = last + 2;
                let slot = memory.slots[usize::from(last % 2)];
                // The owner may go on, but commits no more than the next one, in the other slot.
                self.is_broken |= slot != [last; 2] || last < self.seen;
                Home::Ended(last)
            }
            Home::Ended(last) if memory.count == 0 => Home::Committed(last),
            Home::Ended(_) | Home::Committed(_) => return false,
        };
        true
    }

    fn reader_steps(&mut self) -> bool {
        let memory = &mut self.memory;
        let mut gives_up = || {
            memory.count -= 1;
            Reader::Over
        };
        self.reader = match self.reader {
            Reader::Begins => {
                self.least[0] = self.acknowledged;
                memory.count += 1;
                Reader::Counted
            }
            Reader::Counted => Reader::Begun(memory.begun),
            Reader::Begun(begun) if begun == memory.version => Reader::Idle(begun),
            Reader::Begun(_) => gives_up(),
            Reader::Idle(version) => Reader::Half(version, memory.half(version, 0)),
            Reader::Half(version, is_it) => Reader::Read(version, is_it && memory.half(version, 1)),
            Reader::Read(version, is_it) if memory.is_owned => {
                self.is_broken |= !is_it || version < self.least[0];
                self.is_broken |= version < self.acknowledged;
                self.seen = self.seen.max(version);
                Reader::Guard(version)
            }
            Reader::Read(..) => gives_up(),
            Reader::Guard(version) => {
                self.is_broken |= self.acknowledged > version;
                self.is_broken |= matches!(self.home, Home::Committed(_));
                gives_up()
            }
            Reader::Over => return false,
        };
        true
    }

    fn snapshot_steps(&mut self) -> bool {
        let memory = &self.memory;
        self.snapshot = match self.snapshot {
            // What the home has is looked for elsewhere.
            Snapshot::Begins if !memory.is_owned => Snapshot::Over,
            Snapshot::Begins => {
                self.least[1] = self.acknowledged;
                Snapshot::Version(memory.version)
            }
            Snapshot::Version(version) => Snapshot::Half(version, memory.half(version, 0)),
            Snapshot::Half(version, is_it) => {
                Snapshot::Read(version, is_it && memory.half(version, 1))
            }
            Snapshot::Read(version, is_it) if memory.version == version => {
                Snapshot::Checked(version, is_it)
            }
            Snapshot::Checked(version, is_it) if memory.is_owned => {
                self.is_broken |= !is_it || version < self.least[1];
                self.seen = self.seen.max(version);
                Snapshot::Over
            }
            Snapshot::Read(..) | Snapshot::Checked(..) => Snapshot::Over,
            Snapshot::Over => return false,
        };
        true
    }
}

impl Model for Orders {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let memory = Memory {
            is_owned: true,
            begun: 0,
            version: 0,
            ended: 0,
            slots: [[0; 2]; 2],
            count: 0,
        };
        vec![State {
            memory,
            owner: Owner::Idle,
            home: Home::Owned,
            reader: Reader::Begins,
            snapshot: Snapshot::Begins,
            acknowledged: 0,
            least: [0; 2],
            seen: 0,
            is_broken: false,
        }]
    }

    fn actions(&self, _: &State, steps: &mut Vec<Step>) {
        steps.extend([
            Step::Owner,
            Step::TakeBack,
            Step::Home,
            Step::Force,
            Step::Reader,
            Step::Snapshot,
        ]);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        let has_done = match step {
            Step::Owner => next.owner_steps(),
            Step::TakeBack if next.owner == Owner::Unread => {
                next.memory.begun = next.memory.version;
                next.owner = Owner::Idle;
                true
            }
            Step::TakeBack => false,
            Step::Home => next.home_steps(false),
            Step::Force => next.home == Home::Recalled && next.home_steps(true),
            Step::Reader => next.reader_steps(),
            Step::Snapshot => next.snapshot_steps(),
        };
        has_done.then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the rules hold", |_, state: &State| {
                let (seen, acknowledged) = (state.seen, state.acknowledged);
                let is_taken_over = match state.home {
                    Home::Ended(last) | Home::Committed(last) => seen.max(acknowledged) <= last,
                    _ => true,
                };
                is_taken_over && !state.is_broken
            }),
            Property::sometimes("a commit is refused", |_, state: &State| {
                let is_late = state.memory.version > state.acknowledged;
                is_late && state.owner == Owner::Ended
            }),
            Property::sometimes("a commit is taken over", |_, state: &State| {
                state.home == Home::Committed(VERSIONS)
            }),
            Property::sometimes("a reader has a guard", |_, state: &State| {
                state.reader == Reader::Guard(VERSIONS)
            }),
            Property::sometimes("a snapshot is there", |_, state: &State| {
                state.seen == VERSIONS && state.reader == Reader::Begins
            }),
        ]
    }
}

#[test]
fn the_rules_hold_in_every_order() {
    let checked = Orders.checker().spawn_bfs().join();
    checked.assert_properties();
    assert!(checked.unique_state_count() > 10_000);
}
