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
    /// Has not opened the stream yet, or has died; may (re)open it until then.
    Away(u64),
    /// Was away too long.
    Gone,
    Closed,
}

/// A request that waits for a step.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) ticket: Ticket,
    pub(super) until: u64,
    pub(super) since: u64,
    /// That step, or the next one.
    pub(super) at: Option<Step>,
    pub(super) _charge: Option<Charge>,
}

/// A step that a rank holds.
#[derive(Debug)]
pub(super) struct StepLease {
    pub(super) step: Step,
    /// It was taken as the group's next step.
    pub(super) in_sequence: bool,
    pub(super) _charge: Option<Charge>,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) place: ReaderState,
    /// The process that opened it last, and by which request.
    pub(super) by: (Peer, Ticket),
    /// The number, in the group's sequence, of the step that it takes next.
    pub(super) next: u64,
    pub(super) holds: BTreeMap<Ticket, StepLease>,
    pub(super) waiting: VecDeque<Waiting>,
    /// The layouts that it was sent last.
    pub(super) told: Option<LayoutHash>,
    /// Its waits end after a time-out of its own.
    pub(super) gives_up: bool,
}

impl Rank {
    /// Returns true if steps are kept for it.
    pub(super) fn counts(&self) -> bool {
        matches!(self.place, ReaderState::Here(_) | ReaderState::Away(_))
    }

    /// Returns the steps of its group's sequence that it holds.
    pub(super) fn held(&self) -> impl Iterator<Item = Step> {
        let holds = self.holds.values().filter(|hold| hold.in_sequence);
        holds.map(|hold| hold.step)
    }
}

/// What a group has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    /// Steps that it has taken.
    pub(super) steps: u64,
    /// Bytes that its ranks have read of the steps that they have released.
    pub(super) read: u64,
}

/// The first taken step, the number of taken steps, and the one that comes next.
type Asked = (u64, usize, Option<Step>);

/// A reader program, or a placeholder for an expected one: for the program of its name, or for the
/// first.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: Option<String>,
    pub(super) lease: u64,
    pub(super) queue: Queue,
    /// It is offered only the steps in which this box was written.
    pub(super) only: Option<Interest>,
    pub(super) total: Total,
    /// The steps that the group has taken and not all ranks have; the first is number `base` of the
    /// sequence.
    pub(super) taken: VecDeque<Step>,
    pub(super) base: u64,
    /// The last result of [`Group::is_drawn_out`], and its input: many ranks ask the same question.
    pub(super) drawn_out: Mutex<Option<(Asked, bool)>>,
    pub(super) ranks: Vec<Rank>,
    /// When a group that has not opened the stream is forgotten: some time after the end.
    pub(super) until: Option<u64>,
    /// Its cost to the process that opened it; an expected group is paid with its stream.
    pub(super) _charge: Option<Charge>,
}

impl Group {
    pub(super) fn wants(&self, step: Step) -> bool {
        // A group takes its steps in increasing order.
        self.queue.contains(step) || self.taken.binary_search(&step).is_ok()
    }

    /// Returns the steps in use outside its queue: taken by one rank and not by all, or held.
    pub(super) fn in_use(&self) -> BTreeSet<Step> {
        let held = self.ranks.iter().flat_map(Rank::held);
        self.taken.iter().copied().chain(held).collect()
    }

    /// Returns true if its first rank has to wait for its last one before it takes `step`, or any
    /// next step. What one rank has taken and another has not is memory. Under the policies `Block`
    /// and `Every`, the writer waits for it instead.
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

    /// Returns the step that a rank takes next, or step `at`; `None` if there is none yet.
    pub(super) fn wanted(&self, rank: usize, at: Option<Step>) -> Option<Step> {
        at.or_else(|| {
            let ahead = self.ranks[rank].next.saturating_sub(self.base);
            let taken = self.taken.get(ahead as usize).copied();
            taken.or_else(|| self.queue.first())
        })
    }

    /// Returns the rank that the others wait for, the one that has taken the fewest steps, if any.
    pub(super) fn last(&self) -> Option<usize> {
        let ranks = self.ranks.iter().enumerate();
        let counting = ranks.filter(|(_, rank)| rank.counts());
        let last = counting.min_by_key(|(_, rank)| rank.next);
        last.map(|(at, _)| at)
    }

    /// Forgets the taken steps that every rank has taken, and returns them.
    pub(super) fn advance(&mut self) -> Vec<Step> {
        let counting = self.ranks.iter().filter(|rank| rank.counts());
        let end = self.base + self.taken.len() as u64;
        let least = counting.map(|rank| rank.next).min().unwrap_or(end);
        let done = least.saturating_sub(self.base).min(self.taken.len() as u64);
        self.base += done;
        self.taken.drain(..done as usize).collect()
    }

