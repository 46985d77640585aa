//! Other servers: what is said to them and heard of them, the content of their chunks, and leases.
//!
//! The content of a grant, or of a commit, lies in memory of the server that sends the message.
//! Where that is mapped here, a copy stays there: clients map it, too. Otherwise it is fetched;
//! what that server says about the chunk meanwhile waits.
//!
//! Copies of the chunks of a home are valid for a [`LEASE`] after a message that the home has
//! answered was sent. The home takes a chunk back from a server that it has not heard of for
//! longer. What clients read without messages at the home of a chunk with replicas is valid for as
//! long after the home has last said so: the backup that takes the chunk over waits for that.

use super::copying::{Coming, Source, in_turn};
use super::memory::{Arrived, Memory};
use super::words::{LINE, WORDS};
use super::{ChunkService, Request, To, encode};
use crate::protocol::{
    Between, ChunkId, Content, GuardId, INLINE, Message, Process, ServerEvent, ServerId, Ticket,
    Version, Written,
};
use samite_fabric::rpc::ServiceId;
use samite_fabric::{Fabric, Remote, Result, Segment, SegmentKey};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the copies of a server stay valid without a word of their home.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How often a server renews its lease.
const RENEW: Duration = Duration::from_millis(500);

/// What a home waits longer than the lease: clocks differ in rate.
const MARGIN: Duration = Duration::from_millis(50);

/// How long the service keeps its processor for content that is on its way, and how often it looks
/// after that.
const AT_ONCE: Duration = Duration::from_millis(2);
const FETCH: Duration = Duration::from_millis(1);

/// What a server knows of the others.
#[derive(Debug)]
pub(super) struct Others {
    pub(super) id: ServerId,
    /// The digest of the topology, once it is known.
    topology: Option<u64>,
    /// The most bytes of copies.
    limit: u64,
    /// When each server was heard of.
    heard: BTreeMap<Process, Duration>,
    /// Until when copies of chunks of a home are valid.
    valid: BTreeMap<Process, Duration>,
    renewed: Duration,
    /// Whether clients read chunks of this home that have replicas.
    is_read: bool,
    /// Where clients read until when copies, or those chunks, are valid.
    shown: Option<Segment>,
    places: BTreeMap<Process, u64>,
    fetching: BTreeMap<(ChunkId, Process), Fetching>,
    /// The last of them of which a part was copied.
    copied: Option<(ChunkId, Process)>,
    /// What clients have sent with commits that are on their way to another home.
    pub(super) forwarded: HashMap<GuardId, Arrived>,
    /// The content of commits of other servers, until they are committed or refused.
    arrived: HashMap<(Process, ChunkId), Arrived>,
    copies: HashMap<ChunkId, Copied>,
    /// Counts uses of copies.
    uses: u64,
}

/// A message whose content is on its way, and those that wait for it.
#[derive(Debug)]
struct Fetching {
    from: Process,
    message: Between,
    content: Coming,
    since: Duration,
    then: VecDeque<(Process, Between)>,
}

/// A copy of a chunk of another home.
#[derive(Clone, Copy, Debug)]
struct Copied {
    version: Version,
    bytes: u64,
    used: u64,
}

/// The content of a message.
enum Fetched {
    Here(Arrived),
    OnWay(Coming),
}

impl Others {
    pub(super) fn new(id: ServerId, topology: Option<u64>, limit: u64) -> Others {
        Others {
            id,
            topology,
            limit,
            heard: BTreeMap::new(),
            valid: BTreeMap::new(),
            renewed: Duration::ZERO,
            is_read: false,
            shown: None,
            places: BTreeMap::new(),
            fetching: BTreeMap::new(),
            copied: None,
            forwarded: HashMap::new(),
            arrived: HashMap::new(),
            copies: HashMap::new(),
            uses: 0,
        }
    }

    /// Returns true if content is on its way.
    pub(super) fn fetches(&self) -> bool {
        !self.fetching.is_empty()
    }

    /// A guard of a copy is given.
    pub(super) fn uses(&mut self, chunk: ChunkId) {
        if let Some(copy) = self.copies.get_mut(&chunk) {
            self.uses += 1;
            copy.used = self.uses;
        }
    }

