//! Who gets memory: grants of bytes within the budgets of the block stores and of the streams.
//!
//! Every buffer is granted before it is allocated, so no budget is ever exceeded and nothing is
//! ever aborted: a writer gets its bytes, waits for them, or is refused with a reason.
//!
//! # Invariants
//! * G1 The bytes in use at a block store never exceed its memory, nor the buffers their number
//!   there; the bytes of a stream never its limit; those spilled never the disk.
//! * G2 All or nothing: a request that waits has nothing.
//! * G3 A request that has to wait for a block store is not overtaken there by a later one of its
//!   class, however small. A request that waits only for its own stream's limit holds up nobody
//!   else's.
//! * G4 Asks of steps that have memory already (*continuing*) come before those of steps that have
//!   none: the former free memory when they are whole, the latter would only add to what is
//!   half-written.
//! * G5 What could never be granted, even if everything else were freed, is refused at once.
//! * G6 Nothing is counted beyond 64 bits: what a step has and wants is summed with checked
//!   additions before anything else is done with it, and a block store has no more than
//!   [`MOST_BYTES`], whatever it says. So what is granted is what is freed, byte by byte.
//!
//! Not guaranteed: two half-written steps of two streams may each wait for what the other has; the
//! deadline of the requests ends that, with an error that names the block store and what is in use.

use super::{BlockStoreFigures, BufferId, Fault, Peer, StreamId, Want};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most bytes of memory, and of disk, that a block store is taken to have: 256 TiB. Any process can
/// say that it is a block store, of any size.
pub const MOST_BYTES: u64 = 1 << 48;

/// Most buffers that a block store is taken to be able to have.
pub const MOST_BUFFERS: u64 = 1 << 16;

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The stream that asks.
    pub stream: StreamId,
    /// Which request of the stream.
    pub number: u64,
}

/// A stream asks for bytes, for one rank's part of the open step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Its name.
    pub id: RequestId,
    /// What is wanted.
    pub wants: Vec<Want>,
    /// What the open step has already, of all ranks.
    pub has: Vec<Want>,
    /// The step that the rank keeps until it commits this one: it stays beside it (G5), and makes
    /// the request no continuing one.
    pub keeps: Vec<Want>,
    /// Whether the stream might make room: drop or spill steps.
    pub yields: bool,
}

/// What admission control says to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The bytes are the asker's.
    Granted(RequestId),
    /// They will come, when others free theirs; why not now.
    Wait(RequestId, Shortage),
    /// As `Wait`, and the stream should drop or spill what it can: that many bytes are missing.
    Spill(RequestId, Shortage),
    /// They can never come.
    Refused(RequestId, Fault),
}

/// What is short, where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that are missing.
    pub missing: u64,
    /// Bytes in use there.
    pub used: u64,
    /// Bytes that may be.
    pub limit: u64,
    /// Where: a block store, or `None` for the stream's own limit.
    pub block_store: Option<Peer>,
    /// Not bytes but buffers: their number is what is missing, in use, and limited.
    pub counts_buffers: bool,
}

#[derive(Debug, Default)]
struct Pool {
    memory: u64,
    used: u64,
    /// Most buffers in memory.
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
    /// Memory in use, by block store.
    at: BTreeMap<Peer, u64>,
}

/// The books: who has how many bytes where, and who waits.
#[derive(Debug, Default)]
pub struct Admission {
    pools: BTreeMap<Peer, Pool>,
    accounts: BTreeMap<StreamId, Account>,
    /// Buffers that have a place on a disk.
    spilled: BTreeMap<BufferId, (Peer, u64)>,
    continuing: VecDeque<MemoryRequest>,
    fresh: VecDeque<MemoryRequest>,
    changed: bool,
}

impl Admission {
    /// Nobody has anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A block store has come, with bytes of memory, numbers of buffers that it can have there, and
    /// bytes of disk; of memory and of disk no more than [`MOST_BYTES`] count, and no more than
    /// [`MOST_BUFFERS`] buffers.
    pub fn block_store(&mut self, block_store: Peer, memory: u64, buffers: u64, disk: u64) {
        self.changed = true;
        let pool = self.pools.entry(block_store).or_default();
        (pool.memory, pool.disk) = (memory.min(MOST_BYTES), disk.min(MOST_BYTES));
        pool.most_buffers = buffers.min(MOST_BUFFERS);
    }

