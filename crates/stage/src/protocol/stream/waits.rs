//! The state of a stream for display: its queues, and which rank waits for which, since when.

use super::Stream;
use super::groups::{Group, ReaderState};
use super::writers::{PendingRequest, Stage, WriterState};
use crate::protocol::figures::{Lines, MOST_AWAITED};
use crate::protocol::{EndOfStream, Failure, GroupFigures, Peer, Step, StreamFigures, Wait, unit};
use std::collections::BTreeSet;

/// What a rank waits for.
#[derive(Debug)]
pub(super) struct Whom {
    pub(super) text: String,
    /// The processes that the text names, as far as they are known.
    pub(super) on: Vec<Peer>,
}

impl Whom {
    fn nobody(text: impl Into<String>) -> Whom {
        let on = Vec::new();
        Whom {
            text: text.into(),
            on,
        }
    }
}

impl Stream {
    /// Returns the state for display, as far as it fits.
    pub(in crate::protocol) fn figures(&self, lines: &mut Lines) -> StreamFigures {
        let ranks = &self.writers.ranks;
        let here = ranks
            .iter()
            .filter(|rank| matches!(rank.place, WriterState::Here(_)));
        let groups = self.groups.groups.values().filter(|_| lines.take());
        let groups = groups.map(|group| self.group_figures(group)).collect();
        let watches = self.watches.watches.values();
        StreamFigures {
            id: self.id,
            name: self.name.clone(),
            program: self.writers.program().to_owned(),
            here: here.count() as u32,
            ranks: ranks.len() as u32,
            age: self.now - self.since,
            committed: self.store.committed,
            committed_bytes: self.store.committed_bytes,
            stored: self.store.stored(),
            bytes: 0,
            end: self.end,
            groups,
            watches: watches.len() as u64,
            news: watches.map(|watch| watch.queued()).sum(),
            waits: self.waits(lines),
        }
    }

    fn group_figures(&self, group: &Group) -> GroupFigures {
        let used = group.in_use();
        let stored = used.iter().filter_map(|step| self.store.steps.get(step));
        let bytes = stored.fold(0u64, |sum, stored| sum.saturating_add(stored.bytes));
        let here = group.ranks.iter();
        let here = here.filter(|rank| matches!(rank.place, ReaderState::Here(_)));
        GroupFigures {
            name: group.name.clone(),
            policy: group.queue.policy(),
            limits: group.queue.limits(),
            queued: group.queue.steps(),
            queued_bytes: group.queue.bytes(),
            in_use: used.len() as u64,
            in_use_bytes: bytes,
            taken: group.total.steps,
            read_bytes: group.total.read,
            here: here.count() as u32,
            size: group.ranks.len() as u32,
        }
    }

    /// Returns all waits in this stream, writers first.
    fn waits(&self, lines: &mut Lines) -> Vec<Wait> {
        let mut waits = Vec::new();
        let program = self.writers.program();
        for (rank, state) in self.writers.ranks.iter().enumerate() {
            if let Some(asking) = state.asking.as_ref().filter(|_| lines.take()) {
                let who = unit(program, rank);
                waits.push(self.wait(who, asking.peer, self.whom(asking), asking.since));
            }
        }
        for group in self.groups.groups.values() {
            for (rank, state) in group.ranks.iter().enumerate() {
                let (ReaderState::Here(peer), Some(asked)) = (state.place, state.waiting.front())
                else {
                    continue;
                };
                if !lines.take() {
                    continue;
                }
                let who = unit(group.name.as_deref().unwrap_or("?"), rank);
                let (whom, _) = self.whom_reader_waits_for(group, rank, asked.at, |_| true);
                waits.push(self.wait(who, peer, whom, asked.since));
            }
        }
        for watch in self.watches.watches.values() {
            if let Some(asked) = watch.waiting.front().filter(|_| lines.take()) {
                let who = format!("the subscriber to {}", watch.interest);
                let whom = self.whom_next_waits_for();
                waits.push(self.wait(who, watch.peer, whom, asked.since));
            }
        }
        waits
    }

