//! The calls of this unit that are not answered yet.

use crate::error::{Cause, Failure};
use crate::members::Members;
use samite_fabric::rpc::Life;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;
use std::time::Duration;

/// How long a call that may have been lost is waited for, besides the time for which it may run.
const MARGIN: Duration = Duration::from_secs(1);

/// The most bytes of answers that were not taken.
const ANSWERS_MAX: u64 = 64 << 20;
/// The most calls of a process that are not answered.
pub(crate) const CALLS_MAX: usize = 1 << 16;
/// A name is used again after 65536 uses of its place. Places are used in turn, and there are at
/// least this many, so that it takes 2^26 calls: a late answer does not end another one.
const PLACES: usize = 1024;
const INDEX_BITS: u32 = 16;
const GENERATIONS: u32 = 1 << (32 - INDEX_BITS);

/// The first generation of the next table of this process. An answer to a call of an earlier table,
/// whose `Mobile` was dropped, ends no call of a later one: they begin far apart.
static FIRST: AtomicU32 = AtomicU32::new(0);
const APART: u32 = 8191;

/// How a call ended.
pub(crate) type Ended = Result<Vec<u8>, Failure>;

#[derive(Debug)]
enum State {
    Free,
    Waits,
    Ended(Ended),
    /// Nobody waits for it any more; its answer is dropped. How many were dropped before.
    Dropped(u64),
}

#[derive(Debug)]
struct Slot {
    /// Raised with each use, so that a late answer does not end a later call.
    generation: u32,
    to: Life,
    /// How long it may run at other units than `to`; zero if it stays there.
    moves_for: Duration,
    /// If a unit was lost at which the call may have been: that unit, and until when the call is
    /// waited for.
    doubt: Option<(Life, Duration)>,
    state: State,
    /// If it waits for the answers of several units: these, and whether each has answered.
    several: Vec<(Life, bool)>,
    /// Only while it waits. A waker may own its task, so it is not dropped under a lock.
    waker: Option<Waker>,
    /// When the task is woken although the call has not ended.
    late_at: Duration,
}

/// See the module's documentation. A call is named by its slot: its place, and the generation of
/// that place.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// The generation of new places.
    first: u32,
    /// How many calls were ever dropped, and how many of them still have their places.
    dropped: u64,
    abandoned: usize,
    /// Bytes of answers that were not taken.
    answers: u64,
    /// How many have a waker.
    awaited: usize,
    /// Tasks to be woken, when no lock is taken.
    woken: Vec<Waker>,
    /// Those whose answers are taken.
    pub(crate) members: Members,
}

impl Calls {
    /// Creates the table of a `Mobile`.
    pub(crate) fn new() -> Calls {
        // ORDERING: Relaxed: the numbers differ, and nothing else depends on them.
        let first = FIRST.fetch_add(APART, Relaxed) % GENERATIONS;
        Calls {
            first,
            ..Calls::default()
        }
    }

    /// Adds a call that waits for an answer, and may run for so long at other units than `to`.
    /// `None` if there are too many.
    #[inline]
    pub(crate) fn add(&mut self, to: Life, moves_for: Duration) -> Option<u32> {
        let is_spread = self.slots.len() >= PLACES;
        let at = match is_spread.then(|| self.free.pop_front()).flatten() {
            Some(at) => at,
            None => self.add_place(to)?,
        };
        let slot = &mut self.slots[at as usize];
        (slot.to, slot.moves_for, slot.doubt) = (to, moves_for, None);
        slot.state = State::Waits;
        Some(slot.generation << INDEX_BITS | at)
    }

    /// As [`Calls::add`], for a call that each of these units answers. The first failure ends it.
    pub(crate) fn add_several(&mut self, to: Life, takes: Duration, units: &[Life]) -> Option<u32> {
        let name = self.add(to, takes)?;
        if let Some(slot) = self.get(name) {
            slot.several = units.iter().map(|unit| (*unit, false)).collect();
        }
        Some(name)
    }

    /// Returns the units that have not answered a call of [`Calls::add_several`].
    pub(crate) fn unanswered(&mut self, name: u32) -> Vec<Life> {
        let several = self.get(name).map(|slot| &slot.several);
        let waits = several
            .into_iter()
            .flatten()
            .filter(|(_, answered)| !answered);
        waits.map(|(unit, _)| *unit).collect()
    }

