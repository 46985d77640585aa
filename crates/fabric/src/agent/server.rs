//! The agent's loop: one thread, one `poll`, no timers but the one that retries reclamation.

use super::Book;
use super::control::{self, Answer, DomainFacts, Request};
use super::jobs::Jobs;
use crate::layout::{Cpus, Layout, State};
use crate::{Error, Identity, PeerId};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags};
use samite_mem::{Arena, PEERS_MAX, Span};
use std::time::{Duration, Instant};

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
    jobs: Jobs,
    members: Vec<Member>,
    candidates: Vec<Candidate>,
    dying: Vec<Dying>,
    used_slots: u32,
}

#[derive(Debug)]
struct Member {
    peer: PeerId,
    incarnation: u32,
    /// Only this process speaks for the member.
    pid: i32,
    pidfd: Option<OwnedFd>,
    identity: Identity,
}

/// A process that has been told its seat, and has not said yet that it heard. Nobody sees it.
#[derive(Debug)]
struct Candidate {
    member: Member,
    socket: OwnedFd,
    until: Instant,
}

/// So many may be between the answer and their word: each has one descriptor more than a member.
const CANDIDATES_MAX: usize = 8;
/// How long a candidate may take: one that was stopped asks again.
const CANDIDATE_TIME: Duration = Duration::from_secs(5);

/// A peer that is gone, whose memory others may still be using.
#[derive(Debug)]
struct Dying {
    peer: PeerId,
    epoch: u64,
    /// It left, and its process may go on: some of its leases may outlive its membership.
    process: Option<OwnedFd>,
}

