//! Subscriptions and meetings: what clients are told because of others.

use super::{MOST_CHUNKS, MOST_HELD, Server, ServerAction, Waiting, answer_to, fail};
use crate::protocol::meetings::Outcome;
use crate::protocol::message::{Answer, Fault, LONGEST_NAME, Policy};
use crate::protocol::{ChunkId, Process, Subscriber, SubscriptionId, Ticket, Version};

/// The most bytes that a process brings to a meeting: all get those of all.
const MOST_BROUGHT: usize = 256 << 10;

/// What all processes of a meeting bring, at most: each of them gets it.
const MOST_OF_ALL: usize = 4 << 20;

impl Server {
    pub(super) fn meet(
        &mut self,
        asker: (Process, Ticket),
        (name, count): (String, u64),
        bytes: Vec<u8>,
        at: u64,
        actions: &mut Vec<ServerAction>,
    ) {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return fail(asker, Fault::BadName, actions);
        }
        if bytes.len() > MOST_BROUGHT {
            let bytes = bytes.len() as u64;
            let why = format!("a process brings at most {MOST_BROUGHT} bytes to a meeting");
            return fail(asker, Fault::NoMemory { bytes, why }, actions);
        }
        if self.meetings.len() as u64 >= MOST_CHUNKS && !self.meetings.has(&name) {
            return fail(asker, Fault::TooMany { most: MOST_CHUNKS }, actions);
        }
        let all = self.meetings.brought(&name).saturating_add(bytes.len());
        if all > MOST_OF_ALL {
            let why = format!("the processes of a meeting bring at most {MOST_OF_ALL} bytes");
            let bytes = all as u64;
            return fail(asker, Fault::NoMemory { bytes, why }, actions);
        }
        let outcome = self.meetings.come(&name, count, asker, bytes);
        match outcome {
            Outcome::Waits => self.wait(asker, at, Waiting::Meet { name }),
            Outcome::Differs { count } => fail(asker, Fault::OtherCount { count }, actions),
            ended => self.met(ended, actions),
        }
    }

    /// Returns the subscriptions of a process, and its services that take the events.
    pub fn subscriptions_of(&self, process: Process) -> Vec<(Subscriber, u16)> {
        let all = (process, SubscriptionId(0))..=(process, SubscriptionId(u64::MAX));
        let inbox_of = |chunk, who| {
            let home = self.chunks.get(chunk)?.home()?;
            let mut all = home.subscribers.all().into_iter();
            all.find(|(of, _)| of == who)
        };
        let of_process = self.subscriptions.range(all);
        of_process
            .filter_map(|(who, chunk)| inbox_of(chunk, who))
            .collect()
    }

    /// Answers those that have met, or cannot any more.
    pub(super) fn met(&mut self, outcome: Outcome, actions: &mut Vec<ServerAction>) {
        let (to, answer) = match outcome {
            Outcome::Met { to, all } => (to, Answer::Met(all)),
            Outcome::Broken { to, lost } => (to, Answer::Failed(Fault::Broken { lost })),
            Outcome::Waits | Outcome::Differs { .. } => return,
        };
        for asker in to {
            self.waits_no_more(asker);
            answer_to(asker, answer.clone(), actions);
        }
    }

    pub(super) fn subscribe(
        &mut self,
        (from, ticket): (Process, Ticket),
        (chunk, id): (ChunkId, SubscriptionId),
        (inbox, policy, with_content, watches): (u16, Policy, bool, bool),
        after: Version,
        actions: &mut Vec<ServerAction>,
    ) {
        let of_process = (from, SubscriptionId(0))..=(from, SubscriptionId(u64::MAX));
        if self.subscriptions.range(of_process).take(MOST_HELD).count() == MOST_HELD {
            let most = MOST_HELD as u64;
            return fail((from, ticket), Fault::TooMany { most }, actions);
        }
        let is_new = !self.subscriptions.contains_key(&(from, id));
        let content = self.bytes(chunk).filter(|_| with_content);
        let Some(home) = self.home(chunk) else {
            return fail((from, ticket), self.no_chunk(chunk), actions);
        };
        if !is_new {
            return fail((from, ticket), Fault::Malformed, actions);
        }
        let who = (from, id);
        (home.subscribers).add(who, inbox, (policy, content, watches), after);
        self.subscriptions.insert(who, chunk);
        self.used.entry(from).or_default().insert(chunk);
        answer_to((from, ticket), Answer::Subscribed, actions);
        self.tell(chunk, actions);
    }

    pub(super) fn took(
        &mut self,
        chunk: ChunkId,
        who: Subscriber,
        version: Version,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.subscriptions.get(&who) != Some(&chunk) {
            return;
        }
        if let Some(home) = self.home(chunk) {
            home.subscribers.took(who, version);
        }
        let version = Some(version);
        actions.push(ServerAction::Took { who, version });
        self.tell(chunk, actions);
        self.admit(chunk, actions);
    }

    pub(super) fn unsubscribe(
        &mut self,
        chunk: ChunkId,
        who: Subscriber,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.subscriptions.get(&who) != Some(&chunk) {
            return;
        }
        self.subscriptions.remove(&who);
        if let Some(home) = self.home(chunk) {
            home.subscribers.remove(who);
        }
        actions.push(ServerAction::Took { who, version: None });
        self.admit(chunk, actions);
    }

    /// Tells subscribers of commits.
    pub(super) fn tell(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        if let Some(home) = self.home(chunk) {
            let (present, _) = home.directory.version();
            let told = home.owner.map_or(present, |owner| owner.since);
            let tellings = home.subscribers.tell(told, &home.history);
            let each = tellings.into_iter();
            actions.extend(each.map(|telling| ServerAction::Tell { chunk, telling }));
        }
    }
}