    /// Returns when there is something to do, at the latest.
    pub(super) fn next(&self, now: impl FnOnce() -> Duration) -> Duration {
        if self.fetching.is_empty() && self.has_no_lease() {
            return Duration::MAX;
        }
        let now = now();
        let fetches = self.fetching.values();
        let is_copied = |one: &Fetching| matches!(one.content, Coming::Copied(_));
        if fetches.clone().any(is_copied) {
            return Duration::ZERO;
        }
        let since = fetches.map(|fetching| now.saturating_sub(fetching.since));
        match since.max() {
            Some(since) if since < AT_ONCE => Duration::ZERO,
            Some(_) => FETCH,
            None => RENEW,
        }
    }

    /// Returns how long the lease of a server may last; zero if it was not heard of for longer.
    pub(super) fn lease_of(&self, server: Process, now: Duration) -> Duration {
        let heard = self.heard.get(&server).copied().unwrap_or_default();
        (heard + LEASE + MARGIN).saturating_sub(now)
    }

    /// A server is lost. When it was heard of last counts as long as its clients may read its
    /// copies. The place of its lease may be another home's: nobody reads copies of its chunks,
    /// which are closed.
    fn forget(&mut self, server: Process, now: Duration, is_server: impl Fn(Process) -> bool) {
        self.valid.remove(&server);
        self.places.remove(&server);
        let may_last = |heard: Duration| heard + LEASE + MARGIN > now;
        self.heard
            .retain(|process, heard| is_server(*process) || may_last(*heard));
    }

    fn has_no_lease(&self) -> bool {
        self.valid.is_empty() && !self.is_read
    }

    fn set_valid(&mut self, fabric: &Fabric, home: Process, until: Duration) {
        self.valid.insert(home, until);
        self.show(fabric, home, until);
    }

    /// Shows clients until when copies of chunks of a home are valid.
    fn show(&self, fabric: &Fabric, home: Process, until: Duration) {
        let place = self.places.get(&home).copied();
        if let (Some(place), Some(shown)) = (place, &self.shown) {
            // In this order: a stop between the two makes the lease shorter.
            let now = crate::clock::nanoseconds();
            let left = until.saturating_sub(fabric.now());
            let until = now.saturating_add(left.as_nanos() as u64);
            // ORDERING: a reader compares it with its clock; an older value is an earlier end.
            let word = shown.bytes().u64(place * LINE);
            word.store(until, Ordering::Relaxed);
        }
    }

    /// Returns where clients read until when copies of chunks of a home are valid; `None` if there
    /// is no memory.
    pub(super) fn lease(&mut self, fabric: &Fabric, home: Process) -> Option<(SegmentKey, u64)> {
        let place = self.place(fabric, home)?;
        if let Some(until) = self.valid.get(&home).copied() {
            self.set_valid(fabric, home, until);
        }
        Some(place)
    }

    /// As [`Others::lease`], for chunks of this home that have replicas.
    pub(super) fn own_lease(&mut self, fabric: &Fabric) -> Option<(SegmentKey, u64)> {
        let place = self.place(fabric, own(fabric))?;
        self.is_read = true;
        self.show_own(fabric);
        Some(place)
    }

    fn show_own(&self, fabric: &Fabric) {
        if self.is_read {
            self.show(fabric, own(fabric), fabric.now() + LEASE);
        }
    }

    fn place(&mut self, fabric: &Fabric, home: Process) -> Option<(SegmentKey, u64)> {
        if self.shown.is_none() {
            self.shown = fabric.allocate(WORDS * LINE).ok();
        }
        let key = self.shown.as_ref()?.key();
        let place = match self.places.get(&home) {
            Some(place) => *place,
            None => {
                let is_free = |place: &u64| self.places.values().all(|taken| taken != place);
                let place = (0..WORDS).find(is_free)?;
                *self.places.entry(home).or_insert(place)
            }
        };
        Some((key, place * LINE))
    }
}

/// Returns this process.
fn own(fabric: &Fabric) -> Process {
    Process {
        peer: fabric.me(),
        incarnation: fabric.incarnation(),
    }
}

