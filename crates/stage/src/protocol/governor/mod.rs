//! Who gets memory: grants of bytes within the budgets of the keepers and of the streams.
//!
//! Every buffer is granted before it is allocated, so no budget is ever exceeded and nothing is ever aborted: a writer gets
//! its bytes, waits for them, or is refused with a reason.
//!
//! # Invariants
//! * G1 The bytes in use at a keeper never exceed its memory, nor the buffers their number there; the bytes of a stream never its limit; those spilled never the disk.
//! * G2 All or nothing: an ask that waits has nothing.
//! * G3 An ask that has to wait for a keeper is not overtaken there by a later one of its class, however small. An ask
//!   that waits only for its own stream's limit holds up nobody else's.
//! * G4 Asks of steps that have memory already (*continuing*) come before those of steps that have none: the former free
//!   memory when they are whole, the latter would only add to what is half-written.
//! * G5 What could never be granted, even if everything else were freed, is refused at once.
//! * G6 Nothing is counted beyond 64 bits: what a step has and wants is summed with checked additions before anything else is done with it, and a
//!   keeper has no more than [`MOST_BYTES`], whatever it says. So what is granted is what is freed, byte by byte.
//!
//! Not guaranteed: two half-written steps of two streams may each wait for what the other has; the deadline of the asks ends
//! that, with an error that names the keeper and what is in use.

use super::{BufferId, Fault, KeeperFigures, Peer, StreamId, Want};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most bytes of memory, and of disk, that a keeper is taken to have: 256 TiB. Any process can say that it is a keeper, of any size.
pub const MOST_BYTES: u64 = 1 << 48;

/// Most buffers that a keeper is taken to be able to have.
pub const MOST_BUFFERS: u64 = 1 << 16;

/// Names an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId {
    /// The stream that asks.
    pub stream: StreamId,
    /// Which ask of the stream.
    pub number: u64,
}

/// A stream asks for bytes, for one rank's part of the open step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its name.
    pub ask: AskId,
    /// What is wanted.
    pub wants: Vec<Want>,
    /// What the open step has already, of all ranks.
    pub has: Vec<Want>,
    /// The step that the rank keeps until it commits this one: it stays beside it (G5), and makes the ask no continuing one.
    pub keeps: Vec<Want>,
    /// Whether the stream might make room: drop or spill steps.
    pub yields: bool,
}

/// What the governor says to an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes are the asker's.
    Granted(AskId),
    /// They will come, when others free theirs; why not now.
    Wait(AskId, Shortage),
    /// As `Wait`, and the stream should drop or spill what it can: that many bytes are missing.
    Spill(AskId, Shortage),
    /// They can never come.
    Refused(AskId, Fault),
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
    /// Where: a keeper, or `None` for the stream's own limit.
    pub keeper: Option<Peer>,
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
    /// Memory in use, by keeper.
    at: BTreeMap<Peer, u64>,
}

/// The books: who has how many bytes where, and who waits.
#[derive(Debug, Default)]
pub struct Governor {
    pools: BTreeMap<Peer, Pool>,
    accounts: BTreeMap<StreamId, Account>,
    /// Buffers that have a place on a disk.
    spilled: BTreeMap<BufferId, (Peer, u64)>,
    continuing: VecDeque<Ask>,
    fresh: VecDeque<Ask>,
    changed: bool,
}

impl Governor {
    /// Nobody has anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A keeper has come, with bytes of memory, numbers of buffers that it can have there, and bytes of disk; of memory and of disk
    /// no more than [`MOST_BYTES`] count, and no more than [`MOST_BUFFERS`] buffers.
    pub fn keeper(&mut self, keeper: Peer, memory: u64, buffers: u64, disk: u64) {
        self.changed = true;
        let pool = self.pools.entry(keeper).or_default();
        (pool.memory, pool.disk) = (memory.min(MOST_BYTES), disk.min(MOST_BYTES));
        pool.most_buffers = buffers.min(MOST_BUFFERS);
    }

