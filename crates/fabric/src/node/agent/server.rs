//! The agent's loop: one thread, one `poll`. It never waits for a single caller: a silent
//! connection stays in the set until its time is over.

use super::control::{self, Answer, DomainFacts, Request};
use super::listener::Listener;
use super::node::{Member, Node};
use super::nodes::{self, Network, Nodes};
use crate::Error;
use crate::membership::NodeLife;
use crate::node::{Others, SAID_MAX};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name of the domain.
    pub domain: String,
    /// Budget of shared memory in bytes, for all processes of the domain on this node.
    pub budget: u64,
    /// How this node is one of several; `None`: it is the only one of its domain.
    pub network: Option<Network>,
}

/// A connection that awaits one request.
#[derive(Debug)]
struct Caller {
    socket: OwnedFd,
    /// Its process, or the reason for refusing it.
    pid: Result<i32, String>,
    until: Instant,
    /// The seat that it was offered, but has not confirmed yet. Others do not see it.
    seat: Option<Member>,
}

/// The most candidates between the answer to `Join` and their `Confirm`: each has one descriptor
/// more than a member.
const CANDIDATES_MAX: usize = 8;
/// The time for a candidate to confirm: one that was stopped asks again.
const CANDIDATE_TIME: Duration = Duration::from_secs(5);
/// The most silent callers; the one that has been silent for longest makes room for the next.
const SILENT_MAX: usize = 8;
/// The longest time for which a caller may be silent.
const SILENT_TIME: Duration = Duration::from_millis(500);

/// The agent of a domain.
#[derive(Debug)]
struct Server {
    domain: String,
    node: Node,
    /// The other nodes of the domain.
    nodes: Option<Nodes>,
    listener: Listener,
    callers: Vec<Caller>,
}

/// Runs the agent of a domain until it is told to stop (SIGTERM) or `samite run` ends. Calls
/// `ready` once it can be reached.
pub fn run(config: &AgentConfig, ready: impl FnOnce()) -> Result<(), Error> {
    let fail = |why: String| Error::Join {
        domain: config.domain.clone(),
        why,
    };
    // The name first: a second agent of the same name should not become a node.
    let listener = control::bind(&config.domain, 128)?;
    let (nodes, life) = match &config.network {
        Some(network) => {
            let (nodes, life) = Nodes::begin(&config.domain, network)?;
            (Some(nodes), life)
        }
        None => (None, NodeLife::HEAD),
    };
    let node = Node::create(life, config.budget)?;
    ready();
    tracing::info!(
        domain = config.domain,
        budget = config.budget,
        "agent ready"
    );
    let mut server = Server {
        domain: config.domain.clone(),
        node,
        nodes,
        listener: Listener::new(listener),
        callers: Vec::new(),
    };
    loop {
        server.turn().map_err(fail)?;
    }
}

impl Server {
    /// Waits for one event and acts on it.
    fn turn(&mut self) -> Result<(), String> {
        let mut fds = vec![self.listener.poll_fd()];
        let callers = self.callers.iter();
        fds.extend(callers.map(|caller| PollFd::new(&caller.socket, PollFlags::IN)));
        let mut watched = Vec::new();
        for (index, member) in self.node.members().iter().enumerate() {
            if let Some(pidfd) = &member.pidfd {
                fds.push(PollFd::new(pidfd, PollFlags::IN));
                watched.push(index);
            }
        }
        let of_node = fds.len();
        fds.extend(self.nodes.iter().flat_map(Nodes::poll_fds));
        // Three things happen by time: reclamation is retried (survivors report through memory what
        // they have seen), silent callers are dismissed, and agents exchange beats.
        let retry = Duration::from_millis(20);
        let timed = self.node.is_reclaiming() || !self.callers.is_empty();
        let beat = self.nodes.as_ref().map(Nodes::wakes_in);
        let at_most = [timed.then_some(retry), beat, self.listener.resumes_in()];
        let at_most = at_most.into_iter().flatten().min();
        let at_most = at_most.map(nodes::timespec);
        match rustix::event::poll(&mut fds, at_most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        let of_nodes = fds[of_node..].iter();
        let of_nodes: Vec<bool> = of_nodes.map(|fd| !fd.revents().is_empty()).collect();
        let connection = !fds[0].revents().is_empty();
        let (of_callers, of_members) = fds[1..of_node].split_at(self.callers.len());
        let spoke = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let spoke: Vec<bool> = of_callers.iter().map(spoke).collect();
        let mut dead: Vec<usize> = watched
            .into_iter()
            .zip(of_members)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(index, _)| index)
            .collect();
        drop(fds);
        // Highest first: `lose` swaps the last member into the hole.
        dead.sort_unstable_by(|a, b| b.cmp(a));
        for index in dead {
            self.node.lose(index);
        }
        let now = Instant::now();
        for (caller, spoke) in std::mem::take(&mut self.callers).into_iter().zip(spoke) {
            if spoke || now >= caller.until {
                self.hear(caller, spoke);
            } else {
                self.callers.push(caller);
            }
        }
        self.node.reclaim();
        if connection {
            self.accept();
        }
        match &mut self.nodes {
            Some(nodes) => nodes.serve(&of_nodes, &mut self.node),
            None => Ok(()),
        }
    }

