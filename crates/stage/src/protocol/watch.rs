//! Subscriptions to boxes of variables: tells subscribers that a box was written. Pure.
//!
//! A *watch* only informs: no writer waits for it, and a step that it reports may be gone when the
//! subscriber looks. A program that must see the bytes opens the stream as a reader that takes only
//! the steps in which its box was written ([`Reader::only`](super::Reader::only)). The contract is
//! that of a watch in etcd; the box comes from the subscriptions of DataSpaces.
//!
//! # Messages
//! ```text
//!   subscriber                       coordinator
//!     OpenWatch {interest, start} ->
//!   <------ Answer::Watching {watch}       the stream exists
//!     Watch {ticket} ------------->
//!   <------ Answer::News                   at once if there is any, else with the commit that brings it
//!     CloseWatch ------------------>
//! ```
//!
//! # Invariants
//! * W1 Ordered, each once: a watch reports steps in increasing order, and no step twice.
//! * W2 Nothing is omitted silently: for every committed step from `start` on whose blocks touch
//!   the box there is a [`Written`], or the step is in the range of a [`News::Missed`].
//! * W3 Bounded: at most as many news items wait as the watch asked for ([`MOST_NEWS`] at most).
//!   The oldest are replaced by one range.
//! * W4 A writer never waits for a watch: no decision to begin, keep or free a step depends on it.
//! * W5 The state of a watch ends with its subscriber's process. After the end of the stream, news
//!   that was not delivered stays until then; a new stream of that name does not wait for it.
//!
//! # Not guaranteed
//! * That the bytes still exist when the news arrives.
//! * That a missed step touched the box: the layout of a step that is gone is not known any more.

use super::ledger::Charge;
use super::stream::Found;
use super::{Answer, EndOfStream, Fault, Interest, LayoutHash, News, Peer, Step, Ticket, Written};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of news items that wait for one watch.
pub const MOST_NEWS: u32 = 1 << 16;

/// Maximum number of open requests of one watch, which are paid with it; an honest subscriber has
/// one or two.
const MOST_WAITING: usize = 4;

/// A request that waits for news.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) ticket: Ticket,
    pub(crate) since: u64,
    until: u64,
}

#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) peer: Peer,
    /// The request that opened it.
    ticket: Ticket,
    /// Its cost to the subscriber, with all the news that may wait for it.
    _charge: Charge,
    pub(crate) interest: Interest,
    /// Steps before this one are not reported.
    from: Step,
    most: usize,
    missed: Option<(Step, Step)>,
    /// News that were not delivered yet; a fault if the box does not fit the variable.
    queue: VecDeque<(Step, Result<Written, Fault>)>,
    pub(crate) waiting: VecDeque<Waiting>,
    /// What the layout with this hash contains of the box: most steps have the layout of the
    /// previous one.
    found: Option<(LayoutHash, Found)>,
    /// Whether a step that it has looked at had the variable, if it has looked at any.
    has: Option<bool>,
}

/// The watches of one stream.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    pub(crate) watches: BTreeMap<u64, Watch>,
    next: u64,
    end: Option<EndOfStream>,
    /// Refusals that have yet to be sent.
    out: Vec<(Peer, Ticket, Answer)>,
    /// Watches whose requests may have an answer.
    ready: BTreeSet<u64>,
    /// Variables that are now known to exist, or not to be in the first step that was looked at.
    looked: Vec<(String, bool)>,
}

