//! Which processes are units of this job, and what ends when one of them is lost.

use super::{Runtime, Work, locked, name};
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use crate::runtime::Arrived;
use samite_fabric::Fabric;
use samite_fabric::rpc::Life;

impl Work {
    pub(super) fn number(&mut self) {
        let units = self.units.iter().enumerate();
        self.numbers = units.map(|(unit, life)| (*life, unit as u32)).collect();
        self.members.add(&self.units);
    }

    /// Follows membership: units that were lost, and those that have come back.
    pub(super) fn follow(&mut self, runtime: &Runtime, fabric: &Fabric) {
        let changes = fabric.changes();
        if self.changes == changes {
            return;
        }
        self.changes = changes;
        let job = &fabric.identity().job;
        let peers = fabric.peers();
        let of_job = peers.iter().filter(|info| &info.identity.job == job);
        let there = of_job.map(|info| {
            let (peer, incarnation) = (info.peer, info.incarnation);
            (info.identity.unit, Life { peer, incarnation })
        });
        let there: Vec<(u32, Life)> = there.collect();
        self.replaced.extend(renew(&mut self.units, &there));
        // Also those that are about to be lost, or are not the only life of their unit.
        let lives: Vec<Life> = there.iter().map(|(_, life)| *life).collect();
        self.number();
        self.members.add(&lives);
        locked(&runtime.lives).clone_from(&self.units);
        locked(&runtime.calls).members.add(&lives);
        if let Some(context) = &mut self.context {
            context.renew(self.units.len() as u32, self.grants.clone());
        }
        // Those whose loss was not seen before.
        let units = self.units.iter().enumerate();
        let units = units.map(|(unit, life)| (unit as u32, *life));
        let all: Vec<(u32, Life)> = units.chain(self.replaced.iter().copied()).collect();
        self.replaced
            .retain(|(_, life)| !fabric_lost(fabric, *life));
        let lost_now = all.iter().filter(|(_, life)| fabric_lost(fabric, *life));
        let newly = lost_now.filter(|(unit, life)| self.gone.insert(*life, *unit).is_none());
        let newly: Vec<(u32, Life)> = newly.copied().collect();
        self.take_last_words(runtime, fabric, &newly);
        // X5: what uses the fabric is done without the lock of the calls.
        let sent = match newly.is_empty() {
            true => Vec::new(),
            false => locked(&runtime.calls).sent(),
        };
        for (slot, to) in sent {
            if self.gone.contains_key(&to) {
                let unit = all.iter().find(|(_, life)| *life == to);
                let mut failure = lost(fabric, to, unit.map(|(unit, _)| *unit));
                failure.through(self.unit);
                self.end(runtime, fabric, slot, failure);
            }
        }
        for (unit, life) in newly {
            self.codes.forget_unit(life);
            self.fail_moved(runtime, fabric, unit, life);
            locked(&runtime.calls).doubt(life, self.clock);
            self.doubts_due = self.clock; // The next look finds out when.
        }
        self.fetch_again(runtime, fabric);
    }

    /// Works on what units have sent before they were lost, besides calls: failures, and code for
    /// which calls wait, would come too late. Of their calls, those for whose answers they have
    /// waited themselves are dropped: what a life leaves behind takes no room from the next ones.
    /// The others run in their turn.
    fn take_last_words(&mut self, runtime: &Runtime, fabric: &Fabric, lost: &[(u32, Life)]) {
        for (_, life) in lost {
            let last = locked(&runtime.inbox).others.take_of(*life, |_| true);
            for arrived in last {
                self.take(runtime, fabric, arrived);
            }
            let is_vain = |one: &Arrived| one.from == *life && waits_for_answer(one, *life);
            let dropped = locked(&runtime.inbox).calls.take_of(*life, is_vain);
            drop(dropped); // Without the lock.
            self.batch.retain(|one| !is_vain(one));
            self.codes.drop_parked(*life, is_vain);
        }
    }

    /// Fails calls that went from here to a unit that was lost: the failures go back on their way.
    /// Some of the calls may have moved on from there; an answer to a call that has ended is
    /// dropped.
    fn fail_moved(&mut self, runtime: &Runtime, fabric: &Fabric, unit: u32, life: Life) {
        for head in self.trail.sent_to(life, self.clock) {
            let failure = lost(fabric, life, Some(unit));
            self.goes_back(runtime, fabric, head, failure);
        }
    }