    /// Returns a new place, or that of a call whose answer nobody waits for.
    #[cold]
    fn add_place(&mut self, to: Life) -> Option<u32> {
        if self.slots.len() < CALLS_MAX {
            self.slots.push(Slot {
                generation: self.first,
                to,
                moves_for: Duration::ZERO,
                doubt: None,
                state: State::Free,
                several: Vec::new(),
                waker: None,
                late_at: Duration::MAX,
            });
            return Some(self.slots.len() as u32 - 1);
        }
        if self.abandoned == 0 {
            return None;
        }
        // The older half of them at once, as it takes a look at all places.
        let slots = self.slots.iter().enumerate();
        let mut dropped: Vec<(u64, u32)> = slots
            .filter_map(|(at, slot)| match slot.state {
                State::Dropped(before) => Some((before, name(at, slot))),
                _ => None,
            })
            .collect();
        dropped.sort_unstable();
        for (_, name) in &dropped[..dropped.len().div_ceil(2)] {
            self.release(*name);
        }
        self.free.pop_front()
    }

    #[inline]
    fn get(&mut self, name: u32) -> Option<&mut Slot> {
        let at = (name & ((1 << INDEX_BITS) - 1)) as usize;
        let slot = self.slots.get_mut(at)?;
        (slot.generation == name >> INDEX_BITS).then_some(slot)
    }

    /// Records an answer of a unit. A late or repeated one is dropped. One for which there is no
    /// room beside those that were not taken yet is a failure.
    #[inline]
    pub(crate) fn answer(&mut self, name: u32, from: Life, mut ended: Ended) {
        let answers = self.answers;
        let Some(slot) = self.get(name) else { return };
        match (&mut slot.state, &ended) {
            (State::Waits, Ok(_)) if !slot.several.is_empty() => {
                // Another life of one of them may have answered in its place.
                let is_listed = slot.several.iter().any(|(unit, _)| *unit == from);
                let mut several = slot.several.iter_mut();
                let is_it = |unit: Life| unit == from || !is_listed;
                if let Some(one) = several.find(|(unit, answered)| is_it(*unit) && !answered) {
                    *one = (from, true);
                }
                if slot.several.iter().all(|(_, answered)| *answered) {
                    self.end(name, Ok(Vec::new()));
                }
            }
            (State::Waits, _) => {
                if answers + bytes(&ended) > ANSWERS_MAX {
                    let text = format!(
                        "{} MiB of answers wait to be taken already: wait for calls before \
                         others are made",
                        ANSWERS_MAX >> 20
                    );
                    ended = Err(Failure::new(Cause::Busy, text));
                }
                self.end(name, ended);
            }
            (State::Dropped(_), _) => self.release(name),
            _ => {}
        }
    }

    #[inline]
    fn end(&mut self, name: u32, ended: Ended) {
        let Some(slot) = self.get(name) else { return };
        let bytes = bytes(&ended);
        slot.state = State::Ended(ended);
        let waker = slot.waker.take();
        self.answers += bytes;
        self.awaited -= usize::from(waker.is_some());
        self.woken.extend(waker);
    }

    /// Takes the result of a call, if it has ended.
    #[inline]
    pub(crate) fn take(&mut self, name: u32) -> Option<Ended> {
        let slot = self.get(name)?;
        if !matches!(slot.state, State::Ended(_)) {
            return None;
        }
        let State::Ended(ended) = std::mem::replace(&mut slot.state, State::Free) else {
            return None;
        };
        self.answers -= bytes(&ended);
        self.release(name);
        Some(ended)
    }

    fn release(&mut self, name: u32) {
        if let Some(slot) = self.get(name) {
            slot.generation = (slot.generation + 1) % GENERATIONS;
            slot.several = Vec::new();
            match std::mem::replace(&mut slot.state, State::Free) {
                State::Dropped(_) => self.abandoned -= 1,
                State::Ended(ended) => self.answers -= bytes(&ended),
                State::Free | State::Waits => {}
            }
            self.free.push_back(name & ((1 << INDEX_BITS) - 1));
        }
    }

    /// Forgets a call: its answer will be dropped. Returns the waker that nobody needs any more, to
    /// be dropped without the lock.
    #[must_use]
    pub(crate) fn forget(&mut self, name: u32) -> Option<Waker> {
        let before = self.dropped;
        let slot = self.get(name)?;
        let waker = slot.waker.take();
        match slot.state {
            State::Ended(_) => self.release(name),
            State::Waits => {
                slot.state = State::Dropped(before);
                self.dropped += 1;
                self.abandoned += 1;
            }
            State::Free | State::Dropped(_) => {}
        }
        self.awaited -= usize::from(waker.is_some());
        waker
    }

