//! Subscriptions to the commits of a chunk.

use crate::chunk::{Chunk, Elem};
use crate::client::millis;
use crate::error::{Error, Result};
use crate::protocol::{Answer, Event, Request, Version};
use std::collections::VecDeque;
use std::time::Duration;

/// Which commits a subscriber hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each one, in order, once. A subscriber that is more than a thousand behind gets
    /// [`Error::Lagged`].
    Every,
    /// The last one, whenever it asks.
    Latest,
}

/// A subscription: tells of commits in the order of their versions, each once. An event is told
/// when its version can be read. Thread: any; one at a time.
#[derive(Debug)]
pub struct Subscription<T> {
    chunk: Chunk<T>,
    policy: Policy,
    after: Version,
    events: VecDeque<Event>,
}

impl<T: Elem> Subscription<T> {
    pub(crate) fn new(chunk: Chunk<T>, policy: Policy, after: Version) -> Self {
        Subscription {
            chunk,
            policy,
            after,
            events: VecDeque::new(),
        }
    }

    /// Waits for the next commit, up to the deadline of the fabric.
    ///
    /// # Errors
    /// [`Error::NoEvent`]: call it again to wait longer. [`Error::Lagged`]: the next call returns
    /// the oldest event that is known.
    pub fn next_event(&mut self) -> Result<Event> {
        self.next_within(self.chunk.client.fabric.deadline())
    }

    /// As [`Subscription::next_event`], with another deadline.
    ///
    /// # Errors
    /// As [`Subscription::next_event`].
    pub fn next_within(&mut self, deadline: Duration) -> Result<Event> {
        if self.events.is_empty() {
            self.fetch(deadline)?;
        }
        match self.events.pop_front() {
            Some(event) => {
                self.after = event.version;
                Ok(event)
            }
            None => Err(Error::NoEvent {
                chunk: self.chunk.name().to_owned(),
                after: deadline,
            }),
        }
    }

    /// Returns the version after which it goes on: a subscription that begins there tells of the
    /// same commits.
    pub fn after(&self) -> Version {
        self.after
    }

    fn fetch(&mut self, deadline: Duration) -> Result<()> {
        let request = Request::Next {
            chunk: self.chunk.id(),
            after: self.after,
            is_latest: self.policy == Policy::Latest,
            timeout: millis(deadline),
        };
        match self
            .chunk
            .client
            .ask(deadline, "a commit of another process", &request)?
        {
            Answer::Events { events, missed } => {
                self.events = events.into();
                if missed == 0 {
                    return Ok(());
                }
                self.after.0 += missed;
                Err(Error::Lagged {
                    chunk: self.chunk.name().to_owned(),
                    missed,
                })
            }
            other => Err(self.chunk.refused(other, "read", deadline)),
        }
    }
}
