//! What clients record.

use super::record::{Call, Kind, Record, meeting};
use super::{Writer, now};
use crate::error::Error;
use crate::protocol::{ChunkId, Event, GuardId, Policy, SubscriptionId, Version};

impl Writer {
    /// A call that may wait begins. Returns when.
    pub(crate) fn asks(&self, call: Call, chunk: ChunkId) -> u64 {
        let time = self.clock();
        if self.is_full() {
            self.put(|| Record::new(Kind::Asked, time).of(chunk).by(call));
        }
        time
    }

    /// A chunk was opened.
    pub(crate) fn opened(&self, chunk: ChunkId, name: &str, bytes: u64) {
        self.put_name(chunk.0, name);
        self.put(|| Record::new(Kind::Opened, now()).of(chunk).worth(bytes));
    }

    /// A guard was given.
    pub(crate) fn given(
        &self,
        (call, began): (Call, u64),
        (chunk, guard): (ChunkId, GuardId),
        (version, tag): (Version, u64),
    ) {
        self.put(|| {
            let record = ended(Kind::Given, began).by(call);
            record.of(chunk).under(guard).at(version, tag)
        });
    }

    /// A read guard was taken without a message: the version was the present one at some moment
    /// from `began` to `ended`.
    #[inline]
    pub(crate) fn hit(
        &self,
        (began, ended): (u64, u64),
        chunk: ChunkId,
        (version, tag): (Version, u64),
    ) {
        self.put(|| {
            let record = Record::new(Kind::Given, ended).by(Call::Read);
            let record = record.worth(ended.saturating_sub(began));
            record.of(chunk).at(version, tag)
        });
    }

    /// A guard ends without a commit; one that was taken without a message has the number 0. To be
    /// called before it does.
    #[inline]
    pub(crate) fn ended(&self, chunk: ChunkId, guard: GuardId) {
        self.put(|| Record::new(Kind::Ended, now()).of(chunk).under(guard));
    }

    /// A commit was acknowledged.
    pub(crate) fn committed(
        &self,
        (call, began): (Call, u64),
        (chunk, guard): (ChunkId, GuardId),
        (version, tag): (Version, u64),
    ) {
        self.put(|| {
            let record = ended(Kind::Committed, began).by(call);
            record.of(chunk).under(guard).at(version, tag)
        });
    }

    /// A snapshot is there.
    pub(crate) fn got(&self, began: u64, chunk: ChunkId, (version, tag): (Version, u64)) {
        self.put(|| {
            let record = ended(Kind::Got, began).by(Call::Snapshot);
            record.of(chunk).at(version, tag)
        });
    }

    /// A subscription has begun.
    pub(crate) fn subscribed(
        &self,
        (chunk, id): (ChunkId, SubscriptionId),
        policy: Policy,
        after: Version,
    ) {
        let latest = u64::from(policy == Policy::Latest);
        self.put(|| {
            let record = Record::new(Kind::Subscribed, now()).of(chunk);
            record.under(GuardId(id.0)).at(after, latest)
        });
    }

    /// An event was taken.
    pub(crate) fn event(&self, began: u64, (chunk, id): (ChunkId, SubscriptionId), event: &Event) {
        self.put(|| {
            let record = ended(Kind::Event, began).by(Call::Event).of(chunk);
            let record = record.under(GuardId(id.0)).with(event.writer);
            record.at(event.version, event.tag)
        });
    }

    /// A subscription has missed events.
    pub(crate) fn missed(&self, (chunk, id): (ChunkId, SubscriptionId), missed: u64) {
        self.put(|| {
            let record = Record::new(Kind::Missed, now()).of(chunk);
            record.under(GuardId(id.0)).worth(missed)
        });
    }

    /// Others are waited for. Returns since when.
    pub(crate) fn meets(&self, name: &str) -> u64 {
        self.put_name(meeting(name), name);
        let time = self.clock();
        if self.is_full() {
            self.put(|| {
                Record::new(Kind::Asked, time)
                    .of_meeting(name)
                    .by(Call::Meet)
            });
        }
        time
    }

    /// All have come, or not.
    pub(crate) fn met(&self, began: u64, name: &str, error: Option<&Error>) {
        self.put(|| match error {
            None => ended(Kind::Met, began).by(Call::Meet).of_meeting(name),
            Some(error) => failure(error, began).by(Call::Meet).of_meeting(name),
        });
    }

    /// A call has failed. `guard`: the one that ends with it; 0 if there is none.
    pub(crate) fn failed(
        &self,
        (call, began): (Call, u64),
        (chunk, guard): (ChunkId, GuardId),
        error: &Error,
    ) {
        self.put(|| failure(error, began).by(call).of(chunk).under(guard));
    }
}

/// Returns a record of what has ended now and began then.
fn ended(kind: Kind, began: u64) -> Record {
    let time = now();
    Record::new(kind, time).worth(time.saturating_sub(began))
}

fn failure(error: &Error, began: u64) -> Record {
    let number = u64::from(error.code().number());
    ended(Kind::Failed, began).at(Version(number), 0)
}