impl ChunkService {
    /// A server introduces itself. Returns false if its place is another one's.
    pub(super) fn meets(&mut self, from: Process, server: ServerId, topology: u64) -> bool {
        if self.server.servers().next().is_none() && self.others.id == ServerId::default() {
            // The agent outlives the jobs of its domain, which may have other servers.
            self.others.topology = Some(topology);
        }
        let known = *self.others.topology.get_or_insert(topology);
        let lives = |process: &Process| {
            let lost = self.fabric.lost_life(process.peer, process.incarnation);
            *process != from && lost.is_none()
        };
        let is_taken = self.server.server(server).as_ref().is_some_and(lives);
        if known != topology || server == self.others.id || is_taken {
            tracing::warn!(%from, "a server of chunks of another topology is ignored");
            return false;
        }
        if let Some(old) = self.server.server(server).filter(|old| *old != from) {
            // Its loss has not been handled yet.
            self.forget(old);
        }
        self.clients.insert(from);
        let now = self.fabric.now();
        self.others.heard.insert(from, now);
        let process = from;
        self.on_event(ServerEvent::Known { server, process });
        true
    }

    /// Handles what another server says.
    pub(super) fn hear_server(&mut self, from: Process, mut message: Between) {
        if !self.server.is_server(from) {
            tracing::debug!(%from, "a message between servers, of a process that is none");
            return;
        }
        let now = self.fabric.now();
        self.others.heard.insert(from, now);
        match &mut message {
            Between::Renew { at } => return self.say(from, Between::Renewed { at: *at }),
            Between::Renewed { at } => {
                let until = Duration::from_millis(*at).saturating_add(LEASE);
                // A lease that was over began anew, if at all, with another request.
                if let Some(valid) = self.others.valid.get(&from)
                    && *valid < until
                    && until < now + LEASE + MARGIN
                {
                    self.others.set_valid(&self.fabric, from, until);
                }
                return;
            }
            Between::Replicate {
                description: Some(of),
                ..
            } => of.backups.retain(|backup| self.is_there(*backup)),
            _ => {}
        }
        let chunk = message.chunk();
        let fetching = chunk.and_then(|chunk| self.others.fetching.get_mut(&(chunk, from)));
        match fetching {
            Some(fetching) => fetching.then.push_back((from, message)),
            None => self.receive_from(from, message),
        }
    }

    /// Returns true if a server that another one has named lives. It may have introduced itself to
    /// that one first.
    fn is_there(&mut self, (server, process): (ServerId, Process)) -> bool {
        let lost = self.fabric.lost_life(process.peer, process.incarnation);
        let is_known = self.server.is_server(process) || process == own(&self.fabric);
        if is_known || lost.is_some() {
            return is_known;
        }
        let topology = self.others.topology.unwrap_or_default();
        self.meets(process, server, topology)
    }

    /// Handles a message after what was said about the same chunk before.
    fn receive_from(&mut self, from: Process, message: Between) {
        if !self.is_wanted(from, &message) {
            return;
        }
        let expected = match &message {
            Between::Grant {
                chunk,
                bytes,
                version,
                ..
            } => {
                self.counters.granted += 1;
                let has = self.others.copies.get(chunk).map(|copy| copy.version);
                (has != Some(*version)).then_some(*bytes)
            }
            Between::Commit { chunk, .. } => self.server.bytes(*chunk),
            Between::Replicate { bytes, .. } => Some(*bytes),
            Between::Recall { .. } => {
                self.counters.recalled += 1;
                None
            }
            _ => None,
        };
        let (Some(bytes), Some(content)) = (expected, message.content()) else {
            return self.on_event(ServerEvent::Between { from, message });
        };
        let is_kept = matches!(message, Between::Commit { .. } | Between::Replicate { .. });
        match self.fetch(from, bytes, content.clone(), is_kept) {
            Ok(Fetched::Here(arrived)) => self.arrived_from(from, message, arrived),
            Ok(Fetched::OnWay(content)) => {
                let fetching = Fetching {
                    from,
                    content,
                    since: self.fabric.now(),
                    then: VecDeque::new(),
                    message,
                };
                let chunk = fetching.message.chunk();
                chunk.and_then(|chunk| self.others.fetching.insert((chunk, from), fetching));
            }
            Err(why) => self.not_fetched(from, &message, why),
        }
    }

