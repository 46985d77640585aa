//! The agent's loop: one thread, one `poll`, no timers but the one that retries reclamation.

use super::Book;
use super::control::{self, Answer, DomainFacts, Request};
use crate::layout::{Cpus, Layout, State};
use crate::{Error, Identity, PeerId};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags};
use samite_mem::{Arena, PEERS_MAX, Span};
use std::time::Duration;

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name of the domain.
    pub domain: String,
    /// Budget of shared memory in bytes, for all processes of the domain on this node.
    pub budget: u64,
}

/// The state of one node of a domain: what the agent keeps, and what a process alone keeps itself.
#[derive(Debug)]
pub struct Node {
    layout: Layout,
    book: Book,
    members: Vec<Member>,
    dying: Vec<Dying>,
    used_slots: u32,
}

#[derive(Debug)]
struct Member {
    peer: PeerId,
    incarnation: u32,
    pidfd: Option<OwnedFd>,
}

/// A dead peer whose memory others may still be reading.
#[derive(Debug)]
struct Dying {
    peer: PeerId,
    epoch: u64,
}

impl Node {
    /// A fresh node with this budget.
    pub fn create(budget: u64) -> Result<Node, Error> {
        let arena = Arena::create(crate::layout::EXTENTS + budget.max(1))?;
        let layout = Layout::create(arena, samite_mem::enable_asymmetric_fences())?;
        let book = Book::new(layout.extents());
        Ok(Node {
            layout,
            book,
            members: Vec::new(),
            dying: Vec::new(),
            used_slots: 0,
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Admits a process; `pidfd` is what it is watched by.
    pub(crate) fn admit(
        &mut self,
        pid: i32,
        pidfd: Option<OwnedFd>,
        cpus: &Cpus,
        identity: &Identity,
    ) -> Result<(PeerId, u32), Error> {
        let free = (0..PEERS_MAX as u32)
            .map(PeerId)
            .find(|peer| self.layout.state(*peer).0 == State::Free);
        let Some(peer) = free else {
            return Err(Error::Memory(format!(
                "the domain is full: {PEERS_MAX} processes"
            )));
        };
        let incarnation = self.layout.admit(peer, pid, cpus, identity)?;
        self.used_slots = self.used_slots.max(peer.0 + 1);
        self.members.push(Member {
            peer,
            incarnation,
            pidfd,
        });
        self.layout.set_state(peer, State::Alive);
        self.announce();
        Ok((peer, incarnation))
    }

    fn announce(&self) {
        self.layout.bump_epoch();
        samite_mem::sync::heavy_fence();
        for member in &self.members {
            self.layout.doorbell(member.peer).rouse();
        }
    }

    fn member(&self, peer: PeerId, incarnation: u32) -> Option<usize> {
        self.members
            .iter()
            .position(|m| m.peer == peer && m.incarnation == incarnation)
    }

    /// A process died or left.
    pub(crate) fn lose(&mut self, index: usize) {
        let member = self.members.swap_remove(index);
        self.layout.set_state(member.peer, State::Dead);
        self.announce();
        self.dying.push(Dying {
            peer: member.peer,
            epoch: self.layout.epoch(),
        });
        self.reclaim();
    }

    /// Gives back what the dead had, once every survivor has seen the death: until then somebody may
    /// be reading a last message out of it.
    pub(crate) fn reclaim(&mut self) {
        let seen = self
            .members
            .iter()
            .map(|m| self.layout.seen_epoch(m.peer))
            .min();
        let (ready, waiting): (Vec<_>, Vec<_>) = self
            .dying
            .drain(..)
            .partition(|dying| seen.is_none_or(|seen| seen >= dying.epoch));
        self.dying = waiting;
        for Dying { peer, .. } in ready {
            for span in self.book.of(peer) {
                self.release(peer, span);
            }
            if let Err(error) = self.layout.wipe(peer, self.used_slots) {
                tracing::error!(%error, %peer, "the slot of a dead peer could not be cleaned");
                continue;
            }
            self.layout.set_state(peer, State::Free);
        }
    }

    fn release(&mut self, peer: PeerId, span: Span) -> bool {
        let known = self.book.give_back(peer, span);
        if known && let Err(error) = self.layout.arena().release(span) {
            tracing::error!(%error, "pages could not be given back");
        }
        known
    }

    pub(crate) fn grant(&mut self, peer: PeerId, bytes: u64) -> Result<Span, samite_mem::Error> {
        self.book.grant(peer, bytes)
    }

    pub(crate) fn give_back(&mut self, peer: PeerId, span: Span) -> bool {
        self.release(peer, span)
    }

    fn facts(&self, domain: &str) -> DomainFacts {
        DomainFacts {
            domain: domain.to_owned(),
            agent_pid: std::process::id() as i32,
            budget: self.book.budget(),
            used: self.book.used(),
            resident: self.layout.arena().resident(),
            reclaiming: self.dying.len(),
            peers: self
                .members
                .iter()
                .filter_map(|m| self.layout.info(m.peer))
                .collect(),
        }
    }

    fn answer(&mut self, domain: &str, request: Request, pid: i32) -> Result<Answer, String> {
        let known = |node: &Node, peer, incarnation| {
            node.member(peer, incarnation)
                .ok_or_else(|| format!("{peer} is not a member (any more)"))
        };
        match request {
            Request::Join { identity, cpus } => {
                let pidfd = Pid::from_raw(pid)
                    .ok_or(
                        "the process id of the other side is unknown here (another pid namespace)",
                    )
                    .and_then(|pid| {
                        rustix::process::pidfd_open(pid, PidfdFlags::empty())
                            .map_err(|_| "the process could not be watched (pidfd_open)")
                    })?;
                let (peer, incarnation) = self
                    .admit(pid, Some(pidfd), &cpus, &identity)
                    .map_err(|e| e.to_string())?;
                Ok(Answer::Joined { peer, incarnation })
            }
            Request::Extent {
                peer,
                incarnation,
                bytes,
            } => {
                known(self, peer, incarnation)?;
                match self.grant(peer, bytes) {
                    Ok(span) => Ok(Answer::Granted {
                        offset: span.offset,
                        bytes: span.bytes,
                    }),
                    Err(samite_mem::Error::Budget {
                        asked,
                        used,
                        budget,
                    }) => Ok(Answer::OverBudget {
                        asked,
                        used,
                        budget,
                    }),
                    Err(error) => Err(error.to_string()),
                }
            }
            Request::GiveBack {
                peer,
                incarnation,
                offset,
                bytes,
            } => {
                known(self, peer, incarnation)?;
                if self.give_back(peer, Span { offset, bytes }) {
                    Ok(Answer::Done)
                } else {
                    Err(format!("{peer} does not have this extent"))
                }
            }
            Request::Leave { peer, incarnation } => {
                let index = known(self, peer, incarnation)?;
                self.lose(index);
                Ok(Answer::Done)
            }
            Request::Facts => Ok(Answer::Facts(self.facts(domain))),
        }
    }
}

/// Runs the agent of a domain until it is told to stop (SIGTERM) or `samite run` ends. Calls `ready`
/// once it can be reached.
pub fn run(config: &AgentConfig, ready: impl FnOnce()) -> Result<(), Error> {
    let fail = |why: String| Error::Join {
        domain: config.domain.clone(),
        why,
    };
    let mut node = Node::create(config.budget)?;
    let listener = control::socket().map_err(|e| fail(e.to_string()))?;
    rustix::net::bind(&listener, &control::address(&config.domain)?).map_err(|e| match e {
        rustix::io::Errno::ADDRINUSE => fail(
            "an agent with this name is already running; join it or choose another name".into(),
        ),
        e => fail(e.to_string()),
    })?;
    rustix::net::listen(&listener, 128).map_err(|e| fail(e.to_string()))?;
    ready();
    tracing::info!(
        domain = config.domain,
        budget = config.budget,
        "agent ready"
    );
    loop {
        node.turn(&config.domain, &listener)
            .map_err(|e| fail(e.to_string()))?;
    }
}

impl Node {
    /// Waits for one event and acts on it.
    fn turn(&mut self, domain: &str, listener: &OwnedFd) -> rustix::io::Result<()> {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        let mut watched = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            if let Some(pidfd) = &member.pidfd {
                fds.push(PollFd::new(pidfd, PollFlags::IN));
                watched.push(index);
            }
        }
        // Only reclamation is retried by time: survivors tell through memory that they have seen.
        let retry = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let timeout = (!self.dying.is_empty()).then_some(&retry);
        match rustix::event::poll(&mut fds, timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let connection = !fds[0].revents().is_empty();
        let mut dead: Vec<usize> = watched
            .into_iter()
            .zip(&fds[1..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(index, _)| index)
            .collect();
        drop(fds);
        // Highest first: `lose` swaps the last member into the hole.
        dead.sort_unstable_by(|a, b| b.cmp(a));
        for index in dead {
            self.lose(index);
        }
        self.reclaim();
        if connection {
            self.serve(domain, listener);
        }
        Ok(())
    }

    /// One connection, one request. A peer that connects and then says nothing delays the others by
    /// this much and no more.
    fn serve(&mut self, domain: &str, listener: &OwnedFd) {
        const PATIENCE: Duration = Duration::from_millis(500);
        let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
            return;
        };
        let outcome = control::set_timeout(socket.as_fd(), PATIENCE)
            .and_then(|()| control::check_credentials(socket.as_fd()))
            .and_then(|pid| {
                if !control::has_come(socket.as_fd(), PATIENCE) {
                    return Ok(Answer::Late);
                }
                let (request, _) = control::receive::<Request>(socket.as_fd())?;
                self.answer(domain, request, pid)
            });
        let answer = outcome.unwrap_or_else(Answer::Refused);
        let joined = matches!(answer, Answer::Joined { .. });
        let fd = joined.then(|| self.layout.arena().fd());
        if let Err(error) = control::send(socket.as_fd(), &answer, fd) {
            tracing::debug!(error, "an answer could not be sent; its process is gone");
        }
    }
}