    /// Returns what a rank of a group waits for that wants the next step, or step `at`, and whether
    /// all of these processes are alive. `spills`: whether a block store makes progress with
    /// spilling.
    pub(super) fn whom_reader_waits_for(
        &self,
        group: &Group,
        rank: usize,
        at: Option<Step>,
        spills: impl Fn(Peer) -> bool,
    ) -> (Whom, bool) {
        let next_step = || (self.whom_next_waits_for(), self.next_is_alive());
        let wanted = match at {
            Some(step) => step,
            None => {
                let ahead = group.ranks[rank].next - group.base;
                let taken = group.taken.get(ahead as usize).copied();
                let next = taken.or_else(|| group.queue.first());
                let Some(step) = next else {
                    return next_step();
                };
                // Other ranks of its group keep it from the next step (S4).
                if let Some(last) = group.last().filter(|_| taken.is_none())
                    && group.is_drawn_out(&self.store, Some(step))
                {
                    let name = group.name.as_deref().unwrap_or("?");
                    let step = group.taken.front().copied().unwrap_or(step);
                    let is_here = matches!(group.ranks[last].place, ReaderState::Here(_));
                    let text = format!("{} to take step {step}", unit(name, last));
                    let on = group.behind();
                    return (Whom { text, on }, is_here);
                }
                step
            }
        };
        match self.store.steps.contains_key(&wanted) {
            true if self.store.ready(wanted) && self.is_slow(group.ranks[rank].place) => {
                let text = "its own process to receive what it was sent before";
                (Whom::nobody(text), true)
            }
            true => {
                let block_stores = self.spilling(wanted);
                let slow = block_stores
                    .iter()
                    .find(|block_store| !spills(**block_store));
                let whom = slow
                    .or(block_stores.first())
                    .map(|block_store| format!(" at {}", self.named(*block_store)));
                let whom = whom.unwrap_or_default();
                let text = format!("step {wanted} to be on disk{whom}");
                let is_alive = slow.is_none();
                let on = block_stores.into_iter().collect();
                (Whom { text, on }, is_alive)
            }
            false if wanted == self.store.committed => next_step(),
            false => {
                let text = format!("step {wanted}");
                let on = self.whom_next_waits_for().on;
                (Whom { text, on }, self.next_is_alive())
            }
        }
    }

    /// Returns true if the next step waits only for living writer ranks, not for one that is gone,
    /// or for block stores that have had no time to seal it. A closed rank is not waited for (S10).
    pub(super) fn next_is_alive(&self) -> bool {
        if self.is_sealing() {
            return self.has_just_been_written();
        }
        let step = self.store.committed;
        let ranks = self.writers.ranks.iter();
        let mut behind =
            ranks.filter(|rank| rank.next == step && rank.place != WriterState::Closed);
        let is_here = |rank: &super::writers::Rank| matches!(rank.place, WriterState::Here(_));
        behind.next().is_some_and(is_here) && behind.all(is_here)
    }

    /// Returns where the memory is short for which ranks wait: at a block store, or, with `None`,
    /// within the limit of the stream.
    pub(in crate::protocol) fn short_at(&self) -> BTreeSet<Option<Peer>> {
        let ranks = self.writers.ranks.iter();
        let asking = ranks.filter_map(|rank| rank.asking.as_ref());
        let short = asking.filter_map(|asking| match &asking.stage {
            Stage::Asked(_, short) => Some(short.and_then(|short| short.block_store)),
            Stage::Queued | Stage::Allocating(..) => None,
        });
        short.collect()
    }

    /// Returns true if a rank waits for memory.
    pub(in crate::protocol) fn wants_memory(&self) -> bool {
        let mut asking = self
            .writers
            .ranks
            .iter()
            .filter_map(|rank| rank.asking.as_ref());
        asking.any(|asking| matches!(asking.stage, Stage::Asked(..)))
    }

    /// Returns true if a rank waits for memory for a half-written step: what that step has is freed
    /// only after more has been granted. A request that was set aside does not count: its process
    /// does not wait, and may commit or abort the step.
    pub(in crate::protocol) fn is_half_granted(&self) -> bool {
        self.wants_memory() && !self.open_bytes().is_empty()
    }

