//! Who gets memory: grants of bytes within the budgets of the keepers and of the streams.
//!
//! Every buffer is granted before it is allocated, so no budget is ever exceeded and nothing is ever aborted: a writer gets
//! its bytes, waits for them, or is refused with a reason.
//!
//! # Invariants
//! * G1 The bytes in use at a keeper never exceed its memory; those of a stream never its limit; those spilled never the disk.
//! * G2 All or nothing: an ask that waits has nothing.
//! * G3 An ask that has to wait for a keeper is not overtaken there by a later one of its class, however small. An ask
//!   that waits only for its own stream's limit holds up nobody else's.
//! * G4 Asks of steps that have memory already (*continuing*) come before those of steps that have none: the former free
//!   memory when they are whole, the latter would only add to what is half-written.
//! * G5 What could never be granted, even if everything else were freed, is refused at once.
//!
//! Not guaranteed: two half-written steps of two streams may each wait for what the other has; the deadline of the asks ends
//! that, with an error that names the keeper and what is in use.

use super::{BufferId, Fault, Peer, StreamId, Want};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
}

#[derive(Debug, Default)]
struct Pool {
    memory: u64,
    used: u64,
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
}

impl Governor {
    /// Nobody has anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A keeper has come, with bytes of memory and of disk.
    pub fn keeper(&mut self, keeper: Peer, memory: u64, disk: u64) {
        let pool = self.pools.entry(keeper).or_default();
        (pool.memory, pool.disk) = (memory, disk);
    }