    /// Has a call wake a task when it ends, and at `late_at` if it has not, and returns the waker
    /// that it had before. If the call does not wait for an answer, returns this one. Either is to
    /// be dropped without the lock.
    pub(crate) fn wake(
        &mut self,
        name: u32,
        waker: Waker,
        late_at: Duration,
    ) -> Result<Option<Waker>, Waker> {
        match self.get(name) {
            Some(slot) if matches!(slot.state, State::Waits) => {
                slot.late_at = late_at;
                let before = slot.waker.replace(waker);
                self.awaited += usize::from(before.is_none());
                Ok(before)
            }
            _ => Err(waker),
        }
    }

    /// Wakes the tasks whose calls are late, and returns when the next one is.
    pub(crate) fn wake_late(&mut self, now: Duration) -> Duration {
        let mut next = Duration::MAX;
        for slot in &mut self.slots {
            match &slot.waker {
                None => {}
                Some(_) if slot.late_at <= now => {
                    self.awaited -= 1;
                    self.woken.extend(slot.waker.take());
                }
                Some(_) => next = next.min(slot.late_at),
            }
        }
        next
    }

    /// Removes a call that was never sent. Returns its waker, as [`Calls::forget`] does.
    #[must_use]
    pub(crate) fn cancel(&mut self, name: u32) -> Option<Waker> {
        let waker = self.get(name)?.waker.take();
        self.awaited -= usize::from(waker.is_some());
        self.release(name);
        waker
    }

    /// Returns whether a call may be at units other than that to which it was sent.
    pub(crate) fn moves(&mut self, name: u32) -> bool {
        self.get(name).is_some_and(|slot| !slot.moves_for.is_zero())
    }

    fn waiting(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let slots = self.slots.iter().enumerate();
        let waiting =
            slots.filter(|(_, slot)| matches!(slot.state, State::Waits | State::Dropped(_)));
        waiting.map(|(at, slot)| (name(at, slot), slot))
    }

    /// Returns the calls that wait: their names, and where they were sent.
    pub(crate) fn sent(&self) -> Vec<(u32, Life)> {
        let waiting = self.waiting();
        waiting.map(|(name, slot)| (name, slot.to)).collect()
    }

    /// A unit was lost: each call that waits and may have been there, and is not in doubt already,
    /// is waited for only as long as it may still run elsewhere.
    pub(crate) fn doubt(&mut self, lost: Life, now: Duration) {
        for slot in &mut self.slots {
            let waits = matches!(slot.state, State::Waits | State::Dropped(_));
            let is_of_it = |(unit, _): &(Life, bool)| *unit == lost;
            let may_have = slot.several.is_empty() || slot.several.iter().any(is_of_it);
            if waits && may_have && slot.doubt.is_none() && !slot.moves_for.is_zero() {
                let due = now.saturating_add(slot.moves_for).saturating_add(MARGIN);
                slot.doubt = Some((lost, due));
            }
        }
    }

    /// Returns the calls in doubt that are not waited for any more, each with the unit that was
    /// lost, and when the next one is due.
    pub(crate) fn overdue(&self, now: Duration) -> (Vec<(u32, Life)>, Duration) {
        let (mut overdue, mut next) = (Vec::new(), Duration::MAX);
        for (name, slot) in self.waiting() {
            match slot.doubt {
                Some((lost, due)) if due <= now => overdue.push((name, lost)),
                Some((_, due)) => next = next.min(due),
                None => {}
            }
        }
        (overdue, next)
    }

    /// Returns whether any task awaits a call.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Returns the tasks to wake.
    pub(crate) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }
}

fn bytes(ended: &Ended) -> u64 {
    ended.as_ref().map_or(0, |answer| answer.len() as u64)
}