    /// Ends calls of this unit that may have been at a unit that was lost, and did not end in the
    /// time for which they may run. Nobody remembers any more that they went there.
    #[cold]
    pub(super) fn end_doubtful(&mut self, runtime: &Runtime, fabric: &Fabric) {
        let (overdue, next) = locked(&runtime.calls).overdue(self.clock);
        self.doubts_due = next;
        for (slot, life) in overdue {
            let unit = self.gone.get(&life).copied();
            let mut failure = lost(fabric, life, unit);
            failure.is_part = true;
            self.end(runtime, fabric, slot, failure);
        }
    }

    /// Returns whether a process is a unit of this job, after another look at who has come.
    #[cold]
    pub(super) fn admits(&mut self, runtime: &Runtime, fabric: &Fabric, life: Life) -> bool {
        self.follow(runtime, fabric);
        self.members.has(life)
    }

    /// Takes a reply of a unit of which this one had not heard when it arrived.
    #[cold]
    pub(super) fn replied(&mut self, runtime: &Runtime, arrived: &Arrived) {
        if let Some(slot) = frame::word(&arrived.bytes, 4) {
            let reply = arrived.bytes.get(8..).unwrap_or_default().to_vec();
            locked(&runtime.calls).answer(slot, arrived.from, Ok(reply));
            self.has_ended_here = true;
        }
    }

    /// Refuses a frame of a process of another job. Only that process is told.
    #[cold]
    pub(super) fn refuse_stranger(&self, fabric: &Fabric, from: Life, bytes: &[u8]) {
        let kind = bytes.first().copied().unwrap_or(0);
        tracing::debug!(from = %from.peer, kind, "a frame of a process of another job");
        match Head::decode(bytes) {
            Some((head, _)) if frame::is_call(kind) && !head.one_way => {
                let job = &fabric.identity().job;
                let text = format!("only units of the job {job} have code run there");
                let mut failure = Failure::new(Cause::Refused, text);
                failure.through(self.unit);
                // If there is no room for it, it is dropped: nothing is kept for strangers.
                let (head, bytes) = (head.encode(frame::FAIL), failure.encode());
                let _ = fabric.post_upcall(from, 0, &head, &bytes);
            }
            _ => {}
        }
    }
}

/// Replaces the lives of units that were started again, and returns the former ones. Over a network
/// the loss of a former life may be seen later than the next one: of two, the one of the higher
/// peer number counts.
fn renew(units: &mut [Life], there: &[(u32, Life)]) -> Vec<(u32, Life)> {
    let before = units.to_vec();
    for (unit, life) in there {
        if let Some(known) = units.get_mut(*unit as usize) {
            *known = *life;
        }
    }
    let both = before.into_iter().zip(units.iter()).zip(0..);
    let replaced = both.filter(|((before, now), _)| before != *now);
    replaced.map(|((before, _), unit)| (unit, before)).collect()
}

/// Returns whether a unit waits for the answer of a call.
fn waits_for_answer(arrived: &Arrived, unit: Life) -> bool {
    let head = Head::decode(&arrived.bytes);
    head.is_some_and(|(head, _)| head.origin == unit && !head.one_way)
}

/// The failure of a call that was, or may have been, at a unit that was lost.
fn lost(fabric: &Fabric, life: Life, unit: Option<u32>) -> Failure {
    let text = format!(
        "{} was lost, and the call may have been there",
        name(fabric, life)
    );
    let mut failure = Failure::new(Cause::Lost, text);
    failure.path.extend(unit);
    failure
}

pub(super) fn fabric_lost(fabric: &Fabric, life: Life) -> bool {
    fabric.lost_life(life.peer, life.incarnation).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::PeerId;

    /// A life that is there beside the next one is replaced once, and not brought back.
    #[test]
    fn a_life_is_replaced_once() {
        let life = |peer| Life {
            peer: PeerId(peer),
            incarnation: peer,
        };
        let mut units = vec![life(1), life(2)];
        let both = [(0, life(1)), (1, life(2)), (1, life(5)), (9, life(7))];
        assert_eq!(renew(&mut units, &both), [(1, life(2))]);
        assert_eq!(renew(&mut units, &both), []);
        assert_eq!(renew(&mut units, &both[..1]), []);
        assert_eq!(units, [life(1), life(5)]);
    }
}
