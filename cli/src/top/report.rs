//! The state of a domain for `samite top`, by names instead of numbers. `--json` prints it
//! unchanged.

use super::chunks::{self, Chunk};
use super::sample::{PROGRAM, STOPPED, Sample};
use samite::agent::ServiceFacts;
use samite::stage::protocol::{
    BlockStoreFigures, EndOfStream, GroupFigures, Peer, StreamFigures, Wait,
};
use samite::stage::service::Usage;
use samite::{Expected, PeerId, PeerInfo, PeerWait, Whom};
use serde::Serialize;
use std::time::Duration;

/// A domain.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) domain: String,
    pub(super) agent_pid: i32,
    /// Maximum bytes that the units of the domain may share.
    pub(super) budget: u64,
    /// Bytes of these that are granted to units.
    pub(super) granted: u64,
    /// Bytes of these that have physical pages.
    pub(super) resident: u64,
    /// The services that the agent hosts.
    pub(super) services: Vec<ServiceFacts>,
    pub(super) streams: Vec<Stream>,
    pub(super) block_stores: Vec<BlockStore>,
    /// Coherent chunks: those that somebody waits for, then the most active ones.
    pub(super) chunks: Vec<Chunk>,
    /// The number of chunks that are left out.
    pub(super) more_chunks: u64,
    pub(super) waits: Vec<Waiter>,
    /// The number of streams, readers and waits that are left out because there are too many.
    pub(super) more: u64,
    pub(super) units: Vec<Unit>,
}

#[derive(Serialize)]
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) writer: String,
    pub(super) ranks_here: u32,
    pub(super) ranks: u32,
    /// `open`, `closed`, or which rank was lost.
    pub(super) state: String,
    pub(super) steps: u64,
    /// Bytes of all steps.
    pub(super) bytes: u64,
    /// Steps that are still stored.
    pub(super) held_steps: u64,
    /// Bytes in memory of stored steps and of the one that is being written.
    pub(super) memory: u64,
    pub(super) bytes_per_second: f64,
    pub(super) age_seconds: f64,
    pub(super) readers: Vec<Readers>,
    pub(super) subscriptions: u64,
    /// News that they were not told yet.
    pub(super) news: u64,
}

#[derive(Serialize)]
pub(super) struct Readers {
    /// `None`: reserved for the first program that comes.
    pub(super) name: Option<String>,
    pub(super) ranks_here: u32,
    pub(super) ranks: u32,
    pub(super) policy: String,
    pub(super) queued_steps: u64,
    pub(super) queued_bytes: u64,
    pub(super) limit_steps: u64,
    pub(super) limit_bytes: u64,
    /// Steps that are taken and not released.
    pub(super) held_steps: u64,
    pub(super) held_bytes: u64,
    /// All steps that it has taken.
    pub(super) steps: u64,
    /// Bytes that it has read of those that it has released.
    pub(super) bytes: u64,
    pub(super) bytes_per_second: f64,
}

#[derive(Serialize)]
pub(super) struct BlockStore {
    pub(super) name: String,
    pub(super) peer: u32,
    /// Maximum bytes of memory for blocks.
    pub(super) memory: u64,
    /// Bytes of these that are granted to streams.
    pub(super) granted: u64,
    /// Bytes that it has taken from the machine, and those of them that no stream uses now. `None`
    /// if it did not answer.
    pub(super) used: Option<u64>,
    pub(super) spare: Option<u64>,
    pub(super) buffers: Option<u64>,
    pub(super) disk: u64,
    pub(super) spilled: u64,
}

#[derive(Serialize)]
pub(super) struct Waiter {
    /// `None`: it waits for a message, or in a collective operation.
    pub(super) stream: Option<String>,
    /// Its name, such as `heat.1`.
    pub(super) who: String,
    pub(super) peer: u32,
    pub(super) pid: Option<i32>,
    pub(super) state: Option<&'static str>,
    pub(super) waits_for: String,
    /// The processes that it waits for, as far as they are known: those that are stopped first.
    pub(super) waits_on: Vec<Named>,
    pub(super) seconds: f64,
}

