//! The reader groups: what each has in its queue, has taken, and holds.

use super::store::Store;
use crate::protocol::ledger::Charge;
use crate::protocol::queue::Queue;
use crate::protocol::{Interest, LayoutHash, Limits, Peer, Policy, Step, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderState {
    Here(Peer),
    /// Has not come (back) yet; may until then.
    Away(u64),
    /// Was away too long.
    Gone,
    Closed,
}

/// A question that waits for a step.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) ticket: Ticket,
    pub(super) until: u64,
    pub(super) since: u64,
    /// That one, or the next one.
    pub(super) at: Option<Step>,
    pub(super) _charge: Option<Charge>,
}

/// A step that a rank holds.
#[derive(Debug)]
pub(super) struct StepLease {
    pub(super) step: Step,
    /// It was the next one of the group.
    pub(super) in_sequence: bool,
    pub(super) _charge: Option<Charge>,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) place: ReaderState,
    /// Which one of the group's sequence it takes next.
    pub(super) next: u64,
    pub(super) holds: BTreeMap<Ticket, StepLease>,
    pub(super) waiting: VecDeque<Waiting>,
    /// The layouts that it was told last.
    pub(super) told: Option<LayoutHash>,
    /// Its waits end after a time-out of its own.
    pub(super) gives_up: bool,
}

impl Rank {
    /// Whether steps are kept for it.
    pub(super) fn counts(&self) -> bool {
        matches!(self.place, ReaderState::Here(_) | ReaderState::Away(_))
    }

    /// The steps of its group's sequence that it holds.
    pub(super) fn held(&self) -> impl Iterator<Item = Step> {
        let holds = self.holds.values().filter(|hold| hold.in_sequence);
        holds.map(|hold| hold.step)
    }
}

/// The first of the taken steps, how many there are, and the one that comes next.
type Asked = (u64, usize, Option<Step>);

/// A reader program, or one that stands for a program that will come: for that of its name, or for
/// the first.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: Option<String>,
    pub(super) lease: u64,
    pub(super) queue: Queue,
    /// It is only offered the steps in which that box was written.
    pub(super) only: Option<Interest>,
    /// Steps that it has taken so far, and their bytes.
    pub(super) total: (u64, u64),
    /// What the group has taken and not all ranks have; the first is number `base` of the sequence.
    pub(super) taken: VecDeque<Step>,
    pub(super) base: u64,
    /// What [`Group::is_drawn_out`] found last, of which steps: each of many ranks asks for the
    /// same.
    pub(super) drawn_out: Mutex<Option<(Asked, bool)>>,
    pub(super) ranks: Vec<Rank>,
    /// When one that has not come is forgotten: some time after the end.
    pub(super) until: Option<u64>,
    /// What it costs who has opened it; one that is expected is its stream's.
    pub(super) _charge: Option<Charge>,
}

impl Group {
    pub(super) fn wants(&self, step: Step) -> bool {
        self.queue.contains(step) || self.taken.contains(&step)
    }

    /// The steps that it keeps in use beside its queue: taken by one rank and not by all, or held.
    pub(super) fn in_use(&self) -> BTreeSet<Step> {
        let held = self.ranks.iter().flat_map(Rank::held);
        self.taken.iter().copied().chain(held).collect()
    }

    /// Whether its first rank waits for its last one before it takes `step`, or whichever comes
    /// next: what one has taken and another has not is memory, which the writer waits for only
    /// under the other policies.
    pub(super) fn is_drawn_out(&self, store: &Store, step: Option<Step>) -> bool {
        if self.taken.is_empty() || matches!(self.queue.policy(), Policy::Block | Policy::Every(_))
        {
            return false;
        }
        let asked = (self.base, self.taken.len(), step);
        let mut drawn_out = self
            .drawn_out
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((last, found)) = *drawn_out
            && last == asked
        {
            return found;
        }
        let steps = self.taken.iter().chain(&step);
        let bytes = steps.filter_map(|step| store.steps.get(step));
        let bytes = bytes.fold(0u64, |sum, stored| sum.saturating_add(stored.bytes));
        let limits = self.queue.limits();
        let found = self.taken.len() as u64 >= limits.steps || bytes > limits.bytes;
        *drawn_out = Some((asked, found));
        found
    }

    /// The step that a rank takes next, or step `at`; `None` when there is none to take yet.
    pub(super) fn wanted(&self, rank: usize, at: Option<Step>) -> Option<Step> {
        at.or_else(|| {
            let ahead = self.ranks[rank].next.saturating_sub(self.base);
            let taken = self.taken.get(ahead as usize).copied();
            taken.or_else(|| self.queue.first())
        })
    }

    /// The rank that the others wait for, if that one is here: it has taken the least.
    pub(super) fn last(&self) -> Option<usize> {
        let ranks = self.ranks.iter().enumerate();
        let counting = ranks.filter(|(_, rank)| rank.counts());
        let last = counting.min_by_key(|(_, rank)| rank.next);
        last.map(|(at, _)| at)
    }

    /// Forgets the taken steps that every rank has; returns them.
    pub(super) fn advance(&mut self) -> Vec<Step> {
        let counting = self.ranks.iter().filter(|rank| rank.counts());
        let end = self.base + self.taken.len() as u64;
        let least = counting.map(|rank| rank.next).min().unwrap_or(end);
        let done = least.saturating_sub(self.base).min(self.taken.len() as u64);
        self.base += done;
        self.taken.drain(..done as usize).collect()
    }

