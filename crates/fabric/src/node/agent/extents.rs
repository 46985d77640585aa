//! How a process requests memory from the agent and returns it: at once if that takes no time,
//! otherwise without blocking, since others may be waiting for this process.

use super::client::{AGAIN, ask, connect};
use super::control::{Answer, Failure, Request, has_come, has_come_by, receive, send};
use crate::node::Slot;
use crate::waited::Left;
use rustix::fd::{AsFd, OwnedFd};
use samite_mem::{ExtentSource, Span};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a process that must answer others waits for the agent, which normally takes a tenth of
/// that.
const SOON: Duration = Duration::from_millis(5);

/// The pause after the agent could not be reached, for a process that must answer others.
const PAUSE: Duration = Duration::from_millis(50);
/// The most answers awaited at the same time: each takes a descriptor.
const RETURNING_MAX: usize = 16;

/// Extents granted by the agent of the node.
#[derive(Debug)]
pub(crate) struct AgentExtents {
    domain: String,
    peer: Slot,
    incarnation: u32,
    /// A request that is not answered yet.
    asked: Option<PendingExtent>,
    /// Extents to be returned.
    to_return: Vec<Span>,
    /// Extents that the agent was asked to take back, and the sockets for its answers.
    returning: VecDeque<(Span, OwnedFd)>,
    /// When the agent was last unreachable, and why.
    unreached: Option<(Instant, Failure)>,
}

/// An extent of so many bytes that was requested, and the socket for the agent's answer.
#[derive(Debug)]
struct PendingExtent {
    bytes: u64,
    answer: OwnedFd,
    /// Whether the answer had arrived at the last [`ExtentSource::tend`], and nobody has taken it.
    is_stale: bool,
}

impl AgentExtents {
    pub(crate) fn new(domain: &str, (peer, incarnation): (Slot, u32)) -> AgentExtents {
        AgentExtents {
            domain: domain.to_owned(),
            peer,
            incarnation,
            asked: None,
            to_return: Vec::new(),
            returning: VecDeque::new(),
            unreached: None,
        }
    }

    /// Sends a request to the agent, unless the agent was unreachable just now; returns the socket
    /// for its answer. It waits for a place in its queue of callers as long as time is left.
    fn send(&mut self, request: &Request, left: &mut Left) -> Result<OwnedFd, Failure> {
        if let Some((at, failure)) = &self.unreached
            && at.elapsed() < PAUSE
        {
            return Err(failure.clone());
        }
        self.send_by(connect(&self.domain, left), request)
    }

    /// Sends a request on a connection, if there is one. Fails even if the agent is alive, when it
    /// did not wait for this process to send.
    fn send_by(
        &mut self,
        socket: Result<OwnedFd, Failure>,
        request: &Request,
    ) -> Result<OwnedFd, Failure> {
        let failure = socket.as_ref().err().cloned();
        self.unreached = failure.map(|failure| (Instant::now(), failure));
        let socket = socket?;
        send(socket.as_fd(), request, &[])?;
        Ok(socket)
    }

    fn extent(&self, bytes: u64) -> Request {
        Request::Extent {
            peer: self.peer,
            incarnation: self.incarnation,
            bytes,
        }
    }

    /// Asks the agent to take back all extents that are to be returned.
    fn send_returns(&mut self, left: &mut Left) {
        self.collect_answers(&mut Left::new(Duration::ZERO));
        while self.returning.len() < RETURNING_MAX
            && let Some(&span) = self.to_return.last()
        {
            let request = Request::GiveBack {
                peer: self.peer,
                incarnation: self.incarnation,
                offset: span.offset,
                bytes: span.bytes,
            };
            match self.send(&request, left.at_least(SOON)) {
                Ok(answer) => self.returning.push_back((span, answer)),
                Err(error) => {
                    // Retried at the next opportunity. The agent takes everything back when this
                    // process ends.
                    return tracing::debug!(%error, "an extent could not be given back");
                }
            }
            self.to_return.pop();
        }
    }

    /// Returns all extents that are to be returned, while time is left: waits for a place in
    /// the agent's queue, and repeats what the agent did not read.
    fn return_all(&mut self, left: &mut Left) {
        loop {
            let is_done = self.to_return.is_empty() && self.returning.is_empty();
            if is_done || left.is_over() {
                return;
            }
            self.unreached = None;
            self.send_returns(left);
            if self.unreached.is_some() {
                // Memory cannot be requested either: the agent is gone, or the time is over.
                return;
            }
            self.collect_answers(left);
            if !self.to_return.is_empty() {
                std::thread::sleep(AGAIN);
            }
        }
    }