/// A process that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Named {
    pub(super) name: String,
    /// `None` if it has left the domain.
    pub(super) pid: Option<i32>,
    pub(super) state: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct Unit {
    pub(super) peer: u32,
    pub(super) pid: i32,
    pub(super) job: String,
    pub(super) program: String,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) state: &'static str,
    pub(super) resident: u64,
}

impl Report {
    /// Makes a report of a sample. Rates are those since the sample `before`, or else since a
    /// stream was opened.
    pub(super) fn new(sample: &Sample, before: Option<&Sample>) -> Report {
        let (facts, figures) = (&sample.facts, &sample.overview.figures);
        let streams = figures.streams.iter().map(|stream| {
            let earlier = before.and_then(|before| {
                let mut streams = before.overview.figures.streams.iter();
                let earlier = streams.find(|earlier| earlier.id == stream.id)?;
                Some((sample.at - before.at, earlier))
            });
            Stream::new(stream, earlier)
        });
        let kept = &sample.overview.kept;
        let block_stores = figures.block_stores.iter().zip(kept);
        let inside = figures.streams.iter().flat_map(|stream| {
            let waits = stream.waits.iter();
            waits.map(|wait| (Some(stream.name.clone()), wait))
        });
        let outside = figures.opening.iter().map(|wait| (None, wait));
        let processes = Processes(sample);
        let mut waits: Vec<Waiter> = inside
            .chain(outside)
            .map(|(stream, wait)| Waiter::new(stream, wait, &processes))
            .collect();
        // Who waits in a stream waits for an answer of the coordinator, too.
        let is_new = |wait: &&PeerWait| waits.iter().all(|known| known.peer != wait.peer.0);
        let others: Vec<&PeerWait> = sample.waits.iter().filter(is_new).collect();
        let others = others
            .into_iter()
            .filter_map(|wait| processes.of_unit(wait));
        waits.extend(others.collect::<Vec<Waiter>>());
        chunks::explain(&mut waits, &sample.chunks, &processes);
        let units = facts.peers.iter().zip(&sample.processes);
        // This process is a peer, too, but not part of the report.
        let units = units.filter(|(peer, _)| peer.identity.program != PROGRAM);
        Report {
            domain: facts.domain.clone(),
            agent_pid: facts.agent_pid,
            budget: facts.budget,
            granted: facts.used,
            resident: facts.resident,
            services: sample.services.clone(),
            streams: streams.collect(),
            block_stores: block_stores
                .map(|(block_store, kept)| {
                    BlockStore::new(block_store, kept.as_ref(), &facts.peers)
                })
                .collect(),
            chunks: (sample.chunks.chunks.iter())
                .map(|chunk| Chunk::new(chunk, &processes))
                .collect(),
            more_chunks: sample.chunks.more,
            waits,
            more: figures.more.saturating_add(sample.chunks.more_waits),
            units: units
                .map(|(peer, process)| Unit {
                    peer: peer.peer.0,
                    pid: peer.pid,
                    job: peer.identity.job.clone(),
                    program: peer.identity.program.clone(),
                    rank: peer.identity.rank,
                    ranks: peer.identity.size,
                    state: process.state,
                    resident: process.resident,
                })
                .collect(),
        }
    }
}

fn per_second(bytes: u64, time: Duration) -> f64 {
    // Figures have a resolution of one millisecond.
    bytes as f64 / time.as_secs_f64().max(1e-3)
}

impl Stream {
    fn new(stream: &StreamFigures, before: Option<(Duration, &StreamFigures)>) -> Stream {
        let age = Duration::from_millis(stream.age);
        // Without an earlier sample, rates are averages since the stream was opened.
        let (time, earlier) =
            before.map_or((age, 0), |(time, before)| (time, before.committed_bytes));
        let readers = stream.groups.iter().map(|group| {
            let same = |before: &&GroupFigures| before.name == group.name;
            let earlier = before.map(|(time, before)| {
                // A group that was not there has read all its bytes since.
                let found = before.groups.iter().find(same);
                (time, found.map_or(0, |found| found.read_bytes))
            });
            Readers::new(group, earlier.unwrap_or((age, 0)))
        });
        Stream {
            name: stream.name.clone(),
            writer: stream.program.clone(),
            ranks_here: stream.here,
            ranks: stream.ranks,
            state: match stream.end {
                None => "open".to_owned(),
                Some(EndOfStream::Closed) => "closed".to_owned(),
                Some(EndOfStream::WriterFailed { rank, how }) => format!("rank {rank} {how}"),
            },
            steps: stream.committed,
            bytes: stream.committed_bytes,
            held_steps: stream.stored,
            memory: stream.bytes,
            bytes_per_second: per_second(stream.committed_bytes.saturating_sub(earlier), time),
            age_seconds: age.as_secs_f64(),
            readers: readers.collect(),
            subscriptions: stream.watches,
            news: stream.news,
        }
    }
}

