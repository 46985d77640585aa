//! The checking mode: reports unordered accesses of two units to the same elements if at least one
//! of them writes. Every unit has a vector clock; operations that order units
//! (`docs/memory-model.md`) carry clocks from one to the other, and each access is compared with
//! earlier accesses to the same bytes. The owner of the memory keeps these and is queried by
//! messages. This is slow, and the owner has to make progress even where memory is shared.
//!
//! A conflict is logged and kept ([`crate::Pgas::conflicts`]). The next blocking collective of any
//! team of the unit that found it returns [`Error::Conflict`] at all members.
//!
//! It finds accesses that could have happened in another order in this run, and never reports two
//! accesses that are ordered. It does not see: accesses through a reference (there are no races in
//! their phases), what collectives read and write in parts of segments, and whether the program
//! waited for the handle of a `put_nb`. It takes an atomic as ordered before all later ones on the
//! same element, which is more than the program may rely on. It does not distinguish the threads of
//! a unit.
//!
//! # Files
//! `clock` · `shadow` (accesses to the memory of one unit, pure) · `home` (queries about it) ·
//! `report` (conflicts)

mod clock;
mod home;
mod report;
mod shadow;

pub use report::{Access, AccessKind, Conflict};

use crate::job::Members;
use crate::{Error, Group, Result, Unit};
use clock::Clock;
use home::{Answer, Home, Key, Question};
use parking_lot::Mutex;
use samite_fabric::{Error as Below, Fabric, Match, Named, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The handler that answers queries about this unit's memory.
const QUESTIONS: u16 = 0xd5c0;
/// The first byte of the tags of clocks that travel with collectives.
const CLOCKS: u64 = 0xd5c0 << 48;

/// A conflict that this unit reports to the members of a collective, with its index.
pub(crate) type News = Option<(usize, Conflict)>;

/// What the members of a collective tell each other.
#[derive(Debug, Serialize, Deserialize)]
struct Announcement {
    clock: Clock,
    /// A conflict that was not reported yet.
    news: Option<Conflict>,
}

/// Elements of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) owner: Unit,
    pub(crate) segment: u16,
    pub(crate) generation: u8,
    pub(crate) element_bytes: u64,
}

/// Maximum number of conflicts that are kept. All are logged.
const CONFLICTS_MAX: usize = 10_000;

/// The checking mode of one unit.
#[derive(Debug)]
pub(crate) struct Checker {
    fabric: Fabric,
    /// Of the [`crate::Pgas`] on its fabric.
    life: u64,
    me: u32,
    /// The units; their peers and the incarnations of these in the same order.
    group: Group,
    peers: Vec<PeerId>,
    incarnations: Vec<u32>,
    /// Clocks have a time for each unit of the job up to the last one of the group.
    times: usize,
    clock: Mutex<Clock>,
    home: Arc<Mutex<Home>>,
    /// Units whose memory has incomplete implicit puts of this unit, with the total number of
    /// implicit puts when the last one was made.
    incomplete: Mutex<BTreeMap<u32, u64>>,
    implicit_puts: AtomicU64,
    conflicts: Mutex<Vec<Conflict>>,
    /// How many of them were reported in a collective.
    told: AtomicUsize,
}

impl Checker {
    /// Starts checking if the fabric's settings enable it.
    pub(crate) fn start(members: &Members) -> Option<Checker> {
        let (fabric, group, peers) = (members.fabric(), members.group(), members.peers());
        if !fabric.checks() {
            return None;
        }
        let me = Unit(fabric.identity().unit);
        let times = group.members().last().map_or(0, |last| last.index() + 1);
        let home = Arc::new(Mutex::new(Home::new(me, times)));
        let units: Vec<(Unit, PeerId)> = group.into_iter().zip(peers.iter().copied()).collect();
        let answers = home.clone();
        fabric.on(QUESTIONS, move |from, bytes| {
            let (unit, _) = units.iter().find(|(_, peer)| *peer == from)?;
            answers.lock().answer_message(unit.0, bytes)
        });
        Some(Checker {
            fabric: fabric.clone(),
            life: 0,
            me: me.0,
            group: group.clone(),
            peers: peers.to_vec(),
            incarnations: members.incarnations().to_vec(),
            times,
            clock: Mutex::new(Clock::of(me.0)),
            home,
            incomplete: Mutex::default(),
            implicit_puts: AtomicU64::new(0),
            conflicts: Mutex::default(),
            told: AtomicUsize::new(0),
        })
    }

