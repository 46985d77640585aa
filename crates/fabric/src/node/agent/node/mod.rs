//! The agent's state of one node of a domain: members, extents, jobs, the dead. It acts on requests
//! and events; the loop that receives them is in `server`.
//!
//! Which processes are alive, and their incarnations, is published from this state in memory that
//! others can only read. What processes say of themselves in the arena (which deaths they have
//! seen, whether they have leases) decides only when memory of the arena is reclaimed.

use crate::PeerId;
use crate::membership::NodeLife;
use crate::node::Slot;
use crate::node::agent::control::{Answer, DomainFacts, PEERS_OF_ANSWER, Request};
use crate::node::agent::jobs::Jobs;
use crate::node::agent::slots::{Life, Slots};
use crate::node::agent::{Book, jobs};
use crate::node::{Cpus, Layout, Others, PeerTableWriter, State};
use crate::{Error, Identity, PeerInfo};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags};
use samite_mem::copy::cooperative::Claim;
use samite_mem::{Arena, PEERS_MAX, Span};
use std::collections::BTreeSet;

/// The state of one node of a domain, kept by the agent, or by a process that is alone.
#[derive(Debug)]
pub struct Node {
    /// Its number in the domain.
    number: u32,
    layout: Layout,
    table: PeerTableWriter,
    slots: Slots,
    /// The epoch of membership.
    epoch: u64,
    book: Book,
    jobs: Jobs,
    members: Vec<Member>,
    dying: Vec<Dying>,
}

/// A process that joined, or is about to.
#[derive(Debug)]
pub(in crate::node::agent) struct Member {
    pub(in crate::node::agent) peer: Slot,
    pub(in crate::node::agent) incarnation: u32,
    /// Only requests of this process count as the member's.
    pub(in crate::node::agent) pid: i32,
    pub(in crate::node::agent) pidfd: Option<OwnedFd>,
    pub(in crate::node::agent) identity: Identity,
    /// Its ancestors: one of them started its job.
    ancestors: Vec<i32>,
    /// How units of other nodes reach it.
    pub(in crate::node::agent) address: Vec<u8>,
}

impl Member {
    pub(in crate::node::agent) fn life(&self) -> Life {
        (self.peer, self.incarnation)
    }
}

/// A peer that is gone, whose memory others may still be using.
#[derive(Debug)]
struct Dying {
    life: Life,
    epoch: u64,
    /// Set if it left and its process continues: some of its leases may outlive its membership.
    process: Option<OwnedFd>,
    /// Whether the agent has ended its leases.
    has_no_leases: bool,
}

impl Dying {
    /// Returns whether its process has ended.
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
        self.process.is_none()
    }
}

/// What the agent of another node has reported of a unit there.
#[derive(Debug)]
pub(in crate::node::agent) struct Report {
    pub(in crate::node::agent) peer: PeerId,
    pub(in crate::node::agent) incarnation: u32,
    pub(in crate::node::agent) state: State,
    /// What it says of itself.
    pub(in crate::node::agent) said: Box<[u8]>,
}

