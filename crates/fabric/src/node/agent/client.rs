//! How a process sends requests to the agent: one connection per request, and another try if this
//! process was too slow to send it. Requests for memory are in `extents`.

use super::control::{
    Answer, DomainFacts, Failure, Request, address, check_credentials, has_come, has_come_by,
    receive, send, set_timeout, socket,
};
use super::jobs::{Roster, Wanted};
use super::nodes::Far;
use crate::node::{Cpus, Slot, own_cpus};
use crate::waited::Left;
use crate::{Config, Error, Identity, PeerInfo};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::Shutdown;
use samite_mem::{OwnerProcess, PEERS_MAX};
use std::time::Duration;

/// How long a process that leaves waits for the agent.
const LEAVING: Duration = Duration::from_secs(5);
/// The pause before a request is repeated.
pub(super) const AGAIN: Duration = Duration::from_millis(1);

/// Sends one request to the agent of `domain`, and repeats it if this process was too slow to send
/// it (stopped, or starved).
pub(super) fn ask(
    domain: &str,
    request: &Request,
    left: &mut Left,
) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    loop {
        match ask_once(domain, request, left.at_least(AGAIN))? {
            (Answer::Again, _) if !left.is_over() => std::thread::sleep(AGAIN),
            answer => return Ok(answer),
        }
    }
}

fn ask_once(
    domain: &str,
    request: &Request,
    left: &mut Left,
) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    let socket = connect(domain, left)?;
    match speak(socket.as_fd(), request, left) {
        Err(Failure::NoAnswer) => last_answer(socket.as_fd()),
        answer => answer,
    }
}

/// Ends the wait for an answer; returns the answer if it has arrived meanwhile. From now on the
/// agent cannot send it, and takes back what it granted: no grant is lost in between.
fn last_answer(socket: BorrowedFd<'_>) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    rustix::net::shutdown(socket, Shutdown::Read).map_err(Failure::of)?;
    // This no longer waits.
    match receive(socket) {
        Err(Failure::Closed) => Err(Failure::NoAnswer),
        answer => answer,
    }
}

/// Sends one request on a connection, and waits for its answer as long as time is left.
fn speak(
    socket: BorrowedFd<'_>,
    request: &Request,
    left: &mut Left,
) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    if let Err(error) = send(socket, request, &[]) {
        // The agent may have said why it refuses the connection.
        let said = has_come(socket, Duration::ZERO).then(|| receive(socket).ok());
        return said.flatten().ok_or(error);
    }
    match has_come_by(socket, left) {
        true => receive(socket),
        false => Err(Failure::NoAnswer),
    }
}

/// Connects to the agent: waits for a place in its queue of callers as long as time is left, at
/// least [`AGAIN`].
pub(super) fn connect(domain: &str, left: &mut Left) -> Result<OwnedFd, Failure> {
    left.at_least(AGAIN);
    let socket = socket().map_err(|e| Failure::Other(e.to_string()))?;
    let address = address(domain).map_err(Failure::Other)?;
    loop {
        // In pieces, as in `has_come_by`. The kernel takes 0 for no end.
        set_timeout(socket.as_fd(), left.piece().max(AGAIN)).map_err(Failure::Other)?;
        match rustix::net::connect(&socket, &address) {
            Err(Errno::INTR | Errno::AGAIN) if !left.get().is_zero() => {}
            Err(Errno::INTR) => return Err(Failure::NoAnswer),
            connected => break connected.map_err(Failure::of)?,
        }
    }
    check_credentials(socket.as_fd()).map_err(Failure::Other)?;
    Ok(socket)
}

fn refused(answer: Answer) -> Failure {
    match answer {
        Answer::Refused(why) => Failure::Other(why),
        Answer::Again => Failure::TooSlow,
        other => Failure::Other(format!("unexpected answer {other:?}")),
    }
}