    /// Waits until the agent has taken back what it was asked to, while time is left. What
    /// it did not read is to be returned again.
    fn collect_answers(&mut self, left: &mut Left) {
        while let Some((span, answer)) = self.returning.front() {
            if !has_come_by(answer.as_fd(), left) {
                return;
            }
            match receive(answer.as_fd()) {
                Ok((Answer::Done, _)) => {}
                Ok((Answer::Again, _)) => self.to_return.push(*span),
                // It may have been taken back: returned twice, it could be another process's by
                // now.
                answer => tracing::warn!(?answer, "an extent could not be given back"),
            }
            self.returning.pop_front();
        }
    }

    /// Waits for the answer to an earlier request while time is left; a later call continues the
    /// wait.
    fn answer(&mut self, asked: PendingExtent, left: &mut Left) -> Result<Span, samite_mem::Error> {
        if !has_come_by(asked.answer.as_fd(), left) {
            self.asked = Some(asked);
            let why = "the agent has not answered yet; is it stopped?";
            return Err(samite_mem::Error::NoGrant(why.into()));
        }
        granted(receive(asked.answer.as_fd()))
    }
}

fn granted(answer: Result<(Answer, Vec<OwnedFd>), Failure>) -> Result<Span, samite_mem::Error> {
    match answer {
        Ok((Answer::Granted { offset, bytes }, _)) => Ok(Span { offset, bytes }),
        Ok((
            Answer::OverBudget {
                asked,
                used,
                budget,
            },
            _,
        )) => Err(samite_mem::Error::Budget {
            asked,
            used,
            budget,
        }),
        Ok((Answer::Again, _)) => Err(unreached(&Failure::TooSlow)),
        Ok((Answer::Refused(why), _)) => Err(samite_mem::Error::NoGrant(why)),
        Ok((answer, _)) => Err(samite_mem::Error::NoGrant(format!(
            "unexpected answer {answer:?}"
        ))),
        Err(failure) => Err(unreached(&failure)),
    }
}

/// Returns the error of a member that has no answer from its agent.
fn unreached(failure: &Failure) -> samite_mem::Error {
    samite_mem::Error::NoGrant(match failure {
        Failure::NoAgent | Failure::Closed => "it is gone; start the job again".to_owned(),
        other => other.to_string(),
    })
}

impl ExtentSource for AgentExtents {
    fn grant(&mut self, bytes: u64, deadline: Duration) -> Result<Span, samite_mem::Error> {
        let left = &mut Left::new(deadline);
        // Extents that this process has returned count as its own until the agent has taken them.
        self.return_all(left);
        if let Some(asked) = self.asked.take_if(|asked| asked.bytes == bytes) {
            match self.answer(asked, left.at_least(SOON)) {
                // This process was stopped while sending the request, so it was not read: try
                // again.
                Err(samite_mem::Error::NoGrant(_)) if self.asked.is_none() => {}
                answer => return answer,
            }
        }
        granted(ask(&self.domain, &self.extent(bytes), left.at_least(SOON)))
    }

    fn grant_soon(&mut self, bytes: u64) -> Result<Span, samite_mem::Error> {
        self.send_returns(&mut Left::new(SOON));
        let (asked, at_most) = match self.asked.take() {
            Some(asked) => (asked, Duration::ZERO),
            None => {
                let answer = self.send(&self.extent(bytes), &mut Left::new(SOON));
                let answer = answer.map_err(|failure| unreached(&failure))?;
                let asked = PendingExtent {
                    bytes,
                    answer,
                    is_stale: false,
                };
                (asked, SOON)
            }
        };
        let span = self.answer(asked, &mut Left::new(at_most))?;
        if span.bytes < bytes {
            self.give_back(vec![span]);
            let why = "another length was asked for before";
            return Err(samite_mem::Error::NoGrant(why.into()));
        }
        Ok(span)
    }

    fn give_back(&mut self, extents: Vec<Span>) {
        self.to_return.extend(extents);
        let left = &mut Left::new(SOON);
        self.send_returns(left);
        self.collect_answers(left);
    }

