//! Admission control: grants bytes within the budgets of the block stores and of the streams.
//!
//! Every buffer is granted before it is allocated, so no budget is ever exceeded and nothing has to
//! be aborted: a writer gets its bytes, waits for them, or is refused with a reason.
//!
//! # Invariants
//! * G1 The bytes in use at a block store never exceed its memory, and its buffers never exceed
//!   their maximum number. The bytes of a stream never exceed its limit, and spilled bytes never
//!   the disk.
//! * G2 All or nothing: a request that waits has nothing.
//! * G3 A request that waits for a block store is not overtaken there by a later one of its class,
//!   however small. A request that waits only for the limit of its own stream delays no other
//!   stream.
//! * G4 Requests of steps that already have memory (*continuing*) come before those of steps that
//!   have none: the former free memory once they are complete, the latter would only add to the
//!   memory of half-written steps.
//! * G5 What could never be granted, even if everything else were freed, is refused at once.
//! * G6 No count exceeds 64 bits: the sum of what a step has and wants is checked before anything
//!   else, and a block store counts for at most [`MOST_BYTES`], whatever it reports. So exactly the
//!   bytes that were granted are freed.
//!
//! Not guaranteed: two half-written steps of two streams may each wait for the memory of the other.
//! The deadline of the requests ends that, with an error that names the block store and what is in
//! use.

use super::{BlockStoreFigures, BufferId, Fault, Peer, Room, StreamId, Want};
use std::collections::{BTreeMap, VecDeque};

/// Maximum bytes of memory, and of disk, that count for a block store: 256 TiB. Any process can
/// claim to be a block store of any size.
pub const MOST_BYTES: u64 = 1 << 48;

/// Maximum number of buffers that counts for a block store.
pub const MOST_BUFFERS: u64 = 1 << 16;

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The requesting stream.
    pub stream: StreamId,
    /// The requesting rank.
    pub rank: u32,
    /// The number of the request within the stream.
    pub number: u64,
}

/// Bytes and buffers in use or wanted, by block store. A sum that exceeds 64 bits is their maximum,
/// which no block store has.
pub type Totals = BTreeMap<Peer, (u64, u64)>;

/// A stream's request for bytes, for one rank's part of the open step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Its id.
    pub id: RequestId,
    /// The requested bytes.
    pub wants: Vec<Want>,
    /// What the open step already has, over all ranks.
    pub has: Totals,
    /// The step that the rank keeps until it commits this one. It counts for G5, but does not make
    /// the request a continuing one.
    pub keeps: Totals,
    /// Whether the stream could make room by dropping or spilling steps.
    pub yields: bool,
}

/// The decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The bytes belong to the requester.
    Granted(RequestId),
    /// They will be granted when others free theirs; the shortage says why not now. It is that of
    /// the first request of the same stream or block store that waits.
    Wait(RequestId, Shortage),
    /// As `Wait`, and the stream should drop or spill what it can, as should others if it is a
    /// block store that has too little: this many bytes are missing.
    Spill(RequestId, Shortage),
    /// They can never be granted.
    Refused(RequestId, Fault),
}

/// What is short, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that are missing.
    pub missing: u64,
    /// Bytes in use there.
    pub used: u64,
    /// The limit of these bytes.
    pub limit: u64,
    /// Where: a block store, or `None` for the stream's own limit.
    pub block_store: Option<Peer>,
    /// Buffers are short, not bytes: `missing`, `used` and `limit` count buffers.
    pub counts_buffers: bool,
}

#[derive(Debug, Default)]
struct Pool {
    memory: u64,
    used: u64,
    /// Maximum number of buffers in memory.
    most_buffers: u64,
    buffers: u64,
    disk: u64,
    spilled: u64,
}

#[derive(Debug)]
struct Account {
    name: String,
    limit: u64,
    used: u64,
    /// Bytes of memory in use, by block store.
    at: BTreeMap<Peer, u64>,
}

/// The accounts: how many bytes each stream has at each block store, and the requests that wait.
#[derive(Debug, Default)]
pub struct Admission {
    pools: BTreeMap<Peer, Pool>,
    accounts: BTreeMap<StreamId, Account>,
    /// Buffers that have space on a disk.
    spilled: BTreeMap<BufferId, (Peer, u64)>,
    continuing: VecDeque<MemoryRequest>,
    fresh: VecDeque<MemoryRequest>,
    changed: bool,
}