    /// Sets the life of the [`crate::Pgas`], before anything is checked.
    pub(crate) fn in_life(self, life: u64) -> Checker {
        Checker { life, ..self }
    }

    pub(crate) fn conflicts(&self) -> Vec<Conflict> {
        self.conflicts.lock().clone()
    }

    /// Names the units of a conflict, which the unit that found it reports by their numbers.
    #[cold]
    fn name(&self, conflict: &mut Conflict) {
        conflict.name_units(|unit| {
            let name = |at: u32| {
                let (peer, life) = (self.peers[at as usize], self.incarnations[at as usize]);
                self.fabric.name_of(peer, Some(life))
            };
            Named::new(unit, self.group.position(unit).and_then(name))
        });
    }

    /// Records that these elements are about to be accessed.
    pub(crate) fn access(
        &self,
        memory: Memory,
        elements: impl Iterator<Item = Range<u64>>,
        kind: AccessKind,
        place: &Location<'_>,
    ) -> Result<()> {
        let size = memory.element_bytes;
        let bytes =
            |range: Range<u64>| range.start.saturating_mul(size)..range.end.saturating_mul(size);
        let ranges: Vec<_> = elements
            .map(bytes)
            .filter(|range| !range.is_empty())
            .collect();
        if ranges.is_empty() {
            return Ok(());
        }
        let question = Question::Access {
            segment: memory.segment,
            generation: memory.generation,
            ranges,
            element_bytes: size,
            kind,
            place: place.to_string(),
            clock: self.clock.lock().clone(),
        };
        let answer = self.ask(memory.owner.0, question)?;
        if kind == AccessKind::ImplicitPut {
            // Counted only after the owner knows of it: another thread may tell the owner at any
            // time that all are complete.
            let puts = self.implicit_puts.fetch_add(1, Ordering::Relaxed);
            self.incomplete.lock().insert(memory.owner.0, puts);
        }
        if kind.is_atomic() && kind.writes() {
            self.clock.lock().tick(self.me);
        }
        for mut conflict in answer.conflicts {
            self.name(&mut conflict);
            tracing::error!(%conflict, "a data race");
            let mut conflicts = self.conflicts.lock();
            if conflicts.len() < CONFLICTS_MAX {
                conflicts.push(conflict);
            }
        }
        Ok(())
    }

    /// Records that an atomic access to an element has happened.
    pub(crate) fn seen(&self, memory: Memory, element: u64) -> Result<()> {
        self.take(
            memory.owner.0,
            Key::Element {
                segment: memory.segment,
                generation: memory.generation,
                offset: element.saturating_mul(memory.element_bytes),
            },
        )
    }

    /// Records that implicit puts are complete: those to the memory of `of`, or all.
    pub(crate) fn complete(&self, of: Option<Unit>) -> Result<()> {
        let mut units = self.incomplete.lock().clone();
        units.retain(|unit, _| of.is_none_or(|of| of.0 == *unit));
        for (unit, puts) in units {
            let clock = self.clock.lock().clone();
            self.ask(unit, Question::Complete { clock })?;
            let mut incomplete = self.incomplete.lock();
            // Not if another thread has made one meanwhile.
            if incomplete.get(&unit) == Some(&puts) {
                incomplete.remove(&unit);
            }
        }
        Ok(())
    }