impl Watches {
    /// Adds a watch from step `from` on; the steps from `asked` to before `from` are gone.
    pub(crate) fn open(
        &mut self,
        (peer, ticket, charge): (Peer, Ticket, Charge),
        interest: Interest,
        (asked, from): (Step, Step),
        most: u32,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let watch = Watch {
            peer,
            ticket,
            _charge: charge,
            interest,
            from,
            most: most.clamp(1, MOST_NEWS) as usize,
            missed: (asked < from).then(|| (asked, from - 1)),
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            found: None,
            has: None,
        };
        self.watches.insert(number, watch);
        number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Handles a committed step whose layouts have the hash `of`; `find` looks for a box in them.
    pub(crate) fn offer(
        &mut self,
        step: Step,
        of: LayoutHash,
        mut find: impl FnMut(&Interest) -> Found,
    ) {
        let numbers: Vec<u64> = self.watches.keys().copied().collect();
        for number in numbers {
            self.offer_to(number, step, of, &mut find);
        }
    }

    /// As [`Watches::offer`], for one watch.
    pub(crate) fn offer_to(
        &mut self,
        number: u64,
        step: Step,
        of: LayoutHash,
        find: impl FnOnce(&Interest) -> Found,
    ) {
        let Some(watch) = self.watches.get_mut(&number) else {
            return;
        };
        if step < watch.from {
            return;
        }
        let found = match watch.found.take() {
            Some((known, found)) if known == of => found,
            _ => find(&watch.interest),
        };
        let has = found != Found::NoVariable;
        if watch.has.is_none_or(|had| has && !had) {
            watch.has = Some(has);
            self.looked.push((watch.interest.variable.clone(), has));
        }
        let told = found.told(step, &watch.interest);
        watch.found = Some((of, found));
        if let Some(told) = told {
            watch.push(step, told);
            self.ready.insert(number);
        }
    }

    /// Takes the variables of which it was found out since the last call whether steps have them.
    pub(crate) fn take_looked(&mut self) -> Vec<(String, bool)> {
        std::mem::take(&mut self.looked)
    }

    /// Handles the end of the stream.
    pub(crate) fn ended(&mut self, why: EndOfStream) {
        self.end = Some(why);
        self.ready.extend(self.watches.keys());
    }

    /// Handles a subscriber's request for the next news item. Returns false if the watch is not its
    /// own.
    pub(crate) fn ask(
        &mut self,
        from: Peer,
        number: u64,
        ticket: Ticket,
        (now, until): (u64, u64),
    ) -> bool {
        let watch = self.watches.get_mut(&number);
        let Some(watch) = watch.filter(|watch| watch.peer == from) else {
            return false;
        };
        if watch.waiting.len() >= MOST_WAITING {
            self.out.push((from, ticket, Answer::Failed(Fault::Busy)));
            return true;
        }
        watch.waiting.push_back(Waiting {
            ticket,
            since: now,
            until,
        });
        self.ready.insert(number);
        true
    }

    /// Ends the subscription of `from`.
    pub(crate) fn close(&mut self, from: Peer, number: u64) {
        let own = |watch: &Watch| watch.peer == from;
        if self.watches.get(&number).is_some_and(own)
            && let Some(watch) = self.watches.remove(&number)
        {
            let waiting = watch.waiting.into_iter();
            let closed = |asked: Waiting| (from, asked.ticket, Answer::Failed(Fault::NotOpen));
            self.out.extend(waiting.map(closed));
        }
    }

    /// Removes the watch that `from` has opened by the request `ticket`, if it has: it does not
    /// know the answer.
    /// Returns whether there was one.
    pub(crate) fn forget_opening(&mut self, from: Peer, ticket: Ticket) -> bool {
        let before = self.watches.len();
        self.watches
            .retain(|_, watch| (watch.peer, watch.ticket) != (from, ticket));
        self.watches.len() < before
    }

    /// Removes all watches of a lost process.
    pub(crate) fn lost(&mut self, peer: Peer) {
        self.watches.retain(|_, watch| watch.peer != peer);
    }

    /// Answers at most `most` requests whose deadline has passed with the result of `late`. Returns
    /// the next deadline.
    pub(crate) fn tick(
        &mut self,
        now: u64,
        most: usize,
        late: impl Fn(&Interest) -> Fault,
    ) -> Option<u64> {
        let mut next: Option<u64> = None;
        for watch in self.watches.values_mut() {
            let (peer, interest) = (watch.peer, &watch.interest);
            let out = &mut self.out;
            watch.waiting.retain(|waiting| {
                let stays = waiting.until > now || out.len() >= most;
                if !stays {
                    out.push((peer, waiting.ticket, Answer::Failed(late(interest))));
                }
                stays
            });
            let until = watch.waiting.iter().map(|waiting| waiting.until.max(now));
            next = next.into_iter().chain(until).min();
        }
        next
    }

    /// Takes the answers that can be given now, but no more than about `most`.
    pub(crate) fn take_answers(&mut self, most: usize) -> Vec<(Peer, Ticket, Answer)> {
        while self.out.len() < most
            && let Some(&number) = self.ready.first()
        {
            if !self.serve(number) {
                self.ready.remove(&number);
            }
        }
        std::mem::take(&mut self.out)
    }

    /// Returns true if [`take_answers`](Self::take_answers) has any to give.
    pub(crate) fn has_answers(&self) -> bool {
        !self.out.is_empty() || !self.ready.is_empty()
    }

    /// Answers a request of a watch. Returns false if none can be answered.
    fn serve(&mut self, number: u64) -> bool {
        let watch = self.watches.get_mut(&number);
        let Some(watch) = watch.filter(|watch| !watch.waiting.is_empty()) else {
            return false;
        };
        let Some(answer) = watch.take(self.end) else {
            return false;
        };
        if let Some(asked) = watch.waiting.pop_front() {
            self.out.push((watch.peer, asked.ticket, answer));
        }
        true
    }
}

impl Watch {
    fn push(&mut self, step: Step, told: Result<Written, Fault>) {
        if self.queue.len() == self.most
            && let Some((gone, _)) = self.queue.pop_front()
        {
            let first = self.missed.map_or(gone, |(first, _)| first);
            self.missed = Some((first, gone));
        }
        self.queue.push_back((step, told));
    }

    /// Takes the next news item, if any.
    fn take(&mut self, end: Option<EndOfStream>) -> Option<Answer> {
        if let Some((first, last)) = self.missed.take() {
            return Some(Answer::News(Box::new(News::Missed { first, last })));
        }
        match self.queue.pop_front() {
            Some((_, Ok(written))) => Some(Answer::News(Box::new(News::Written(written)))),
            Some((_, Err(fault))) => Some(Answer::Failed(fault)),
            None => end.map(Answer::End),
        }
    }

    /// Returns the number of news items that wait for it.
    pub(crate) fn queued(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.missed.is_some())
    }
}