impl Admission {
    /// Returns empty accounts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a block store, with its bytes of memory, maximum number of buffers, and bytes of disk.
    /// At most [`MOST_BYTES`] of memory and of disk and [`MOST_BUFFERS`] buffers count.
    pub fn block_store(&mut self, block_store: Peer, memory: u64, buffers: u64, disk: u64) {
        self.changed = true;
        let pool = self.pools.entry(block_store).or_default();
        (pool.memory, pool.disk) = (memory.min(MOST_BYTES), disk.min(MOST_BYTES));
        pool.most_buffers = buffers.min(MOST_BUFFERS);
    }

    /// Removes a lost block store and its bytes. Returns the refusals of requests that need it.
    pub fn block_store_lost(&mut self, block_store: Peer) -> Vec<Decision> {
        self.changed = true;
        self.pools.remove(&block_store);
        self.spilled.retain(|_, (at, _)| *at != block_store);
        for account in self.accounts.values_mut() {
            account.used -= account.at.remove(&block_store).unwrap_or(0);
        }
        let needs = |request: &MemoryRequest| {
            request
                .wants
                .iter()
                .any(|want| want.block_store == block_store)
        };
        let mut refused = Vec::new();
        for queue in [&mut self.continuing, &mut self.fresh] {
            refused.extend(
                queue
                    .iter()
                    .filter(|request| needs(request))
                    .map(|request| request.id),
            );
            queue.retain(|request| !needs(request));
        }
        let refused = refused.into_iter();
        refused
            .map(|request| {
                let block_store = block_store.into();
                Decision::Refused(request, Fault::NoBlockStore { block_store })
            })
            .collect()
    }

    /// Adds a stream, which may have at most `limit` bytes in memory.
    pub fn stream(&mut self, stream: StreamId, name: &str, limit: u64) {
        let account = Account {
            name: name.to_owned(),
            limit,
            used: 0,
            at: BTreeMap::new(),
        };
        self.accounts.insert(stream, account);
    }

    /// Removes a stream that has ended. It has freed everything.
    pub fn stream_over(&mut self, stream: StreamId) {
        let account = self.accounts.remove(&stream);
        assert!(
            account.is_none_or(|account| account.used == 0),
            "a stream ended with memory in use"
        );
    }

    /// Returns the total memory of all block stores.
    pub fn memory(&self) -> u64 {
        let pools = self.pools.values();
        pools.fold(0, |sum, pool| sum.saturating_add(pool.memory))
    }

    /// Returns the memory in use at a block store; 0 for an unknown one.
    pub fn used_at(&self, block_store: Peer) -> u64 {
        self.pools.get(&block_store).map_or(0, |pool| pool.used)
    }

    /// Returns the memory in use by a stream.
    pub fn used_by(&self, stream: StreamId) -> u64 {
        self.accounts.get(&stream).map_or(0, |account| account.used)
    }

    /// Returns the streams with memory in use at a block store.
    pub fn users_of(&self, block_store: Peer) -> Vec<StreamId> {
        let accounts = self.accounts.iter();
        let users = accounts.filter(|(_, account)| account.at.get(&block_store) > Some(&0));
        users.map(|(&stream, _)| stream).collect()
    }