    /// Returns the processes that wait for an answer, as writers or as readers. Those that wait for
    /// a block store to allocate memory or to seal a step, for a disk, or only for themselves do
    /// not count.
    pub(in crate::protocol) fn waiting(&self) -> impl Iterator<Item = Peer> + '_ {
        let writers = self.writers.ranks.iter();
        let writers = writers.filter_map(|rank| rank.asking.as_ref());
        let writers = writers.filter(|asking| match &asking.stage {
            Stage::Queued if asking.begin > Some(self.store.committed) => {
                !self.has_just_been_written()
            }
            Stage::Queued | Stage::Asked(..) => true,
            Stage::Allocating(buffers, _) => !self.grow(buffers),
        });
        let writers = writers.map(|asking| asking.peer);
        let groups = self.groups.groups.values();
        let readers = groups.flat_map(move |group| {
            let ranks = group.ranks.iter().enumerate();
            ranks.filter_map(move |(at, rank)| match rank.place {
                ReaderState::Here(peer) => {
                    let mut asked = rank.waiting.iter();
                    let waits = asked.any(|asked| !self.waits_for_nobody(group, at, asked.at));
                    waits.then_some(peer)
                }
                _ => None,
            })
        });
        writers.chain(readers)
    }

    /// Returns true if a rank of a group that wants the next step, or step `at`, waits for it to be
    /// sealed or on disk, or until it can take it.
    fn waits_for_nobody(&self, group: &Group, rank: usize, at: Option<Step>) -> bool {
        let next = self.store.committed;
        let step = group.wanted(rank, at).unwrap_or(next);
        match self.store.steps.contains_key(&step) {
            true => !self.store.ready(step) || self.is_slow(group.ranks[rank].place),
            false => step == next && self.has_just_been_written(),
        }
    }

    /// Returns true if the memory of this stream will be freed without help of a waiting process:
    /// its owners are alive and not among `waiting`. `wants`: this stream itself waits for memory,
    /// with its open step.
    pub(in crate::protocol) fn moves(&self, wants: bool, waiting: &BTreeSet<Peer>) -> bool {
        let store = &self.store;
        let never = store.precious && store.steps.contains_key(&0);
        let ranks = &self.writers.ranks;
        let is_busy = |rank: &super::writers::Rank| match rank.place {
            // A rank that has not begun a step has none of its memory, unless some was granted.
            WriterState::Here(peer) => {
                let mut aside = rank.aside.iter();
                let has_none = !rank.begun && aside.all(|aside| aside.buffers().is_empty());
                wants || has_none || !waiting.contains(&peer)
            }
            WriterState::Away(_) => false,
            WriterState::Closed => true,
        };
        let writers = self.end.is_some() || ranks.iter().all(is_busy);
        let is_kept = ranks.iter().any(|rank| rank.kept.is_some());
        let mut groups = self.groups.groups.values();
        !never && writers && !is_kept && groups.all(|group| group.moves(waiting))
    }

    fn wait(&self, who: String, peer: Peer, whom: Whom, since: u64) -> Wait {
        let Whom { text, mut on } = whom;
        let ms = self.now - since;
        on.truncate(MOST_AWAITED);
        Wait {
            who,
            peer,
            whom: text,
            on,
            ms,
        }
    }

    /// Returns what the request of a writer rank waits for.
    fn whom(&self, asking: &PendingRequest) -> Whom {
        match &asking.stage {
            Stage::Queued if asking.begin > Some(self.store.committed) => self.whom_to_commit(),
            Stage::Queued if asking.is_over && self.store.open.admitted => Whom {
                text: "readers to take steps: the stored ones use too much of the coordinator's memory"
                    .to_owned(),
                on: self.groups.behind_of_unread(),
            },
            Stage::Queued => self
                .whom_to_release()
                .unwrap_or_else(|| self.whom_to_commit()),
            Stage::Asked(_, None) => Whom::nobody("memory"),
            Stage::Asked(_, Some(short)) => {
                let at = match short.block_store {
                    Some(block_store) => self.named(block_store).to_string(),
                    None => format!("the stream {}", self.name),
                };
                let (missing, used, limit) = (short.missing, short.used, short.limit);
                let what = match short.counts_buffers {
                    true => "buffers",
                    false => "bytes",
                };
                Whom {
                    text: format!("{missing} {what} of {at}, which has {used} of {limit} in use"),
                    on: short.block_store.into_iter().collect(),
                }
            }
            Stage::Allocating(buffers, _) => {
                let Some(buffer) = self.unallocated(buffers).next() else {
                    return Whom::nobody("its buffers");
                };
                let at = self.named(buffer.block_store);
                let text = match buffer.is_full {
                    true => format!("freed memory of {at} that is in use"),
                    false => format!("{at} to allocate memory"),
                };
                let has_it = buffer.had_by.filter(|_| buffer.is_full);
                let on = vec![has_it.unwrap_or(buffer.block_store)];
                Whom { text, on }
            }
        }
    }

    /// Returns what the next step waits for, as all its readers see it.
    pub(super) fn whom_next_waits_for(&self) -> Whom {
        match self.end {
            Some(EndOfStream::Closed) => return Whom::nobody("nobody: the stream is closed"),
            Some(EndOfStream::WriterFailed { rank, how }) => {
                let whom = unit(self.writers.program(), rank);
                return Whom::nobody(format!("no rank any more: {whom} {how}"));
            }
            None => {}
        }
        match self.first_asking() {
            Some(asking) => {
                // The writer that waits, and then those that it waits for itself.
                let mut whom = self.whom(asking);
                whom.on.insert(0, asking.peer);
                whom
            }
            None => self.whom_to_commit(),
        }
    }

    /// Returns the first request of a writer rank for the open step.
    fn first_asking(&self) -> Option<&PendingRequest> {
        let ranks = self.writers.ranks.iter();
        let mut asking = ranks.filter_map(|rank| rank.asking.as_ref());
        asking.find(|asking| asking.begin.is_none_or(|step| step == self.store.committed))
    }

    /// Returns which ranks have not committed the open step, or the block store that has yet to
    /// seal it.
    fn whom_to_commit(&self) -> Whom {
        let (step, program) = (self.store.committed, self.writers.program());
        let ranks = self.writers.ranks.iter().enumerate();
        let mut behind =
            ranks.filter(|(_, rank)| rank.next == step && rank.place != WriterState::Closed);
        let Some((first, rank)) = behind.next() else {
            let unsealed = self.unsealed();
            return Whom {
                text: format!("{} to seal step {step}", self.named(unsealed)),
                on: vec![unsealed],
            };
        };
        let others: Vec<_> = behind.map(|(_, rank)| rank.place).collect();
        let peer = |place| match place {
            WriterState::Here(peer) => Some(peer),
            WriterState::Away(_) | WriterState::Closed => None,
        };
        let on = [rank.place].into_iter().chain(others.iter().copied());
        let on = on.filter_map(peer).collect();
        let others = match others.len() {
            0 => String::new(),
            others => format!(", and {others} more"),
        };
        let whom = unit(program, first);
        let text = match rank.place {
            WriterState::Here(_) => {
                let begun = match rank.begun {
                    true => ", which it has begun",
                    false => "",
                };
                format!("{whom} to commit step {step}{begun}{others}")
            }
            WriterState::Away(until) => {
                let left = until.saturating_sub(self.now);
                let away = match rank.failure {
                    Failure::NeverCame => "has not come",
                    Failure::Died => "died",
                    Failure::GaveUp | Failure::ClosedEarly => "stopped without closing the stream",
                };
                format!("{whom}, which {away}, for {left} ms more{others}")
            }
            WriterState::Closed => format!("{whom}, which has closed the stream"),
        };
        Whom { text, on }
    }

    /// Returns the readers whose limit keeps the next step from beginning.
    fn whom_to_release(&self) -> Option<Whom> {
        let step: Step = self.store.committed;
        let full = self
            .groups
            .who_is_full(&self.store, step, self.store.last_bytes);
        let (group, steps) = full?;
        Some(Whom {
            text: match &group.name {
                Some(name) => format!("the reader group {name}, which is {steps} steps behind"),
                None => format!("a first reader; {steps} steps are unread"),
            },
            on: group.behind(),
        })
    }
}