/// A seat among the peers of a domain. Dropping it leaves the domain, except in a fork of the
/// process that joined.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) domain: String,
    pub(crate) peer: Slot,
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
        let heard = match ask(&self.domain, &request, &mut Left::new(LEAVING)) {
            Ok((Answer::Done, _)) => return,
            Ok((answer, _)) => refused(answer),
            Err(failure) => failure,
        };
        tracing::debug!(error = %heard, "leaving was not heard; the agent notices the end of the process");
    }
}

/// What a process maps that joins.
pub(crate) struct Memory {
    pub(crate) arena: OwnedFd,
    pub(crate) table: OwnedFd,
    /// In a domain of several nodes: the table of other nodes' units, and how they are reached.
    pub(crate) far: Option<(OwnedFd, Far)>,
}

/// Asks for a seat; `map` turns the descriptors into what the process needs, and returns the
/// address by which units of other nodes reach it. The process is a member when this returns.
pub(crate) fn join<T>(
    domain: &str,
    identity: &Identity,
    config: &Config,
    map: impl Fn(Memory) -> Result<(T, Vec<u8>), Error>,
) -> Result<(Seat, T), Error> {
    let request = Request::Join {
        identity: identity.clone(),
        cpus: if config.background {
            Cpus::default()
        } else {
            own_cpus()
        },
    };
    let left = &mut Left::new(config.deadline);
    loop {
        let fail = |failure: Failure| failure.of_joining(domain);
        let socket = connect(domain, left).map_err(fail)?;
        let joined = speak(socket.as_fd(), &request, left.at_least(AGAIN)).map_err(fail)?;
        let (peer, incarnation, far, fds) = match joined {
            (
                Answer::Joined {
                    peer,
                    incarnation,
                    far,
                },
                fds,
            ) if peer.index() < PEERS_MAX => (peer, incarnation, far, fds),
            (Answer::Again, _) if !left.is_over() => {
                std::thread::sleep(AGAIN);
                continue;
            }
            (answer, _) => return Err(fail(refused(answer))),
        };
        // If this process does not confirm, the agent takes the seat back when the connection
        // closes.
        let mut fds = fds.into_iter();
        let (Some(arena), Some(table)) = (fds.next(), fds.next()) else {
            return Err(fail(Failure::Other(
                "the agent sent no memory to map".into(),
            )));
        };
        let memory = Memory {
            arena,
            table,
            far: fds.next().zip(far),
        };
        let (mapped, address) = map(memory)?;
        // From here on this process has to give the seat up itself.
        let seat = Seat {
            domain: domain.to_owned(),
            peer,
            incarnation,
            owner: OwnerProcess::current(),
        };
        match speak(
            socket.as_fd(),
            &Request::Confirm { address },
            left.at_least(AGAIN),
        ) {
            Ok((Answer::Done, _)) => return Ok((seat, mapped)),
            Ok((answer, _)) => return Err(fail(refused(answer))),
            // This process was stopped or starved for so long that the agent took the seat back.
            Err(_) if !left.is_over() => std::thread::sleep(AGAIN),
            Err(failure) => return Err(fail(failure)),
        }
    }
}

/// A piece of a message that its receiver gave up, held by a process that does not finish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedPiece {
    pub(crate) holder: (Slot, u32),
    /// Offset of the claim word of the message.
    pub(crate) claim: u64,
}

/// Asks the agent to end the process that holds a piece.
pub(crate) fn evict(
    domain: &str,
    (peer, incarnation): (Slot, u32),
    held: ClaimedPiece,
    deadline: Duration,
) -> Result<(), Error> {
    let request = Request::Evict {
        peer,
        incarnation,
        holder: held.holder,
        claim: held.claim,
    };
    match ask(domain, &request, &mut Left::new(deadline)) {
        Ok((Answer::Done, _)) => Ok(()),
        Ok((answer, _)) => Err(refused(answer).of_member(domain, deadline)),
        Err(failure) => Err(failure.of_member(domain, deadline)),
    }
}