    /// Returns false for a grant of a copy that would not be valid: of an earlier term, of a chunk
    /// that is not cached here, or without a lease. The home takes it back like any other.
    fn is_wanted(&self, from: Process, message: &Between) -> bool {
        let Between::Grant { chunk, term, .. } = *message else {
            return true;
        };
        let is_known = self.server.home_of(chunk) == Some(from);
        is_known && term == self.server.term(from) && self.others.valid.contains_key(&from)
    }

    /// Gets the content of a message, or begins to. `is_kept`: in memory of this server, because it
    /// outlives the one that has sent it.
    fn fetch(
        &mut self,
        from: Process,
        bytes: u64,
        content: Content,
        is_kept: bool,
    ) -> std::result::Result<Fetched, String> {
        let arrived = match content {
            Content::Zeros => Arrived::zeros(),
            Content::Inline(data) if data.len() as u64 == bytes && bytes <= INLINE => {
                Arrived::inline(data)
            }
            Content::Segment(key) if key.bytes == bytes => {
                let remote = self.fabric.attach(key).map_err(|error| error.to_string())?;
                match remote.readable() {
                    Some(_) if is_kept => {
                        let copied = self.copied(remote);
                        return copied.map_err(|error| error.to_string());
                    }
                    Some(_) => Arrived::mapped(remote),
                    None => {
                        let get = remote.get_nb(0, bytes).map(Coming::Fetched);
                        return get.map(Fetched::OnWay).map_err(|error| error.to_string());
                    }
                }
            }
            _ => return Err(format!("{from} has sent content of another length")),
        };
        Ok(Fetched::Here(arrived))
    }

    /// Copies memory of another server, or begins to if it is long.
    fn copied(&mut self, remote: Remote) -> Result<Fetched> {
        let mut copying = self.memory.begin_copy(Source::Mapped(remote))?;
        Ok(match self.memory.copy_part(&mut copying)? {
            Some(arrived) => Fetched::Here(arrived),
            None => Fetched::OnWay(Coming::Copied(Box::new(copying))),
        })
    }

    /// The content of a message is there.
    fn arrived_from(&mut self, from: Process, message: Between, arrived: Arrived) {
        if !self.is_wanted(from, &message) {
            return self.memory.drop_arrived(arrived);
        }
        match message {
            Between::Grant {
                chunk,
                version,
                bytes,
                ..
            } => {
                self.memory.adopt_from(chunk, arrived);
                self.others.uses += 1;
                let used = self.others.uses;
                let copy = Copied {
                    version,
                    bytes,
                    used,
                };
                self.others.copies.insert(chunk, copy);
                self.on_event(ServerEvent::Between { from, message });
                if self.server.copy(chunk).is_none() {
                    self.drop_copy(chunk);
                }
                self.evict();
            }
            Between::Commit { chunk, .. } | Between::Replicate { chunk, .. } => {
                if let Some(other) = self.others.arrived.insert((from, chunk), arrived) {
                    self.memory.drop_arrived(other);
                }
                self.on_event(ServerEvent::Between { from, message });
            }
            message => self.on_event(ServerEvent::Between { from, message }),
        }
    }

    /// The content of a message cannot be had.
    fn not_fetched(&mut self, from: Process, message: &Between, why: String) {
        if self.fabric.lost_life(from.peer, from.incarnation).is_some() {
            return; // Those that wait for it hear of the loss.
        }
        tracing::warn!(%from, %why, "the content of a chunk does not arrive");
        match *message {
            Between::Grant { chunk, .. } => self.on_event(ServerEvent::Unfetched { chunk, why }),
            Between::Commit { chunk, .. } => self.say(from, Between::NoMemory { chunk, why }),
            Between::Replicate { .. } => {
                let message = message.clone();
                self.on_event(ServerEvent::Unkept { from, message });
            }
            _ => {}
        }
    }

    /// Gives up what is fetched from a server that does not answer.
    pub(super) fn not_fetched_from(&mut self, server: Process) {
        // A replica keeps nobody waiting here.
        let is_its = |fetching: &Fetching| {
            let is_replica = matches!(fetching.message, Between::Replicate { .. });
            fetching.from == server && !is_replica
        };
        let given_up = self
            .others
            .fetching
            .extract_if(.., |_, fetching| is_its(fetching));
        let given_up: Vec<Fetching> = given_up.map(|(_, fetching)| fetching).collect();
        for fetching in given_up {
            fetching.content.end(&mut self.memory);
            match fetching.message {
                Between::Commit { chunk, .. } => self.say(server, Between::Fenced { chunk }),
                message => self.not_fetched(server, &message, "it does not answer".to_owned()),
            }
            for (from, message) in fetching.then {
                self.hear_server(from, message);
            }
        }
    }