    /// A block store is gone and all that it had. Returns the refusals of requests that need it.
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
            .map(|request| Decision::Refused(request, Fault::NoBlockStore { block_store }))
            .collect()
    }

    /// A stream has come; it may have at most `limit` bytes in memory.
    pub fn stream(&mut self, stream: StreamId, name: &str, limit: u64) {
        let account = Account {
            name: name.to_owned(),
            limit,
            used: 0,
            at: BTreeMap::new(),
        };
        self.accounts.insert(stream, account);
    }

    /// A stream is over. It has freed everything.
    pub fn stream_over(&mut self, stream: StreamId) {
        let account = self.accounts.remove(&stream);
        assert!(
            account.is_none_or(|account| account.used == 0),
            "a stream ended with memory in use"
        );
    }

    /// The memory of all block stores.
    pub fn memory(&self) -> u64 {
        let pools = self.pools.values();
        pools.fold(0, |sum, pool| sum.saturating_add(pool.memory))
    }

    /// Memory in use at a block store; 0 for one that is not there.
    pub fn used_at(&self, block_store: Peer) -> u64 {
        self.pools.get(&block_store).map_or(0, |pool| pool.used)
    }

    /// Memory in use by a stream.
    pub fn used_by(&self, stream: StreamId) -> u64 {
        self.accounts.get(&stream).map_or(0, |account| account.used)
    }

    /// The block stores and the memory of each.
    pub fn block_stores(&self) -> impl Iterator<Item = (Peer, u64)> + '_ {
        self.pools
            .iter()
            .map(|(&block_store, pool)| (block_store, pool.memory))
    }

    /// How the memory and the disk of every block store stand.
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

    /// Whether somebody waits.
    pub fn waiting(&self) -> bool {
        !self.continuing.is_empty() || !self.fresh.is_empty()
    }

    /// The streams that wait with a step that is half written: what it has comes free only when
    /// more is granted. A step that has nothing yet keeps nobody waiting.
    pub fn half_granted(&self) -> BTreeSet<StreamId> {
        let waiting = self.continuing.iter();
        waiting.map(|request| request.id.stream).collect()
    }

    /// A request comes in: refused (then it is forgotten), or in the queue. [`pump`](Self::pump)
    /// answers it.
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

    /// Whether a request that waits may be granted now although it was not by the last
    /// [`pump`](Self::pump).
    pub fn has_changed(&self) -> bool {
        self.changed && self.waiting()
    }

    /// The asker does not want it any more.
    pub fn withdraw(&mut self, request: RequestId) {
        self.changed = true;
        self.continuing.retain(|waiting| waiting.id != request);
        self.fresh.retain(|waiting| waiting.id != request);
    }

    /// Bytes of a buffer in memory are free.
    pub fn freed(&mut self, buffer: BufferId, block_store: Peer, bytes: u64) {
        let account = self.accounts.get_mut(&buffer.stream);
        let (Some(pool), Some(account)) = (self.pools.get_mut(&block_store), account) else {
            return; // the block store died: its books are closed
        };
        self.changed = true;
        pool.used -= bytes;
        pool.buffers -= 1;
        account.used -= bytes;
        *account.at.entry(block_store).or_default() -= bytes;
    }

    /// Takes that much of a block store's disk for a buffer, if it has it. The memory stays in use
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

    /// Gives the disk of a buffer back; nothing happens when it has none.
    pub fn free_disk(&mut self, buffer: BufferId) {
        if let Some((block_store, bytes)) = self.spilled.remove(&buffer)
            && let Some(pool) = self.pools.get_mut(&block_store)
        {
            pool.spilled -= bytes;
        }
    }

    /// Grants what can be granted, and says of the others what they wait for.
    pub fn pump(&mut self) -> Vec<Decision> {
        self.changed = false;
        let mut decisions = Vec::new();
        loop {
            decisions.retain(|decision| {
                matches!(decision, Decision::Granted(_) | Decision::Refused(..))
            });
            let (mut blocked, mut streams) = (BTreeSet::new(), BTreeSet::new());
            let mut granted = Vec::new();
            for queue in [Self::continuing, Self::fresh] {
                for request in std::mem::take(queue(self)) {
                    match self.grant(&request, &mut blocked, &mut streams) {
                        None => granted.push(request),
                        Some(short) => {
                            decisions.push(match request.yields {
                                true => Decision::Spill(request.id, short),
                                false => Decision::Wait(request.id, short),
                            });
                            queue(self).push_back(request);
                        }
                    }
                }
            }
            if granted.is_empty() {
                return decisions;
            }
            for request in granted {
                decisions.push(Decision::Granted(request.id));
                self.promote(&request, &mut decisions);
            }
        }
    }

    fn continuing(&mut self) -> &mut VecDeque<MemoryRequest> {
        &mut self.continuing
    }

    fn fresh(&mut self) -> &mut VecDeque<MemoryRequest> {
        &mut self.fresh
    }

    /// The step of a granted request has memory from now on: the other requests for it come first
    /// (G4), or cannot be any more (G5).
    fn promote(&mut self, granted: &MemoryRequest, decisions: &mut Vec<Decision>) {
        let same = |request: &MemoryRequest| request.id.stream == granted.id.stream;
        for queue in [Self::continuing, Self::fresh] {
            for mut request in std::mem::take(queue(self)) {
                if !same(&request) {
                    queue(self).push_back(request);
                    continue;
                }
                request.has.extend_from_slice(&granted.wants);
                match self.possible(&request) {
                    Ok(()) => self.continuing.push_back(request),
                    Err(fault) => decisions.push(Decision::Refused(request.id, fault)),
                }
            }
        }
    }

    fn grant(
        &mut self,
        request: &MemoryRequest,
        blocked: &mut BTreeSet<Peer>,
        streams: &mut BTreeSet<StreamId>,
    ) -> Option<Shortage> {
        let stream = request.id.stream;
        let account = self.accounts.get_mut(&stream);
        let account = account.expect("a stream withdraws its requests before it ends");
        let total = sum(&request.wants).expect("a request that 64 bits do not count was refused");
        let missing = missing(account.used, total, account.limit);
        if streams.contains(&stream) || missing > 0 {
            streams.insert(stream);
            return Some(Shortage {
                missing,
                used: account.used,
                limit: account.limit,
                block_store: None,
                counts_buffers: false,
            });
        }
        let wanted = per_block_store(&request.wants);
        let mut short: Option<Shortage> = None;
        for (&block_store, &(bytes, buffers)) in &wanted {
            let pool = self.pools.get(&block_store);
            let pool = pool.expect("requests to a lost block store were refused");
            let missing = self::missing(pool.used, bytes, pool.memory);
            let buffers = self::missing(pool.buffers, buffers, pool.most_buffers);
            if missing == 0 && buffers == 0 && !blocked.contains(&block_store) {
                continue;
            }
            let counts_buffers = missing == 0 && buffers > 0;
            let (used, limit) = match counts_buffers {
                true => (pool.buffers, pool.most_buffers),
                false => (pool.used, pool.memory),
            };
            let first = short.get_or_insert(Shortage {
                missing: 0,
                used,
                limit,
                block_store: Some(block_store),
                counts_buffers,
            });
            // A buffer has a byte at least, so who makes room for as many bytes gives one back at
            // least, and is asked again.
            first.missing = first.missing.saturating_add(missing.max(buffers));
        }
        if short.is_some() {
            blocked.extend(wanted.keys());
            streams.insert(stream);
            return short;
        }
        account.used += total;
        for (block_store, (bytes, buffers)) in wanted {
            let pool = self.pools.entry(block_store).or_default();
            pool.used += bytes;
            pool.buffers += buffers;
            *account.at.entry(block_store).or_default() += bytes;
        }
        None
    }

    /// Whether a request could ever be granted.
    fn possible(&self, request: &MemoryRequest) -> Result<(), Fault> {
        let Some(account) = self.accounts.get(&request.id.stream) else {
            return Err(Fault::NotOpen);
        };
        let too_large = |bytes, limit, at: String| Fault::TooLarge {
            stream: account.name.clone(),
            bytes,
            limit,
            at,
        };
        let mut all = [request.has.clone(), request.keeps.clone()].concat();
        all.extend_from_slice(&request.wants);
        let sum = sum(&all);
        if sum.is_none_or(|sum| sum > account.limit) {
            let bytes = sum.unwrap_or(u64::MAX);
            return Err(too_large(bytes, account.limit, "the stream".to_owned()));
        }
        let wanted = per_block_store(&request.wants);
        for (block_store, (bytes, buffers)) in per_block_store(&all) {
            if !wanted.contains_key(&block_store) {
                continue;
            }
            let Some(pool) = self.pools.get(&block_store) else {
                return Err(Fault::NoBlockStore { block_store });
            };
            if bytes > pool.memory {
                return Err(too_large(bytes, pool.memory, block_store.to_string()));
            }
            if buffers > pool.most_buffers {
                return Err(Fault::TooManyBuffers {
                    stream: account.name.clone(),
                    buffers,
                    most: pool.most_buffers,
                    block_store,
                });
            }
        }
        Ok(())
    }
}

/// What is missing for so much more. A budget of all that there is must not count beyond 64 bits.
fn missing(used: u64, more: u64, limit: u64) -> u64 {
    let beyond = used.saturating_sub(limit);
    let free = limit.saturating_sub(used);
    more.saturating_sub(free).saturating_add(beyond)
}

/// All bytes; `None` where 64 bits do not count them.
fn sum(wants: &[Want]) -> Option<u64> {
    let mut wants = wants.iter();
    wants.try_fold(0u64, |sum, want| sum.checked_add(want.bytes))
}

/// Bytes and buffers, of wants whose [`sum`] there is.
fn per_block_store(wants: &[Want]) -> BTreeMap<Peer, (u64, u64)> {
    let mut sums: BTreeMap<Peer, (u64, u64)> = BTreeMap::new();
    for want in wants {
        let (bytes, buffers) = sums.entry(want.block_store).or_default();
        *bytes += want.bytes;
        *buffers += 1;
    }
    sums
}

#[cfg(test)]
mod tests;