    /// A keeper is gone and all that it had. Returns the refusals of asks that need it.
    pub fn keeper_lost(&mut self, keeper: Peer) -> Vec<Verdict> {
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

    /// Whether somebody waits.
    pub fn waiting(&self) -> bool {
        !self.continuing.is_empty() || !self.fresh.is_empty()
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

    /// The asker does not want it any more.
    pub fn withdraw(&mut self, ask: AskId) {
        self.continuing.retain(|waiting| waiting.ask != ask);
        self.fresh.retain(|waiting| waiting.ask != ask);
    }

    /// Bytes of a buffer in memory are free.
    pub fn freed(&mut self, buffer: BufferId, keeper: Peer, bytes: u64) {
        let account = self.accounts.get_mut(&buffer.stream);
        let (Some(pool), Some(account)) = (self.pools.get_mut(&keeper), account) else {
            return; // the keeper died: its books are closed
        };
        pool.used -= bytes;
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
        let total: u64 = ask.wants.iter().map(|want| want.bytes).sum();
        if streams.contains(&stream) || account.used + total > account.limit {
            streams.insert(stream);
            return Some(Shortage {
                missing: (account.used + total).saturating_sub(account.limit),
                used: account.used,
                limit: account.limit,
                keeper: None,
            });
        }
        let wanted = per_keeper(&ask.wants);
        let mut short: Option<Shortage> = None;
        for (&keeper, &bytes) in &wanted {
            let pool = self.pools.get(&keeper);
            let pool = pool.expect("asks to a lost keeper were refused");
            let missing = (pool.used + bytes).saturating_sub(pool.memory);
            if missing == 0 && !blocked.contains(&keeper) {
                continue;
            }
            let first = short.get_or_insert(Shortage {
                missing: 0,
                used: pool.used,
                limit: pool.memory,
                keeper: Some(keeper),
            });
            first.missing += missing;
        }
        if short.is_some() {
            blocked.extend(wanted.keys());
            streams.insert(stream);
            return short;
        }
        account.used += total;
        for (keeper, bytes) in wanted {
            self.pools.entry(keeper).or_default().used += bytes;
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
        let mut all = ask.has.clone();
        all.extend_from_slice(&ask.wants);
        let sum = all
            .iter()
            .fold(0u64, |sum, want| sum.saturating_add(want.bytes));
        if sum > account.limit {
            return Err(too_large(sum, account.limit, "the stream".to_owned()));
        }
        let wanted = per_keeper(&ask.wants);
        for (keeper, bytes) in per_keeper(&all) {
            if !wanted.contains_key(&keeper) {
                continue;
            }
            let Some(pool) = self.pools.get(&keeper) else {
                return Err(Fault::NoKeeper { keeper });
            };
            if bytes > pool.memory {
                return Err(too_large(bytes, pool.memory, keeper.to_string()));
            }
        }
        Ok(())
    }
}

fn per_keeper(wants: &[Want]) -> BTreeMap<Peer, u64> {
    let mut sums: BTreeMap<Peer, u64> = BTreeMap::new();
    for want in wants {
        let sum = sums.entry(want.keeper).or_default();
        *sum = sum.saturating_add(want.bytes);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(0);
    const B: StreamId = StreamId(1);

    fn id(stream: StreamId, number: u64) -> AskId {
        AskId { stream, number }
    }

    fn want(keeper: u32, bytes: u64) -> Want {
        Want {
            keeper: Peer(keeper),
            bytes,
        }
    }

    fn ask(stream: StreamId, number: u64, wants: &[Want], has: &[Want]) -> Ask {
        Ask {
            ask: id(stream, number),
            wants: wants.to_vec(),
            has: has.to_vec(),
            yields: false,
        }
    }

    fn governor() -> Governor {
        let mut governor = Governor::new();
        governor.keeper(Peer(1), 100, 50);
        governor.keeper(Peer(2), 100, 0);
        governor.stream(A, "a", 150);
        governor.stream(B, "b", u64::MAX);
        governor
    }

    fn granted(governor: &mut Governor) -> Vec<AskId> {
        let verdicts = governor.pump().into_iter();
        verdicts
            .filter_map(|verdict| match verdict {
                Verdict::Granted(ask) => Some(ask),
                _ => None,
            })
            .collect()
    }

    fn free(governor: &mut Governor, stream: StreamId, keeper: u32, bytes: u64) {
        governor.freed(BufferId { stream, number: 0 }, Peer(keeper), bytes);
    }

    #[test]
    fn grants_stay_within_the_keeper_and_the_stream() {
        let mut governor = governor();
        assert_eq!(
            governor.ask(ask(A, 0, &[want(1, 60), want(2, 60)], &[])),
            None
        );
        assert_eq!(granted(&mut governor), [id(A, 0)]);
        assert_eq!((governor.used_at(Peer(1)), governor.used_by(A)), (60, 120));
        // The stream's limit: 30 are left of 150.
        governor.ask(ask(A, 1, &[want(1, 31)], &[]));
        let Verdict::Wait(_, short) = &governor.pump()[0] else {
            panic!("it has to wait");
        };
        assert_eq!((short.missing, short.keeper, short.limit), (1, None, 150));
        // Another stream is not held up by that.
        governor.ask(ask(B, 0, &[want(1, 40)], &[]));
        assert_eq!(granted(&mut governor), [id(B, 0)]);
        free(&mut governor, A, 2, 60);
        let Verdict::Wait(_, short) = &governor.pump()[0] else {
            panic!("keeper 1 is full");
        };
        assert_eq!((short.missing, short.keeper), (31, Some(Peer(1))));
        free(&mut governor, A, 1, 60);
        assert_eq!(granted(&mut governor), [id(A, 1)]);
        assert!(!governor.waiting());
    }

    #[test]
    fn a_large_ask_is_not_starved_by_small_ones() {
        let mut governor = governor();
        governor.ask(ask(B, 0, &[want(1, 50)], &[]));
        assert_eq!(granted(&mut governor), [id(B, 0)]);
        governor.ask(ask(A, 0, &[want(1, 100), want(2, 10)], &[]));
        governor.ask(ask(B, 1, &[want(1, 10)], &[]));
        governor.ask(ask(B, 2, &[want(2, 95)], &[]));
        assert_eq!(granted(&mut governor), [], "both keepers are spoken for");
        free(&mut governor, B, 1, 50);
        assert_eq!(granted(&mut governor), [id(A, 0)]);
        free(&mut governor, A, 1, 100);
        assert_eq!(granted(&mut governor), [id(B, 1)]);
        free(&mut governor, A, 2, 10);
        assert_eq!(granted(&mut governor), [id(B, 2)]);
    }

    #[test]
    fn half_written_steps_come_first() {
        let mut governor = governor();
        governor.ask(ask(A, 0, &[want(1, 60)], &[]));
        governor.ask(ask(B, 0, &[want(1, 60)], &[]));
        assert_eq!(granted(&mut governor), [id(A, 0)]);
        governor.ask(ask(A, 1, &[want(1, 40)], &[want(1, 60)]));
        assert_eq!(
            granted(&mut governor),
            [id(A, 1)],
            "B came before, but has nothing"
        );
    }

    #[test]
    fn the_impossible_is_refused_at_once_and_by_name() {
        let mut governor = governor();
        let refusal = |verdict| match verdict {
            Some(Verdict::Refused(_, fault)) => fault,
            other => panic!("not refused: {other:?}"),
        };
        let large = refusal(governor.ask(ask(B, 0, &[want(1, 101)], &[])));
        assert_eq!(
            large.to_string(),
            "101 bytes for one step of the stream b are more than 100, all that peer 1 may have: \
             write less per step, or raise the limit"
        );
        let open = refusal(governor.ask(ask(B, 0, &[want(1, 60)], &[want(1, 60)])));
        assert!(matches!(
            open,
            Fault::TooLarge {
                bytes: 120,
                limit: 100,
                ..
            }
        ));
        let stream = refusal(governor.ask(ask(A, 0, &[want(1, 80), want(2, 80)], &[])));
        assert!(matches!(
            stream,
            Fault::TooLarge {
                bytes: 160,
                limit: 150,
                ..
            }
        ));
        let nobody = refusal(governor.ask(ask(B, 0, &[want(7, 1)], &[])));
        assert_eq!(nobody, Fault::NoKeeper { keeper: Peer(7) });
        let huge = refusal(governor.ask(ask(B, 0, &[want(1, u64::MAX), want(1, 2)], &[])));
        assert!(matches!(huge, Fault::TooLarge { .. }));
        assert!(!governor.waiting());
    }

    #[test]
    fn a_stream_that_can_is_asked_to_make_room() {
        let mut governor = governor();
        governor.ask(ask(A, 0, &[want(1, 90)], &[]));
        governor.pump();
        governor.ask(Ask {
            yields: true,
            ..ask(A, 1, &[want(1, 30)], &[])
        });
        assert!(matches!(
            governor.pump()[..],
            [Verdict::Spill(
                _,
                Shortage {
                    missing: 20,
                    used: 90,
                    limit: 100,
                    ..
                }
            )]
        ));
        let buffer = |number| BufferId { stream: A, number };
        assert!(governor.take_disk(buffer(0), Peer(1), 50));
        assert!(
            !governor.take_disk(buffer(1), Peer(1), 1),
            "the disk has a budget too"
        );
        governor.free_disk(buffer(1));
        assert!(!governor.take_disk(buffer(1), Peer(1), 1), "it had none");
        governor.free_disk(buffer(0));
        governor.free_disk(buffer(0));
        assert!(governor.take_disk(buffer(1), Peer(1), 50));
        assert!(!governor.take_disk(buffer(2), Peer(2), 1));
    }

    #[test]
    fn a_lost_keeper_takes_its_books_along() {
        let mut governor = governor();
        governor.ask(ask(A, 0, &[want(1, 70), want(2, 70)], &[]));
        governor.pump();
        governor.ask(ask(B, 0, &[want(1, 70)], &[]));
        governor.ask(ask(B, 1, &[want(2, 70)], &[]));
        assert_eq!(granted(&mut governor), []);
        assert_eq!(
            governor.keeper_lost(Peer(1)),
            [Verdict::Refused(
                id(B, 0),
                Fault::NoKeeper { keeper: Peer(1) }
            )]
        );
        assert_eq!((governor.used_by(A), governor.memory()), (70, 100));
        free(&mut governor, A, 1, 70); // too late: nothing happens
        free(&mut governor, A, 2, 70);
        assert_eq!(granted(&mut governor), [id(B, 1)]);
        governor.stream_over(A);
    }

    #[test]
    fn other_asks_of_a_step_that_got_memory_are_continuing() {
        let mut governor = governor();
        governor.ask(ask(B, 0, &[want(1, 90)], &[]));
        assert_eq!(granted(&mut governor), [id(B, 0)]);
        governor.stream(StreamId(2), "c", u64::MAX);
        governor.ask(ask(A, 0, &[want(1, 50)], &[]));
        governor.ask(ask(StreamId(2), 0, &[want(1, 100)], &[]));
        governor.ask(ask(A, 1, &[want(1, 50)], &[]));
        governor.ask(ask(A, 2, &[want(1, 1)], &[]));
        assert_eq!(granted(&mut governor), []);
        free(&mut governor, B, 1, 90);
        let verdicts = governor.pump();
        let fits = [id(A, 0), id(A, 1)].map(Verdict::Granted);
        assert_eq!(
            verdicts[..2],
            fits,
            "the second part of the step, before a new step"
        );
        assert!(
            matches!(&verdicts[2], Verdict::Refused(ask, Fault::TooLarge { .. }) if *ask == id(A, 2)),
            "the third can never fit"
        );
    }

    #[test]
    fn a_withdrawn_ask_holds_up_nobody() {
        let mut governor = governor();
        let c = StreamId(2);
        governor.stream(c, "c", u64::MAX);
        governor.ask(ask(B, 0, &[want(1, 60)], &[]));
        governor.ask(ask(c, 0, &[want(1, 60)], &[]));
        governor.ask(ask(A, 0, &[want(1, 30)], &[]));
        assert_eq!(granted(&mut governor), [id(B, 0)]);
        governor.withdraw(id(c, 0));
        assert_eq!(granted(&mut governor), [id(A, 0)]);
    }
}