    /// Returns the block stores and the memory of each.
    pub fn block_stores(&self) -> impl Iterator<Item = (Peer, u64)> + '_ {
        self.pools
            .iter()
            .map(|(&block_store, pool)| (block_store, pool.memory))
    }

    /// Returns the use of memory and disk of every block store.
    pub fn figures(&self) -> Vec<BlockStoreFigures> {
        let pools = self.pools.iter();
        let figures = pools.map(|(&peer, pool)| BlockStoreFigures {
            peer,
            memory: pool.memory,
            granted: pool.used,
            disk: pool.disk,
            spilled: pool.spilled,
        });
        figures.collect()
    }

    /// Returns true if any request waits.
    pub fn waiting(&self) -> bool {
        !self.continuing.is_empty() || !self.fresh.is_empty()
    }

    /// Takes a request: refuses it (and forgets it), or queues it for [`pump`](Self::pump) to
    /// answer.
    pub fn request(&mut self, request: MemoryRequest) -> Option<Decision> {
        if let Err(fault) = self.possible(&request) {
            return Some(Decision::Refused(request.id, fault));
        }
        if request.has.is_empty() {
            self.fresh.push_back(request);
        } else {
            self.continuing.push_back(request);
        }
        None
    }

    /// Returns true if a waiting request that the last [`pump`](Self::pump) did not grant may be
    /// granted now.
    pub fn has_changed(&self) -> bool {
        self.changed && self.waiting()
    }

    /// Withdraws a request that its stream no longer needs.
    pub fn withdraw(&mut self, request: RequestId) {
        self.changed = true;
        self.continuing.retain(|waiting| waiting.id != request);
        self.fresh.retain(|waiting| waiting.id != request);
    }

    /// Returns the bytes of a buffer in memory to the pool.
    pub fn freed(&mut self, buffer: BufferId, block_store: Peer, bytes: u64) {
        let account = self.accounts.get_mut(&buffer.stream);
        let (Some(pool), Some(account)) = (self.pools.get_mut(&block_store), account) else {
            return; // the block store died, and its account is closed
        };
        self.changed = true;
        pool.used -= bytes;
        pool.buffers -= 1;
        account.used -= bytes;
        *account.at.entry(block_store).or_default() -= bytes;
    }

    /// Takes this much of a block store's disk for a buffer, if available. The memory stays in use
    /// until it is [`freed`](Self::freed).
    pub fn take_disk(&mut self, buffer: BufferId, block_store: Peer, bytes: u64) -> bool {
        let Some(pool) = self.pools.get_mut(&block_store) else {
            return false;
        };
        let after = pool.spilled.checked_add(bytes);
        let fits = after.is_some_and(|after| after <= pool.disk);
        if fits {
            pool.spilled += bytes;
            self.spilled.insert(buffer, (block_store, bytes));
        }
        fits
    }

    /// Returns the disk space of a buffer; does nothing if it has none.
    pub fn free_disk(&mut self, buffer: BufferId) {
        if let Some((block_store, bytes)) = self.spilled.remove(&buffer)
            && let Some(pool) = self.pools.get_mut(&block_store)
        {
            pool.spilled -= bytes;
        }
    }

    /// Grants all requests that can be granted, and returns what the others wait for.
    pub fn pump(&mut self) -> Vec<Decision> {
        self.changed = false;
        let mut decisions = Vec::new();
        loop {
            // Each round starts over: a grant may have moved requests between the queues.
            decisions.retain(|decision| {
                matches!(decision, Decision::Granted(_) | Decision::Refused(..))
            });
            let mut short = Short::default();
            let mut granted = BTreeMap::new();
            for queue in [Self::continuing, Self::fresh] {
                for request in std::mem::take(queue(self)) {
                    let id = request.id;
                    match self.grant(&request, &mut short) {
                        Ok(wanted) => {
                            decisions.push(Decision::Granted(id));
                            add(granted.entry(id.stream).or_default(), &wanted);
                        }
                        Err((short, is_first)) => {
                            decisions.push(match request.yields && is_first {
                                true => Decision::Spill(id, short),
                                false => Decision::Wait(id, short),
                            });
                            queue(self).push_back(request);
                        }
                    }
                }
            }
            if granted.is_empty() {
                return decisions;
            }
            self.promote(&granted, &mut decisions);
        }
    }

    fn continuing(&mut self) -> &mut VecDeque<MemoryRequest> {
        &mut self.continuing
    }

    fn fresh(&mut self) -> &mut VecDeque<MemoryRequest> {
        &mut self.fresh
    }

    /// From now on, the steps of granted requests have memory: the other requests of their streams
    /// become continuing (G4), or impossible (G5).
    fn promote(&mut self, granted: &BTreeMap<StreamId, Totals>, decisions: &mut Vec<Decision>) {
        for queue in [Self::continuing, Self::fresh] {
            for mut request in std::mem::take(queue(self)) {
                let Some(more) = granted.get(&request.id.stream) else {
                    queue(self).push_back(request);
                    continue;
                };
                add(&mut request.has, more);
                match self.possible(&request) {
                    Ok(()) => self.continuing.push_back(request),
                    Err(fault) => decisions.push(Decision::Refused(request.id, fault)),
                }
            }
        }
    }

    /// Grants a request and returns what it wanted, or returns what is short: there, or for the
    /// first request that waits for the same stream or block store, and whether it is that one.
    fn grant(
        &mut self,
        request: &MemoryRequest,
        short: &mut Short,
    ) -> Result<Totals, (Shortage, bool)> {
        let stream = request.id.stream;
        if let Some(&first) = short.streams.get(&stream) {
            return Err((first, false));
        }
        let account = self.accounts.get_mut(&stream);
        let account = account.expect("a stream withdraws its requests before it ends");
        let wanted = totals(request.wants.iter().copied());
        let total = sum(&wanted).expect("a request that 64 bits do not count was refused");
        let missing = missing(account.used, total, account.limit);
        if missing > 0 {
            let lack = Shortage {
                missing,
                used: account.used,
                limit: account.limit,
                block_store: None,
                counts_buffers: false,
            };
            // It delays no other stream (G3).
            short.streams.insert(stream, lack);
            return Err((lack, true));
        }
        let mut behind = wanted.keys().filter_map(|at| short.block_stores.get(at));
        if let Some(&first) = behind.next() {
            short.add(stream, &wanted, first);
            return Err((first, false));
        }
        for (&block_store, &(bytes, buffers)) in &wanted {
            let pool = self.pools.get(&block_store);
            let pool = pool.expect("requests to a lost block store were refused");
            let missing = self::missing(pool.used, bytes, pool.memory);
            let buffers = self::missing(pool.buffers, buffers, pool.most_buffers);
            if missing == 0 && buffers == 0 {
                continue;
            }
            let counts_buffers = missing == 0;
            let (used, limit) = match counts_buffers {
                true => (pool.buffers, pool.most_buffers),
                false => (pool.used, pool.memory),
            };
            // The next one that is short is asked for room when this one has it.
            let lack = Shortage {
                // Missing buffers count as bytes: a stream that frees any bytes frees a buffer, and
                // is asked again.
                missing: missing.max(buffers),
                used,
                limit,
                block_store: Some(block_store),
                counts_buffers,
            };
            short.add(stream, &wanted, lack);
            return Err((lack, true));
        }
        account.used += total;
        for (&block_store, &(bytes, buffers)) in &wanted {
            let pool = self.pools.entry(block_store).or_default();
            pool.used += bytes;
            pool.buffers += buffers;
            *account.at.entry(block_store).or_default() += bytes;
        }
        Ok(wanted)
    }

    /// Checks that a request could ever be granted.
    fn possible(&self, request: &MemoryRequest) -> Result<(), Fault> {
        let Some(account) = self.accounts.get(&request.id.stream) else {
            return Err(Fault::NotOpen);
        };
        let too_large = |bytes, limit, at| Fault::TooLarge {
            stream: account.name.clone(),
            bytes,
            limit,
            at,
        };
        let mut all = totals(request.wants.iter().copied());
        // Only the block stores that this request needs: another one cannot stop it.
        let wanted: Vec<Peer> = all.keys().copied().collect();
        add(&mut all, &request.has);
        add(&mut all, &request.keeps);
        let sum = sum(&all);
        if sum.is_none_or(|sum| sum > account.limit) {
            let bytes = sum.unwrap_or(u64::MAX);
            return Err(too_large(
                bytes,
                account.limit,
                Room::Stream(account.name.clone()),
            ));
        }
        for block_store in wanted {
            let (bytes, buffers) = all[&block_store];
            let Some(pool) = self.pools.get(&block_store) else {
                return Err(Fault::NoBlockStore {
                    block_store: block_store.into(),
                });
            };
            if bytes > pool.memory {
                return Err(too_large(
                    bytes,
                    pool.memory,
                    Room::BlockStore(block_store.into()),
                ));
            }
            if buffers > pool.most_buffers {
                return Err(Fault::TooManyBuffers {
                    stream: account.name.clone(),
                    buffers,
                    most: pool.most_buffers,
                    block_store: block_store.into(),
                });
            }
        }
        Ok(())
    }
}