    /// A keeper is gone and all that it had. Returns the refusals of asks that need it.
    pub fn keeper_lost(&mut self, keeper: Peer) -> Vec<Verdict> {
        self.changed = true;
        self.pools.remove(&keeper);
        self.spilled.retain(|_, (at, _)| *at != keeper);
        for account in self.accounts.values_mut() {
            account.used -= account.at.remove(&keeper).unwrap_or(0);
        }
        let needs = |ask: &Ask| ask.wants.iter().any(|want| want.keeper == keeper);
        let mut refused = Vec::new();
        for queue in [&mut self.continuing, &mut self.fresh] {
            refused.extend(queue.iter().filter(|ask| needs(ask)).map(|ask| ask.ask));
            queue.retain(|ask| !needs(ask));
        }
        let refused = refused.into_iter();
        refused
            .map(|ask| Verdict::Refused(ask, Fault::NoKeeper { keeper }))
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

    /// The memory of all keepers.
    pub fn memory(&self) -> u64 {
        let pools = self.pools.values();
        pools.fold(0, |sum, pool| sum.saturating_add(pool.memory))
    }

    /// Memory in use at a keeper; 0 for one that is not there.
    pub fn used_at(&self, keeper: Peer) -> u64 {
        self.pools.get(&keeper).map_or(0, |pool| pool.used)
    }

    /// Memory in use by a stream.
    pub fn used_by(&self, stream: StreamId) -> u64 {
        self.accounts.get(&stream).map_or(0, |account| account.used)
    }

    /// The keepers and the memory of each.
    pub fn keepers(&self) -> impl Iterator<Item = (Peer, u64)> + '_ {
        self.pools
            .iter()
            .map(|(&keeper, pool)| (keeper, pool.memory))
    }

