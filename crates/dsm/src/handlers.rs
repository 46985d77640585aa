//! Subscriptions whose events are handled by functions, in a thread of the caller.

use crate::chunk::Elem;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::guard::Snapshot;
use crate::protocol::{Event, ServerId, SubscriptionId, Told};
use crate::subscription::Subscription;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Functions that are called for the commits of chunks, of any types, in the thread that runs them.
/// A handler may do with chunks what it likes: write the one that it subscribes to, or wait for a
/// guard. While it does so, the other handlers wait. Thread: one at a time.
///
/// ```
/// use samite_dsm::{Dsm, Handlers, Policy, Version};
/// use std::ops::ControlFlow;
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// let dsm = Dsm::join(&fabric)?;
/// let (field, total) = (dsm.alloc::<f64>("field", 100)?, dsm.alloc::<f64>("total", 1)?);
/// for step in 1..=3 {
///     field.put(&[step as f64; 100], step)?;
/// }
/// let mut handlers = Handlers::new();
/// handlers.on_commit(field.subscribe(Policy::Every, Version(0))?, |event| {
///     let Ok(event) = event else { return ControlFlow::Break(()) };
///     match total.put(&[event.tag as f64], event.tag) {
///         Ok(_) if event.tag < 3 => ControlFlow::Continue(()),
///         _ => ControlFlow::Break(()), // This handler is not called any more.
///     }
/// });
/// handlers.run()?; // until all handlers have ended
/// drop(handlers);
/// assert_eq!(total.read()?[0], 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Handlers<'h> {
    all: Vec<Box<dyn Handled + 'h>>,
    /// The handler that is looked at first: each has its turn.
    first: usize,
}

/// A subscription with its handler.
trait Handled {
    fn client(&self) -> &Arc<Client>;
    fn id(&self) -> SubscriptionId;
    fn home(&self) -> ServerId;
    fn check_ended(&self) -> Result<()>;
    fn no_event(&self, after: Duration) -> Error;
    fn name(&self) -> &str;
    fn add(&mut self, told: Told) -> Result<()>;
    /// Calls the handler with an event that has arrived, unless its version cannot be had; `None`
    /// if there is no event. `began`: when the wait for it began.
    fn handle(&mut self, began: u64) -> Option<Result<ControlFlow<()>>>;
    fn fail(&mut self, error: Error) -> ControlFlow<()>;
}

struct OnCommit<T: Elem, F>(Subscription<T>, F);

struct OnVersion<T: Elem, F>(Subscription<T>, F);

macro_rules! of_subscription {
    () => {
        fn client(&self) -> &Arc<Client> {
            self.0.client()
        }
        fn id(&self) -> SubscriptionId {
            self.0.id()
        }
        fn home(&self) -> ServerId {
            self.0.home()
        }
        fn check_ended(&self) -> Result<()> {
            self.0.check_ended()
        }
        fn no_event(&self, after: Duration) -> Error {
            self.0.no_event(after)
        }
        fn name(&self) -> &str {
            self.0.chunk().name()
        }
        fn add(&mut self, told: Told) -> Result<()> {
            self.0.add(told)
        }
        fn fail(&mut self, error: Error) -> ControlFlow<()> {
            (self.1)(Err(error))
        }
    };
}

impl<T: Elem, F: FnMut(Result<Event>) -> ControlFlow<()>> Handled for OnCommit<T, F> {
    of_subscription!();

    fn handle(&mut self, began: u64) -> Option<Result<ControlFlow<()>>> {
        let (event, _) = self.0.pop_known(began)?;
        self.0.took();
        Some(Ok((self.1)(Ok(event))))
    }
}

impl<T: Elem, F: FnMut(Result<Snapshot<T>>) -> ControlFlow<()>> Handled for OnVersion<T, F> {
    of_subscription!();

    fn handle(&mut self, began: u64) -> Option<Result<ControlFlow<()>>> {
        let (event, content) = self.0.pop_known(began)?;
        let version = self.0.version_of(event, content);
        Some(version.map(|version| (self.1)(Ok(version))))
    }
}

