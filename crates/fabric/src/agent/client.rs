//! How a process asks the agent: a connection for each request, again if this process was too slow to say it.

use super::control::{
    Answer, DomainFacts, Request, address, check_credentials, has_come, receive, send, set_timeout,
    socket,
};
use super::jobs::{Roster, Wanted};
use crate::layout::{Cpus, own_cpus};
use crate::{Config, Error, Identity, PeerId, PeerInfo};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;
use samite_mem::{ExtentSource, OwnerProcess, PEERS_MAX, Span};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Who is to ask again does so after this time.
const AGAIN: Duration = Duration::from_millis(1);

/// Why the agent did not look at a request.
const TOO_SLOW: &str =
    "this process was stopped or starved each time that it wanted to say its request";

/// One request to the agent of `domain`, again if this process was too slow to say it (stopped, or starved).
fn ask(
    domain: &str,
    request: &Request,
    deadline: Duration,
) -> Result<(Answer, Vec<OwnedFd>), Error> {
    let start = Instant::now();
    loop {
        match ask_once(domain, request, deadline)? {
            (Answer::Late, _) if start.elapsed() < deadline => std::thread::sleep(AGAIN),
            answer => return Ok(answer),
        }
    }
}

fn failed(domain: &str) -> impl Fn(String) -> Error {
    move |why| Error::Join {
        domain: domain.to_owned(),
        why,
    }
}

fn ask_once(
    domain: &str,
    request: &Request,
    deadline: Duration,
) -> Result<(Answer, Vec<OwnedFd>), Error> {
    let socket = connect(domain, deadline)?;
    speak(domain, socket.as_fd(), request)
}

/// One request and its answer on a connection.
fn speak(
    domain: &str,
    socket: BorrowedFd<'_>,
    request: &Request,
) -> Result<(Answer, Vec<OwnedFd>), Error> {
    if let Err(error) = send(socket, request, &[]) {
        // The agent may have said why it does not listen.
        let said = has_come(socket, Duration::ZERO).then(|| receive(socket).ok());
        return said.flatten().ok_or_else(|| failed(domain)(error));
    }
    receive(socket).map_err(failed(domain))
}

fn connect(domain: &str, deadline: Duration) -> Result<OwnedFd, Error> {
    let fail = failed(domain);
    let socket = socket().map_err(|e| fail(e.to_string()))?;
    set_timeout(socket.as_fd(), deadline).map_err(&fail)?;
    let address = address(domain)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(|e| match e {
        rustix::io::Errno::CONNREFUSED => fail(
            "no agent listens under this name for this user; start one with \
             `samite agent --domain NAME` or let `samite run` do it"
                .to_owned(),
        ),
        e => fail(e.to_string()),
    })?;
    check_credentials(socket.as_fd()).map_err(fail)?;
    Ok(socket)
}

fn refused(domain: &str, answer: Answer) -> Error {
    match answer {
        Answer::OverBudget {
            asked,
            used,
            budget,
        } => Error::Budget {
            asked,
            used,
            budget,
        },
        Answer::Refused(why) => Error::Join {
            domain: domain.to_owned(),
            why,
        },
        Answer::Late => Error::Join {
            domain: domain.to_owned(),
            why: TOO_SLOW.into(),
        },
        other => Error::Join {
            domain: domain.to_owned(),
            why: format!("unexpected answer {other:?}"),
        },
    }
}

/// A place among the peers of a domain. Whoever drops it leaves, unless it is a fork of the process that joined.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) domain: String,
    pub(crate) peer: PeerId,
    pub(crate) incarnation: u32,
    owner: OwnerProcess,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        let request = Request::Leave {
            peer: self.peer,
            incarnation: self.incarnation,
        };
        if let Err(error) = ask(&self.domain, &request, Duration::from_secs(5)) {
            tracing::debug!(%error, "leaving was not heard; the agent notices the end of the process");
        }
    }
}