impl Dying {
    /// Whether its process ended just now.
    fn has_ended(&mut self) -> bool {
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ended = self.process.as_ref().is_some_and(|pidfd| {
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
        });
        if ended {
            self.process = None;
        }
        ended
    }
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
            jobs: Jobs::default(),
            members: Vec::new(),
            candidates: Vec::new(),
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
        let member = self.reserve(pid, pidfd, cpus, identity)?;
        let seat = (member.peer, member.incarnation);
        self.seat(member);
        Ok(seat)
    }

    /// Finds a number for a process. Nobody sees it yet.
    fn reserve(
        &mut self,
        pid: i32,
        pidfd: Option<OwnedFd>,
        cpus: &Cpus,
        identity: &Identity,
    ) -> Result<Member, Error> {
        let is_promised = |peer| self.candidates.iter().any(|one| one.member.peer == peer);
        let mut free = (0..PEERS_MAX as u32)
            .map(PeerId)
            .filter(|peer| self.layout.state(*peer).0 == State::Free && !is_promised(*peer));
        // None of those by which the units of a living job know each other, as long as there are others.
        let known = self.jobs.numbers();
        let unknown = free.clone().find(|peer| !known.contains(peer));
        let Some(peer) = unknown.or_else(|| free.next()) else {
            return Err(Error::Memory(format!(
                "the domain is full: {PEERS_MAX} processes"
            )));
        };
        let incarnation = self.layout.admit(peer, pid, cpus, identity)?;
        self.used_slots = self.used_slots.max(peer.0 + 1);
        Ok(Member {
            peer,
            incarnation,
            pid,
            pidfd,
            identity: identity.clone(),
        })
    }

    /// Shows a process to the others.
    fn seat(&mut self, member: Member) {
        let Member {
            peer, incarnation, ..
        } = member;
        if self.jobs.joined(&member.identity, peer, incarnation) {
            self.layout.bump_roster();
        }
        self.members.push(member);
        self.layout.set_state(peer, State::Alive);
        self.announce();
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

    /// A process died (or ended).
    pub(crate) fn lose(&mut self, index: usize) {
        let member = self.members.swap_remove(index);
        // It uses nothing any more, so others have that again as soon as they hear of its death.
        self.layout.end_leases_of(member.peer, self.used_slots);
        self.part(&member, None);
    }

    /// A process left, and goes on without the domain.
    fn leave(&mut self, index: usize) {
        let mut member = self.members.swap_remove(index);
        let process = member.pidfd.take();
        self.part(&member, process);
    }

    fn part(&mut self, member: &Member, process: Option<OwnedFd>) {
        let peer = member.peer;
        self.jobs.left(peer, member.incarnation);
        self.layout.set_state(peer, State::Dead);
        self.announce();
        self.dying.push(Dying {
            peer,
            epoch: self.layout.epoch(),
            process,
        });
        self.reclaim();
    }

    /// Gives back what the dead had, once every survivor has seen the death and nobody has a lease on it: until
    /// then somebody may be reading a last message out of it. What a process that left still uses keeps its number.
    pub(crate) fn reclaim(&mut self) {
        for dying in &mut self.dying {
            if dying.has_ended() {
                self.layout.end_leases_of(dying.peer, self.used_slots);
            }
        }
        let seen = self
            .members
            .iter()
            .map(|m| self.layout.seen_epoch(m.peer))
            .min();
        let layout = &self.layout;
        let is_done = |dying: &Dying| {
            let is_seen = seen.is_none_or(|seen| seen >= dying.epoch);
            let has_leases = dying.process.is_some() && layout.has_leases(dying.peer);
            is_seen && !has_leases && !layout.is_leased(dying.peer)
        };
        let (ready, waiting): (Vec<_>, Vec<_>) = self.dying.drain(..).partition(is_done);
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

    /// The member in whose name a process speaks: its own.
    fn own(&self, peer: PeerId, incarnation: u32, pid: i32) -> Result<usize, String> {
        let index = self
            .member(peer, incarnation)
            .ok_or_else(|| format!("{peer} is not a member (any more)"))?;
        let owner = self.members[index].pid;
        if owner != pid {
            return Err(format!(
                "{peer} is process {owner}, and process {pid} cannot speak for it"
            ));
        }
        Ok(index)
    }

    /// A seat for whoever asks to join.
    fn candidate(&mut self, pid: i32, cpus: &Cpus, identity: &Identity) -> Result<Member, String> {
        let pidfd = Pid::from_raw(pid).and_then(|pid| {
            rustix::process::pidfd_open(pid, PidfdFlags::empty())
                .map_err(|error| tracing::debug!(%error, "pidfd_open"))
                .ok()
        });
        let pidfd = pidfd.ok_or("the process could not be watched (pidfd_open)")?;
        self.reserve(pid, Some(pidfd), cpus, identity)
            .map_err(|error| error.to_string())
    }

    fn answer(&mut self, domain: &str, request: Request, pid: i32) -> Result<Answer, String> {
        match request {
            Request::Join { .. } | Request::Confirm => {
                Err("joining begins a connection, and ends with Confirm on the same one".into())
            }
            Request::Extent {
                peer,
                incarnation,
                bytes,
            } => {
                self.own(peer, incarnation, pid)?;
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
                self.own(peer, incarnation, pid)?;
                if self.give_back(peer, Span { offset, bytes }) {
                    Ok(Answer::Done)
                } else {
                    Err(format!("{peer} does not have this extent"))
                }
            }
            Request::Leave { peer, incarnation } => {
                let index = self.own(peer, incarnation, pid)?;
                self.leave(index);
                Ok(Answer::Done)
            }
            Request::Roster { asker, wanted } => {
                Ok(Answer::Roster(self.jobs.roster(&asker, &wanted)))
            }
            Request::Ended {
                job,
                unit,
                name,
                how,
            } => {
                if self.jobs.ended(&job, unit, &name, &how) {
                    self.layout.bump_roster();
                    self.announce();
                }
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
        let takes_more = self.candidates.len() < CANDIDATES_MAX;
        let first = if takes_more {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![PollFd::new(listener, first)];
        let candidates = self.candidates.iter();
        fds.extend(candidates.map(|one| PollFd::new(&one.socket, PollFlags::IN)));
        let mut watched = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            if let Some(pidfd) = &member.pidfd {
                fds.push(PollFd::new(pidfd, PollFlags::IN));
                watched.push(index);
            }
        }
        // Only reclamation is retried by time (survivors tell through memory that they have seen), and the end of a
        // candidate's.
        let retry = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let timed = !self.dying.is_empty() || !self.candidates.is_empty();
        match rustix::event::poll(&mut fds, timed.then_some(&retry)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let connection = takes_more && !fds[0].revents().is_empty();
        let (of_candidates, of_members) = fds[1..].split_at(self.candidates.len());
        let spoke: Vec<bool> = of_candidates
            .iter()
            .map(|fd| !fd.revents().is_empty())
            .collect();
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
            self.lose(index);
        }
        self.hear_candidates(&spoke);
        self.reclaim();
        if connection {
            self.serve(domain, listener);
        }
        Ok(())
    }

    /// A candidate that says `Confirm` becomes a member; one that closed its connection, or is too late, does not.
    fn hear_candidates(&mut self, spoke: &[bool]) {
        let now = Instant::now();
        let spoke = spoke.iter().copied();
        for (candidate, spoke) in std::mem::take(&mut self.candidates).into_iter().zip(spoke) {
            if !spoke && now < candidate.until {
                self.candidates.push(candidate);
                continue;
            }
            let Candidate { member, socket, .. } = candidate;
            let confirmed = spoke
                && matches!(
                    control::receive::<Request>(socket.as_fd()),
                    Ok((Request::Confirm, _))
                );
            let (peer, incarnation) = (member.peer, member.incarnation);
            if !confirmed {
                tracing::debug!(%peer, "a process asked to join and did not hear the answer");
                self.unseat(peer);
                continue;
            }
            self.seat(member);
            // Whoever does not hear this either gives its seat up, or is dead.
            if control::send(socket.as_fd(), &Answer::Done, None).is_err()
                && let Some(index) = self.member(peer, incarnation)
            {
                self.lose(index);
            }
        }
    }

    /// A number that was promised is free again. Its process had the arena, so it may have written.
    fn unseat(&mut self, peer: PeerId) {
        if let Err(error) = self.layout.wipe(peer, self.used_slots) {
            tracing::error!(%error, %peer, "a slot that nobody took could not be cleaned");
        }
    }

    /// One connection, one request. A peer that connects and then says nothing delays the others by
    /// this much and no more.
    fn serve(&mut self, domain: &str, listener: &OwnedFd) {
        const PATIENCE: Duration = Duration::from_millis(500);
        let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
            return;
        };
        let known = control::set_timeout(socket.as_fd(), PATIENCE)
            .and_then(|()| control::check_credentials(socket.as_fd()));
        if let Err(why) = &known {
            let _ = control::send(socket.as_fd(), &Answer::Refused(why.clone()), None);
            // Not looked at; but a connection that closes with something unread loses what was said on it.
            let _ = control::receive::<Request>(socket.as_fd());
            return;
        }
        let request = || {
            let pid = known?;
            if !control::has_come(socket.as_fd(), PATIENCE) {
                return Ok(None);
            }
            let (request, _) = control::receive::<Request>(socket.as_fd())?;
            Ok(Some((request, pid)))
        };
        let answer = match request() {
            Ok(None) => Ok(Answer::Late),
            Ok(Some((Request::Join { identity, cpus }, pid))) => {
                match self.candidate(pid, &cpus, &identity) {
                    Ok(member) => return self.invite(member, socket),
                    Err(why) => Err(why),
                }
            }
            Ok(Some((request, pid))) => self.answer(domain, request, pid),
            Err(why) => Err(why),
        };
        let answer = answer.unwrap_or_else(Answer::Refused);
        if let Err(error) = control::send(socket.as_fd(), &answer, None) {
            tracing::debug!(error, "an answer could not be sent; its process is gone");
        }
    }

    /// Tells a process its seat; it is a member once it has said that it heard.
    fn invite(&mut self, member: Member, socket: OwnedFd) {
        let answer = Answer::Joined {
            peer: member.peer,
            incarnation: member.incarnation,
        };
        let arena = self.layout.arena().fd();
        if let Err(error) = control::send(socket.as_fd(), &answer, Some(arena)) {
            tracing::debug!(error, "a process asked to join and is gone");
            return self.unseat(member.peer);
        }
        self.candidates.push(Candidate {
            member,
            socket,
            until: Instant::now() + CANDIDATE_TIME,
        });
    }
}