    fn candidates(&self) -> usize {
        let callers = self.callers.iter();
        callers.filter(|caller| caller.seat.is_some()).count()
    }

    /// Accepts a connection, and reads what was sent on it already.
    fn accept(&mut self) {
        let Some(socket) = self.listener.accept() else {
            return;
        };
        let pid = control::set_timeout(socket.as_fd(), SILENT_TIME)
            .and_then(|()| control::check_credentials(socket.as_fd()));
        let caller = Caller {
            socket,
            pid,
            until: Instant::now() + SILENT_TIME,
            seat: None,
        };
        if control::has_come(caller.socket.as_fd(), Duration::ZERO) {
            return self.hear(caller, true);
        }
        if self.callers.len() - self.candidates() >= SILENT_MAX
            && let Some(oldest) = self.callers.iter().position(|one| one.seat.is_none())
        {
            let oldest = self.callers.remove(oldest);
            self.hear(oldest, false);
        }
        self.callers.push(caller);
    }

    /// Answers a caller that has sent its request, or whose time is over.
    fn hear(&mut self, caller: Caller, spoke: bool) {
        let Caller {
            socket, pid, seat, ..
        } = caller;
        // What was sent since the last poll still counts.
        let spoke = spoke || control::has_come(socket.as_fd(), Duration::ZERO);
        if let Some(member) = seat {
            return self.confirm(member, &socket, spoke);
        }
        if !spoke {
            let answer = pid.map_or_else(Answer::Refused, |_| Answer::Again);
            return control::turn_away(socket.as_fd(), &answer);
        }
        // Read even if the caller is refused: closing a connection with unread data would lose the
        // answer.
        let request = control::receive::<Request>(socket.as_fd());
        let request = request.map_err(|failure| failure.to_string());
        let (request, pid) = match (request, pid) {
            (Ok((request, _)), Ok(pid)) => (request, pid),
            (_, Err(why)) | (Err(why), _) => {
                let _ = control::send(socket.as_fd(), &Answer::Refused(why), &[]);
                return;
            }
        };
        let answer = match request {
            Request::Join { .. } if self.candidates() >= CANDIDATES_MAX => Ok(Answer::Again),
            Request::Join { identity, cpus } => match self.node.candidate(pid, &cpus, &identity) {
                Ok(member) => return self.invite(member, socket, pid),
                Err(why) => Err(why),
            },
            Request::Extent {
                peer, incarnation, ..
            } => return self.grant(request, (peer, incarnation), &socket, pid),
            request => self.node.answer(&self.domain, request, pid),
        };
        let answer = answer.map(|answer| match (answer, &self.nodes) {
            (Answer::Facts(facts, more), Some(nodes)) => {
                let nodes = nodes.facts();
                Answer::Facts(DomainFacts { nodes, ..facts }, more)
            }
            (answer, _) => answer,
        });
        let answer = answer.unwrap_or_else(Answer::Refused);
        if let Err(error) = control::send(socket.as_fd(), &answer, &[]) {
            tracing::debug!(%error, "an answer could not be sent; its process is gone");
        }
    }

    /// Grants an extent. If the answer cannot be delivered, the extent is freed again: the
    /// requester does not know that it has it.
    fn grant(&mut self, request: Request, life: super::Life, socket: &OwnedFd, pid: i32) {
        let answer = self.node.answer(&self.domain, request, pid);
        let answer = answer.unwrap_or_else(Answer::Refused);
        if let Err(error) = control::send(socket.as_fd(), &answer, &[]) {
            tracing::debug!(%error, "whoever asked for an extent is not there any more");
            if let Answer::Granted { offset, bytes } = answer {
                self.node
                    .give_back(life, samite_mem::Span { offset, bytes });
            }
        }
    }