impl Readers {
    fn new(group: &GroupFigures, (time, earlier): (Duration, u64)) -> Readers {
        Readers {
            name: group.name.clone(),
            ranks_here: group.here,
            ranks: group.size,
            policy: group.policy.to_string(),
            queued_steps: group.queued,
            queued_bytes: group.queued_bytes,
            limit_steps: group.limits.steps,
            limit_bytes: group.limits.bytes,
            held_steps: group.in_use,
            held_bytes: group.in_use_bytes,
            steps: group.taken,
            bytes: group.read_bytes,
            bytes_per_second: per_second(group.read_bytes.saturating_sub(earlier), time),
        }
    }
}

fn find(peers: &[PeerInfo], peer: Peer) -> Option<&PeerInfo> {
    let is_it = |info: &&PeerInfo| (info.peer, info.incarnation) == (peer.id(), peer.incarnation());
    peers.iter().find(is_it)
}

impl BlockStore {
    fn new(
        block_store: &BlockStoreFigures,
        kept: Option<&Usage>,
        peers: &[PeerInfo],
    ) -> BlockStore {
        let identity = find(peers, block_store.peer).map(|info| &info.identity);
        BlockStore {
            name: match identity {
                Some(identity) if identity.size > 1 => {
                    format!("{} {}", identity.program, identity.rank)
                }
                Some(identity) => identity.program.clone(),
                None => block_store.peer.to_string(),
            },
            peer: block_store.peer.id().0,
            memory: block_store.memory,
            granted: block_store.granted,
            used: kept.map(|kept| kept.used),
            spare: kept.map(|kept| kept.free),
            buffers: kept.map(|kept| kept.buffers),
            disk: block_store.disk,
            spilled: block_store.spilled,
        }
    }
}

impl Waiter {
    fn new(stream: Option<String>, wait: &Wait, processes: &Processes<'_>) -> Waiter {
        let known = processes.find(wait.peer.id(), Some(wait.peer.incarnation()));
        let on = wait.on.iter();
        Waiter {
            stream,
            who: known.map_or_else(|| wait.who.clone(), |(info, _)| name(info)),
            peer: wait.peer.id().0,
            pid: known.map(|(info, _)| info.pid),
            state: known.map(|(_, state)| state),
            waits_for: wait.whom.clone(),
            waits_on: processes.named(on.map(|peer| (peer.id(), Some(peer.incarnation())))),
            seconds: wait.ms as f64 / 1e3,
        }
    }
}

/// Returns the name of a unit: program and rank.
pub(super) fn name(info: &PeerInfo) -> String {
    format!("{}.{}", info.identity.program, info.identity.rank)
}

/// The processes of a sample, to be found by their numbers.
pub(super) struct Processes<'s>(&'s Sample);