    fn tend(&mut self) {
        if !self.to_return.is_empty() || !self.returning.is_empty() {
            self.send_returns(&mut Left::new(SOON));
        }
        let Some(mut asked) = self
            .asked
            .take_if(|asked| has_come(asked.answer.as_fd(), Duration::ZERO))
        else {
            return;
        };
        if !std::mem::replace(&mut asked.is_stale, true) {
            self.asked = Some(asked);
            return;
        }
        // If the extent were still needed, it would have been requested again by now.
        if let Ok(span) = self.answer(asked, &mut Left::new(Duration::ZERO)) {
            self.to_return.push(span);
            self.send_returns(&mut Left::new(SOON));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::bind;
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// Returns an agent played by the test, with a queue for so many callers that it has not
    /// accepted, and its client.
    fn ends(name: &str, backlog: i32) -> (OwnedFd, AgentExtents) {
        let domain = format!("{name}-{}", std::process::id());
        let listener = bind(&domain, backlog).unwrap();
        (listener, AgentExtents::new(&domain, (Slot(3), 1)))
    }

    /// A wait for memory keeps the deadline of its caller, and says what happened to a member, not
    /// to a process that wants to join.
    #[test]
    fn a_wait_for_memory_keeps_the_deadline_of_its_caller() {
        let (listener, mut extents) = ends("silent", 8);
        let brief = Duration::from_millis(20);
        let late = extents.grant(100, brief);
        assert!(
            late.unwrap_err()
                .to_string()
                .contains("is the agent stopped?")
        );
        drop(listener);
        let gone = extents.grant(100, brief).unwrap_err().to_string();
        assert!(gone.ends_with("it is gone; start the job again"), "{gone}");
    }

    /// The agent answers at about the deadline: the process has heard what the agent could send.
    #[test]
    fn a_grant_at_the_deadline_is_heard_or_taken_back() {
        const ROUNDS: u32 = 300;
        let (listener, mut extents) = ends("at-the-deadline", 8);
        let deadline = Duration::from_millis(8);
        let agent = std::thread::spawn(move || {
            let mut granted = 0;
            for round in 0.. {
                let asked = rustix::net::accept(&listener).unwrap();
                let (request, _) = receive::<Request>(asked.as_fd()).unwrap();
                if !matches!(request, Request::Extent { .. }) {
                    break;
                }
                let early = Duration::from_micros(round % 100 * 5);
                std::thread::sleep(deadline.saturating_sub(early));
                let answer = Answer::Granted {
                    offset: 2 << 20,
                    bytes: 2 << 20,
                };
                granted += u32::from(send(asked.as_fd(), &answer, &[]).is_ok());
            }
            granted
        });
        let heard = (0..ROUNDS).map(|_| u32::from(extents.grant(100, deadline).is_ok()));
        let heard: u32 = heard.sum();
        let end = extents.send(&Request::Facts { after: None }, &mut Left::new(LONG));
        assert_eq!(agent.join().unwrap(), heard);
        end.unwrap();
    }

    /// The agent is stopped for longer than a process that must answer others can wait. What was
    /// requested, and what was returned, is not lost, and nothing is requested twice.
    #[test]
    fn nobody_who_has_others_to_answer_waits_for_the_agent() {
        let (listener, mut extents) = ends("stopped", 8);
        for _ in 0..20 {
            let refused = extents.grant_soon(100);
            assert!(
                matches!(refused, Err(samite_mem::Error::NoGrant(_))),
                "{refused:?}"
            );
        }
        let free = [2, 4].map(|offset| Span {
            offset: offset << 20,
            bytes: 2 << 20,
        });
        for span in free {
            extents.give_back(vec![span]);
        }
        let mut heard = Vec::new();
        while has_come(listener.as_fd(), Duration::ZERO) {
            let asked = rustix::net::accept(&listener).unwrap();
            let (request, _) = receive::<Request>(asked.as_fd()).unwrap();
            let answer = match request {
                Request::Extent { bytes: 100, .. } => Answer::Granted {
                    offset: 8 << 20,
                    bytes: 2 << 20,
                },
                Request::GiveBack { offset, .. } => {
                    heard.push(offset >> 20);
                    Answer::Done
                }
                other => panic!("{other:?}"),
            };
            let _ = send(asked.as_fd(), &answer, &[]);
        }
        assert_eq!(heard, [2, 4]);
        let granted = extents.grant_soon(100).unwrap();
        assert_eq!((granted.offset, granted.bytes), (8 << 20, 2 << 20));
    }

    /// An agent that is told of a span, and does not read the first message.
    #[test]
    fn what_was_given_back_and_not_listened_to_is_said_again() {
        let (listener, mut extents) = ends("not-listening", 8);
        let span = Span {
            offset: 2 << 20,
            bytes: 2 << 20,
        };
        let hear = |answer: Answer| {
            assert!(has_come(listener.as_fd(), LONG), "nothing was said");
            let asked = rustix::net::accept(&listener).unwrap();
            let (request, _) = receive::<Request>(asked.as_fd()).unwrap();
            send(asked.as_fd(), &answer, &[]).unwrap();
            request
        };
        extents.give_back(vec![span]);
        for answer in [Answer::Again, Answer::Done] {
            let request = hear(answer);
            assert!(
                matches!(request, Request::GiveBack { offset, .. } if offset == span.offset),
                "{request:?}"
            );
            extents.tend();
        }
        extents.tend();
        assert!(!has_come(listener.as_fd(), Duration::ZERO), "once more");
        // A request that was not waited for, and whose answer nobody fetched.
        assert!(extents.grant_soon(100).is_err());
        let Span { offset, bytes } = span;
        hear(Answer::Granted { offset, bytes });
        extents.tend();
        assert!(!has_come(listener.as_fd(), Duration::ZERO), "too soon");
        extents.tend();
        let request = hear(Answer::Done);
        assert!(matches!(request, Request::GiveBack { .. }), "{request:?}");
    }

    /// What could not be sent because the agent's queue was full is sent later.
    #[test]
    fn what_could_not_be_sent_is_sent_later() {
        let (listener, mut extents) = ends("full", 1);
        for extent in 1..=6 {
            extents.give_back(vec![Span {
                offset: extent << 21,
                bytes: 2 << 20,
            }]);
        }
        let mut heard = std::collections::BTreeSet::new();
        let start = Instant::now();
        while heard.len() < 6 {
            assert!(start.elapsed() < 6 * LONG, "only {heard:?}");
            while has_come(listener.as_fd(), Duration::from_millis(1)) {
                let asked = rustix::net::accept(&listener).unwrap();
                match receive::<Request>(asked.as_fd()).unwrap().0 {
                    Request::GiveBack { offset, .. } => assert!(heard.insert(offset), "twice"),
                    other => panic!("{other:?}"),
                }
                send(asked.as_fd(), &Answer::Done, &[]).unwrap();
            }
            extents.tend();
        }
    }

    /// The agent is alive, but did not wait for a process that was stopped between connecting and
    /// sending: that process may try again at once.
    #[test]
    fn who_was_too_slow_to_speak_speaks_again() {
        let (listener, mut extents) = ends("too-slow", 8);
        let span = Span {
            offset: 2 << 20,
            bytes: 2 << 20,
        };
        let socket = connect(&extents.domain, &mut Left::new(LONG));
        let turned_away = rustix::net::accept(&listener).unwrap();
        crate::node::agent::control::turn_away(turned_away.as_fd(), &Answer::Again);
        drop(turned_away);
        let request = extents.extent(100);
        assert!(extents.send_by(socket, &request).is_err());
        assert!(extents.unreached.is_none());
        extents.give_back(vec![span]);
        assert_eq!(extents.to_return, [], "it does not count as unreached");
        assert!(has_come(listener.as_fd(), LONG));
    }

    /// `grant` returns every extent before it requests more, including those for which the agent's
    /// queue had no place, and those that it answered with `Again`.
    #[test]
    fn what_is_given_back_is_back_before_more_is_asked_for() {
        let (listener, mut extents) = ends("before", 1);
        let domain = extents.domain.clone();
        let span = |extent: u64| Span {
            offset: extent << 21,
            bytes: 2 << 20,
        };
        let hear = |answer: Answer| {
            assert!(has_come(listener.as_fd(), LONG), "nothing was said");
            let asked = rustix::net::accept(&listener).unwrap();
            let (request, _) = receive::<Request>(asked.as_fd()).unwrap();
            send(asked.as_fd(), &answer, &[]).unwrap();
            request
        };
        // Others take all places, so nothing of this is sent.
        let others: Vec<_> =
            std::iter::from_fn(|| connect(&domain, &mut Left::new(SOON)).ok()).collect();
        extents.give_back(vec![span(1)]);
        assert_eq!(extents.to_return, [span(1)]);
        std::thread::scope(|threads| {
            let asks = threads.spawn(|| extents.grant(100, LONG).unwrap());
            // For much longer than a process that must answer others would wait.
            assert!(connect(&domain, &mut Left::new(10 * SOON)).is_err());
            for _ in others {
                drop(rustix::net::accept(&listener).unwrap());
            }
            for answer in [Answer::Again, Answer::Done] {
                let request = hear(answer);
                let is_it =
                    matches!(request, Request::GiveBack { offset, .. } if offset == span(1).offset);
                assert!(is_it, "{request:?}");
            }
            let Span { offset, bytes } = span(2);
            let request = hear(Answer::Granted { offset, bytes });
            assert!(matches!(request, Request::Extent { .. }), "{request:?}");
            assert_eq!(asks.join().unwrap(), span(2));
        });
    }
}
