//! Subscriptions: to be told when a box of a variable was written, without reading it.
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
//! A writer never waits for a subscription, and a step that is told of may be gone when somebody
//! looks. To see the bytes, read: [`Reading::only`](crate::Reading::only) takes only the steps in
//! which a box was written. What is promised is in [`protocol`](crate::protocol)'s `watch`.

use crate::array::Selection;
use crate::client::Client;
use crate::method::{Method, Settings};
use crate::protocol::{Answer, EndOfStream, Fault, Interest, News, Request, Start, Step, WatchId};
use crate::{Error, Result, SpaceError};
use samite_fabric::rpc::Call;
use std::sync::Arc;
use std::time::Duration;

/// News that may wait for a subscriber, where it does not say how many.
const USUAL: u32 = 1024;

/// What a subscriber waits for.
const WAITED_FOR: &str = "news of a box";

/// Longest wait: what is longer is meant for ever, and cannot be counted by all clocks.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How a box is to be watched; see [`Stage::watch`](crate::Stage::watch).
pub struct Watching {
    client: Arc<Client>,
    /// Its name in the domain; an edge that is not there is said when it is opened.
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
    id: WatchId,
    next: Option<Step>,
    /// A question that the coordinator did not answer in time.
    late: Option<Call>,
    ended: Option<EndOfStream>,
}

/// What a reader or a subscriber wants of a variable.
pub(crate) fn interest(variable: &str, region: impl Selection) -> Result<Interest> {
    // A box says its bounds without a shape, which is not known yet; what cannot is `..`, all of
    // the variable.
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

    /// Only this box of the variable, given by its bounds; else all of it, whatever its shape.
    pub fn region(mut self, region: impl Selection) -> Self {
        self.interest = self
            .interest
            .and_then(|asked| interest(&asked.variable, region));
        self
    }

    /// Where it begins; [`Start::Step`] with [`Watch::next_step`] goes on where another
    /// subscription has ended. Steps that are gone are told as missed.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Most news that wait, from 1 to [`MOST_NEWS`](crate::protocol::MOST_NEWS) (1024 where nothing
    /// is said); the oldest give way to a [`News::Missed`].
    pub fn queue(mut self, most: u32) -> Self {
        self.most = most;
        self
    }

    /// Subscribes. Waits for the stream to appear, not for the variable.
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
        match client.request("a stream to subscribe to", question)? {
            Answer::Watching { watch } => Ok(Watch {
                client,
                stream,
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
    /// What comes next; `None` after the last step of a stream that its writers have closed. Waits
    /// up to `deadline`.
    ///
    /// # Errors
    /// After the last step of a stream that has failed, every time: [`Fault::WriterFailed`].
    /// Nothing within the deadline: the error names whom the next step waits for. A box that lies
    /// outside the array of a step; the next call goes on after that step.
    pub fn next(&mut self, deadline: Duration) -> Result<Option<News>> {
        let deadline = deadline.min(LONGEST);
        let late = self.late.take();
        let was_late = late.is_some();
        let mut call = match late {
            Some(call) => call,
            None => self.ask(deadline)?,
        };
        let answer = self.client.answer_within(deadline, WAITED_FOR, &mut call);
        match answer {
            // So it was at the deadline of the call before.
            Err(Error::Fault(Fault::NothingWritten { .. })) if was_late => self.next(deadline),
            Ok(Answer::News(news)) => {
                self.next = Some(news.next_step());
                Ok(Some(*news))
            }
            Ok(Answer::End(end)) => {
                self.ended = Some(end);
                match end.fault(&self.stream) {
                    Some(fault) => Err(fault.into()),
                    None => Ok(None),
                }
            }
            Ok(other) => Err(Error::Nonsense(format!("{other:?}"))),
            Err(error) => {
                match &error {
                    Error::Fault(Fault::NoSuchBox { step, .. }) => self.next = Some(step + 1),
                    // The question is still open, and its answer would be lost.
                    Error::Fabric(samite_fabric::Error::Timeout { .. }) => self.late = Some(call),
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
            timeout: deadline.as_millis() as u64,
        })
    }

    /// What is there now, without waiting for a step; `None` when there is nothing, or nothing
    /// more.
    ///
    /// # Errors
    /// As [`Watch::next`], but for the deadline.
    pub fn try_next(&mut self) -> Result<Option<News>> {
        match self.next(Duration::ZERO) {
            Err(Error::Fault(Fault::NothingWritten { .. })) => Ok(None),
            other => other,
        }
    }

    /// How the stream has ended, once this subscriber was told.
    pub fn end(&self) -> Option<EndOfStream> {
        self.ended
    }

    /// The step from which on nothing has been told; `None` before anything has.
    pub fn next_step(&self) -> Option<Step> {
        self.next
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Who does not hear of it hears of the end of this process.
        let _ = self.client.tell(Request::CloseWatch { watch: self.id });
    }
}