/// Returns the name of the call at a place.
fn name(at: usize, slot: &Slot) -> u32 {
    slot.generation << INDEX_BITS | at as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::PeerId;
    use std::sync::Arc;

    const STAYS: Duration = Duration::ZERO;
    const LATE: Duration = Duration::from_secs(1);
    const MOVES: Duration = Duration::from_secs(10);

    fn life(peer: u32) -> Life {
        Life {
            peer: PeerId(peer),
            incarnation: 1,
        }
    }

    #[test]
    fn an_answer_ends_its_call_once() {
        let mut calls = Calls::default();
        let one = calls.add(life(0), STAYS).unwrap();
        let two = [life(1), life(2)];
        let two = calls.add_several(life(0), STAYS, &two).unwrap();
        assert_eq!(calls.take(one), None);
        calls.answer(one, life(0), Ok(vec![1]));
        calls.answer(one, life(0), Ok(vec![2]));
        assert_eq!(calls.take(one), Some(Ok(vec![1])));
        assert_eq!(calls.take(one), None);
        // One unit that answers twice does not answer for the other one.
        for _ in 0..2 {
            calls.answer(two, life(2), Ok(vec![]));
        }
        assert_eq!(calls.take(two), None);
        assert_eq!(calls.unanswered(two), [life(1)]);
        calls.answer(two, life(1), Ok(vec![]));
        assert_eq!(calls.take(two), Some(Ok(vec![])));
        // When their places are used again, late answers change nothing.
        let more: Vec<_> = (0..PLACES)
            .map(|_| calls.add(life(0), STAYS).unwrap())
            .collect();
        calls.answer(one, life(0), Ok(vec![9]));
        calls.answer(two, life(0), Ok(vec![9]));
        assert!(more.iter().all(|name| calls.take(*name).is_none()));
        assert_eq!(
            (calls.waiting().count(), calls.slots.len()),
            (PLACES, PLACES)
        );
    }

    #[test]
    fn a_forgotten_call_frees_its_place_when_it_is_answered() {
        let mut calls = Calls::default();
        let one = calls.add(life(0), STAYS).unwrap();
        assert!(calls.forget(one).is_none());
        assert_eq!(calls.waiting().count(), 1);
        calls.answer(one, life(0), Ok(vec![]));
        assert_eq!(calls.waiting().count(), 0);
    }

    /// A name does not return before each place was used so often.
    #[test]
    fn names_return_late() {
        let mut calls = Calls::default();
        let first = calls.add(life(0), STAYS).unwrap();
        calls.answer(first, life(0), Ok(vec![]));
        assert!(calls.take(first).is_some());
        for _ in 0..1 << 17 {
            let name = calls.add(life(0), STAYS).unwrap();
            assert_ne!(name, first);
            assert!(calls.cancel(name).is_none());
        }
        assert_eq!(calls.slots.len(), PLACES);
    }

    /// A late answer to a call of a `Mobile` that was dropped ends no call of the next one.
    #[test]
    fn tables_have_names_of_their_own() {
        let mut before = Calls::new();
        let late = before.add(life(0), STAYS).unwrap();
        drop(before);
        let mut calls = Calls::new();
        let name = calls.add(life(0), STAYS).unwrap();
        calls.answer(late, life(0), Ok(vec![1]));
        assert_eq!(calls.take(name), None);
    }

    /// A waker that is not needed any more is handed out at once, to be dropped without a lock. It
    /// is not kept with those that are to be woken.
    #[test]
    fn wakers_are_dropped_by_the_caller() {
        let waker = || Waker::from(Arc::new(Nothing));
        let (first, second) = (waker(), waker());
        let mut calls = Calls::default();
        let [one, two] = [(); 2].map(|()| calls.add(life(0), STAYS).unwrap());
        for name in [one, two] {
            assert!(calls.wake(name, first.clone(), LATE).unwrap().is_none());
        }
        // Another task waits for it now.
        let before = calls.wake(one, second.clone(), LATE).unwrap().unwrap();
        assert!(before.will_wake(&first));
        assert!(calls.forget(one).unwrap().will_wake(&second));
        assert!(calls.cancel(two).unwrap().will_wake(&first));
        // They wait no more.
        for name in [one, two] {
            assert!(calls.wake(name, second.clone(), LATE).is_err());
        }
        assert!(calls.take_woken().is_empty() && !calls.is_awaited());
    }

    /// Each task is woken when its call is late, once; the others are not.
    #[test]
    fn late_calls_wake_their_tasks() {
        let waker = || Waker::from(Arc::new(Nothing));
        let mut calls = Calls::default();
        let names: Vec<u32> = (0..3).map(|_| calls.add(life(0), STAYS).unwrap()).collect();
        for (name, late) in names.iter().zip([LATE, LATE * 2, LATE * 3]) {
            assert!(calls.wake(*name, waker(), late).is_ok());
        }
        assert_eq!(calls.wake_late(LATE), LATE * 2);
        assert_eq!(calls.take_woken().len(), 1);
        calls.answer(names[1], life(0), Ok(vec![]));
        assert_eq!(calls.take_woken().len(), 1);
        assert!(calls.is_awaited());
        assert_eq!(calls.wake_late(LATE * 3), Duration::MAX);
        assert_eq!(calls.take_woken().len(), 1);
        assert!(!calls.is_awaited());
    }

    struct Nothing;

    impl std::task::Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    /// Calls whose answers never come do not take all places.
    #[test]
    fn the_oldest_dropped_calls_make_room() {
        let mut calls = Calls::default();
        let mut names = Vec::new();
        while let Some(name) = calls.add(life(0), STAYS) {
            names.push(name);
        }
        assert_eq!(names.len(), CALLS_MAX);
        for name in &names[..3] {
            assert!(calls.forget(*name).is_none());
        }
        let place = |name: u32| name & ((1 << INDEX_BITS) - 1);
        // Two are given up, and then the third.
        let new: Vec<_> = (0..3).map_while(|_| calls.add(life(0), STAYS)).collect();
        let places: Vec<_> = new.iter().copied().map(place).collect();
        assert_eq!(places, [0, 1, 2]);
        assert_eq!(calls.add(life(0), STAYS), None);
        // Answers to those that were given up end no other call.
        calls.answer(names[0], life(0), Ok(vec![1]));
        assert_eq!(calls.take(new[0]), None);
    }

    #[test]
    fn a_call_that_was_not_sent_frees_its_place() {
        let mut calls = Calls::default();
        let one = calls.add(life(1), MOVES).unwrap();
        assert_eq!(calls.sent(), [(one, life(1))]);
        assert!(calls.cancel(one).is_none());
        assert!(calls.sent().is_empty());
        let two = calls.add(life(1), MOVES).unwrap();
        calls.answer(one, life(0), Ok(vec![1]));
        assert_ne!(one, two);
        assert_eq!(calls.take(two), None);
    }

    /// A call that may have been at a unit that was lost is waited for as long as it may run;
    /// others are, too, and one that is made afterwards is not in doubt.
    #[test]
    fn calls_in_doubt_end_in_their_time() {
        let mut calls = Calls::default();
        let at = Duration::from_secs(5);
        let [moves, answered, again] = [(); 3].map(|()| calls.add(life(0), MOVES).unwrap());
        calls.add(life(0), STAYS).unwrap();
        calls.doubt(life(7), at);
        calls.answer(answered, life(0), Ok(Vec::new()));
        calls.take(answered).unwrap().unwrap();
        let later = calls.add(life(0), MOVES).unwrap();
        let due = at + MOVES + MARGIN;
        let before = due - Duration::from_millis(1);
        assert_eq!(calls.overdue(before), (vec![], due));
        // Another loss does not make them wait longer.
        calls.doubt(life(8), before);
        let (overdue, next) = calls.overdue(due);
        assert_eq!(overdue, [(moves, life(7)), (again, life(7))]);
        assert_eq!(next, before + MOVES + MARGIN);
        for name in [moves, again, later] {
            calls.answer(name, life(0), Ok(Vec::new()));
        }
        assert_eq!(calls.overdue(next), (vec![], Duration::MAX));
    }

    /// Answers that nobody takes are bounded, and each of their calls ends.
    #[test]
    fn answers_that_are_not_taken_are_bounded() {
        let mut calls = Calls::default();
        let names: Vec<u32> = (0..2000)
            .map(|_| calls.add(life(0), STAYS).unwrap())
            .collect();
        for name in &names {
            calls.answer(*name, life(0), Ok(vec![0; 60_000]));
        }
        assert!((ANSWERS_MAX - 60_000..=ANSWERS_MAX).contains(&calls.answers));
        let forgotten = names.iter().step_by(2);
        forgotten.for_each(|name| assert!(calls.forget(*name).is_none()));
        let taken = names.iter().skip(1).step_by(2);
        let ended: Vec<Ended> = taken.map(|name| calls.take(*name).unwrap()).collect();
        let is_busy = |ended: &&Ended| matches!(ended, Err(why) if why.cause == Cause::Busy);
        let busy = ended.iter().filter(is_busy).count();
        assert!(busy > 0 && busy < ended.len(), "{busy}");
        assert_eq!(calls.answers, 0);
    }

    /// Only the loss of a unit that is named puts a call of several into doubt.
    #[test]
    fn others_put_a_call_of_several_into_no_doubt() {
        let mut calls = Calls::default();
        let name = calls.add_several(life(0), MOVES, &[life(1)]).unwrap();
        calls.doubt(life(2), LATE);
        assert_eq!(calls.overdue(LATE), (vec![], Duration::MAX));
        calls.doubt(life(1), LATE);
        let due = LATE + MOVES + MARGIN;
        assert_eq!(calls.overdue(due).0, [(name, life(1))]);
    }
}