impl<'h> Handlers<'h> {
    /// Returns no handlers.
    pub fn new() -> Handlers<'h> {
        Handlers::default()
    }

    /// Adds a handler, which is called with each event, until it returns `Break`. It also gets
    /// errors, such as [`Error::Lagged`] if events were missed, and goes on if it returns
    /// `Continue`; but [`Error::Freed`] and [`Error::Lost`] are the last thing that it is called
    /// with. As with [`Subscription::next_event`], an event counts as taken when the handler is
    /// called.
    pub fn on_commit<T: Elem>(
        &mut self,
        subscription: Subscription<T>,
        handler: impl FnMut(Result<Event>) -> ControlFlow<()> + 'h,
    ) {
        self.all.push(Box::new(OnCommit(subscription, handler)));
    }

    /// As [`Handlers::on_commit`], and the handler is called with each version
    /// ([`Subscription::next_version`]), or with an error if its content cannot be had.
    pub fn on_version<T: Elem>(
        &mut self,
        subscription: Subscription<T>,
        handler: impl FnMut(Result<Snapshot<T>>) -> ControlFlow<()> + 'h,
    ) {
        self.all.push(Box::new(OnVersion(subscription, handler)));
    }

    /// Returns the number of handlers that have not ended.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns true if all handlers have ended.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Calls handlers until all have ended.
    ///
    /// # Errors
    /// [`Error::NoEvent`]: there was no event within the deadline of the fabric; call it again to
    /// wait longer. Those of the fabric.
    pub fn run(&mut self) -> Result<()> {
        while let Some(one) = self.all.first() {
            let deadline = one.client().fabric.deadline();
            self.handle_next(deadline)?;
        }
        Ok(())
    }

    /// Waits for the next event of any handler, and calls it. Returns at once if all have ended.
    ///
    /// # Errors
    /// As [`Handlers::run`], with another deadline.
    pub fn handle_next(&mut self, deadline: Duration) -> Result<()> {
        let began = self.all.first().map_or(0, |one| one.client().log.clock());
        loop {
            let count = self.all.len();
            let order = |first: usize| (0..count).map(move |place| (first + place) % count);
            for place in order(self.first) {
                if let Some(handled) = self.all[place].handle(began) {
                    match handled {
                        Ok(then) => self.goes_on(place, then),
                        Err(error) => self.fails(place, error),
                    }
                    return Ok(());
                }
            }
            let Some(one) = self.all.first() else {
                return Ok(());
            };
            let (all, first) = (&self.all, self.first);
            let find = |place: usize| {
                let (_, told) = all[place].client().told(&[all[place].id()])?;
                Some((place, told))
            };
            let look = || order(first).find_map(find);
            all.iter().for_each(|one| one.client().send_all_notes());
            let (place, told) = match look() {
                Some(found) => found,
                None => {
                    let lost = |place: usize| Some((place, all[place].check_ended().err()?));
                    if let Some((place, error)) = order(first).find_map(lost) {
                        self.fails(place, error);
                        return Ok(());
                    }
                    let homes: Vec<_> = all.iter().map(|one| one.home()).collect();
                    match one.client().await_events(&homes, deadline, look) {
                        // Its handler hears of it.
                        Err(Error::Fabric(samite_fabric::Error::PeerLost { .. })) => continue,
                        found => found?.ok_or_else(|| one.no_event(deadline))?,
                    }
                }
            };
            self.adds(place, told);
        }
    }

    /// Adds what was told to a handler's subscription.
    fn adds(&mut self, place: usize, told: Told) {
        if let Err(error) = self.all[place].add(told) {
            self.fails(place, error);
        }
    }

    /// Calls a handler with an error. Of a chunk that is gone there are no more events.
    fn fails(&mut self, place: usize, error: Error) {
        let is_last = matches!(error, Error::Freed { .. } | Error::Lost { .. });
        let then = match self.all[place].fail(error) {
            ControlFlow::Continue(()) if !is_last => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        };
        self.goes_on(place, then);
    }

    fn goes_on(&mut self, place: usize, then: ControlFlow<()>) {
        match then {
            ControlFlow::Continue(()) => self.first = place + 1,
            ControlFlow::Break(()) => {
                self.all.remove(place);
                self.first = place;
            }
        }
    }
}

impl std::fmt::Debug for Handlers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.all.iter().map(|one| one.name());
        f.debug_list().entries(names).finish()
    }
}