impl Processes<'_> {
    fn all(&self) -> impl Iterator<Item = (&PeerInfo, &'static str)> {
        let states = self.0.processes.iter().map(|process| process.state);
        self.0.facts.peers.iter().zip(states)
    }

    /// Returns a process and its state; of any incarnation if it is not known which.
    pub(super) fn find(
        &self,
        peer: PeerId,
        incarnation: Option<u32>,
    ) -> Option<(&PeerInfo, &'static str)> {
        let is_it = |info: &PeerInfo| {
            info.peer == peer && incarnation.is_none_or(|life| info.incarnation == life)
        };
        self.all().find(|(info, _)| is_it(info))
    }

    /// Returns the names of processes, those that are stopped first.
    pub(super) fn named(&self, peers: impl Iterator<Item = (PeerId, Option<u32>)>) -> Vec<Named> {
        let named = peers.map(|(peer, incarnation)| match self.find(peer, incarnation) {
            Some((info, state)) => Named {
                name: match info.pid == self.0.facts.agent_pid {
                    true => "the agent".to_owned(),
                    false => name(info),
                },
                pid: Some(info.pid),
                state: Some(state),
            },
            None => Named {
                name: peer.to_string(),
                pid: None,
                state: None,
            },
        });
        let mut named: Vec<Named> = named.collect();
        named.sort_by_key(|process| process.state != Some(STOPPED));
        named
    }

    /// Returns the wait of a unit for messages or for other units; `None` if it is no unit.
    fn of_unit(&self, wait: &PeerWait) -> Option<Waiter> {
        let (info, state) = self.find(wait.peer, Some(wait.incarnation))?;
        if info.pid == self.0.facts.agent_pid || info.identity.program == PROGRAM {
            return None;
        }
        let waits_on = match wait.whom {
            Whom::Peer(peer) => self.named([(peer, None)].into_iter()),
            Whom::Agent => Vec::new(),
            // It may wait for any unit of its job; one that is stopped is worth a look.
            Whom::Any => {
                let stopped = self.all().filter(|(other, state)| {
                    *state == STOPPED
                        && other.identity.job == info.identity.job
                        && other.peer != info.peer
                });
                self.named(stopped.map(|(other, _)| (other.peer, Some(other.incarnation))))
            }
        };
        Some(Waiter {
            stream: None,
            who: name(info),
            peer: wait.peer.0,
            pid: Some(info.pid),
            state: Some(state),
            waits_for: what(wait),
            waits_on,
            seconds: wait.waited.as_secs_f64(),
        })
    }
}

/// Returns what a unit waits for; the processes that it waits for are named after that.
fn what(wait: &PeerWait) -> String {
    let from = match wait.whom {
        Whom::Any => " from any unit",
        Whom::Peer(_) | Whom::Agent => "",
    };
    let others = match wait.others {
        0 => String::new(),
        others => format!(" of {} units, the first", u64::from(others) + 1),
    };
    match &wait.message {
        Some(Expected::Message { mask: 0, .. }) => format!("a message with any tag{from}"),
        Some(Expected::Message { tag, mask, .. }) if *mask == u64::MAX => {
            format!("a message with tag {tag}{from}")
        }
        Some(Expected::Message { tag, mask, .. }) => {
            format!("a message with tag {tag:#x} under the mask {mask:#x}{from}")
        }
        Some(Expected::Rest { tag }) => format!("the rest of the message with tag {tag}"),
        Some(Expected::Receipt { tag }) => format!("its message with tag {tag} to be received"),
        Some(Expected::Signal { key }) => format!("a signal with key {key}"),
        _ => format!("{}{others}", wait.what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite::stage::protocol::{Limits, Policy, StreamId};

    fn group(name: &str, read_bytes: u64) -> GroupFigures {
        GroupFigures {
            name: Some(name.to_owned()),
            policy: Policy::Block,
            limits: Limits { steps: 2, bytes: 1 },
            queued: 0,
            queued_bytes: 0,
            in_use: 0,
            in_use_bytes: 0,
            taken: 1,
            read_bytes,
            here: 1,
            size: 1,
        }
    }

    /// A stream that is a minute old.
    fn stream(groups: Vec<GroupFigures>) -> StreamFigures {
        StreamFigures {
            id: StreamId(1),
            name: "field".to_owned(),
            program: "heat".to_owned(),
            here: 1,
            ranks: 1,
            age: 60_000,
            committed: 1,
            committed_bytes: 6000,
            stored: 1,
            bytes: 0,
            end: None,
            groups,
            watches: 0,
            news: 0,
            waits: Vec::new(),
        }
    }

    #[test]
    fn rates_of_readers_are_those_since_the_sample_before() {
        let before = stream(vec![group("old", 1000)]);
        let now = stream(vec![group("old", 1500), group("new", 3000)]);
        let rates = |before| {
            let readers = Stream::new(&now, before).readers;
            let rates = readers.iter().map(|readers| readers.bytes_per_second);
            rates.collect::<Vec<_>>()
        };
        assert_eq!(
            rates(Some((Duration::from_secs(1), &before))),
            [500.0, 3000.0]
        );
        assert_eq!(rates(None), [25.0, 50.0]);
    }
}