    /// Returns the processes of the ranks that are behind: those that hold a step, or have taken
    /// fewer steps than another one. If there are none, all that have steps to take.
    pub(super) fn behind(&self) -> Vec<Peer> {
        let most = self.ranks.iter().map(|rank| rank.next).max();
        let is_behind = |rank: &&Rank| Some(rank.next) < most || !rank.holds.is_empty();
        let here = |rank: &Rank| match rank.place {
            ReaderState::Here(peer) => Some(peer),
            _ => None,
        };
        let behind: Vec<Peer> = self
            .ranks
            .iter()
            .filter(is_behind)
            .filter_map(here)
            .collect();
        match behind.is_empty() {
            true => self
                .ranks
                .iter()
                .filter(|rank| self.has(rank))
                .filter_map(here)
                .collect(),
            false => behind,
        }
    }

    /// Returns true if no rank has opened the stream yet, and steps are kept for the group.
    pub(super) fn is_expected(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Returns true if the group has opened the stream, and no rank is away.
    fn is_alive(&self) -> bool {
        let mut ranks = self.ranks.iter();
        !self.is_expected() && ranks.all(|rank| !matches!(rank.place, ReaderState::Away(_)))
    }

    /// Returns true if a rank has steps to take or to release.
    pub(super) fn has(&self, rank: &Rank) -> bool {
        let end = self.base + self.taken.len() as u64;
        let to_take = self.queue.steps() > 0 || rank.next < end;
        rank.counts() && to_take || !rank.holds.is_empty()
    }

    /// Returns true if it will release its steps without help: all ranks that hold a step, or have
    /// yet to take one, are alive and not among `waiting`.
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
    /// Adds a placeholder for an expected group: the one of this name, or the first to come.
    pub(super) fn expect(&mut self, name: Option<String>, policy: Policy, limits: Limits) {
        let group = Group {
            name,
            lease: 0,
            queue: Queue::new(policy, limits, 0),
            only: None,
            total: Total::default(),
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

    /// Returns the steps that are kept for an expected group of that name.
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

    /// Returns true if a group has that step in its queue, or some rank has yet to take it.
    pub(super) fn want(&self, step: Step) -> bool {
        self.groups.values().any(|group| group.wants(step))
    }

    /// Returns the number of steps that wait for the first group; `None` if a group has opened the
    /// stream.
    pub(super) fn unread_steps(&self) -> Option<u64> {
        let mut groups = self.groups.values();
        groups
            .find(|group| group.name.is_none())
            .map(|group| group.queue.steps())
    }

    /// Returns the processes that the steps which readers have yet to take or release wait for.
    pub(super) fn behind_of_unread(&self) -> Vec<Peer> {
        self.unread().flat_map(Group::behind).collect()
    }

    /// Returns the groups that do not let step `step` of about `bytes` bytes begin, and how many
    /// steps each is behind.
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

    /// Returns the name of the first group that does not let step `step` of about `bytes` bytes
    /// begin, and how many steps it is behind.
    pub(super) fn who_is_full<'g>(
        &'g self,
        store: &'g Store,
        step: Step,
        bytes: u64,
    ) -> Option<(&'g Group, u64)> {
        self.full(store, step, bytes).next()
    }

    /// Returns true if all ranks of these groups are alive.
    pub(super) fn full_are_alive(&self, store: &Store, step: Step, bytes: u64) -> bool {
        self.full(store, step, bytes)
            .all(|(group, _)| group.is_alive())
    }

    /// Returns the groups that have steps to take or to release.
    fn unread(&self) -> impl Iterator<Item = &Group> {
        self.groups.values().filter(|group| {
            let has = group.ranks.iter().any(|rank| group.has(rank));
            group.queue.steps() > 0 || has
        })
    }

    /// Returns true if steps are freed without the writer, once readers have read them.
    pub(super) fn has_unread(&self) -> bool {
        self.unread().next().is_some()
    }

    /// Returns true if all of these readers are alive.
    pub(super) fn unread_are_alive(&self) -> bool {
        self.unread().all(Group::is_alive)
    }

    /// Returns the steps of `in_memory` that are in the queues of spilling groups, newest first:
    /// those they need last. `beyond`: only those that exceed their limits.
    pub(super) fn to_spill(&self, in_memory: &BTreeSet<Step>, beyond: bool) -> Vec<Step> {
        let queues = self.groups.values().map(|group| &group.queue);
        let queues = queues.filter(|queue| queue.policy() == Policy::Spill);
        let steps = queues.flat_map(|queue| {
            let from = if beyond {
                queue.beyond()
            } else {
                queue.first()
            };
            let steps = from.into_iter().flat_map(|from| in_memory.range(from..));
            steps.filter(|step| queue.contains(**step))
        });
        let steps: BTreeSet<Step> = steps.copied().collect();
        steps.into_iter().rev().collect()
    }

    /// Drops one step of every dropping group that may lose a step for which `is_there` is true,
    /// when memory is short; `None` if there is no such group. A group loses its steps in the order
    /// of its policy, so that one may come last.
    pub(super) fn yield_one(
        &mut self,
        newest: Step,
        is_there: impl Fn(Step) -> bool,
    ) -> Option<Vec<Step>> {
        let groups = self.groups.values_mut();
        let steps: Vec<Step> = groups
            .filter(|group| {
                let mut steps = group.queue.all();
                steps.any(|step| step != newest && is_there(step))
            })
            .filter_map(|group| group.queue.yield_one(newest))
            .collect();
        (!steps.is_empty()).then_some(steps)
    }
}