    /// Offers a process its seat; it is a member once it has confirmed.
    fn invite(&mut self, member: Member, socket: OwnedFd, pid: i32) {
        let answer = Answer::Joined {
            peer: member.peer,
            incarnation: member.incarnation,
            far: self.nodes.as_ref().map(Nodes::far),
        };
        let mut memory = vec![self.node.layout().arena().fd(), self.node.table().fd()];
        memory.extend(self.nodes.as_ref().map(Nodes::table));
        if let Err(error) = control::send(socket.as_fd(), &answer, &memory) {
            tracing::debug!(%error, "a process asked to join and is gone");
            return self.node.unseat(member.peer);
        }
        self.callers.push(Caller {
            socket,
            pid: Ok(pid),
            until: Instant::now() + CANDIDATE_TIME,
            seat: Some(member),
        });
    }

    /// Makes a candidate that says `Confirm` a member; one that closed its connection, or is too
    /// late, does not become one.
    fn confirm(&mut self, mut member: Member, socket: &OwnedFd, spoke: bool) {
        let said = spoke.then(|| control::receive::<Request>(socket.as_fd()));
        let life = member.life();
        let Some(Ok((Request::Confirm { address }, _))) = said else {
            tracing::debug!(peer = %life.0, "a process asked to join and did not hear the answer");
            return self.node.unseat(life.0);
        };
        member.address = address;
        if self.nodes.is_some() {
            let said = Others::encode(&member.identity, member.pid, &member.address);
            if said.len() > SAID_MAX {
                let why = format!(
                    "the names of job and program, and the address of the process, have {} bytes of at most {SAID_MAX}: \
                     use shorter names, or fewer network devices",
                    said.len()
                );
                let _ = control::send(socket.as_fd(), &Answer::Refused(why), &[]);
                return self.node.unseat(life.0);
            }
        }
        // Another candidate for the same unit may have been faster.
        if let Err(why) = self.node.check(&member.identity) {
            let _ = control::send(socket.as_fd(), &Answer::Refused(why), &[]);
            return self.node.unseat(life.0);
        }
        self.node.seat(member);
        // Before its process knows: what it says of itself is lost when it dies.
        if let Some(nodes) = &mut self.nodes {
            nodes.tell_slots(&mut self.node);
        }
        // A process that does not receive this either gives its seat up, or is dead.
        if control::send(socket.as_fd(), &Answer::Done, &[]).is_err()
            && let Some(index) = self.node.member(life)
        {
            self.node.lose(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// A caller whose time is over, but which has just sent its request, is answered.
    #[test]
    fn what_is_said_at_the_last_moment_is_heard() {
        let mut server = Server {
            domain: "last-moment".into(),
            node: Node::create(NodeLife::HEAD, 1 << 20).unwrap(),
            nodes: None,
            listener: Listener::new(control::socket().unwrap()),
            callers: Vec::new(),
        };
        let (theirs, ours) = pair();
        let request = Request::Facts { after: None };
        control::send(theirs.as_fd(), &request, &[]).unwrap();
        let caller = Caller {
            socket: ours,
            pid: Ok(std::process::id() as i32),
            until: Instant::now(),
            seat: None,
        };
        server.hear(caller, false);
        let answer = control::receive::<Answer>(theirs.as_fd());
        assert!(matches!(answer, Ok((Answer::Facts(..), _))), "{answer:?}");
    }

    /// A caller that is refused is told so, even if its request arrives at that moment, and cannot
    /// send anything later.
    #[test]
    fn who_is_turned_away_hears_it() {
        let (theirs, ours) = pair();
        let request = Request::Facts { after: None };
        control::send(theirs.as_fd(), &request, &[]).unwrap();
        control::turn_away(ours.as_fd(), &Answer::Again);
        assert!(control::send(theirs.as_fd(), &request, &[]).is_err());
        drop(ours);
        let answer = control::receive::<Answer>(theirs.as_fd());
        assert!(matches!(answer, Ok((Answer::Again, _))), "{answer:?}");
    }
}