    /// How the memory and the disk of every keeper stand.
    pub fn figures(&self) -> Vec<KeeperFigures> {
        let pools = self.pools.iter();
        let figures = pools.map(|(&peer, pool)| KeeperFigures {
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

    /// The streams that wait with a step that is half written: what it has comes free only when more is granted. A step
    /// that has nothing yet keeps nobody waiting.
    pub fn half_granted(&self) -> BTreeSet<StreamId> {
        let waiting = self.continuing.iter();
        waiting.map(|ask| ask.ask.stream).collect()
    }

    /// An ask comes in: refused (then it is forgotten), or in the queue. [`pump`](Self::pump) answers it.
    pub fn ask(&mut self, ask: Ask) -> Option<Verdict> {
        if let Err(fault) = self.possible(&ask) {
            return Some(Verdict::Refused(ask.ask, fault));
        }
        if ask.has.is_empty() {
            self.fresh.push_back(ask);
        } else {
            self.continuing.push_back(ask);
        }
        None
    }

    /// Whether an ask that waits may be granted now although it was not by the last [`pump`](Self::pump).
    pub fn has_changed(&self) -> bool {
        self.changed && self.waiting()
    }

    /// The asker does not want it any more.
    pub fn withdraw(&mut self, ask: AskId) {
        self.changed = true;
        self.continuing.retain(|waiting| waiting.ask != ask);
        self.fresh.retain(|waiting| waiting.ask != ask);
    }

    /// Bytes of a buffer in memory are free.
    pub fn freed(&mut self, buffer: BufferId, keeper: Peer, bytes: u64) {
        let account = self.accounts.get_mut(&buffer.stream);
        let (Some(pool), Some(account)) = (self.pools.get_mut(&keeper), account) else {
            return; // the keeper died: its books are closed
        };
        self.changed = true;
        pool.used -= bytes;
        pool.buffers -= 1;
        account.used -= bytes;
        *account.at.entry(keeper).or_default() -= bytes;
    }

    /// Takes that much of a keeper's disk for a buffer, if it has it. The memory stays in use until it is
    /// [`freed`](Self::freed).
    pub fn take_disk(&mut self, buffer: BufferId, keeper: Peer, bytes: u64) -> bool {
        let Some(pool) = self.pools.get_mut(&keeper) else {
            return false;
        };
        let after = pool.spilled.checked_add(bytes);
        let fits = after.is_some_and(|after| after <= pool.disk);
        if fits {
            pool.spilled += bytes;
            self.spilled.insert(buffer, (keeper, bytes));
        }
        fits
    }

    /// Gives the disk of a buffer back; nothing happens when it has none.
    pub fn free_disk(&mut self, buffer: BufferId) {
        if let Some((keeper, bytes)) = self.spilled.remove(&buffer)
            && let Some(pool) = self.pools.get_mut(&keeper)
        {
            pool.spilled -= bytes;
        }
    }

    /// Grants what can be granted, and says of the others what they wait for.
    pub fn pump(&mut self) -> Vec<Verdict> {
        self.changed = false;
        let mut verdicts = Vec::new();
        loop {
            verdicts
                .retain(|verdict| matches!(verdict, Verdict::Granted(_) | Verdict::Refused(..)));
            let (mut blocked, mut streams) = (BTreeSet::new(), BTreeSet::new());
            let mut granted = Vec::new();
            for queue in [Self::continuing, Self::fresh] {
                for ask in std::mem::take(queue(self)) {
                    match self.grant(&ask, &mut blocked, &mut streams) {
                        None => granted.push(ask),
                        Some(short) => {
                            verdicts.push(match ask.yields {
                                true => Verdict::Spill(ask.ask, short),
                                false => Verdict::Wait(ask.ask, short),
                            });
                            queue(self).push_back(ask);
                        }
                    }
                }
            }
            if granted.is_empty() {
                return verdicts;
            }
            for ask in granted {
                verdicts.push(Verdict::Granted(ask.ask));
                self.promote(&ask, &mut verdicts);
            }
        }
    }

    fn continuing(&mut self) -> &mut VecDeque<Ask> {
        &mut self.continuing
    }

    fn fresh(&mut self) -> &mut VecDeque<Ask> {
        &mut self.fresh
    }

    /// The step of a granted ask has memory from now on: the other asks for it come first (G4), or cannot be any more (G5).
    fn promote(&mut self, granted: &Ask, verdicts: &mut Vec<Verdict>) {
        let same = |ask: &Ask| ask.ask.stream == granted.ask.stream;
        for queue in [Self::continuing, Self::fresh] {
            for mut ask in std::mem::take(queue(self)) {
                if !same(&ask) {
                    queue(self).push_back(ask);
                    continue;
                }
                ask.has.extend_from_slice(&granted.wants);
                match self.possible(&ask) {
                    Ok(()) => self.continuing.push_back(ask),
                    Err(fault) => verdicts.push(Verdict::Refused(ask.ask, fault)),
                }
            }
        }
    }

    fn grant(
        &mut self,
        ask: &Ask,
        blocked: &mut BTreeSet<Peer>,
        streams: &mut BTreeSet<StreamId>,
    ) -> Option<Shortage> {
        let stream = ask.ask.stream;
        let account = self.accounts.get_mut(&stream);
        let account = account.expect("a stream withdraws its asks before it ends");
        let total = sum(&ask.wants).expect("an ask that 64 bits do not count was refused");
        let missing = missing(account.used, total, account.limit);
        if streams.contains(&stream) || missing > 0 {
            streams.insert(stream);
            return Some(Shortage {
                missing,
                used: account.used,
                limit: account.limit,
                keeper: None,
                counts_buffers: false,
            });
        }
        let wanted = per_keeper(&ask.wants);
        let mut short: Option<Shortage> = None;
        for (&keeper, &(bytes, buffers)) in &wanted {
            let pool = self.pools.get(&keeper);
            let pool = pool.expect("asks to a lost keeper were refused");
            let missing = self::missing(pool.used, bytes, pool.memory);
            let buffers = self::missing(pool.buffers, buffers, pool.most_buffers);
            if missing == 0 && buffers == 0 && !blocked.contains(&keeper) {
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
                keeper: Some(keeper),
                counts_buffers,
            });
            // A buffer has a byte at least, so who makes room for as many bytes gives one back at least, and is asked again.
            first.missing = first.missing.saturating_add(missing.max(buffers));
        }
        if short.is_some() {
            blocked.extend(wanted.keys());
            streams.insert(stream);
            return short;
        }
        account.used += total;
        for (keeper, (bytes, buffers)) in wanted {
            let pool = self.pools.entry(keeper).or_default();
            pool.used += bytes;
            pool.buffers += buffers;
            *account.at.entry(keeper).or_default() += bytes;
        }
        None
    }

    /// Whether an ask could ever be granted.
    fn possible(&self, ask: &Ask) -> Result<(), Fault> {
        let Some(account) = self.accounts.get(&ask.ask.stream) else {
            return Err(Fault::NotOpen);
        };
        let too_large = |bytes, limit, at: String| Fault::TooLarge {
            stream: account.name.clone(),
            bytes,
            limit,
            at,
        };
        let mut all = [ask.has.clone(), ask.keeps.clone()].concat();
        all.extend_from_slice(&ask.wants);
        let sum = sum(&all);
        if sum.is_none_or(|sum| sum > account.limit) {
            let bytes = sum.unwrap_or(u64::MAX);
            return Err(too_large(bytes, account.limit, "the stream".to_owned()));
        }
        let wanted = per_keeper(&ask.wants);
        for (keeper, (bytes, buffers)) in per_keeper(&all) {
            if !wanted.contains_key(&keeper) {
                continue;
            }
            let Some(pool) = self.pools.get(&keeper) else {
                return Err(Fault::NoKeeper { keeper });
            };
            if bytes > pool.memory {
                return Err(too_large(bytes, pool.memory, keeper.to_string()));
            }
            if buffers > pool.most_buffers {
                return Err(Fault::TooManyBuffers {
                    stream: account.name.clone(),
                    buffers,
                    most: pool.most_buffers,
                    keeper,
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
fn per_keeper(wants: &[Want]) -> BTreeMap<Peer, (u64, u64)> {
    let mut sums: BTreeMap<Peer, (u64, u64)> = BTreeMap::new();
    for want in wants {
        let (bytes, buffers) = sums.entry(want.keeper).or_default();
        *bytes += want.bytes;
        *buffers += 1;
    }
    sums
}

#[cfg(test)]
mod tests;