/// Asks for the state of a domain. With many peers it comes in parts, between which peers may join
/// or leave. `deadline` is that of all parts.
pub fn facts(domain: &str, deadline: Duration) -> Result<DomainFacts, Error> {
    facts_within(domain, &mut Left::new(deadline))
}

fn facts_within(domain: &str, left: &mut Left) -> Result<DomainFacts, Error> {
    let mut peers: Vec<PeerInfo> = Vec::new();
    loop {
        let after = peers.last().map(|info| info.peer);
        let (facts, more) = match ask(domain, &Request::Facts { after }, left) {
            Ok((Answer::Facts(facts, more), _)) => (facts, more),
            Ok((answer, _)) => return Err(refused(answer).of_joining(domain)),
            Err(failure) => return Err(failure.of_joining(domain)),
        };
        peers.extend_from_slice(&facts.peers);
        // There can be no more, whatever the agent says.
        if !more || facts.peers.is_empty() || peers.len() >= PEERS_MAX {
            return Ok(DomainFacts { peers, ..facts });
        }
    }
}

/// Waits until the agent of `domain` answers, at most `deadline`.
pub fn join_retrying(domain: &str, deadline: Duration) -> Result<DomainFacts, Error> {
    let left = &mut Left::new(deadline);
    loop {
        match facts_within(domain, left) {
            Err(error) if left.is_over() => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
}

/// Tells the agent of `domain` that the process of a unit has ended: if it never joined, processes
/// that wait for it learn at once that it will not. `name` is the unit's display name, `how` how it
/// ended ("ended with exit code 3"). For programs that start units.
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
    match ask(domain, &request, &mut Left::new(deadline)) {
        Ok((Answer::Done, _)) => Ok(()),
        Ok((answer, _)) => Err(refused(answer).of_joining(domain)),
        Err(failure) => Err(failure.of_joining(domain)),
    }
}

/// Asks whether all units that `asker` wants have joined.
pub(crate) fn roster(
    domain: &str,
    asker: &Identity,
    wanted: &Wanted,
    left: &mut Left,
) -> Result<Roster, Error> {
    let deadline = left.deadline();
    let request = Request::Roster {
        asker: asker.clone(),
        wanted: wanted.clone(),
    };
    match ask(domain, &request, left) {
        Ok((Answer::Roster(roster), _)) => Ok(roster),
        Ok((answer, _)) => Err(refused(answer).of_member(domain, deadline)),
        Err(failure) => Err(failure.of_member(domain, deadline)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::bind;
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// The agent does not accept the first request.
    #[test]
    fn who_was_too_slow_asks_again() {
        let domain = format!("too-slow-{}", std::process::id());
        let listener = bind(&domain, 4).unwrap();
        let agent = std::thread::spawn(move || {
            for answer in [Answer::Again, Answer::Done] {
                let asked = rustix::net::accept(&listener).unwrap();
                receive::<Request>(asked.as_fd()).unwrap();
                send(asked.as_fd(), &answer, &[]).unwrap();
            }
        });
        let (answer, _) = ask(
            &domain,
            &Request::Facts { after: None },
            &mut Left::new(LONG),
        )
        .unwrap();
        assert!(matches!(answer, Answer::Done), "{answer:?}");
        agent.join().unwrap();
    }

    /// At the deadline, an answer has either arrived or can no longer be sent.
    #[test]
    fn no_answer_is_lost_at_the_deadline() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = || socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let granted = Answer::Granted {
            offset: 2 << 20,
            bytes: 2 << 20,
        };
        let (here, there) = pair();
        send(there.as_fd(), &granted, &[]).unwrap();
        let heard = last_answer(here.as_fd());
        assert!(
            matches!(heard, Ok((Answer::Granted { .. }, _))),
            "{heard:?}"
        );
        let (here, there) = pair();
        assert_eq!(last_answer(here.as_fd()).err(), Some(Failure::NoAnswer));
        assert_eq!(send(there.as_fd(), &granted, &[]), Err(Failure::Closed));
    }
}
