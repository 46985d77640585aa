//! Subscriptions: reports that a box of a variable was written, without reading it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let fabric = samite_fabric::Fabric::alone(samite_fabric::Identity::by_hand("viewer"), Default::default())?;
//! # use samite_stage::{News, Stage};
//! let stage = Stage::join(&fabric)?;
//! let mut hot = stage.watch("field", "u").region([10..20, 0..5]).open()?;
//! while let Some(news) = hot.next(std::time::Duration::from_secs(10))? {
//!     match news {
//!         News::Written(written) => println!("step {}: {}", written.step, written.region),
//!         News::Missed { first, last } => println!("steps {first} to {last} were missed"),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! A writer never waits for a subscription, and a reported step may be gone when it is read. To get
//! the data, read the stream: [`Reading::only`](crate::Reading::only) takes only the steps in which
//! a box was written. The guarantees are in [`protocol`](crate::protocol)'s `watch`.

use crate::array::Selection;
use crate::client::Client;
use crate::clock::millis;
use crate::method::{Method, Settings};
use crate::protocol::{Answer, EndOfStream, Fault, Interest, News, Request, Start, Step, WatchId};
use crate::{Error, Result, SpaceError};
use samite_fabric::rpc::Call;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The default number of news that may wait for a subscriber.
const USUAL: u32 = 1024;

/// What a subscriber waits for, in errors.
const WAITED_FOR: &str = "news of a box";

/// The longest wait: longer ones mean for ever, and not all clocks can count them.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The options of a subscription; see [`Stage::watch`](crate::Stage::watch).
pub struct Watching {
    client: Arc<Client>,
    /// Its name in the domain. The error of a missing edge is returned by `open`.
    stream: Result<String>,
    interest: Result<Interest>,
    start: Start,
    most: u32,
    method: Method,
}

/// A subscription to a box of a variable. Ends when dropped.
pub struct Watch {
    client: Arc<Client>,
    stream: String,
    /// The program that writes it.
    program: String,
    id: WatchId,
    next: Option<Step>,
    /// A request that the coordinator did not answer in time.
    late: Option<Call>,
    ended: Option<EndOfStream>,
}

/// Returns the interest of a reader or a subscriber in a variable.
pub(crate) fn interest(variable: &str, region: impl Selection) -> Result<Interest> {
    // The shape is not known yet, and a box has its bounds without one. A selection that has not is
    // `..`, the whole variable.
    let region = match region.region(&[]) {
        Err(Error::Space(SpaceError::DimensionCount { dims: 0 })) => None,
        region => Some(region?),
    };
    Ok(Interest {
        variable: variable.to_owned(),
        region,
    })
}

impl Watching {
    pub(crate) fn new(
        client: Arc<Client>,
        stream: Result<String>,
        variable: &str,
        settings: &Settings,
    ) -> Self {
        Watching {
            client,
            stream,
            interest: Ok(Interest {
                variable: variable.to_owned(),
                region: None,
            }),
            start: settings.start,
            most: USUAL,
            method: settings.method,
        }
    }

    /// Watches only this box of the variable, given by its bounds. Default: all of it, whatever its
    /// shape.
    pub fn region(mut self, region: impl Selection) -> Self {
        self.interest = self
            .interest
            .and_then(|asked| interest(&asked.variable, region));
        self
    }

    /// Sets where it begins. [`Start::Step`] with [`Watch::next_step`] continues where another
    /// subscription has ended. Steps that are gone are reported as missed.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the maximum number of waiting news, from 1 to [`MOST_NEWS`](crate::protocol::MOST_NEWS)
    /// (default 1024). Beyond it, the oldest are replaced by a [`News::Missed`].
    pub fn queue(mut self, most: u32) -> Self {
        self.most = most;
        self
    }

    /// Subscribes. Waits until the stream exists, but not for the variable.
    ///
    /// # Errors
    /// No such stream within the fabric's deadline, an empty box, a stream in files; with the
    /// method `graph` no edge.
    pub fn open(self) -> Result<Watch> {
        let (client, stream) = (self.client, self.stream?);
        if self.method == Method::File {
            return Err(Error::NoNews { stream });
        }
        let interest = Box::new(self.interest?);
        let question = |ticket| Request::OpenWatch {
            ticket,
            stream: stream.clone(),
            interest,
            start: self.start,
            most: self.most,
            timeout: client.timeout(),
        };
        match client.open("a stream to subscribe to", question)? {
            Answer::Watching { watch, program } => Ok(Watch {
                client,
                stream,
                program,
                id: watch,
                next: None,
                late: None,
                ended: None,
            }),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }
}

impl Watch {
    /// Returns the next news, or `None` after the last step of a stream that its writers have
    /// closed. Waits up to `deadline`.
    ///
    /// # Errors
    /// After the last step of a stream that has failed, every time: [`Fault::WriterFailed`].
    /// Nothing within the deadline: the error names what the next step waits for. A box outside the
    /// array of a step; the next call continues after that step.
    pub fn next(&mut self, deadline: Duration) -> Result<Option<News>> {
        let (deadline, began) = (deadline.min(LONGEST), Instant::now());
        let late = self.late.take();
        let was_late = late.is_some();
        let mut call = match late {
            Some(call) => call,
            None => self.ask(deadline)?,
        };
        let answer = self.client.answer_within(deadline, WAITED_FOR, &mut call);
        match answer {
            // This answer belongs to the deadline of the previous call.
            Err(Error::Fault(Fault::NothingWritten { .. })) if was_late => {
                self.next(deadline.saturating_sub(began.elapsed()))
            }
            Ok(Answer::News(news)) => {
                self.next = Some(news.next_step());
                Ok(Some(*news))
            }
            Ok(Answer::End(end)) => {
                self.ended = Some(end);
                match end.fault(&self.stream, Some(&self.program)) {
                    Some(fault) => Err(fault.into()),
                    None => Ok(None),
                }
            }
            Ok(other) => Err(Error::Nonsense(format!("{other:?}"))),
            Err(error) => {
                match &error {
                    Error::Fault(Fault::NoSuchBox { step, .. }) => {
                        self.next = Some(step.saturating_add(1));
                    }
                    // The request is still open. Keep it, or its answer would be lost.
                    Error::Fabric(error) if error.is_given_up() => self.late = Some(call),
                    _ => {}
                }
                Err(error)
            }
        }
    }

    fn ask(&self, deadline: Duration) -> Result<Call> {
        self.client.request_later(|ticket| Request::Watch {
            ticket,
            watch: self.id,
            timeout: millis(deadline),
        })
    }

    /// Returns the next news without waiting for a step, or `None` if there is none, or no more.
    ///
    /// # Errors
    /// As [`Watch::next`], except the deadline.
    pub fn try_next(&mut self) -> Result<Option<News>> {
        match self.next(Duration::ZERO) {
            Err(Error::Fault(Fault::NothingWritten { .. })) => Ok(None),
            other => other,
        }
    }

    /// Returns how the stream has ended, once this subscriber was told.
    pub fn end(&self) -> Option<EndOfStream> {
        self.ended
    }

    /// Returns the first step that was not reported, or `None` before any report.
    pub fn next_step(&self) -> Option<Step> {
        self.next
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // If the coordinator misses it, it learns of the end of this process.
        let _ = self.client.tell(Request::CloseWatch { watch: self.id });
    }
}