    /// Looks which content has arrived.
    pub(super) fn fetched(&mut self) -> bool {
        let (mut over, mut has_copied) = (Vec::new(), false);
        let Others {
            fetching, copied, ..
        } = &mut self.others;
        for (which, fetching) in in_turn(fetching, copied.as_ref()) {
            let had_copied = has_copied;
            if let Some(content) = fetching.content.step(&mut self.memory, &mut has_copied) {
                over.push((*which, content));
            }
            if has_copied && !had_copied {
                *copied = Some(*which);
            }
        }
        let has_any = has_copied || !over.is_empty();
        for (which, content) in over {
            let Some(fetching) = self.others.fetching.remove(&which) else {
                continue;
            };
            let (from, message) = (fetching.from, fetching.message);
            match content {
                Ok(arrived) => self.arrived_from(from, message, arrived),
                Err(error) => self.not_fetched(from, &message, error.to_string()),
            }
            for (from, message) in fetching.then {
                self.hear_server(from, message);
            }
        }
        has_any
    }

    /// Says something to another server. A grant gets the present content.
    pub(super) fn say(&mut self, to: Process, mut message: Between) {
        match &mut message {
            Between::Grant { chunk, content, .. } => *content = self.memory.content(*chunk),
            Between::Replicate { chunk, content, .. } => {
                *content = self.memory.next_content(*chunk);
            }
            Between::Ask { .. } if !self.others.valid.contains_key(&to) => {
                let until = self.fabric.now() + LEASE;
                self.others.set_valid(&self.fabric, to, until);
            }
            _ => {}
        }
        let message: Message = Message {
            notes: vec![Request::Between(message)],
            request: None,
        };
        self.send(to, To::Inbox(ServiceId::CHUNKS), encode(&message));
    }

    /// Sends the home what a client has written.
    pub(super) fn forward(
        &mut self,
        to: Process,
        (chunk, guard): (ChunkId, GuardId),
        sent: Option<(Process, Ticket)>,
        (epoch, tag, writer): (u64, u64, Process),
    ) {
        let sent = sent.and_then(|asker| self.arrived.remove(&asker));
        let content = self.memory.written(guard, sent.as_ref());
        // It is kept whatever becomes of the client: the commit may already be the last version.
        if let Some(sent) = sent
            && let Some(other) = self.others.forwarded.insert(guard, sent)
        {
            self.memory.drop_arrived(other);
        }
        self.say(
            to,
            Between::Commit {
                chunk,
                epoch,
                tag,
                writer,
                content,
            },
        );
    }

    /// What is committed next is sent to backups before.
    pub(super) fn hold(&mut self, chunk: ChunkId, written: Written) {
        match written {
            Written::Guard { guard, sent } => {
                let sent = sent.and_then(|asker| self.arrived.remove(&asker));
                self.memory.hold(chunk, guard, sent);
            }
            Written::Server(from) => match self.others.arrived.remove(&(from, chunk)) {
                Some(arrived) => self.memory.hold_arrived(chunk, arrived),
                None => tracing::error!(%from, "a commit without its content"),
            },
        }
    }

    /// What another server has sent is the replica of its chunk.
    pub(super) fn keep_from(&mut self, from: Process, chunk: ChunkId) {
        match self.others.arrived.remove(&(from, chunk)) {
            Some(arrived) => self.memory.keep(chunk, arrived),
            None => tracing::error!(%from, "a replica without its content"),
        }
    }

    /// A chunk of a home that is lost is a chunk of this server. Clients of that home may read it
    /// until its lease is over, which it may have shown them just before.
    pub(super) fn take_over(&mut self, (of, lost): (ChunkId, Process), chunk: ChunkId) {
        tracing::warn!(home = %lost, "a chunk of a server that is lost is taken over");
        self.memory.take_over(of, chunk);
        let now = self.fabric.now();
        self.others.heard.insert(lost, now);
    }