/// Asks for a seat; `map` makes of the descriptors of arena and table what the process will need. It is a member when this
/// returns.
pub(crate) fn join<T>(
    domain: &str,
    identity: &Identity,
    config: &Config,
    map: impl Fn(OwnedFd, OwnedFd) -> Result<T, Error>,
) -> Result<(Seat, T), Error> {
    let request = Request::Join {
        identity: identity.clone(),
        cpus: if config.background {
            Cpus::default()
        } else {
            own_cpus()
        },
    };
    let start = Instant::now();
    loop {
        let socket = connect(domain, config.deadline)?;
        let (peer, incarnation, fds) = match speak(domain, socket.as_fd(), &request)? {
            (Answer::Joined { peer, incarnation }, fds) if peer.index() < PEERS_MAX => {
                (peer, incarnation, fds)
            }
            (Answer::Late, _) if start.elapsed() < config.deadline => {
                std::thread::sleep(AGAIN);
                continue;
            }
            (answer, _) => return Err(refused(domain, answer)),
        };
        // Without a word the agent takes the seat back when the connection closes.
        let Ok([arena, table]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(failed(domain)("the agent sent no memory to map".into()));
        };
        let mapped = map(arena, table)?;
        // From here on it is this process that gives it up.
        let seat = Seat {
            domain: domain.to_owned(),
            peer,
            incarnation,
            owner: OwnerProcess::current(),
        };
        match speak(domain, socket.as_fd(), &Request::Confirm) {
            Ok((Answer::Done, _)) => return Ok((seat, mapped)),
            Ok((answer, _)) => return Err(refused(domain, answer)),
            // Stopped or starved for so long that the agent took the seat back.
            Err(_) if start.elapsed() < config.deadline => {}
            Err(error) => return Err(error),
        }
    }
}

/// A piece of a message that its receiver gave up, in the hands of who does not end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) holder: (PeerId, u32),
    /// Where the word is that divides the message.
    pub(crate) claim: u64,
}

/// Has the agent end the process that holds a piece.
pub(crate) fn evict(
    domain: &str,
    (peer, incarnation): (PeerId, u32),
    held: Held,
    deadline: Duration,
) -> Result<(), Error> {
    let request = Request::Evict {
        peer,
        incarnation,
        holder: held.holder,
        claim: held.claim,
    };
    match ask(domain, &request, deadline)? {
        (Answer::Done, _) => Ok(()),
        (answer, _) => Err(refused(domain, answer)),
    }
}

/// Asks for the state of a domain. With many peers it comes in parts, between which some may join or leave.
pub fn facts(domain: &str, deadline: Duration) -> Result<DomainFacts, Error> {
    let mut peers: Vec<PeerInfo> = Vec::new();
    loop {
        let after = peers.last().map(|info| info.peer);
        let (facts, more) = match ask(domain, &Request::Facts { after }, deadline)? {
            (Answer::Facts(facts, more), _) => (facts, more),
            (answer, _) => return Err(refused(domain, answer)),
        };
        peers.extend_from_slice(&facts.peers);
        // However often it says so, there are no more.
        if !more || facts.peers.is_empty() || peers.len() >= PEERS_MAX {
            return Ok(DomainFacts { peers, ..facts });
        }
    }
}