/// Returns how much is missing for `more`. Does not overflow, even with the largest budget.
fn missing(used: u64, more: u64, limit: u64) -> u64 {
    let beyond = used.saturating_sub(limit);
    let free = limit.saturating_sub(used);
    more.saturating_sub(free).saturating_add(beyond)
}

/// Returns the total bytes, or `None` on overflow.
fn sum(totals: &Totals) -> Option<u64> {
    let mut totals = totals.values();
    totals.try_fold(0u64, |sum, (bytes, _)| sum.checked_add(*bytes))
}

/// Adds up wants by block store.
pub(super) fn totals(wants: impl IntoIterator<Item = Want>) -> Totals {
    let mut totals = Totals::new();
    for want in wants {
        let (bytes, buffers) = totals.entry(want.block_store).or_default();
        *bytes = bytes.saturating_add(want.bytes);
        *buffers += 1;
    }
    totals
}

fn add(to: &mut Totals, more: &Totals) {
    for (&block_store, more) in more {
        let (bytes, buffers) = to.entry(block_store).or_default();
        *bytes = bytes.saturating_add(more.0);
        *buffers += more.1;
    }
}

/// What the first requests lack that wait in a [`pump`](Admission::pump), by what they wait for.
#[derive(Default)]
struct Short {
    streams: BTreeMap<StreamId, Shortage>,
    block_stores: BTreeMap<Peer, Shortage>,
}

impl Short {
    /// A request waits, and no later one overtakes it in its stream or at a block store (G3).
    fn add(&mut self, stream: StreamId, wanted: &Totals, short: Shortage) {
        self.streams.insert(stream, short);
        for &block_store in wanted.keys() {
            self.block_stores.entry(block_store).or_insert(short);
        }
    }
}

#[cfg(test)]
mod tests;