    /// Records that a lock is about to be released.
    pub(crate) fn lock_given(&self, home: Unit, team: u64, number: u64) -> Result<()> {
        let clock = self.clock.lock().clone();
        let lock = (team, number);
        self.ask(home.0, Question::Leave { lock, clock })?;
        self.clock.lock().tick(self.me);
        Ok(())
    }

    /// Records that a lock was acquired.
    pub(crate) fn lock_taken(&self, home: Unit, team: u64, number: u64) -> Result<()> {
        self.take(home.0, Key::Lock((team, number)))
    }

    /// Records that a unit is dead.
    pub(crate) fn buried(&self, unit: Unit) {
        self.clock.lock().bury(unit.0);
    }

    fn take(&self, unit: u32, key: Key) -> Result<()> {
        let mut answer = self.ask(unit, Question::Take { key })?;
        answer.clock.limit(self.times);
        self.clock.lock().hear(self.me, &answer.clock);
        Ok(())
    }

    /// Begins a collective: sends the clock, and an unreported conflict, to the members `to`.
    pub(crate) fn begin(
        &self,
        team: (u64, &[PeerId]),
        number: u64,
        to: impl Fn(u32) -> bool,
    ) -> Result<News> {
        let first = self.told.load(Ordering::Relaxed);
        let news = self.conflicts.lock().get(first).cloned();
        let told = Announcement {
            clock: self.clock.lock().clone(),
            news: news.clone(),
        };
        let bytes = serde_json::to_vec(&told).unwrap_or_default();
        for (rank, peer) in (0..).zip(team.1) {
            if *peer != self.fabric.me() && to(rank) {
                alive(self.fabric.send(*peer, self.tag(team.0, number), &bytes))?;
            }
        }
        self.clock.lock().tick(self.me);
        Ok(news.map(|news| (first, news)))
    }

    /// Ends a collective: merges the clocks of the members `from`.
    pub(crate) fn end(
        &self,
        team: (u64, &[PeerId]),
        number: u64,
        from: impl Fn(u32) -> bool,
    ) -> Result<()> {
        for (rank, peer) in (0..).zip(team.1) {
            if *peer != self.fabric.me() && from(rank) {
                self.hear_of(*peer, self.tag(team.0, number), true)?;
            }
        }
        Ok(())
    }

    /// As [`Checker::end`], for a blocking collective, in which all members exchange reports. Fails
    /// if any member has found a conflict. All members decide alike, by what each of them reported
    /// at the beginning.
    pub(crate) fn end_all(
        &self,
        team: (u64, &[PeerId]),
        number: u64,
        own: News,
        from: impl Fn(u32) -> bool,
    ) -> Result<()> {
        let mut news = None;
        for (rank, peer) in (0..).zip(team.1) {
            let theirs = match *peer == self.fabric.me() {
                true => own.as_ref().map(|(_, conflict)| conflict.clone()),
                false => self.hear_of(*peer, self.tag(team.0, number), from(rank))?,
            };
            news = news.or(theirs);
        }
        if let Some((told, _)) = own {
            // Collectives of several threads may have reported the same conflict.
            self.told.fetch_max(told + 1, Ordering::Relaxed);
        }
        match news {
            Some(mut conflict) => {
                self.name(&mut conflict);
                Err(Error::Conflict(Box::new(conflict)))
            }
            None => Ok(()),
        }
    }

    /// Receives what a member reported. `orders`: whether its clock is merged.
    fn hear_of(&self, peer: PeerId, tag: u64, orders: bool) -> Result<Option<Conflict>> {
        let Some((_, bytes)) = alive(self.fabric.recv_vec(Match::from(peer, tag)))? else {
            return Ok(None);
        };
        let Ok(mut told) = serde_json::from_slice::<Announcement>(&bytes) else {
            return Ok(None);
        };
        told.clock.limit(self.times);
        if orders {
            self.clock.lock().hear(self.me, &told.clock);
        }
        Ok(told.news)
    }