    /// Nobody of it has come yet, and it keeps steps for those who will.
    pub(super) fn is_expected(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether it has come, and nobody of it is away.
    fn is_alive(&self) -> bool {
        let mut ranks = self.ranks.iter();
        !self.is_expected() && ranks.all(|rank| !matches!(rank.place, ReaderState::Away(_)))
    }

    /// Whether a rank has steps: still to take, or to let go of.
    pub(super) fn has(&self, rank: &Rank) -> bool {
        let end = self.base + self.taken.len() as u64;
        let to_take = self.queue.steps() > 0 || rank.next < end;
        rank.counts() && to_take || !rank.holds.is_empty()
    }

    /// Whether it lets go of the steps that it has, all by itself: those ranks live that have one,
    /// or have one still to take, and are none of the `waiting`.
    pub(super) fn moves(&self, waiting: &BTreeSet<Peer>) -> bool {
        let lives =
            |rank: &Rank| matches!(rank.place, ReaderState::Here(peer) if !waiting.contains(&peer));
        match self.is_expected() {
            true => self.queue.steps() == 0,
            false => self.ranks.iter().all(|rank| lives(rank) || !self.has(rank)),
        }
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_expected() || self.ranks.iter().any(Rank::counts)
    }
}

/// All groups of a stream, by number.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) groups: BTreeMap<u64, Group>,
    pub(super) next: u64,
}

impl Groups {
    /// One that stands for a group that will come: that of this name, or whichever comes first.
    pub(super) fn expect(&mut self, name: Option<String>, policy: Policy, limits: Limits) {
        let group = Group {
            name,
            lease: 0,
            queue: Queue::new(policy, limits, 0),
            only: None,
            total: (0, 0),
            taken: VecDeque::new(),
            base: 0,
            drawn_out: Mutex::default(),
            ranks: Vec::new(),
            until: None,
            _charge: None,
        };
        self.insert(group);
    }

    pub(super) fn insert(&mut self, group: Group) -> u64 {
        let number = self.next;
        self.groups.insert(number, group);
        self.next += 1;
        number
    }

    /// The steps that are kept for a group of that name, which is expected.
    pub(super) fn kept_for(&self, name: &str) -> BTreeSet<Step> {
        let mut groups = self.groups.values();
        let kept = groups.find(|group| group.is_expected() && group.name.as_deref() == Some(name));
        let steps = kept.into_iter().flat_map(|group| group.queue.all());
        steps.collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn only_expected(&self) -> bool {
        self.groups.values().all(Group::is_expected)
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }

    /// Whether a group has that step in its queue, or still to take for some rank.
    pub(super) fn want(&self, step: Step) -> bool {
        self.groups.values().any(|group| group.wants(step))
    }

    /// The steps that wait for the first group to come; `None` when one has.
    pub(super) fn unread_steps(&self) -> Option<u64> {
        let mut groups = self.groups.values();
        groups
            .find(|group| group.name.is_none())
            .map(|group| group.queue.steps())
    }

    /// The groups that do not let step `step` of about `bytes` bytes begin, and how many steps each
    /// is behind.
    fn full<'g>(
        &'g self,
        store: &'g Store,
        step: Step,
        bytes: u64,
    ) -> impl Iterator<Item = (&'g Group, u64)> {
        self.groups.values().filter_map(move |group| {
            let used = group.in_use();
            let held = used
                .iter()
                .filter_map(|step| store.steps.get(step))
                .fold(0u64, |sum, stored| sum.saturating_add(stored.bytes));
            let steps = used.len() as u64;
            let admits = group
                .queue
                .admits(step, steps, held, bytes, !store.disk_full);
            (!admits).then(|| (group, steps + group.queue.steps()))
        })
    }

    /// The first group that does not let step `step` of about `bytes` bytes begin: its name and how
    /// many steps it is behind.
    pub(super) fn who_is_full(
        &self,
        store: &Store,
        step: Step,
        bytes: u64,
    ) -> Option<(Option<String>, u64)> {
        let first = self.full(store, step, bytes).next();
        first.map(|(group, steps)| (group.name.clone(), steps))
    }

    /// Whether all of those are groups whose ranks live.
    pub(super) fn full_are_alive(&self, store: &Store, step: Step, bytes: u64) -> bool {
        self.full(store, step, bytes)
            .all(|(group, _)| group.is_alive())
    }

    /// The groups that have steps still to take, or to let go of.
    fn unread(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().filter(|group| {
            let has = group.ranks.iter().any(|rank| group.has(rank));
            group.queue.steps() > 0 || has
        })
    }

    /// Whether steps come free without the writer, when readers have had them.
    pub(super) fn has_unread(&self) -> bool {
        self.unread().next().is_some()
    }

    /// Whether all of these readers live.
    pub(super) fn unread_are_alive(&self) -> bool {
        self.unread().all(Group::is_alive)
    }

    /// What spilling groups have beyond their limits.
    pub(super) fn beyond(&self) -> Vec<Step> {
        self.groups
            .values()
            .flat_map(|group| group.queue.beyond())
            .collect()
    }

    /// The steps in queues of that policy, the newest first.
    pub(super) fn queued_by(&self, policy: Policy) -> Vec<Step> {
        let groups = self
            .groups
            .values()
            .filter(|group| group.queue.policy() == policy);
        let steps: BTreeSet<Step> = groups.flat_map(|group| group.queue.all()).collect();
        steps.into_iter().rev().collect()
    }

    /// Memory is short: every dropping group gives one step away; `None` when none has any.
    pub(super) fn yield_one(&mut self, newest: Step) -> Option<Vec<Step>> {
        let groups = self.groups.values_mut();
        let steps: Vec<Step> = groups
            .filter_map(|group| group.queue.yield_one(newest))
            .collect();
        (!steps.is_empty()).then_some(steps)
    }
}
