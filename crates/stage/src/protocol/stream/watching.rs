//! The subscriptions of a stream: opening them (stored steps are reported), committed steps,
//! deadlines.

use super::{Action, Stream};
use crate::protocol::history::some_names;
use crate::protocol::watch::Watches;
use crate::protocol::{Answer, EndOfStream, Fault, Interest, Peer, Start, Step, Ticket, WatchId};

impl Stream {
    /// Opens a subscription to a box from `start` on. Stored steps are reported at once; those that
    /// are gone are reported as missed.
    ///
    /// # Errors
    /// An empty box.
    pub fn open_watch(
        &mut self,
        (from, ticket): (Peer, Ticket),
        interest: &Interest,
        start: Start,
        most: u32,
        cost: u64,
    ) -> Result<Answer, Fault> {
        if interest
            .region
            .as_ref()
            .is_some_and(crate::Region::is_empty)
        {
            let interest = interest.clone();
            return Err(Fault::EmptyBox {
                interest: Box::new(interest),
            });
        }
        let unbroken = self.store.unbroken_from();
        let asked = match start {
            Start::Earliest => unbroken,
            Start::Latest => unbroken.max(self.store.committed.saturating_sub(1)),
            Start::Step(step) => step,
        };
        let begin = asked.max(unbroken);
        let charge = self.store.costs.ledger.charge(from, cost);
        let number = self.watches.open(
            (from, ticket, charge),
            interest.clone(),
            (asked, begin),
            most,
        );
        // Tells what is still stored; the later steps follow as they are committed.
        for step in begin..self.store.committed {
            if let Some((of, found)) = self.find(step, interest) {
                self.watches.offer_to(number, step, of, |_| found);
            }
            self.say_what_exists(step);
        }
        let watch = WatchId {
            stream: self.id,
            number,
        };
        let program = self.writers.program().to_owned();
        Ok(Answer::Watching { watch, program })
    }

    /// Handles a subscriber's request for the next news item.
    pub fn ask_watch(&mut self, from: Peer, number: u64, ticket: Ticket, timeout: u64) {
        let until = self.after(timeout);
        if self.watches.ask(from, number, ticket, (self.now, until)) {
            self.wake_by(until);
        } else {
            self.fail(from, ticket, Fault::NotOpen);
        }
    }

    /// Ends a subscription.
    pub fn close_watch(&mut self, from: Peer, number: u64) {
        self.watches.close(from, number);
    }

    /// Returns the subscriptions of a stream that is over: the coordinator tells them the rest.
    pub(in crate::protocol) fn take_watches(&mut self) -> Watches {
        std::mem::take(&mut self.watches)
    }

    /// Returns the subscriptions.
    pub(in crate::protocol) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Reports a committed step.
    pub(super) fn offer_to_watches(&mut self, step: Step) {
        if self.watches.is_empty() {
            return;
        }
        if let Some((of, layouts)) = self.store.layouts(step) {
            let matcher = &mut self.matcher;
            self.watches.offer(step, of, |interest| {
                matcher.find(of, layouts.clone(), interest)
            });
        }
        self.say_what_exists(step);
    }

    /// Says which variables of subscriptions the step has, as far as that is new.
    fn say_what_exists(&mut self, step: Step) {
        for (variable, has) in self.watches.take_looked() {
            let there = (!has).then(|| {
                let layouts = self.store.layouts(step).map(|(_, layouts)| layouts);
                let variables = layouts.into_iter().flatten();
                let variables = variables.flat_map(|layout| &layout.variables);
                let names = some_names(variables.map(|variable| variable.name.as_str()));
                (step, names)
            });
            self.out.push(Action::Looked {
                stream: self.name.clone(),
                variable,
                there,
            });
        }
    }

    /// Reports the end of the stream.
    pub(super) fn end_watches(&mut self, why: EndOfStream) {
        self.watches.ended(why);
    }

    pub(super) fn watches_tick(&mut self) {
        if self.watches.is_empty() {
            return;
        }
        // What can be answered is not late.
        self.tell_watches();
        let committed = self.store.committed;
        let whom = self.whom_next_waits_for().text;
        let most = self.answers_left();
        let next = self
            .watches
            .tick(self.now, most, |interest| Fault::NothingWritten {
                stream: self.name.clone(),
                interest: Box::new(interest.clone()),
                committed,
                whom: whom.clone(),
            });
        if let Some(next) = next {
            self.wake_by(next);
        }
        // They count before other streams are looked at.
        self.tell_watches();
    }

    pub(super) fn tell_watches(&mut self) {
        // Called in every event, so it does not lock the ledger for nothing.
        if !self.watches.has_answers() {
            return;
        }
        for (to, ticket, answer) in self.watches.take_answers(self.answers_left()) {
            self.answer(to, ticket, answer);
        }
        if self.watches.has_answers() {
            self.wake_by(self.now);
        }
    }
}