    /// Returns the tag of the clocks of one collective. It is even, like those of the messages of a
    /// collective.
    pub(crate) fn tag(&self, team: u64, number: u64) -> u64 {
        let mix = |word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        let mixed = mix(mix(team) ^ self.life) ^ number;
        CLOCKS | mixed << 1 & ((1 << 48) - 1)
    }

    fn ask(&self, unit: u32, question: Question) -> Result<Answer> {
        if unit == self.me {
            return Ok(self.home.lock().answer(unit, question));
        }
        let Some(at) = self.group.position(Unit(unit)) else {
            return Ok(Answer::default());
        };
        let peer = &self.peers[at as usize];
        let bytes = serde_json::to_vec(&question).unwrap_or_default();
        let asked = self.fabric.request(*peer, QUESTIONS, &bytes);
        let answered = alive(asked.and_then(samite_fabric::Handle::wait))?;
        let answer = answered.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(answer.unwrap_or_default())
    }
}

/// Ignores the loss of a unit: the operation itself will report it.
fn alive<T>(said: Result<T, Below>) -> Result<Option<T>> {
    match said {
        Ok(said) => Ok(Some(said)),
        Err(Below::PeerLost { .. } | Below::NoSuchPeer(_) | Below::NoHandler { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pgas;
    use crate::check::AccessKind::Put;
    use crate::tampered::{ACTIVE, lose, simulate_checked};
    use samite_fabric::{Config, Identity};
    use samite_testkit::{Outcome, check, same, units};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::time::Duration;

    fn conflict() -> Conflict {
        let access = |kind| Access {
            unit: Unit(0).into(),
            kind,
            place: String::new(),
        };
        Conflict {
            owner: Unit(0).into(),
            segment: 0,
            elements: 0..1,
            element_bytes: 8,
            earlier: access(Put),
            later: access(Put),
        }
    }

    /// Another thread finds a conflict in the middle of a collective. The next collective reports
    /// it.
    #[test]
    fn a_collective_ends_by_what_it_has_told() -> Outcome {
        let config = Config {
            check: true,
            ..Config::default()
        };
        let fabric = Fabric::alone(Identity::by_hand("check"), config)?;
        let pgas = Pgas::new(&fabric)?;
        let (team, check) = ((0, pgas.world().peers()), pgas.job.check.as_ref());
        let check = check.ok_or_else(|| samite_testkit::Failed::new("it does not check"))?;
        let news = check.begin(team, 1, |_| true)?;
        check.conflicts.lock().push(conflict());
        check.end_all(team, 1, news, |_| true)?;
        let (early, late) = (
            check.begin(team, 2, |_| true)?,
            check.begin(team, 3, |_| true)?,
        );
        check!(check.end_all(team, 2, early, |_| true).is_err());
        check.conflicts.lock().push(conflict());
        check!(check.end_all(team, 3, late, |_| true).is_err());
        same!(
            check.begin(team, 4, |_| true)?.map(|(number, _)| number),
            Some(1)
        );
        Ok(())
    }

    /// The clocks of a collective that failed, or whose result nobody wants, are neither kept nor
    /// taken for those of another life, also if a panic ends this one.
    #[test]
    fn clocks_of_a_failed_collective_are_dropped() {
        simulate_checked(2, |fabric, members| {
            let other = members[usize::from(fabric.me() == members[0])];
            for life in 0..4 {
                let pgas = Pgas::new(fabric)?;
                let world = pgas.world();
                if life == 2 {
                    for _ in 0..20 {
                        drop(world.ibarrier()?);
                    }
                    let panics = AssertUnwindSafe(move || {
                        let _pgas = pgas;
                        resume_unwind(Box::new(()));
                    });
                    check!(catch_unwind(panics).is_err());
                    continue;
                }
                drop(world.ibarrier()?);
                let data = world.allocate::<u64>(2)?;
                // The time of this life is ahead of that of the one before.
                for _ in 0..50 {
                    data.fetch_add(world.rank(), 1, 1)?;
                }
                for round in 0..40 {
                    if world.rank() == 0 {
                        data.put_value(1, 0, round)?;
                    }
                    world.barrier()?;
                    if world.rank() == 1 {
                        same!(data.read_local(0, &mut [0]), Ok(()));
                    }
                    world.barrier()?;
                }
                for round in 0..40 {
                    let failed = match (world.rank(), round % 2) {
                        (0, _) => world.barrier(),
                        (_, 0) => world.broadcast(9, &mut [0]),
                        _ => world.ibroadcast(0, vec![0])?.wait().map(drop),
                    };
                    check!(failed.is_err());
                }
                world.barrier()?;
                same!(pgas.conflicts(), []);
                drop(data);
                drop(pgas);
                let all = Match::any(CLOCKS).masked(0xffff << 48);
                // What was sent for a life that a panic ended stays.
                check!(life > 2 || fabric.probe(all).is_none());
                // The other one begins its next life afterwards.
                fabric.send(other, 1, &[])?;
                fabric.recv(Match::from(other, 1), &mut [])?;
            }
            Ok(())
        });
    }

    /// The others come to calls that nobody waits for after many more of them have been dropped.
    #[test]
    fn clocks_of_calls_that_end_late_are_dropped() {
        simulate_checked(2, |fabric, members| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            if world.rank() == 0 {
                for _ in 0..40 {
                    drop(world.ibarrier()?);
                }
                fabric.send(members[1], 1, &[])?;
            } else {
                fabric.recv(Match::from(members[0], 1), &mut [])?;
                for _ in 0..40 {
                    world.ibarrier()?.wait()?;
                }
            }
            drop(pgas);
            same!(fabric.probe(Match::any(CLOCKS).masked(0xffff << 48)), None);
            Ok(())
        });
    }

    /// A unit that cannot announce a collective refuses it, and the team stays in use.
    #[test]
    fn a_collective_that_cannot_be_announced_is_refused() {
        let body = |fabric: &Fabric, _: &[PeerId]| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            if let (0, Some(check)) = (world.rank(), &pgas.job.check) {
                // Too long for a message that nobody receives.
                let mut long = conflict();
                long.later.place = "x".repeat(1 << 22);
                check.conflicts.lock().push(long);
                let call = || world.barrier();
                check!(fabric.within(Duration::from_millis(20), call).is_err());
                check.conflicts.lock().clear();
            } else {
                same!(world.barrier(), Err(Error::Refused(Unit(0).into())));
            }
            for _ in 0..3 {
                world.barrier()?;
            }
            Ok(())
        };
        let name = "check::tests::a_collective_that_cannot_be_announced_is_refused";
        units(2)
            .config(|config| config.check = true)
            .run(name, body);
        simulate_checked(2, body);
    }

    /// Completions that the owner of the memory has not received are still sent, and it is not told
    /// to complete puts that it does not know.
    #[test]
    fn puts_are_incomplete_until_their_owner_knows() {
        let lost = &Arc::new(AtomicU64::new(0));
        simulate_checked(2, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let words = world.allocate::<u64>(1)?;
            if let (0, Some(check)) = (world.rank(), &pgas.job.check) {
                lose(fabric, lost);
                // Long enough for an answer to arrive.
                let asking = |ask: &dyn Fn() -> Result<()>| {
                    lost.store(u64::from(ACTIVE), Ordering::Relaxed);
                    let asked = fabric.within(Duration::from_millis(20), ask);
                    lost.store(0, Ordering::Relaxed);
                    asked
                };
                check!(asking(&|| words.put_implicit(1, 0, &[7])).is_err());
                same!(check.incomplete.lock().len(), 0);
                words.put_implicit(1, 0, &[7])?;
                check!(asking(&|| check.complete(None)).is_err());
                same!(check.incomplete.lock().len(), 1);
                check.complete(None)?;
                same!(check.incomplete.lock().len(), 0);
            }
            Ok(world.barrier()?)
        });
    }
}