/// Waits until the agent of `domain` answers, at most `deadline`.
pub fn join_retrying(domain: &str, deadline: Duration) -> Result<DomainFacts, Error> {
    let start = Instant::now();
    loop {
        match facts(domain, deadline) {
            Err(error) if start.elapsed() >= deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
}

/// Tells the agent of `domain` that the process of a unit has ended: if it never joined, those that wait for it
/// hear at once that it will not. `name` is what people call the unit, `how` how it ended ("ended with exit code 3").
/// For whoever starts units.
///
/// # Errors
/// The agent does not answer within `deadline`.
pub fn unit_ended(
    domain: &str,
    job: &str,
    unit: u32,
    (name, how): (&str, &str),
    deadline: Duration,
) -> Result<(), Error> {
    let request = Request::Ended {
        job: job.to_owned(),
        unit,
        name: name.to_owned(),
        how: how.to_owned(),
    };
    match ask(domain, &request, deadline)? {
        (Answer::Done, _) => Ok(()),
        (answer, _) => Err(refused(domain, answer)),
    }
}

/// Whether all of whom `asker` wants have joined.
pub(crate) fn roster(
    domain: &str,
    asker: &Identity,
    wanted: &Wanted,
    deadline: Duration,
) -> Result<Roster, Error> {
    let request = Request::Roster {
        asker: asker.clone(),
        wanted: wanted.clone(),
    };
    match ask(domain, &request, deadline)? {
        (Answer::Roster(roster), _) => Ok(roster),
        (answer, _) => Err(refused(domain, answer)),
    }
}

/// How long one who has others to answer waits for the agent, which takes a tenth of that if nothing is wrong.
const SOON: Duration = Duration::from_millis(5);

/// After it was too busy to listen it is left in peace for so long by who has others to answer.
const PAUSE: Duration = Duration::from_millis(50);
/// So many answers are waited for at the same time: each takes a descriptor.
const TOLD_MAX: usize = 16;

/// Extents granted by the agent of the node.
#[derive(Debug)]
pub(crate) struct AgentExtents {
    domain: String,
    peer: PeerId,
    incarnation: u32,
    deadline: Duration,
    /// What was asked for in passing, and is not answered yet.
    asked: Option<Asked>,
    /// What the agent could not be told yet is free.
    owed: Vec<Span>,
    /// What it was told of, and where it answers that it has heard that.
    told: VecDeque<(Span, OwnedFd)>,
    /// When it last did not listen.
    deaf: Option<Instant>,
}

/// An extent of so many bytes, about which the agent says something here.
#[derive(Debug)]
struct Asked {
    bytes: u64,
    answer: OwnedFd,
    /// The answer was there at the last [`ExtentSource::tend`], and nobody has taken it.
    is_stale: bool,
}

impl AgentExtents {
    pub(crate) fn new(
        domain: &str,
        (peer, incarnation): (PeerId, u32),
        deadline: Duration,
    ) -> AgentExtents {
        AgentExtents {
            domain: domain.to_owned(),
            peer,
            incarnation,
            deadline,
            asked: None,
            owed: Vec::new(),
            told: VecDeque::new(),
            deaf: None,
        }
    }

    /// Says something to the agent, unless it did not listen just now; where its answer will be.
    fn say(&mut self, request: &Request) -> Result<OwnedFd, Error> {
        if self.deaf.is_some_and(|at| at.elapsed() < PAUSE) {
            return Err(failed(&self.domain)(
                "the agent does not listen; is it stopped?".into(),
            ));
        }
        let said = connect(&self.domain, SOON).and_then(|socket| {
            send(socket.as_fd(), request, &[]).map_err(failed(&self.domain))?;
            Ok(socket)
        });
        self.deaf = said.is_err().then(Instant::now);
        said
    }

    fn extent(&self, bytes: u64) -> Request {
        Request::Extent {
            peer: self.peer,
            incarnation: self.incarnation,
            bytes,
        }
    }

    /// Tells the agent what is free.
    fn pay(&mut self) {
        self.be_heard(Duration::ZERO);
        while self.told.len() < TOLD_MAX
            && let Some(&span) = self.owed.last()
        {
            let request = Request::GiveBack {
                peer: self.peer,
                incarnation: self.incarnation,
                offset: span.offset,
                bytes: span.bytes,
            };
            match self.say(&request) {
                Ok(answer) => self.told.push_back((span, answer)),
                Err(error) => {
                    // At the next opportunity. The agent gives everything back when this process ends.
                    return tracing::debug!(%error, "an extent could not be given back");
                }
            }
            self.owed.pop();
        }
    }

    /// Waits until the agent has heard what it was told. What it did not listen to is owed again.
    fn be_heard(&mut self, patience: Duration) {
        let start = Instant::now();
        while let Some((span, answer)) = self.told.front() {
            if !has_come(answer.as_fd(), patience.saturating_sub(start.elapsed())) {
                return;
            }
            match receive(answer.as_fd()) {
                Ok((Answer::Done, _)) => {}
                Ok((Answer::Late, _)) => self.owed.push(*span),
                // It may have heard it: what is given back twice could be somebody's by now.
                answer => tracing::warn!(?answer, "an extent could not be given back"),
            }
            self.told.pop_front();
        }
    }

    /// Waits for the answer to what was asked for in passing, and goes on waiting for it in a later call.
    fn answer(&mut self, asked: Asked, patience: Duration) -> Result<Span, samite_mem::Error> {
        if !has_come(asked.answer.as_fd(), patience) {
            self.asked = Some(asked);
            let why = "the agent has not answered yet; is it stopped?";
            return Err(samite_mem::Error::NoGrant(why.into()));
        }
        granted(receive(asked.answer.as_fd()).map_err(failed(&self.domain)))
    }
}

fn granted(answer: Result<(Answer, Vec<OwnedFd>), Error>) -> Result<Span, samite_mem::Error> {
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
        Ok((Answer::Late, _)) => Err(samite_mem::Error::NoGrant(TOO_SLOW.into())),
        Ok((Answer::Refused(why), _)) => Err(samite_mem::Error::NoGrant(why)),
        Ok((answer, _)) => Err(samite_mem::Error::NoGrant(format!(
            "unexpected answer {answer:?}"
        ))),
        Err(error) => Err(samite_mem::Error::NoGrant(error.to_string())),
    }
}

impl ExtentSource for AgentExtents {
    fn grant(&mut self, bytes: u64) -> Result<Span, samite_mem::Error> {
        let start = Instant::now();
        let deadline = self.deadline;
        let left = || deadline.saturating_sub(start.elapsed()).max(SOON);
        // What was given back counts.
        self.deaf = None;
        self.pay();
        while !self.told.is_empty() && start.elapsed() < deadline {
            self.be_heard(left());
            self.pay();
        }
        if let Some(asked) = self.asked.take_if(|asked| asked.bytes == bytes) {
            match self.answer(asked, left()) {
                // It was said too late, because this process was stopped in the midst of it: once more.
                Err(samite_mem::Error::NoGrant(_)) if self.asked.is_none() => {}
                answer => return answer,
            }
        }
        granted(ask(&self.domain, &self.extent(bytes), left()))
    }

    fn grant_soon(&mut self, bytes: u64) -> Result<Span, samite_mem::Error> {
        self.pay();
        let (asked, patience) = match self.asked.take() {
            Some(asked) => (asked, Duration::ZERO),
            None => {
                let answer = self.say(&self.extent(bytes));
                let answer =
                    answer.map_err(|error| samite_mem::Error::NoGrant(error.to_string()))?;
                let asked = Asked {
                    bytes,
                    answer,
                    is_stale: false,
                };
                (asked, SOON)
            }
        };
        let span = self.answer(asked, patience)?;
        if span.bytes < bytes {
            self.give_back(span);
            let why = "another length was asked for before";
            return Err(samite_mem::Error::NoGrant(why.into()));
        }
        Ok(span)
    }

    fn give_back(&mut self, extent: Span) {
        self.owed.push(extent);
        self.pay();
        self.be_heard(SOON);
    }

    fn tend(&mut self) {
        if !self.owed.is_empty() || !self.told.is_empty() {
            self.pay();
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
        // Who asked in passing tries again sooner, if it still needs it.
        if let Ok(span) = self.answer(asked, Duration::ZERO) {
            self.owed.push(span);
            self.pay();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// The agent has no patience the first time.
    #[test]
    fn who_was_too_slow_asks_again() {
        let domain = format!("too-slow-{}", std::process::id());
        let listener = socket().unwrap();
        rustix::net::bind(&listener, &address(&domain).unwrap()).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        let agent = std::thread::spawn(move || {
            for answer in [Answer::Late, Answer::Done] {
                let asked = rustix::net::accept(&listener).unwrap();
                receive::<Request>(asked.as_fd()).unwrap();
                send(asked.as_fd(), &answer, &[]).unwrap();
            }
        });
        let (answer, _) = ask(&domain, &Request::Facts { after: None }, LONG).unwrap();
        assert!(matches!(answer, Answer::Done), "{answer:?}");
        agent.join().unwrap();
    }

    /// The agent is stopped, for longer than anybody who has others to answer can wait. What was asked for in passing, and
    /// what was given back, is not lost, and nothing is asked for twice.
    #[test]
    fn nobody_who_has_others_to_answer_waits_for_the_agent() {
        let domain = format!("stopped-{}", std::process::id());
        let listener = socket().unwrap();
        rustix::net::bind(&listener, &address(&domain).unwrap()).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        let mut extents = AgentExtents::new(&domain, (PeerId(3), 1), LONG);
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
            extents.give_back(span);
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

    /// An agent that is told of a span, and does not listen the first time.
    #[test]
    fn what_was_given_back_and_not_listened_to_is_said_again() {
        let domain = format!("not-listening-{}", std::process::id());
        let listener = socket().unwrap();
        rustix::net::bind(&listener, &address(&domain).unwrap()).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        let mut extents = AgentExtents::new(&domain, (PeerId(3), 1), LONG);
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
        extents.give_back(span);
        for answer in [Answer::Late, Answer::Done] {
            let request = hear(answer);
            assert!(
                matches!(request, Request::GiveBack { offset, .. } if offset == span.offset),
                "{request:?}"
            );
            extents.tend();
        }
        extents.tend();
        assert!(!has_come(listener.as_fd(), Duration::ZERO), "once more");
        // What was asked for in passing, and nobody came back for.
        assert!(extents.grant_soon(100).is_err());
        let Span { offset, bytes } = span;
        hear(Answer::Granted { offset, bytes });
        extents.tend();
        assert!(!has_come(listener.as_fd(), Duration::ZERO), "too soon");
        extents.tend();
        let request = hear(Answer::Done);
        assert!(matches!(request, Request::GiveBack { .. }), "{request:?}");
    }

    /// What the agent could not be told, because it had no place for another caller, it is told later.
    #[test]
    fn what_the_agent_had_no_ear_for_is_said_later() {
        let domain = format!("no-ear-{}", std::process::id());
        let listener = socket().unwrap();
        rustix::net::bind(&listener, &address(&domain).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut extents = AgentExtents::new(&domain, (PeerId(3), 1), LONG);
        for extent in 1..=6 {
            extents.give_back(Span {
                offset: extent << 21,
                bytes: 2 << 20,
            });
        }
        let mut heard = std::collections::BTreeSet::new();
        while heard.len() < 6 {
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
}