impl Node {
    /// Creates a life of a node of a domain, with this budget.
    pub(crate) fn create(life: NodeLife, budget: u64) -> Result<Node, Error> {
        let number = life.node.number();
        let bytes = crate::node::EXTENTS.saturating_add(budget.max(1));
        let arena = Arena::create(bytes)?;
        let table = PeerTableWriter::create(number, samite_mem::enable_asymmetric_fences())?;
        let layout = Layout::new(arena, table.reader())?;
        let book = Book::new(layout.extents());
        Ok(Node {
            number,
            layout,
            table,
            slots: Slots::new(life.incarnations()),
            epoch: 0,
            book,
            jobs: Jobs::default(),
            members: Vec::new(),
            dying: Vec::new(),
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn table(&self) -> &PeerTableWriter {
        &self.table
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(in crate::node::agent) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns whether memory of the dead remains to be reclaimed.
    pub(in crate::node::agent) fn is_reclaiming(&self) -> bool {
        !self.dying.is_empty()
    }

    /// Admits a process, which is watched by `pidfd`.
    pub(crate) fn admit(
        &mut self,
        pid: i32,
        pidfd: Option<OwnedFd>,
        cpus: &Cpus,
        identity: &Identity,
    ) -> Result<Life, Error> {
        let member = self.reserve(pid, pidfd, cpus, identity)?;
        let life = member.life();
        self.seat(member);
        Ok(life)
    }

    /// Promises a number to a process that asks to join. Others do not see it yet: it is seated
    /// later, or given up.
    pub(in crate::node::agent) fn candidate(
        &mut self,
        pid: i32,
        cpus: &Cpus,
        identity: &Identity,
    ) -> Result<Member, String> {
        self.check(identity)?;
        let pidfd = Pid::from_raw(pid).and_then(|pid| {
            rustix::process::pidfd_open(pid, PidfdFlags::empty())
                .map_err(|error| tracing::debug!(%error, "pidfd_open"))
                .ok()
        });
        let pidfd = pidfd.ok_or("the process could not be watched (pidfd_open)")?;
        self.reserve(pid, Some(pidfd), cpus, identity)
            .map_err(|error| error.to_string())
    }

    /// Checks whether a process can be a member, according to the jobs.
    pub(in crate::node::agent) fn check(&mut self, identity: &Identity) -> Result<(), String> {
        self.jobs.check(identity)
    }

    fn reserve(
        &mut self,
        pid: i32,
        pidfd: Option<OwnedFd>,
        cpus: &Cpus,
        identity: &Identity,
    ) -> Result<Member, Error> {
        // Not a number by which units of a living job know each other, as long as there are others.
        let Some((peer, incarnation)) = self.slots.promise(&self.known_slots()) else {
            return Err(Error::Memory(format!(
                "the domain is full: {PEERS_MAX} processes"
            )));
        };
        if let Err(error) = self.table.admit(peer, pid, cpus, identity) {
            self.slots.free(peer);
            return Err(error);
        }
        self.layout.begin(peer, self.epoch);
        Ok(Member {
            peer,
            incarnation,
            pid,
            pidfd,
            identity: identity.clone(),
            ancestors: jobs::ancestors(pid),
            address: Vec::new(),
        })
    }

    /// Returns the slots by which the units of living jobs know each other.
    fn known_slots(&self) -> BTreeSet<Slot> {
        let peers = self.jobs.numbers().into_iter();
        let here = peers.filter(|peer| peer.node() == self.number);
        here.map(PeerId::slot).collect()
    }

    /// Makes a process a member, visible to the others.
    pub(in crate::node::agent) fn seat(&mut self, member: Member) {
        let (peer, incarnation) = member.life();
        let is_news = self.jobs.joined(
            &member.identity,
            peer.of(self.number),
            incarnation,
            Some(&member.ancestors),
        );
        if is_news {
            self.table.bump_roster();
        }
        self.slots.seat(peer);
        self.members.push(member);
        self.announce();
    }

    /// Records what the agent of another node has reported of a unit there. Returns whether those
    /// that wait for units should ask.
    pub(in crate::node::agent) fn learn(&mut self, report: &Report) -> bool {
        let is_news = match report.state {
            State::Alive => self.learn_joined(report),
            State::Dead => self.jobs.left(report.peer, report.incarnation),
            State::Free => false,
        };
        if is_news {
            self.table.bump_roster();
        }
        is_news
    }

    fn learn_joined(&mut self, report: &Report) -> bool {
        let Some(identity) = Others::identity(&report.said) else {
            tracing::error!(peer = %report.peer, "what a unit of another node says of itself cannot be read");
            return false;
        };
        // Its own agent has admitted it, so the one that was known has ended: that news comes
        // later, from the agent of that one.
        if let Some((before, incarnation)) = self.jobs.elsewhere(&identity, self.number) {
            self.jobs.left(before, incarnation);
        }
        if let Err(why) = self.jobs.check(&identity) {
            tracing::error!(peer = %report.peer, why, "a unit of another node contradicts what is known here");
            return false;
        }
        self.jobs
            .joined(&identity, report.peer, report.incarnation, None)
    }

    /// Frees a promised number. Its process had the arena, so it may have written to it.
    pub(in crate::node::agent) fn unseat(&mut self, peer: Slot) {
        match self.layout.wipe(peer, self.slots.used()) {
            Ok(()) => self.slots.free(peer),
            Err(error) => {
                tracing::error!(%error, %peer, "a slot that nobody took could not be cleaned");
            }
        }
    }

    /// Publishes the table and a new epoch.
    pub(crate) fn announce(&mut self) {
        for (peer, state, incarnation) in self.slots.published() {
            self.table.publish(peer, state, incarnation);
        }
        self.table.publish_used(self.slots.used());
        self.epoch += 1;
        self.table.publish_epoch(self.epoch);
        samite_mem::sync::heavy_fence();
        for member in &self.members {
            self.layout.doorbell(member.peer).wake();
        }
    }

    pub(crate) fn member(&self, life: Life) -> Option<usize> {
        self.members.iter().position(|m| m.life() == life)
    }

    /// Handles a process that died (or ended).
    pub(in crate::node::agent) fn lose(&mut self, index: usize) {
        let member = self.members.swap_remove(index);
        self.part(&member, None);
    }

    /// Handles a process that left, and continues without the domain.
    pub(crate) fn leave(&mut self, index: usize) {
        let mut member = self.members.swap_remove(index);
        let process = member.pidfd.take();
        self.part(&member, process);
    }

    fn part(&mut self, member: &Member, process: Option<OwnedFd>) {
        let life = member.life();
        if self.jobs.left(life.0.of(self.number), life.1) {
            self.table.bump_roster();
        }
        self.slots.bury(life.0);
        self.announce();
        self.dying.push(Dying {
            life,
            epoch: self.epoch,
            process,
            has_no_leases: false,
        });
        self.reclaim();
    }

    /// Ends the leases of the dead, once every survivor has seen the death: until then a survivor
    /// may still be copying through the dead process into memory on which it had a lease. Then
    /// reclaims the memory of the dead, once nobody has a lease on it. If a process that left still
    /// uses memory, its number stays taken.
    pub(crate) fn reclaim(&mut self) {
        let used = self.slots.used();
        // A member that claims to have seen future deaths has a corrupt word; it will look again.
        let seen = |member: &Member| {
            let seen = self.layout.seen_epoch(member.peer);
            if seen > self.epoch { 0 } else { seen }
        };
        let seen = self.members.iter().map(seen).min();
        let is_seen = |dying: &Dying| seen.is_none_or(|seen| seen >= dying.epoch);
        for dying in &mut self.dying {
            if is_seen(dying) && !dying.has_no_leases && dying.has_ended() {
                self.layout.end_leases_of(dying.life.0, used);
                dying.has_no_leases = true;
            }
        }
        let layout = &self.layout;
        let is_done = |dying: &Dying| {
            let peer = dying.life.0;
            let has_leases = !dying.has_no_leases && layout.has_leases(peer);
            is_seen(dying) && !has_leases && !layout.is_leased(peer)
        };
        let (ready, waiting): (Vec<_>, Vec<_>) = self.dying.drain(..).partition(is_done);
        self.dying = waiting;
        for Dying { life, .. } in ready {
            for span in self.book.of(life) {
                self.give_back(life, span);
            }
            let (peer, incarnation) = life;
            if let Err(error) = self.layout.wipe(peer, used) {
                tracing::error!(%error, %peer, "the slot of a dead peer could not be cleaned");
                continue;
            }
            self.slots.free(peer);
            self.table
                .publish(peer, crate::node::State::Free, incarnation);
        }
    }

    pub(crate) fn grant(&mut self, life: Life, bytes: u64) -> Result<Span, samite_mem::Error> {
        self.book.grant(life, bytes)
    }

    pub(crate) fn give_back(&mut self, life: Life, span: Span) -> bool {
        let known = self.book.give_back(life, span);
        if known && let Err(error) = self.layout.arena().release(span) {
            tracing::error!(%error, "pages could not be given back");
        }
        known
    }

    /// Returns the state of the domain, with some of the peers whose numbers are higher, and
    /// whether there are more.
    fn facts(&self, domain: &str, after: Option<PeerId>) -> (DomainFacts, bool) {
        let is_wanted =
            |member: &&Member| after.is_none_or(|after| member.peer.of(self.number) > after);
        let mut members: Vec<&Member> = self.members.iter().filter(is_wanted).collect();
        members.sort_by_key(|member| member.peer);
        let more = members.len() > PEERS_OF_ANSWER;
        members.truncate(PEERS_OF_ANSWER);
        let info = |member: &Member| PeerInfo {
            peer: member.peer.of(self.number),
            incarnation: member.incarnation,
            identity: member.identity.clone(),
            pid: member.pid,
        };
        let facts = DomainFacts {
            domain: domain.to_owned(),
            agent_pid: std::process::id() as i32,
            budget: self.book.budget(),
            used: self.book.used(),
            resident: self.layout.arena().resident(),
            reclaiming: self.dying.len(),
            peers: members.into_iter().map(info).collect(),
            nodes: Vec::new(),
        };
        (facts, more)
    }

    /// Returns the member named in a request, if the requesting process is its own.
    fn own(&self, peer: Slot, incarnation: u32, pid: i32) -> Result<usize, String> {
        let index = self
            .member((peer, incarnation))
            .ok_or_else(|| format!("{peer} is not a member (any more)"))?;
        let owner = self.members[index].pid;
        if owner != pid {
            return Err(format!(
                "{peer} is process {owner}, and process {pid} cannot speak for it"
            ));
        }
        Ok(index)
    }

    /// Ends the process of a member that does not release another one's buffer, as the claim word
    /// says. Any process of this user could end it, too; the agent knows which one it is.
    fn evict(&mut self, holder: Life, claim: u64) -> Result<(), String> {
        let Some(index) = self.member(holder) else {
            return Ok(()); // It is gone.
        };
        let of_holder = self.book.of(holder);
        let is_its = |span: &Span| (span.offset..span.end()).contains(&claim);
        let word = self.layout.claim_word(claim);
        let word = word.filter(|_| of_holder.iter().any(is_its));
        let holds = word.is_some_and(|word| {
            let claim = Claim::new(&word, 0);
            claim.revoked() && !claim.quiet()
        });
        let member = &self.members[index];
        let Some(pidfd) = &member.pidfd else {
            return Err(format!("{} is not watched", holder.0));
        };
        if !holds {
            return Err(format!("{} holds nothing that was taken back", holder.0));
        }
        if member.pid == std::process::id() as i32 {
            return Err(format!("{} lives in the agent's own process", holder.0));
        }
        tracing::warn!(
            peer = %holder.0, pid = member.pid,
            "a process does not end its copy into the buffer of another one (is it stopped?), and is killed"
        );
        rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL).or_else(|error| {
            match error {
                rustix::io::Errno::SRCH => Ok(()),
                error => Err(error.to_string()),
            }
        })
    }

    /// Answers a request of process `pid`, except joining, which takes two requests.
    pub(in crate::node::agent) fn answer(
        &mut self,
        domain: &str,
        request: Request,
        pid: i32,
    ) -> Result<Answer, String> {
        // Each request that changes something is done only for the process of the member it names.
        match request {
            Request::Join { .. } | Request::Confirm { .. } => {
                Err("joining begins a connection, and ends with Confirm on the same one".into())
            }
            Request::Extent {
                peer,
                incarnation,
                bytes,
            } => {
                self.own(peer, incarnation, pid)?;
                match self.grant((peer, incarnation), bytes) {
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
                if self.give_back((peer, incarnation), Span { offset, bytes }) {
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
            Request::Evict {
                peer,
                incarnation,
                holder,
                claim,
            } => {
                self.own(peer, incarnation, pid)?;
                self.evict(holder, claim)?;
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
                if self.jobs.ended(&job, unit, (&name, &how), pid)? {
                    self.table.bump_roster();
                    self.announce();
                }
                Ok(Answer::Done)
            }
            Request::Facts { after } => {
                let (facts, more) = self.facts(domain, after);
                Ok(Answer::Facts(facts, more))
            }
        }
    }
}

#[cfg(test)]
mod tests;
