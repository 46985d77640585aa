//! Subscriptions as streams, to be awaited in a program with an executor.
//!
//! No hidden thread is needed: a stream that finds no event asks its executor to be polled again,
//! as a handle of the fabric does. A program that has a thread to spare for it calls
//! [`Dsm::deliver`](crate::Dsm::deliver) in it: then a stream without events is woken by that
//! thread, which sleeps as any thread that waits for events.

use crate::chunk::Elem;
use crate::error::{Error, Result};
use crate::guard::Snapshot;
use crate::protocol::Event;
use crate::subscription::Subscription;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The events of a [`Subscription`], as a stream. [`Error::Lagged`] is an item like any other one;
/// after any other error, such as [`Error::Freed`], the stream ends.
#[derive(Debug)]
pub struct EventStream<T: Elem> {
    /// `None` after the end.
    subscription: Option<Subscription<T>>,
}

/// The versions of a [`Subscription`], as a stream, which ends as an [`EventStream`] does. Where
/// the content does not come with the event, or is not mapped, it is waited for in the poll.
#[derive(Debug)]
pub struct VersionStream<T: Elem> {
    subscription: Option<Subscription<T>>,
}

impl<T: Elem> EventStream<T> {
    pub(crate) fn new(subscription: Subscription<T>) -> EventStream<T> {
        EventStream {
            subscription: Some(subscription),
        }
    }
}

impl<T: Elem> VersionStream<T> {
    pub(crate) fn new(subscription: Subscription<T>) -> VersionStream<T> {
        VersionStream {
            subscription: Some(subscription),
        }
    }
}

/// Drops a subscription that has no more events.
fn end_after<T: Elem, V>(subscription: &mut Option<Subscription<T>>, item: &Result<V>) {
    if !matches!(item, Ok(_) | Err(Error::Lagged { .. })) {
        *subscription = None;
    }
}

impl<T: Elem> Stream for EventStream<T> {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(subscription) = &mut self.subscription else {
            return Poll::Ready(None);
        };
        let polled = ready!(subscription.poll(context.waker()));
        let item = polled.map(|(event, _)| {
            subscription.took();
            event
        });
        end_after(&mut self.subscription, &item);
        Poll::Ready(Some(item))
    }
}

impl<T: Elem> Stream for VersionStream<T> {
    type Item = Result<Snapshot<T>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(subscription) = &mut self.subscription else {
            return Poll::Ready(None);
        };
        let polled = ready!(subscription.poll(context.waker()));
        let item = polled.and_then(|(event, content)| subscription.version_of(event, content));
        end_after(&mut self.subscription, &item);
        Poll::Ready(Some(item))
    }
}