    /// A commit of another server is the content, or is refused.
    pub(super) fn take_from(&mut self, from: Process, chunk: ChunkId, is_adopted: bool) {
        if is_adopted && self.memory.adopt_held(chunk) {
            return;
        }
        match (self.others.arrived.remove(&(from, chunk)), is_adopted) {
            (Some(arrived), true) => self.memory.adopt_from(chunk, arrived),
            (Some(arrived), false) => self.memory.drop_arrived(arrived),
            (None, true) => tracing::error!(%from, "a commit without its content"),
            (None, false) => {}
        }
    }

    pub(super) fn drop_copy(&mut self, chunk: ChunkId) {
        self.others.copies.remove(&chunk);
        self.memory.free(chunk);
    }

    /// Drops copies that nobody uses, the longest unused first, if there are too many bytes.
    fn evict(&mut self) {
        let copied = |others: &Others| {
            let bytes = others.copies.values().map(|copy| copy.bytes);
            bytes.fold(0, u64::saturating_add)
        };
        if copied(&self.others) <= self.others.limit {
            return;
        }
        let idle = self.server.idle_copies();
        let idle = idle.filter_map(|chunk| Some((self.others.copies.get(&chunk)?.used, chunk)));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable();
        for (_, chunk) in idle {
            if copied(&self.others) <= self.others.limit {
                return;
            }
            self.counters.evicted += 1;
            self.on_event(ServerEvent::Evict(chunk));
        }
    }

    /// Ends copies that may not be valid any more, before anything else is handled; and renews
    /// leases.
    pub(super) fn keep_leases(&mut self) {
        if self.others.has_no_lease() {
            return; // Before it looks at the clock: this is part of each request.
        }
        let now = self.fabric.now();
        let over = self.others.valid.extract_if(.., |_, until| *until <= now);
        let over: Vec<Process> = over.map(|(home, _)| home).collect();
        for home in over {
            tracing::warn!(%home, "a server of chunks does not answer: copies of its chunks are void");
            self.on_event(ServerEvent::Void(home));
        }
        if now.saturating_sub(self.others.renewed) < RENEW {
            return;
        }
        self.others.renewed = now;
        self.others.show_own(&self.fabric);
        let homes = self.server.homes();
        self.others.valid.retain(|home, _| homes.contains(home));
        for home in self.others.valid.keys().copied().collect::<Vec<_>>() {
            let at = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            self.say(home, Between::Renew { at });
        }
    }

    /// A server is lost.
    pub(super) fn forget_server(&mut self, process: Process) {
        let (now, server) = (self.fabric.now(), &self.server);
        (self.others).forget(process, now, |process| server.is_server(process));
        let fetching = self
            .others
            .fetching
            .extract_if(.., |(_, from), _| *from == process);
        fetching.for_each(|(_, fetching)| fetching.content.end(&mut self.memory));
        let arrived = self.others.arrived.extract_if(|(of, _), _| *of == process);
        let arrived: Vec<Arrived> = arrived.map(|(_, arrived)| arrived).collect();
        let memory: &mut Memory = &mut self.memory;
        arrived
            .into_iter()
            .for_each(|arrived| memory.drop_arrived(arrived));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::{Config, Identity, PeerId};

    /// Homes come and go: nothing of them stays, and there is a place for the lease of each.
    #[test]
    fn homes_are_forgotten() {
        let fabric = Fabric::alone(Identity::by_hand("homes"), Config::default());
        let fabric = fabric.expect("a domain of its own");
        let mut others = Others::new(ServerId(0), None, u64::MAX);
        let life = |incarnation| Process {
            peer: PeerId(7),
            incarnation,
        };
        let stays = others.lease(&fabric, life(0));
        for incarnation in 1..2 * WORDS as u32 {
            let home = life(incarnation);
            let now = LEASE * incarnation * 2;
            others.heard.insert(home, now);
            let place = others.lease(&fabric, home);
            assert!(place.is_some() && place != stays);
            others.forget(home, now, |_| false);
            assert_eq!(
                others.lease_of(home, now),
                LEASE + MARGIN,
                "clients may read"
            );
        }
        assert_eq!((others.heard.len(), others.places.len()), (1, 1));
        assert_eq!(others.lease(&fabric, life(0)), stays);
    }
}
